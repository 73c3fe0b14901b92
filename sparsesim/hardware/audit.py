"""Where every value of a GPU description comes from, and which of them deserve distrust.

Pure functions over a loaded `GpuSpec`; printing is the CLI's business. Values are shown in the unit the
hardware file uses, not in the canonical one, so that a row can be compared with the file and its source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from sparsesim.hardware.load import load_sources
from sparsesim.hardware.spec import GpuSpec, unit_of
from sparsesim.units import UNITS

__all__ = ["AuditRow", "assumed_or_fitted", "audit", "findings"]


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One parameter of a GPU with its provenance.

    Attributes
    ----------
    path
        Dotted path, as in the hardware file and in `override`.
    value, unit
        The value in the unit that the file gives it in.
    status
        ``datasheet``, ``measured``, ``fitted`` or ``assumed``; empty where the value has no provenance
        (a default of the schema).
    source, citation
        Source code, and what it stands for (empty for a code that ``sources.toml`` lacks).
    note, range, rows, file
        Free text, plausible range in `unit`, rows a fitted value was fitted on, file that set the value.
    """

    path: str
    value: Any
    unit: str
    status: str
    source: str
    citation: str
    note: str
    range: tuple[float, float] | None
    rows: str
    file: str


def _tidy(value: float) -> float:
    """`value` without the rounding noise of a conversion there and back."""
    return float(f"{value:.12g}")


def _leaves(gpu: GpuSpec) -> list[tuple[str, Any, str]]:
    """Path, value and canonical unit of every parameter, in declaration order."""
    out: list[tuple[str, Any, str]] = []
    for name in GpuSpec.model_fields:
        section = getattr(gpu, name)
        if not isinstance(section, BaseModel) or isinstance(section, GpuSpec):
            continue
        model = type(section)
        for field in model.model_fields:
            value = getattr(section, field)
            unit = unit_of(model, field)
            if isinstance(value, dict):
                out += [(f"{name}.{field}.{key}", item, unit) for key, item in value.items()]
            else:
                out.append((f"{name}.{field}", value, unit))
    return out


def audit(gpu: GpuSpec) -> list[AuditRow]:
    """Every parameter of `gpu` with its provenance, in the order of the schema."""
    sources = load_sources()
    rows = []
    for path, value, canonical in _leaves(gpu):
        origin = gpu.provenance.get(path)
        if origin is None:
            rows.append(AuditRow(path, value, canonical, "", "", "", "", None, "", ""))
            continue
        factor = UNITS[canonical][origin.unit]
        if isinstance(value, float) and factor != 1.0:
            value = _tidy(value / factor)
        low_high = origin.range and (_tidy(origin.range[0] / factor), _tidy(origin.range[1] / factor))
        rows.append(
            AuditRow(
                path=path,
                value=value,
                unit=origin.unit,
                status=origin.status,
                source=origin.source,
                citation=sources.get(origin.source, origin.source if " " in origin.source else ""),
                note=origin.note,
                range=low_high,
                rows=origin.rows,
                file=origin.file,
            )
        )
    return rows


def assumed_or_fitted(gpu: GpuSpec) -> list[AuditRow]:
    """The parameters of `gpu` that rest on no datasheet and no measurement of their own."""
    return [row for row in audit(gpu) if row.status in ("assumed", "fitted")]


def findings(gpu: GpuSpec) -> list[str]:
    """What is wrong with the clocks and the provenance of `gpu`, one line each; empty for a clean description.

    A line is *file: path: expected …, found …*, as for errors of reading, but none of these keeps the
    file from loading.
    """
    lines = []
    rows = audit(gpu)
    if gpu.clock.boost > gpu.clock.max:  # a rated clock that the chip cannot run at: one of the two is mistyped
        boost, most = (next(row for row in rows if row.path == f"clock.{name}") for name in ("boost", "max"))
        there = f" in {most.file}" if most.file != boost.file else ""  # either may be what a variant changed
        lines.append(
            f"{boost.file or gpu.name}: clock.boost: expected at most clock.max ({most.value:g} {most.unit}{there}), "
            f"found {boost.value:g} {boost.unit}"
        )
    for row in rows:
        where = f"{row.file or gpu.name}: {row.path}"
        if row.value is None:
            lines.append(f"{where}: expected a value, found none")
        if not row.status:
            lines.append(f"{where}: expected a source and a status, found a default of the schema")
            continue
        has_range = row.range is not None or isinstance(row.value, bool | tuple)  # a choice has none
        if row.status == "fitted" and not (row.rows and has_range):
            lines.append(f"{where}: expected rows and a range for a fitted value, found one without")
        if row.status == "assumed" and not row.note:
            lines.append(f"{where}: expected a note that says how an assumed value was chosen, found none")
        if not row.citation:
            lines.append(f"{where}.source: expected a code of sources.toml or a citation, found {row.source!r}")
    return lines
