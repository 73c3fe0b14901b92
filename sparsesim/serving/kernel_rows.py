"""Measured kernel timings of the linear layers, as corrections of the simulated ones.

A kernel of a served model runs under another protocol (in the middle of a step) than a benchmark loop, so a measured
time is not put in its place. Instead the simulated time is multiplied by measured / predicted of the same shape, where
the prediction is made under the measured row's own protocol: what the kernel model gets wrong is taken out, what the
protocol changes stays. Between measured token counts ln(measured / predicted) is interpolated in ln(tokens); outside
of them the nearest counts.

This is for finding out which part of an error is the kernel model's. No simulated result uses it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from sparsesim.hardware import GpuSpec, load_gpu
from sparsesim.measured import MeasuredRow
from sparsesim.validate import predict_rows

__all__ = ["KernelRows", "correct_kernels"]


@dataclass(frozen=True)
class KernelRows:
    """Errors of one GPU's simulated kernels.

    `errors`: (m, k, dtype, sparse) → (n in rising order, ln(measured / predicted) at each).
    """

    errors: Mapping[tuple[int, int, str, bool], tuple[tuple[int, ...], tuple[float, ...]]]

    def factor(self, m: int, n: int, k: int, dtype: str, sparse: bool) -> float:
        """What the simulated time has to be multiplied with; 1 for a weight that was not measured."""
        found = self.errors.get((m, k, dtype, sparse))
        if found is None:
            return 1.0
        tokens, errors = found
        return math.exp(float(np.interp(math.log(n), np.log(tokens), errors)))


def correct_kernels(
    rows: Iterable[MeasuredRow],
    gpu_of: Callable[[str], GpuSpec] = load_gpu,
    progress: Callable[[int], None] | None = None,
    jobs: int | None = None,
) -> dict[str, KernelRows]:
    """GPU → errors of its kernels, from all rows that can be predicted; several rows of one shape count alike."""
    found: dict[str, dict[tuple[int, int, str, bool], dict[int, list[float]]]] = {}
    for p in predict_rows(rows, gpu_of, progress, jobs)[0]:
        row = p.row
        if row.batch == 1:
            key = (row.m, row.k, row.dtype, row.is_sparse)
            found.setdefault(row.gpu, {}).setdefault(key, {}).setdefault(row.n, []).append(-p.log_error)
    return {
        gpu: KernelRows(
            {
                key: (tuple(sorted(by_n)), tuple(sum(by_n[n]) / len(by_n[n]) for n in sorted(by_n)))
                for key, by_n in shapes.items()
            }
        )
        for gpu, shapes in found.items()
    }
