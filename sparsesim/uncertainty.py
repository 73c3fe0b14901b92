"""Intervals of predicted times, from the residuals of measured rows.

`residuals.toml` (written by bench/accuracy.py) holds, for each GPU family, path and size class, the 5 % and 95 %
quantiles of ln(predicted / measured). A prediction p then lies in [p·exp(−q95), p·exp(−q05)] of the measured time
in 90 % of rows like those. They come from half of the shapes; the other half checks them. Families without measured
rows take the pooled quantiles.
"""

from __future__ import annotations

import hashlib
import math
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

__all__ = ["held_out", "interval_from", "interval_us", "size_class"]

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


def held_out(m: int, n: int, k: int) -> bool:
    """Whether a shape is kept out of the residuals, so that the intervals can be checked on it: half are, by hash."""
    return hashlib.sha256(f"{m}x{n}x{k}".encode()).digest()[8] % 2 == 1


def interval_us(family: str, sparse: bool, predicted_us: float) -> tuple[float, float]:
    """90 % interval [µs] of a time predicted for a GPU of `family`."""
    return interval_from(_residuals()["quantiles"], family, sparse, predicted_us)


def interval_from(table: Mapping[str, Any], family: str, sparse: bool, predicted_us: float) -> tuple[float, float]:
    """The same from `table`[family][path][size class] = (5 %, 95 %) quantiles of ln(predicted / measured)."""
    path = "sparse" if sparse else "dense"
    size = size_class(predicted_us)
    by_path = table.get(family, table[POOLED]).get(path) or table[POOLED][path]
    low, high = by_path.get(size) or table[POOLED][path][size]
    return predicted_us * math.exp(-high), predicted_us * math.exp(-low)
