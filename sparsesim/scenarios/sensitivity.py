"""Sensitivity: how much the speedup changes with each parameter of the hardware, one at a time.

Elasticity = d ln S / d ln p: what per cent of speedup one per cent of the parameter brings. It is taken with a
finite step up and one down, for mechanisms have kinks: a resource that just limits hurts when it shrinks and gives
nothing when it grows. The libraries choose their kernels anew on each changed GPU, so a step can also change a tile.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sparsesim.errors import Problem, UserError, nearest
from sparsesim.hardware.load import override
from sparsesim.kernels.datapath import family_dtype, rate_key
from sparsesim.scenarios.paths import hardware_values
from sparsesim.scenarios.scenario import Outcome, Progress, Scenario, run_scenarios
from sparsesim.scenarios.sweep import describe_scenario

__all__ = ["STEP", "Sensitivities", "Sensitivity", "sensitivities"]

#: relative step: large enough to stand above the choice among nearly equal tiles
STEP = 0.1


@dataclass(frozen=True)
class Sensitivity:
    """One parameter: value in its canonical unit, and the outcomes of the steps up and down (None: no such step).

    up_ratio, down_ratio : new value over old; differ from 1 ± step where the parameter is an integer
    why : where a step does not exist, why
    """

    path: str
    value: float
    unit: str
    base: Outcome
    up: Outcome | None
    down: Outcome | None
    up_ratio: float
    down_ratio: float
    why: str = ""

    @property
    def speedup_up(self) -> float | None:
        """d ln speedup / d ln parameter for the step up."""
        return _elasticity(self.base.speedup, self.up.speedup if self.up else None, self.up_ratio)

    @property
    def speedup_down(self) -> float | None:
        """d ln speedup / d ln parameter for the step down: positive if less of the parameter costs speedup."""
        return _elasticity(self.base.speedup, self.down.speedup if self.down else None, self.down_ratio)

    @property
    def time_up(self) -> float | None:
        """d ln time / d ln parameter of the run itself (not the baseline) for the step up."""
        return _elasticity(self.base.time_us, self.up.time_us if self.up else None, self.up_ratio)

    @property
    def time_down(self) -> float | None:
        """d ln time / d ln parameter of the run itself (not the baseline) for the step down."""
        return _elasticity(self.base.time_us, self.down.time_us if self.down else None, self.down_ratio)

    @property
    def largest(self) -> float:
        """Largest elasticity of the speedup, either way."""
        return max((abs(value) for value in (self.speedup_up, self.speedup_down) if value is not None), default=0.0)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        names = ("path", "value", "unit", "up_ratio", "down_ratio", "why")
        rates = ("speedup_up", "speedup_down", "time_up", "time_down")
        return {name: getattr(self, name) for name in (*names, *rates)}


@dataclass(frozen=True)
class Sensitivities:
    """The parameters, the one that matters most first; `skipped` are those with no relative step, with the reason."""

    scenario: Scenario
    step: float
    base: Outcome
    rows: tuple[Sensitivity, ...]
    skipped: tuple[tuple[str, str], ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            **describe_scenario(self.scenario),
            "step": self.step,
            "base": self.base.to_dict(),
            "parameters": [row.to_dict() for row in self.rows],
            "skipped": [{"path": path, "why": why} for path, why in self.skipped],
        }


def sensitivities(
    scenario: Scenario,
    step: float = STEP,
    only: Sequence[str] = (),
    progress: Progress | None = None,
    jobs: int | None = None,
) -> Sensitivities:
    """Step every number of the hardware file that the scenario's types use up and down.

    Parameters
    ----------
    scenario : Scenario
    step : float
        Relative: a parameter becomes p·(1 + step) and p / (1 + step); an integer at least one more or less.
    only : sequence of str
        Paths or their beginnings (``dram``, ``l2.bytes``); all by default.
    progress, jobs
        As for `run_scenarios`.

    Raises
    ------
    UserError
        A step outside 0 to 1, a path in `only` that names no parameter, or a scenario without a kernel.
    """
    if not 0.0 < step <= 1.0:
        raise UserError(Problem.line("step", "", "a relative step above 0 and up to 1", step))
    values = _numbers(scenario)
    sections = dict.fromkeys(path.partition(".")[0] for path in values)
    lines = [
        f"only: {name}: expected a parameter of the hardware, found none{nearest(name, [*sections, *values])}"
        for name in only
        if not any(path == name or path.startswith(f"{name}.") for path in values)
    ]
    if lines:
        raise UserError(lines)
    if only:
        values = {
            path: value
            for path, value in values.items()
            if any(path == name or path.startswith(f"{name}.") for name in only)
        }
    scenarios, steps, skipped = [scenario], [], []
    for path, (value, unit) in values.items():
        if value == 0:
            skipped.append((path, "is 0, which has no relative step"))
            continue
        new = _steps(value, step)
        places: list[int | None] = []
        why = []
        for number in new:
            try:
                gpu = override(scenario.gpu, {path: number})
            except UserError as error:  # at its limit, or against another parameter
                places.append(None)
                why.append(error.problems[0].partition(": ")[2])
                continue
            places.append(len(scenarios))
            scenarios.append(replace(scenario, gpu=gpu))
        if places == [None, None]:
            skipped.append((path, why[0]))
            continue
        steps.append((path, value, unit, new, places, "; ".join(why)))
    outcomes = run_scenarios(scenarios, progress, jobs)
    base = outcomes[0]
    if base.error:
        raise UserError(base.error)
    rows = []
    for path, value, unit, new, places, reason in steps:
        up, down = (None if place is None or outcomes[place].error else outcomes[place] for place in places)
        rows.append(Sensitivity(path, float(value), unit, base, up, down, new[0] / value, new[1] / value, reason))
    rows.sort(key=lambda row: (-row.largest, row.path))
    return Sensitivities(scenario, step, base, tuple(rows), tuple(skipped))


def _elasticity(before: float, after: float | None, ratio: float) -> float | None:
    return None if after is None else math.log(after / before) / math.log(ratio)


def _steps(value: float, step: float) -> tuple[float, float]:
    """Values one step up and down; of an integer the nearest ones, at least one away."""
    up, down = value * (1.0 + step), value / (1.0 + step)
    if isinstance(value, int):
        return max(round(up), value + 1), min(round(down), value - 1)
    return up, down


def _numbers(scenario: Scenario) -> dict[str, tuple[float, str]]:
    """Numeric hardware parameters by path; of tables the entries that the scenario's types use."""
    rates = {rate_key(op.dtype, op.accumulator) for op in scenario.workload.ops}
    types = {family_dtype(op.dtype) for op in scenario.workload.ops}
    found = {}
    for path, (value, unit) in hardware_values(scenario.gpu).items():
        key = path.split(".")[2] if path.count(".") == 2 else None
        if isinstance(value, bool | str | tuple) or (key is not None and key not in rates | types):
            continue
        found[path] = (value, unit)
    return found
