"""Where a run's JSON has the metrics of gates: runs of a workload, of one GEMM, of a served model; quality files.

A value comes with what is known of its uncertainty: an interval (of replications, or paired over samples), and the
kind of model error that widens it where it is simulated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from sparsesim.errors import Problem, UserError, nearest, show
from sparsesim.quality.guardrail import Allowance, Drift, check
from sparsesim.quality.record import parse_quality
from sparsesim.quality.stats import Interval
from sparsesim.units import is_number

__all__ = ["DEFAULT_OF", "METRICS", "Absent", "Found", "Kind", "UnfitRun", "find"]

Document = dict[str, Any]
#: what `of` says in a gate that does not set it: the metric whose gain a serving run's speedup is
DEFAULT_OF = "output_tokens_per_s"


class Kind(Enum):
    """What a simulated value's model error is like; counts have none, measured quality has its own interval."""

    SPEEDUP = "speedup"
    TIME = "time"
    EXACT = "exact"


class UnfitRun(Exception):
    """A run that should have a metric and gives none that can be judged; the text says why."""


class Absent(LookupError):
    """A run of the kind that has the metric, without what `of` names; the text says what it has."""


@dataclass(frozen=True)
class Found:
    """A value with its interval, and the kind of its model error."""

    value: float
    low: float
    high: float
    kind: Kind


def _number(value: Any) -> float:
    """A number of a run; TypeError for what is none, as true or "1.2": a gate must not read a value into it."""
    if not is_number(value):
        raise TypeError(f"expected a number, found {show(value)}")
    return float(value)


def _exact(value: Any, kind: Kind) -> Found:
    known = _number(value)
    return Found(known, known, known, kind)


def _estimate(data: Document, kind: Kind, fixed: bool = False) -> Found:
    """Of ``{"mean" or "value", "low", "high"}``; without bounds the value alone.

    Bounds that are null say that nobody knows them: one replication, a figure without samples. Such a value decides
    nothing, unless it is `fixed`: of what is the same in every replication.
    """
    if "mean" not in data and "value" not in data:
        raise TypeError(f"expected a mean or a value, found {show(data)}")
    value = _number(data["mean"] if "mean" in data else data["value"])
    low, high = (data.get(name, value) for name in ("low", "high"))
    if fixed and low is None and high is None:
        low = high = value
    if low is None or high is None:
        raise TypeError(f"expected a value with a known interval, found {value:g} alone (one replication or sample)")
    return Found(value, _number(low), _number(high), kind)


def _fixed(run: Document) -> bool:
    """Whether every replication of a serving run would be the same: the requests of a trace are drawn by nobody."""
    load = run.get("load")
    return isinstance(load, dict) and load.get("kind") == "trace"


def _sparse(run: Document) -> Document:
    """The sparse variant of a serving run; the dense one of a run without."""
    variants = {variant["name"]: variant for variant in run["variants"]}
    found: Document = variants.get("sparse", variants["dense"])
    return found


def _speedup(run: Document, of: str) -> Found:
    if "gains" in run:
        gains = {gain["metric"]: gain["total"] for gain in run["gains"]}
        if of not in gains:
            raise Absent(Problem.line("of", "", f"one of {', '.join(gains) or 'no gains'}", of) + nearest(of, gains))
        found = _estimate(gains[of], Kind.SPEEDUP, _fixed(run))
        return Found(math.exp(found.value), math.exp(found.low), math.exp(found.high), Kind.SPEEDUP)
    return _exact(run["speedup"], Kind.SPEEDUP)


def _fallback(run: Document, of: str) -> Found:
    if "variants" in run:
        return _estimate(_sparse(run)["metrics"]["fallback_rate"], Kind.EXACT, _fixed(run))
    if "fallbacks" in run:
        return _exact(math.fsum(entry["time_share"] for entry in run["fallbacks"]), Kind.EXACT)
    fell = run["path"] == "dense" and run["pattern"] != "dense"
    return _exact(float(fell), Kind.EXACT)


def _metadata(run: Document, of: str) -> Found:
    """Metadata bytes over all bytes that the kernels request from L2."""
    if "rows" in run:
        rows = [(row["gemm"]["counters"], row["launches"]) for row in run["rows"]]
    else:
        rows = [(run["counters"], 1)]
    metadata = math.fsum(counters["metadata_bytes"] * n for counters, n in rows)
    return _exact(metadata / math.fsum(counters["l2_read_bytes"] * n for counters, n in rows), Kind.EXACT)


def _occupancy(run: Document, of: str) -> Found:
    if "variants" in run:
        return _estimate(_sparse(run)["metrics"]["tensor_busy"], Kind.TIME, _fixed(run))
    return _exact(run["tensor_busy"] if "tensor_busy" in run else run["counters"]["tensor_busy"], Kind.TIME)


def _drift(run: Document, of: str) -> Found:
    """Loss of quality against the dense baseline, larger is worse; of several tasks or candidates the worst ones."""
    if "entries" in run:
        return _worst([d.loss for d in _drifts(run, of)])
    drifts = run["drifts"] if "drifts" in run else [run["drift"]]
    found = [_estimate(d, Kind.EXACT) if isinstance(d, dict) else _exact(d, Kind.EXACT) for d in drifts]
    if not found:
        raise LookupError
    return Found(max(f.value for f in found), max(f.low for f in found), max(f.high for f in found), Kind.EXACT)


def _slice_drift(run: Document, of: str) -> Found:
    """The same of the slices of each task; intervals of all slices hold together (Bonferroni)."""
    return _worst([loss for d in _drifts(run, of) for loss in d.slices.values()])


def _drifts(run: Document, of: str) -> list[Drift]:
    """Of a quality file: candidate `of`, or all where the gate names none."""
    if "entries" not in run:
        raise LookupError
    file = parse_quality(run, "quality file")
    try:
        return check(file, Allowance(0.0), candidates=[] if of == DEFAULT_OF else [of])
    except UserError as error:
        raise Absent(str(error)) from None


def _worst(losses: list[Interval]) -> Found:
    """Passes a bound where all pass it and fails one where one fails it; no interval, no value to judge."""
    if not losses:
        raise LookupError
    low = [-math.inf if loss.low is None else loss.low for loss in losses]
    high = [math.inf if loss.high is None else loss.high for loss in losses]
    return Found(max(loss.mean for loss in losses), max(low), max(high), Kind.EXACT)


def _serving(metric: str, kind: Kind) -> Callable[[Document, str], Found]:
    return lambda run, of: _estimate(_sparse(run)["metrics"][metric], kind, _fixed(run))


#: metric → what finds it in a run
METRICS: dict[str, Callable[[Document, str], Found]] = {
    "effective_speedup": _speedup,
    **{
        f"{name}_{what}_s": _serving(f"{name}_{what}_s", Kind.TIME)
        for name in ("ttft", "tpot", "e2e")
        for what in ("mean", "p50", "p95", "p99")
    },
    "output_tokens_per_s": _serving("output_tokens_per_s", Kind.TIME),
    "fallback_rate": _fallback,
    "metadata_overhead": _metadata,
    "tensor_occupancy": _occupancy,
    "quality_drift": _drift,
    "quality_slice_drift": _slice_drift,
}


def _at(run: Document, path: str) -> Any:
    """What stands at a dotted path; LookupError where it leads nowhere."""
    value: Any = run
    for word in path.split("."):
        if isinstance(value, dict):
            value = value[word]
        elif isinstance(value, list) and word.isdecimal():
            value = value[int(word)]
        else:
            raise LookupError(path)
    return value


def find(run: Document, metric: str, of: str = DEFAULT_OF, path: str = "") -> Found | None:
    """The metric in a run's JSON, or None if the run is none that has it.

    Raises
    ------
    UnfitRun
        What stands there is no number.
    Absent
        The run has the metric, but not what `of` names.
    """
    try:
        if path:
            value = _at(run, path)
            found = _estimate(value, Kind.EXACT) if isinstance(value, dict) else _exact(value, Kind.EXACT)
        else:
            found = METRICS[metric](run, of)
    except Absent:
        raise
    except LookupError:
        return None
    except (TypeError, ValueError, ArithmeticError, UserError) as error:
        raise UnfitRun(str(error)) from None
    if not all(map(math.isfinite, (found.value, found.low, found.high))):
        raise UnfitRun(
            f"expected a value with a known interval, found {found.value:g}, {found.low:g} to {found.high:g}"
        )
    return found
