"""Metadata what-if: decoder rate against bits per element on the hypothetical N:M GPU, for 1:4."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import script

import sparsesim as ss
from sparsesim.figures import draw_whatif

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "whatif_metadata"
VARY = ("metadata.groups_per_clk=2,4,8,16,32", "metadata.bits_factor=1,2,4,8")


def draw(gpu: str = "hypothetical_nm", size: int = 4096, vary: Sequence[str] = VARY) -> Figure:
    """An f16 1:4 GEMM over both."""
    result = ss.whatif(gpu, vary=vary, m=size, n=size, k=size, dtype="f16", pattern="1:4", jobs=1)
    rates, bits = (axis.labels for axis in result.axes)
    at = {point.labels: point.outcome.speedup for point in result.points}
    slow, wide = at[rates[0], bits[0]], at[rates[-1], bits[-1]]
    title = (
        f"1:4 gets {result.before.speedup:.2f}×; a decoder of {rates[0]} groups/clk leaves {slow:.2f}, "
        f"{bits[-1]}× the metadata bits {wide:.2f}×"
    )
    return draw_whatif(result, title)


if __name__ == "__main__":
    script.run(NAME, draw, __doc__)
