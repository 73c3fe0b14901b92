"""Bars of a report as inline SVG: places and widths in per cent of a scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sparsesim.report.document import Answer, Cause

__all__ = ["Bar", "cause_bars", "speedup_bars"]


@dataclass(frozen=True)
class Bar:
    """A bar of a figure.

    start, width : in per cent of the scale
    low, high : of an interval drawn over it, or None
    kind : what it stands for; the style of its colour
    """

    label: str
    text: str
    start: float
    width: float
    kind: str
    low: float | None = None
    high: float | None = None


def speedup_bars(answer: Answer) -> tuple[list[Bar], float]:
    """Promised, with fallbacks mended, and delivered speedup on a scale from 0; and where 1× is on it."""
    top = max(answer.nominal, answer.mended, answer.speedup, min(answer.high, 2.0 * answer.nominal), 1.0) * 1.02

    def at(value: float) -> float:
        return round(100.0 * min(value, top) / top, 3)

    bars = [
        Bar("promised", f"{answer.nominal:.2f}×", 0.0, at(answer.nominal), "promised"),
        Bar("fallbacks mended", f"{answer.mended:.2f}×", 0.0, at(answer.mended), "mended"),
        Bar(
            "delivered", f"{answer.speedup:.2f}×", 0.0, at(answer.speedup), "delivered", at(answer.low), at(answer.high)
        ),
    ]
    return bars, at(1.0)


def cause_bars(causes: Sequence[Cause], promised: float, delivered: float) -> list[Bar]:
    """The steps of the waterfall on a logarithmic scale, where their widths add up."""
    levels = [math.log(value) for value in (promised, delivered, *(step.after for step in causes))]
    low, high = min(levels), max(levels)
    span = (high - low) or 1.0

    def at(value: float) -> float:
        return 100.0 * (math.log(value) - low) / span

    bars = []
    for step in causes:
        left, right = sorted((at(step.before), at(step.after)))
        kind = "loss" if step.share_ln > 0 else "gain"
        text = f"from {step.before:.3f}× to {step.after:.3f}×"
        bars.append(Bar(step.cause, text, round(left, 3), round(max(right - left, 0.4), 3), kind))
    return bars
