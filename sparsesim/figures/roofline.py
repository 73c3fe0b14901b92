"""Roofline: dense and sparse ceilings, memory slopes, and ops as points."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from sparsesim.device.simulate import LaunchResult
from sparsesim.figures.style import DENSE, INK, MUTED, SPARSE, conditions, new_figure, styled
from sparsesim.hardware import GpuSpec
from sparsesim.kernels.datapath import rate_key
from sparsesim.results import GemmResult

__all__ = ["draw_roofline"]

FLOP_PER_MAC = 2.0
TERA = 1e12
HELD, DOTS = (0, (5, 2)), (0, (1, 1.2))


@styled
def draw_roofline(gpu: GpuSpec, results: Sequence[GemmResult], title: str | None = None) -> Figure:
    """Draw ops below the ceilings of a GPU.

    Both axes count dense-equivalent work, 2·m·n·k FLOP, on the sparse path as well. Ceilings: MAC per clk ×
    SMs × clock, at the boost clock and at the lowest clock that the shown ops sustain. The L2 slope is that
    at the highest of their clocks, and to be read at the FLOP per L2 byte, which is marked for each op by a
    vertical dash; the other marks are at FLOP per DRAM byte.

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
    clocks = [launch.clock_hz for result in results for launch in (result.dense_launch, result.launch)]
    sustained = min(clocks)
    per_clk = FLOP_PER_MAC * gpu.tensor.macs_per_clk[rate_key(first.op.dtype, first.op.accumulator)] * gpu.sm.count
    dense_peak = per_clk * gpu.clock.boost / TERA
    sparse_peak = dense_peak * first.nominal_speedup
    held = sustained / gpu.clock.boost
    dram = gpu.dram.bytes_per_s * gpu.dram.achieved_fraction / TERA
    l2 = gpu.l2.bytes_per_clk * max(clocks) / TERA

    figure, (ax,) = new_figure(
        title or _claim(results, sparse_peak * held),
        f"{gpu.title}, {first.op.dtype} with {first.op.accumulator} accumulation, {first.op.pattern}, "
        f"{first.stack}, {conditions(first.protocol)}",
        5.8,
    )
    points = [
        (
            result,
            _point(result, result.dense_launch, result.dense_time_us),
            _point(result, result.launch, result.time_us),
        )
        for result in results
    ]
    xs = [x for _, dense, sparse in points for x in (dense[0], sparse[0], dense[2], sparse[2])]
    ys = [y for _, dense, sparse in points for y in (dense[1], sparse[1])]
    left, right = min(xs) / 2.0, max(*xs, sparse_peak / dram) * 4.0
    bottom, top = min(ys) / 2.0, sparse_peak * 2.0

    x = np.geomspace(left, right, 200)
    ax.plot(x, np.minimum(x * dram, sparse_peak), color=INK, linewidth=1.6)
    ax.plot(x, np.minimum(x * l2, sparse_peak), color=MUTED, linewidth=1.6, linestyle=DOTS)
    for peak, colour in ((sparse_peak, SPARSE), (dense_peak, DENSE)):
        ax.plot([peak / l2, right], [peak, peak], color=colour, linewidth=2.2)
        ax.plot([peak * held / l2, right], [peak * held] * 2, color=colour, linewidth=1.4, linestyle=HELD)
    for result, dense, sparse in points:
        runs = [(dense, DENSE, "o")]
        if result.path != "dense":
            runs.append((sparse, SPARSE, "D"))
            arrow = {"arrowstyle": "->", "color": MUTED, "shrinkA": 5, "shrinkB": 5}
            ax.annotate("", sparse[:2], dense[:2], arrowprops=arrow)
        for (at, y, at_l2), colour, marker in runs:
            ax.plot(
                [at], [y], linestyle="none", marker=marker, markersize=8, color=colour, markeredgecolor=INK,
                markeredgewidth=0.7,
            )  # fmt: skip
            ax.plot([at_l2], [y], linestyle="none", marker="|", markersize=10, color=colour, markeredgewidth=2.0)
        name = _name(result) + (", fallback" if result.path == "dense" else "")
        ax.annotate(name, dense[:2], (3, -8), textcoords="offset points", ha="left", va="top", fontsize=9.5)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(left, right)
    ax.set_ylim(bottom, top)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.grid(which="major")
    ax.set_xlabel("arithmetic intensity, dense-equivalent FLOP per DRAM byte")
    ax.set_ylabel("throughput, dense-equivalent TFLOP/s")
    handles = []
    for peak, colour, kind in ((sparse_peak, SPARSE, "sparse"), (dense_peak, DENSE, "dense")):
        handles += [
            Line2D([], [], color=colour, linewidth=2.2,
                   label=f"{kind} peak {peak:.0f} TFLOP/s, boost {gpu.clock.boost / 1e6:.0f} MHz"),
            Line2D([], [], color=colour, linewidth=1.4, linestyle=HELD,
                   label=f"{kind} peak {peak * held:.0f} TFLOP/s, sustained {sustained / 1e6:.0f} MHz"),
        ]  # fmt: skip
    handles += [
        Line2D([], [], color=INK, linewidth=1.6, label=f"DRAM, {dram * 1000:.0f} GB/s achieved"),
        Line2D(
            [],
            [],
            color=MUTED,
            linewidth=1.6,
            linestyle=DOTS,
            label=f"L2, {l2 * 1000:.0f} GB/s: x is per L2 byte",
        ),
        _mark(DENSE, "o", "op, dense run"),
        _mark(SPARSE, "D", "op, sparse run"),
        _mark(MUTED, "|", "the same op per L2 byte"),
    ]
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


def _claim(results: Sequence[GemmResult], ceiling: float) -> str:
    """Throughput of the fastest op on both paths, beside the sparse ceiling at the sustained clock."""
    best = max(results, key=lambda result: result.op.macs / result.time_us)
    dense, sparse = (FLOP_PER_MAC * best.op.macs / (us * 1e-6) / TERA for us in (best.dense_time_us, best.time_us))
    head = f"{_name(best)}: {dense:.0f} TFLOP/s dense, {sparse:.0f} sparse"
    return f"{head}, sustained ceiling {ceiling:.0f}"
