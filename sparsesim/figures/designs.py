"""Design points: what each reaches against what it takes, and the front that none of them beats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from sparsesim.figures.style import INK, VERMILLION, new_figure, styled

__all__ = ["DesignPanel", "draw_designs"]


@dataclass(frozen=True)
class DesignPanel:
    """One panel of points.

    title, label : of the panel and of its y axis
    values : y of each point, larger is better
    front : whether a point is on the front
    start : y of the board as it is, at cost 1
    """

    title: str
    label: str
    values: Sequence[float]
    front: Sequence[bool]
    start: float


@styled
def draw_designs(
    cost: Sequence[float],
    cost_label: str,
    shade: Sequence[float],
    shade_label: str,
    panels: Sequence[DesignPanel],
    title: str,
    context: str,
) -> Figure:
    """Draw panels beside each other over one cost axis.

    Parameters
    ----------
    cost, shade : sequence of float, one for each point
        Place on the x axis; value that the colour shows (logarithmic).
    panels : sequence of DesignPanel
    cost_label, shade_label, title, context : str

    Raises
    ------
    ValueError
        No panel, no points, or panels of another number of points.
    """
    if not panels or not len(cost) or any(len(p.values) != len(cost) or len(p.front) != len(cost) for p in panels):
        raise ValueError("panels: expected at least one, each with a value for every point")
    figure, axes = new_figure(title, context, 4.9, 1, len(panels), sharex=True)
    x = np.asarray(cost, dtype=float)
    for ax, panel in zip(axes, panels, strict=True):
        y, front = np.asarray(panel.values, dtype=float), np.asarray(panel.front, dtype=bool)
        points = ax.scatter(x, y, c=np.log2(shade), s=7, cmap="viridis", linewidths=0, rasterized=True)
        order = np.argsort(x[front], kind="stable")
        ax.step(x[front][order], y[front][order], where="post", color=VERMILLION, linewidth=1.6, label="front")
        ax.plot(
            [1.0], [panel.start], linestyle="none", marker="*", markersize=13, markerfacecolor="white",
            markeredgecolor=INK, markeredgewidth=1.3, label="board as it is",
        )  # fmt: skip
        ax.set_title(panel.title, fontweight="bold")
        ax.set_xlabel(cost_label)
        ax.set_ylabel(panel.label)
        ax.grid(axis="both")
    bar = figure.colorbar(points, ax=axes, pad=0.01, aspect=30)
    low, high = np.log2(min(shade)), np.log2(max(shade))
    ticks = np.linspace(low, high, 5).tolist()
    bar.set_ticks(ticks, labels=[f"{2.0**tick:.2g}" for tick in ticks])
    bar.set_label(shade_label)
    bar.outline.set_visible(False)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(handles))
    return figure
