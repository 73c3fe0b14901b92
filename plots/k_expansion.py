"""6:8 weights run as 2:4 on 1.5 times the k: measured speedup over dense against the model's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import measured_points as measured
import script
from expanded_points import EXPANDED, Expanded

from sparsesim.figures import draw_expansion
from sparsesim.measured import MeasuredRow
from sparsesim.scenarios import check_expansion

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "k_expansion"


def draw(points: Sequence[Expanded] = EXPANDED) -> Figure:
    """bf16 pairs on four GPUs, stream timing, warm L2, both libraries searched."""
    return draw_expansion(check_expansion([row for i, point in enumerate(points) for row in rows(i, point)], jobs=1))


def rows(line: int, point: Expanded) -> tuple[MeasuredRow, MeasuredRow]:
    """A pair as rows of measured timings."""

    def row(k: int, pattern: str, time_us: float) -> MeasuredRow:
        return MeasuredRow(
            point.gpu, measured.SOURCE, point.m, point.n, k, 1, measured.DTYPE, "f32", pattern, "A", time_us,
            measured.TIMING, measured.L2, "free", "", measured.SOURCE, pattern, line,
        )  # fmt: skip

    return row(point.k, "dense", point.dense_us), row(point.k * 3 // 2, "2:4", point.sparse_us)


if __name__ == "__main__":
    script.run(NAME, draw, __doc__)
