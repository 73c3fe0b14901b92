"""What-if results: before and after, one or two varied parameters, and the tornado of sensitivities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from sparsesim.figures.style import (
    BLUE,
    DENSE,
    INK,
    MUTED,
    SPARSE,
    VERMILLION,
    conditions,
    describe,
    new_figure,
    styled,
)
from sparsesim.scenarios import Outcome, Scenario, Sensitivities, WhatIf
from sparsesim.scenarios.sensitivity import Sensitivity
from sparsesim.scenarios.sweep import Axis

__all__ = ["draw_tornado", "draw_whatif", "speedup_norm"]

#: labels on an axis of varied values before some are left out
MOST_LABELS = 9
TORNADO_ROWS = 12
#: from slower than dense to faster, with white where both take as long
LOSS_GAIN = LinearSegmentedColormap.from_list("loss_gain", [VERMILLION, "#ffffff", BLUE])


@styled
def draw_whatif(result: WhatIf, title: str | None = None, context: str | None = None) -> Figure:
    """Draw a what-if: bars without a varied parameter, lines over one, a map over two.

    Raises
    ------
    ValueError
        A point has no kernel, and so nothing to draw.
    """
    for point in result.points:
        if point.outcome.error:
            raise ValueError(f"{', '.join(point.labels)}: expected an outcome, found {point.outcome.error}")
    context = context or scenario_text(result.base) + _changes_text(result)
    if not result.axes:
        return _before_after(result, title, context)
    if len(result.axes) == 1:
        return _line(result, title, context)
    return _map(result, title, context)


@styled
def draw_tornado(result: Sensitivities, title: str | None = None, most: int = TORNADO_ROWS) -> Figure:
    """Draw the parameters with the largest elasticities, the step up beside the step down.

    Raises
    ------
    ValueError
        No parameter has any effect.
    """
    rows = [row for row in result.rows if row.largest >= 5e-4][:most]
    if not rows:
        raise ValueError("expected a parameter that changes the speedup, found none")
    step = f"{100 * result.step:.0f} %"
    first = rows[0]
    claim = title or f"{first.path} matters most to the speedup of 2:4"
    figure, (ax,) = new_figure(claim, scenario_text(result.scenario), 1.9 + 0.42 * len(rows))
    for place, row in enumerate(rows):
        for offset, outcome, colour in ((-0.2, row.up, SPARSE), (0.2, row.down, DENSE)):
            if outcome is None:
                ax.annotate(
                    "at its limit", (0.0, place + offset), (4, 0), textcoords="offset points", va="center",
                    fontsize=8.5, color=MUTED,
                )  # fmt: skip
                continue
            change = 100.0 * (outcome.speedup / row.base.speedup - 1.0)
            ax.barh(place + offset, change, 0.38, color=colour)
    ax.axvline(0.0, color=INK, linewidth=1.0)
    ax.set_yticks(range(len(rows)), [_row_label(row, result.step) for row in rows])
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.set_ylabel(f"parameter, stepped by {step}")
    ax.set_xlabel(f"change of the speedup (now {result.base.speedup:.2f}×), %")
    ax.grid(axis="x")
    handles = [
        Patch(color=SPARSE, label=f"parameter {step} up"),
        Patch(color=DENSE, label=f"parameter {step} down"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
    return figure


def _row_label(row: Sensitivity, step: float) -> str:
    """Path of a parameter; of a small integer, whose steps are larger, with its values."""
    if row.up_ratio - 1.0 < 1.5 * step:
        return row.path
    return f"{row.path}: {row.value * row.down_ratio:g}, {row.value:g}, {row.value * row.up_ratio:g}"


def scenario_text(scenario: Scenario) -> str:
    """What a scenario is, in a line."""
    what = describe(scenario.op) if scenario.single else scenario.workload.name
    return f"{scenario.gpu.title}, {scenario.stack.title}: {what}; {conditions(scenario.protocol)}"


def speedup_norm(values: Sequence[float] | np.ndarray) -> TwoSlopeNorm:
    """Colours of ln(speedup), white at 0; both halves reach equally far from it."""
    reach = max(float(np.nanmax(np.abs(values))), 0.05)
    return TwoSlopeNorm(0.0, -reach, reach)


def _changes_text(result: WhatIf) -> str:
    parts = []
    if result.changes:
        parts.append("with " + ", ".join(map(str, result.changes)))
    if result.axes:
        parts.append("varied: " + ", ".join(axis.path for axis in result.axes))
    return "\n" + "; ".join(parts)


def _before_after(result: WhatIf, title: str | None, context: str) -> Figure:
    before, after = result.before, result.after
    claim = title or f"Speedup from {before.speedup:.2f} to {after.speedup:.2f}×"
    figure, (ax,) = new_figure(claim, context, 3.6)
    unit, factor = _unit([before, after])
    for place, outcome in enumerate((before, after)):
        for offset, value, colour in (
            (-0.2, outcome.dense_time_us, DENSE),
            (0.2, outcome.time_us, SPARSE),
        ):
            ax.barh(place + offset, value / factor, 0.38, color=colour)
            note = f"{value / factor:.4g} {unit}" + (f", {outcome.speedup:.2f}×" if colour == SPARSE else "")
            ax.annotate(
                note, (value / factor, place + offset), (4, 0), textcoords="offset points", va="center", fontsize=10
            )
    ax.set_yticks([0, 1], ["before", "after"])
    ax.set_ylim(1.6, -0.6)
    ax.set_xlim(0.0, 1.22 * max(before.dense_time_us, after.dense_time_us, before.time_us, after.time_us) / factor)
    ax.set_xlabel(f"time, {unit}")
    ax.set_ylabel("run, and its speedup, ×")
    handles = [Patch(color=DENSE, label="dense"), Patch(color=SPARSE, label="this run")]
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
    return figure


def _unit(outcomes: Sequence[Outcome]) -> tuple[str, float]:
    """Unit of a time axis, and microseconds in it."""
    most = max(max(outcome.time_us, outcome.dense_time_us) for outcome in outcomes)
    return ("ms", 1e3) if most >= 1e4 else ("µs", 1.0)


def _line(result: WhatIf, title: str | None, context: str) -> Figure:
    (axis,) = result.axes
    outcomes = [point.outcome for point in result.points]
    speedups = [outcome.speedup for outcome in outcomes]
    low, high = min(speedups), max(speedups)
    verb = "hardly moves" if high / low < 1.02 else "moves"
    claim = title or f"{axis.path} {verb} the speedup: {low:.2f} to {high:.2f}×"
    figure, (above, below) = new_figure(claim, context, 5.6, 2, 1, sharex=True)
    xs = _places(above, axis, "x")
    marks: Any = {"marker": "o", "markersize": 4.5}
    above.plot(xs, speedups, color=SPARSE, **marks)
    above.axhline(result.before.speedup, color=MUTED, linewidth=1.2, linestyle=(0, (5, 3)))
    above.set_ylabel("speedup over dense, ×")
    reach = [low, high, result.before.speedup]
    above.set_ylim(min(reach) - 0.06, max(reach) + 0.06)
    above.grid(axis="y")
    unit, factor = _unit(outcomes)
    below.plot(xs, [outcome.dense_time_us / factor for outcome in outcomes], color=DENSE, linestyle="--", **marks)
    below.plot(xs, [outcome.time_us / factor for outcome in outcomes], color=SPARSE, **marks)
    below.set_ylabel(f"time, {unit}")
    times = [time / factor for o in outcomes for time in (o.time_us, o.dense_time_us)]
    if max(times) > 20 * min(times):
        below.set_yscale("log")
        below.yaxis.set_minor_locator(NullLocator())
    else:
        below.set_ylim(0.0, 1.1 * max(times))
    below.grid(axis="y")
    _places(below, axis, "x")
    below.set_xlabel(f"{axis.path}, {_unit_label(axis)}")
    handles = [
        Line2D([], [], color=SPARSE, label="this run", **marks),
        Line2D([], [], color=DENSE, linestyle="--", label="dense", **marks),
        Line2D([], [], color=MUTED, linewidth=1.2, linestyle=(0, (5, 3)), label="speedup as the GPU is"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def _map(result: WhatIf, title: str | None, context: str) -> Figure:
    down, across = result.axes
    grid = np.array([point.outcome.speedup for point in result.points]).reshape(len(down.changes), len(across.changes))
    claim = title or f"Speedup between {grid.min():.2f} and {grid.max():.2f}× over {down.path} and {across.path}"
    figure, (ax,) = new_figure(claim, context, min(2.6 + 0.42 * len(down.changes), 8.0))
    logs = np.log(grid)
    norm = speedup_norm(logs)
    ax.imshow(logs, cmap=LOSS_GAIN, norm=norm, aspect="auto", origin="lower")
    for i in range(grid.shape[0]):
        for j in range(grid.shape[1]):
            ink = "white" if abs(norm(logs[i, j]) - 0.5) > 0.375 else INK
            ax.text(j, i, f"{grid[i, j]:.2f}", ha="center", va="center", fontsize=10.5, color=ink)
    ax.set_xticks(range(grid.shape[1]), _thinned(across.labels))
    ax.set_yticks(range(grid.shape[0]), down.labels)
    ax.set_xlabel(f"{across.path}, {_unit_label(across)}")
    ax.set_ylabel(f"{down.path}, {_unit_label(down)}")
    handles = [
        Patch(facecolor=BLUE, label="sparse faster than dense"),
        Patch(facecolor=VERMILLION, label="slower"),
        Patch(facecolor="white", edgecolor=MUTED, label="equal; numbers: speedup, ×"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def _places(ax: Axes, axis: Axis, side: str) -> list[float]:
    """Where the values of a varied parameter stand: at themselves if they are numbers, else one after the other."""
    values = axis.values
    spread = values is not None and len(values) > 1 and len(set(values)) == len(values)
    places = list(values) if spread and values is not None else [float(i) for i in range(len(axis.changes))]
    which = ax.xaxis if side == "x" else ax.yaxis
    if spread and min(places) > 0.0 and (axis.log or max(places) > 30.0 * min(places)):
        ax.set_xscale("log") if side == "x" else ax.set_yscale("log")
    which.set_major_locator(FixedLocator(places))
    which.set_major_formatter(FixedFormatter(_thinned(axis.labels)))
    which.set_minor_locator(NullLocator())
    return places


def _thinned(labels: Sequence[str]) -> list[str]:
    step = math.ceil(len(labels) / MOST_LABELS)
    return [label if i % step == 0 else "" for i, label in enumerate(labels)]


def _unit_label(axis: Axis) -> str:
    """Unit of a varied parameter for its axis label."""
    if axis.changes[0].operator in ("*=", "/="):
        return "× its value"
    if axis.values is None:
        return "by name"
    named = {"n": "tokens", "m": "elements", "k": "elements", "tokens": "tokens"}
    unit = named.get(axis.path, axis.unit)
    return "number" if unit == "-" else unit
