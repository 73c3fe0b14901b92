"""Numbers in words: times, shares and amounts as tables and reports show them."""

from __future__ import annotations

__all__ = ["amount", "counted", "percent", "show_time"]


def show_time(us: float) -> str:
    """A time with a unit that leaves three to six digits."""
    for factor, unit in ((1.0, "µs"), (1e3, "ms")):
        if abs(us) < 1e4 * factor:
            return f"{us / factor:.4g} {unit}" if abs(us) < 1e3 * factor else f"{us / factor:.0f} {unit}"
    return f"{us / 1e6:.4g} s"


def percent(share: float, digits: int = 1) -> str:
    """A share of 1 as a percentage."""
    return f"{100 * share:.{digits}f} %"


def amount(value: float | None, unit: str) -> str:
    """A count of bytes or FLOPs with a decimal prefix; a question mark for an unknown one."""
    if value is None:
        return "?"
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.4g} {prefix}{unit}"
    return f"{value:.4g} {unit}"


def counted(number: int, noun: str) -> str:
    """A number of things, whose plural takes an s: ``"1 row"``, ``"2 rows"``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
