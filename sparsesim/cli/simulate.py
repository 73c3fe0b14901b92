"""``sparsesim simulate``: a workload, op by op and as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from sparsesim.cli import options as opt
from sparsesim.cli.output import JsonTarget, add_row, check_files, percent, progress, say, show_table, show_time, table
from sparsesim.wording import amount

if TYPE_CHECKING:
    from sparsesim.counters import Counters
    from sparsesim.results_workload import OpRow, WorkloadResult

__all__ = ["register"]

EXAMPLE = "Example: sparsesim simulate llama-3.1-8b --gpu h100_pcie --phase decode --tokens 64 --timing graph"
#: rows of the table that are shown
SHOWN = 500

Source = Annotated[
    str, typer.Argument(metavar="WORKLOAD", help="Packaged workload (see `sparsesim workloads`) or a file.")
]
Streams = Annotated[int, opt.integer("--streams", "Streams that ops are dealt to in turn.")]
Graph = Annotated[bool, typer.Option("--graph", help="Each pass is one CUDA graph.")]
Repeats = Annotated[int, opt.integer("--repeats", "Passes over the workload.")]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("simulate", epilog=EXAMPLE)(simulate)


def simulate(
    workload: Source,
    gpu: opt.Gpu,
    tokens: opt.Tokens = None,
    phase: opt.Phase = None,
    dtype: opt.WorkloadDtype = None,
    pattern: opt.WorkloadPattern = None,
    stack: opt.StackName = None,
    timing: opt.Timing = "kernel",
    l2: opt.L2 = "rotating",
    clock: opt.Clock = "free",
    baseline: opt.Baseline = None,
    streams: Streams = 1,
    graph: Graph = False,
    repeats: Repeats = 1,
    json: opt.Json = None,
) -> None:
    """Run a workload: time of each op dense and sparse, its path and why, totals and fallback rates."""
    target = JsonTarget.parse(json)
    check_files({"--json": target.path}, workload, gpu, stack or "")
    from sparsesim.api import simulate_workload, workload_counters

    with progress("simulating") as report:
        result = simulate_workload(
            gpu, workload, tokens, phase, dtype, pattern, stack, timing, l2, clock, streams, graph, repeats,
            progress=lambda done, total, name: report(done, total), baseline=baseline,
        )  # fmt: skip
    with progress("counting") as report:
        counters = workload_counters(result, gpu, stack, dtype, report)
    if target.write({**result.to_dict(), "counters": counters.to_dict()}):
        show(result, counters)


def show(result: WorkloadResult, counters: Counters) -> None:
    """Print the ops in the order they run, the phases, what fell back, the counters and the totals."""
    protocol = result.protocol
    timing = f"timing {protocol.timing}{' as graphs' if result.graph else ''}"
    mode = f"{timing}, L2 {protocol.l2}, clock {protocol.clock}"
    title = f"{result.workload} on {result.gpu}, {result.stack}; {mode}"
    numbers = ("count", "time", "dense", "speedup", "share")
    grid = table("op", "shape", "pattern", "path", "reason", *numbers, right=numbers)
    for row in result.rows[:SHOWN]:
        gemm = row.gemm
        batch = f"{gemm['batch']} × " if gemm["batch"] > 1 else ""
        add_row(
            grid,
            row.name,
            f"{batch}{gemm['m']}×{gemm['n']}×{gemm['k']} {gemm['dtype']}",
            gemm["pattern"],
            gemm["path"],
            row.reason,
            str(row.launches),
            show_time(row.kernel_us),
            show_time(row.dense_kernel_us),
            f"{row.speedup:.2f}",
            percent(row.share),
            style="yellow" if row.is_fallback else None,
        )
    show_table(title, grid)
    if len(result.rows) > SHOWN:
        say(f"and {len(result.rows) - SHOWN} further ops; --json has all")
    phases = _phases(result.rows)
    if len(phases) > 1:
        grid = table("phase", *numbers[1:4], right=numbers)
        for name, rows in phases.items():
            time, dense = sum(row.kernel_us for row in rows), sum(row.dense_kernel_us for row in rows)
            add_row(grid, name or "(none)", show_time(time), show_time(dense), f"{dense / time:.2f}")
        show_table("Kernel time by phase", grid)
    _paths(result)
    _counters(result, counters)
    _totals(result)


def _phases(rows: Sequence[OpRow]) -> dict[str, list[OpRow]]:
    """Rows by the part of their name before the first ``/``."""
    groups: dict[str, list[OpRow]] = {}
    for row in rows:
        phase, slash, _ = row.name.partition("/")
        groups.setdefault(phase if slash else "", []).append(row)
    return groups


def _paths(result: WorkloadResult) -> None:
    grid = table("path", "reason", "ops", "launches", "FLOPs", "time", right=("ops", "launches", "FLOPs", "time"))
    for share in result.paths:
        add_row(
            grid,
            "fallback" if share.fallback else share.path,
            share.reason,
            str(share.ops),
            percent(share.launch_share),
            percent(share.flop_share),
            percent(share.time_share),
            style="yellow" if share.fallback else None,
        )
    show_table("Paths", grid)


def _counters(result: WorkloadResult, counters: Counters) -> None:
    """Fallbacks, conversions and metadata in launches, bytes and time; tensor cores by path; precision."""
    numbers = ("launches", "bytes", "time", "of the time")
    grid = table("counter", *numbers, right=numbers)
    whole = result.sparse.kernel_us
    fell = sum(share.launches for share in counters.fallbacks)
    fell_us = sum(share.time_us for share in counters.fallbacks)
    add_row(grid, "dense fallback", str(fell), "", show_time(fell_us), percent(counters.fallback_rate.time))
    moved = counters.conversion_bytes
    add_row(
        grid, "format conversion", str(counters.conversion_launches), "?" if moved is None else amount(moved, "B"),
        show_time(counters.conversion_us), percent(counters.conversion_us / whole),
    )  # fmt: skip
    metadata = counters.metadata
    add_row(
        grid, "metadata, from L2", "", amount(metadata.l2_bytes, "B"), show_time(metadata.time_us),
        percent(metadata.time_share),
    )  # fmt: skip
    show_table("Counters", grid)
    asked = [item for item in counters.precision if not item.kept]
    kept = "all layers in the type asked for"
    changed = f"{len(asked)} of {len(counters.precision)} layers not in {asked[0].asked}: " if asked else kept
    names = ", ".join(f"{item.name} {item.ran}" for item in asked[:3]) + (", …" if len(asked) > 3 else "")
    busy = ", ".join(f"{path} {percent(share)}" for path, share in counters.tensor.by_path.items())
    say(
        f"\nmetadata   {amount(metadata.stored_bytes, 'B')} in memory, "
        f"{percent(metadata.stored_share)} of the compressed weights; "
        f"{percent(metadata.l2_share)} of the bytes from L2"
    )
    say(f"tensor     busy while kernels run: {busy}; dense baseline {percent(counters.tensor.dense_kernels)}")
    say(f"precision  {changed}{names}")


def _totals(result: WorkloadResult) -> None:
    run, dense = result.sparse, result.dense
    lines = [
        f"total      {show_time(run.makespan_us)}, dense {show_time(dense.makespan_us)}: "
        f"speedup {result.speedup:.3f} of {result.nominal_speedup:.3g} promised",
        f"fallback   {percent(sum(share.launch_share for share in result.fallbacks))} of the launches, "
        f"{percent(sum(share.flop_share for share in result.fallbacks))} of the FLOPs, "
        f"{percent(sum(share.time_share for share in result.fallbacks))} of the kernel time",
        f"device     {percent(run.tensor_busy)} tensor busy (dense {percent(dense.tensor_busy)}), "
        f"{percent(run.host_bound)} waiting for the host (dense {percent(dense.host_bound)})",
    ]
    if result.others:
        bytes_, flops = (sum((getattr(op, key) or 0) * op.count for op in result.others) for key in ("bytes", "flops"))
        lines.append(
            f"beside     {sum(op.count for op in result.others)} ops that are no GEMM, not simulated: "
            f"{bytes_ / 1e9:.4g} GB, {flops / 1e9:.4g} GFLOP; `sparsesim import` and --json name them"
        )
    for line in lines:
        say(line)
