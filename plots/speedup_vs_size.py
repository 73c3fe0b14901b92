"""Speedup of square GEMMs against their size on four GPUs: the model, and measured points on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import measured_points as measured
import script

import sparsesim as ss
from sparsesim.figures import SpeedupCurve, draw_speedup

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "speedup_vs_size"
GPUS = ("a100_pcie_80gb", "h100_pcie", "b200", "rtx4090")
SIZES = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


def draw(gpus: Sequence[str] = GPUS, sizes: Sequence[int] = SIZES) -> Figure:
    """Square products, m = n = k."""
    protocol = ss.Protocol(measured.TIMING, measured.L2)
    curves = []
    for name in gpus:
        gpu = ss.load_gpu(name)
        simulator = ss.Simulator(gpu)
        results = [
            simulator.gemm(ss.Gemm(f"{n}", n, n, n, dtype=measured.DTYPE, pattern=measured.PATTERN), protocol)
            for n in sizes
        ]
        curves.append(SpeedupCurve(gpu.title, results, measured.of_square(name)))
    return draw_speedup(
        curves,
        title="Square GEMMs, measured: little from 2:4 below 1024, never 2× above",
        context=script.measured_context("square products, m = n = k"),
    )


if __name__ == "__main__":
    script.run(NAME, draw, __doc__)
