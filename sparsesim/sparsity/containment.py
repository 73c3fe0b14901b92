"""Which pattern runs as which: is every matrix that is legal under one legal under the other?

Called by `Pattern.runs_as`. The rule holds for every shape, so a ragged last group changes nothing: a
ragged matrix is a longer one that ends in zeros.

Take a group of the native pattern: an aligned window of M' columns (and V' rows). It cuts the groups of the
data pattern into pieces, and in each piece the data may place its nonzeros as it likes, up to its own limit.
So the worst case of a window is the sum of the worst cases of its pieces, and containment holds when no
window exceeds the native limit. Windows start at multiples of gcd(M, M') inside a data group, which leaves at
most M windows to look at.

========================  ==========================================================================
limit of the native       worst case of a piece of c columns
========================  ==========================================================================
N' nonzeros in a row      min(N, c); in pairs: the two pairs that overlap the piece most
4 columns in V' rows      min(c, sum over row blocks of min(c, U, N·r)) for blocks cut to r rows, where U is
                          the number of columns a data block may use (N for N:M, 4 for V:N:M)
2 of 4 pairs              pairs hit, each by one element, filling the data groups from the left
========================  ==========================================================================

The test suite proves the rule by enumerating every legal matrix of small patterns.
"""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparsesim.sparsity.pattern import Pattern

__all__ = ["contained"]


def contained(data: Pattern, native: Pattern) -> bool:
    """Whether every matrix legal under `data` is legal under `native`, for every shape.

    A V:N:M pattern that does not state V counts as the loosest one (V = 1) on the data side; on the native
    side it contains nothing but itself.
    """
    if native.is_dense or data == native:
        return True
    if data.is_dense:
        return False
    starts = range(0, data.m, gcd(data.m, native.m))
    if native.is_pair:
        return all(_most_pairs(data, start) <= 2 for start in starts)
    if any(_most_in_row(data, start, native.m) > native.n for start in starts):
        return False
    return not native.is_vnm or _columns_fit(data, native, starts)


def _pieces(start: int, width: int, period: int) -> list[tuple[int, int]]:
    """Cut ``[start, start + width)`` at multiples of `period`; bounds are relative to their own period."""
    pieces = []
    position, end = start, start + width
    while position < end:
        base = position - position % period
        stop = min(base + period, end)
        pieces.append((position - base, stop - base))
        position = stop
    return pieces


def _most_in_row(data: Pattern, start: int, width: int) -> int:
    """Most nonzeros one row of `data` can hold in a window of `width` columns."""
    pieces = _pieces(start, width, data.m)
    if not data.is_pair:
        return sum(min(data.n, high - low) for low, high in pieces)
    return sum(
        sum(sorted(max(0, min(high, pair + 2) - max(low, pair)) for pair in range(0, 8, 2))[-2:])
        for low, high in pieces
    )


def _most_pairs(data: Pattern, start: int) -> int:
    """Most neighbouring pairs that one row of `data` can hit in a window of 8 columns."""
    free: dict[int, int] = {}
    hit = 0
    for first in range(start, start + 8, 2):
        for group in (first // data.m, (first + 1) // data.m):
            # The left group first: later pairs cannot use it.
            if free.setdefault(group, data.n) > 0:
                free[group] -= 1
                hit += 1
                break
    return hit


def _columns_fit(data: Pattern, native: Pattern, starts: range) -> bool:
    """Whether V' rows of `data` never use more than the 4 columns a native V:N:M block keeps."""
    if native.v is None:
        return False
    rows = data.v or 1
    usable = data.kept_columns_per_block
    for row_start in range(0, rows, gcd(rows, native.v)):
        heights = [high - low for low, high in _pieces(row_start, native.v, rows)]
        for start in starts:
            widths = [high - low for low, high in _pieces(start, native.m, data.m)]
            used = sum(min(c, sum(min(c, usable, data.n * r) for r in heights)) for c in widths)
            if used > native.kept_columns_per_block:
                return False
    return True
