"""Study on scikit-learn's digits (1,797 scans of 8×8, ten classes): pruned MLPs beside a ladder of dense widths.

The first two thirds of the file train, the last third is held out, so no seed shares a held-out sample with training.
Seeds change initial weights and batches. Every model has the same passes over the data. Extra ``quality-ci``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsesim._version import __version__
from sparsesim.quality.mlp import Mlp, MlpBudget, oneshot, train
from sparsesim.quality.pruners import METHODS, PATTERNS
from sparsesim.quality.record import Entry, GemmShape, ModelShape, QualityFile, Scale, Task
from sparsesim.quality.rounding import ROUNDED
from sparsesim.quality.schedule import SCHEDULES

__all__ = ["WIDTHS", "run_digits"]

WIDTHS = (16, 24, 32, 48, 64, 96, 128)
TASK = "digits"
#: hidden layers 32 times as wide: a dense 128 becomes 4096, of the size that layers of served models have
SCALE = Scale(width=32)


def run_digits(
    seeds: int = 3,
    widths: tuple[int, ...] = WIDTHS,
    patterns: tuple[str, ...] = PATTERNS,
    budget: MlpBudget | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> QualityFile:
    """Train and measure everything; the widest model is pruned.

    Returns
    -------
    QualityFile
        Accuracy as 0 or 1 for each seed and held-out sample; slices are the classes.
    """
    from sklearn.datasets import load_digits

    budget = budget or MlpBudget()
    x, labels = load_digits(return_X_y=True)
    x = x / 16.0
    cut = len(x) * 2 // 3
    wide = max(widths)
    rows: dict[tuple[str, str, str, str], list[NDArray[np.float64]]] = {}
    total, done = seeds * (len(widths) + len(patterns) * len(SCHEDULES)), 0

    def tell() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    held, answers = x[cut:], labels[cut:]
    for seed in range(seeds):
        for key, model, dtype in _models(x[:cut], labels[:cut], widths, patterns, budget, seed, tell):
            right = model.rounded_right(held, answers, dtype) if dtype else model.right(held, answers)
            rows.setdefault((*key, dtype), []).append(right)
    entries = tuple(
        Entry(
            model=model, pattern=pattern, method=method, dtype=dtype, task=TASK, metric="accuracy", better="higher",
            samples=tuple(tuple(map(float, row)) for row in found),
        )
        for (model, pattern, method, dtype), found in rows.items()
    )  # fmt: skip
    return QualityFile(
        study="digits",
        entries=entries,
        tasks={TASK: Task(slices=tuple(f"class {label}" for label in answers))},
        models={_name(w): ModelShape(gemms=_gemms(w)) for w in sorted({*widths, wide})},
        scale=SCALE,
        provenance=_provenance(x, labels, seeds, budget),
    )


def _name(width: int) -> str:
    return f"mlp-{width}"


def _gemms(width: int) -> tuple[GemmShape, ...]:
    return (
        GemmShape(name="hidden1", m=width, k=64),
        GemmShape(name="hidden2", m=width, k=width),
        GemmShape(name="output", m=10, k=width, pruned=False),
    )


def _models(
    x: NDArray[np.float64],
    labels: NDArray[np.int64],
    widths: tuple[int, ...],
    patterns: tuple[str, ...],
    budget: MlpBudget,
    seed: int,
    tell: Callable[[], None],
) -> Iterator[tuple[tuple[str, str, str], Mlp, str]]:
    """((model, pattern, method), trained model, type to round to) of one seed."""
    wide = max(widths)
    for width in widths:
        model = train(x, labels, width, budget, seed, progress=tell)
        yield (_name(width), "dense", "dense"), model, ""
        if width != wide:
            continue
        for dtype in ROUNDED:
            yield (_name(wide), "dense", "dense"), model, dtype
        for pattern in patterns:
            for method in METHODS:
                yield (_name(wide), pattern, method), oneshot(model, x, pattern, method), ""
    for pattern in patterns:
        for schedule in SCHEDULES:
            model = train(x, labels, wide, budget, seed, pattern, schedule, tell)
            yield (_name(wide), pattern, schedule), model, ""
            for dtype in ROUNDED if schedule == "sr-ste" else ():
                yield (_name(wide), pattern, schedule), model, dtype


def _provenance(x: NDArray[np.float64], labels: NDArray[np.int64], seeds: int, budget: MlpBudget) -> dict[str, Any]:
    digest = hashlib.sha256(x.tobytes() + np.asarray(labels, dtype="<i8").tobytes()).hexdigest()
    return {
        "data": "scikit-learn digits; first two thirds train, last third held out", "data_sha256": digest,
        "seeds": list(range(seeds)), "budget": asdict(budget), "sparsesim": __version__,
        "packages": {name: version(name) for name in ("numpy", "scikit-learn")},
    }  # fmt: skip
