"""A scenario: everything that one time depends on. And running many of them, equal ones once, on all cores."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsesim.errors import UserError
from sparsesim.hardware import GpuSpec, load_gpu
from sparsesim.lowering import NoKernelError
from sparsesim.processes import worker_processes
from sparsesim.protocol import Protocol
from sparsesim.results import config_hash
from sparsesim.runtime import run_workload
from sparsesim.simulator import Simulator
from sparsesim.stacks import Stack, get_stack
from sparsesim.workload import Gemm, Workload, load_workload
from sparsesim.workload.ops import GemmError, issue_line

__all__ = ["Outcome", "Scenario", "build_scenario", "default_jobs", "run_scenarios"]

#: fewer scenarios than this are run in this process: workers take a second to start
PARALLEL = 24
#: parts of the work that each process gets, for the progress bar and for an even load
PARTS_PER_JOB = 6

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Scenario:
    """A GEMM or a workload on one GPU under one stack and protocol.

    Parameters
    ----------
    workload : of one op where `single`
    source : the file or packaged name that the workload was loaded from, None for ops
    selection : (tokens, phase, dtype, pattern) that were asked of `source`
    """

    gpu: GpuSpec
    workload: Workload
    single: bool
    stack: Stack
    protocol: Protocol
    streams: int = 1
    graph: bool = False
    repeats: int = 1
    source: str | None = None
    selection: tuple[int | None, str | None, str | None, str | None] = (None, None, None, None)

    @property
    def op(self) -> Gemm:
        """The first op; of a GEMM, the GEMM."""
        return self.workload.ops[0]

    @property
    def machine(self) -> tuple[object, ...]:
        """Equal for scenarios that can share a simulator."""
        rules = tuple(rule.code for rule in self.stack.rules)
        return (config_hash(self.gpu), self.stack.name, self.stack.policy, rules)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for scenarios with equal results."""
        run = (self.single, self.streams, self.graph, self.repeats)
        return (*self.machine, self.workload.digest(), self.protocol, *run)


@dataclass(frozen=True)
class Outcome:
    """What a scenario gives. Times in µs; `error` says why there is none, and the times are then NaN.

    path, reason : of a GEMM; of a workload the path that takes most kernel time
    fallback : share of the kernel time in ops with a sparse weight that ran dense
    """

    time_us: float
    dense_time_us: float
    nominal_speedup: float
    path: str = ""
    reason: str = ""
    fallback: float = 0.0
    bound_by: str = ""
    kernel: str = ""
    dense_kernel: str = ""
    clock_mhz: float = float("nan")
    error: str = ""

    @property
    def speedup(self) -> float:
        """Effective speedup: dense time over this time."""
        return self.dense_time_us / self.time_us

    def to_dict(self) -> dict[str, Any]:
        """Plain data; what does not exist is null."""
        numbers = {
            name: None if value != value else value
            for name, value in (
                ("time_us", self.time_us), ("dense_time_us", self.dense_time_us), ("speedup", self.speedup),
                ("nominal_speedup", self.nominal_speedup), ("fallback", self.fallback), ("clock_mhz", self.clock_mhz),
            )
        }  # fmt: skip
        texts = ("path", "reason", "bound_by", "kernel", "dense_kernel", "error")
        return {**numbers, **{name: getattr(self, name) for name in texts}}


def build_scenario(
    gpu: str | Path | GpuSpec,
    m: int | None = None,
    n: int | None = None,
    k: int | None = None,
    dtype: str | None = None,
    pattern: str | None = None,
    batch: int = 1,
    workload: str | Path | Workload | None = None,
    tokens: int | None = None,
    phase: str | None = None,
    stack: str | Stack | None = None,
    timing: str = "kernel",
    l2: str = "rotating",
    clock: str = "free",
    acc_dtype: str | None = None,
    streams: int = 1,
    graph: bool = False,
    repeats: int = 1,
) -> Scenario:
    """A scenario from what a user types: one GEMM by `m`, `n` and `k`, or a `workload`.

    Parameters, defaults and errors as for `api.simulate_gemm` and `api.simulate_workload`; a GEMM is f16 with
    2:4 on A by default.

    Raises
    ------
    UserError
        Every problem, one line each; also where both a GEMM and a workload are given, or neither.
    """
    lines: list[str] = []
    found: dict[str, Any] = {}

    def gather(name: str, make: Callable[[], Any]) -> None:
        try:
            found[name] = make()
        except UserError as error:
            lines.extend(error.problems)

    def load() -> tuple[Workload, bool, str | None]:
        sizes = {"m": m, "n": n, "k": k}
        given = [name for name, value in sizes.items() if value is not None]
        if workload is None:
            if len(given) < 3:
                missing = ", ".join(name for name in sizes if name not in given)
                raise UserError(f"gemm: expected m, n and k, or a workload, found no {missing}")
            if tokens is not None or phase is not None:
                raise UserError("gemm: expected tokens and phase with a workload only, found them beside m, n and k")
            values = {"batch": batch, "acc_dtype": acc_dtype, "dtype": dtype or "f16", "pattern": pattern or "2:4"}
            try:
                return Workload("gemm", "", "", (Gemm("gemm", **sizes, **values),)), True, None  # type: ignore[arg-type]
            except GemmError as error:
                raise UserError(issue_line("gemm", "", issue) for issue in error.issues) from None
        if given or batch != 1 or acc_dtype is not None:
            raise UserError("workload: expected no m, n, k, batch or accumulator beside a workload, found some")
        if isinstance(workload, Workload):
            if any(value is not None for value in (tokens, phase, dtype, pattern)):
                raise UserError("workload: expected no tokens, phase, dtype or pattern beside ops, found some")
            return workload, False, None
        loaded = load_workload(workload, tokens=tokens, dtype=dtype, pattern=pattern, phase=phase)
        return loaded, False, str(workload)

    gather("gpu", lambda: gpu if isinstance(gpu, GpuSpec) else load_gpu(gpu))
    gather("workload", load)
    gather("stack", lambda: stack if isinstance(stack, Stack) else get_stack(stack or "cusparselt"))
    gather("protocol", lambda: Protocol.parse(timing, l2, clock))
    if lines:
        raise UserError(lines)
    loaded, single, source = found["workload"]
    return Scenario(
        gpu=found["gpu"],
        workload=loaded,
        single=single,
        stack=found["stack"],
        protocol=found["protocol"],
        streams=streams,
        graph=graph,
        repeats=repeats,
        source=source,
        selection=(tokens, phase, dtype, pattern),
    )


def default_jobs() -> int:
    """Processes that many scenarios are spread over: one for each core."""
    return os.cpu_count() or 1


def run_scenarios(
    scenarios: Sequence[Scenario], progress: Progress | None = None, jobs: int | None = None
) -> list[Outcome]:
    """Run all; equal ones once, and equal launches of one process once, whatever GPU they belong to.

    Parameters
    ----------
    scenarios : sequence of Scenario
    progress : callable, optional
        Called as progress(done, total) in different scenarios.
    jobs : int, optional
        Processes; None: one for each core where there is enough to do. The result does not depend on it.

    Returns
    -------
    list of Outcome
        In the order of `scenarios`. One that has no kernel is no error but an outcome that says so.

    Raises
    ------
    UserError
        A scenario that is impossible.
    """
    keys = [scenario.key for scenario in scenarios]
    distinct = dict(zip(reversed(keys), reversed(scenarios), strict=True))
    # neighbours share most: a simulator, or the launches that a changed parameter leaves alone
    order = list(dict.fromkeys(keys))
    jobs = jobs if jobs is not None else (default_jobs() if len(order) >= PARALLEL else 1)
    if progress is not None:
        progress(0, len(order))
    known: dict[tuple[object, ...], Outcome] = {}
    if jobs == 1:
        runner = _Runner()
        for key in order:
            known[key] = runner.run(distinct[key])
            if progress is not None:
                progress(len(known), len(order))
    else:
        size = -(-len(order) // (jobs * PARTS_PER_JOB))
        parts = [order[first : first + size] for first in range(0, len(order), size)]
        with worker_processes([jobs], _start) as (pool,):
            waiting = {pool.submit(_run_part, [distinct[key] for key in part]): part for part in parts}
            for future in as_completed(waiting):
                known.update(zip(waiting[future], future.result(), strict=True))
                if progress is not None:
                    progress(len(known), len(order))
    return [known[key] for key in keys]


class _Runner:
    """Runs scenarios one after the other, with what they have in common kept between them."""

    def __init__(self) -> None:
        self._memory: dict[tuple[object, ...], Any] = {}
        self._simulators: dict[tuple[object, ...], Simulator] = {}

    def run(self, scenario: Scenario) -> Outcome:
        machine = scenario.machine
        if machine not in self._simulators:
            self._simulators[machine] = Simulator(scenario.gpu, scenario.stack, memory=self._memory)
        simulator = self._simulators[machine]
        try:
            return _of_gemm(simulator, scenario) if scenario.single else _of_workload(simulator, scenario)
        except NoKernelError as error:
            nan = float("nan")
            return Outcome(nan, nan, nan, path="none", reason="no-kernel", error=str(error))


def _of_gemm(simulator: Simulator, scenario: Scenario) -> Outcome:
    result = simulator.gemm(scenario.op, scenario.protocol)
    refused = result.path == "dense" and result.reason != "dense-weight"
    return Outcome(
        time_us=result.time_us,
        dense_time_us=result.dense_time_us,
        nominal_speedup=result.nominal_speedup,
        path=result.path,
        reason=result.reason,
        fallback=float(refused),
        bound_by=result.bound_by,
        kernel=result.launch.kernel.name,
        dense_kernel=result.dense_launch.kernel.name,
        clock_mhz=result.launch.clock_hz / 1e6,
    )


def _of_workload(simulator: Simulator, scenario: Scenario) -> Outcome:
    result = run_workload(
        scenario.workload, simulator, scenario.protocol, scenario.streams, scenario.graph, scenario.repeats
    )
    first = result.paths[0]
    bound: dict[str, float] = {}
    for row in result.rows:
        bound[row.gemm["bound_by"]] = bound.get(row.gemm["bound_by"], 0.0) + row.kernel_us
    worst = max(result.rows, key=lambda row: row.kernel_us)
    return Outcome(
        time_us=result.sparse.makespan_us,
        dense_time_us=result.dense.makespan_us,
        nominal_speedup=result.nominal_speedup,
        path=first.path,
        reason=first.reason,
        fallback=sum(share.time_share for share in result.fallbacks),
        bound_by=max(bound, key=lambda name: bound[name]),
        kernel=worst.gemm["kernel"]["name"],
        dense_kernel=worst.gemm["dense_kernel"]["name"],
        clock_mhz=sum(row.gemm["clock_mhz"] * row.share for row in result.rows),
    )


#: the runner of a process of the pool
_runner: _Runner | None = None


def _start() -> None:
    global _runner
    _runner = _Runner()


def _run_part(scenarios: Sequence[Scenario]) -> list[Outcome]:
    assert _runner is not None
    return [_runner.run(scenario) for scenario in scenarios]
