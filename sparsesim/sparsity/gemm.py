"""Reference product of a compressed matrix and a dense one, by gathering rows of B.

Says what a sparse kernel must compute. It reads the metadata as the datapath does and never rebuilds the
dense A, so it also tests the codec. It is no model of time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsesim.sparsity._arrays import Array, fail, matrix
from sparsesim.sparsity.codec import Compressed, kept_columns

__all__ = ["spmm"]

_CHUNK_ELEMENTS = 1 << 21
"""Elements of B gathered at once, 16 MiB in the accumulator's type."""


def spmm(compressed: Compressed, b: Any) -> Array:
    """D = A·B with A compressed.

    Each stored value of A selects its row of B by the metadata. Products and sums are taken in int64 if both
    operands are integers (exact as long as no sum leaves int64) and in float64 otherwise. An infinity in B
    gives NaN only where a stored zero meets it, so at fewer places than in the dense product.

    Parameters
    ----------
    compressed : Compressed
        A of shape (m, k).
    b : (k, n)
        Integers or floats.

    Returns
    -------
    numpy.ndarray
        (m, n) in int64 or float64.

    Raises
    ------
    UserError
        If `b` is not a 2-D array of k rows, or an operand is uint64, which int64 cannot hold.
    """
    right = matrix(b, "spmm", "b")
    (m, k), n = compressed.shape, right.shape[1]
    if right.shape[0] != k:
        raise fail("spmm", "b.shape", f"{k} rows, one for each column of A", right.shape)
    dtypes = (compressed.values.dtype, right.dtype)
    if any(dtype.kind == "u" and dtype.itemsize == 8 for dtype in dtypes):
        raise fail("spmm", "dtype", "floats or integers that fit int64", "uint64")
    wide = np.dtype(np.float64 if any(dtype.kind == "f" for dtype in dtypes) else np.int64)
    values, right = compressed.values.astype(wide), right.astype(wide)
    if compressed.pattern.is_dense:
        return values @ right
    rows_of_b = kept_columns(compressed)
    out = np.empty((m, n), dtype=wide)
    step = max(1, _CHUNK_ELEMENTS // (values.shape[1] * n))
    for start in range(0, m, step):
        chunk = slice(start, start + step)
        out[chunk] = (values[chunk, None, :] @ right[rows_of_b[chunk]])[:, 0, :]
    return out
