"""A run of a workload as a Chrome trace: streams and launches, the CTAs of each SM, and how busy each server is.

The format is the JSON object form of the Trace Event Format (Google, "Trace Event Format", 2016), which Perfetto
and ``chrome://tracing`` open: complete events (``ph`` X) with times in µs, counters (C) and names (M). Nothing
here is made up: launches come from the runtime's timeline, CTAs and utilisation from the event loop, which runs
each launch once more, in full, with its record on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsesim.device.engine import RECORDED, TICKS
from sparsesim.device.simulate import Device, LaunchResult
from sparsesim.errors import Problem, ProblemList, UserError
from sparsesim.lowering import shape_of
from sparsesim.results_workload import Interval, RunRecord, WorkloadResult
from sparsesim.runtime import launch_phases
from sparsesim.simulator import Simulator, conditions_of
from sparsesim.stacks import get_stack

__all__ = ["BINS", "CTA_CHOICES", "RUNS", "SERVER_LABELS", "chrome_trace", "lanes", "record_launch"]

#: parts of a launch in which the use of the servers is averaged; fewer where a run has so many launches that a track
#: would have more than `SAMPLES` of them
BINS = 200
SAMPLES = 10_000
MIN_BINS = 10
MAX_BINS = 100_000
#: CTA k-steps of a launch that is recorded in full; more would take minutes and make files that no viewer opens
MAX_STEPS = 20_000_000
#: of which launches the CTAs are shown
CTA_CHOICES = ("first", "all", "none")
#: the run that the stack decides, and its dense baseline
RUNS = ("sparse", "dense")
#: server of the event loop -> counter track
SERVER_LABELS = {
    "tensor": "tensor cores busy, %",
    "decode": "metadata decoders busy, %",
    "smem": "shared-memory ports busy, %",
    "issue": "instruction issue busy, %",
    "port": "SM ports to L2 busy, %",
    "l2": "L2 busy, %",
    "dram": "DRAM busy, %",
}
#: digits of a time [µs]: femtoseconds, far below a tick
DIGITS = 9

Event = dict[str, Any]
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class _Placed:
    """A launch at its place in the run: admission, begin and end of its busy time, completion [µs]."""

    interval: Interval
    begin_us: float
    end_us: float
    record: LaunchResult
    first: bool


def chrome_trace(
    result: WorkloadResult,
    simulator: Simulator,
    bins: int | None = None,
    ctas: str = "first",
    runs: Sequence[str] = RUNS,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """The trace of a run and of its dense baseline, as plain data.

    Parameters
    ----------
    result : WorkloadResult
        Of `run_workload` on `simulator`; of a run of very many launches, the first `runtime.TIMELINE_LIMIT`.
    bins : int, optional
        Equal parts of each launch over which the use of a server is averaged; by default `BINS`, and fewer in a run
        of many launches.
    ctas : str
        CTAs are shown of the ``first`` launch of each op, of ``all`` launches, or of ``none``.
    runs : sequence of str
        Of `RUNS`.
    progress : callable, optional
        Called as progress(done, total, name) after each launch is recorded.

    Returns
    -------
    dict
        ``traceEvents`` sorted by time; ``otherData`` with what was run and, for each recorded launch, its counters.
        Where kernels overlap, the use of a server is the sum over them.

    Raises
    ------
    UserError
        Arguments outside their range, a loaded result, or a launch too long to be recorded.
    """
    problems = ProblemList("timeline")
    if bins is None:
        bins = max(MIN_BINS, min(BINS, SAMPLES // len(result.sparse.timeline)))
    if type(bins) is not int or not 1 <= bins <= MAX_BINS:
        problems.add("bins", f"an integer from 1 to {MAX_BINS}", bins)
    if ctas not in CTA_CHOICES:
        problems.add("ctas", "one of " + ", ".join(CTA_CHOICES), ctas)
    for run in runs:
        if run not in RUNS:
            problems.add("runs", "of " + ", ".join(RUNS), run)
    if any(row.result is None for row in result.rows):
        problems.add("result", "a result that was just simulated", "one loaded from a file")
    problems.raise_if_any()
    events: list[Event] = []
    launches: list[dict[str, Any]] = []
    known: dict[tuple[object, ...], LaunchResult] = {}
    total = len(runs) * len(result.rows)
    for number, run in enumerate(runs):
        records = []
        for row in range(len(result.rows)):
            records.append(record_launch(result, simulator, row, run, bins, known))
            if progress is not None:
                progress(number * len(result.rows) + row + 1, total, result.rows[row].name)
        placed = _place(result, simulator, run, records)
        events += _run_events(result, run, 10 * (number + 1), placed, ctas)
        launches += [_launch_data(result, run, row, records[row]) for row in range(len(records))]
    events.sort(key=lambda event: (event["ph"] != "M", event["ts"], -event.get("dur", 0.0)))
    data = result.to_dict()
    about = ("gpu", "stack", "workload", "timing", "l2", "clock", "graph", "streams", "repeats", "provenance")
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {**{name: data[name] for name in about}, "bins": bins, "launches": launches},
    }


def record_launch(
    result: WorkloadResult,
    simulator: Simulator,
    row: int,
    run: str = "sparse",
    bins: int = BINS,
    known: dict[tuple[object, ...], LaunchResult] | None = None,
) -> LaunchResult:
    """The launch of op `row` once more, in full and recorded; `known` holds those already recorded.

    Raises
    ------
    UserError
        The launch has more than `MAX_STEPS` CTA k-steps.
    """
    gemm = result.rows[row].result
    assert gemm is not None
    op, gpu = gemm.op, simulator.gpu
    launch = gemm.launch if run == "sparse" else gemm.dense_launch
    native = simulator.stack.decide(op, gpu).native if launch.kernel.sparse else None
    out = (simulator.stack if launch.kernel.sparse else get_stack(simulator.stack.dense_stack)).output(op.dtype)
    operands = simulator.library.operands(op, native)
    shape = shape_of(op, out)
    if launch.counters["k_steps"] > MAX_STEPS:
        steps = round(launch.counters["k_steps"])
        raise UserError(Problem.line("timeline", op.name, f"a launch of at most {MAX_STEPS} CTA k-steps", steps))
    known = {} if known is None else known
    key = (launch.kernel, operands, shape, bins)
    if key not in known:
        device = Device(gpu, 2 * MAX_STEPS, max_steps=2 * MAX_STEPS)
        conditions = conditions_of(gpu, gemm.protocol, launch.kernel.sparse)
        known[key] = device.launch(launch.kernel, operands, shape, conditions, clock_guess=launch.clock_hz, bins=bins)
    return known[key]


def lanes(spans: Iterable[tuple[float, float]]) -> list[int]:
    """For spans (start, end) in order of their start, the first lane that is free then."""
    free: list[float] = []
    found = []
    for start, end in spans:
        lane = next((i for i, until in enumerate(free) if until <= start), len(free))
        if lane == len(free):
            free.append(end)
        else:
            free[lane] = end
        found.append(lane)
    return found


def _place(result: WorkloadResult, simulator: Simulator, run: str, records: Sequence[LaunchResult]) -> list[_Placed]:
    """The launches of a run with their busy times: what is left of the interval between ramp and drain."""
    record: RunRecord = getattr(result, run)
    timing = "graph" if result.graph else result.protocol.timing
    placed = []
    seen: set[int] = set()
    for interval in record.timeline:
        gemm = result.rows[interval.row].result
        assert gemm is not None
        launch = gemm.launch if run == "sparse" else gemm.dense_launch
        before, _, after = launch_phases(simulator.gpu, launch, timing)
        begin, end = interval.start_us + 1e6 * before, interval.end_us - 1e6 * after
        placed.append(_Placed(interval, begin, end, records[interval.row], interval.row not in seen))
        seen.add(interval.row)
    return placed


def _launch_data(result: WorkloadResult, run: str, row: int, record: LaunchResult) -> dict[str, Any]:
    """What a recorded launch took, beside the time that the run counts for it."""
    gemm = result.rows[row].result
    assert gemm is not None
    launch = gemm.launch if run == "sparse" else gemm.dense_launch
    return {
        "run": run,
        "op": result.rows[row].name,
        "kernel": record.kernel.name,
        "busy_us": launch.seconds * 1e6,
        "recorded_us": record.seconds * 1e6,
        "clock_mhz": record.clock_hz / 1e6,
        "ctas": record.ctas,
        "sms": record.sms,
        "counters": record.counters,
    }


def _run_events(result: WorkloadResult, run: str, pid: int, placed: Sequence[_Placed], ctas: str) -> list[Event]:
    """All events of one run; its processes are `pid` (streams), `pid` + 1 (servers) and `pid` + 2 (SMs)."""
    label = "this run" if run == "sparse" else "dense baseline"
    events = _process(pid, f"{label}: streams") + _process(pid + 1, f"{label}: utilisation")
    for stream in sorted({item.interval.stream for item in placed}):
        events.append(_thread(pid, stream, f"stream {stream}"))
    for item in placed:
        events += _launch_events(result, pid, item)
    events += _counter_events(pid + 1, placed)
    shown = [item for item in placed if ctas == "all" or (ctas == "first" and item.first)]
    if shown:
        events += _process(pid + 2, f"{label}: SMs") + _cta_events(result, pid + 2, shown)
    return events


def _process(pid: int, name: str) -> list[Event]:
    return [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "ts": 0, "args": {"name": name}},
        {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "ts": 0, "args": {"sort_index": pid}},
    ]


def _thread(pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}}


def _span(pid: int, tid: int, kind: str, name: str, start: float, end: float, **args: Any) -> Event:
    """A complete event; times in µs. Both ends are rounded, so that neighbours still touch."""
    start, end = round(start, DIGITS), round(end, DIGITS)
    duration = round(end - start, DIGITS)
    return {"ph": "X", "cat": kind, "name": name, "pid": pid, "tid": tid, "ts": start, "dur": duration, "args": args}


def _launch_events(result: WorkloadResult, pid: int, item: _Placed) -> list[Event]:
    """A launch in its stream, and in it ramp, busy time and drain."""
    interval, launch = item.interval, item.record
    row = result.rows[interval.row]
    place = (pid, interval.stream)
    spans = [
        _span(
            *place, "launch", row.name, interval.start_us, interval.end_us,
            kernel=launch.kernel.name, m=row.gemm["m"], n=row.gemm["n"], k=row.gemm["k"], dtype=row.gemm["dtype"],
            pattern=row.gemm["pattern"], ctas=launch.ctas, clock_mhz=launch.clock_hz / 1e6,
        ),
        _span(*place, "phase", "ramp", interval.start_us, item.begin_us),
    ]  # fmt: skip
    done = item.begin_us + (item.end_us - item.begin_us) * _loop_share(launch)
    spans.append(_span(*place, "phase", "CTAs", item.begin_us, done))
    if launch.kernel.split_k > 1:
        spans.append(_span(*place, "phase", "split-K reduction", done, item.end_us))
    spans.append(_span(*place, "phase", "drain", item.end_us, interval.end_us))
    return spans


def _loop_share(launch: LaunchResult) -> float:
    """Share of a launch's busy time up to its last CTA's end; the rest is its split-K reduction."""
    assert launch.timeline is not None
    return float(launch.timeline[:, 4].max() / TICKS / launch.cycles)


def _counter_events(pid: int, placed: Sequence[_Placed]) -> list[Event]:
    """Counter tracks: each server's use in the bins of each launch, added up where launches overlap."""
    steps: dict[float, np.ndarray] = {}
    for item in placed:
        use = item.record.utilisation
        assert use is not None
        end = item.record.cycles * _loop_share(item.record)
        edges = np.minimum(np.arange(len(use.share) + 1) * use.cycles, end)
        length = np.diff(edges)
        # a bin that is cut at the end of the launch holds its work in less time
        share = use.share * np.divide(use.cycles, length, out=np.zeros_like(length), where=length > 0)[:, None]
        to_us = (item.end_us - item.begin_us) / item.record.cycles
        stretch = item.record.cycles / item.record.clock_hz * 1e6 / (item.end_us - item.begin_us)
        values = np.vstack([np.zeros(len(RECORDED)), share * min(stretch, 1.0), np.zeros(len(RECORDED))])
        for at, change in zip(item.begin_us + edges * to_us, np.diff(values, axis=0), strict=True):
            time = round(float(at), DIGITS)
            steps[time] = steps.get(time, 0.0) + change
    events = []
    level = np.zeros(len(RECORDED))
    shown: dict[str, float] = {}
    for time in sorted(steps):
        level = level + steps[time]
        for name, value in zip(RECORDED, level.tolist(), strict=True):
            percent = max(round(100.0 * value, 6), 0.0)
            if shown.get(name) == percent:  # a counter holds its value
                continue
            shown[name] = percent
            label = SERVER_LABELS[name]
            events.append({"ph": "C", "name": label, "pid": pid, "tid": 0, "ts": time, "args": {"busy": percent}})
    return events


def _cta_events(result: WorkloadResult, pid: int, shown: Sequence[_Placed]) -> list[Event]:
    """CTAs on their SMs, each with prologue, main loop and epilogue."""
    by_sm: dict[int, list[tuple[float, float, float, float, str]]] = {}
    for item in shown:
        assert item.record.timeline is not None
        to_us = (item.end_us - item.begin_us) / (item.record.cycles * TICKS)
        name = result.rows[item.interval.row].name
        times = item.begin_us + item.record.timeline[:, 1:] * to_us
        for cta, (sm, four) in enumerate(zip(item.record.timeline[:, 0].tolist(), times.tolist(), strict=True)):
            by_sm.setdefault(sm, []).append((*four, f"{name} CTA {cta}"))
    width = 1
    placed = {}
    for sm, spans in by_sm.items():
        spans.sort()
        placed[sm] = lanes((span[0], span[3]) for span in spans)
        width = max(width, max(placed[sm]) + 1)
    events = []
    for sm in sorted(by_sm):
        for lane in range(max(placed[sm]) + 1):
            events.append(_thread(pid, sm * width + lane, f"SM {sm}, slot {lane}"))
        for (start, loop, epilogue, end, name), lane in zip(by_sm[sm], placed[sm], strict=True):
            place = (pid, sm * width + lane)
            events.append(_span(*place, "cta", name, start, end, sm=sm))
            events.append(_span(*place, "phase", "prologue", start, loop))
            events.append(_span(*place, "phase", "main loop", loop, epilogue))
            events.append(_span(*place, "phase", "epilogue", epilogue, end))
    return events
