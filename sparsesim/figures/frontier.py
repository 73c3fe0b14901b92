"""Quality against simulated latency: the ladder of dense sizes, sparse models, and the front of both."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sparsesim.figures.style import (
    DENSE,
    INK,
    MUTED,
    SERIES_COLOURS,
    SERIES_MARKERS,
    new_figure,
    styled,
)

if TYPE_CHECKING:
    from sparsesim.quality.frontier import Frontier, Point

__all__ = ["draw_frontier"]


@styled
def draw_frontier(result: Frontier, title: str = "", worst: float | None = None) -> Figure:
    """Draw one frontier; colour says the pattern, the marker the method.

    Parameters
    ----------
    result : Frontier
    title : str
        The claim; by default what the figure is.
    worst : float, optional
        Quality at which the axis ends; models beyond it are named below the axes.
    """
    decoders = any(p.latency.seconds.samples > 1 for p in result.points)
    load = (
        f"{result.sla.metric}, {result.sla.rate:g} requests/s" if decoders else f"pass over {result.sla.tokens} columns"
    )
    scale = f"sizes × {result.scale.width}" + (f", layers × {result.scale.depth}" if result.scale.depth > 1 else "")
    measured = f"quality measured on {result.study} (bars: 95 % of the paired difference to the budget's model)"
    context = f"{measured}\nlatency simulated: {result.gpu}, {load}, {scale}\nmodels of one latency stand side by side"
    figure, (ax,) = new_figure(title or f"{result.study} on {result.gpu}: quality against latency", context, 5.4)
    sign = 1.0 if result.better == "higher" else -1.0

    def shown(p: Point) -> bool:
        return worst is None or sign * (p.quality.mean - worst) >= 0

    unit = 1e3 if max(p.seconds for p in result.points) >= 1e-3 else 1e6
    sparse = [p for p in result.points if p.entry.pattern != "dense"]
    patterns = list(dict.fromkeys(p.entry.pattern for p in sparse))
    methods = list(dict.fromkeys(p.entry.method for p in sparse))
    colours = dict(zip(patterns, [c for c in SERIES_COLOURS if c != DENSE], strict=False))
    markers = dict(zip(methods, SERIES_MARKERS, strict=False))
    ladder = [p for p in result.points if p.entry.pattern == "dense" and p.entry.dense and not p.entry.dtype]
    ladder.sort(key=lambda p: p.seconds)
    x = np.array([p.seconds * unit for p in ladder])
    y = np.array([p.quality.mean for p in ladder])
    ax.errorbar(x, y, yerr=_bars(ladder), color=DENSE, marker="o", capsize=3, linewidth=2, zorder=3)
    for p in ladder:
        ax.annotate(
            p.entry.model, (p.seconds * unit, p.quality.mean), (-6, 5), textcoords="offset points", fontsize=8.5,
            ha="right", color=MUTED,
        )  # fmt: skip
    narrow = [p for p in result.points if p.entry.pattern == "dense" and p.entry.dtype]
    if narrow:
        ax.plot(
            [p.seconds * unit for p in narrow], [p.quality.mean for p in narrow], linestyle="none", marker="X",
            color=DENSE, markersize=8, markeredgecolor=INK, markeredgewidth=0.6, zorder=4,
        )  # fmt: skip
    # models of one latency side by side, so that none hides another
    groups: dict[float, list[Point]] = {}
    for p in sparse:
        if shown(p):
            groups.setdefault(round(p.seconds, 9), []).append(p)
    for members in groups.values():
        for i, p in enumerate(sorted(members, key=lambda p: p.entry.key)):
            at = p.seconds * unit * (1.0 + 0.004 * (i - (len(members) - 1) / 2))
            ax.errorbar(
                [at], [p.quality.mean], yerr=_bars([p]), color=colours[p.entry.pattern], marker=markers[p.entry.method],
                markersize=6, capsize=2, linewidth=1, linestyle="none", zorder=5,
                markerfacecolor="white" if p.entry.dtype else colours[p.entry.pattern],
            )  # fmt: skip
    front = sorted((p for p in result.points if p.front), key=lambda p: p.seconds)
    ax.step(
        [p.seconds * unit for p in front], [p.quality.mean for p in front], where="post", color=INK, linewidth=1,
        linestyle=":", zorder=2,
    )  # fmt: skip
    ax.axvline(result.budget_s * unit, color=MUTED, linewidth=1, linestyle="--", zorder=1)
    if sign < 0:
        ax.invert_yaxis()
    ax.set_xlabel(f"simulated latency [{'ms' if unit == 1e3 else 'µs'}]")
    ax.set_ylabel(f"{result.metric} ({'lower' if sign < 0 else 'higher'} is better)")
    ax.grid(axis="both")
    ax.margins(x=0.08)
    hidden = [p.entry.key for p in sparse if not shown(p)]
    if hidden:
        ax.text(
            0.9, 0.02, f"beyond the end of the axis: {', '.join(hidden)}", transform=ax.transAxes,
            fontsize=8.5, ha="right", color=MUTED,
        )  # fmt: skip
    handles = [
        Line2D([], [], color=DENSE, marker="o", label="dense sizes"),
        *([Line2D([], [], color=DENSE, marker="X", linestyle="none", label="dense, narrow type")] if narrow else []),
        *(Line2D([], [], color=colours[p], linewidth=5, label=p) for p in patterns),
        *(Line2D([], [], color=MUTED, marker=markers[m], linestyle="none", label=m) for m in methods),
        Line2D([], [], color=INK, linestyle=":", linewidth=1, label="front"),
        Line2D([], [], color=MUTED, linestyle="--", linewidth=1, label="budget"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=6)
    return figure


def _bars(points: list[Point]) -> np.ndarray:
    """Half widths of the paired differences to the baseline, (points,); 0 where unknown, and of the baseline."""
    halves = [None if p.gain is None else p.gain.half for p in points]
    return np.array([half or 0.0 for half in halves])
