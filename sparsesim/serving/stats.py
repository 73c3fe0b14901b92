"""Means over replications with their confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

__all__ = ["Estimate", "estimate", "t_quantile"]

LEVEL = 0.95
#: 97.5 % quantiles of Student's t for few degrees of freedom, where the expansion below is too coarse
_FEW = {1: 12.706205, 2: 4.302653, 3: 3.182446, 4: 2.776445}


@dataclass(frozen=True)
class Estimate:
    """A mean over replications and its 95 % interval; of one replication the interval is unknown (None)."""

    mean: float
    low: float | None
    high: float | None

    def to_dict(self) -> dict[str, float | None]:
        """Plain data."""
        return {"mean": self.mean, "low": self.low, "high": self.high}


def t_quantile(freedom: int) -> float:
    """97.5 % quantile of Student's t: a table, or the expansion of Abramowitz and Stegun 26.7.5 (within 1e-3)."""
    if freedom in _FEW:
        return _FEW[freedom]
    z = NormalDist().inv_cdf(0.5 + LEVEL / 2)
    n = float(freedom)
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * n**4)
    )


def estimate(values: Sequence[float]) -> Estimate:
    """Mean of independent replications, and mean ± t·s/√R."""
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return Estimate(mean, None, None)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    half = t_quantile(len(values) - 1) * math.sqrt(variance / len(values))
    return Estimate(mean, mean - half, mean + half)
