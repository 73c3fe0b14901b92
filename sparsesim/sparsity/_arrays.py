"""Checked views of 2-D weight arrays, shared by `prune`, `codec` and `gemm`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsesim.errors import Problem, UserError
from sparsesim.sparsity.pattern import Pattern

__all__ = ["Array", "fail", "matrix", "rows_by_k", "whole_blocks"]

Array = NDArray[Any]


def fail(where: str, path: str, expected: str, found: Any) -> UserError:
    """A `UserError` with one line; *raise* it."""
    return UserError(Problem.line(where, path, expected, found))


def matrix(array: Any, where: str, name: str = "array") -> Array:
    """`array` as a 2-D array of real numbers with at least one element.

    Raises
    ------
    UserError
        If it is anything else.
    """
    try:
        out = np.asarray(array)
    except ValueError:
        raise fail(where, name, "a 2-D array of numbers", "rows of different lengths") from None
    if out.ndim != 2:
        raise fail(where, f"{name}.ndim", "2", out.ndim)
    if out.dtype.kind not in "iuf":
        raise fail(where, f"{name}.dtype", "integers or floats", str(out.dtype))
    if out.size == 0:
        raise fail(where, f"{name}.shape", "at least one row and one column", out.shape)
    return out


def rows_by_k(array: Any, axis: int, where: str) -> Array:
    """`array` as a checked view with k last: shape (rows, k), no NaN.

    Parameters
    ----------
    array : (rows, k) or (k, rows)
        Numbers; NaN is refused, because it has no magnitude.
    axis : int
        The axis of k: 0, 1, -1 or -2.
    """
    out = matrix(array, where)
    if axis not in (-2, -1, 0, 1):
        raise fail(where, "axis", "0 or 1", axis)
    if out.dtype.kind == "f":
        bad = np.isnan(out)
        if bad.any():
            i, j = np.unravel_index(int(bad.argmax()), bad.shape)
            raise fail(where, f"array[{int(i)}, {int(j)}]", "a number", "nan")
    return out if axis in (1, -1) else out.T


def whole_blocks(rows: int, k: int, pattern: Pattern, where: str) -> None:
    """Raise `UserError` unless a matrix of `rows` × `k` splits into whole groups of `pattern`."""
    if pattern.is_vnm and pattern.v is None:
        example = pattern.with_v(64)
        raise fail(where, "pattern", f"a pattern that states V, such as {example}", str(pattern))
    if not pattern.legal_k(k):
        raise fail(where, "k", f"a multiple of {pattern.m} for pattern {pattern}", k)
    if pattern.v is not None and rows % pattern.v:
        raise fail(where, "rows", f"a multiple of {pattern.v} for pattern {pattern}", rows)
