"""Quality of a run: metric, direction, values by slice, with samples or intervals; and the difference of two runs.

A quality file is JSON in the format ``sparsesim quality 1``; of it are read ``entries``, tables with

===========  =========================================================================================================
metric       name, e.g. ``accuracy`` or ``perplexity``
better       ``higher`` or ``lower``
value        the figure, with its 95 % interval ``low`` to ``high`` if that is known; or
samples      figures by seed and held-out sample, shape (seeds, samples), in an order that the files share: differences
             are then paired over samples and seeds, and intervals have the noise of both (`sparsesim.quality.stats`)
task         task or slice of it; one without a name is the whole
model, pattern, method, dtype
             what was measured: the variant. Where a file has several, a run says which one is its own
===========  =========================================================================================================

and ``tasks``: of a task, ``slices`` names the slice of each sample, which is then a figure of its own, and with
``unit = "slice"`` the slices are what was drawn, so that intervals are over their means.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sparsesim.errors import Problem, ProblemList, UserError, nearest
from sparsesim.quality.stats import LEVEL, paired
from sparsesim.textfiles import read_json
from sparsesim.units import is_figure, no_numbers

__all__ = ["VARIANT", "QualityDrift", "QualityRecord", "QualityRun", "compare_quality", "read_quality"]

#: what says which model was measured
VARIANT = ("model", "pattern", "method", "dtype")
FORMAT = "sparsesim quality 1"
#: (seeds, samples)
_Samples = tuple[tuple[float, ...], ...]
_KEYS = ("metric", "better", "value", "low", "high", "samples", "task", *VARIANT)
_TASK_KEYS = ("slices", "unit")
WHOLE = "all"


@dataclass(frozen=True)
class QualityRecord:
    """One figure of one variant on one slice; `samples` by seed and sample, empty where there are none.

    `together` are the slices of the task that are judged with it: of so many, one looks bad by chance.
    """

    metric: str
    higher_is_better: bool
    value: float
    low: float | None
    high: float | None
    samples: _Samples
    slice: str
    variant: tuple[tuple[str, str], ...]
    together: int = 1


@dataclass(frozen=True)
class QualityRun:
    """All records of a file, and which variant the run is."""

    file: str
    records: tuple[QualityRecord, ...]
    variant: tuple[tuple[str, str], ...]

    @property
    def own(self) -> dict[tuple[str, str], QualityRecord]:
        """(metric, slice) → record of the run's variant."""
        return self.of(self.variant)

    def of(self, variant: Sequence[tuple[str, str]]) -> dict[tuple[str, str], QualityRecord]:
        """(metric, slice) → record of another variant."""
        wanted = dict(variant)
        return {(r.metric, r.slice): r for r in self.records if dict(r.variant) == wanted}


@dataclass(frozen=True)
class QualityDrift:
    """Loss of quality of the candidate against the base on one metric and slice: positive is worse.

    `low` and `high` bound the 95 % interval, paired where both have the same samples; None where it is unknown. With
    samples the slices of a task are judged together (Bonferroni). `allowed` is the loss that is let pass.
    """

    metric: str
    slice: str
    base: float
    candidate: float
    loss: float
    low: float | None
    high: float | None
    allowed: float
    paired: bool

    @property
    def state(self) -> str:
        """``pass``: the whole interval is within the allowance; ``fail``: none of it is; else ``undecided``.

        Equal figures pass: nothing has changed.
        """
        if self.loss == 0.0 and self.low in (None, 0.0) and self.high in (None, 0.0):
            return "pass"
        if self.low is None or self.high is None:
            return "undecided"
        if self.high <= self.allowed:
            return "pass"
        return "fail" if self.low > self.allowed else "undecided"

    @property
    def worse(self) -> bool:
        """Whether it has to have a cause: a loss beyond the allowance that is not noise, as far as is known."""
        if self.state == "pass" or self.severity <= 1.0:
            return False
        return self.low is None or self.low > 0.0

    @property
    def severity(self) -> float:
        """Loss over the allowance."""
        return self.loss / self.allowed if self.allowed > 0 else math.inf if self.loss > 0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        names = ("metric", "slice", "base", "candidate", "loss", "low", "high", "allowed", "paired")
        return {**{name: getattr(self, name) for name in names}, "state": self.state}


def read_quality(path: str | Path, variant: Mapping[str, str] | None = None) -> QualityRun:
    """Read a quality file; `variant` says which entries are the run's, where there are several variants.

    Raises
    ------
    UserError
        A missing or malformed file, entries without metric, direction or figure, or no such variant: every problem.
    """
    where = str(path)
    document = read_json(Path(path), "a quality file")
    problems = ProblemList(where)
    if document.get("format") != FORMAT:
        raise UserError(Problem.line(where, "format", repr(FORMAT), document.get("format")))
    tables, tasks = document.get("entries"), document.get("tasks", {})
    if not isinstance(tables, list) or not tables:
        problems.add("entries", "a list of at least one entry", tables)
        tables = []
    if not isinstance(tasks, dict) or not all(isinstance(task, dict) for task in tasks.values()):
        problems.add("tasks", "a table of tasks", tasks)
        tasks = {}
    for name, task in tasks.items():
        _check_task(problems, f"tasks.{name}", task)
    for path_in, value in no_numbers(document.get("provenance")):
        problems.add(f"provenance{path_in}", "a finite number", value)
    problems.raise_if_any()
    records: list[QualityRecord] = []
    for i, table in enumerate(tables):
        records += _records(problems, f"entries[{i}]", table, tasks)
    problems.raise_if_any()
    variants = list(dict.fromkeys(record.variant for record in records))
    if variant:
        fitting = [v for v in variants if all(dict(v).get(key) == value for key, value in variant.items())]
    else:
        fitting = variants
    if len(fitting) != 1:
        listed = "; ".join(_text(v) for v in variants)
        problems.add(
            "entries", "one variant that the run is", f"{len(fitting)} that fit {dict(variant or {})} of: {listed}"
        )
    problems.raise_if_any()
    keys = [(r.metric, r.slice) for r in records if r.variant == fitting[0]]
    for key in sorted({key for key in keys if keys.count(key) > 1}):
        problems.add("entries", "one entry for each metric and task of a variant", key)
    problems.raise_if_any()
    return QualityRun(where, tuple(records), fitting[0])


def _text(variant: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{key} {value}" for key, value in variant) or "(unnamed)"


def _check_task(problems: ProblemList, path: str, task: Mapping[str, Any]) -> None:
    """A typo in ``unit`` would narrow an interval in silence."""
    slices = task.get("slices", [])
    if not isinstance(slices, list) or not all(isinstance(name, str) for name in slices):
        problems.add(f"{path}.slices", "the name of each sample's slice", slices)
    if task.get("unit", "sample") not in ("sample", "slice"):
        problems.add(f"{path}.unit", "sample or slice", task["unit"])
    for key in task:
        if key not in _TASK_KEYS:
            problems.add(f"{path}.{key}", f"one of {', '.join(_TASK_KEYS)}", key)


def _records(problems: ProblemList, path: str, table: Any, tasks: Mapping[str, Any]) -> list[QualityRecord]:
    """An entry, and the slices of its task: one record each."""
    before = len(problems.lines)
    if not isinstance(table, dict):
        problems.add(path, "a table", table)
        return []
    for key in table:
        if key not in _KEYS:
            problems.add_line(
                f"{problems.where}: {path}.{key}: expected one of {', '.join(_KEYS)}, found {key!r}"
                + nearest(key, _KEYS)
            )
    for key in ("metric", "task", *VARIANT):
        if (key in table or key == "metric") and not isinstance(table.get(key), str):
            problems.add(f"{path}.{key}", "text", table.get(key))
    if table.get("better") not in ("higher", "lower"):
        problems.add(f"{path}.better", "higher or lower", table.get("better"))
    samples = table.get("samples", [])
    if not _is_matrix(samples):
        problems.add(f"{path}.samples", "equally many numbers, at least two, for each seed", samples)
    elif not samples and not is_figure(table.get("value")):
        problems.add(f"{path}.value", "a number, or samples", table.get("value"))
    for key in ("low", "high"):
        if key in table and not is_figure(table[key]):
            problems.add(f"{path}.{key}", "a number", table[key])
    if len(problems.lines) > before:
        return []
    low, high = table.get("low"), table.get("high")
    if (low is None) != (high is None) or (low is not None and (samples or not low <= table["value"] <= high)):
        problems.add(path, "low <= value <= high, or none of low and high", (low, table.get("value"), high))
        return []
    task = table.get("task", "task")
    name = WHOLE if task == "task" else task
    common = (table["metric"], table["better"] == "higher", tuple((k, table[k]) for k in VARIANT if table.get(k)))
    if not samples:
        return [_one(common, name, float(table["value"]), low, high)]
    known = tasks.get(task, {})
    slices = known.get("slices") or []
    if slices and len(slices) != len(samples[0]):
        problems.add(f"tasks.{task}.slices", f"one for each of the {len(samples[0])} samples of {path}", len(slices))
        return []
    parts = {
        part: [[x for x, of in zip(row, slices, strict=True) if of == part] for row in samples]
        for part in dict.fromkeys(slices)
    }
    drawn = samples
    if known.get("unit") == "slice":
        drawn = [[math.fsum(row) / len(row) for row in seed] for seed in zip(*parts.values(), strict=True)]
    out = [_sampled(common, name, drawn)]
    for part, values in parts.items():
        found = _sampled(common, part if name == WHOLE else f"{name}/{part}", values)
        out.append(replace(found, together=len(parts)))
    return out


_Common = tuple[str, bool, tuple[tuple[str, str], ...]]


def _sampled(common: _Common, part: str, samples: Sequence[Sequence[float]]) -> QualityRecord:
    found = paired(samples)
    return _one(common, part, found.mean, found.low, found.high, tuple(map(tuple, samples)))


def _one(
    common: _Common, part: str, value: float, low: float | None, high: float | None, samples: _Samples = ()
) -> QualityRecord:
    metric, higher, variant = common
    return QualityRecord(metric, higher, value, low, high, samples, part, variant)


def _is_matrix(rows: Any) -> bool:
    """Whether `rows` are numbers by seed, equally many of each; no rows are none."""
    if not isinstance(rows, list) or not all(isinstance(row, list) and all(map(is_figure, row)) for row in rows):
        return False
    return not rows or (len(rows[0]) > 1 and len({len(row) for row in rows}) == 1)


def compare_quality(
    base: QualityRun | None, candidate: QualityRun | None, allowance: float
) -> tuple[list[QualityDrift], list[str]]:
    """Drift on each metric and slice that both have, the worst first, and what could not be compared.

    `allowance` is the loss that is let pass, as a share of the base's figure. The interval of a difference is paired
    over samples and seeds where both have equally many, else both intervals are taken as independent.
    """
    if base is None or candidate is None:
        one = base or candidate
        return [], [f"quality: only {one.file} was given; nothing to compare it with"] if one else []
    ours, theirs = base.own, candidate.own
    notes = [
        f"quality: {metric}, slice {part}: only in {base.file if (metric, part) in ours else candidate.file}"
        for metric, part in sorted(ours.keys() ^ theirs.keys())
    ]
    drifts = []
    for key in ours:
        if key not in theirs:
            continue
        if ours[key].higher_is_better != theirs[key].higher_is_better:
            raise UserError(
                f"{candidate.file}: {key[0]}: expected the direction that {base.file} gives, found the other one"
            )
        drifts.append(_drift(ours[key], theirs[key], allowance))
    return sorted(drifts, key=lambda d: (-d.severity, d.metric, d.slice)), notes


def _drift(ours: QualityRecord, theirs: QualityRecord, allowance: float) -> QualityDrift:
    sign = 1.0 if ours.higher_is_better else -1.0
    loss = sign * (ours.value - theirs.value)
    low: float | None = None
    high: float | None = None
    both = bool(ours.samples and theirs.samples) and _shape(ours.samples) == _shape(theirs.samples)
    if both:
        level = 1.0 - (1.0 - LEVEL) / max(ours.together, theirs.together)
        found = paired(sign * (np.asarray(ours.samples) - np.asarray(theirs.samples)), level)
        loss, low, high = found.mean, found.low, found.high
    elif None not in (ours.low, ours.high, theirs.low, theirs.high):
        # of a loss the upper end takes the better end of ours and the worse end of theirs
        up = _ends(ours, sign)[1] ** 2 + _ends(theirs, sign)[0] ** 2
        down = _ends(ours, sign)[0] ** 2 + _ends(theirs, sign)[1] ** 2
        low, high = loss - math.sqrt(down), loss + math.sqrt(up)
    return QualityDrift(
        ours.metric, ours.slice, ours.value, theirs.value, loss, low, high, allowance * abs(ours.value), both,
    )  # fmt: skip


def _shape(samples: _Samples) -> tuple[int, int]:
    return len(samples), len(samples[0])


def _ends(record: QualityRecord, sign: float) -> tuple[float, float]:
    """How far the interval reaches to the worse and to the better side of the figure."""
    assert record.low is not None
    assert record.high is not None
    below, above = record.value - record.low, record.high - record.value
    return (below, above) if sign > 0 else (above, below)
