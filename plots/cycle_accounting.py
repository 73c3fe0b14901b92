"""Who owns the SM-cycles of a GEMM, dense and sparse, at a small, a medium and a large size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import script

import sparsesim as ss
from sparsesim.figures import draw_accounting

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "cycle_accounting"
SIZES = (1024, 2048, 4096)


def draw(gpu: str = "a100_pcie_80gb", sizes: Sequence[int] = SIZES) -> Figure:
    """Square bf16 2:4 products."""
    simulator = ss.Simulator(ss.load_gpu(gpu))
    protocol = ss.Protocol("stream", "warm")
    ops = [ss.Gemm(f"{n}", n, n, n, dtype="bf16", pattern="2:4") for n in sizes]
    return draw_accounting([simulator.gemm(op, protocol) for op in ops])


if __name__ == "__main__":
    script.run(NAME, draw, __doc__)
