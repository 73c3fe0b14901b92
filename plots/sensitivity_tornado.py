"""Which hardware parameters the speedup of one GEMM hangs on, stepped one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import script

import sparsesim as ss
from sparsesim.figures import draw_tornado

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "sensitivity_tornado"


def draw(gpu: str = "h100_pcie", size: int = 4096, only: Sequence[str] = ()) -> Figure:
    """A bf16 2:4 GEMM, every parameter 10 % up and down."""
    return draw_tornado(ss.sensitivity(gpu, only=only, m=size, n=size, k=size, dtype="bf16", jobs=1))


if __name__ == "__main__":
    script.run(NAME, draw, __doc__)
