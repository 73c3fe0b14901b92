"""The best design within bounds and budgets: scipy's differential evolution over the axes of a sweep file.

A budget limits Σ weight × (parameter / the board's own); designs beyond it are never simulated (Lampinen's constraint
rules, as scipy has them). Every evaluation is a row of the store. The search follows from the file and its seed, so
that a stopped one repeats its proposals, finds them in the store, and goes on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sparsesim.errors import UserError
from sparsesim.sweep.design import value_of
from sparsesim.sweep.driver import columns_of, identity_of, point_of, row_of, stop_on_terminate
from sparsesim.sweep.evaluate import Context, Outcome, Task, failure, proxy
from sparsesim.sweep.executors import Executor, open_executor
from sparsesim.sweep.parameters import FACTOR, edited, value_at
from sparsesim.sweep.spec import Axis, Budget, SweepSpec
from sparsesim.sweep.store import Column, Store

__all__ = ["Optimum", "optimise"]

#: cost of a design that cannot be simulated: worse than any that can
FAILED = 1e30
#: relative slack of a budget, for the rounding of sums
SLACK = 1e-9


@dataclass(frozen=True)
class Optimum:
    """What a search found.

    settings : of the best design, hardware in canonical units or as factors; row : its row of the store
    start : row of the board as it is, where only its parameters are searched; evaluations : designs simulated
    """

    objective: str
    settings: Mapping[str, Any]
    row: Mapping[str, Any]
    start: Mapping[str, Any] | None
    evaluations: int

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return dict(vars(self))


def optimise(
    spec: SweepSpec,
    folder: str | Path,
    jobs: int = 1,
    cluster: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Optimum:
    """Search the axes of `spec` for the best objective within its budgets; parameters as for `driver.run_sweep`.

    Raises
    ------
    UserError
        As `run_sweep`; also if no design within the budgets could be simulated.
    """
    context = Context(spec.bases, spec.proxies)
    columns = [*columns_of(spec), Column("generation", "int64", "", "of the search, from 1; 0 is the board as it is")]
    with Store(Path(folder), identity_of(spec, "optimise"), columns, None) as store, stop_on_terminate():
        with open_executor(context, jobs, cluster) as executor:
            search = _Search(spec, context, store, executor, progress)
            search.run()
        best = search.best()
        store.finish(len(search.rows))
    return best


class _Search:
    """Designs by what they are, rows in the order in which the designs were first asked for."""

    def __init__(
        self,
        spec: SweepSpec,
        context: Context,
        store: Store,
        executor: Executor,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.spec, self.context, self.store, self.executor, self.progress = spec, context, store, executor, progress
        self.known = store.rows()
        self.rows: list[dict[str, Any]] = []
        self.designs: list[dict[str, Any]] = []
        self.index: dict[str, int] = {}
        self.generation = 0
        self.start: int | None = None

    def run(self) -> None:
        """Evaluate the board as it is, then the generations."""
        from scipy.optimize import NonlinearConstraint, differential_evolution

        spec = self.spec
        if all(axis.is_hardware for axis in spec.axes) and "gpu" in spec.fixed:
            base = spec.bases[spec.fixed["gpu"]]
            own = {axis.name: 1.0 if axis.unit == FACTOR else value_at(base, axis.name) for axis in spec.axes}
            self.start = self.evaluate([{**spec.fixed, **own}])[0]
        limits = [
            NonlinearConstraint(lambda x, budget=budget: self.used(budget, x), -math.inf, budget.limit * (1 + SLACK))
            for budget in spec.budgets
        ]
        # one map call is one generation
        differential_evolution(
            lambda x: 0.0,
            [(0.0, 1.0) if axis.is_range else (0, len(axis.values) - 1) for axis in spec.axes],
            integrality=[not axis.is_range for axis in spec.axes],
            constraints=limits,
            maxiter=spec.generations,
            popsize=max(1, math.ceil(spec.population / len(spec.axes))),
            workers=self.energies,
            updating="deferred",
            polish=False,
            tol=0.0,
            atol=0.0,
            rng=spec.seed,
        )

    def settings(self, x: np.ndarray) -> dict[str, Any]:
        """The design at `x`: a place from 0 to 1 on a range, the index of a value."""
        cells = (round(float(cell)) if not axis.is_range else float(cell) for axis, cell in self._axes(x))
        return {
            **self.spec.fixed,
            **{axis.name: value_of(axis, cell) for axis, cell in zip(self.spec.axes, cells, strict=True)},
        }

    def _axes(self, x: np.ndarray) -> Iterable[tuple[Axis, float]]:
        return zip(self.spec.axes, x, strict=True)

    def used(self, budget: Budget, x: np.ndarray) -> float:
        """What the design at `x` takes of a budget; infinite where it is no board."""
        return used(self.spec, budget, self.settings(np.asarray(x)))

    def energies(self, function: Callable[..., float], designs: Iterable[np.ndarray]) -> list[float]:
        """What scipy minimises, of a generation."""
        self.generation += 1
        found = self.evaluate([self.settings(x) for x in designs])
        return [self.cost(index) for index in found]

    def cost(self, index: int) -> float:
        """Negative speedup, or time [µs]."""
        value = self.rows[index].get(self.spec.objective)
        if value is None:
            return FAILED
        return float(value) if self.spec.objective == "time_us" else -float(value)

    def evaluate(self, designs: list[dict[str, Any]]) -> list[int]:
        """Rows of `designs`, those that are new simulated."""
        found, new = [], []
        for settings in designs:
            key = repr(sorted(settings.items()))
            if key not in self.index:
                self.index[key] = len(self.rows)
                new.append(len(self.rows))
                self.rows.append({})
                self.designs.append(settings)
            found.append(self.index[key])
        self._simulate(new)
        return found

    def _simulate(self, positions: list[int]) -> None:
        waiting = []
        for position in positions:
            if position in self.known:
                self.rows[position] = self.known[position]
                continue
            try:
                point = point_of(self.spec, self.designs[position])
            except UserError as err:
                self._finish([failure(position, str(err))])
            else:
                waiting.append(Task(position, point, {}, self.context.model))
        waiting.reverse()
        running = 0
        while waiting or running:
            while waiting and running < self.executor.slots:
                self.executor.submit(waiting.pop())
                running += 1
            outcomes = self.executor.wait()
            running -= len(outcomes)
            self._finish(outcomes)

    def _finish(self, outcomes: list[Outcome]) -> None:
        done = {}
        for outcome in outcomes:
            if outcome.mismatch:
                raise UserError(
                    f"--cluster: expected workers with model {self.context.model}, found {outcome.mismatch}"
                )
            position = outcome.position
            row = row_of(self.spec, position, self.designs[position], outcome.outputs)
            self.rows[position] = done[position] = {**row, "generation": self.generation}
        self.store.add(done)
        if self.progress is not None:
            spec = self.spec
            size = max(5, max(1, math.ceil(spec.population / len(spec.axes))) * len(spec.axes))
            self.progress(len(self.rows), max(len(self.rows), size * (spec.generations + 1)))

    def best(self) -> Optimum:
        """The best design within the budgets."""
        within = [
            index
            for index in range(len(self.rows))
            if self.rows[index].get("status") == "ok"
            and all(used(self.spec, b, self.designs[index]) <= b.limit * (1 + SLACK) for b in self.spec.budgets)
        ]
        if not within:
            raise UserError(f"{self.spec.name}: expected a design within the bounds and budgets, found none")
        index = min(within, key=lambda index: (self.cost(index), index))
        start = None if self.start is None else self.rows[self.start]
        return Optimum(self.spec.objective, self.designs[index], self.rows[index], start, len(self.rows))


def used(spec: SweepSpec, budget: Budget, settings: Mapping[str, Any]) -> float:
    """Σ weight × (parameter / the board's own) of a design; infinite where the board refuses it."""
    try:
        point = point_of(spec, settings)
        base = spec.bases[point.base]
        gpu = edited(base, point.changes)
    except UserError:
        return math.inf
    return proxy(base, gpu, budget.weights) * math.fsum(budget.weights.values())
