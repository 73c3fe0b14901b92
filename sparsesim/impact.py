"""What each dense fallback costs, and what mending it would bring: the run again with the op as the stack wants it.

For each op that fell back, changes are tried in order until one makes the stack run it sparse:

1. sides padded to the smallest multiples that do (the zeros are multiplied too), the weight given as operand A;
2. the weight pruned to a pattern of the datapath instead, padded if need be.

The workload then runs again with all changed ops of one reason, and with those of all reasons; the baseline stays that
of the ops as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from sparsesim.attribution.gemm import Attributor
from sparsesim.results_workload import OpRow, WorkloadResult
from sparsesim.runtime import run_workload
from sparsesim.simulator import Simulator
from sparsesim.sparsity import Pattern
from sparsesim.workload import Gemm, GemmError, Workload

__all__ = ["Impact", "Mended", "ReasonImpact", "fallback_impact"]


@dataclass(frozen=True)
class Mended:
    """One op that fell back, and the same op changed so that it runs sparse.

    how : the change in words; empty if none helps
    m, n, k, pattern : of the changed op
    now_us, mended_us : kernel time of all its launches, as it is and changed [µs]; None if no change helps
    """

    name: str
    reason: str
    how: str
    m: int
    n: int
    k: int
    pattern: str
    now_us: float
    mended_us: float | None


@dataclass(frozen=True)
class ReasonImpact:
    """All fallbacks of one reason.

    ops, mendable : how many ops, and for how many a change helps
    now_us, mended_us : kernel time of all of them, now and with the changes [µs]
    saved_us : makespan that the changes save [µs]; negative if the sparse path is slower
    speedup : of the workload with the changes, over the unchanged baseline
    """

    reason: str
    text: str
    ops: int
    mendable: int
    launches: int
    now_us: float
    time_share: float
    mended_us: float
    saved_us: float
    speedup: float
    layers: tuple[Mended, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


@dataclass(frozen=True)
class Impact:
    """Fallbacks by reason, most kernel time first, and the speedup with all changes that help at all."""

    reasons: tuple[ReasonImpact, ...]
    speedup: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"reasons": [reason.to_dict() for reason in self.reasons], "speedup_mended": self.speedup}


def fallback_impact(
    result: WorkloadResult,
    workload: Workload,
    simulator: Simulator,
    progress: Callable[[int, int], None] | None = None,
) -> Impact:
    """What the fallbacks of `result`, the run of `workload` on `simulator`, cost.

    Parameters
    ----------
    progress : callable, optional
        Called as progress(done, total) after each reason.
    """
    groups: dict[str, list[int]] = {}
    for place, row in enumerate(result.rows):
        if row.is_fallback:
            groups.setdefault(row.reason, []).append(place)
    changes: dict[Gemm, tuple[str, Gemm] | None] = {}
    changed: dict[int, Gemm] = {}
    for places in groups.values():
        for place in places:
            op = workload.ops[place]
            plain = replace(op, name="op", count=1, family="")
            if plain not in changes:
                changes[plain] = _change(simulator, plain)
            found = changes[plain]
            if found is not None:
                changed[place] = replace(found[1], name=op.name, count=op.count, family=op.family)
    reasons = []
    for done, (reason, places) in enumerate(groups.items(), 1):
        own = {place: changed[place] for place in places if place in changed}
        again = _again(result, workload, simulator, own)
        reasons.append(_reason(reason, places, result, workload, again, own, changes))
        if progress is not None:
            progress(done, len(groups))
    reasons.sort(key=lambda item: (-item.now_us, item.reason))
    helping = {
        place: op for item, places in zip(reasons, (groups[item.reason] for item in reasons), strict=True)
        if item.saved_us > 0.0
        for place, op in changed.items()
        if place in set(places)
    }  # fmt: skip
    best = _again(result, workload, simulator, helping)
    return Impact(tuple(reasons), result.dense.makespan_us / best.sparse.makespan_us)


def _again(
    result: WorkloadResult, workload: Workload, simulator: Simulator, changed: dict[int, Gemm]
) -> WorkloadResult:
    """The run with some ops changed."""
    if not changed:
        return result
    ops = tuple(changed.get(place, op) for place, op in enumerate(workload.ops))
    return run_workload(
        replace(workload, ops=ops), simulator, result.protocol, result.streams, result.graph, result.repeats
    )


def _change(simulator: Simulator, op: Gemm) -> tuple[str, Gemm] | None:
    """(how, op) of the first change that makes the stack run `op` sparse, or None."""
    key = "f16" if op.dtype == "bf16" else op.dtype
    natives = simulator.gpu.tensor.native_patterns.get(key, ())
    for pattern in (None, *natives):
        try:
            trial = op if pattern is None else op.with_pattern(pattern)
        except GemmError:  # k is no multiple of the group
            continue
        eligible = Attributor.eligible_form(simulator, trial)
        if eligible is not None and simulator.gemm(eligible).path == "sparse":
            return _how(op, eligible), eligible
    return None


def _how(op: Gemm, eligible: Gemm) -> str:
    """The difference between an op and its eligible form, in words."""
    words = []
    if Pattern.parse(op.pattern) != Pattern.parse(eligible.pattern):
        words.append(f"prune to {eligible.pattern} instead of {op.pattern}")
    m, n = (op.m, op.n) if op.sparse_operand == eligible.sparse_operand else (op.n, op.m)
    if op.sparse_operand != eligible.sparse_operand:
        words.append("compute the transposed product, so that the sparse operand is the weight (A)")
    sides = [
        f"{side} {old} → {new}"
        for side, old, new in (("m", m, eligible.m), ("n", n, eligible.n), ("k", op.k, eligible.k))
        if old != new
    ]
    if sides:
        words.append("pad " + ", ".join(sides))
    return "; ".join(words)


def _reason(
    reason: str,
    places: list[int],
    result: WorkloadResult,
    workload: Workload,
    again: WorkloadResult,
    own: dict[int, Gemm],
    changes: dict[Gemm, tuple[str, Gemm] | None],
) -> ReasonImpact:
    rows = [result.rows[place] for place in places]
    layers = tuple(_mended(place, result.rows[place], workload, again, own, changes) for place in places)
    now_us = math.fsum(row.kernel_us for row in rows)
    return ReasonImpact(
        reason=reason,
        text=str(rows[0].gemm["reason_text"]),
        ops=len(rows),
        mendable=len(own),
        launches=sum(row.launches for row in rows),
        now_us=now_us,
        time_share=now_us / result.sparse.kernel_us,
        mended_us=math.fsum(item.now_us if item.mended_us is None else item.mended_us for item in layers),
        saved_us=result.sparse.makespan_us - again.sparse.makespan_us,
        speedup=result.dense.makespan_us / again.sparse.makespan_us,
        layers=layers,
    )


def _mended(
    place: int,
    row: OpRow,
    workload: Workload,
    again: WorkloadResult,
    own: dict[int, Gemm],
    changes: dict[Gemm, tuple[str, Gemm] | None],
) -> Mended:
    op = workload.ops[place]
    found = changes[replace(op, name="op", count=1, family="")]
    if place not in own or found is None:
        return Mended(op.name, row.reason, "", op.m, op.n, op.k, op.pattern, row.kernel_us, None)
    new = own[place]
    return Mended(
        op.name, row.reason, found[0], new.m, new.n, new.k, new.pattern, row.kernel_us, again.rows[place].kernel_us
    )
