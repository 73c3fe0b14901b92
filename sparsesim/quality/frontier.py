"""Quality at an equal latency budget: does the sparse model beat the dense model that is as fast?

Each model of a quality file is simulated on one GPU under one SLA and joined with its quality. The rungs of the dense
ladder are the dense models of other sizes that no faster dense model equals; between two rungs quality is interpolated
linearly in ln(latency), with the same weights for every held-out sample and seed, so that comparisons stay paired.

The break-even speedup of a sparse model is the speedup over its own dense model at which the ladder's quality is its
own: with more it is better than a dense model of its latency, with less worse. Its interval are all speedups at which
the paired difference to the ladder cannot be told from zero (inversion of the test, as Fieller's).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sparsesim.errors import UserError
from sparsesim.hardware import GpuSpec
from sparsesim.lowering import NoKernelError
from sparsesim.quality.latency import Latency, Sla, simulate_latency
from sparsesim.quality.record import Entry, QualityFile, Scale
from sparsesim.quality.stats import Interval
from sparsesim.serving.models import get_served_model

__all__ = ["BreakEven", "Comparison", "Frontier", "Point", "frontier", "join", "verdict"]

BETTER, LEVEL_WITH, WORSE, UNKNOWN = "better", "level", "worse", "unknown"
#: types that kernels exist for; any other word of an entry is simulated as the default type
SIMULATED = ("bf16", "f16", "i8", "e4m3", "e2m1")
#: relative error of simulated latencies of served models, 90th percentile of measured cells (docs/serving.md)
MODEL_ERROR = 0.15
#: latencies at which a break-even interval is looked for, between the fastest and the slowest rung
GRID = 160


@dataclass(frozen=True)
class Point:
    """A model with its quality and its simulated latency.

    `front` if no other is as fast and as good; `gain` = paired difference to the baseline, positive = better.
    """

    entry: Entry
    dtype: str
    quality: Interval
    latency: Latency
    front: bool = False
    gain: Interval | None = None

    @property
    def seconds(self) -> float:
        """Mean latency over replications [s]."""
        return self.latency.seconds.mean


@dataclass(frozen=True)
class BreakEven:
    """Break-even speedup and its interval; bounds None = beyond the ladder; `why` where there is no value."""

    speedup: float | None
    low: float | None
    high: float | None
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"speedup": self.speedup, "low": self.low, "high": self.high, "why": self.why}


@dataclass(frozen=True)
class Comparison:
    """A sparse model against the dense ones.

    Parameters
    ----------
    point, base : the model, and the dense model that it was made of
    speedup : simulated, latency of `base` over that of the model
    meets : whether it meets the budget; `at_budget` compares it with `best`, the best dense model that does
    best, at_budget : None if no dense model meets the budget
    rival, against_rival : the best dense model that is no slower than it, None if there is none
    against_ladder : difference to the ladder at its own latency; None outside of the ladder
    verdicts : against the ladder if its latency is off by the model's error: longer, as simulated, shorter
    """

    point: Point
    base: Point
    speedup: float
    meets: bool
    best: Point | None
    at_budget: Interval | None
    rival: Point | None
    against_rival: Interval | None
    against_ladder: Interval | None
    break_even: BreakEven
    verdicts: tuple[str, str, str]

    def to_dict(self) -> dict[str, Any]:
        """Plain data; differences are positive where the sparse model is better."""
        return {
            "model": self.point.entry.key, "base": self.base.entry.key, "speedup": self.speedup,
            "meets_budget": self.meets,
            "at_budget": _compared(self.best, self.at_budget), "no_slower": _compared(self.rival, self.against_rival),
            "ladder": None if self.against_ladder is None else {
                **self.against_ladder.to_dict(), "verdict": verdict(self.against_ladder)
            },
            "break_even": self.break_even.to_dict(),
            "verdict_if_latency_is_longer_as_simulated_shorter": list(self.verdicts),
        }  # fmt: skip


def _compared(point: Point | None, difference: Interval | None) -> dict[str, Any] | None:
    if point is None or difference is None:
        return None
    return {"dense": point.entry.key, **difference.to_dict(), "verdict": verdict(difference)}


@dataclass(frozen=True)
class Frontier:
    """All points, and each sparse model's comparisons at `budget_s`; `skipped`: entries without a kernel, and why."""

    study: str
    task: str
    metric: str
    better: str
    gpu: str
    sla: Sla
    scale: Scale
    budget_s: float
    budget_of: str
    points: tuple[Point, ...]
    ladder: tuple[Point, ...]
    comparisons: tuple[Comparison, ...]
    skipped: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Plain data in the form of the CLI's JSON."""
        return {
            "study": self.study, "task": self.task, "metric": self.metric, "better": self.better, "gpu": self.gpu,
            "sla": {name: getattr(self.sla, name) for name in self.sla.__dataclass_fields__},
            "scale": self.scale.model_dump(), "budget_s": self.budget_s, "budget_of": self.budget_of,
            "model_error": MODEL_ERROR,
            "points": [
                {
                    "model": p.entry.key, "dtype": p.dtype, "quality": p.quality.to_dict(),
                    "latency_s": p.latency.seconds.to_dict(), "paths": p.latency.paths, "front": p.front,
                    "gain": None if p.gain is None else p.gain.to_dict(),
                }
                for p in self.points
            ],
            "ladder": [p.entry.key for p in self.ladder],
            "comparisons": [c.to_dict() for c in self.comparisons],
            "skipped": dict(self.skipped),
        }  # fmt: skip


def verdict(difference: Interval) -> str:
    """``better``, ``worse``, or ``level`` where the interval holds zero; ``unknown`` without an interval."""
    if difference.low is None or difference.high is None:
        return UNKNOWN
    return BETTER if difference.low > 0 else WORSE if difference.high < 0 else LEVEL_WITH


def frontier(
    file: QualityFile,
    gpu: GpuSpec,
    sla: Sla,
    task: str | None = None,
    scale: Scale | None = None,
    baseline: str | None = None,
    budget_s: float | None = None,
    keys: Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Frontier:
    """Simulate the latency of every entry of a task, and compare at an equal latency.

    Parameters
    ----------
    task : by default the first of the file
    scale : from study models to simulated ones, instead of the file's
    baseline : key of the dense model whose latency is the budget; by default the slowest
    budget_s : budget [s], instead of a baseline's latency
    keys : only these sparse entries

    Raises
    ------
    UserError
        Unknown keys or tasks, models without a shape, fewer than one dense model, or what the simulation refuses.
    """
    sla.check()
    task = task or file.entries[0].task
    entries = [e for e in file.entries if e.task == task]
    if not entries:
        known = ", ".join(dict.fromkeys(e.task for e in file.entries))
        raise UserError(f"{file.where}: task: expected one of {known}, found {task!r}")
    for key in keys:
        file.find(key, task)
    if keys:
        entries = [e for e in entries if e.dense or e.key in keys]
    lines: list[str] = []
    for name in sorted({e.model for e in entries}):
        shape = file.models.get(name)
        if shape is None:
            lines.append(f"{file.where}: models.{name}: expected the shape to simulate, found none")
        elif shape.served is not None:
            try:
                get_served_model(shape.served)
            except UserError as error:
                place = f"{file.where}: models.{name}.served: "
                lines += [place + line.removeprefix("model: ") for line in error.problems]
    if lines:
        raise UserError(lines)
    scale = scale or file.scale
    variants = [(e.model, e.pattern, e.dtype if e.dtype in SIMULATED else sla.dtype) for e in entries]
    found: dict[tuple[str, str, str], Latency] = {}
    skipped: dict[tuple[str, str, str], str] = {}
    wanted = list(dict.fromkeys(variants))
    for done, (model, pattern, dtype) in enumerate(wanted, 1):
        try:
            found[model, pattern, dtype] = simulate_latency(gpu, model, file.models[model], scale, pattern, dtype, sla)
        except NoKernelError as error:
            skipped[model, pattern, dtype] = str(error)
        if progress is not None:
            progress(done, len(wanted))
    both = list(zip(entries, variants, strict=True))
    points = [Point(e, v[2], file.own(e), found[v]) for e, v in both if v in found]
    if not points:
        raise UserError(list(dict.fromkeys(skipped.values())))
    left_out = {e.key: skipped[v] for e, v in both if v in skipped}
    return join(file, points, gpu.name, sla, scale, baseline, budget_s, left_out)


def join(
    file: QualityFile,
    points: Sequence[Point],
    gpu: str,
    sla: Sla,
    scale: Scale,
    baseline: str | None = None,
    budget_s: float | None = None,
    skipped: Mapping[str, str] | None = None,
) -> Frontier:
    """The comparisons of points that have a latency; see `frontier`."""
    sign = 1.0 if points[0].entry.better == "higher" else -1.0
    dense = [p for p in points if p.entry.pattern == "dense"]
    sizes = [p for p in dense if p.entry.dense and not p.entry.dtype] or [p for p in dense if p.entry.dense]
    if not sizes:
        raise UserError(f"{file.where}: entries: expected at least one dense model, found none")
    if baseline is not None:
        chosen = next((p for p in dense if p.entry.key == baseline), None)
        if chosen is None:
            raise UserError(
                f"{file.where}: baseline: expected one of {', '.join(p.entry.key for p in dense)}, found {baseline!r}"
            )
    else:
        chosen = max(sizes, key=lambda p: p.seconds)
    budget = chosen.seconds if budget_s is None else budget_s
    marked = tuple(
        replace(
            p,
            front=not any(_dominates(q, p, sign) for q in points),
            gain=None if p.entry is chosen.entry else file.difference(p.entry, [(1.0, chosen.entry)]),
        )
        for p in points
    )
    rungs = sorted(
        (p for p in sizes if not any(_dominates(q, p, sign) for q in sizes)), key=lambda p: (p.seconds, p.entry.key)
    )
    sparse = [p for p in marked if p.entry.pattern != "dense"]
    return Frontier(
        study=file.study,
        task=points[0].entry.task,
        metric=points[0].entry.metric,
        better=points[0].entry.better,
        gpu=gpu,
        sla=sla,
        scale=scale,
        budget_s=budget,
        budget_of=chosen.entry.key if budget_s is None else "",
        points=marked,
        ladder=tuple(rungs),
        comparisons=tuple(_compare(file, p, dense, sizes, rungs, budget, sign) for p in sparse),
        skipped=skipped or {},
    )


def _dominates(p: Point, q: Point, sign: float) -> bool:
    """Whether p is as fast and as good as q, and one of both strictly."""
    gain, saved = sign * (p.quality.mean - q.quality.mean), q.seconds - p.seconds
    return gain >= 0 and saved >= 0 and (gain > 0 or saved > 0)


def _compare(
    file: QualityFile,
    point: Point,
    dense: Sequence[Point],
    sizes: Sequence[Point],
    rungs: Sequence[Point],
    budget: float,
    sign: float,
) -> Comparison:
    base = next((p for p in sizes if p.entry.model == point.entry.model), max(sizes, key=lambda p: p.seconds))

    def best_within(limit: float) -> tuple[Point | None, Interval | None]:
        fits = [p for p in dense if p.seconds <= limit]
        if not fits:
            return None, None
        best = max(fits, key=lambda p: sign * p.quality.mean)
        return best, file.difference(point.entry, [(1.0, best.entry)])

    meets = point.seconds <= budget
    best, at_budget = best_within(budget)
    rival, against_rival = best_within(point.seconds)
    differences = [
        _against_ladder(file, point, rungs, point.seconds * f) for f in (1 + MODEL_ERROR, 1, 1 / (1 + MODEL_ERROR))
    ]
    return Comparison(
        point=point,
        base=base,
        speedup=base.seconds / point.seconds,
        meets=meets,
        best=best,
        at_budget=at_budget if meets else None,
        rival=rival,
        against_rival=against_rival,
        against_ladder=differences[1],
        break_even=_break_even(file, point, base, rungs, sign),
        verdicts=tuple(UNKNOWN if d is None else verdict(d) for d in differences),  # type: ignore[arg-type]
    )


def _weights(rungs: Sequence[Point], seconds: float) -> list[tuple[float, Entry]] | None:
    """The ladder at a latency as weighted rungs; the slowest rung beyond it, None before the fastest."""
    if seconds < rungs[0].seconds:
        return None
    for fast, slow in itertools.pairwise(rungs):
        if seconds < slow.seconds:
            share = math.log(seconds / fast.seconds) / math.log(slow.seconds / fast.seconds)
            return [(1.0 - share, fast.entry), (share, slow.entry)]
    return [(1.0, rungs[-1].entry)]


def _against_ladder(file: QualityFile, point: Point, rungs: Sequence[Point], seconds: float) -> Interval | None:
    weights = _weights(rungs, seconds)
    return None if weights is None else file.difference(point.entry, weights)


def _break_even(file: QualityFile, point: Point, base: Point, rungs: Sequence[Point], sign: float) -> BreakEven:
    """Along the rungs quality rises with latency, so the difference falls and crosses zero once."""
    own = sign * point.quality.mean
    fastest, slowest = rungs[0], rungs[-1]
    seconds: float | None = None
    why = ""
    if own > sign * slowest.quality.mean:
        why = f"better than the whole ladder: {slowest.entry.model} included"
    elif own < sign * fastest.quality.mean:
        why = f"worse than the smallest rung: needs more than {base.seconds / fastest.seconds:.2f}"
    else:
        seconds = slowest.seconds
        for fast, slow in itertools.pairwise(rungs):
            low, high = sign * fast.quality.mean, sign * slow.quality.mean
            if low <= own <= high:
                share = (own - low) / (high - low) if high > low else 0.0
                seconds = fast.seconds * (slow.seconds / fast.seconds) ** share
                break
    cannot_tell = [
        t
        for t in np.geomspace(fastest.seconds, slowest.seconds, GRID)
        if (d := _against_ladder(file, point, rungs, float(t))) is not None and verdict(d) == LEVEL_WITH
    ]
    low_bound = high_bound = None
    if cannot_tell and len(rungs) > 1:
        # an interval that reaches an end of the ladder goes on beyond it
        low_bound = base.seconds / cannot_tell[-1] if cannot_tell[-1] < slowest.seconds * (1 - 1e-9) else None
        high_bound = base.seconds / cannot_tell[0] if cannot_tell[0] > fastest.seconds * (1 + 1e-9) else None
    return BreakEven(None if seconds is None else base.seconds / seconds, low_bound, high_bound, why)
