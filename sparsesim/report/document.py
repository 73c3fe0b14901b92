"""What a report says, as plain data: every number of the page, with the command that makes it again."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["SCHEMA", "Answer", "Cause", "Layer", "Report"]

SCHEMA = "sparsesim-report/1"


@dataclass(frozen=True)
class Answer:
    """The question, and the answer in two lines; speedups with their 90 % interval."""

    question: str
    first: str
    second: str
    speedup: float
    low: float
    high: float
    nominal: float
    mended: float
    time_us: float
    dense_time_us: float


@dataclass(frozen=True)
class Layer:
    """A row of the matrix of layers: ops of one shape, path and reason.

    name, more : the first of them, and how many further ones
    state : sparse, fallback or dense
    time_us, share : kernel time of all launches [µs], and of all kernel time
    """

    name: str
    more: int
    shape: str
    dtype: str
    pattern: str
    state: str
    reason: str
    text: str
    launches: int
    time_us: float
    dense_time_us: float
    share: float
    speedup: float
    nominal: float
    bound_by: str


@dataclass(frozen=True)
class Cause:
    """A step of the waterfall.

    share_ln : of ln(promised / delivered); negative where the dense baseline loses more
    before, after : speedup in front of the step and behind it
    lost_us : time that it costs [µs]
    """

    cause: str
    kind: str
    meaning: str
    share_ln: float
    of_gap: float | None
    before: float
    after: float
    lost_us: float


@dataclass(frozen=True)
class Report:
    """One report; see `build_report`.

    losses : the waterfall: promised and delivered speedup, its causes, and how much of the run it covers
    commands : what makes the numbers of each section again, by the section's name
    notes : what a reader would otherwise get wrong
    """

    title: str
    answer: Answer
    layers: tuple[Layer, ...]
    losses: dict[str, Any]
    causes: tuple[Cause, ...]
    impact: dict[str, Any]
    counters: dict[str, Any]
    others: tuple[dict[str, Any], ...]
    provenance: dict[str, Any]
    commands: dict[str, list[str]]
    notes: tuple[str, ...]
    schema: str = field(default=SCHEMA)

    def to_dict(self) -> dict[str, Any]:
        """Plain data; what is plain already is shared, for the counters of a long trace are large."""
        return {
            "schema": self.schema,
            "title": self.title,
            "answer": asdict(self.answer),
            "layers": [asdict(layer) for layer in self.layers],
            "losses": self.losses,
            "causes": [asdict(step) for step in self.causes],
            "impact": self.impact,
            "counters": self.counters,
            "others": list(self.others),
            "provenance": self.provenance,
            "commands": self.commands,
            "notes": list(self.notes),
        }
