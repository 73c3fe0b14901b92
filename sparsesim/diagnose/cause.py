"""What a loss of quality comes from: the slice it is in, and the change that bears on it.

Quality is measured, never simulated, so its counterfactuals are looked up: the figure of a variant that has some of
the changes (the new pattern with the old method …) in the quality files. With all of them there, the Shapley value of
each change is exact; else the changes are named together, and it is said which figure is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsesim.attribution import shapley
from sparsesim.diagnose.changes import Change
from sparsesim.diagnose.quality import WHOLE, QualityDrift, QualityRecord, QualityRun

__all__ = ["QualityCause", "quality_causes", "where_it_is"]

#: key of a variant → kind of the run's changes that are the same thing
KINDS = {"pattern": "pattern", "dtype": "precision"}
#: kinds of changes that change the numbers a model computes
BEARING = ("pattern", "precision")
#: slices that drop less than this share of the worst one's drop, in units of the allowance, do not drop with it
ALONE = 0.25


@dataclass(frozen=True)
class QualityCause:
    """A cause of lost quality and its share of the loss; `change` is the id of the run's change, if there is one."""

    id: str
    what: str
    loss: float
    change: str | None
    exact: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {name: getattr(self, name) for name in ("id", "what", "loss", "change", "exact")}


def where_it_is(worst: QualityDrift, drifts: Sequence[QualityDrift]) -> str:
    """``all slices`` or those of the worst drift's metric, out of all `drifts`, that drop with it.

    Few samples make a slice of its own undecided: that it drops with the others is said by its figure, not its verdict.
    """
    same = [d for d in drifts if d.metric == worst.metric and d.slice != WHOLE]
    parts = [d for d in same if not any(other.slice.startswith(f"{d.slice}/") for other in same)]
    hit = [d.slice for d in parts if d.severity >= ALONE * worst.severity]
    if not parts or len(hit) == len(parts) or not hit:
        return "all slices" if len(parts) != 1 else f"slice {parts[0].slice}"
    return ("slice " if len(hit) == 1 else "slices ") + ", ".join(hit)


def quality_causes(
    base: QualityRun, candidate: QualityRun, drift: QualityDrift, changes: Sequence[Change]
) -> list[QualityCause]:
    """Causes of one drift, the largest first; their losses sum to it."""
    ours, theirs = dict(base.variant), dict(candidate.variant)
    keys = [key for key in dict.fromkeys([*ours, *theirs]) if ours.get(key) != theirs.get(key)]
    bearing = [change for change in changes if change.kind in BEARING]
    if not keys:
        if len(bearing) == 1:
            (change,) = bearing
            return [QualityCause(change.id, change.what, drift.loss, change.id, exact=True)]
        if bearing:
            return [_together([c.id for c in bearing], [c.what for c in bearing], drift.loss, "no figure of one alone")]
        what = "the weights, or the data they were made from: nothing else that bears on quality differs"
        return [QualityCause("weights", what, drift.loss, None, exact=True)]
    texts = {key: f"{key}: {ours.get(key, 'none')} → {theirs.get(key, 'none')}" for key in keys}
    apart = [change for change in bearing if change.kind not in {KINDS.get(key) for key in keys}]
    if apart:
        names, listed = [*keys, *(c.id for c in apart)], [*texts.values(), *(c.what for c in apart)]
        return [_together(names, listed, drift.loss, "the quality files do not say which of them they have")]
    values, missing = _game(base, candidate, drift, keys)
    if missing:
        return [_together(keys, [texts[key] for key in keys], drift.loss, f"no figure of {missing}")]
    found = []
    for key, loss in zip(keys, shapley(values).tolist(), strict=True):
        same = [change for change in bearing if change.kind == KINDS.get(key)]
        found.append(QualityCause(key, texts[key], loss, same[0].id if len(same) == 1 else None, exact=True))
    return sorted(found, key=lambda item: (-item.loss, item.id))


def _together(names: Sequence[str], texts: Sequence[str], loss: float, why: str) -> QualityCause:
    what = f"{' and '.join(texts)}; not told apart: {why}"
    return QualityCause(" and ".join(names), what, loss, None, exact=False)


def _game(base: QualityRun, candidate: QualityRun, drift: QualityDrift, keys: Sequence[str]) -> tuple[np.ndarray, str]:
    """Loss against the base for every set of keys, or the variant whose figure is missing."""
    ours, theirs = dict(base.variant), dict(candidate.variant)
    values = np.zeros(1 << len(keys))
    values[-1] = drift.loss
    for mask in range(1, len(values) - 1):
        wanted = {key: theirs.get(key) if key in keys and mask >> keys.index(key) & 1 else ours.get(key)
                  for key in dict.fromkeys([*ours, *theirs])}  # fmt: skip
        variant = [(key, value) for key, value in wanted.items() if value is not None]
        record = _find(base, candidate, drift, variant)
        if record is None:
            return values, ", ".join(f"{key} {value}" for key, value in variant)
        values[mask] = (drift.base - record.value) * (1.0 if record.higher_is_better else -1.0)
    return values, ""


def _find(
    base: QualityRun, candidate: QualityRun, drift: QualityDrift, variant: Sequence[tuple[str, str]]
) -> QualityRecord | None:
    for run in (candidate, base):
        record = run.of(variant).get((drift.metric, drift.slice))
        if record is not None:
            return record
    return None
