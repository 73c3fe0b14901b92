"""Intervals of predicted times, from the residuals of measured rows.

`residuals.toml` (written by bench/accuracy.py) holds, for each GPU family, path and size class, the 5 % and 95 %
quantiles of ln(predicted / measured). A prediction p then lies in [p·exp(−q95), p·exp(−q05)] of the measured time
in 90 % of rows like those. Families without measured rows take the pooled quantiles.
"""

from __future__ import annotations

import math
import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Any

__all__ = ["interval_us", "size_class"]

RESIDUALS = Path(__file__).resolve().parent / "residuals.toml"
#: lower bounds [µs] of the size classes
CLASSES = (("small", 0.0), ("medium", 10.0), ("large", 100.0))
POOLED = "all"


def size_class(time_us: float) -> str:
    """Size class of a time: below 10 µs, below 100 µs, and above."""
    return [name for name, least in CLASSES if time_us >= least][-1]


@lru_cache(maxsize=1)
def _residuals() -> dict[str, Any]:
    with RESIDUALS.open("rb") as handle:
        return tomllib.load(handle)


def interval_us(family: str, sparse: bool, predicted_us: float) -> tuple[float, float]:
    """90 % interval [µs] of a time predicted for a GPU of `family`."""
    table = _residuals()["quantiles"]
    path = "sparse" if sparse else "dense"
    by_path = table.get(family, table[POOLED]).get(path) or table[POOLED][path]
    low, high = by_path.get(size_class(predicted_us)) or table[POOLED][path][size_class(predicted_us)]
    return predicted_us * math.exp(-high), predicted_us * math.exp(-low)
