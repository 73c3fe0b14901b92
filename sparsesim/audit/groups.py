"""Counting the groups that break a pattern, block by block, along one axis of a tensor.

Eight neighbours along the axis become one byte, and the histogram of the 256 bytes answers for every pattern
whose groups fit in one: a checkpoint is read once for all of them. Wider groups add the bits of several bytes;
what fits neither (V:N:M, an odd M) goes through `sparsesim.sparsity.check`, which also defines what is counted:
a ragged last group may hold N nonzeros.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sparsesim.sparsity import Pattern, check

__all__ = ["GroupCounter", "block_multiple"]

Bits = NDArray[np.bool_]

_VALUES = np.arange(256, dtype=np.uint8)
_ONES = np.unpackbits(_VALUES[:, None], axis=1).sum(axis=1).astype(np.uint8)


def _in_byte(pattern: Pattern) -> bool:
    """Whether groups of `pattern` are judged from a byte."""
    return not pattern.is_vnm and 8 % pattern.m == 0


def _in_bytes(pattern: Pattern) -> bool:
    """Whether groups of `pattern` are judged from the ones of several bytes."""
    return not pattern.is_vnm and not pattern.is_pair and pattern.m % 8 == 0


def _broken_by_byte(pattern: Pattern) -> NDArray[np.uint8]:
    """For each of the 256 bytes: how many of its groups break `pattern`."""
    bits = np.unpackbits(_VALUES[:, None], axis=1, bitorder="little")
    if pattern.is_pair:
        return (bits.reshape(256, 4, 2).any(axis=2).sum(axis=1) > 2).astype(np.uint8)
    return (bits.reshape(256, -1, pattern.m).sum(axis=2) > pattern.n).sum(axis=1).astype(np.uint8)


def block_multiple(patterns: Sequence[Pattern]) -> int:
    """Rows that a block must be a multiple of, so that no group of `patterns` is cut along either axis."""
    return math.lcm(16, *(pattern.m for pattern in patterns), *(pattern.v or 1 for pattern in patterns))


class GroupCounter:
    """Groups of each pattern, and the broken ones, along the middle axis of blocks [outer, along, inner].

    Parameters
    ----------
    patterns
        V:N:M ones must state V; their rows are the outer axis.
    watched
        The pattern whose first broken group is located.
    """

    def __init__(self, patterns: Sequence[Pattern], watched: Pattern) -> None:
        self.groups = dict.fromkeys(patterns, 0)
        self._tables = {pattern: _broken_by_byte(pattern) for pattern in patterns if _in_byte(pattern)}
        self._broken = {pattern: 0 for pattern in patterns if not _in_byte(pattern)}
        self._histogram = np.zeros(256, dtype=np.int64)
        self._watched = watched
        self.first: tuple[int, int, int] | None = None

    @property
    def broken(self) -> dict[Pattern, int]:
        """Broken groups by pattern."""
        counts = {pattern: int(self._histogram @ table) for pattern, table in self._tables.items()}
        return {pattern: {**counts, **self._broken}[pattern] for pattern in self.groups}

    def add(self, block: Bits, origin: tuple[int, int, int] = (0, 0, 0)) -> None:
        """Count the groups of `block`, whose first element stands at `origin` of the tensor."""
        outer, along, inner = block.shape
        packed = _pack(block)
        self._histogram += np.bincount(packed.reshape(-1), minlength=256)
        for pattern in self.groups:
            self.groups[pattern] += outer * pattern.groups(along) * inner if not pattern.is_vnm else 0
        for pattern in self._broken:
            self._slow(pattern, block, packed, origin)
        if self.first is None and self._watched in self._tables:
            self._locate(packed, origin)

    def _slow(self, pattern: Pattern, block: Bits, packed: NDArray[np.uint8], origin: tuple[int, int, int]) -> None:
        if _in_bytes(pattern):
            width = pattern.m // 8
            extra = -packed.shape[1] % width
            whole = np.pad(_ONES[packed], ((0, 0), (0, extra), (0, 0))) if extra else _ONES[packed]
            ones = whole.reshape(whole.shape[0], -1, width, whole.shape[2]).sum(axis=2, dtype=np.uint16)
            over = ones > pattern.n
            self._broken[pattern] += int(np.count_nonzero(over))
            if pattern == self._watched and self.first is None and over.any():
                i, j, k = (int(x) for x in np.unravel_index(int(over.argmax()), over.shape))
                self.first = (origin[0] + i, origin[1] + j * pattern.m, origin[2] + k)
            return
        rows = np.ascontiguousarray(np.moveaxis(block, 2, 1)).reshape(-1, block.shape[1])
        found = check(rows.view(np.uint8), pattern)
        self._broken[pattern] += found.broken
        if pattern.is_vnm:
            self.groups[pattern] += found.groups
        if pattern == self._watched and self.first is None and found.first is not None:
            i, k = divmod(found.first[0], block.shape[2])
            self.first = (origin[0] + i, origin[1] + found.first[1], origin[2] + k)

    def _locate(self, packed: NDArray[np.uint8], origin: tuple[int, int, int]) -> None:
        """Find the first broken group of the watched pattern."""
        over = self._tables[self._watched][packed] > 0
        if not over.any():
            return
        i, j, k = (int(x) for x in np.unravel_index(int(over.argmax()), over.shape))
        width = self._watched.m
        byte = int(packed[i, j, k])
        groups = [byte >> shift & ((1 << width) - 1) for shift in range(0, 8, width)]
        table = self._tables[self._watched]
        within = next(g for g, bits in enumerate(groups) if table[bits] > 0)
        self.first = (origin[0] + i, origin[1] + 8 * j + width * within, origin[2] + k)


def _pack(block: Bits) -> NDArray[np.uint8]:
    """Bytes of eight neighbours along the middle axis, the first in the lowest bit; zeros follow a ragged end."""
    outer, along, inner = block.shape
    if inner == 1:
        return np.packbits(block[:, :, 0], axis=1, bitorder="little")[:, :, None]
    extra = -along % 8
    whole = np.pad(block, ((0, 0), (0, extra), (0, 0))) if extra else block
    lanes = whole.view(np.uint8).reshape(outer, -1, 8, inner)
    packed = lanes[:, :, 0].copy()
    for bit in range(1, 8):
        packed |= lanes[:, :, bit] << bit
    return packed
