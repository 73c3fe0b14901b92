"""The points of a sweep: which settings each has, in the order in which they run.

Points of equal hardware stand together, so that what they share is in memory only while it is needed. Everything
follows from the file and its seed: the same file gives the same points.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np

from sparsesim.errors import UserError
from sparsesim.sweep.parameters import is_count, rounded, value_at
from sparsesim.sweep.spec import MAX_POINTS, Axis, SweepSpec

__all__ = ["Design", "value_of"]

#: significant digits of a sampled value
DIGITS = 6


class Design:
    """The points of `spec`; `settings` is in running order.

    Attributes
    ----------
    order : np.ndarray
        Number of the point (row of the design) at each position.
    group : np.ndarray
        Running number of the hardware at each position; points of one board stand together.
    """

    def __init__(self, spec: SweepSpec) -> None:
        self.spec = spec
        self._cells = _cells(spec)
        keys = self._hardware_keys()
        self.order = np.lexsort(keys.T[::-1]) if keys.shape[1] else np.arange(len(keys))
        ordered = keys[self.order]
        fresh = np.any(ordered[1:] != ordered[:-1], axis=1) if len(ordered) else np.zeros(0, bool)
        self.group = np.concatenate([[0], np.cumsum(fresh)]).astype(np.int64)[: len(ordered)]

    def __len__(self) -> int:
        return len(self.order)

    def number(self, position: int) -> int:
        """Row of the design that runs at `position`."""
        return int(self.order[position])

    def settings(self, position: int) -> dict[str, Any]:
        """Every setting of the point at `position`, hardware values in canonical units or as factors."""
        number = self.number(position)
        if self.spec.rows:
            return {**self.spec.fixed, **self.spec.rows[number]}
        cells = self._cells[number]
        varied = {axis.name: value_of(axis, cell) for axis, cell in zip(self.spec.axes, cells, strict=True)}
        return {**self.spec.fixed, **varied}

    def _hardware_keys(self) -> np.ndarray:
        """What tells the boards apart: array (points, hardware settings), equal rows for equal boards."""
        names = self.spec.rows[0] if self.spec.rows else [axis.name for axis in self.spec.axes]
        columns = []
        for name in names:
            if _is_hardware(name):
                seen: dict[str, int] = {}
                columns.append([seen.setdefault(repr(value), len(seen)) for value in self._boards(name)])
        count = len(self.spec.rows) or len(self._cells)
        return np.array(columns, dtype=np.int64).T.reshape(count, len(columns))

    def _boards(self, name: str) -> list[Any]:
        """What each point's board has of a hardware setting; a factor of a count as the count that it gives."""
        values = self._column(name)
        if not (self.spec.is_factor(name) and is_count(name)):
            return values
        gpus = self._column("gpu")
        own = {gpu: value_at(base, name) for gpu, base in self.spec.bases.items()}
        return [rounded(own[gpu] * factor) for gpu, factor in zip(gpus, values, strict=True)]

    def _column(self, name: str) -> list[Any]:
        """A setting of every point."""
        if self.spec.rows and name in self.spec.rows[0]:
            return [row[name] for row in self.spec.rows]
        for column, axis in enumerate(self.spec.axes):
            if axis.name == name:
                return [value_of(axis, cell) for cell in self._cells[:, column]]
        return [self.spec.fixed[name]] * (len(self.spec.rows) or len(self._cells))


def _is_hardware(name: str) -> bool:
    return name == "gpu" or Axis(name).is_hardware


def value_of(axis: Axis, cell: float) -> Any:
    """The value at a cell: the index of a value, or a place from 0 to 1 in a range."""
    if not axis.is_range:
        return axis.values[int(cell)]
    if axis.scale == "log":
        value = axis.low * (axis.high / axis.low) ** cell
    else:
        value = axis.low + cell * (axis.high - axis.low)
    if axis.step:
        value = axis.low + axis.step * math.floor((value - axis.low) / axis.step + 0.5)
        value = value if value <= axis.high * (1 + 1e-12) else value - axis.step
    else:
        value = min(max(float(f"{value:.{DIGITS}g}"), axis.low), axis.high)
    return round(value) if axis.integer else value


def _cells(spec: SweepSpec) -> np.ndarray:
    """Array (points, axes): for values their index, for a range the place in it from 0 to 1."""
    if spec.rows:
        return np.zeros((len(spec.rows), 0))
    counts = [axis.steps if axis.is_range else len(axis.values) for axis in spec.axes]
    if spec.kind == "grid":
        total = math.prod(counts)
        if total > MAX_POINTS:
            raise UserError(f"{spec.name}: axes: expected at most {MAX_POINTS} points, found {total}")
        cells = np.stack(np.unravel_index(np.arange(total), counts), axis=1).astype(float)
        for column, axis in enumerate(spec.axes):
            if axis.is_range:
                cells[:, column] /= axis.steps - 1
        return cells
    return _spread(spec.axes, _unit_cube(spec))


def _unit_cube(spec: SweepSpec) -> np.ndarray:
    """Array (points, axes) of samples in [0, 1)."""
    dimensions = len(spec.axes)
    if spec.kind == "random":
        return np.random.default_rng(spec.seed).random((spec.points, dimensions))
    from scipy.stats import qmc

    if spec.kind == "latin-hypercube":
        return np.asarray(qmc.LatinHypercube(dimensions, rng=spec.seed).random(spec.points))
    with warnings.catch_warnings():
        # scipy warns where the number of points is no power of two; that is the user's choice
        warnings.simplefilter("ignore", UserWarning)
        return np.asarray(qmc.Sobol(dimensions, rng=spec.seed).random(spec.points))


def _spread(axes: tuple[Axis, ...], unit: np.ndarray) -> np.ndarray:
    """Samples of the unit cube as cells: every value of an axis gets an equal share."""
    cells = unit.copy()
    for column, axis in enumerate(axes):
        if not axis.is_range:
            cells[:, column] = np.minimum(np.floor(cells[:, column] * len(axis.values)), len(axis.values) - 1)
    return cells
