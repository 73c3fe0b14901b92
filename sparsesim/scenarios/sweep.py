"""What if: a scenario with parameters changed, and with one or two of them varied, beside what it was before."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sparsesim._version import __version__
from sparsesim.errors import Problem, UserError
from sparsesim.results import config_hash
from sparsesim.scenarios.paths import Assignment, apply, parse_assignment, parse_quantity, value_of
from sparsesim.scenarios.scenario import Outcome, Progress, Scenario, run_scenarios
from sparsesim.units import UNITS

__all__ = ["MAX_POINTS", "Axis", "Point", "WhatIf", "describe_scenario", "parse_axis", "what_if"]

MAX_AXES = 2
#: points of one run: more would take hours; `sparsesim sweep` is for many
MAX_POINTS = 4096

_RANGE = re.compile(r"([^:,]+):([^:,]+):([0-9]+)(:log|:lin)?")


@dataclass(frozen=True)
class Axis:
    """One varied parameter: `changes` in order, and what a figure shows them at.

    values : of a parameter that is a number, its new value in `unit`; else None
    log : the values are spaced by a factor
    """

    path: str
    changes: tuple[Assignment, ...]
    values: tuple[float, ...] | None
    unit: str
    log: bool

    @property
    def labels(self) -> tuple[str, ...]:
        """The values as they are written: ``16MiB``, ``×0.5``, ``2:4``."""
        signs = {"=": "", "*=": "×", "/=": "÷", "+=": "+", "-=": "-"}
        return tuple(signs[change.operator] + change.text for change in self.changes)


@dataclass(frozen=True)
class Point:
    """One combination of the axes' values: their labels, and the outcome."""

    labels: tuple[str, ...]
    outcome: Outcome

    def to_dict(self, axes: Sequence[Axis]) -> dict[str, Any]:
        """Plain data."""
        at = {axis.path: label for axis, label in zip(axes, self.labels, strict=True)}
        return {"at": at, **self.outcome.to_dict()}


@dataclass(frozen=True)
class WhatIf:
    """A scenario before and after `changes`, and at each point of the axes (after the changes).

    points : in the order of the axes, the last one fastest; empty without axes
    """

    base: Scenario
    changed: Scenario
    changes: tuple[Assignment, ...]
    axes: tuple[Axis, ...]
    before: Outcome
    after: Outcome
    points: tuple[Point, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            **describe_scenario(self.base),
            "set": [str(change) for change in self.changes],
            "vary": [{"path": axis.path, "values": list(axis.labels)} for axis in self.axes],
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "points": [point.to_dict(self.axes) for point in self.points],
        }


def describe_scenario(scenario: Scenario) -> dict[str, Any]:
    """What a scenario is, as plain data, with where it comes from."""
    op = scenario.op
    single: dict[str, Any] = {
        "m": op.m, "n": op.n, "k": op.k, "batch": op.batch, "dtype": op.dtype, "pattern": op.pattern,
    }  # fmt: skip
    return {
        "gpu": scenario.gpu.name,
        "stack": scenario.stack.name,
        **(single if scenario.single else {"workload": scenario.workload.name}),
        "timing": scenario.protocol.timing,
        "l2": scenario.protocol.l2,
        "clock": scenario.protocol.clock,
        "provenance": {
            "version": __version__,
            "gpu_hash": config_hash(scenario.gpu),
            "workload_digest": scenario.workload.digest(),
        },
    }


def parse_axis(scenario: Scenario, text: str) -> Axis:
    """Read ``path=low:high:count``, ``path=low:high:count:log`` or ``path=a,b,c``; ``*=`` and ``+=`` go, too.

    A range is spaced evenly, with ``:log`` by a constant factor; of a parameter that is an integer the values are
    rounded, and equal ones appear once.

    Raises
    ------
    UserError
        Nothing to vary, a path that does not exist, or values that cannot be read.
    """
    change = parse_assignment(text, "vary")
    value, unit = value_of(scenario, change.path, "vary")
    at = f"vary: {change.path}"
    if isinstance(value, tuple):
        raise UserError(Problem.line(at, "", "a parameter that is no list of texts", ", ".join(value)))
    number = isinstance(value, int | float) and not isinstance(value, bool)
    relative = change.operator in ("*=", "/=")
    span = _RANGE.fullmatch(change.text) if number else None
    if number and span is None and ":" in change.text:
        raise UserError(Problem.line(at, "", "low:high:count, low:high:count:log or a,b,c", change.text))
    if span is not None:
        whole = isinstance(value, int) and not relative
        texts = _range_texts(span, "-" if relative else unit, whole, at)
    else:
        texts = [item.strip() for item in change.text.split(",")]
        if not all(texts):
            raise UserError(Problem.line(at, "", "at least one value, and none between commas empty", change.text))
    changes = tuple(change.with_text(item) for item in dict.fromkeys(texts))
    values = None
    if number:
        places = []
        for item in changes:
            new, _ = value_of(apply(scenario, [item], "vary"), change.path, "vary")
            places.append(float(new))
        values = tuple(places)
    else:
        for item in changes:
            apply(scenario, [item], "vary")
    return Axis(change.path, changes, values, unit, span is not None and span[4] == ":log")


def what_if(
    base: Scenario,
    changes: Sequence[str] = (),
    vary: Sequence[str] = (),
    progress: Progress | None = None,
    jobs: int | None = None,
) -> WhatIf:
    """Run `base`, the same with all `changes`, and with each combination of the values of `vary` besides.

    Parameters
    ----------
    base : Scenario
    changes : sequence of str
        ``path=value``, ``path*=factor`` …; see `scenarios.paths`.
    vary : sequence of str
        None, one or two axes; see `parse_axis`.
    progress, jobs
        As for `run_scenarios`.

    Raises
    ------
    UserError
        Every problem of the changes and axes, before anything is simulated.
    """
    lines: list[str] = []
    parsed: list[Assignment] = []
    changed = base
    for text in changes:
        try:
            parsed.append(parse_assignment(text))
        except UserError as error:
            lines += error.problems
    try:
        changed = apply(base, parsed)
    except UserError as error:
        lines += error.problems
    axes: list[Axis] = []
    if len(vary) > MAX_AXES:
        lines.append(Problem.line("vary", "", f"at most {MAX_AXES} parameters", len(vary)))
    for text in vary[:MAX_AXES] if not lines else ():
        try:
            axes.append(parse_axis(changed, text))
        except UserError as error:
            lines += error.problems
    if len({axis.path for axis in axes}) < len(axes):
        lines.append(Problem.line("vary", "", "each parameter once", axes[0].path))
    if math.prod(len(axis.changes) for axis in axes) > MAX_POINTS:
        lines.append(Problem.line("vary", "", f"at most {MAX_POINTS} points", " × ".join(vary)))
    if lines:
        raise UserError(dict.fromkeys(lines))
    combinations = list(itertools.product(*(axis.changes for axis in axes))) if axes else []
    labels = list(itertools.product(*(axis.labels for axis in axes))) if axes else []
    # the changes and the axes together, so that another GPU or part of a workload comes first in any case
    scenarios = [apply(base, [*parsed, *combination], "vary") for combination in combinations]
    outcomes = run_scenarios([base, changed, *scenarios], progress, jobs)
    points = tuple(Point(label, outcome) for label, outcome in zip(labels, outcomes[2:], strict=True))
    return WhatIf(base, changed, tuple(parsed), tuple(axes), outcomes[0], outcomes[1], points)


def _range_texts(span: re.Match[str], unit: str, whole: bool, at: str) -> list[str]:
    """The values of a range, each written in the unit of its upper end."""
    low_text, high_text, count, spacing = span[1].strip(), span[2].strip(), int(span[3]), span[4]
    suffix = re.sub(r"^[0-9.eE+-]+\s*", "", high_text)
    low = parse_quantity(low_text if re.search(r"[A-Za-zµ]$", low_text) else low_text + suffix, unit, at)
    high = parse_quantity(high_text, unit, at)
    if not 2 <= count <= MAX_POINTS:
        raise UserError(Problem.line(at, "", f"a count of 2 to {MAX_POINTS} values", count))
    if not low < high:
        raise UserError(Problem.line(at, "", "low < high", f"{low_text}:{high_text}"))
    if spacing == ":log":
        if low <= 0:
            raise UserError(Problem.line(at, "", "low > 0 where the values are spaced by a factor", low_text))
        numbers = [low * (high / low) ** (i / (count - 1)) for i in range(count)]
    else:
        numbers = [low + (high - low) * i / (count - 1) for i in range(count)]
    scale = UNITS[unit][suffix.replace("µ", "u")] if suffix else 1.0
    if whole:
        return [str(round(number)) for number in numbers]
    return [f"{number / scale:.9g}{suffix}" for number in numbers]
