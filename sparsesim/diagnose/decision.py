"""Ship, hold or roll back: what each figure says, and the rule that joins them.

A figure of a simulated pair is known to the model's error, so its change has an interval. It *fails* where even the
good end is worse than the tolerance, is *undecided* where only the change itself is, and passes else. Quality passes,
fails or is undecided as `quality.QualityDrift.state` says.

    roll back   something fails, and no fix that goes forward mends it
    hold        something fails but a fix that goes forward mends it; or something is undecided; or only the share of
                the promise has fallen
    ship        everything passes
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sparsesim.diagnose.fixes import Fix
from sparsesim.diagnose.quality import QualityDrift

__all__ = ["HOLD", "ROLL_BACK", "SHIP", "STATUS", "Decision", "Figure", "decide"]

SHIP, HOLD, ROLL_BACK = "ship", "hold", "roll back"
#: exit status with ``--exit-status``, as for ``gate``
STATUS = {SHIP: 0, ROLL_BACK: 1, HOLD: 3}


#: |ln| below which a figure has not moved
STILL = 0.005


@dataclass(frozen=True)
class Figure:
    """A figure of both runs; `change` is ln(candidate / base), `error` the half-width of its interval [ln]."""

    id: str
    title: str
    unit: str
    base: float
    candidate: float
    change: float
    error: float
    tolerance: float

    @property
    def state(self) -> str:
        """``pass``, ``fail`` or ``undecided``."""
        limit = -self.tolerance
        if self.change >= limit:
            return "pass"
        return "fail" if self.change + self.error < limit else "undecided"

    def to_dict(self) -> dict[str, Any]:
        """Plain data; low and high bound the ratio candidate / base."""
        return {
            "figure": self.id, "title": self.title, "unit": self.unit, "base": self.base, "candidate": self.candidate,
            "change_ln": self.change, "ratio": math.exp(self.change), "low": math.exp(self.change - self.error),
            "high": math.exp(self.change + self.error), "tolerance_ln": self.tolerance, "state": self.state,
        }  # fmt: skip


@dataclass(frozen=True)
class Decision:
    """What to do, and why: one sentence for each figure that does not pass."""

    verdict: str
    reasons: tuple[str, ...]

    @property
    def exit_status(self) -> int:
        """0 ship, 1 roll back, 3 hold."""
        return STATUS[self.verdict]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"verdict": self.verdict, "exit_status": self.exit_status, "reasons": list(self.reasons)}


def decide(figures: Sequence[Figure], drifts: Sequence[QualityDrift], fixes: Sequence[Fix]) -> Decision:
    """The decision; see the module."""
    judged = [figure for figure in figures if figure.id != "delivered"]
    reasons = [_sentence(figure) for figure in judged if figure.state != "pass"]
    reasons += [_drift_sentence(drift) for drift in drifts if drift.state != "pass"]
    failed = [figure for figure in judged if figure.state == "fail"]
    spoilt = any(drift.state == "fail" for drift in drifts)
    if failed or spoilt:
        worst = min((figure.change for figure in failed), default=0.0)
        mends = [fix for fix in fixes if fix.takes_back is None and worst + fix.gain >= -_tolerance(figures)]
        if spoilt or not mends:
            return Decision(ROLL_BACK, tuple(reasons))
        return Decision(HOLD, (*reasons, f"a fix that keeps the change mends it: {mends[0].title}"))
    if reasons:
        return Decision(HOLD, tuple(reasons))
    if buys_nothing(figures):
        figure = next(figure for figure in figures if figure.id == "delivered")
        lost = f"{figure.title} falls from {figure.base:.1f} to {figure.candidate:.1f} %"
        return Decision(HOLD, (f"{lost}: what was given up for the larger promise buys nothing",))
    return Decision(SHIP, ("no figure is worse than the base by more than the tolerance",))


def buys_nothing(figures: Sequence[Figure]) -> bool:
    """Whether more is promised than before and no more is given: only the share of the promise has fallen."""
    change = {figure.id: figure.change for figure in figures}
    return change.get("delivered", 0.0) <= -STILL and abs(change["speedup"]) < STILL and change["throughput"] > -STILL


def _tolerance(figures: Sequence[Figure]) -> float:
    return max((figure.tolerance for figure in figures), default=0.0)


def _sentence(figure: Figure) -> str:
    low, high = (100 * math.expm1(figure.change + sign * figure.error) for sign in (-1, 1))
    change = 100 * math.expm1(figure.change)
    end = (
        f"even the good end of the interval is worse than the tolerance of {100 * -math.expm1(-figure.tolerance):.3g} %"
        if figure.state == "fail"
        else "within what the model may be wrong by: measure the slice"
    )
    return (
        f"{figure.title} {figure.base:.4g} → {figure.candidate:.4g} {figure.unit}: {change:+.1f} % "
        f"({low:+.1f} to {high:+.1f}); {end}"
    )


def _drift_sentence(drift: QualityDrift) -> str:
    known = drift.low is not None and drift.high is not None
    interval = f"{drift.low:.4g} to {drift.high:.4g}" if known else "no interval"
    end = "none of the interval is within the allowance" if drift.state == "fail" else "undecided: take more samples"
    return (
        f"quality: {drift.metric}, slice {drift.slice}: {drift.base:.4g} → {drift.candidate:.4g}, "
        f"loss {drift.loss:.4g} ({interval}), allowed {drift.allowed:.3g}; {end}"
    )
