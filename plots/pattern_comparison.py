"""Patterns side by side on one GPU: as it is, with a datapath that has them all, and expanded along k."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import script

import sparsesim as ss
from sparsesim.figures import draw_patterns
from sparsesim.scenarios.patterns import EXPANDED, PATTERNS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "pattern_comparison"


def draw(
    gpu: str = "a100_pcie_80gb",
    size: int = 3840,
    patterns: Sequence[str] = PATTERNS,
    expanded: Sequence[str] = EXPANDED,
) -> Figure:
    """A bf16 GEMM whose k is a multiple of every group."""
    return draw_patterns(ss.compare_patterns(gpu, patterns, expanded, m=4096, n=4096, k=size, dtype="bf16", jobs=1))


if __name__ == "__main__":
    script.run(NAME, draw, __doc__)
