"""Gates against runs: pass where the whole interval is on the good side, fail where none of it is, else undecided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsesim.gates.metrics import Absent, Found, UnfitRun, find
from sparsesim.gates.policy import Gate, Policy
from sparsesim.quality.record import parse_quality
from sparsesim.textfiles import read_json

__all__ = ["EXIT", "GateReport", "Verdict", "judge", "read_run"]

PASS, FAIL, UNDECIDED = "pass", "fail", "undecided"
#: exit status of a report, worst first
EXIT = {FAIL: 1, UNDECIDED: 3, PASS: 0}


@dataclass(frozen=True)
class Verdict:
    """One gate against one run.

    `low` and `high` include the model error of simulated values. `margin` = distance of the value to the threshold,
    positive on the good side; None where no run has the metric.
    """

    gate: Gate
    state: str
    run: str
    why: str
    value: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def margin(self) -> float | None:
        """See the class."""
        if self.value is None:
            return None
        return self.value - self.gate.threshold if self.gate.at_least else self.gate.threshold - self.value

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        gate = self.gate
        return {
            "gate": gate.name, "metric": gate.metric, "state": self.state, "value": self.value, "low": self.low,
            "high": self.high, "min" if gate.at_least else "max": gate.threshold, "margin": self.margin,
            "owner": gate.owner, "rollback": gate.rollback if self.state != PASS else None, "run": self.run,
            "why": self.why,
        }  # fmt: skip


@dataclass(frozen=True)
class GateReport:
    """All verdicts of a policy."""

    policy: Policy
    verdicts: tuple[Verdict, ...]

    @property
    def state(self) -> str:
        """The worst state: one failure fails all, one undecided gate leaves all undecided."""
        states = {verdict.state for verdict in self.verdicts}
        return next(state for state in EXIT if state in states)

    @property
    def exit_status(self) -> int:
        """0 pass, 1 fail, 3 undecided."""
        return EXIT[self.state]

    def to_dict(self) -> dict[str, Any]:
        """Plain data in the form of the CLI's JSON."""
        return {
            "policy": self.policy.name,
            "state": self.state,
            "model_error": {kind.value: value for kind, value in self.policy.model_error.items()},
            "gates": [verdict.to_dict() for verdict in self.verdicts],
        }


def read_run(path: str | Path) -> dict[str, Any]:
    """A run's JSON document; raises UserError if it is none, and with every problem of a quality file."""
    document = read_json(Path(path), "a run's JSON")
    if "entries" in document:
        parse_quality(document, str(path))
    return document


def judge(policy: Policy, runs: Sequence[tuple[str, dict[str, Any]]]) -> GateReport:
    """Judge each gate against every run that has its metric; a gate that no run knows is undecided.

    So is one against a run that gives no number where the metric should be: what cannot be read is not passed over.
    """
    verdicts: list[Verdict] = []
    for gate in policy.gates:
        mine: list[Verdict] = []
        absent = ""
        for name, run in runs:
            try:
                found = find(run, gate.metric, gate.of, gate.path)
            except Absent as error:
                absent += f"; {name}: {error}"
                continue
            except UnfitRun as error:
                mine.append(Verdict(gate, UNDECIDED, name, str(error)))
                continue
            if found is not None:
                mine.append(_judge(policy, gate, name, found))
        verdicts += mine or [Verdict(gate, UNDECIDED, "", f"no run has {gate.path or gate.metric}{absent}")]
    return GateReport(policy, tuple(verdicts))


def _judge(policy: Policy, gate: Gate, run: str, found: Found) -> Verdict:
    error = policy.model_error.get(found.kind, 0.0)
    low, high = sorted((found.low, found.high))
    # an interval of few replications may reach below zero, where a factor widens the other way
    low = low / (1.0 + error) if low > 0 else low * (1.0 + error)
    high = high * (1.0 + error) if high > 0 else high / (1.0 + error)
    good, bad = (low, high) if gate.at_least else (high, low)
    if (good >= gate.threshold) if gate.at_least else (good <= gate.threshold):
        state, why = PASS, "the whole interval is on the good side"
    elif (bad < gate.threshold) if gate.at_least else (bad > gate.threshold):
        state, why = FAIL, "the whole interval is on the bad side"
    else:
        state, why = UNDECIDED, "the threshold is inside the interval"
    return Verdict(gate, state, run, why, found.value, low, high)
