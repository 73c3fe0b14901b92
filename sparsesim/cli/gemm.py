"""``sparsesim gemm``: one GEMM, dense and sparse."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from sparsesim.cli import options as opt
from sparsesim.cli.output import JsonTarget, add_row, owners_text, percent, say, show_table, show_time, table

if TYPE_CHECKING:
    from sparsesim.results import GemmResult

__all__ = ["register"]

EXAMPLE = (
    "Example: sparsesim gemm --gpu rtx4090 -m 4096 -n 4096 -k 4096 --dtype f16 --pattern 2:4"
    " --stack cusparselt --timing stream --l2 warm --json -"
)


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("gemm", epilog=EXAMPLE)(gemm)


def gemm(
    gpu: opt.Gpu,
    m: opt.SizeM,
    n: opt.SizeN,
    k: opt.SizeK,
    batch: opt.Batch = 1,
    dtype: opt.Dtype = "f16",
    acc: opt.Acc = None,
    pattern: opt.PatternText = "2:4",
    stack: opt.StackName = None,
    timing: opt.Timing = "kernel",
    l2: opt.L2 = "rotating",
    clock: opt.Clock = "free",
    baseline: opt.Baseline = None,
    json: opt.Json = None,
) -> None:
    """Time one GEMM D = A·B, with the m×k weight A, beside its dense baseline; say which path ran and why."""
    target = JsonTarget.parse(json)
    from sparsesim.api import simulate_gemm

    result = simulate_gemm(gpu, m, n, k, dtype, pattern, batch, stack, timing, l2, clock, acc, baseline)
    if target.write(result.to_dict()):
        show(result)


def show(result: GemmResult) -> None:
    """Print a result as two columns, what ran beside the dense baseline."""
    op = result.op
    batch = f"{op.batch} × " if op.batch > 1 else ""
    protocol = result.protocol
    say(
        f"{result.gpu}, {result.stack}: {batch}{op.m}×{op.n}×{op.k} {op.dtype} {op.pattern}; "
        f"timing {protocol.timing}, L2 {protocol.l2}, clock {protocol.clock}",
        "bold",
    )
    say(f"path      {result.path} ({result.reason}): {result.reason_text}")
    if result.treatment in ("raise", "unpruned"):
        does = "raises here: this is the time of a caller who leaves the layer dense"
        say(f"          the stack {does if result.treatment == 'raise' else 'leaves the layer unpruned'}")
    for loss, us in result.overheads.items():
        if us:
            say(f"adds      {show_time(us)} {loss}")
    say(f"speedup   {result.speedup:.3f} of {result.nominal_speedup:g} promised")
    grid = table("", "this run", "dense baseline")
    add_row(grid, "time", show_time(result.time_us), show_time(result.dense_time_us), style="bold")
    launches = (result.launch, result.dense_launch)
    add_row(grid, "kernel", *(run.kernel.name for run in launches))
    add_row(grid, "CTAs", *(f"{run.ctas}, {run.slots} per SM ({run.residency_limit})" for run in launches))
    add_row(grid, "waves", *(f"{run.ctas / (run.slots * run.sms):.2f}" for run in launches))
    add_row(grid, "clock", *(f"{run.clock_hz / 1e6:.0f} MHz" for run in launches))
    add_row(grid, "power", *(f"{run.power_w:.0f} W" for run in launches))
    add_row(grid, "tensor busy", *(percent(run.counters["tensor_busy"]) for run in launches))
    add_row(grid, "L2 hits", *(percent(run.counters["l2_hit_rate"]) for run in launches))
    add_row(grid, "DRAM read", *(f"{run.counters['dram_read_bytes'] / 1e6:.1f} MB" for run in launches))
    add_row(grid, "bound by", result.bound_by, result.dense_launch.bound_by)
    add_row(grid, "SM-cycles", *(owners_text(run.owners) for run in launches))
    show_table("What ran, beside the baseline", grid)
