"""Everything that a report shows, simulated: the run, its counters, its losses, and what mending fallbacks brings."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sparsesim.attribution import WorkloadAttribution, attribute_workload, cause
from sparsesim.attribution.result import share_notes
from sparsesim.confidence import speedup_interval
from sparsesim.counters import count
from sparsesim.impact import Impact, fallback_impact
from sparsesim.protocol import Protocol
from sparsesim.report.commands import Source
from sparsesim.report.document import Answer, Cause, Layer, Report
from sparsesim.results_workload import OpRow, WorkloadResult
from sparsesim.runtime import run_workload
from sparsesim.simulator import Simulator
from sparsesim.sparsity import Pattern
from sparsesim.wording import percent, show_time
from sparsesim.workload import Gemm, Workload
from sparsesim.workload.ops import MAX_DIM

__all__ = ["MOST_SHAPES", "build_report"]

#: distinct launches whose losses are attributed, those with most kernel time first; each takes about a second
MOST_SHAPES = 24
#: share of a run in which the GPU waits for the host that is worth a note
HOST_BOUND = 0.05
#: kinds of other ops that are listed
MOST_OTHERS = 20

Progress = Callable[[str, int, int], None]


def build_report(
    simulator: Simulator,
    workload: Workload,
    protocol: Protocol,
    source: Source,
    notes: Sequence[str] = (),
    progress: Progress | None = None,
) -> Report:
    """Simulate `workload` and put together its report.

    Parameters
    ----------
    simulator, protocol
        GPU, stack and dense baseline; timing, L2 state and clock.
    source : Source
        What was asked for, for the commands.
    notes
        What an importer assumed.
    progress : callable, optional
        Called as progress(step, done, total).

    Raises
    ------
    NoKernelError
        An op's type has no dense kernel on the GPU.
    UserError
        As `run_workload`.
    """

    def told(step: str) -> Callable[..., None]:
        return lambda done, total, *_: None if progress is None else progress(step, done, total)

    gpu = simulator.gpu
    result = run_workload(workload, simulator, protocol, progress=told("simulating"))
    counters = count(result, gpu, simulator.stack, source.dtype, told("counting"))
    impact = fallback_impact(result, workload, simulator, told("mending fallbacks"))
    chosen, covered = _worth_attributing(result, workload)
    losses = attribute_workload(simulator, chosen, protocol, told("explaining"))
    answer = _answer(result, losses, impact, speedup_interval(result, gpu.family), gpu.name)
    return Report(
        title=f"{result.workload} on {result.gpu} with {result.stack}",
        answer=answer,
        layers=tuple(_layers(result)),
        losses={
            "promised": losses.nominal_speedup, "delivered": losses.speedup, "lost_us": losses.total_lost_us,
            "time_us": losses.time_us, "coverage": covered, "shapes": len(chosen), "notes": share_notes({}, losses.gap),
        },
        causes=tuple(_causes(losses)),
        impact=impact.to_dict(),
        counters=counters.to_dict(),
        others=tuple(_others(workload)),
        provenance=_provenance(result, simulator),
        commands=_commands(source, impact, result),
        notes=(*notes, *_notes(result, losses, covered, workload)),
    )  # fmt: skip


def _worth_attributing(result: WorkloadResult, workload: Workload) -> tuple[list[Gemm], float]:
    """Distinct launches with the most kernel time, each with the count of all its ops; the share of time they cover."""
    first: dict[Gemm, Gemm] = {}
    counts: dict[Gemm, int] = {}
    times: dict[Gemm, float] = {}
    for op, row in zip(workload.ops, result.rows, strict=True):
        plain = replace(op, name="op", count=1, family="")
        first.setdefault(plain, op)
        counts[plain] = counts.get(plain, 0) + op.count
        times[plain] = times.get(plain, 0.0) + row.kernel_us
    most = sorted(times, key=lambda plain: -times[plain])[:MOST_SHAPES]
    chosen = [_counted(first[plain], counts[plain]) for plain in first if plain in set(most)]
    return [op for part in chosen for op in part], math.fsum(times[plain] for plain in most) / result.sparse.kernel_us


def _counted(op: Gemm, times: int) -> list[Gemm]:
    """`op` so many times, in ops whose counts are within bounds."""
    whole, rest = divmod(times, MAX_DIM)
    return [replace(op, count=MAX_DIM)] * whole + ([replace(op, count=rest)] if rest else [])


def _layers(result: WorkloadResult) -> list[Layer]:
    """Ops of one shape, path and reason as one row, the one with most kernel time first."""
    groups: dict[tuple[Any, ...], list[OpRow]] = {}
    for row in result.rows:
        gemm = row.gemm
        shape = gemm["batch"], gemm["m"], gemm["n"], gemm["k"], gemm["dtype"], gemm["pattern"]
        groups.setdefault((*shape, gemm["path"], row.reason, row.is_fallback), []).append(row)
    layers = []
    for (batch, m, n, k, dtype, pattern, path, reason, fallback), rows in groups.items():
        time_us = math.fsum(row.kernel_us for row in rows)
        dense_us = math.fsum(row.dense_kernel_us for row in rows)
        gemm = rows[0].gemm
        layers.append(
            Layer(
                name=rows[0].name,
                more=len(rows) - 1,
                shape=f"{batch} × {m}×{n}×{k}" if batch > 1 else f"{m}×{n}×{k}",
                dtype=dtype,
                pattern=pattern,
                state="fallback" if fallback else path,
                reason=reason,
                text=str(gemm["reason_text"]),
                launches=sum(row.launches for row in rows),
                time_us=time_us,
                dense_time_us=dense_us,
                share=time_us / result.sparse.kernel_us,
                speedup=dense_us / time_us,
                nominal=float(gemm["nominal_speedup"]),
                bound_by=str(gemm["bound_by"]),
            )
        )
    return sorted(layers, key=lambda layer: -layer.time_us)


def _causes(losses: WorkloadAttribution) -> list[Cause]:
    """The steps from the promised to the delivered speedup."""
    level, steps = losses.nominal_speedup, []
    of_gap, lost = losses.percent if losses.gap > 0 else None, losses.lost_us
    for name, share in losses.ranked():
        after = level * math.exp(-share)
        item = cause(name)
        part = None if of_gap is None else of_gap[name] / 100.0
        steps.append(Cause(name, item.kind, item.meaning, share, part, level, after, lost[name]))
        level = after
    return steps


def _answer(
    result: WorkloadResult, losses: WorkloadAttribution, impact: Impact, interval: tuple[float, float], gpu: str
) -> Answer:
    patterns = sorted({row.gemm["pattern"] for row in result.rows if not Pattern.parse(row.gemm["pattern"]).is_dense})
    what = f"with {', '.join(patterns)} weights" if patterns else "as it is, without a sparse weight,"
    low, high = interval
    time_us, dense_us = result.sparse.makespan_us, result.dense.makespan_us
    fell = math.fsum(share.time_share for share in result.fallbacks)
    ranked = losses.ranked()
    worst = f"largest loss: {cause(ranked[0][0]).meaning}" if ranked and ranked[0][1] > 0 else "nothing is lost"
    if fell:
        mended = f"mending the fallbacks brings {impact.speedup:.2f}×"
        if impact.speedup <= result.speedup * 1.0005:
            mended = "no change of shape or pattern makes them faster"
        second = f"{percent(fell)} of the kernel time goes to sparse weights on the dense path ({mended}); {worst}."
    else:
        second = f"No sparse weight falls back to the dense path; {worst}."
    return Answer(
        question=f"How much faster does {result.workload} run {what} on {gpu} under {result.stack}, against dense?",
        first=f"{result.speedup:.2f}× (90 % interval {low:.2f} to {high:.2f}) "
        f"of {result.nominal_speedup:.2f}× promised: {show_time(time_us)} instead of {show_time(dense_us)}.",
        second=second[0].upper() + second[1:],
        speedup=result.speedup,
        low=low,
        high=high,
        nominal=result.nominal_speedup,
        mended=impact.speedup,
        time_us=time_us,
        dense_time_us=dense_us,
    )


def _others(workload: Workload) -> list[dict[str, Any]]:
    """Ops that are no GEMM, by kind, those that occur most first."""
    kinds: dict[str, dict[str, Any]] = {}
    for other in workload.others:
        entry = kinds.setdefault(other.op, {"op": other.op, "count": 0, "bytes": 0, "flops": 0})
        entry["count"] += other.count
        for key in ("bytes", "flops"):
            value = getattr(other, key)
            known = entry[key] is not None and value is not None
            entry[key] = entry[key] + value * other.count if known else None
    return sorted(kinds.values(), key=lambda entry: (-entry["count"], entry["op"]))[:MOST_OTHERS]


def _provenance(result: WorkloadResult, simulator: Simulator) -> dict[str, Any]:
    return {
        "version": result.version,
        "gpu": result.gpu,
        "gpu_hash": result.gpu_hash,
        "stack": result.stack,
        "baseline": f"{simulator.stack.dense_stack}, {simulator.baseline}",
        "workload": result.workload,
        "workload_digest": result.workload_digest,
        "timing": result.protocol.timing,
        "l2": result.protocol.l2,
        "clock": result.protocol.clock,
        "seed": result.seed,
    }


def _commands(source: Source, impact: Impact, result: WorkloadResult) -> dict[str, list[str]]:
    """The commands of each section."""
    first = [] if (prepared := source.prepare()) is None else [prepared]
    rows = {row.name: row for row in result.rows}
    mended = []
    for item in (layer for reason in impact.reasons for layer in reason.layers if layer.mended_us is not None):
        gemm = rows[item.name].gemm
        free = gemm["acc_dtype"] if gemm["dtype"] == "f16" and gemm["acc_dtype"] != "f32" else None
        command = source.gemm(item.m, item.n, item.k, gemm["dtype"], item.pattern, gemm["batch"], free)
        if command not in mended:
            mended.append(command)
    simulate, explain = source.run("simulate"), source.run("explain")
    return {
        "report": [source.report()],
        "speedup": [*first, simulate],
        "layers": [*first, simulate],
        "losses": [*first, explain],
        "fallbacks": [*first, simulate, *mended[:10]],
        "counters": [*first, f"{simulate} --json -"],
    }


def _notes(result: WorkloadResult, losses: WorkloadAttribution, covered: float, workload: Workload) -> list[str]:
    notes = []
    if abs(math.log(losses.nominal_speedup / result.nominal_speedup)) > 0.005:
        notes.append(
            f"The waterfall starts at {losses.nominal_speedup:.2f}×: there the promise of each layer counts by its "
            f"time on an ideal datapath, in the first line by its FLOPs ({result.nominal_speedup:.2f}×)."
        )
    if covered < 0.9995:
        notes.append(
            f"The waterfall explains the {MOST_SHAPES} shapes with most time, {percent(covered)} of the kernel time."
        )
    if workload.others:
        total = sum(other.count for other in workload.others)
        notes.append(f"{total} ops that are no GEMM are counted, not simulated: no time and no speedup here has them.")
    host, dense_host = result.sparse.host_bound, result.dense.host_bound
    if max(host, dense_host) > HOST_BOUND:
        notes.append(f"The GPU waits for the host {percent(host)} of the run (dense baseline {percent(dense_host)}).")
    if losses.protocol.timing != "kernel":
        notes.append("The waterfall adds up single calls; the first line also has how the host issues them.")
    return notes
