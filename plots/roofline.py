"""Dense and sparse roofline of one GPU, with a weight of an LLM from decode to prefill below it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import script

import sparsesim as ss
from sparsesim.figures import draw_roofline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "roofline"
#: gate and up projection of Llama-3.1-8B: out features, in features
WEIGHT = (28672, 4096)
TOKENS = (1, 16, 128, 4096)


def draw(name: str = "h100_pcie", tokens: Sequence[int] = TOKENS) -> Figure:
    """Ops from memory bound to tensor bound."""
    gpu = ss.load_gpu(name)
    simulator = ss.Simulator(gpu)
    ops = [ss.Gemm(f"n = {n}", WEIGHT[0], n, WEIGHT[1], dtype="bf16", pattern="2:4") for n in tokens]
    return draw_roofline(gpu, [simulator.gemm(op) for op in ops])


if __name__ == "__main__":
    script.run(NAME, draw, __doc__)
