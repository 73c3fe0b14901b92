"""A host thread that issues a workload's launches through streams or a CUDA graph, in SimPy.

What each launch does on the device comes from the `Simulator`; here is only when it may begin.

Host. One thread issues the calls of a pass in rounds: the first launch of every op in their order, then the
second of those with a higher `count`, and so on, as a model runs layer by layer. A call costs
``launch.host_call`` (``framework_call`` under timing ``host``), then the launch is in its stream's queue. A
queue holds `QUEUE_DEPTH` launches; the host waits while it is full.

Stream. Op i goes to stream i mod `streams`. The launches of one stream depend on each other: one begins
``stream_gap`` after the completion of the one before, and not before it was issued. It takes
ramp + busy + drain, and what `protocol.interval_s` adds for a split-K reduction. Ops of different streams are
taken as independent within a pass; the kernels of a pass wait for all of the last pass (an event, which does
not hold the host).

Graph. A pass is one graph of as many branches as streams: one host call, then ``graph_gap`` between dependent
kernels. Of several passes each is one launch of the graph, ``stream_gap`` after the last one.

Timing. ``kernel`` counts kernels only (no gap, no host), ``event`` an event pair (``event_overhead``) for
each launch and no host, as in `protocol.interval_s`: the steady interval of a launch in a long stream of its
like is what that function says.

Co-running. A kernel with fewer CTAs than the device has slots takes the share ctas / (SMs × slots) of it; any
other takes all of it, its tail included. A kernel begins when its whole share is free, first come first
served; so full kernels serialise. Kernels that run together keep the speed they have alone until they want
more of a shared resource (tensor datapath, shared memory, decoder, issue, SM port, L2, DRAM) than there is:
with u the busy share of a resource while a kernel runs alone, all slow down by max(1, max of Σ u over the
resources). That is processor sharing. Not modelled: a kernel that begins on part of its SMs or fills the tail
of another (the model is late there), evictions between co-running kernels and their common clock (it is early
there). Each op has the clock and the L2 state that the protocol gives it alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import simpy

from sparsesim._version import __version__
from sparsesim.device.simulate import LaunchResult
from sparsesim.errors import Problem, ProblemList, UserError
from sparsesim.hardware import GpuSpec
from sparsesim.overheads import added_s, host_s, plan_s
from sparsesim.protocol import Protocol, interval_s
from sparsesim.results import GemmResult, config_hash
from sparsesim.results_workload import Interval, OpRow, RunRecord, WorkloadResult, plain
from sparsesim.simulator import Simulator
from sparsesim.stacks import Call
from sparsesim.workload import Gemm, Workload

__all__ = ["MAX_LAUNCHES", "MAX_STREAMS", "QUEUE_DEPTH", "TIMELINE_LIMIT", "launch_phases", "run_workload"]

#: launches that wait in one stream before the host blocks (CUDA: about a thousand; not documented)
QUEUE_DEPTH = 1024
#: kernels that can be resident on one GPU (CUDA C++ Programming Guide, compute capabilities 7.5 to 12.x)
MAX_STREAMS = 128
#: launches of one run: more would take minutes
MAX_LAUNCHES = 1_000_000
#: launches kept on the timeline of a run
TIMELINE_LIMIT = 4096

#: the device in units of free share
WHOLE = 1 << 30
#: counters that are busy shares of a resource which co-running kernels have in common
SHARED = ("tensor_busy", "smem_busy", "decode_busy", "issue_busy", "port_busy", "l2_busy", "dram_busy")

Process = Generator[simpy.Event, Any, None]
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class _Call:
    """A launch as the runtime sees it: `before`, `busy` and `after` follow each other on the device [s].

    What the stack adds beside the product: its launches are in `after`; the host needs `host` more to issue the call,
    and `wait` is a plan that the stream waits for.
    """

    row: int
    stream: int
    before: float
    busy: float
    after: float
    share: int
    demand: tuple[float, ...]
    host: float = 0.0
    wait: float = 0.0


@dataclass(frozen=True)
class _Costs:
    """Host time of a call, gap inside a graph, gap between two host calls' kernels [s]."""

    host: float
    inner: float
    outer: float


def run_workload(
    ops_or_workload: Workload | Iterable[Gemm],
    simulator: Simulator,
    protocol: Protocol,
    streams: int = 1,
    graph: bool = False,
    repeats: int = 1,
    progress: Progress | None = None,
) -> WorkloadResult:
    """Run a workload, each op on the path that the stack decides, and its dense baseline.

    Parameters
    ----------
    ops_or_workload : Workload, or ops with unique names
    simulator : Simulator
        Simulates each op once, whatever its `count`.
    protocol : Protocol
        Timing, L2 state and clock of every launch. Timing ``graph`` implies `graph`.
    streams : int
        1..`MAX_STREAMS`.
    graph : bool
        Each pass is one CUDA graph; `protocol.timing` then only says whose call launches it.
    repeats : int
        Passes over the workload.
    progress : callable, optional
        Called as progress(done, total, name) after each op is simulated.

    Raises
    ------
    UserError
        For arguments outside their range, no ops, two of one name, or more than `MAX_LAUNCHES` launches.
    NoKernelError
        An op's dtype has no dense kernel on this GPU.
    """
    workload = _workload(ops_or_workload)
    graph = graph or protocol.timing == "graph"
    _check(workload, protocol, streams, repeats)
    device_protocol = replace(protocol, timing="graph") if graph else protocol
    results = []
    for done, op in enumerate(workload.ops, 1):
        results.append(simulator.gemm(op, device_protocol))
        if progress is not None:
            progress(done, len(workload.ops), op.name)
    gpu = simulator.gpu
    costs = _costs(gpu, protocol.timing, graph)
    order = _issue_order(workload.ops)

    def play(launches: Sequence[LaunchResult], made: Sequence[Call | None]) -> tuple[RunRecord, list[float]]:
        calls = [
            _call(gpu, launch, row, row % streams, device_protocol.timing, call)
            for row, (launch, call) in enumerate(zip(launches, made, strict=True))
        ]
        busy = math.fsum(
            op.count * repeats * launch.counters["tensor_busy"] * launch.seconds
            for op, launch in zip(workload.ops, launches, strict=True)
        )
        return _Run([calls[row] for row in order], len(calls), costs, graph, repeats).record(busy)

    dense_made = [simulator.dense_call(result.op) for result in results]
    made = [
        simulator.stack.call(result.op, gpu) if result.path == "sparse" else call
        for result, call in zip(results, dense_made, strict=True)
    ]
    sparse, times = play([result.launch for result in results], made)
    dense, dense_times = play([result.dense_launch for result in results], dense_made)
    # a long trace repeats its shapes: what equal ops have in common is held once
    common: dict[Gemm, dict[str, Any]] = {}

    def record(op: Gemm, result: GemmResult) -> dict[str, Any]:
        key = replace(op, name="op", count=1, family="")
        if key not in common:
            common[key] = plain(result.to_dict())
        return {**common[key], "name": op.name}

    rows = tuple(
        OpRow(
            name=op.name,
            family=op.family,
            count=op.count,
            macs=op.macs,
            stream=row % streams,
            launches=op.count * repeats,
            kernel_us=times[row],
            dense_kernel_us=dense_times[row],
            share=times[row] / sparse.kernel_us,
            dense_share=dense_times[row] / dense.kernel_us,
            gemm=record(op, result),
            result=result,
        )
        for row, (op, result) in enumerate(zip(workload.ops, results, strict=True))
    )
    return WorkloadResult(
        gpu=gpu.name,
        stack=simulator.stack.name,
        workload=workload.name,
        protocol=protocol,
        graph=graph,
        streams=streams,
        repeats=repeats,
        rows=rows,
        sparse=sparse,
        dense=dense,
        version=__version__,
        gpu_hash=config_hash(gpu),
        workload_digest=workload.digest(),
        others=workload.others,
    )


# --- what is to be run ---


def _workload(ops: Workload | Iterable[Gemm]) -> Workload:
    return ops if isinstance(ops, Workload) else Workload("ops", "", "", tuple(ops))


def _check(workload: Workload, protocol: Protocol, streams: int, repeats: int) -> None:
    """Raise `UserError` with all problems of the arguments."""
    problems = ProblemList("run")
    for name, value, most in (("streams", streams, MAX_STREAMS), ("repeats", repeats, MAX_LAUNCHES)):
        if type(value) is not int or not 1 <= value <= most:
            problems.add(name, f"an integer from 1 to {most}", value)
    try:
        Protocol.parse(protocol.timing, protocol.l2)
    except UserError as error:
        for line in error.problems:
            problems.add_line(line)
    problems.raise_if_any()
    launches = repeats * sum(op.count for op in workload.ops)
    if launches > MAX_LAUNCHES:
        expected = f"at most {MAX_LAUNCHES} launches (counts times repeats)"
        raise UserError(Problem.line(f"workload {workload.name}", "", expected, launches))


def _issue_order(ops: Sequence[Gemm]) -> list[int]:
    """Rows of the launches of one pass, round by round; round r has every op with count > r."""
    order: list[int] = []
    left = list(range(len(ops)))
    done = 0
    while left:
        # rounds with the same ops in them come in one go
        until = min(ops[row].count for row in left)
        order += left * (until - done)
        done = until
        left = [row for row in left if ops[row].count > done]
    return order


def _costs(gpu: GpuSpec, timing: str, graph: bool) -> _Costs:
    """Host and gap times that the timing counts, in the terms of `protocol.interval_s`."""
    launch = gpu.launch
    host = launch.framework_call if timing == "host" else launch.host_call
    if graph:
        return _Costs(host, launch.graph_gap, launch.stream_gap)
    if timing == "kernel":
        return _Costs(0.0, 0.0, 0.0)
    if timing == "event":
        return _Costs(0.0, launch.event_overhead, launch.event_overhead)
    return _Costs(host, launch.stream_gap, launch.stream_gap)


def launch_phases(gpu: GpuSpec, launch: LaunchResult, timing: str) -> tuple[float, float, float]:
    """Ramp, busy time and drain of one launch [s]; what a split-K reduction adds stands behind the busy time."""
    if timing == "graph":
        whole = (
            interval_s(gpu, "graph", launch.seconds, launch.launches, launch.kernel.sparse)[0] - gpu.launch.graph_gap
        )
    else:
        whole = interval_s(gpu, "kernel", launch.seconds, launch.launches, launch.kernel.sparse)[0]
    before = min(gpu.launch.ramp, whole - launch.seconds)
    return before, launch.seconds, max(0.0, whole - launch.seconds - before)


def _call(gpu: GpuSpec, launch: LaunchResult, row: int, stream: int, timing: str, call: Call | None) -> _Call:
    """Times and demands of one launch, with what its stack's call adds."""
    before, busy, after = launch_phases(gpu, launch, timing)
    beside = math.fsum(added_s(gpu, item, timing) for item in call.added) if call is not None else 0.0
    return _Call(
        row=row,
        stream=stream,
        before=before,
        busy=busy,
        after=after + beside,
        host=host_s(gpu, call, timing) if call is not None else 0.0,
        wait=plan_s(call, timing) if call is not None else 0.0,
        share=_share(launch),
        demand=tuple(min(1.0, launch.counters[name]) for name in SHARED),
    )


def _share(launch: LaunchResult) -> int:
    """Share of the device's CTA slots that a launch takes, in 1/`WHOLE`, rounded up."""
    return min(WHOLE, -(-launch.ctas * WHOLE // (launch.sms * launch.slots)))


# --- SimPy ---


@dataclass
class _Job:
    """A kernel between ramp and drain: what is left of its busy time [s]."""

    left: float
    demand: tuple[float, ...]
    done: simpy.Event


class _Sharing:
    """Kernels that run together, slowed down by the resource they want most of."""

    def __init__(self, env: simpy.Environment) -> None:
        self.env = env
        self.jobs: list[_Job] = []
        self.rate = 1.0
        self.since = 0.0
        self.version = 0

    def run(self, call: _Call) -> simpy.Event:
        """The event of the end of `call`'s busy time, which begins now."""
        self._advance()
        job = _Job(call.busy, call.demand, self.env.event())
        self.jobs.append(job)
        self._plan()
        return job.done

    def _advance(self) -> None:
        worked = (self.env.now - self.since) * self.rate
        self.since = self.env.now
        for job in self.jobs:
            job.left = max(0.0, job.left - worked)

    def _plan(self) -> None:
        """Set the common rate and wake up at the next end."""
        self.version = version = self.version + 1
        if not self.jobs:
            return
        wanted = (math.fsum(column) for column in zip(*(job.demand for job in self.jobs), strict=True))
        self.rate = 1.0 / max(1.0, *wanted)
        first = min(self.jobs, key=lambda job: job.left)
        wake = self.env.timeout(first.left / self.rate)
        wake.callbacks.append(lambda _: self._wake(version, first))

    def _wake(self, version: int, job: _Job) -> None:
        if version != self.version:  # the set of jobs has changed since
            return
        self._advance()
        self.jobs.remove(job)
        job.done.succeed()
        self._plan()


class _Account:
    """Splits the time into: a kernel on the device, else a stream in its gap, else waiting for the host."""

    def __init__(self, env: simpy.Environment) -> None:
        self.env = env
        self.running = 0
        self.gaps = 0
        self.since = 0.0
        self.busy = 0.0
        self.gap = 0.0
        self.host = 0.0

    def change(self, running: int = 0, gaps: int = 0) -> None:
        """Book the time up to now, then count more or fewer running kernels and gaps."""
        passed = self.env.now - self.since
        self.since = self.env.now
        if self.running:
            self.busy += passed
        elif self.gaps:
            self.gap += passed
        else:
            self.host += passed
        self.running += running
        self.gaps += gaps


class _Run:
    """One run of the calls of a pass, `repeats` times.

    Parameters
    ----------
    calls : launches of one pass in the order of issue
    rows : ops of the workload
    """

    def __init__(self, calls: Sequence[_Call], rows: int, costs: _Costs, graph: bool, repeats: int) -> None:
        self.env = simpy.Environment()
        self.calls = calls
        self.costs = costs
        self.graph = graph
        self.repeats = repeats
        self.branches: dict[int, tuple[_Call, ...]] = {
            stream: tuple(call for call in calls if call.stream == stream)
            for stream in sorted({call.stream for call in calls})
        }
        self.queues = {stream: simpy.Store(self.env, QUEUE_DEPTH) for stream in self.branches}
        self.free = simpy.Container(self.env, WHOLE, WHOLE)
        self.sharing = _Sharing(self.env)
        self.account = _Account(self.env)
        self.pass_left = [len(calls)] * repeats
        self.pass_end = [0.0] * repeats
        self.pass_done = [self.env.event() for _ in range(repeats)]
        self.row_times: list[list[float]] = [[] for _ in range(rows)]
        self.timeline: list[Interval] = []

    def record(self, tensor_seconds: float) -> tuple[RunRecord, list[float]]:
        """Run; the record and the kernel time of each row [µs].

        `tensor_seconds` is the time that the tensor cores work, as if all of them worked at once [s].
        """
        self.env.process(self._host())
        for stream in self.branches:
            self.env.process(self._stream(stream))
        self.env.run()
        account, makespan = self.account, max(self.pass_end)
        times = [1e6 * math.fsum(row) for row in self.row_times]
        record = RunRecord(
            makespan_us=1e6 * makespan,
            passes_us=tuple(1e6 * end for end in self.pass_end),
            busy_us=1e6 * account.busy,
            gap_us=1e6 * account.gap,
            host_us=1e6 * account.host,
            kernel_us=math.fsum(times),
            launches=sum(map(len, self.row_times)),
            tensor_busy=tensor_seconds / makespan,
            timeline=tuple(self.timeline),
        )
        return record, times

    def _host(self) -> Process:
        """Issue every pass: call by call, or as one graph."""
        for pass_ in range(self.repeats):
            if self.graph:
                yield self.env.timeout(self.costs.host)
                for queue in self.queues.values():
                    yield queue.put(pass_)
                continue
            for call in self.calls:
                if self.costs.host or call.host:
                    yield self.env.timeout(self.costs.host + call.host)
                yield self.queues[call.stream].put(pass_)

    def _stream(self, stream: int) -> Process:
        """Run what comes out of one queue, each launch after the one before."""
        calls = self.branches[stream]
        for pass_ in range(self.repeats):
            if pass_:
                yield self.pass_done[pass_ - 1]
            for position, call in enumerate(calls):
                if position:
                    yield from self._gap(self.costs.inner)
                elif pass_:
                    yield from self._gap(self.costs.outer)
                if not (self.graph and position):  # a branch of a graph comes in one go
                    yield self.queues[stream].get()
                if call.wait:
                    yield self.env.timeout(call.wait)
                yield from self._kernel(call, pass_)

    def _gap(self, seconds: float) -> Process:
        if seconds:
            self.account.change(gaps=1)
            yield self.env.timeout(seconds)
            self.account.change(gaps=-1)

    def _kernel(self, call: _Call, pass_: int) -> Process:
        """Wait for a free share of the device, then ramp, work and drain."""
        yield self.free.get(call.share)
        self.account.change(running=1)
        start = self.env.now
        yield self.env.timeout(call.before)
        yield self.sharing.run(call)
        yield self.env.timeout(call.after)
        self.account.change(running=-1)
        yield self.free.put(call.share)
        end = self.env.now
        self.row_times[call.row].append(end - start)
        if len(self.timeline) < TIMELINE_LIMIT:
            self.timeline.append(Interval(call.stream, call.row, 1e6 * start, 1e6 * end))
        self.pass_left[pass_] -= 1
        self.pass_end[pass_] = end
        if not self.pass_left[pass_]:
            self.pass_done[pass_].succeed()
