"""Why a whole workload is not as much faster as its patterns promise.

The value of a set of idealised causes is ln of total dense time over total time, each op `count` times. Every
op's time under every set is known from its own attribution, so the workload's shares are exact and cost
arithmetic only. Ops with a dense weight count as dense in both totals: what they dilute is in the nominal
speedup, not in a share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsesim.attribution.causes import CAUSES, bit
from sparsesim.attribution.gemm import STEP_BUDGET, Attributor
from sparsesim.attribution.result import (
    SMALL_SHARE,
    Attribution,
    class_shares,
    log_mean,
    percent_of,
    ranked,
    share_notes,
)
from sparsesim.attribution.shapley import shapley
from sparsesim.protocol import Protocol
from sparsesim.simulator import Simulator
from sparsesim.workload import Gemm, Workload

__all__ = ["LayerLoss", "WorkloadAttribution", "attribute_workload"]


@dataclass(frozen=True)
class LayerLoss:
    """Time of one op, or of a family of ops, in a workload; each op `count` times.

    lost_us : time beyond that at the nominal speedup of each op; by cause it is exact too
    shares : Shapley values of ln(total dense time / total time); they sum to ln(nominal / effective speedup)
    """

    name: str
    family: str
    count: int
    paths: tuple[str, ...]
    time_us: float
    dense_time_us: float
    ideal_us: float
    lost_by_cause_us: dict[str, float]
    shares: dict[str, float]

    @property
    def speedup(self) -> float:
        """Effective speedup."""
        return self.dense_time_us / self.time_us

    @property
    def nominal_speedup(self) -> float:
        """Dense time over the time at nominal speedup."""
        return self.dense_time_us / self.ideal_us

    @property
    def lost_us(self) -> float:
        """Time beyond that at nominal speedup [µs]."""
        return self.time_us - self.ideal_us

    @property
    def main_cause(self) -> str | None:
        """Cause of most of the lost time, or None if no cause costs any."""
        name = max(self.lost_by_cause_us, key=lambda key: self.lost_by_cause_us[key])
        return name if self.lost_by_cause_us[name] > 0.0 else None

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "name": self.name,
            "family": self.family,
            "count": self.count,
            "paths": list(self.paths),
            "time_us": self.time_us,
            "dense_time_us": self.dense_time_us,
            "speedup": self.speedup,
            "nominal_speedup": self.nominal_speedup,
            "lost_us": self.lost_us,
            "main_cause": self.main_cause,
            "lost_by_cause_us": dict(self.lost_by_cause_us),
            "shares_ln": dict(self.shares),
        }


@dataclass(frozen=True)
class WorkloadAttribution:
    """Where the speedup of a workload went; shares sum to ln(nominal / speedup)."""

    gpu: str
    stack: str
    protocol: Protocol
    time_us: float
    dense_time_us: float
    nominal_speedup: float
    shares: dict[str, float]
    ops: tuple[Attribution, ...]
    engine_runs: int
    #: speedup with one cause alone idealised
    alone: dict[str, float]

    def __post_init__(self) -> None:
        total = math.fsum(self.shares.values())
        if abs(total - self.gap) > 1e-9:
            raise AssertionError(f"shares sum to {total}, expected {self.gap}")

    @property
    def speedup(self) -> float:
        """Total dense time over total time."""
        return self.dense_time_us / self.time_us

    @property
    def gap(self) -> float:
        """ln(nominal / effective speedup)."""
        return math.log(self.nominal_speedup) - math.log(self.speedup)

    @property
    def percent(self) -> dict[str, float] | None:
        """Shares in per cent of the gap; None where there is no gap."""
        return percent_of(self.shares, self.gap)

    @property
    def total_lost_us(self) -> float:
        """Time beyond that at nominal speedup [µs]."""
        return self.time_us - self.dense_time_us / self.nominal_speedup

    @property
    def lost_us(self) -> dict[str, float]:
        """Shares as time [µs]; they sum to `total_lost_us`."""
        scale = log_mean(self.time_us, self.dense_time_us / self.nominal_speedup)
        return {name: share * scale for name, share in self.shares.items()}

    @property
    def classes(self) -> dict[str, float]:
        """ln shares summed by first-principles class."""
        return class_shares(self.shares)

    @property
    def bottleneck(self) -> str:
        """Class of what binds most of the time."""
        time: dict[str, float] = {}
        for item in self.ops:
            time[item.bottleneck] = time.get(item.bottleneck, 0.0) + item.op.count * item.time_us
        return max(time, key=lambda kind: time[kind])

    def ranked(self) -> list[tuple[str, float]]:
        """(cause, ln share) of the causes with a share, largest first."""
        return ranked(self.shares)

    def layers(self) -> list[LayerLoss]:
        """One row per op, the one that loses most time first."""
        return _worst_first(_layer(item.op.name, (item,)) for item in self.ops)

    def families(self) -> list[LayerLoss]:
        """One row per family (ops without one: by name), the one that loses most time first."""
        groups: dict[str, list[Attribution]] = {}
        for item in self.ops:
            groups.setdefault(item.op.family or item.op.name, []).append(item)
        return _worst_first(_layer(name, tuple(items)) for name, items in groups.items())

    def notes(self) -> list[str]:
        """One sentence for each thing that a reader would otherwise get wrong."""
        notes = share_notes(self.shares, self.gap)
        worst, share = next(iter(self.ranked()), ("", 0.0))
        if share > SMALL_SHARE and self.alone[worst] <= self.speedup * (1.0 + SMALL_SHARE):
            notes.append(
                f"{worst} has the largest share, but removing it alone gains nothing: it pays with others removed"
            )
        return notes

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "gpu": self.gpu,
            "stack": self.stack,
            "timing": self.protocol.timing,
            "l2": self.protocol.l2,
            "clock": self.protocol.clock,
            "time_us": self.time_us,
            "dense_time_us": self.dense_time_us,
            "speedup": self.speedup,
            "nominal_speedup": self.nominal_speedup,
            "gap_ln": self.gap,
            "shares_ln": dict(self.shares),
            "shares_percent": self.percent,
            "speedup_if_ideal": dict(self.alone),
            "bottleneck": self.bottleneck,
            "lost_us": self.lost_us,
            "total_lost_us": self.total_lost_us,
            "classes_ln": self.classes,
            "layers": [row.to_dict() for row in self.layers()],
            "families": [row.to_dict() for row in self.families()],
            "ops": [item.to_dict() for item in self.ops],
            "engine_runs": self.engine_runs,
            "notes": self.notes(),
        }


def attribute_workload(
    simulator: Simulator,
    ops: Workload | Iterable[Gemm],
    protocol: Protocol | None = None,
    progress: Callable[[int, int, str], None] | None = None,
    step_budget: int = STEP_BUDGET,
) -> WorkloadAttribution:
    """Attribute the lost speedup of a workload.

    Parameters
    ----------
    simulator : Simulator
    ops : Workload or Gemms
    protocol : Protocol, optional
    progress : callable, optional
        Called as ``progress(done, total, name)`` before each op and once at the end, with an empty name.
    step_budget : int
        See `Attributor`.

    Raises
    ------
    ValueError
        If there are no ops.
    NoKernelError
        If the dtype of an op has no dense kernel on the GPU.
    """
    protocol = protocol or Protocol()
    listed = tuple(ops.ops if isinstance(ops, Workload) else ops)
    if not listed:
        raise ValueError("ops: expected at least one op, found none")
    attributor = Attributor(simulator, step_budget)
    results = []
    for i, op in enumerate(listed):
        if progress is not None:
            progress(i, len(listed), op.name)
        results.append(attributor.gemm(op, protocol))
    if progress is not None:
        progress(len(listed), len(listed), "")
    return combine(tuple(results), attributor.engine_runs)


def combine(ops: tuple[Attribution, ...], engine_runs: int) -> WorkloadAttribution:
    """Shares of the total time of `ops`, each `count` times."""
    dense, sparse, shares = _shares(ops)
    return WorkloadAttribution(
        gpu=ops[0].gpu,
        stack=ops[0].stack,
        protocol=ops[0].protocol,
        time_us=float(sparse[0]) * 1e6,
        dense_time_us=float(dense[0]) * 1e6,
        nominal_speedup=float(dense[-1] / sparse[-1]),
        shares=shares,
        ops=ops,
        engine_runs=engine_runs,
        alone={item.id: float(dense[bit(item.id)] / sparse[bit(item.id)]) for item in CAUSES},
    )


def _shares(ops: tuple[Attribution, ...]) -> tuple[np.ndarray, np.ndarray, dict[str, float]]:
    """Total dense and sparse times of `ops` for every set of causes, and the shares of their ratio."""
    dense = np.sum([item.op.count * item.dense_times for item in ops], axis=0)
    sparse = np.sum([item.op.count * item.sparse_times for item in ops], axis=0)
    shares = shapley(np.log(dense / sparse)).tolist()
    return dense, sparse, dict(zip((item.id for item in CAUSES), shares, strict=True))


def _layer(name: str, items: tuple[Attribution, ...]) -> LayerLoss:
    count = [item.op.count for item in items]
    lost = [item.lost_us for item in items]
    return LayerLoss(
        name=name,
        family=items[0].op.family,
        count=sum(count),
        paths=tuple(sorted({item.path for item in items})),
        time_us=math.fsum(c * item.time_us for c, item in zip(count, items, strict=True)),
        dense_time_us=math.fsum(c * item.dense_time_us for c, item in zip(count, items, strict=True)),
        ideal_us=math.fsum(c * item.dense_time_us / item.nominal_speedup for c, item in zip(count, items, strict=True)),
        lost_by_cause_us={
            item.id: math.fsum(c * own[item.id] for c, own in zip(count, lost, strict=True)) for item in CAUSES
        },
        shares=items[0].shares if len(items) == 1 else _shares(items)[2],
    )


def _worst_first(rows: Iterable[LayerLoss]) -> list[LayerLoss]:
    return sorted(rows, key=lambda row: (-row.lost_us, row.name))
