"""``sparsesim explain``: where the promised speedup of a GEMM or a workload went; the rules of a stack."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from sparsesim.cli import options as opt
from sparsesim.cli.output import (
    JsonTarget,
    add_row,
    bar,
    percent,
    progress,
    say,
    show_table,
    show_time,
    table,
)
from sparsesim.errors import UserError, nearest

if TYPE_CHECKING:
    from sparsesim.attribution import Attribution, WorkloadAttribution
    from sparsesim.stacks import Stack

__all__ = ["register"]

EXAMPLE = (
    "Example: sparsesim explain llama-3.1-8b --gpu h100_pcie --phase prefill --tokens 2048;  "
    "sparsesim explain --gpu rtx4090 -m 4096 -n 64 -k 4096;  sparsesim explain --rules"
)

Source = Annotated[
    str | None,
    typer.Argument(metavar="[WORKLOAD]", help="Packaged workload or a file; instead of -m, -n and -k."),
]
Rules = Annotated[bool, typer.Option("--rules", help="Print the rules of the stack in order, and nothing else.")]
Top = Annotated[int, opt.integer("--top", "Layers of a workload to show, worst first.")]
Idealise = Annotated[
    str | None,
    typer.Option("--idealise", metavar="CAUSES", help="Also show the times with these causes idealised, e.g. l2,dram."),
]
OpDtype = Annotated[
    str | None,
    typer.Option("--dtype", metavar="TYPE", help="Input type; default f16, or what the workload file says."),
]
OpPattern = Annotated[
    str | None,
    typer.Option("--pattern", metavar="N:M", help="Of A; default 2:4, or what the workload file says."),
]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("explain", epilog=EXAMPLE)(explain)


def explain(
    workload: Source = None,
    gpu: opt.OptionalGpu = None,
    m: opt.OptionalM = None,
    n: opt.OptionalN = None,
    k: opt.OptionalK = None,
    batch: opt.Batch = 1,
    dtype: OpDtype = None,
    acc: opt.Acc = None,
    pattern: OpPattern = None,
    tokens: opt.Tokens = None,
    phase: opt.Phase = None,
    stack: opt.StackName = None,
    timing: opt.Timing = "kernel",
    l2: opt.L2 = "rotating",
    clock: opt.Clock = "free",
    baseline: opt.Baseline = None,
    idealise: Idealise = None,
    top: Top = 10,
    rules: Rules = False,
    json: opt.Json = None,
) -> None:
    """Say where the promised speedup went, cause by cause; of a workload, worst layers first.

    A share is the Shapley value of a cause in ln(nominal / effective speedup); shares sum to the gap. A
    negative share is a loss that the dense baseline has more of.
    """
    target = JsonTarget.parse(json)
    if rules:
        _rules(stack, target)
        return
    wanted = _causes(idealise)
    sizes = {"-m": m, "-n": n, "-k": k}
    of_op = {**sizes, "--batch": batch if batch != 1 else None, "--acc": acc, "--idealise": idealise}
    of_workload = {"--tokens": tokens, "--phase": phase}
    _check(workload, gpu, sizes, of_workload if workload is None else of_op, top)
    assert gpu is not None
    if workload is not None:
        from sparsesim.api import explain_workload

        with progress("explaining") as report:
            whole = explain_workload(
                gpu, workload, tokens, phase, dtype, pattern, stack, timing, l2, clock,
                progress=lambda done, total, name: report(done, total), baseline=baseline,
            )  # fmt: skip
        data = whole.to_dict()
        for item, record in zip(whole.ops, data["ops"], strict=True):
            record["command"] = command(item, gpu)
        if target.write(data):
            show_workload(whole, workload, gpu, top)
        return
    from sparsesim.api import explain_gemm

    assert m is not None
    assert n is not None
    assert k is not None
    result = explain_gemm(
        gpu, m, n, k, dtype or "f16", pattern or "2:4", batch, stack, timing, l2, clock, acc, baseline
    )
    data = {**result.to_dict(), "command": command(result, gpu)}
    for item in data["evidence"]:
        item["command"] = f"{data['command']} --idealise {item['cause']}"
    if wanted:
        dense_us, time_us = result.idealised(wanted)
        data["idealised"] = {
            "causes": wanted, "dense_time_us": dense_us, "time_us": time_us, "speedup": dense_us / time_us,
        }  # fmt: skip
    if target.write(data):
        show_gemm(result, gpu)
        if wanted:
            say(
                f"idealised {', '.join(wanted)}: {show_time(time_us)}, dense {show_time(dense_us)}: "
                f"speedup {dense_us / time_us:.3f}"
            )


def _causes(text: str | None) -> list[str]:
    """The causes that `text` lists, separated by commas; raises UserError for one that does not exist."""
    from sparsesim.attribution import CAUSES

    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    valid = [item.id for item in CAUSES]
    lines = [
        f"--idealise: expected causes out of {', '.join(valid)}, found {name!r}{nearest(name, valid)}"
        for name in names
        if name not in valid
    ]
    if lines:
        raise UserError(lines)
    return names


def _check(
    workload: str | None,
    gpu: str | None,
    sizes: Mapping[str, int | None],
    misplaced: Mapping[str, object],
    top: int,
) -> None:
    """Raise one error with all that is missing or does not go together."""
    lines = []
    if gpu is None:
        lines.append("--gpu: expected a packaged GPU or a path to a .toml file, found none")
    missing = [name for name, size in sizes.items() if size is None]
    if workload is None and len(missing) == len(sizes):
        lines.append("expected a workload, or a GEMM with -m, -n and -k, found neither")
    elif workload is None and missing:
        lines.append(f"{', '.join(missing)}: expected all three sizes of a GEMM, found only some")
    for name, value in misplaced.items():
        if value is not None and workload is not None:
            lines.append(f"{name}: expected a GEMM's option without a workload, found one beside {workload!r}")
        elif value is not None:
            lines.append(f"{name}: expected a workload to take a part of, found none")
    if top < 1:
        lines.append(f"--top: expected a positive integer, found {top}")
    if lines:
        raise UserError(lines)


def show_gemm(result: Attribution, gpu: str) -> None:
    """Print the shares of one GEMM, largest first, and how to get them again."""
    op = result.op
    batch = f"{op.batch} × " if op.batch > 1 else ""
    say(
        f"{result.gpu}, {result.stack}: {batch}{op.m}×{op.n}×{op.k} {op.dtype} {op.pattern}; "
        f"timing {result.protocol.timing}, L2 {result.protocol.l2}, clock {result.protocol.clock}",
        "bold",
    )
    say(f"path      {result.path} ({result.reason}): {result.reason_text}")
    _headline(result)
    alone = {item.cause: f"{item.speedup[1]:.3f}" for item in result.evidence}
    _shares(result, alone)
    columns = ("this run", "dense baseline")
    grid = table("owner", *columns, right=columns)
    runs = (result.accounting["sparse"], result.accounting["dense"])
    for owner in sorted(runs[0], key=lambda name: -runs[0][name]):
        if max(run[owner] for run in runs) >= 0.05:
            add_row(grid, owner, *(percent(run[owner] / 100) for run in runs))
    show_table("SM-cycles by owner (another view, not to be added to the shares)", grid)
    agreement = {True: ", as the largest share says", False: ", unlike the largest share", None: ""}[result.agrees]
    say(f"\nbound by  {result.bottleneck}{agreement}")
    _notes(result.notes())
    say(f"again     {command(result, gpu)}")


def show_workload(result: WorkloadAttribution, workload: str, gpu: str, top: int) -> None:
    """Print the shares of a workload, its worst layers, and how to look into each."""
    protocol = result.protocol
    say(
        f"{workload} on {result.gpu}, {result.stack}: {len(result.ops)} ops; "
        f"timing {protocol.timing}, L2 {protocol.l2}, clock {protocol.clock}",
        "bold",
    )
    _headline(result)
    _shares(result, {name: f"{speedup:.3f}" for name, speedup in result.alone.items()})
    layers = result.layers()
    numbers = ("count", "time", "speedup", "promised", "lost")
    title = f"Layers that lose most time, {min(top, len(layers))} of {len(layers)}"
    grid = table("layer", "path", *numbers, "", "causes", right=numbers)
    worst = max((abs(layer.lost_us) for layer in layers), default=0.0) or 1.0
    for layer in layers[:top]:
        add_row(
            grid,
            layer.name,
            "+".join(layer.paths),
            str(layer.count),
            show_time(layer.time_us),
            f"{layer.speedup:.2f}",
            f"{layer.nominal_speedup:.2f}",
            show_time(layer.lost_us),
            bar(layer.lost_us / worst, 12),
            _main_causes(layer.lost_by_cause_us, layer.lost_us),
        )
    show_table(title, grid)
    say(f"\nbound by  {result.bottleneck}, for most of the time")
    _notes(result.notes())
    by_name = {item.op.name: item for item in result.ops}
    for layer in layers[: min(top, 3)]:
        say(f"again     {command(by_name[layer.name], gpu)}  # {layer.name}")


def _headline(result: Attribution | WorkloadAttribution) -> None:
    """What was promised, what came out, and the time between."""
    say(
        f"speedup   {result.speedup:.3f} of {result.nominal_speedup:.4g} promised: "
        f"{show_time(result.time_us)} instead of {show_time(result.dense_time_us / result.nominal_speedup)}, "
        f"dense {show_time(result.dense_time_us)}; gap {result.gap:+.4f} ln"
    )


def _shares(result: Attribution | WorkloadAttribution, alone: Mapping[str, str]) -> None:
    """The causes as bars, largest share first; `alone` is the speedup with only that cause idealised."""
    from sparsesim.attribution import cause

    ranked = [(name, share) for name, share in result.ranked() if abs(share) >= 5e-5]
    numbers = ("ln", "of the gap", "lost", "speedup if ideal")
    grid = table("cause", *numbers, "", "what it is", right=numbers)
    widest = max((abs(share) for _, share in ranked), default=1.0)
    share_of, lost = (result.percent if result.gap > 0 else None), result.lost_us
    for name, share in ranked:
        cells = [f"{share:+.4f}", percent(share_of[name] / 100) if share_of else "-", show_time(lost[name])]
        cells.append(alone.get(name, ""))
        add_row(grid, name, *cells, bar(share / widest), cause(name).meaning)
    whole = [f"{result.gap:+.4f}", percent(1.0) if share_of else "-", show_time(result.total_lost_us)]
    add_row(grid, "sum", *whole, "", "", "", style="bold")
    show_table("Where it went", grid)


def _main_causes(lost: Mapping[str, float], total: float, most: int = 3) -> str:
    """The causes that make up most of a layer's lost time."""
    worst = sorted(lost.items(), key=lambda item: -item[1])[:most]
    if total <= 0:
        return "faster than promised" if total < 0 else "nothing lost"
    named = [f"{name} {percent(us / total, 0)}" for name, us in worst if us > 0.05 * total]
    return ", ".join(named)


def _notes(notes: Sequence[str]) -> None:
    for note in notes:
        say(f"note      {note}")


def command(result: Attribution, gpu: str) -> str:
    """The command that reproduces `result`, with the GPU as it was given: by name or by path."""
    words = result.command.replace(f"--gpu {result.gpu} ", f"--gpu {shlex.quote(gpu)} ", 1)
    op = result.op
    return f"{words} --acc {op.acc_dtype}" if op.acc_dtype and "--acc" not in words else words


def _rules(name: str | None, target: JsonTarget) -> None:
    """Print a stack's rules in the order in which they are asked."""
    from sparsesim.cli.catalogue import stack_record
    from sparsesim.stacks import get_stack
    from sparsesim.stacks.load import where

    stack: Stack = get_stack(name or "cusparselt")
    if not target.write(stack_record(stack)):
        return
    version = f" {stack.version}" if stack.version else ""
    what = {"raise": "raises", "dense": f"sends the op to {stack.dense_stack}", "unpruned": "leaves the layer unpruned"}
    grid = table("", "reason", "the sparse path needs", "where", "source")
    for number, rule in enumerate(stack.rules, 1):
        own = f" ({what[rule.treatment]})" if rule.treatment and rule.treatment != stack.treatment else ""
        add_row(grid, str(number), rule.code, rule.text + own, rule.applies, rule.source)
    title = f"{stack.title}{version}: rules in order; the first that is not met {what[stack.treatment]}"
    show_table(title, grid)
    costs = [
        *((spec.loss, spec.text, where(spec.when), spec.source) for spec in stack.behaviour.added),
        *(("host-plan", spec.text, where(spec.when), spec.source) for spec in stack.behaviour.host),
        *((spec.loss or "", spec.text, where(spec.when), spec.source) for spec in stack.behaviour.catalogue),
    ]
    if costs:
        grid = table("loss", "what a call adds, or which kernels it may take", "where", "source")
        for row in costs:
            add_row(grid, *row)
        show_table("Beside the product", grid)
