"""Values as narrow types hold them, to measure what a precision costs: i8 and e4m3 by rows, e2m1 by blocks of 16.

Rounding to nearest, ties to even, of values divided by a scale that puts the largest magnitude of a row (of a block) on
the type's largest value. Scales stay f64; products are exact: this measures the rounding of operands and nothing else.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sparsesim.errors import Problem, UserError, nearest

__all__ = ["ROUNDED", "round_to"]

#: type → (largest value, bits of mantissa, smallest normal exponent); i8 has none. OCP Microscaling v1.0, table 1
_FLOATS = {"e4m3": (448.0, 3, -6), "e2m1": (6.0, 1, 0)}
ROUNDED = ("i8", *_FLOATS)
BLOCK = 16


def round_to(values: NDArray[np.float64], dtype: str) -> NDArray[np.float64]:
    """`values` (rows, k) rounded to `dtype` along k; ``e2m1`` needs k a multiple of 16.

    Raises
    ------
    UserError
        Another type, or a k that does not split into blocks.
    """
    if dtype not in ROUNDED:
        raise UserError(Problem.line("round", "dtype", f"one of {', '.join(ROUNDED)}", dtype) + nearest(dtype, ROUNDED))
    rows, k = values.shape
    if dtype == "e2m1" and k % BLOCK:
        raise UserError(Problem.line("round", "k", f"a multiple of {BLOCK}", k))
    groups = values.reshape(rows, -1, BLOCK if dtype == "e2m1" else k)
    most = 127.0 if dtype == "i8" else _FLOATS[dtype][0]
    largest = np.abs(groups).max(axis=-1, keepdims=True)
    scale = np.where(largest > 0, largest / most, 1.0)
    scaled = groups / scale
    if dtype == "i8":
        step = np.ones_like(scaled)
    else:
        _, mantissa, smallest = _FLOATS[dtype]
        exponent = np.frexp(scaled)[1] - 1
        step = np.ldexp(1.0, np.maximum(exponent, smallest) - mantissa)
    return np.asarray((np.round(scaled / step) * step * scale).reshape(rows, k))
