"""``sparsesim import``: foreign files as workloads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sparsesim.cli import options as opt
from sparsesim.cli.output import JsonTarget, add_row, check_files, progress, say, show_table, table
from sparsesim.outfiles import OutFile
from sparsesim.wording import amount

if TYPE_CHECKING:
    from sparsesim.importers import Imported

__all__ = ["register"]

EXAMPLE = "Example: sparsesim import model.onnx --dim batch=1 --out model.jsonl"
#: rows of a table that are shown; the file and --json have all
SHOWN = 40

Source = Annotated[str, typer.Argument(metavar="FILE", help="config.json, .onnx, .safetensors, .pt2, trace or CSV.")]
Out = Annotated[str | None, typer.Option("--out", metavar="FILE", help="Write the workload: .toml or .jsonl.")]
Format = Annotated[str | None, typer.Option("--format", metavar="NAME", help="Instead of what the file looks like.")]
Pattern = Annotated[
    str | None, typer.Option("--pattern", metavar="N:M", help="Of the weights; 2:4 for models, for traces what ran.")
]
Phases = Annotated[
    list[str] | None,
    typer.Option("--phase", metavar="NAME=N[,N...]", help="Token counts of a phase of a config.json; repeatable."),
]
Context = Annotated[int | None, opt.integer("--context", "Tokens before each decoded one (config.json).")]
Tokens = Annotated[int | None, opt.integer("--tokens", "Columns of each GEMM (safetensors).")]
Dims = Annotated[
    list[str] | None,
    typer.Option("--dim", metavar="NAME=SIZE", help="Size of a dynamic dimension (ONNX, torch.export); repeatable."),
]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("import", epilog=EXAMPLE)(import_)


def import_(
    file: Source,
    out: Out = None,
    format: Format = None,
    pattern: Pattern = None,
    dtype: opt.WorkloadDtype = None,
    phase: Phases = None,
    context: Context = None,
    tokens: Tokens = None,
    dim: Dims = None,
    json: opt.Json = None,
) -> None:
    """Read a model, a checkpoint's header or a trace as a workload; name and count what is no GEMM."""
    target = JsonTarget.parse(json)
    from sparsesim.api import import_file
    from sparsesim.workload.write import check_target

    path = None if out is None else check_target(out)
    check_files({"--out": path, "--json": target.path}, file)
    phases = {name: _counts(name, text) for name, text in opt.pairs("--phase", phase)}
    dims = opt.sizes("--dim", dim)
    with progress("reading") as report:
        imported = import_file(
            file, format, pattern, dtype, phases or None, context, tokens, dims or None, progress=report
        )
    beside = []
    if path is not None:
        lines = imported.lines(path.suffix.lower())
        beside.append(OutFile(path, (line + "\n" for line in lines), "--out"))
    if target.write(imported.to_dict(), beside):
        show(imported, out)


def _counts(name: str, text: str) -> list[int]:
    return [opt.size(f"--phase {name}", part) for part in text.split(",")]


def show(imported: Imported, out: str | None) -> None:
    """Print the GEMMs, the other ops by kind, and the totals."""
    data = imported.to_dict()
    numbers = ("count", "FLOPs", "bytes")
    grid = table("op", "shape", "pattern", "kind", *numbers, right=numbers)
    for op in data["gemms"][:SHOWN]:
        batch = f"{op['batch']} × " if op["batch"] > 1 else ""
        shape = f"{batch}{op['m']}×{op['n']}×{op['k']} {op['dtype']}"
        add_row(
            grid, op["name"], shape, op["pattern"], op["kind"], str(op["count"]),
            amount(op["flops"] * op["count"], "FLOP"), amount(op["bytes"] * op["count"], "B"),
        )  # fmt: skip
    show_table(f"{data['workload']}: {data['file']}, {data['format']}", grid)
    if len(data["gemms"]) > SHOWN:
        say(f"and {len(data['gemms']) - SHOWN} further GEMMs")
    kinds: dict[str, list[int | None]] = {}
    for other in data["others"]:
        total = kinds.setdefault(other["op"], [0, 0, 0])
        for i, value in enumerate((other["count"], other["flops"], other["bytes"])):
            old = total[i]
            total[i] = None if old is None or value is None else old + value * (other["count"] if i else 1)
    grid = table("not a GEMM", *numbers, right=numbers)
    for name, (count, flops, size) in list(kinds.items())[:SHOWN]:
        add_row(grid, name, str(count), amount(flops, "FLOP"), amount(size, "B"))
    if kinds:
        show_table("Ops that sparsity does not support: named and counted, not simulated", grid)
    if len(kinds) > SHOWN:
        say(f"and {len(kinds) - SHOWN} further kinds")
    sums = data["totals"]
    unknown = f" ({sums['others_of_unknown_size']} of unknown size)" if sums["others_of_unknown_size"] else ""
    say(
        f"\ntotal  {sums['gemms']} GEMMs, {amount(sums['gemm_flops'], 'FLOP')}, {amount(sums['gemm_bytes'], 'B')}; "
        f"{sums['others']} other ops, {amount(sums['other_flops'], 'FLOP')}, {amount(sums['other_bytes'], 'B')}"
        + unknown
    )
    for note in data["notes"]:
        say(f"note   {note}")
    if out is not None:
        say(f"wrote  {out}")
