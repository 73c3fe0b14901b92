"""One-shot pruning of a weight matrix to N:M: magnitude, Wanda, SparseGPT; in NumPy.

Weights are (m, k): m out features, k in features. N of each M consecutive elements along k, the reduction dimension,
are kept. Wanda and SparseGPT look at calibration inputs X of shape (samples, k) through their Gram matrix X'X.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsesim.errors import Problem, UserError, nearest
from sparsesim.sparsity import Form, Pattern, keep_mask

__all__ = ["METHODS", "PATTERNS", "magnitude", "output_error", "prune_layer", "sparsegpt", "wanda"]

Matrix = NDArray[np.float64]

#: the patterns of the studies
PATTERNS = ("2:4", "4:8", "1:4", "2:8")
#: share of the Gram matrix's mean diagonal that SparseGPT adds to it (Frantar and Alistarh, arXiv 2301.00774)
DAMPING = 0.01
#: columns whose updates are applied together to the columns after them
BLOCK = 128


def magnitude(weights: Matrix, gram: Matrix | None, pattern: Pattern) -> Matrix:
    """Keep the largest magnitudes of each group; the Gram matrix is not used."""
    return np.where(keep_mask(weights, pattern), weights, 0.0)


def wanda(weights: Matrix, gram: Matrix, pattern: Pattern) -> Matrix:
    """Keep the largest |w|·‖x‖ of each group, ‖x‖ = norm of that input over the samples (arXiv 2306.11695, eq. 1)."""
    score = np.abs(weights) * np.sqrt(np.maximum(np.diag(gram), 0.0))
    return np.where(keep_mask(score, pattern), weights, 0.0)


def sparsegpt(weights: Matrix, gram: Matrix, pattern: Pattern, damping: float = DAMPING) -> Matrix:
    """Prune group by group along k; what a removed weight gave to the output is put on the weights after it.

    With U'U the Cholesky factors of the inverse of the damped Gram matrix, each group loses the weights of smallest
    (w / U_jj)², and removing weight j adds -(w / U_jj)·U_j to the row (Frantar and Alistarh, arXiv 2301.00774,
    algorithm 1).
    """
    work = np.array(weights, dtype=np.float64)
    k = work.shape[1]
    diagonal = float(np.mean(np.diag(gram)))
    hessian = np.array(gram, dtype=np.float64)
    # without any input every choice is as good; a unit matrix makes it that of the magnitudes
    hessian[np.diag_indices(k)] += damping * diagonal if diagonal > 0 else 1.0
    upper = np.linalg.cholesky(np.linalg.inv(hessian)).T
    block = max(pattern.m, BLOCK // pattern.m * pattern.m)
    for start in range(0, k, block):
        stop = min(start + block, k)
        errors = np.zeros((work.shape[0], stop - start))
        for j in range(start, stop):
            if j % pattern.m == 0:
                group = slice(j, j + pattern.m)
                keep = keep_mask(work[:, group] / np.diag(upper)[group], pattern)
            column = work[:, j]
            kept = np.where(keep[:, j % pattern.m], column, 0.0)
            errors[:, j - start] = (column - kept) / upper[j, j]
            work[:, j + 1 : stop] -= np.outer(errors[:, j - start], upper[j, j + 1 : stop])
            work[:, j] = kept
        work[:, stop:] -= errors @ upper[start:stop, stop:]
    return work


METHODS: dict[str, Callable[[Matrix, Any, Pattern], Matrix]] = {
    "magnitude": magnitude,
    "wanda": wanda,
    "sparsegpt": sparsegpt,
}


def prune_layer(weights: Any, gram: Any, pattern: str | Pattern, method: str) -> Matrix:
    """One layer, pruned by the method of that name.

    Parameters
    ----------
    weights : (m, k)
    gram : (k, k), X'X of the calibration inputs; None for ``magnitude``
    pattern : N:M
    method : one of `METHODS`

    Raises
    ------
    UserError
        Unknown method, a pattern that is not N:M, k no multiple of M, or a Gram matrix of another shape.
    """
    form = Pattern.parse(pattern) if isinstance(pattern, str) else pattern
    if method not in METHODS:
        expected = f"one of {', '.join(METHODS)}"
        raise UserError(Problem.line("prune", "method", expected, method) + nearest(method, METHODS))
    if form.form is not Form.NM:
        raise UserError(Problem.line("prune", "pattern", "N:M, such as 2:4", str(form)))
    matrix = np.asarray(weights, dtype=np.float64)
    k = matrix.shape[-1]
    if matrix.ndim != 2 or k % form.m:
        expected = f"(m, k) with k a multiple of {form.m} for pattern {form}"
        raise UserError(Problem.line("prune", "weights.shape", expected, matrix.shape))
    if gram is None and method != "magnitude":
        raise UserError(Problem.line("prune", "gram", f"the Gram matrix of the inputs, for {method}", gram))
    if gram is not None and np.shape(gram) != (k, k):
        raise UserError(Problem.line("prune", "gram.shape", f"({k}, {k})", np.shape(gram)))
    return METHODS[method](matrix, None if gram is None else np.asarray(gram, dtype=np.float64), form)


def output_error(weights: Any, pruned: Any, gram: Any) -> float:
    """‖(W - W')X'‖ / ‖WX'‖ on the inputs whose Gram matrix is `gram`, in the Frobenius norm."""
    kept = np.asarray(weights, dtype=np.float64)
    lost = kept - np.asarray(pruned, dtype=np.float64)
    return float(np.sqrt(np.sum((lost @ gram) * lost) / np.sum((kept @ gram) * kept)))
