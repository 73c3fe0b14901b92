"""Speedup of one weight of an LLM against the number of tokens on four GPUs, with measured points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import measured_points as measured
import script

import sparsesim as ss
from sparsesim.figures import SpeedupCurve, draw_speedup

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "speedup_vs_tokens"
GPUS = ("a100_pcie_80gb", "h100_pcie", "b200", "rtx4090")
#: gate and up projection of Qwen2.5-14B: out features, in features
WEIGHT = (27648, 5120)
TOKENS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)


def draw(gpus: Sequence[str] = GPUS, tokens: Sequence[int] = TOKENS) -> Figure:
    """One weight, n tokens."""
    m, k = WEIGHT
    protocol = ss.Protocol(measured.TIMING, measured.L2)
    curves = []
    for name in gpus:
        gpu = ss.load_gpu(name)
        simulator = ss.Simulator(gpu)
        results = [
            simulator.gemm(ss.Gemm(f"n{n}", m, n, k, dtype=measured.DTYPE, pattern=measured.PATTERN), protocol)
            for n in tokens
        ]
        curves.append(SpeedupCurve(gpu.title, results, measured.of_weight(name, m, k)))
    return draw_speedup(
        curves,
        "n",
        title="One LLM weight, measured: tokens help 2:4 on H100 and B200, and hurt on A100 and RTX 4090",
        context=script.measured_context(f"gate and up projection of Qwen2.5-14B, m = {m}, k = {k}"),
    )


if __name__ == "__main__":
    script.run(NAME, draw, __doc__)
