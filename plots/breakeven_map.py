"""Where 2:4 beats dense on one GPU, over tokens and weight size, with measured pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import measured_points as measured
import script

import sparsesim as ss
from sparsesim.figures import draw_breakeven
from sparsesim.scenarios.breakeven import TOKENS, MeasuredPair

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "breakeven_map"
SIDES = (256, 512, 1024, 2048, 4096, 8192, 12288)


def draw(gpu: str = "h100_pcie", tokens: Sequence[int] = TOKENS, sides: Sequence[int] = SIDES) -> Figure:
    """bf16, stream timing and a warm L2, as the measured pairs were taken."""
    run = {"dtype": measured.DTYPE, "pattern": measured.PATTERN, "timing": measured.TIMING, "l2": measured.L2}
    result = ss.break_even(gpu, tokens, sides, jobs=1, **run)
    simulator, protocol = ss.Simulator(ss.load_gpu(gpu)), ss.Protocol(measured.TIMING, measured.L2)
    pairs = []
    for row in measured.MEASURED:
        if (
            row.gpu != gpu
            or not tokens[0] <= row.n <= tokens[-1]
            or not sides[0] ** 2 <= row.m * row.k <= sides[-1] ** 2
        ):
            continue
        op = ss.Gemm("measured", row.m, row.n, row.k, dtype=measured.DTYPE, pattern=measured.PATTERN)
        predicted = simulator.gemm(op, protocol).speedup
        pairs.append(MeasuredPair(row.m, row.n, row.k, row.dense_us / row.sparse_us, predicted))
    return draw_breakeven(replace(result, pairs=tuple(pairs)))


if __name__ == "__main__":
    script.run(NAME, draw, __doc__)
