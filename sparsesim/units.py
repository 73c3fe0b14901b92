"""Units of hardware files: one canonical unit for each dimension, and the factors to it.

SI prefixes are decimal (GB = 1e9 B), ``Ki``/``Mi``/``Gi`` are binary, always. A value is multiplied by
its unit's factor once, when a file is read; nothing downstream knows units other than the canonical ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, TypeGuard

__all__ = ["LARGEST_FIGURE", "UNITS", "is_figure", "is_number", "natural", "no_numbers", "to_canonical", "units_of"]

#: canonical unit -> {accepted unit: factor to the canonical one}
UNITS: dict[str, dict[str, float]] = {
    "-": {"-": 1.0},
    "Hz": {"Hz": 1.0, "kHz": 1e3, "MHz": 1e6, "GHz": 1e9},
    "W": {"W": 1.0, "mW": 1e-3},
    "J": {"J": 1.0, "nJ": 1e-9, "pJ": 1e-12, "fJ": 1e-15},
    "J/B": {"J/B": 1.0, "nJ/B": 1e-9, "pJ/B": 1e-12},
    "s": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9},
    "B": {
        "B": 1.0,
        "KB": 1e3,
        "MB": 1e6,
        "GB": 1e9,
        "KiB": 1024.0,
        "MiB": 1024.0**2,
        "GiB": 1024.0**3,
    },
    "B/s": {"B/s": 1.0, "MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12},
    "B/clk": {"B/clk": 1.0},
    "clk": {"clk": 1.0},
    "MAC/clk": {"MAC/clk": 1.0},
    "CTA/clk": {"CTA/clk": 1.0},
    "group/clk": {"group/clk": 1.0},
    "bit": {"bit": 1.0},
}


def units_of(canonical: str) -> tuple[str, ...]:
    """The units accepted where `canonical` is expected."""
    return tuple(UNITS[canonical])


def to_canonical(value: float, unit: str, canonical: str) -> float:
    """`value` in `unit`, expressed in `canonical`; raises KeyError for a unit of another dimension."""
    return value * UNITS[canonical][unit]


def natural(text: str) -> int | None:
    """The whole number that `text` spells in plain digits, or None; of any length Python would refuse to read it."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def is_number(value: Any) -> TypeGuard[int | float]:
    """Whether a value out of a file is a finite number that a float can hold; true and false are none.

    TOML, JSON and YAML have integers of any length, on which `float` and `math.isfinite` raise.
    """
    if type(value) not in (int, float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def no_numbers(document: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, value) of all that is written as a number in plain data and is none that JSON knows: NaN, infinities."""
    left = [(path, document)]
    while left:  # a file may be nested deeper than calls may be
        path, value = left.pop()
        if isinstance(value, dict):
            left += [(f"{path}.{key}", item) for key, item in reversed(value.items())]
        elif isinstance(value, list | tuple):
            left += [(f"{path}[{i}]", item) for i, item in reversed(list(enumerate(value)))]
        elif type(value) in (int, float) and not is_number(value):
            yield path, value


#: no measured figure is beyond it, and sums of squares of what is not are finite
LARGEST_FIGURE = 1e100


def is_figure(value: Any) -> TypeGuard[int | float]:
    """Whether a value out of a file is a number that can be squared and summed with others."""
    return is_number(value) and abs(value) <= LARGEST_FIGURE
