"""Figures of the accuracy page: predicted over measured, and the change against the last run."""

from __future__ import annotations

from pathlib import Path

from accuracy_groups import grouped, path_of
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sparsesim.validate import Prediction

__all__ = ["draw_change", "draw_scatter"]

DENSE, SPARSE = "#E69F00", "#0072B2"
#: a change of male that is drawn as one: less is noise of the seed and of rounding
VISIBLE = 0.002


def draw_scatter(predictions: list[Prediction], path_out: Path) -> None:
    """Predicted over measured against measured time, one panel per GPU with many rows."""
    by_gpu = grouped(predictions, lambda row: (row.gpu,))
    shown = [(key[0], members) for key, members in by_gpu.items() if len(members) >= 100]
    columns = 3
    lines = -(-len(shown) // columns)
    figure = Figure(figsize=(11, 2.6 * lines + 0.9), layout="constrained")
    axes = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    for ax in axes.flat[len(shown) :]:
        ax.set_visible(False)
    for ax, (gpu, members) in zip(axes.flat, shown, strict=False):
        for path, colour, marker in (("dense", DENSE, "o"), ("sparse", SPARSE, "^")):
            chosen = [p for p in members if path_of(p.row) == path]
            ax.scatter(
                [p.row.time_us for p in chosen], [p.predicted_us / p.row.time_us for p in chosen],
                s=7, alpha=0.4, color=colour, marker=marker, linewidths=0, label=path,
            )  # fmt: skip
        ax.axhline(1.0, color="black", linewidth=0.8)
        ax.axhspan(1 / 1.2, 1.2, color="0.9", zorder=0)
        ax.set(xscale="log", yscale="log", ylim=(0.2, 3.0))
        ax.set_yticks([0.25, 0.5, 1.0, 2.0], ["0.25", "0.5", "1", "2"])
        ax.set_yticks([], minor=True)
        ax.set_title(f"{gpu}, {len(members)} rows", fontsize=10)
    for ax in axes[-1]:
        ax.set_xlabel("measured time, µs")
    for line in axes:
        line[0].set_ylabel("predicted / measured")
    figure.suptitle("Model against all measured rows; grey band: ±20 %", fontsize=13, weight="bold")
    handles, labels = axes.flat[0].get_legend_handles_labels()
    if len(labels) < 2:
        handles, labels = max((ax.get_legend_handles_labels() for ax in axes.flat), key=lambda pair: len(pair[1]))
    figure.legend(handles, labels, loc="outside lower center", ncols=2, markerscale=3, frameon=False)
    FigureCanvasAgg(figure)
    figure.savefig(path_out, dpi=110, metadata={"Software": None})


def draw_change(before: dict[str, dict[str, float]], now: dict[str, dict[str, float]], path_out: Path) -> None:
    """male of each group in the last run and in this one; groups as `accuracy_groups.levels` gives them."""
    names = [name for name in now if now[name]["rows"] >= 10]
    names.sort(key=lambda name: now[name]["male"])
    figure = Figure(figsize=(9, 0.21 * len(names) + 1.3), layout="constrained")
    ax = figure.subplots()
    for y, name in enumerate(names):
        new = now[name]["male"]
        old = before.get(name, now[name])["male"]
        colour = "0.6" if abs(new - old) < VISIBLE else "#009E73" if new < old else "#D55E00"
        ax.plot([old, new], [y, y], color=colour, linewidth=2.5, solid_capstyle="butt")
        ax.plot([old], [y], "o", color="white", markeredgecolor=colour, markersize=5)
        ax.plot([new], [y], "o", color=colour, markersize=5)
    ax.set_yticks(range(len(names)), names, fontsize=8)
    ax.set_ylim(-1, len(names))
    ax.set_xlim(left=0)
    ax.axvline(0.035, color="black", linewidth=0.8, linestyle=":")
    ax.text(0.036, len(names) - 0.4, "target 0.035", fontsize=8, va="top")
    ax.set_xlabel("mean |ln(predicted / measured)|, rows of 10 µs and more; ring: last run, dot: this run")
    worse = sum(now[n]["male"] > before.get(n, now[n])["male"] + VISIBLE for n in names)
    better = sum(now[n]["male"] < before.get(n, now[n])["male"] - VISIBLE for n in names)
    ax.set_title(f"Against the last run: {better} groups better, {worse} worse", weight="bold")
    ax.grid(axis="x", color="0.9")
    FigureCanvasAgg(figure)
    figure.savefig(path_out, dpi=110, metadata={"Software": None})
