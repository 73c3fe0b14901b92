"""Groups of predictions, their levels, and what is counted in them. Errors are defined in `sparsesim.validate`."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable

import numpy as np

from sparsesim.hardware import load_gpu
from sparsesim.hardware.audit import assumed_or_fitted
from sparsesim.measured import MeasuredRow
from sparsesim.uncertainty import CLASSES, POOLED, held_out, size_class
from sparsesim.validate import Prediction, error_summary

__all__ = [
    "bucket",
    "coverage",
    "grouped",
    "levels",
    "path_of",
    "quantiles",
    "steps_right",
    "summary",
    "table",
    "untouched_gpus",
    "wave_steps",
]

#: rows that a residual class of its own needs
MIN_ROWS = 25
#: times of M and of M + 1 that differ by more are a step
STEP = 1.10


def table(rows: Iterable[tuple[object, ...]], header: tuple[str, ...]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)])


def grouped(
    predictions: Iterable[Prediction], key: Callable[[MeasuredRow], tuple[str, ...]]
) -> dict[tuple[str, ...], list[Prediction]]:
    """Predictions by key, sorted."""
    groups: dict[tuple[str, ...], list[Prediction]] = collections.defaultdict(list)
    for p in predictions:
        groups[key(p.row)].append(p)
    return dict(sorted(groups.items()))


def summary(members: list[Prediction]) -> dict[str, float]:
    """Errors of one group."""
    return error_summary([p.predicted_us for p in members], [p.row.time_us for p in members])


def path_of(row: MeasuredRow) -> str:
    """sparse or dense."""
    return "sparse" if row.is_sparse else "dense"


def bucket(time_us: float) -> str:
    """Size bucket of a measured time."""
    for name, most in (("<10", 10.0), ("10-30", 30.0), ("30-100", 100.0), ("100-1000", 1000.0)):
        if time_us < most:
            return name
    return ">1000"


def levels(predictions: list[Prediction]) -> dict[str, dict[str, float]]:
    """male, p90 and rows of each (GPU, dtype, path, timing), for rows of 10 µs and more."""
    long = [p for p in predictions if p.row.time_us >= 10.0]
    out = {}
    for key, members in grouped(long, lambda row: (row.gpu, row.dtype, path_of(row), row.timing)).items():
        s = summary(members)
        out[" ".join(key)] = {"rows": len(members), "male": round(s["male"], 4), "p90": round(s["p90"], 4)}
    return out


def quantiles(predictions: list[Prediction]) -> dict[str, dict[str, dict[str, tuple[float, float]]]]:
    """5 % and 95 % quantiles of ln(predicted / measured) by family, path and size class of the prediction."""
    family = {name: load_gpu(name).family for name in {p.row.gpu for p in predictions}}
    out: dict[str, dict[str, dict[str, tuple[float, float]]]] = {}
    for name in [POOLED, *sorted(set(family.values()))]:
        for path in ("dense", "sparse"):
            chosen = [p for p in predictions if name in (POOLED, family[p.row.gpu]) and path_of(p.row) == path]
            for size, _ in CLASSES:
                errors = [p.log_error for p in chosen if size_class(p.predicted_us) == size]
                if len(errors) >= MIN_ROWS or (name == POOLED and errors):
                    low, high = np.quantile(errors, (0.05, 0.95))
                    out.setdefault(name, {}).setdefault(path, {})[size] = (round(low, 4), round(high, 4))
    return out


def coverage(predictions: list[Prediction], interval: Callable[[str, bool, float], tuple[float, float]]) -> list:
    """(family, path, rows, share inside) of the 90 % intervals, over shapes that the residuals do not come from."""
    rows = []
    family = {name: load_gpu(name).family for name in {p.row.gpu for p in predictions}}
    unseen = [p for p in predictions if held_out(p.row.m, p.row.n, p.row.k)]
    groups = grouped(unseen, lambda row: (family[row.gpu], path_of(row)))
    for (name, path), members in [*groups.items(), (("all", "both"), unseen)]:
        inside = 0
        for p in members:
            low, high = interval(family[p.row.gpu], p.row.is_sparse, p.predicted_us)
            inside += low <= p.row.time_us <= high
        rows.append((name, path, len(members), inside / max(len(members), 1)))
    return rows


def untouched_gpus(names: Iterable[str], fitted_on: Callable[[str], str]) -> list[str]:
    """GPUs of `names` none of whose timings set a value of their hardware file.

    `fitted_on` gives the text by which the `rows` of a fitted value name a GPU's files.
    """
    out = []
    for name in names:
        own = fitted_on(name)
        if not any(own in row.rows for row in assumed_or_fitted(load_gpu(name)) if row.status == "fitted"):
            out.append(name)
    return out


def wave_steps(predictions: list[Prediction]) -> list[tuple[MeasuredRow, float, float]]:
    """(row at M, measured ratio, predicted ratio) of the times at M + 1 and at M tokens, all else equal.

    Of rows measured twice the fastest counts; below 10 µs launch costs hide a step.
    """
    best: dict[tuple[object, ...], Prediction] = {}
    for p in predictions:
        r = p.row
        key = (r.gpu, r.library, r.dtype, r.pattern, r.batch, r.timing, r.l2, r.clock, r.m, r.k, r.n)
        if key not in best or r.time_us < best[key].row.time_us:
            best[key] = p
    out = []
    for key, p in best.items():
        after = best.get((*key[:-1], p.row.n + 1))
        if after is not None and p.row.time_us >= 10.0:
            out.append((p.row, after.row.time_us / p.row.time_us, after.predicted_us / p.predicted_us))
    return out


def steps_right(steps: list[tuple[MeasuredRow, float, float]]) -> tuple[int, int, int]:
    """(steps rightly present or absent, steps that are there, heights of those within 15 %)."""
    right = sum((measured > STEP) == (predicted > STEP) for _, measured, predicted in steps)
    there = [(measured, predicted) for _, measured, predicted in steps if measured > STEP]
    return right, len(there), sum(abs(p / m - 1) <= 0.15 for m, p in there)
