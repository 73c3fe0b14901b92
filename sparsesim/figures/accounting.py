"""Cycle accounting: who owns the SM-cycles of the dense and of the sparse run."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from sparsesim.device.engine import OWNERS
from sparsesim.device.simulate import LaunchResult
from sparsesim.figures.style import (
    INK,
    OWNER_COLOURS,
    OWNER_HATCHES,
    OWNER_LABELS,
    conditions,
    describe,
    new_figure,
    styled,
)
from sparsesim.results import GemmResult

__all__ = ["draw_accounting"]

#: narrowest segment that carries its number [% of the dense run]
LABELLED = 5.5
#: owners whose colour is dark enough for white numbers
DARK = ("tensor", "smem", "dram", "epilogue")


@styled
def draw_accounting(results: Sequence[GemmResult], title: str | None = None) -> Figure:
    """Draw a pair of stacked bars for each result.

    Bars are in per cent of the SM-cycles of that result's dense run: the sparse bar shows what shrank.

    Parameters
    ----------
    results : sequence of GemmResult
    title : str, optional
        Default: how much of the dense run's cycles the sparse run takes.

    Raises
    ------
    ValueError
        No result.
    """
    if not results:
        raise ValueError("results: expected at least one")
    first = results[0]
    figure, (ax,) = new_figure(
        title or _claim(results),
        f"{first.gpu}, {first.stack}, {conditions(first.protocol)}; every SM-cycle has one owner",
        2.6 + 1.35 * len(results),
    )
    used: set[str] = set()
    ticks: list[tuple[float, str]] = []
    for index, result in enumerate(results):
        base = 2.9 * index
        whole = result.dense_launch.cycles * result.dense_launch.sms
        runs = (
            ("dense", result.dense_launch),
            (result.path if result.path != "dense" else "fallback", result.launch),
        )
        for offset, (name, launch) in enumerate(runs):
            y = base + offset
            ticks.append((y, name))
            _bar(ax, y, launch, whole, used)
        ax.annotate(
            describe(result.op),
            (0.0, base - 0.46),
            (0, 3),
            textcoords="offset points",
            va="bottom",
            fontweight="bold",
        )
    ax.set_ylim(2.9 * len(results) - 1.3, -1.0)
    ax.set_yticks([y for y, _ in ticks], [name for _, name in ticks])
    ax.tick_params(axis="y", length=0)
    ax.set_ylabel("run, by kernel path")
    ax.set_xlim(0.0, 118.0)
    ax.set_xticks(range(0, 101, 20))
    ax.set_xlabel("SM-cycles, % of the dense run's")
    ax.grid(axis="x")
    handles = [
        Patch(
            facecolor=OWNER_COLOURS[o], hatch=OWNER_HATCHES.get(o), edgecolor=INK, linewidth=0.5,
            label=OWNER_LABELS.get(o, o),
        )
        for o in OWNERS
        if o in used
    ]  # fmt: skip
    figure.legend(handles=handles, loc="outside lower center", ncols=4)
    return figure


def _bar(ax: Axes, y: float, launch: LaunchResult, whole: float, used: set[str]) -> None:
    """One stacked bar; adds the owners that it shows to `used`."""
    left = 0.0
    for owner in OWNERS:
        width = 100.0 * launch.owners[owner] / whole
        if width <= 0.0:
            continue
        used.add(owner)
        ax.barh(
            y, width, 0.8, left=left, color=OWNER_COLOURS[owner], hatch=OWNER_HATCHES.get(owner),
            edgecolor=INK, linewidth=0.5,
        )  # fmt: skip
        if width >= LABELLED:
            plain = owner not in OWNER_HATCHES
            ax.text(
                left + width / 2, y, f"{width:.0f}", ha="center", va="center", fontsize=10,
                color="white" if owner in DARK and plain else INK,
                bbox=None if plain else {"facecolor": "white", "edgecolor": "none", "pad": 1.5},
            )  # fmt: skip
        left += width
    ax.annotate(
        f"{left:.0f} %, {launch.seconds * 1e6:.4g} µs", (left, y), (5, 0), textcoords="offset points",
        va="center", fontsize=10,
    )  # fmt: skip


def _claim(results: Sequence[GemmResult]) -> str:
    """What sparse runs take of their dense runs' SM-cycles, on the tensor cores and in all."""
    pairs = [(result.dense_launch, result.launch) for result in results if result.path != "dense"]
    if not pairs:
        return "Nothing ran sparse: both bars are the dense kernel"
    tensor = _range([100.0 * sparse.owners["tensor"] / dense.owners["tensor"] for dense, sparse in pairs])
    total = _range([100.0 * sparse.cycles / dense.cycles for dense, sparse in pairs])
    return f"Sparse: {tensor} % of dense's tensor cycles, {total} % of all cycles"


def _range(values: Sequence[float]) -> str:
    """Smallest to largest, or the one number that both round to."""
    low, high = f"{min(values):.0f}", f"{max(values):.0f}"
    return low if low == high else f"{low} to {high}"
