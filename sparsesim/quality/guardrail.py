"""Guardrails: how far quality drifts from the dense baseline, over a task and in its worst slice.

Drift is a loss: positive = worse than the baseline. Its paired 95 % interval is held against an allowance: pass where
it lies wholly inside, fail where wholly outside, else inconclusive. Slices are judged together: with n of them each
has an interval of level 1 - 0.05/n (Bonferroni), so that a slice that looks worst by chance fails no model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sparsesim.errors import Problem, UserError
from sparsesim.quality.record import Entry, QualityFile
from sparsesim.quality.stats import LEVEL, Interval

__all__ = ["FAIL", "INCONCLUSIVE", "PASS", "Allowance", "Drift", "baseline_of", "check", "precisions"]

PASS, FAIL, INCONCLUSIVE = "pass", "fail", "inconclusive"
#: worst first
ORDER = (FAIL, INCONCLUSIVE, PASS)


@dataclass(frozen=True)
class Allowance:
    """The most that quality may fall: in the metric's unit, or as a share of the baseline's value if `relative`."""

    value: float
    relative: bool = False

    @classmethod
    def parse(cls, text: str, what: str = "allowance") -> Allowance:
        """``0.005`` in the metric's unit, or ``1%`` of the baseline's value."""
        number = text.strip().removesuffix("%")
        try:
            value = float(number)
        except ValueError:
            value = -1.0
        if not 0.0 <= value < math.inf:
            raise UserError(Problem.line(what, "", "a number of at least 0, or one with %", text))
        return cls(value / 100, True) if number != text.strip() else cls(value)

    def of(self, baseline: float) -> float:
        """In the metric's unit."""
        return self.value * abs(baseline) if self.relative else self.value


@dataclass(frozen=True)
class Drift:
    """Loss of one candidate on one task.

    `loss` over the whole task; `slices` by name, at the level of `slice_level`; `allowed` and `allowed_slice` in the
    metric's unit.
    """

    candidate: Entry
    baseline: Entry
    baseline_value: float
    loss: Interval
    allowed: float
    slices: dict[str, Interval]
    allowed_slice: float

    @property
    def verdict(self) -> str:
        """Of the whole task."""
        return _verdict(self.loss, self.allowed)

    @property
    def worst(self) -> tuple[str, Interval] | None:
        """The slice whose verdict is worst, of those the one that lost most."""
        return max(self.slices.items(), key=self._badness) if self.slices else None

    def _badness(self, item: tuple[str, Interval]) -> tuple[int, float]:
        return -ORDER.index(_verdict(item[1], self.allowed_slice)), item[1].mean

    @property
    def worst_verdict(self) -> str | None:
        """Of all slices together; None without slices."""
        return None if self.worst is None else _verdict(self.worst[1], self.allowed_slice)

    @property
    def state(self) -> str:
        """The worse of both."""
        return next(state for state in ORDER if state in (self.verdict, self.worst_verdict))

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        worst = self.worst
        return {
            "candidate": self.candidate.key, "baseline": self.baseline.key, "task": self.candidate.task,
            "metric": self.candidate.metric, "better": self.candidate.better, "baseline_value": self.baseline_value,
            **self.loss.to_dict(), "allowed": self.allowed, "verdict": self.verdict,
            "worst_slice": None if worst is None else {
                "name": worst[0], **worst[1].to_dict(), "allowed": self.allowed_slice,
                "verdict": self.worst_verdict, "slices": len(self.slices),
            },
            "state": self.state,
        }  # fmt: skip


def _verdict(loss: Interval, allowed: float) -> str:
    if loss.low is None or loss.high is None:
        return INCONCLUSIVE
    return PASS if loss.high <= allowed else FAIL if loss.low > allowed else INCONCLUSIVE


def baseline_of(file: QualityFile, candidate: Entry) -> Entry | None:
    """The dense model that `candidate` was made of: same name and task, the study's type; None if there is none."""
    return next(
        (e for e in file.entries if e.dense and not e.dtype and (e.model, e.task) == (candidate.model, candidate.task)),
        None,
    )


def check(
    file: QualityFile,
    allowance: Allowance,
    slice_allowance: Allowance | None = None,
    candidates: Sequence[str] = (),
    baseline: str | None = None,
) -> list[Drift]:
    """Hold every candidate against its dense baseline, on each task that both were measured on.

    Parameters
    ----------
    allowance, slice_allowance : for a task, and for each of its slices (the same if None)
    candidates : keys ``model/pattern/method[/dtype]``; all but the baselines if none
    baseline : key of the one baseline; by default the dense model of the candidate's own name

    Raises
    ------
    UserError
        Unknown keys, or nothing to compare.
    """
    for key in (*candidates, *([baseline] if baseline else [])):
        file.find(key)
    drifts = []
    for entry in file.entries:
        if candidates and entry.key not in candidates:
            continue
        base: Entry | None
        if baseline:
            base = next((e for e in file.entries if e.key == baseline and e.task == entry.task), None)
        else:
            base = baseline_of(file, entry)
        if base is None or base is entry or (not candidates and entry.dense and not entry.dtype):
            continue
        drifts.append(_drift(file, entry, base, allowance, slice_allowance or allowance))
    if not drifts:
        found = ", ".join(candidates) or "none"
        raise UserError(
            f"{file.where}: expected a candidate and a dense baseline of its name and task, found no pair for {found}"
        )
    return drifts


def _drift(file: QualityFile, entry: Entry, base: Entry, allowance: Allowance, slices: Allowance) -> Drift:
    value = file.own(base).mean
    count = len(set(file.task(entry.task).slices))
    by_slice = file.by_slice(entry, base, 1.0 - (1.0 - LEVEL) / max(1, count))
    return Drift(
        candidate=entry,
        baseline=base,
        baseline_value=value,
        loss=-file.difference(entry, [(1.0, base)]),
        allowed=allowance.of(value),
        slices={name: -interval for name, interval in by_slice.items()},
        allowed_slice=slices.of(value),
    )


def precisions(drifts: Sequence[Drift]) -> dict[str, str]:
    """Precision policy: type → the worst state of its candidates, of those that are stated in a type."""
    found: dict[str, str] = {}
    for drift in drifts:
        if drift.candidate.dtype:
            states = (found.get(drift.candidate.dtype, PASS), drift.state)
            found[drift.candidate.dtype] = next(state for state in ORDER if state in states)
    return found
