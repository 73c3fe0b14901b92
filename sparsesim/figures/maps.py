"""Comparisons: the break-even map of a GPU, patterns side by side, and K-expansion against measured timings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from sparsesim.figures.style import (
    BLUE,
    DENSE,
    GREEN,
    INK,
    MUTED,
    SERIES_COLOURS,
    SERIES_MARKERS,
    SPARSE,
    VERMILLION,
    conditions,
    log_ticks,
    new_figure,
    size_label,
    styled,
)
from sparsesim.figures.whatif import LOSS_GAIN, speedup_norm
from sparsesim.scenarios import BreakEven, ExpansionCheck, PatternTable

__all__ = ["draw_breakeven", "draw_expansion", "draw_patterns"]


@styled
def draw_breakeven(result: BreakEven, title: str | None = None) -> Figure:
    """Draw the map: colour and line at speedup 1 of the model, measured pairs as points of the measured colour.

    Raises
    ------
    ValueError
        The map has fewer than two tokens or sides, or a point without a kernel.
    """
    grid = np.array(result.speedups(), dtype=float)
    if min(grid.shape) < 2 or not np.isfinite(grid).all():
        raise ValueError("expected two tokens, two sides and a speedup for each, found fewer")
    scenario = result.scenario
    losing = float((grid <= 1.0).mean())
    claim = title or f"{scenario.op.pattern} is no faster than dense on {100 * losing:.0f} % of the map"
    context = (
        f"{scenario.gpu.title}, {scenario.stack.title}: {scenario.op.dtype}, {scenario.op.pattern}, square weights "
        f"m = k; {conditions(scenario.protocol)}"
    )
    if result.pairs:
        context += (
            f"\ncircles: {len(result.pairs)} measured pairs; model on the measured side of 1 for {result.right_pairs} "
            f"of the {len(result.clear_pairs)} that are off it by more than 5 %"
        )
    figure, (ax,) = new_figure(claim, context, 5.6)
    sizes = np.array(result.sides, dtype=float) ** 2
    logs = np.log(grid)
    every = np.concatenate([logs.ravel(), np.log([pair.measured for pair in result.pairs])])
    every = np.clip(every, -np.log(2.5), np.log(2.5))
    norm, reach = speedup_norm(every), float(np.abs(every).max())
    mesh = ax.pcolormesh(result.tokens, sizes, logs, cmap=LOSS_GAIN, norm=norm, shading="gouraud", rasterized=True)
    if logs.min() < 0.0 < logs.max():
        ax.contour(result.tokens, sizes, logs, levels=[0.0], colors=[INK], linewidths=2.0)
    if result.pairs:
        ax.scatter(
            [pair.n for pair in result.pairs], [pair.m * pair.k for pair in result.pairs],
            c=np.log([pair.measured for pair in result.pairs]), cmap=LOSS_GAIN, norm=norm, s=46, edgecolors=INK,
            linewidths=0.9, zorder=3, clip_on=False,
        )  # fmt: skip
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.xaxis.set_major_locator(FixedLocator([float(n) for n in result.tokens]))
    ax.xaxis.set_major_formatter(FixedFormatter([size_label(n) for n in result.tokens]))
    ax.yaxis.set_major_locator(FixedLocator(sizes.tolist()))
    ax.yaxis.set_major_formatter(FixedFormatter([f"{size_label(side)}²" for side in result.sides]))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_minor_locator(NullLocator())
    ax.set_xlabel("n, tokens (log scale)")
    ax.set_ylabel("m·k, elements (log scale)")
    bar = figure.colorbar(mesh, ax=ax, pad=0.02)
    ticks = [value for value in (0.4, 0.5, 0.6, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5) if abs(np.log(value)) <= reach]
    bar.set_ticks(list(np.log(ticks)), labels=[f"{value:g}" for value in ticks])
    bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.set_label("speedup over dense, ×")
    handles = [
        Line2D([], [], color=INK, linewidth=2.0, label="model: as fast as dense"),
        Patch(facecolor=BLUE, label="sparse faster"),
        Patch(facecolor=VERMILLION, label="slower"),
    ]
    if result.pairs:
        handles.append(
            Line2D([], [], linestyle="none", marker="o", markersize=7, markerfacecolor="white", markeredgecolor=INK,
                   label="measured")
        )  # fmt: skip
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


@styled
def draw_patterns(result: PatternTable, title: str | None = None) -> Figure:
    """Draw each pattern's speedup on the GPU as it is, natively, and expanded along k, beside what it promises."""
    scenario, rows = result.scenario, result.rows
    best = max(rows, key=lambda row: row.native.speedup)
    claim = title or (
        f"On this datapath at most {max(row.here.speedup for row in rows):.2f}×; "
        f"native {best.pattern} would give {best.native.speedup:.2f}× of {best.pattern.nominal_speedup:g}"
    )
    op = scenario.op
    context = (
        f"{scenario.gpu.title}, {scenario.stack.title}: m = {op.m}, n = {op.n}, k = {op.k}, {op.dtype}; "
        f"{conditions(scenario.protocol)}"
    )
    figure, (ax,) = new_figure(claim, context, 5.0)
    kinds = (
        ("as the GPU is", [row.here.speedup for row in rows], DENSE),
        ("datapath runs it natively", [row.native.speedup for row in rows], SPARSE),
        ("as 2:4 on a longer k", [row.expanded_speedup for row in rows], GREEN),
    )
    shown = [kind for kind in kinds if any(value is not None for value in kind[1])]
    width = 0.8 / len(shown)
    top = max(row.pattern.nominal_speedup for row in rows)
    for index, (label, values, colour) in enumerate(shown):
        for place, value in enumerate(values):
            if value is None or not np.isfinite(value):
                continue
            at = place - 0.4 + (index + 0.5) * width
            ax.bar(at, value, width * 0.94, color=colour, label=label)
            ax.annotate(
                f"{value:.2f}", (at, value), (0, -4), textcoords="offset points", ha="center", va="top",
                fontsize=10, rotation=90, color="white" if colour != DENSE else INK,
            )  # fmt: skip
    for place, row in enumerate(rows):
        ax.plot([place - 0.44, place + 0.44], [row.pattern.nominal_speedup] * 2, color=INK, linewidth=1.4)
    ax.axhline(1.0, color=MUTED, linewidth=0.8)
    ax.set_xticks(range(len(rows)), [str(row.pattern) for row in rows])
    ax.tick_params(axis="x", length=0)
    ax.set_ylim(0.0, 1.16 * top)
    ax.set_ylabel("speedup over dense, ×")
    ax.set_xlabel("pattern of A, kept : group (N:M; V:N:M)")
    handles = [Patch(color=colour, label=label) for label, _, colour in shown]
    handles.append(Line2D([], [], color=INK, linewidth=1.4, label="promised"))  # type: ignore[arg-type]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


@styled
def draw_expansion(checks: ExpansionCheck | Sequence[ExpansionCheck], title: str | None = None) -> Figure:
    """Draw predicted against measured speedups of K-expanded products, one marker for each GPU."""
    checks = [checks] if isinstance(checks, ExpansionCheck) else list(checks)
    points = [(row.gpu, row.n, measured, predicted) for c in checks for row, measured, predicted in c.pairs]
    factor, pattern = float(checks[0].factor), checks[0].pattern
    limit = 2.0 / factor
    measured, predicted = (np.array([point[i] for point in points]) for i in (2, 3))
    claim = title or (
        f"{pattern} as 2:4 on {factor:g} k: measured {np.median(measured):.2f}× over dense at the median, "
        f"model {np.median(predicted):.2f}×, limit {limit:.2f}×"
    )
    types = ", ".join(sorted({row.dtype for c in checks for row, *_ in c.pairs}))
    context = f"{len(points)} pairs: {types}, dense at k against 2:4 at {factor:g} k; timing and L2 of each row"
    figure, (ax,) = new_figure(claim, context, 5.6)
    low = min(measured.min(), predicted.min()) / 1.06
    high = max(measured.max(), predicted.max()) * 1.06
    ax.plot([low, high], [low, high], color=MUTED, linewidth=1.0)
    handles = []
    for index, gpu in enumerate(dict.fromkeys(point[0] for point in points)):
        mine = [i for i, point in enumerate(points) if point[0] == gpu]
        style: Any = {"color": SERIES_COLOURS[index % len(SERIES_COLOURS)], "marker": SERIES_MARKERS[index % 6]}
        ax.plot(measured[mine], predicted[mine], linestyle="none", markersize=5.5, markeredgecolor="white",
                markeredgewidth=0.5, **style)  # fmt: skip
        handles.append(Line2D([], [], linestyle="none", markersize=6, label=gpu, **style))
    for line in (ax.axvline, ax.axhline):
        line(limit, color=INK, linewidth=1.0, linestyle=(0, (6, 3)))
        line(1.0, color=INK, linewidth=0.8)
    handles.append(Line2D([], [], color=INK, linewidth=1.0, linestyle=(0, (6, 3)), label=f"limit, {limit:.2f}×"))
    handles.append(Line2D([], [], color=MUTED, linewidth=1.0, label="model = measured"))
    for side in "xy":
        getattr(ax, f"set_{side}scale")("log")
        getattr(ax, f"set_{side}lim")(low, high)
        log_ticks(ax, side, low, high, most=9)
    ax.set_xlabel("measured speedup over dense, ×")
    ax.set_ylabel("predicted speedup over dense, ×")
    ax.grid()
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure
