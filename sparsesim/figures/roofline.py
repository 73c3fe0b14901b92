"""Roofline: dense and sparse ceilings, memory slopes, and ops as points."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sparsesim.device.simulate import LaunchResult
from sparsesim.figures.style import DENSE, INK, MUTED, SPARSE, conditions, new_figure, styled
from sparsesim.hardware import GpuSpec
from sparsesim.kernels.datapath import rate_key
from sparsesim.results import GemmResult

__all__ = ["draw_roofline"]

FLOP_PER_MAC = 2.0
TERA = 1e12


@styled
def draw_roofline(gpu: GpuSpec, results: Sequence[GemmResult], title: str | None = None) -> Figure:
    """Draw ops below the ceilings of a GPU.

    Both axes count dense-equivalent work, 2·m·n·k FLOP, on the sparse path as well. Ceilings: MAC per clk × SMs ×
    clock, at the boost clock and at the lowest clock that the shown ops sustain. The L2 slope is to be read at the
    FLOP per L2 byte, which is marked for each op by a vertical dash; the other marks are at FLOP per DRAM byte.

    Parameters
    ----------
    gpu : GpuSpec
        The GPU that `results` were simulated on.
    results : sequence of GemmResult
        Of one dtype, accumulator and pattern, each with DRAM traffic (L2 not warm).
    title : str, optional
        Default: throughput of the fastest op on both paths.

    Raises
    ------
    ValueError
        No result, results of several datapaths, or of an op without DRAM traffic.
    """
    if not results:
        raise ValueError("results: expected at least one")
    first = results[0]
    kinds = {(result.op.dtype, result.op.accumulator, result.nominal_speedup) for result in results}
    if len(kinds) > 1:
        raise ValueError("results: expected one dtype, accumulator and pattern")
    if any(_dram_bytes(launch) <= 0.0 for result in results for launch in (result.dense_launch, result.launch)):
        raise ValueError("results: expected DRAM traffic in each; run them with rotating or cold L2")
    figure, (ax,) = new_figure(
        title or _claim(results),
        f"{gpu.title}, {first.op.dtype} with {first.op.accumulator} accumulation, {first.op.pattern}, "
        f"{first.stack} over dense, {conditions(first.protocol)}",
        5.8,
    )
    sustained = min(launch.clock_hz for result in results for launch in (result.dense_launch, result.launch))
    per_clk = FLOP_PER_MAC * gpu.tensor.macs_per_clk[rate_key(first.op.dtype, first.op.accumulator)] * gpu.sm.count
    dense_peak = per_clk * gpu.clock.boost / TERA
    sparse_peak = dense_peak * first.nominal_speedup
    held = sustained / gpu.clock.boost
    dram = gpu.dram.bytes_per_s * gpu.dram.achieved_fraction / TERA
    l2 = gpu.l2.bytes_per_clk * sustained / TERA

    points = [(result, _point(result, result.dense_launch, result.dense_time_us), _point(result, result.launch, result.time_us)) for result in results]  # fmt: skip
    xs = [x for _, dense, sparse in points for x in (dense[0], sparse[0], dense[2], sparse[2])]
    ys = [y for _, dense, sparse in points for y in (dense[1], sparse[1])]
    left, right = min(xs) / 2.0, max(*xs, sparse_peak / dram) * 4.0
    bottom, top = min(ys) / 2.0, sparse_peak * 2.0

    x = np.geomspace(left, right, 200)
    ax.plot(x, np.minimum(x * dram, sparse_peak), color=INK, linewidth=1.6)
    ax.plot(x, np.minimum(x * l2, sparse_peak), color=MUTED, linewidth=1.6, linestyle=(0, (1, 1.2)))
    for peak, colour, name in ((sparse_peak, SPARSE, "sparse"), (dense_peak, DENSE, "dense")):
        ax.plot([min(peak, sparse_peak) / l2, right], [peak, peak], color=colour, linewidth=2.2)
        ax.plot([peak * held / l2, right], [peak * held] * 2, color=colour, linewidth=1.4, linestyle=(0, (5, 2)))
        ax.annotate(
            f"{name} {peak:.0f} TFLOP/s", (right, peak), (-2, 3), textcoords="offset points", ha="right", va="bottom",
            fontsize=9.5,
        )  # fmt: skip
    for result, dense, sparse in points:
        ax.annotate(
            "", sparse[:2], dense[:2], arrowprops={"arrowstyle": "->", "color": MUTED, "shrinkA": 5, "shrinkB": 5}
        )
        for (at, y, at_l2), colour, marker in ((dense, DENSE, "o"), (sparse, SPARSE, "D")):
            ax.plot([at], [y], linestyle="none", marker=marker, markersize=8, color=colour, markeredgecolor=INK,
                    markeredgewidth=0.7)  # fmt: skip
            ax.plot([at_l2], [y], linestyle="none", marker="|", markersize=10, color=colour, markeredgewidth=2.0)
        ax.annotate(
            _name(result), (max(dense[0], sparse[0]), dense[1]), (9, -3), textcoords="offset points", va="top",
            fontsize=9.5,
        )  # fmt: skip
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(left, right)
    ax.set_ylim(bottom, top)
    ax.grid(which="major")
    ax.set_xlabel("arithmetic intensity, dense-equivalent FLOP per DRAM byte")
    ax.set_ylabel("throughput, dense-equivalent TFLOP/s")
    handles = [
        Line2D([], [], color=SPARSE, linewidth=2.2, label=f"sparse peak, boost {gpu.clock.boost / 1e6:.0f} MHz"),
        Line2D([], [], color=DENSE, linewidth=2.2, label=f"dense peak, boost {gpu.clock.boost / 1e6:.0f} MHz"),
        Line2D([], [], color=MUTED, linewidth=1.4, linestyle=(0, (5, 2)), label=f"the same, sustained {sustained / 1e6:.0f} MHz"),
        Line2D([], [], color=INK, linewidth=1.6, label=f"DRAM, {dram * 1000:.0f} GB/s achieved"),
        Line2D([], [], color=MUTED, linewidth=1.6, linestyle=(0, (1, 1.2)), label=f"L2, {l2 * 1000:.0f} GB/s (x: FLOP per L2 byte)"),
        _mark(DENSE, "o", "op, dense run"),
        _mark(SPARSE, "D", "op, sparse run"),
        _mark(MUTED, "|", "the same at its FLOP per L2 byte"),
    ]  # fmt: skip
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
    return figure


def _mark(colour: str, marker: str, label: str) -> Line2D:
    """A legend entry for a point."""
    line = marker == "|"
    return Line2D(
        [], [], linestyle="none", marker=marker, markersize=10 if line else 8, color=colour, label=label,
        markeredgecolor=colour if line else INK, markeredgewidth=2.0 if line else 0.7,
    )  # fmt: skip


def _dram_bytes(launch: LaunchResult) -> float:
    return launch.counters["dram_read_bytes"] + launch.counters["dram_write_bytes"]


def _point(result: GemmResult, launch: LaunchResult, time_us: float) -> tuple[float, float, float]:
    """(FLOP per DRAM byte, TFLOP/s, FLOP per L2 byte) of one run."""
    flop = FLOP_PER_MAC * result.op.macs
    moved = launch.counters["l2_read_bytes"] + launch.counters["l2_write_bytes"]
    return flop / _dram_bytes(launch), flop / (time_us * 1e-6) / TERA, flop / moved


def _name(result: GemmResult) -> str:
    return result.op.name or f"{result.op.m}×{result.op.n}×{result.op.k}"


def _claim(results: Sequence[GemmResult]) -> str:
    best = max(results, key=lambda result: result.op.macs / result.time_us)
    flop = FLOP_PER_MAC * best.op.macs / TERA
    return f"{_name(best)}: {flop / best.dense_time_us * 1e6:.0f} TFLOP/s dense, {flop / best.time_us * 1e6:.0f} sparse"
