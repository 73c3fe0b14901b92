"""Runs every point of a sweep that is not done yet, through an executor and into the store.

Points go out in running order, at most a few parts ahead of the oldest that is not finished. A sub-problem is given
to one point at a time: another point that needs it waits until it is known. So each runs once, whoever runs it.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from sparsesim.errors import UserError
from sparsesim.protocol import Protocol
from sparsesim.sweep.address import digest, hardware_digest, model_version
from sparsesim.sweep.design import Design
from sparsesim.sweep.evaluate import OUTPUTS, Context, Outcome, Planner, Point, Task, failure
from sparsesim.sweep.executors import Executor, open_executor
from sparsesim.sweep.memory import Memory
from sparsesim.sweep.parameters import changed, edited, is_count, unit
from sparsesim.sweep.spec import SETTINGS, SweepSpec
from sparsesim.sweep.store import PART_ROWS, Column, Store
from sparsesim.workload import Gemm, GemmError, Workload, load_workload
from sparsesim.workload.ops import issue_line

__all__ = ["Summary", "columns_of", "identity_of", "point_of", "run_sweep", "stop_on_terminate"]

#: parts that may be open at a time: how far points may run ahead of the oldest unfinished one
OPEN_PARTS = 4
DEFAULTS: dict[str, Any] = {
    "dtype": None,
    "stack": "cusparselt",
    "baseline": None,
    "timing": "kernel",
    "l2": "rotating",
    "clock": "free",
    "phase": None,
    "tokens": None,
    "pattern": None,
    "streams": 1,
    "graph": False,
    "repeats": 1,
    "batch": 1,
}

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Summary:
    """What a run did.

    done, failed : of all points of the store; before : done when this run began
    needed, run : sub-problems that this run's points had, and those that were simulated for them
    """

    points: int
    before: int
    done: int
    failed: int
    needed: int
    run: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return dict(vars(self))


def run_sweep(
    spec: SweepSpec,
    folder: str | Path,
    jobs: int = 1,
    cluster: str | None = None,
    progress: Progress | None = None,
    retry_failed: bool = False,
) -> Summary:
    """Evaluate the points of `spec` that `folder` does not hold yet.

    Parameters
    ----------
    folder : the store, new or of the same sweep
    jobs : processes; 1 = this one
    cluster : address of a Dask scheduler, or ``local``; see `executors.open_executor`
    progress : called as progress(done, points)
    retry_failed : run points again that failed before

    Raises
    ------
    UserError
        The store holds something else, or the cluster cannot be used.
    KeyboardInterrupt
        Stopped (also by SIGTERM); every finished point is in the store.
    """
    design = Design(spec)
    context = Context(spec.bases, spec.proxies)
    with Store(Path(folder), identity_of(spec, "sweep"), columns_of(spec), len(design)) as store, stop_on_terminate():
        if retry_failed:
            store.drop_failed()
        run = _Run(spec, design, context, store, progress)
        try:
            if store.done < len(design):
                with open_executor(context, jobs, cluster) as executor:
                    run.all(executor)
            store.finish(len(design))
        finally:
            run.memory.close(delete=store.complete is not None)
        return run.summary()


class _Run:
    """The state of one run: what is under way, what waits for whom, what is known."""

    def __init__(
        self, spec: SweepSpec, design: Design, context: Context, store: Store, progress: Progress | None
    ) -> None:
        self.spec, self.design, self.context, self.store = spec, design, context, store
        self.progress = progress
        self.memory = Memory(store.memory_path)
        self.planner = Planner()
        self.began = time.perf_counter()
        self.before = store.done
        self.needed = self.run = 0
        #: address → position of the point that runs it
        self.owners: dict[str, int] = {}
        #: position → the point and its sub-problems, while it waits for others to run some of them
        self.parked: dict[int, tuple[Point, frozenset[str]]] = {}
        self.sent: dict[int, frozenset[str]] = {}
        #: board → its points that are not finished
        self.open_boards: dict[int, int] = {}

    def summary(self) -> Summary:
        """What was done up to now."""
        done = self.store.done
        return Summary(
            len(self.design), self.before, done, self.store.failed, self.needed, self.run,
            round(time.perf_counter() - self.began, 3),
        )  # fmt: skip

    def all(self, executor: Executor) -> None:
        """Evaluate every point that is not done."""
        todo = (position for position in range(len(self.design)) if not self.store.is_done(position))
        following = next(todo, None)
        slots = executor.slots
        while following is not None or self.sent or self.parked:
            oldest = min([*self.sent, *self.parked], default=following)
            while following is not None and len(self.sent) < slots and len(self.parked) < 4 * slots:
                if oldest is not None and following - oldest >= OPEN_PARTS * PART_ROWS:
                    break
                self._begin(executor, following)
                following = next(todo, None)
            if self.sent:
                self._take(executor, executor.wait())
                slots = executor.slots

    def _begin(self, executor: Executor, position: int) -> None:
        board = int(self.design.group[position])
        self.open_boards[board] = self.open_boards.get(board, 0) + 1
        try:
            point = point_of(self.spec, self.design.settings(position))
            alone = self._alone(position)
            addresses = frozenset() if alone else self._plan(point)
        except UserError as err:
            self._finish({position: failure(position, str(err)).outputs})
            return
        self.needed += len(addresses)
        self._offer(executor, position, point, addresses)

    def _plan(self, point: Point) -> frozenset[str]:
        return self.planner.needs(edited(self.context.bases[point.base], point.changes), point)

    def _alone(self, position: int) -> bool:
        """Whether no other point has the same board: then nothing can be shared."""
        group = self.design.group
        return not any(
            0 <= other < len(group) and group[other] == group[position] for other in (position - 1, position + 1)
        )

    def _offer(self, executor: Executor, position: int, point: Point, addresses: frozenset[str]) -> None:
        """Send a point, or park it while another runs a sub-problem that it needs."""
        if any(address in self.owners for address in addresses):
            self.parked[position] = point, addresses
            return
        known = self.memory.get(addresses) if addresses else {}
        mine = addresses - set(known)
        self.owners.update(dict.fromkeys(mine, position))
        self.sent[position] = mine
        executor.submit(Task(position, point, known, self.context.model))

    def _take(self, executor: Executor, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            if outcome.mismatch:
                raise UserError(
                    f"--cluster: expected workers with model {self.context.model}, found one with {outcome.mismatch}"
                )
            mine = self.sent.pop(outcome.position)
            for address in mine:
                del self.owners[address]
            self.run += len(outcome.new)
            if not mine:
                self.needed += len(outcome.new)
            elif outcome.new:
                self.memory.put(int(self.design.group[outcome.position]), outcome.new)
        self._finish({outcome.position: outcome.outputs for outcome in outcomes})
        for position in sorted(self.parked):
            self._offer(executor, position, *self.parked.pop(position))

    def _finish(self, outputs: Mapping[int, Mapping[str, Any]]) -> None:
        self.store.add({position: self._row(position, result) for position, result in outputs.items()})
        for position in outputs:
            board = int(self.design.group[position])
            self.open_boards[board] -= 1
            if not self.open_boards[board] and self._passed(position):
                del self.open_boards[board]
                self.memory.forget(board)
        if self.progress is not None:
            self.progress(self.store.done, len(self.design))

    def _passed(self, position: int) -> bool:
        """Whether all points of the board of `position` are done."""
        group = self.design.group
        return self.store.is_done(int(np.searchsorted(group, group[position], side="right")) - 1)

    def _row(self, position: int, outputs: Mapping[str, Any]) -> dict[str, Any]:
        return row_of(self.spec, self.design.number(position), self.design.settings(position), outputs)


# --- points ---


@lru_cache(maxsize=256)
def _workload(name: str, tokens: int | None, phase: str | None, dtype: str | None, pattern: str | None) -> Workload:
    return load_workload(name, tokens=tokens, phase=phase, dtype=dtype, pattern=pattern)


def point_of(spec: SweepSpec, settings: Mapping[str, Any]) -> Point:
    """The point that `settings` describe; raises `UserError` if there is no such one."""
    given = {**DEFAULTS, **settings}
    hardware = {name: value for name, value in settings.items() if name not in SETTINGS}
    factors = {name: value for name, value in hardware.items() if spec.is_factor(name)}
    values = {name: value for name, value in hardware.items() if name not in factors}
    work: Workload | Gemm
    if "workload" in settings:
        work = _workload(*(given[name] for name in ("workload", "tokens", "phase", "dtype", "pattern")))
    else:
        try:
            work = Gemm(
                "gemm", given["m"], given["n"], given["k"], batch=given["batch"], dtype=given["dtype"] or "f16",
                pattern=given["pattern"] or "2:4",
            )  # fmt: skip
        except GemmError as err:
            raise UserError(issue_line("gemm", "", issue) for issue in err.issues) from None
    return Point(
        base=given["gpu"],
        changes=changed(spec.bases[given["gpu"]], values, factors),
        work=work,
        stack=given["stack"],
        baseline=given["baseline"],
        protocol=Protocol.parse(given["timing"], given["l2"], given["clock"]),
        streams=given["streams"],
        graph=given["graph"] or given["timing"] == "graph",
        repeats=given["repeats"],
    )


def column_name(setting: str) -> str:
    """Name of a setting's column: a path with _ for its dots, so that SQL needs no quotes."""
    return setting.replace(".", "_")


def columns_of(spec: SweepSpec) -> list[Column]:
    """Columns of the results of `spec`: the point, its settings, proxies, what was simulated."""
    columns = [Column("point", "int64", "", "row of the design, from 0")]
    for name in spec.names:
        kind = SETTINGS.get(name)
        text = "setting" if kind else f"hardware parameter {name}"
        shown = ""
        if kind is None:
            shown = spec.units.get(name, unit(name) or "")
            kind = _type(spec, name)
        columns.append(Column(column_name(name), kind, "" if shown == "-" else shown, text))
    columns += [
        Column(f"proxy_{name}", "float64", "x", "weighted parameters, 1 for the unedited board: "
               + ", ".join(f"{weight:g} {path}" for path, weight in weights.items()))
        for name, weights in spec.proxies.items()
    ]  # fmt: skip
    columns += [Column(name, *about) for name, about in OUTPUTS.items()]
    return columns


def _type(spec: SweepSpec, name: str) -> str:
    """Arrow type of a hardware parameter's column."""
    values = [spec.fixed[name]] if name in spec.fixed else [row[name] for row in spec.rows if name in row]
    values += [value for axis in spec.axes if axis.name == name for value in axis.values]
    ranged = any(axis.name == name and axis.is_range for axis in spec.axes)
    if all(isinstance(value, bool) for value in values) and not ranged:
        return "bool"
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return "int64" if is_count(name) and not spec.is_factor(name) else "float64"
    return "string"


def row_of(spec: SweepSpec, number: int, settings: Mapping[str, Any], outputs: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the results."""
    row: dict[str, Any] = {"point": number}
    for name in spec.names:
        value = settings[name]
        kind = SETTINGS.get(name) or _type(spec, name)
        if kind == "string" and not isinstance(value, str):
            value = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        row[column_name(name)] = {"int64": int, "float64": float}.get(kind, lambda v: v)(value)
    return {**row, **outputs}


def identity_of(spec: SweepSpec, kind: str) -> dict[str, Any]:
    """What the results of `spec` depend on."""
    gpus = {name: hardware_digest(gpu)[:16] for name, gpu in spec.bases.items()}
    names = [spec.fixed.get("workload"), *(row.get("workload") for row in spec.rows)]
    names += [value for axis in spec.axes if axis.name == "workload" for value in axis.values]
    workloads = {name: load_workload(name).digest() for name in dict.fromkeys(names) if name is not None}
    document = dict(spec.document)
    return {
        "kind": kind,
        "model": model_version(),
        "name": spec.name,
        "gpus": gpus,
        "workloads": workloads,
        "sweep_digest": digest({key: value for key, value in document.items() if key != "description"}),
        "sweep": document,
    }


@contextmanager
def stop_on_terminate() -> Iterator[None]:
    """SIGTERM stops as Ctrl-C does: what is finished is kept."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
