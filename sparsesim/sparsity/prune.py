"""Magnitude pruning of an array to a pattern, and the check of an array against one.

One-shot and without data: it makes legal arrays and reference masks, and is no training method. Called by
the audit of weights, by `codec` and by tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsesim.sparsity._arrays import Array, fail, rows_by_k, whole_blocks
from sparsesim.sparsity.pattern import Pattern

__all__ = ["Check", "check", "keep_mask", "prune"]

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Check:
    """How an array stands against a pattern.

    Attributes
    ----------
    pattern : Pattern
    groups : int
        Groups judged: M elements of one row, or V × M blocks for V:N:M; a ragged one counts.
    broken : int
        Groups with more nonzeros (pairs, columns) than the pattern allows.
    first : tuple of int, optional
        Index into the array of the first element of the first broken group, by row and then along k.
    """

    pattern: Pattern
    groups: int
    broken: int
    first: tuple[int, int] | None

    @property
    def share(self) -> float:
        """Broken groups over all groups."""
        return self.broken / self.groups

    @property
    def ok(self) -> bool:
        """Whether the array is legal under the pattern."""
        return self.broken == 0


def keep_mask(array: Any, pattern: Pattern, axis: int = 1) -> Mask:
    """Which elements magnitude pruning to `pattern` keeps; exactly N of each M, zeros among them if need be.

    In each group the N elements of largest magnitude, of equal ones the lower index. In pairs a pair weighs
    the sum of its two magnitudes. V:N:M first keeps the 4 columns of each block with the largest sum of
    magnitudes over the V rows and then, in each row, the 2 largest of these 4 (two steps, as in VENOM,
    arXiv 2310.02065; the two together need not be optimal). Sums are taken in float64.

    Parameters
    ----------
    array : (rows, k), or (k, rows) with ``axis=0``
        Integers or floats.
    pattern : Pattern
    axis : int
        The axis of k.

    Returns
    -------
    numpy.ndarray of bool
        The shape of `array`.

    Raises
    ------
    UserError
        If the array is not 2-D, holds NaN, or does not split into whole groups.
    """
    weights = rows_by_k(array, axis, "prune")
    whole_blocks(weights.shape[0], weights.shape[1], pattern, "prune")
    mask = _mask(weights, pattern)
    return mask if axis in (1, -1) else mask.T


def prune(array: Any, pattern: Pattern, axis: int = 1) -> Array:
    """A copy of `array` with everything zero that `keep_mask` does not keep; same shape and dtype.

    Raises
    ------
    UserError
        As `keep_mask`.
    """
    mask = keep_mask(array, pattern, axis)
    values = np.asarray(array)
    return np.where(mask, values, values.dtype.type(0))


def check(array: Any, pattern: Pattern, axis: int = 1) -> Check:
    """Judge `array` against `pattern`.

    Where k is no multiple of M, the last group of a row has fewer than M elements and may still hold N
    nonzeros (in pairs and V:N:M: as if zeros followed). The same goes for the last rows of V:N:M.

    Parameters
    ----------
    array : (rows, k), or (k, rows) with ``axis=0``
        Integers or floats.
    pattern : Pattern
    axis : int
        The axis of k.

    Raises
    ------
    UserError
        If the array is not 2-D or holds NaN, or if a V:N:M pattern does not state V.
    """
    weights = rows_by_k(array, axis, "check")
    broken = _broken(weights != 0, pattern)
    total = int(np.count_nonzero(broken))
    if total == 0:
        return Check(pattern, broken.size, 0, None)
    row, group = (int(i) for i in np.unravel_index(int(broken.argmax()), broken.shape))
    place = (row * (pattern.v or 1), group * pattern.m)
    return Check(pattern, broken.size, total, place if axis in (1, -1) else place[::-1])


def _smallest_first(values: Array) -> Array:
    """A key that sorts ascending where magnitude descends; -|x| cannot overflow, |x| of an int can."""
    if values.dtype.kind == "u":
        return ~values
    return np.where(values > 0, -values, values)


def _keep(key: Array, count: int) -> Mask:
    """Mask of the `count` lowest keys along the last axis, of equal ones the lower index."""
    order = np.argsort(key, axis=-1, kind="stable")[..., :count]
    mask = np.zeros(key.shape, dtype=np.bool_)
    np.put_along_axis(mask, order, True, axis=-1)
    return mask


def _magnitude(values: Array) -> Array:
    """|x| in float64 (or wider), where sums of it neither overflow an integer nor lose a float16."""
    return np.abs(values.astype(np.result_type(values.dtype, np.float64)))


def _mask(weights: Array, pattern: Pattern) -> Mask:
    rows, k = weights.shape
    if pattern.is_dense:
        return np.ones((rows, k), dtype=np.bool_)
    if pattern.is_pair:
        with np.errstate(over="ignore"):
            pairs = _magnitude(weights).reshape(rows, -1, 4, 2).sum(axis=-1)
        return np.repeat(_keep(-pairs, 2), 2, axis=-1).reshape(rows, k)
    if not pattern.is_vnm:
        key = _smallest_first(weights).reshape(rows, -1, pattern.m)
        return _keep(key, pattern.n).reshape(rows, k)
    blocks = weights.reshape(-1, pattern.v or 1, k // pattern.m, pattern.m)
    with np.errstate(over="ignore"):
        score = _magnitude(blocks).sum(axis=1, keepdims=True)
    order = np.argsort(-score, axis=-1, kind="stable")[..., :4]
    columns = np.sort(order, axis=-1)
    kept = _keep(_smallest_first(np.take_along_axis(blocks, columns, axis=-1)), 2)
    mask = np.zeros(blocks.shape, dtype=np.bool_)
    np.put_along_axis(mask, np.broadcast_to(columns, kept.shape), kept, axis=-1)
    return mask.reshape(rows, k)


def _broken(nonzero: Mask, pattern: Pattern) -> Mask:
    """Which groups break `pattern`: shape (rows, groups), or (row blocks, groups) for V:N:M."""
    rows, k = nonzero.shape
    if pattern.is_dense:
        return np.zeros((rows, k), dtype=np.bool_)
    if pattern.is_vnm and pattern.v is None:
        raise fail("check", "pattern", f"a pattern that states V, such as {pattern.with_v(64)}", str(pattern))
    height = pattern.v or 1
    extra = ((0, -rows % height), (0, -k % pattern.m))
    whole = np.pad(nonzero, extra) if any(right for _, right in extra) else nonzero
    if pattern.is_pair:
        return np.count_nonzero(whole.reshape(rows, -1, 4, 2).any(axis=-1), axis=-1) > 2
    in_row = np.count_nonzero(whole.reshape(whole.shape[0], -1, pattern.m), axis=-1) > pattern.n
    if not pattern.is_vnm:
        return in_row
    blocks = whole.reshape(-1, height, whole.shape[1] // pattern.m, pattern.m)
    columns = np.count_nonzero(blocks.any(axis=1), axis=-1)
    return (columns > pattern.kept_columns_per_block) | in_row.reshape(-1, height, blocks.shape[2]).any(axis=1)
