"""The median of repeated timings, how well it is known, and which samples stand apart.

Timings have long right tails, so nothing here assumes a normal distribution: the confidence interval of the median
comes from order statistics (the number of samples below the median is binomial with p = 1/2; David and Nagaraja,
Order Statistics, 7.1), outliers from the median absolute deviation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["OUTLIER_DEVIATIONS", "Summary", "median", "median_interval", "summarize"]

CONFIDENCE = 0.95
#: a sample further from the median than this many scaled median absolute deviations is an outlier
OUTLIER_DEVIATIONS = 5.0
#: MAD of a normal distribution times this is its standard deviation
NORMAL = 1.4826
#: deviations below this share of the median are the timer's resolution, not outliers
LEAST_SHARE = 0.005


def median(samples: Sequence[float]) -> float:
    """Median of at least one sample."""
    ordered = sorted(samples)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else 0.5 * (ordered[half - 1] + ordered[half])


def median_interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Distribution-free confidence interval of the median, from order statistics.

    Returns the narrowest symmetric pair of order statistics that covers at least `confidence`; for fewer than six
    samples none does, and the interval is unbounded.
    """
    ordered = sorted(samples)
    count = len(ordered)
    tail, below = 0.0, -1
    # rank r (from 0) from each end misses the median with probability 2·P(Binomial(count, 1/2) <= r)
    for rank in range(count // 2):
        tail += math.exp(
            math.lgamma(count + 1) - math.lgamma(rank + 1) - math.lgamma(count - rank + 1) - count * math.log(2)
        )
        if 2 * tail > 1 - confidence:
            break
        below = rank
    if below < 0:
        return 0.0, math.inf
    return ordered[below], ordered[count - 1 - below]


@dataclass(frozen=True)
class Summary:
    """Median [s] of `samples` timings, its confidence interval, and the samples that stand apart."""

    median_s: float
    low_s: float
    high_s: float
    samples: int
    outliers: tuple[float, ...]

    @property
    def half_width(self) -> float:
        """Half the width of the interval over the median; infinite while there are too few samples."""
        return (self.high_s - self.low_s) / (2.0 * self.median_s)


def summarize(samples: Sequence[float]) -> Summary:
    """Summary of at least one positive timing [s]. Outliers are reported, and stay in the median."""
    middle = median(samples)
    low, high = median_interval(samples)
    spread = NORMAL * median([abs(sample - middle) for sample in samples])
    limit = max(OUTLIER_DEVIATIONS * spread, LEAST_SHARE * middle)
    outliers = tuple(sample for sample in samples if abs(sample - middle) > limit)
    return Summary(middle, low, high, len(samples), outliers)
