"""Quality files: what models of some pattern, method and type score on held-out data, measured here or elsewhere.

A file is JSON: entries (model, pattern, method, metric, a value with its interval, or samples by seed), the slices that
samples belong to, the shapes of the models for simulation, and where it all comes from.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, field_validator, model_validator

from sparsesim.errors import Problem, UserError, nearest
from sparsesim.quality.stats import LEVEL, Interval, from_halves, paired
from sparsesim.schemas import finding_lines
from sparsesim.sparsity import Pattern
from sparsesim.textfiles import read_json
from sparsesim.units import LARGEST_FIGURE, no_numbers

__all__ = ["DecoderShape", "Entry", "GemmShape", "ModelShape", "QualityFile", "Scale", "Task", "read_quality"]

FORMAT = "sparsesim quality 1"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())


# strict: true is no figure, and "10" no number
Figure = Annotated[float, Field(strict=True, ge=-LARGEST_FIGURE, le=LARGEST_FIGURE)]
Count = Annotated[int, Field(strict=True, ge=1)]
Factor = Annotated[int, Field(strict=True, ge=1, le=4096)]
Flag = Annotated[bool, Field(strict=True)]


class GemmShape(_Strict):
    """A weight GEMM: `m` out and `k` in features, `count` times in the model; not `pruned` = always dense."""

    name: str
    m: Count
    k: Count
    count: Count = 1
    pruned: Flag = True


class DecoderShape(_Strict):
    """Sizes of a decoder, as in a ``config.json``."""

    layers: Count
    hidden: Count
    heads: Count
    kv_heads: Count
    head_dim: Count
    ffn: Count
    vocab: Count
    tied: Flag = True


class ModelShape(_Strict):
    """What is simulated for a model: one of a decoder, a list of GEMMs, or the name of a packaged served model."""

    decoder: DecoderShape | None = None
    gemms: tuple[GemmShape, ...] | None = None
    served: str | None = None

    @model_validator(mode="after")
    def _one(self) -> ModelShape:
        given = [name for name in ("decoder", "gemms", "served") if getattr(self, name) is not None]
        if len(given) != 1 or self.gemms == ():
            found = "no gemms" if self.gemms == () else " and ".join(given) or "none"
            raise ValueError(f"exactly one of decoder, gemms (at least one) and served, found {found}")
        return self


class Scale(_Strict):
    """Factors from a study model to the one simulated: sizes times `width`, layers times `depth`, `vocab` if given."""

    width: Factor = 1
    depth: Factor = 1
    vocab: Count | None = None


class Task(_Strict):
    """Held-out data of a task.

    `slices` names the slice of each sample. With ``unit = "slice"`` the slices are what was drawn (articles, say) and
    samples within one are not independent: intervals are over slices, which must have equally many samples.
    """

    slices: tuple[str, ...] = ()
    unit: Literal["sample", "slice"] = "sample"

    @model_validator(mode="after")
    def _even(self) -> Task:
        counts = {self.slices.count(name) for name in set(self.slices)}
        if self.unit == "slice" and len(counts) != 1:
            found = ", ".join(map(str, sorted(counts))) or "no slices"
            raise ValueError(f"slices of equally many samples, for intervals over slices, found {found}")
        return self


class Entry(_Strict):
    """One model on one task: `value` (with `low` and `high`), or `samples` by seed, shape (seeds, samples)."""

    model: str = Field(min_length=1)
    pattern: str = "dense"
    method: str = "dense"
    dtype: str = ""
    task: str = "task"
    metric: str = Field(min_length=1)
    better: Literal["higher", "lower"]
    value: Figure | None = None
    low: Figure | None = None
    high: Figure | None = None
    samples: tuple[tuple[Figure, ...], ...] | None = None

    @field_validator("pattern")
    @classmethod
    def _known(cls, text: str) -> str:
        try:
            return str(Pattern.parse(text))
        except UserError:
            raise ValueError("a pattern such as dense or 2:4") from None

    @model_validator(mode="after")
    def _measured(self) -> Entry:
        if (self.value is None) == (self.samples is None):
            raise ValueError(f"either a value or samples, found {'neither' if self.value is None else 'both'}")
        bounds = f"low {self.low}, value {self.value}, high {self.high}"
        if (self.low is None) != (self.high is None) or (self.low is not None and self.value is None):
            raise ValueError(f"low and high together, beside a value, found {bounds}")
        if self.low is not None and not self.low <= (self.value or 0.0) <= (self.high or 0.0):
            raise ValueError(f"low <= value <= high, found {bounds}")
        sizes = sorted({len(row) for row in self.samples or ()})
        if self.samples is not None and (len(sizes) != 1 or sizes == [0]):
            found = f"{', '.join(map(str, sizes))} samples" if self.samples else "no seed"
            raise ValueError(f"samples of at least one seed, equally many of each, found {found}")
        return self

    @property
    def key(self) -> str:
        """``model/pattern/method``, with the type if it is stated."""
        return "/".join([self.model, self.pattern, self.method, *([self.dtype] if self.dtype else [])])

    @property
    def dense(self) -> bool:
        """Whether it is a dense model in the type of the study: a rung of the ladder."""
        return self.pattern == "dense" and self.method == "dense"

    @property
    def array(self) -> NDArray[np.float64]:
        """Samples as (seeds, samples)."""
        return np.asarray(self.samples, dtype=np.float64)


class QualityFile(_Strict):
    """All entries of a study, with what is needed to judge and to simulate them."""

    format: Literal["sparsesim quality 1"] = "sparsesim quality 1"
    study: str
    entries: tuple[Entry, ...] = Field(min_length=1)
    tasks: dict[str, Task] = {}
    models: dict[str, ModelShape] = {}
    scale: Scale = Scale()
    provenance: dict[str, Any] = {}
    _file: str = PrivateAttr(default="")

    @property
    def where(self) -> str:
        """What messages call it: the file it came from, else the study."""
        return self._file or self.study

    @model_validator(mode="after")
    def _consistent(self) -> QualityFile:
        seen: set[tuple[str, str]] = set()
        shapes: dict[str, tuple[int, ...]] = {}
        kinds: dict[str, tuple[str, str]] = {}
        for entry in self.entries:
            if (entry.key, entry.task) in seen:
                raise ValueError(
                    f"entries: each model, pattern, method, type and task once, found {entry.key} of {entry.task} twice"
                )
            seen.add((entry.key, entry.task))
            kind = kinds.setdefault(entry.task, (entry.metric, entry.better))
            if kind != (entry.metric, entry.better):
                raise ValueError(
                    f"entries: one metric and direction for task {entry.task}, found {kind[0]} ({kind[1]} is better) "
                    f"and {entry.metric} ({entry.better} is better) in {entry.key}"
                )
            if entry.samples is None:
                continue
            shape = entry.array.shape
            if shapes.setdefault(entry.task, shape) != shape:
                raise ValueError(
                    f"entries: the same seeds and samples for all of task {entry.task}, found {shapes[entry.task]} "
                    f"and {shape} in {entry.key}"
                )
            slices = self.tasks.get(entry.task, Task()).slices
            if slices and len(slices) != shape[1]:
                raise ValueError(
                    f"tasks.{entry.task}.slices: a slice for each of the {shape[1]} samples, found {len(slices)}"
                )
        return self

    def task(self, name: str) -> Task:
        """The task of that name; one without slices if the file says nothing of it."""
        return self.tasks.get(name, Task())

    def find(self, key: str, task: str | None = None) -> Entry:
        """The entry ``model/pattern/method[/dtype]``; raises UserError with the nearest key."""
        for entry in self.entries:
            if entry.key == key and task in (None, entry.task):
                return entry
        keys = list(dict.fromkeys(entry.key for entry in self.entries))
        raise UserError(f"{self.where}: expected an entry such as {keys[0]}, found {key!r}{nearest(key, keys)}")

    def own(self, entry: Entry) -> Interval:
        """Value of one entry with its interval."""
        if entry.samples is None:
            assert entry.value is not None
            return Interval(entry.value, entry.low, entry.high)
        return paired(self._units(entry.array, entry.task))

    def difference(self, first: Entry, others: list[tuple[float, Entry]]) -> Interval:
        """`first` minus a weighted sum of others on the same task, signed so that positive is better.

        Paired over samples and seeds where all have samples, else as if independent.
        """
        sign = 1.0 if first.better == "higher" else -1.0
        if any(other.task != first.task for _, other in others):
            raise UserError(f"{first.key}: expected entries of one task, found others")
        if first.samples is not None and all(other.samples is not None for _, other in others):
            d = first.array - sum(weight * other.array for weight, other in others)
            spread = max(float(np.ptp(e.array)) for e in (first, *(other for _, other in others)))
            return _widened(sign * self._units(d, first.task), spread, LEVEL)
        total = self.own(first)
        for weight, other in others:
            own = self.own(other)
            bounds = [None if x is None else weight * x for x in (own.low, own.high)]
            total = from_halves(total, Interval(weight * own.mean, bounds[0], bounds[1], own.seeds, own.samples))
        return total if sign > 0 else -total

    def by_slice(self, first: Entry, other: Entry, level: float) -> dict[str, Interval]:
        """As `difference`, for each slice; empty without slices or samples."""
        names = self.task(first.task).slices
        if not names or first.samples is None or other.samples is None:
            return {}
        sign = 1.0 if first.better == "higher" else -1.0
        d, of = sign * (first.array - other.array), np.asarray(names)
        spread = max(float(np.ptp(first.array)), float(np.ptp(other.array)))
        return {name: _widened(d[:, of == name], spread, level) for name in dict.fromkeys(names)}

    def _units(self, values: NDArray[np.float64], task: str) -> NDArray[np.float64]:
        """(seeds, samples), or (seeds, slices) where slices are what was drawn."""
        known = self.task(task)
        if known.unit == "sample":
            return values
        of = np.asarray(known.slices)
        return np.stack([values[:, of == name].mean(axis=1) for name in dict.fromkeys(known.slices)], axis=1)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as in the file."""
        return self.model_dump(mode="json", exclude_none=True)


def _widened(differences: NDArray[np.float64], spread: float, level: float) -> Interval:
    """`paired`, but not of zero width where no two samples differ: n equal ones do not show that all are equal.

    A difference of `spread`, the range of the metric, whose share is below 1 - (a/2)^(1/n) may have been missed in n
    samples with probability a/2 (the "rule of three", Clopper and Pearson's bound at no event).
    """
    found = paired(differences, level)
    if differences.size == 1 or np.ptp(differences) > 0:
        return found
    half = spread * (1.0 - ((1.0 - level) / 2) ** (1.0 / found.samples))
    return replace(found, low=found.mean - half, high=found.mean + half)


def parse_quality(document: Any, where: str) -> QualityFile:
    """A quality file from plain data.

    Raises
    ------
    UserError
        Every problem, one line each, with its path.
    """
    lines = []
    try:
        found = QualityFile.model_validate(document)
        lines = [
            Problem.line(where, f"provenance{path}", "a finite number", value)
            for path, value in no_numbers(found.provenance)
        ]
        if not lines:
            found._file = where
            return found
    except ValidationError as error:
        lines = finding_lines(where, map(dict, error.errors(include_url=False)), QualityFile)
    raise UserError(lines)


def read_quality(path: str | Path) -> QualityFile:
    """Read and check a quality file; raises UserError with every problem."""
    return parse_quality(read_json(Path(path), "a quality file"), str(path))
