"""What a calibration found: errors before and after, parameters, and the hardware file that holds them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sparsesim.calibrate.parameters import Parameter
from sparsesim.calibrate.rows import Contradiction
from sparsesim.calibrate.workers import Chosen
from sparsesim.errors import UserError
from sparsesim.measured import MeasuredRow
from sparsesim.uncertainty import size_class
from sparsesim.validate import Prediction, error_summary, speedup_groups

__all__ = ["Calibration", "FittedParameter", "FittedRow", "check_target", "error_groups", "male"]

#: the part of a group's key that stands for all
ALL = "all"
SOURCE = "fit on measured rows"


@dataclass(frozen=True)
class FittedParameter:
    """One parameter of a fit, in the unit of its hardware file.

    Attributes
    ----------
    parameter
        Path, unit, start value and range.
    after
        The fitted value, rounded as the file holds it.
    sensitivity
        d mean ln(time) / d ln(value) over the fitted rows, at `after`.
    effect
        Root mean square over the rows of the change of ln(time) across the whole range, linearised.
    error
        Standard error of `after` from the Jacobian. It takes rows as independent, which they are not, and shrinks
        towards the start where the rows say little.
    at_bound
        ``low`` or ``high`` if the value sits at an end of its range, else empty.
    partner, correlation
        The parameter whose estimate depends most on this one, and the correlation of the two.
    """

    parameter: Parameter
    after: float
    sensitivity: float
    effect: float
    error: float
    at_bound: str
    partner: str
    correlation: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        p = self.parameter
        return {
            "path": p.path,
            "unit": p.unit,
            "before": p.start,
            "after": self.after,
            "range": [p.low, p.high],
            "scale": p.scale,
            "sensitivity": self.sensitivity,
            "effect": self.effect,
            "standard_error": self.error,
            "at_bound": self.at_bound or None,
            "partner": self.partner or None,
            "correlation": self.correlation,
            "file": p.file,
        }


@dataclass(frozen=True)
class FittedRow:
    """A row with its predictions [µs] before and after, and the kernel that the library picks after."""

    part: str
    row: MeasuredRow
    before_us: float
    after_us: float
    kernel: str

    @property
    def log_error(self) -> float:
        """ln(predicted / measured) after the fit."""
        return math.log(self.after_us / self.row.time_us)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        names = ("gpu", "library", "m", "n", "k", "batch", "dtype", "pattern", "timing", "l2", "clock", "source")
        return {
            "part": self.part,
            **{name: getattr(self.row, name) for name in names},
            "measured_us": self.row.time_us,
            "before_us": self.before_us,
            "after_us": self.after_us,
            "kernel": self.kernel,
        }


@dataclass(frozen=True)
class Calibration:
    """Result of `calibrate`.

    `rows` counts the simulated rows of each part (``fit``, ``held_out`` and, where a GPU is left out,
    ``left_out``); `available` the rows of the first two before sampling. `history` is the male of the fitted rows
    at the start and after each round. `weak` are default parameters that moved the rows too little to be fitted,
    with their effect.
    """

    gpu: str
    leave_out: bool
    fitted_on: tuple[str, ...]
    files: tuple[str, ...]
    fit_share: float
    rows: dict[str, int]
    available: tuple[int, int]
    parameters: tuple[FittedParameter, ...]
    weak: tuple[tuple[str, float], ...]
    groups: tuple[dict[str, Any], ...]
    predictions: tuple[FittedRow, ...]
    history: tuple[float, ...]
    contradictions: tuple[Contradiction, ...]
    skipped: tuple[tuple[MeasuredRow, str], ...]

    @property
    def changes(self) -> dict[str, float]:
        """The fitted values in canonical units, as `override` takes them."""
        return {p.parameter.path: p.after * p.parameter.canonical_factor for p in self.parameters}

    def group(self, part: str, dtype: str = ALL, kind: str = ALL, size: str = ALL) -> dict[str, Any]:
        """One group of errors; raises KeyError if no row is in it."""
        for group in self.groups:
            if (group["part"], group["dtype"], group["kind"], group["size"]) == (part, dtype, kind, size):
                return group
        raise KeyError((part, dtype, kind, size))

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "gpu": self.gpu,
            "left_out": self.leave_out,
            "fitted_on": list(self.fitted_on),
            "files": list(self.files),
            "fit_share": self.fit_share,
            "rows": self.rows,
            "available": {"fit": self.available[0], "held_out": self.available[1]},
            "groups": list(self.groups),
            "parameters": [p.to_dict() for p in self.parameters],
            "weak": [{"path": path, "effect": effect} for path, effect in self.weak],
            "history": list(self.history),
            "predictions": [item.to_dict() for item in self.predictions],
            "contradictions": [item.to_dict() for item in self.contradictions],
            "skipped": [{"row": f"{Path(row.file).name}:{row.line}", "why": why} for row, why in self.skipped],
        }

    def rows_text(self) -> str:
        """Which rows the values were fitted on, in one line."""
        fit, held_out = self.rows["fit"], self.rows["held_out"]
        on = "" if self.fitted_on == (self.gpu,) else f" of {', '.join(self.fitted_on)}"
        return (
            f"{', '.join(self.files)}: {fit} rows{on} of the {100 * self.fit_share:g} % of the shapes "
            f"whose hash is lowest; {held_out} rows of the others held out"
        )

    def variant(self, base: str, title: str) -> str:
        """A hardware file (TOML) that extends `base` with the fitted values.

        Parameters
        ----------
        base : str
            What the file extends: a packaged name, or a path relative to the file.
        title : str
            Title of the GPU that was fitted.
        """
        lines = [
            f"# {title}, with values from `sparsesim calibrate`; not checked by hand.",
            "#",
            "# " + "; ".join(_before_after(self.groups, part) for part in self.rows if self.rows[part]),
            "",
            f"extends = {_quoted(base)}",
            f"title = {_quoted(title)}",
        ]
        rows = _quoted(self.rows_text())
        by_table: dict[str, list[str]] = {}
        for item in self.parameters:
            p = item.parameter
            table, _, field = p.path.rpartition(".")
            note = f"was {p.start:.6g}; standard error {item.error:.2g}"
            note += f"; at the {item.at_bound} end of its range" if item.at_bound else ""
            by_table.setdefault(table, []).append(
                f"{field} = {{ value = {item.after!r}, unit = {_quoted(p.unit)}, source = {_quoted(SOURCE)}, "
                f'status = "fitted", range = [{p.low!r}, {p.high!r}], rows = {rows}, note = {_quoted(note)} }}'
            )
        for table, entries in by_table.items():
            lines += ["", f"[{table}]", *entries]
        return "\n".join(lines) + "\n"

    def write(self, path: Path, base: str, title: str) -> None:
        """Write `variant` to `path` in one step; raises UserError where that is impossible."""
        temporary = path.with_name(f".{path.name[:100]}.{os.getpid()}.tmp")
        try:
            try:
                temporary.write_text(self.variant(base, title), encoding="utf-8")
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as err:
            raise UserError(
                f"--out: expected a file that can be written, found {str(path)!r}: {err.strerror}"
            ) from None


def _quoted(text: str) -> str:
    """`text` as a TOML basic string."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in escaped) + '"'


def _before_after(groups: Sequence[Mapping[str, Any]], part: str) -> str:
    whole = next(g for g in groups if (g["part"], g["dtype"], g["kind"], g["size"]) == (part, ALL, ALL, ALL))
    return (
        f"{part.replace('_', '-')} rows: mean |ln(predicted / measured)| "
        f"{whole['before']['male']:.3f} -> {whole['after']['male']:.3f}"
    )


def check_target(path: Path, base: str) -> None:
    """Raise UserError if a variant of `base` cannot be written to `path`, before anything is simulated."""
    why = ""
    try:
        folder = path.absolute().parent
        if not path.name or path.is_dir():
            why = "it is a folder"
        elif path.suffix != ".toml":
            why = "a hardware file ends in .toml"
        elif not folder.is_dir():
            why = "its folder does not exist"
        elif not os.access(path if path.exists() else folder, os.W_OK):
            why = "no permission to write there"
        elif path.stem == base or (path.exists() and path.samefile(base)):
            why = "it would extend itself"
    except FileNotFoundError:
        pass  # a packaged name is no path
    except (OSError, ValueError) as err:
        why = str(err)
    if why:
        raise UserError(f"--out: expected a file that can be written, found {str(path)!r}: {why}")


def male(log_errors: Iterable[float]) -> float:
    """Mean absolute log error."""
    return float(np.mean(np.abs(list(log_errors))))


def error_groups(
    part: str,
    rows: Sequence[MeasuredRow],
    indices: Sequence[int],
    before: Mapping[int, Chosen],
    after: Mapping[int, Chosen],
) -> list[dict[str, Any]]:
    """Errors of the rows at `indices` before and after, as a whole and by type, kind and size class.

    Kind is ``dense``, ``sparse`` or ``speedup`` (pairs among the rows, by type).
    """
    then, now = _predictions(rows, indices, before), _predictions(rows, indices, after)
    groups = []
    axes: list[Callable[[MeasuredRow], tuple[str, str, str]]] = [
        lambda row: (ALL, ALL, ALL),
        lambda row: (ALL, _kind(row), ALL),
        lambda row: (ALL, ALL, size_class(row.time_us)),
        lambda row: (ALL, _kind(row), size_class(row.time_us)),
        lambda row: (row.dtype, _kind(row), ALL),
    ]
    for axis in axes:
        members: dict[tuple[str, str, str], list[int]] = {}
        for at, prediction in enumerate(then):
            members.setdefault(axis(prediction.row), []).append(at)
        for (dtype, kind, size), chosen in sorted(members.items(), key=lambda item: item[0]):
            groups.append(
                {
                    "part": part,
                    "dtype": dtype,
                    "kind": kind,
                    "size": size,
                    "rows": len(chosen),
                    "before": _errors([then[at] for at in chosen]),
                    "after": _errors([now[at] for at in chosen]),
                }
            )
    later = {(group["gpu"], group["dtype"]): group for group in speedup_groups(now)}
    several = len({row.gpu for row in rows}) > 1
    for group in speedup_groups(then):
        dtype = f"{group['gpu']} {group['dtype']}" if several else group["dtype"]
        keys = ("male", "p90", "bias", "sign_accuracy")
        groups.append(
            {
                "part": part,
                "dtype": dtype,
                "kind": "speedup",
                "size": ALL,
                "rows": group["rows"],
                "before": {key: group[key] for key in keys},
                "after": {key: later[group["gpu"], group["dtype"]][key] for key in keys},
            }
        )
    return groups


def _kind(row: MeasuredRow) -> str:
    return "sparse" if row.is_sparse else "dense"


def _predictions(rows: Sequence[MeasuredRow], indices: Sequence[int], chosen: Mapping[int, Chosen]) -> list[Prediction]:
    made = []
    for index in indices:
        us = chosen[index].seconds * 1e6
        made.append(Prediction(rows[index], us, us, us, chosen[index].name))
    return made


def _errors(predictions: Sequence[Prediction]) -> dict[str, float]:
    summary = error_summary([p.predicted_us for p in predictions], [p.row.time_us for p in predictions])
    return {key: summary[key] for key in ("male", "p90", "bias")}
