"""Predictions of a fixed list of rows under changed parameters, in this process or spread over several.

Two jobs: `choose` runs the library's choice of a kernel for each row, `times` runs kernels that were chosen
before, so that a time is a smooth function of the parameters. Runs are short (few waves before the steady middle
is extrapolated) and remembered by content: a parameter that does not change a launch costs nothing. Each process
keeps its own rows, so that it meets its own memory again; results do not depend on the number of processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sparsesim.device.build import Shape
from sparsesim.device.simulate import Conditions, Device, LaunchResult
from sparsesim.errors import UserError
from sparsesim.hardware import GpuSpec, override
from sparsesim.kernels import Kernel, Operands
from sparsesim.lowering import Library, NoKernelError
from sparsesim.measured import MeasuredRow
from sparsesim.processes import worker_processes
from sparsesim.protocol import Protocol
from sparsesim.simulator import Simulator
from sparsesim.sparsity import Pattern
from sparsesim.validate import TILE_NAME, op_of

__all__ = ["Chosen", "Pool", "open_pool"]

#: CTA k-steps and waves of a run before it is extrapolated: enough to be within about 1 % of a full one
STEP_BUDGET = 40_000
MIN_WAVES = 5
STACK = "cusparselt"


@dataclass(frozen=True)
class Chosen:
    """The library's choice for one row: its kernel, the settled clock [Hz] and the time [s]; or why there is none."""

    seconds: float
    clock_hz: float = 0.0
    kernel: Kernel | None = None
    why: str = ""

    @property
    def name(self) -> str:
        """Name of the kernel."""
        return self.kernel.name if self.kernel is not None else ""


class _QuickDevice(Device):
    """A device with short runs, a memory shared with other descriptions, and a clock to start from."""

    def __init__(self, gpu: GpuSpec, memory: dict[tuple[object, ...], Any]) -> None:
        super().__init__(gpu, STEP_BUDGET, MIN_WAVES, memory=memory)
        self.guess: float | None = None

    def launch(
        self,
        kernel: Kernel,
        operands: Operands,
        shape: Shape,
        conditions: Conditions,
        ideal: frozenset[str] = frozenset(),
        keep_timeline: bool = False,
        clock_guess: float | None = None,
        bins: int = 0,
    ) -> LaunchResult:
        guess = clock_guess or self.guess
        return super().launch(kernel, operands, shape, conditions, ideal, keep_timeline, guess, bins)


class _QuickLibrary(Library):
    """A library that searches on the quick device itself."""

    def __init__(self, device: _QuickDevice) -> None:
        super().__init__(device)
        self._scout = device


class _Worker:
    """Predicts rows by index."""

    def __init__(self, gpus: Mapping[str, GpuSpec], rows: Sequence[MeasuredRow]) -> None:
        self.gpus = gpus
        self.rows = rows
        self.runs = 0
        self._memory: dict[tuple[object, ...], Any] = {}

    def _simulators(self, changes: Mapping[str, float]) -> dict[str, tuple[Simulator, _QuickDevice]]:
        made = {}
        for name, gpu in self.gpus.items():
            simulator = Simulator(override(gpu, dict(changes)) if changes else gpu, STACK)
            device = _QuickDevice(simulator.gpu, self._memory)
            simulator.device, simulator.library = device, _QuickLibrary(device)
            made[name] = (simulator, device)
        return made

    def choose(self, changes: Mapping[str, float], picks: Sequence[tuple[int, Chosen | None]]) -> list[Chosen]:
        """The library's choice for each of the rows; what was chosen before tells where its clock is."""
        simulators = self._simulators(changes)
        found = []
        for index, known in picks:
            row = self.rows[index]
            simulator, device = simulators[row.gpu]
            device.guess = min(known.clock_hz, simulator.gpu.clock.max) if known else None
            try:
                seconds, launch = _best(simulator, row)
            except (UserError, NoKernelError) as err:
                found.append(Chosen(0.0, why=str(err).splitlines()[0]))
            else:
                found.append(Chosen(seconds, launch.clock_hz, launch.kernel))
        self.runs += sum(device.runs for _, device in simulators.values())
        return found

    def times(self, changes: Mapping[str, float], picks: Sequence[tuple[int, Chosen]]) -> list[float]:
        """Seconds of each row on the kernel that was chosen for it."""
        simulators = self._simulators(changes)
        seconds = []
        for index, chosen in picks:
            row = self.rows[index]
            simulator, device = simulators[row.gpu]
            assert chosen.kernel is not None
            device.guess = min(chosen.clock_hz, simulator.gpu.clock.max)
            seconds.append(simulator.time_kernel(*_problem(simulator, row), chosen.kernel, _protocol(row))[0])
        self.runs += sum(device.runs for _, device in simulators.values())
        return seconds


def _protocol(row: MeasuredRow) -> Protocol:
    return Protocol.parse(row.timing, row.l2, row.clock)


def _problem(simulator: Simulator, row: MeasuredRow) -> tuple[Any, Pattern | None]:
    """The op of a row and the pattern it runs as (None: dense); raises UserError without a sparse path."""
    op = op_of(row)
    if not row.is_sparse:
        return op, None
    decision = simulator.stack.decide(op, simulator.gpu)
    if decision.path != "sparse":
        raise UserError(f"no sparse path: {decision.reason} ({decision.text})")
    return op, decision.native


def _best(simulator: Simulator, row: MeasuredRow) -> tuple[float, LaunchResult]:
    """(seconds, launch) of a row: the tile that its label names, or what the library picks; as `validate` does."""
    op, native = _problem(simulator, row)
    protocol = _protocol(row)
    named = TILE_NAME.search(row.library)
    if named:
        tile = (int(named[1]), int(named[2]))
        candidates = simulator.library.candidates(simulator.library.operands(op, native), row.is_sparse)
        kernels = [c.kernel for c in candidates if (c.kernel.tile_m, c.kernel.tile_n) == tile]
        if kernels:
            timed = [simulator.time_kernel(op, native, kernel, protocol) for kernel in kernels]
            return min(timed, key=lambda pair: pair[0])
    policy = "search" if "search" in row.library else "heuristic"
    if native is None:
        return simulator.time_dense(op, protocol, policy)
    return simulator.time_sparse(op, native, protocol, policy)


#: the worker of a process of the pool
_worker: _Worker | None = None


def _start(gpus: Mapping[str, GpuSpec], rows: Sequence[MeasuredRow]) -> None:
    global _worker
    _worker = _Worker(gpus, rows)


def _call(name: str, changes: Mapping[str, float], items: Sequence[Any]) -> list[Any]:
    assert _worker is not None
    result: list[Any] = getattr(_worker, name)(changes, items)
    return result


def _shape(row: MeasuredRow) -> tuple[str, int, int, int]:
    return row.gpu, row.m, row.n, row.k


class Pool:
    """Runs a job for many rows and several sets of changes; see `open_pool`."""

    def __init__(
        self,
        rows: Sequence[MeasuredRow],
        local: _Worker,
        executors: Sequence[ProcessPoolExecutor],
        progress: Callable[[int], None],
    ) -> None:
        self.rows = rows
        self._local = local
        self._executors = executors
        self._progress = progress
        # rows of one shape in one part, so that f16 and bf16 are one run; large shapes are dealt out first
        shapes = sorted({_shape(row) for row in rows}, key=lambda shape: (-shape[1] * shape[2] * shape[3], shape))
        dealt = {shape: number % max(1, len(executors)) for number, shape in enumerate(shapes)}
        self._part = [dealt[_shape(row)] for row in rows]

    def choose(self, changes: Mapping[str, float], picks: Mapping[int, Chosen | None]) -> dict[int, Chosen]:
        """Row index → the library's choice with `changes` [canonical units by path]; `picks`: the last choice."""
        (found,) = self._run("choose", [changes], list(picks.items()))
        return dict(zip(picks, found, strict=True))

    def times(self, variants: Sequence[Mapping[str, float]], picks: Mapping[int, Chosen]) -> list[list[float]]:
        """For each set of changes, the seconds of the picked rows, in the order of `picks`."""
        return self._run("times", variants, list(picks.items()))

    def _run(
        self, name: str, variants: Sequence[Mapping[str, float]], items: Sequence[tuple[int, Any]]
    ) -> list[list[Any]]:
        if not self._executors:
            rows = []
            for changes in variants:
                rows.append(getattr(self._local, name)(changes, items))
                self._progress(len(items))
            return rows
        results: list[list[Any]] = [[None] * len(items) for _ in variants]
        waiting: dict[Future[list[Any]], tuple[int, list[int]]] = {}
        for number, changes in enumerate(variants):
            for part, executor in enumerate(self._executors):
                mine = [at for at, (index, _) in enumerate(items) if self._part[index] == part]
                if mine:
                    future = executor.submit(_call, name, changes, [items[at] for at in mine])
                    waiting[future] = (number, mine)
        for future in as_completed(waiting):
            number, mine = waiting[future]
            for at, value in zip(mine, future.result(), strict=True):
                results[number][at] = value
            self._progress(len(mine))
        return results


@contextmanager
def open_pool(
    gpus: Mapping[str, GpuSpec], rows: Sequence[MeasuredRow], jobs: int, progress: Callable[[int], None]
) -> Iterator[Pool]:
    """A pool of `jobs` processes (1: this one) for `rows` of `gpus`; `progress` is told each count of rows done."""
    with worker_processes([1] * (jobs if jobs > 1 else 0), _start, (gpus, rows)) as executors:
        yield Pool(rows, _Worker(gpus, rows), executors, progress)
