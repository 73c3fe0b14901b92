"""What the attribution of one op says: shares, evidence, cycle accounting, and how to get them again."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sparsesim.attribution.causes import CLASSES, bit, cause
from sparsesim.protocol import Protocol
from sparsesim.workload import Gemm

__all__ = ["Attribution", "Evidence", "class_shares", "log_mean", "percent_of", "ranked", "share_notes"]

#: a gap [ln] below which shares are not given in per cent of it
SMALL_GAP = 1e-6
#: a negative share [ln] that is not worth a sentence
SMALL_SHARE = 5e-4
#: of the largest share
USELESS_ALONE = "{} has the largest share, but removing it alone gains nothing: it pays with others removed"


def log_mean(x: float, y: float) -> float:
    """Logarithmic mean (x - y) / ln(x / y); x if both are equal.

    Turns a share of ln(x / y) into its part of x - y, and stays finite where the two are close.
    """
    ratio = math.log(x / y)
    return (x - y) / ratio if abs(ratio) > 1e-9 else x


def percent_of(shares: Mapping[str, float], gap: float) -> dict[str, float] | None:
    """Shares in per cent of the gap; None if nothing was lost."""
    return {name: 100.0 * share / gap for name, share in shares.items()} if gap > SMALL_GAP else None


@dataclass(frozen=True)
class Evidence:
    """What idealising one cause alone changes, and what it costs when everything else is ideal.

    Times in µs as the protocol reports them; counters of both runs before and after. `speedup_others_ideal`
    is the speedup with all causes but this one idealised.
    """

    cause: str
    dense_us: tuple[float, float]
    sparse_us: tuple[float, float]
    speedup: tuple[float, float]
    speedup_others_ideal: float
    dense_counters: dict[str, tuple[float, float]]
    sparse_counters: dict[str, tuple[float, float]]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "cause": self.cause,
            "dense_us": list(self.dense_us),
            "sparse_us": list(self.sparse_us),
            "speedup": list(self.speedup),
            "speedup_others_ideal": self.speedup_others_ideal,
            "dense_counters": {name: list(pair) for name, pair in self.dense_counters.items()},
            "sparse_counters": {name: list(pair) for name, pair in self.sparse_counters.items()},
        }


@dataclass(frozen=True)
class Attribution:
    """Where the speedup of one op went.

    shares : cause -> ln share of the gap ln(nominal / speedup); they sum to it. Negative: the dense baseline
        loses more to this cause than the sparse run
    percent : the same in per cent of the gap, None where there is no gap
    lost_us : the same as time: they sum to `time_us` - `dense_time_us` / `nominal_speedup`
    accounting : run -> owner -> per cent of its SM-cycles. Another view, never to be mixed with shares
    bottleneck : class of what binds the run: the server that is busy for most of its time, else "occupancy"; "launch"
        where launch costs are most of it; "software" after a fallback
    baseline : how the dense library picked its kernel
    residual : ln of the reported speedup over that of the counterfactual runs with nothing idealised; it has
        been removed by scaling (see `launches`)
    engine_runs : event-loop runs that this took
    dense_times, sparse_times : seconds of both runs for every set of causes
    """

    op: Gemm
    gpu: str
    stack: str
    protocol: Protocol
    path: str
    reason: str
    reason_text: str
    time_us: float
    dense_time_us: float
    nominal_speedup: float
    shares: dict[str, float]
    evidence: tuple[Evidence, ...]
    accounting: dict[str, dict[str, float]]
    bottleneck: str
    residual: float
    engine_runs: int
    baseline: str
    dense_times: np.ndarray = field(compare=False, repr=False)
    sparse_times: np.ndarray = field(compare=False, repr=False)

    def __post_init__(self) -> None:
        total = math.fsum(self.shares.values())
        if abs(total - self.gap) > 1e-9:
            raise AssertionError(f"shares sum to {total}, expected {self.gap}")

    @property
    def speedup(self) -> float:
        """Effective speedup."""
        return self.dense_time_us / self.time_us

    @property
    def gap(self) -> float:
        """ln(nominal / effective speedup)."""
        return math.log(self.nominal_speedup) - math.log(self.speedup)

    @property
    def percent(self) -> dict[str, float] | None:
        """Shares in per cent of the gap."""
        return percent_of(self.shares, self.gap)

    @property
    def lost_us(self) -> dict[str, float]:
        """Shares as time [µs]."""
        scale = log_mean(self.time_us, self.dense_time_us / self.nominal_speedup)
        return {name: share * scale for name, share in self.shares.items()}

    @property
    def total_lost_us(self) -> float:
        """Time beyond that at nominal speedup [µs]."""
        return self.time_us - self.dense_time_us / self.nominal_speedup

    @property
    def classes(self) -> dict[str, float]:
        """ln shares summed by first-principles class."""
        return class_shares(self.shares)

    def ranked(self) -> list[tuple[str, float]]:
        """(cause, ln share) of the causes with a share, largest first."""
        return ranked(self.shares)

    @property
    def command(self) -> str:
        """The command that reproduces this."""
        op, clock = self.op, self.protocol.clock
        words = [f"sparsesim explain --gpu {self.gpu} -m {op.m} -n {op.n} -k {op.k}"]
        words += [f"--batch {op.batch}"] if op.batch != 1 else []
        words.append(f"--dtype {op.dtype} --pattern {shlex.quote(op.pattern)} --stack {self.stack}")
        words += [f"--acc {op.acc_dtype}"] if op.acc_dtype else []
        words.append(f"--timing {self.protocol.timing} --l2 {self.protocol.l2}")
        words += [f"--clock {clock}"] if clock != "free" else []
        words += [f"--baseline {self.baseline}"] if self.baseline != "heuristic" else []
        return " ".join(words)

    @property
    def agrees(self) -> bool | None:
        """Whether the class of the largest share is that of the bottleneck; None if nothing was lost."""
        worst = next(((name, share) for name, share in self.ranked() if share > SMALL_SHARE), None)
        return None if worst is None else cause(worst[0]).kind == self.bottleneck

    def idealised(self, names: Iterable[str]) -> tuple[float, float]:
        """(dense, sparse) time [µs] with the causes called `names` idealised. Raises KeyError for another name."""
        mask = 0
        for name in names:
            mask |= bit(name)
        return float(self.dense_times[mask]) * 1e6, float(self.sparse_times[mask]) * 1e6

    def notes(self) -> list[str]:
        """One sentence for each thing that a reader would otherwise get wrong."""
        evidence = {item.cause: item for item in self.evidence}
        notes = share_notes(self.shares, self.gap, evidence)
        if self.shares["fallback"]:
            notes.append(f"the op ran dense: {self.reason_text}")
        if self.agrees is False:
            worst = self.ranked()[0][0]
            notes.append(
                f"bound by {self.bottleneck}, but {worst} has the largest share: dense and sparse are bound alike, or "
                f"what is idealised uncovers the next limit"
            )
        worst, share = next(iter(self.ranked()), ("", 0.0))
        if share > SMALL_SHARE and evidence[worst].speedup[1] <= evidence[worst].speedup[0] * (1.0 + SMALL_SHARE):
            notes.append(
                f"{worst} has the largest share, but removing it alone gains nothing: it pays with others removed"
            )
        if "power" in evidence:
            clocks = [
                counters["clock_mhz"]
                for counters in (evidence["power"].sparse_counters, evidence["power"].dense_counters)
            ]
            if any(before < after for before, after in clocks):
                notes.append(
                    f"the power limit holds the clock at {clocks[0][0]:.0f} MHz of {clocks[0][1]:.0f} (dense "
                    f"{clocks[1][0]:.0f}): what is made faster also draws more power, and may gain less than it should"
                )
        return notes

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        op = self.op
        return {
            "name": op.name,
            "gpu": self.gpu,
            "stack": self.stack,
            "m": op.m,
            "n": op.n,
            "k": op.k,
            "batch": op.batch,
            "dtype": op.dtype,
            "pattern": op.pattern,
            "timing": self.protocol.timing,
            "l2": self.protocol.l2,
            "clock": self.protocol.clock,
            "path": self.path,
            "reason": self.reason,
            "reason_text": self.reason_text,
            "time_us": self.time_us,
            "dense_time_us": self.dense_time_us,
            "speedup": self.speedup,
            "nominal_speedup": self.nominal_speedup,
            "gap_ln": self.gap,
            "shares_ln": dict(self.shares),
            "shares_percent": self.percent,
            "lost_us": self.lost_us,
            "total_lost_us": self.total_lost_us,
            "classes_ln": self.classes,
            "evidence": [
                {**item.to_dict(), "command": f"{self.command} --idealise {item.cause}"} for item in self.evidence
            ],
            "accounting_percent": self.accounting,
            "bottleneck": self.bottleneck,
            "bottleneck_agrees": self.agrees,
            "baseline": self.baseline,
            "residual_ln": self.residual,
            "engine_runs": self.engine_runs,
            "notes": self.notes(),
            "command": self.command,
        }


def ranked(shares: Mapping[str, float]) -> list[tuple[str, float]]:
    """(cause, share) of the causes with a share, largest first."""
    return sorted(((name, s) for name, s in shares.items() if s != 0.0), key=lambda item: -item[1])


def class_shares(shares: Mapping[str, float]) -> dict[str, float]:
    """Shares summed by first-principles class."""
    return {kind: math.fsum(share for name, share in shares.items() if cause(name).kind == kind) for kind in CLASSES}


def share_notes(shares: Mapping[str, float], gap: float, evidence: Mapping[str, Evidence] | None = None) -> list[str]:
    """Sentences on negative shares and on a speedup beyond the nominal one."""
    found = evidence or {}
    notes = [
        f"{name}: negative ({share:+.4f} ln), {_why_negative(name, found.get(name))}"
        for name, share in ranked(shares)
        if share < -SMALL_SHARE
    ]
    if gap < -SMALL_GAP:
        notes.append("the speedup is beyond the nominal one: the baseline loses more than the sparse run")
    return notes


def _why_negative(name: str, evidence: Evidence | None) -> str:
    if name in ("fallback", "conversion", "pattern"):
        return "the sparse path without it would be slower still: there is nothing to win by mending it alone"
    if evidence is not None and evidence.dense_us[0] == evidence.dense_us[1]:
        return "no limit of this run: it would hold the dense run back more once other limits are gone"
    return "the baseline's own weakness: dense loses more to it than sparse"
