"""Versions of software: ``2.12`` is newer than ``2.6``; specifiers such as ``>=2.3,<2.12``."""

from __future__ import annotations

import re

__all__ = ["newest_before", "parse_version", "satisfies"]

_VERSION = re.compile(r"\d{1,9}(\.\d{1,9}){0,3}")
_PART = re.compile(r"(<=|>=|==|<|>)\s*(\d{1,9}(?:\.\d{1,9}){0,3})")


def parse_version(text: str) -> tuple[int, ...] | None:
    """``"2.12"`` → (2, 12); None if `text` is no dotted number."""
    return tuple(int(part) for part in text.split(".")) if _VERSION.fullmatch(text) else None


def _padded(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    size = max(len(left), len(right))
    return left + (0,) * (size - len(left)), right + (0,) * (size - len(right))


def satisfies(version: str, specifier: str) -> bool:
    """Whether `version` meets every part of `specifier` (``>=2.3,<2.12``).

    ``==2.6`` and ``<=2.6`` take 2.6.1 too: a part names a release series.

    Raises
    ------
    ValueError
        If either is malformed.
    """
    own = parse_version(version)
    if own is None:
        raise ValueError(f"expected a dotted version, found {version!r}")
    for part in specifier.split(","):
        found = _PART.fullmatch(part.strip())
        if found is None:
            raise ValueError(f"expected parts such as >=2.3, found {part!r}")
        other = parse_version(found[2])
        assert other is not None
        series, other_series = _padded(own, other)
        cut = own[: len(other)] if len(own) >= len(other) else series
        limit = other if len(own) >= len(other) else other_series
        met = {
            "<": series < other_series,
            ">=": series >= other_series,
            "<=": cut <= limit,
            ">": cut > limit,
            "==": cut == limit,
        }[found[1]]
        if not met:
            return False
    return True


def newest_before(date: str, dates: dict[str, str]) -> str | None:
    """The newest version that was out in the month `date` (``YYYY-MM`` or ``YYYY``); None if none was.

    dates : version → month of its release; a year stands for its end.
    """
    month = date if "-" in date else f"{date}-12"
    out = [version for version, released in dates.items() if released <= month]
    return max(out, key=lambda version: parse_version(version) or ()) if out else None
