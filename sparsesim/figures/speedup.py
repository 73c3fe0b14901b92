"""Speedup against size: the model's line and measured points, one panel for each GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from sparsesim.figures.style import (
    INK,
    MUTED,
    SERIES_COLOURS,
    SERIES_MARKERS,
    conditions,
    log_ticks,
    new_figure,
    size_label,
    styled,
)
from sparsesim.results import GemmResult

__all__ = ["SpeedupCurve", "draw_speedup"]

X_LABELS = {"size": "m = n = k, elements (log scale)", "n": "n, tokens (log scale)"}


@dataclass(frozen=True)
class SpeedupCurve:
    """One panel.

    label : what it is called, usually the GPU
    results : simulated points, in order of size
    measured : (size, measured speedup over dense) of each measured point
    """

    label: str
    results: Sequence[GemmResult]
    measured: Sequence[tuple[float, float]] = ()


@styled
def draw_speedup(
    curves: Sequence[SpeedupCurve],
    against: str = "size",
    title: str | None = None,
    context: str | None = None,
) -> Figure:
    """Draw effective speedup against size.

    Parameters
    ----------
    curves : sequence of SpeedupCurve
        One panel each, up to two beside each other.
    against : {"size", "n"}
        "size" for square products (m = n = k), "n" for one weight and a varying number of tokens.
    title, context : str, optional
        Default: the range of the speedups at the largest size; dtype, pattern, stack and protocol.

    Raises
    ------
    ValueError
        No curve, a curve without results, or an unknown `against`.
    """
    if against not in X_LABELS:
        raise ValueError(f"against: expected one of {', '.join(X_LABELS)}, found {against!r}")
    if not curves or not all(curve.results for curve in curves):
        raise ValueError("curves: expected at least one, each with at least one result")
    columns = 2 if len(curves) > 1 else 1
    rows = -(-len(curves) // columns)
    first = curves[0].results[0]
    figure, axes = new_figure(
        title or _claim(curves),
        context or f"{first.op.dtype}, {first.op.pattern}, {first.stack} over dense, {conditions(first.protocol)}",
        1.9 + 2.2 * rows,
        rows,
        columns,
        sharex=True,
        sharey=True,
    )
    nominal = max(result.nominal_speedup for curve in curves for result in curve.results)
    values = [result.speedup for curve in curves for result in curve.results]
    values += [speedup for curve in curves for _, speedup in curve.measured] + [1.0, nominal]
    low, high = min(values) / 1.08, max(values) * 1.08
    places = sorted({_x(result, against) for curve in curves for result in curve.results})
    for index, (ax, curve) in enumerate(zip(axes, curves, strict=False)):
        colour = SERIES_COLOURS[index % len(SERIES_COLOURS)]
        marker = SERIES_MARKERS[index % len(SERIES_MARKERS)]
        ax.axhline(nominal, color=INK, linewidth=1.0, linestyle=(0, (6, 3)))
        ax.axhline(1.0, color=INK, linewidth=1.0)
        xs = [_x(result, against) for result in curve.results]
        ax.plot(xs, [result.speedup for result in curve.results], color=colour, marker=".", markersize=5)
        if curve.measured:
            ax.plot(
                *zip(*curve.measured, strict=True), linestyle="none", marker=marker, markersize=7.5,
                markerfacecolor="white", markeredgecolor=colour, markeredgewidth=1.8,
            )  # fmt: skip
        ax.set_title(curve.label, fontweight="bold", color=colour)
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.set_ylim(low, high)
        log_ticks(ax, "y", low, high, most=7)
        ax.xaxis.set_major_locator(FixedLocator(places))
        step = -(-len(places) // (6 if columns == 2 else 12))
        shown = [size_label(x) if i % step == 0 else "" for i, x in enumerate(places)]
        ax.xaxis.set_major_formatter(FixedFormatter(shown))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.grid(axis="y")
        if index % columns == 0:
            ax.set_ylabel("speedup over dense, ×")
        if index + columns >= len(curves):
            ax.set_xlabel(X_LABELS[against])
            ax.tick_params(labelbottom=True)
    for ax in axes[len(curves) :]:
        ax.set_visible(False)
    handles = [Line2D([], [], color=MUTED, marker=".", markersize=5, label="model")]
    if any(curve.measured for curve in curves):
        handles.append(
            Line2D([], [], linestyle="none", marker="o", markersize=7.5, markerfacecolor="white",
                   markeredgecolor=MUTED, markeredgewidth=1.8, label="measured")
        )  # fmt: skip
    handles += [
        Line2D([], [], color=INK, linewidth=1.0, linestyle=(0, (6, 3)), label=f"promised, {nominal:g}×"),
        Line2D([], [], color=INK, linewidth=1.0, label="as fast as dense"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def _x(result: GemmResult, against: str) -> float:
    """Where a result stands on the x axis."""
    return float(result.op.k if against == "size" else result.op.n)


def _claim(curves: Sequence[SpeedupCurve]) -> str:
    """Range of the speedups of the last point of each curve."""
    last = [curve.results[-1] for curve in curves]
    low, high = min(r.speedup for r in last), max(r.speedup for r in last)
    span = f"{low:.2f}×" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f}×"
    return f"{last[0].nominal_speedup:g}× promised, {span} at the largest size"
