"""Where the promised 2× of one GEMM goes on one GPU, cause by cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

import script

import sparsesim as ss
from sparsesim.figures import draw_waterfall

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "loss_waterfall"


def draw(gpu: str = "h100_pcie", m: int = 4096, n: int = 4096, k: int = 4096) -> Figure:
    """The waterfall of a bf16 2:4 GEMM."""
    return draw_waterfall(ss.explain_gemm(gpu, m, n, k, dtype="bf16", timing="stream", l2="warm"))


if __name__ == "__main__":
    script.run(NAME, draw, __doc__)
