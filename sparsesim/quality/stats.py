"""Intervals of paired differences over held-out samples and training seeds.

A model is trained with S seeds and each is measured on the same I samples, so differences d[s, i] have two crossed
sources of noise: which seeds were drawn, and which samples. With the mean squares of seeds, samples and rest,

    Var(mean) = (MS_seed + MS_sample - MS_rest) / (S·I)

with Satterthwaite's degrees of freedom (Searle, Casella and McCulloch, *Variance Components*, 1992, chapter 4). With
one seed only the samples' noise is known, and the interval says nothing about another training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["LEVEL", "Interval", "from_halves", "paired", "t_quantile"]

LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean with its interval at `level`; `seeds` and `samples` behind it; bounds None where nothing is known."""

    mean: float
    low: float | None
    high: float | None
    seeds: int = 1
    samples: int = 1
    level: float = LEVEL

    @property
    def half(self) -> float | None:
        """Half its width."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    def __neg__(self) -> Interval:
        low, high = (None if x is None else -x for x in (self.high, self.low))
        return Interval(-self.mean, low, high, self.seeds, self.samples, self.level)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {name: getattr(self, name) for name in ("mean", "low", "high", "seeds", "samples", "level")}


def paired(differences: Any, level: float = LEVEL) -> Interval:
    """Mean and interval of differences d[seed, sample], shape (S, I).

    One sample of each seed (I = 1) gives the interval over seeds alone, one seed that over samples alone; a single
    number has none.
    """
    d: NDArray[np.float64] = np.atleast_2d(np.asarray(differences, dtype=np.float64))
    seeds, samples = d.shape
    mean = float(d.mean())
    if d.size == 1:
        return Interval(mean, None, None, 1, 1, level)
    by_seed = samples * float(np.sum((d.mean(axis=1) - mean) ** 2))
    by_sample = seeds * float(np.sum((d.mean(axis=0) - mean) ** 2))
    if seeds == 1 or samples == 1:
        freedom = float(d.size - 1)
        square, rest = (by_seed + by_sample) / freedom, 0.0
    else:
        left = max(0.0, float(np.sum((d - mean) ** 2)) - by_seed - by_sample)
        ms = (by_seed / (seeds - 1), by_sample / (samples - 1), left / ((seeds - 1) * (samples - 1)))
        # the rest is part of each of the two, so the sum without it cannot be below either
        square = max(ms[0] + ms[1] - ms[2], ms[0], ms[1])
        rest = ms[0] ** 2 / (seeds - 1) + ms[1] ** 2 / (samples - 1) + ms[2] ** 2 / ((seeds - 1) * (samples - 1))
        freedom = square**2 / rest if rest > 0 else 1.0
    half = t_quantile(0.5 + level / 2, max(1.0, freedom)) * math.sqrt(square / d.size)
    return Interval(mean, mean - half, mean + half, seeds, samples, level)


def from_halves(first: Interval, second: Interval) -> Interval:
    """`first` - `second` where only their own intervals are known: as if independent, so wider than paired ones."""
    mean = first.mean - second.mean
    if first.half is None or second.half is None:
        return Interval(mean, None, None, min(first.seeds, second.seeds), min(first.samples, second.samples))
    half = math.hypot(first.half, second.half)
    return Interval(
        mean, mean - half, mean + half, min(first.seeds, second.seeds), min(first.samples, second.samples), first.level
    )


def t_quantile(probability: float, freedom: float) -> float:
    """Quantile of Student's t above the median, by Newton's method on its upper tail; within 1e-9 relative.

    The tail is convex there, so from the normal quantile, which is smaller, every step goes up and none too far.
    """
    t = NormalDist().inv_cdf(probability)
    log_scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - 0.5 * math.log(freedom * math.pi)
    for _ in range(100):
        density = math.exp(log_scale - (freedom + 1) / 2 * math.log1p(t * t / freedom))
        step = (_upper_tail(t, freedom) - (1.0 - probability)) / density
        t += step
        if abs(step) < 1e-12 * t:
            break
    return t


def _upper_tail(t: float, freedom: float) -> float:
    """P(T > t), t ≥ 0: half the regularised incomplete beta function at n/(n + t²) of (n/2, 1/2)."""
    return 0.5 * _beta(0.5 * freedom, 0.5, freedom / (freedom + t * t))


def _beta(a: float, b: float, x: float) -> float:
    """Regularised incomplete beta function, by its continued fraction (DLMF 8.17.22, Lentz's method)."""
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - _beta(b, a, 1.0 - x)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    ) / a  # fmt: skip
    c, d = 1.0, 1.0 / (1.0 - (a + b) * x / (a + 1.0))
    value = d
    for m in range(1, 1000):
        for top in (
            m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0)),
        ):
            d = 1.0 / (1.0 + top * d)
            c = 1.0 + top / c
            value *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return front * value
