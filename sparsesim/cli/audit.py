"""``sparsesim audit``: which tensors of a checkpoint are N:M, and whether a stack runs them sparse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sparsesim.cli import options as opt
from sparsesim.cli.output import JsonTarget, add_row, check_files, percent, progress, say, show_table, table
from sparsesim.errors import UserError
from sparsesim.outfiles import OutFile

if TYPE_CHECKING:
    from sparsesim.audit import Audit, TensorAudit

__all__ = ["register"]

EXAMPLE = "Example: sparsesim audit model.safetensors --gpu a100_pcie_80gb --out eligible.jsonl"
#: rows of the table that are shown; --json has all
SHOWN = 60

Source = Annotated[
    str, typer.Argument(metavar="FILE", help="safetensors (file, index or folder), .npz, .npy or .onnx.")
]
Out = Annotated[
    str | None,
    typer.Option("--out", metavar="FILE", help="Write the eligible products as a workload: .toml or .jsonl."),
]
Patterns = Annotated[
    list[str] | None,
    typer.Option("--pattern", metavar="N:M", help="Judge by this pattern; repeatable. By default the usual ones."),
]
Tokens = Annotated[int, opt.integer("--tokens", "Columns of each product.")]
Axis = Annotated[
    int | None, opt.integer("--k-axis", "Summed axis of a matrix, 0 or 1, where the file does not know (1).")
]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("audit", epilog=EXAMPLE)(audit)


def audit(
    file: Source,
    gpu: opt.Gpu,
    stack: opt.StackName = None,
    pattern: Patterns = None,
    tokens: Tokens = 2048,
    dtype: opt.WorkloadDtype = None,
    k_axis: Axis = None,
    out: Out = None,
    json: opt.Json = None,
) -> None:
    """Audit real weights, streamed: N:M along which axis, what breaks it, and eligible or not with the reason."""
    target = JsonTarget.parse(json)
    from sparsesim.api import audit_file
    from sparsesim.workload.write import check_target, workload_lines

    path = None if out is None else check_target(out)
    check_files({"--out": path, "--json": target.path}, file, gpu, stack or "")
    with progress("auditing (bytes)") as report:
        result = audit_file(file, gpu, stack, pattern, tokens, dtype, k_axis, progress=report)
    beside = []
    if path is not None:
        try:
            lines = workload_lines(result.workload(), path.suffix.lower())
        except UserError:
            # nothing to write is no reason to keep what was found: told, but no file without the other
            if JsonTarget(stdout=target.stdout).write(result.to_dict()):
                show(result)
            raise
        beside.append(OutFile(path, (line + "\n" for line in lines), "--out"))
    if target.write(result.to_dict(), beside):
        show(result)
        if path is not None:
            say(f"wrote     {out}: {len(result.eligible)} products")


def show(result: Audit) -> None:
    """Print a row for each tensor that is a matrix, and the counts by reason."""
    told = result.patterns[0] if "2:4" not in result.patterns else "2:4"
    numbers = ("zeros", f"break {told}")
    grid = table("tensor", "stored", "k axis", *numbers, "pattern", "transposed", "why", right=numbers)
    judged = [tensor for tensor in result.tensors if tensor.along_k is not None]
    for tensor in judged[:SHOWN]:
        _row(grid, tensor, told)
    title = f"{result.path}, {result.source}; {result.stack} on {result.gpu}, {result.tokens} tokens"
    show_table(title, grid)
    if len(judged) > SHOWN:
        say(f"and {len(judged) - SHOWN} further tensors")
    grid = table("reason", "tensors", "elements", right=("tensors", "elements"))
    for reason, entry in result.to_dict()["reasons"].items():
        add_row(grid, reason, str(entry["tensors"]), str(entry["elements"]))
    show_table("By reason", grid)
    say(f"\neligible  {len(result.eligible)} of {len(result.tensors)} tensors")


def _row(grid: object, tensor: TensorAudit, told: str) -> None:
    along = tensor.along_k
    assert along is not None
    groups = along.groups.get(told, 0)
    add_row(
        grid,  # type: ignore[arg-type]
        tensor.name,
        f"{'×'.join(map(str, tensor.shape))} {tensor.dtype}",
        str(along.axis),
        percent(tensor.sparsity or 0.0),
        f"{100 * along.broken[told] / groups:.3g} %" if groups else "-",
        ", ".join(along.complies) or "none",
        ", ".join(tensor.across_k.complies if tensor.across_k else ()) or "none",
        tensor.reason if tensor.eligible else f"{tensor.reason}: {tensor.text}",
        style=None if tensor.eligible else "yellow",
    )
