"""What a wider shared-memory port gives sparse kernels on H100, where it holds them back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import script

import sparsesim as ss
from sparsesim.figures import draw_whatif

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "whatif_smem"


def draw(gpu: str = "h100_pcie", size: int = 4096, vary: Sequence[str] = ("smem.bytes_per_clk=64:320:9",)) -> Figure:
    """A bf16 2:4 GEMM over the width of the port."""
    result = ss.whatif(gpu, vary=vary, m=size, n=size, k=size, dtype="bf16", jobs=1)
    speedups = [point.outcome.speedup for point in result.points]
    title = (
        f"A wider shared-memory port lifts 2:4 from {result.before.speedup:.2f} to at most {max(speedups):.2f}×, "
        f"a narrower one drops it to {speedups[0]:.2f}×"
    )
    return draw_whatif(result, title)


if __name__ == "__main__":
    script.run(NAME, draw, __doc__)
