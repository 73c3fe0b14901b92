"""Which measured rows a fit uses: split by shape, sampled over strata, without rows that contradict others.

All of it is a function of the rows alone, so that equal files give equal fits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sparsesim.measured import MeasuredRow
from sparsesim.uncertainty import size_class

__all__ = ["Contradiction", "RowSets", "contradictions", "in_fit_part", "sample", "split_rows", "stratum"]

#: a row contradicts one that is at least as large in every side if it is slower by more than this
CONTRADICTION = 0.25


@dataclass(frozen=True)
class Contradiction:
    """A row that is slower than another one of its file with at least as much work."""

    row: MeasuredRow
    larger: MeasuredRow

    def to_dict(self) -> dict[str, object]:
        """Plain data: where both rows stand, and their times [µs]."""
        return {
            "row": _place(self.row),
            "time_us": self.row.time_us,
            "larger": _place(self.larger),
            "larger_us": self.larger.time_us,
        }


@dataclass(frozen=True)
class RowSets:
    """The rows of one fit.

    `fit` are fitted and `held_out` only predicted; no shape is in both. `available` counts the rows of both
    parts before sampling.
    """

    fit: list[MeasuredRow]
    held_out: list[MeasuredRow]
    contradictions: list[Contradiction]
    available: tuple[int, int]


def _place(row: MeasuredRow) -> str:
    return f"{Path(row.file).name}:{row.line}"


def _digest(row: MeasuredRow) -> bytes:
    return hashlib.sha256(f"{row.m}x{row.n}x{row.k}".encode()).digest()


def in_fit_part(row: MeasuredRow, fit_share: float) -> bool:
    """Whether the shape of `row` belongs to the part that is fitted: a hash of (m, n, k) decides."""
    return int.from_bytes(_digest(row)[:8]) < fit_share * 2.0**64


def stratum(row: MeasuredRow) -> tuple[str, str, str, str]:
    """GPU, path, operand type (bf16 counts as f16) and size class of a row."""
    dtype = "f16" if row.dtype == "bf16" else row.dtype
    return row.gpu, "sparse" if row.is_sparse else "dense", dtype, size_class(row.time_us)


def sample(rows: Iterable[MeasuredRow], count: int) -> list[MeasuredRow]:
    """At most `count` rows, spread evenly over the strata; shapes in the order of their hash.

    Since the order is that of shapes, a dense row tends to come with its sparse partner, and f16 with bf16.
    """
    strata: dict[tuple[str, ...], list[MeasuredRow]] = {}
    for row in sorted(rows, key=lambda row: (_digest(row)[8:], row.gpu, row.dtype, Path(row.file).name, row.line)):
        strata.setdefault(stratum(row), []).append(row)
    chosen: list[MeasuredRow] = []
    queues = [members for _, members in sorted(strata.items())]
    depth = 0
    while len(chosen) < count and any(depth < len(queue) for queue in queues):
        chosen += [queue[depth] for queue in queues if depth < len(queue)][: count - len(chosen)]
        depth += 1
    return chosen


def contradictions(rows: Sequence[MeasuredRow], tolerance: float = CONTRADICTION) -> list[Contradiction]:
    """Rows slower by more than `tolerance` than one whose m, n and k are all at least as large.

    Compared are rows of one file that differ in nothing but their shape. Of several such larger rows the
    fastest is named.
    """
    groups: dict[tuple[object, ...], list[MeasuredRow]] = {}
    for row in rows:
        key = (
            row.file, row.gpu, row.library, row.dtype, row.acc_dtype, row.pattern, row.batch, row.timing, row.l2,
            row.clock, row.source,
        )  # fmt: skip
        groups.setdefault(key, []).append(row)
    found = []
    for members in groups.values():
        sides = np.array([(row.m, row.n, row.k) for row in members])
        times = np.array([row.time_us for row in members])
        for index, row in enumerate(members):
            larger = np.flatnonzero((sides >= sides[index]).all(axis=1))
            fastest = int(larger[np.argmin(times[larger])])
            if times[index] > times[fastest] * (1.0 + tolerance):
                found.append(Contradiction(row, members[fastest]))
    return sorted(found, key=lambda item: (Path(item.row.file).name, item.row.line))


def split_rows(rows: Sequence[MeasuredRow], count: int, fit_share: float) -> RowSets:
    """Fit and held-out rows, at most `count` of each; rows that contradict others are not fitted."""
    wrong = contradictions(rows)
    left_out = {(item.row.file, item.row.line) for item in wrong}
    fit = [row for row in rows if in_fit_part(row, fit_share)]
    held_out = [row for row in rows if not in_fit_part(row, fit_share)]
    sound = [row for row in fit if (row.file, row.line) not in left_out]
    return RowSets(sample(sound, count), sample(held_out, count), wrong, (len(fit), len(held_out)))
