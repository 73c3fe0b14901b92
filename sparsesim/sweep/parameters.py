"""Parameters of a `GpuSpec` by dotted path: their value, unit and kind, and a description with some replaced.

A replaced parameter goes through `hardware.load.override`, so that it is checked as a file's value is, and the
libraries' heuristics still know the board that the description started from.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from sparsesim.errors import UserError, nearest
from sparsesim.hardware import GpuSpec
from sparsesim.hardware.load import override
from sparsesim.hardware.spec import unit_of

__all__ = ["FACTOR", "changed", "edited", "is_count", "rounded", "sections", "unit", "value_at"]

#: unit of a value that multiplies the GPU's own
FACTOR = "x"


def sections() -> dict[str, type[BaseModel]]:
    """The sections of a hardware file with the models that declare their fields."""
    return {
        name: field.annotation
        for name, field in GpuSpec.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel) and name != "library_target"
    }


def unit(path: str) -> str | None:
    """Canonical unit of the parameter at `path`, or None where no section has such a field."""
    section, _, rest = path.partition(".")
    field = rest.partition(".")[0]
    model = sections().get(section)
    return unit_of(model, field) if model is not None and field in model.model_fields else None


def is_count(path: str) -> bool:
    """Whether the parameter at `path` is a whole number."""
    section, _, field = path.partition(".")
    model = sections().get(section)
    return model is not None and field in model.model_fields and model.model_fields[field].annotation is int


def paths(gpu: GpuSpec) -> list[str]:
    """Every parameter of `gpu` by path."""

    def leaves(node: Mapping[str, Any], prefix: str) -> Iterator[str]:
        for key, value in node.items():
            if isinstance(value, Mapping):
                yield from leaves(value, f"{prefix}{key}.")
            else:
                yield prefix + key

    data = gpu.model_dump()
    return [path for name in sections() for path in leaves(data[name], f"{name}.")]


def value_at(gpu: GpuSpec, path: str) -> Any:
    """The value at `path`, in its canonical unit; raises `UserError` with the nearest path if there is none."""
    node: Any = gpu
    for part in path.split("."):
        if isinstance(node, Mapping) and part in node:
            node = node[part]
        elif isinstance(node, BaseModel) and part in type(node).model_fields:
            node = getattr(node, part)
        else:
            hint = nearest(path, paths(gpu))
            raise UserError(f"{gpu.name}: {path}: expected a parameter path{hint}, found no such one")
    return node


def changed(gpu: GpuSpec, values: Mapping[str, Any], factors: Mapping[str, float]) -> dict[str, Any]:
    """What differs from `gpu` if `values` [canonical units] are set and `factors` multiply its own values.

    Counts are rounded. A parameter that keeps its value is left out, so that equal boards have equal changes.

    Raises
    ------
    UserError
        A path that the GPU lacks, or a factor of what is no number.
    """
    changes: dict[str, Any] = {}
    for path, factor in factors.items():
        own = value_at(gpu, path)
        if isinstance(own, bool) or not isinstance(own, int | float):
            raise UserError(f"{gpu.name}: {path}: expected a number to multiply by {factor:g}, found {own!r}")
        changes[path] = own * factor
    changes.update(values)
    for path, value in changes.items():
        if is_count(path) and isinstance(value, float) and math.isfinite(value):
            changes[path] = rounded(value)
        elif isinstance(value, list):
            changes[path] = tuple(value)
    return {path: value for path, value in changes.items() if value != value_at(gpu, path)}


def rounded(value: float) -> int:
    """The count that `value` stands for."""
    return max(1, round(value))


def edited(gpu: GpuSpec, changes: Mapping[str, Any]) -> GpuSpec:
    """`gpu` with `changes`; the GPU itself where there are none. Raises `UserError` for a value out of range."""
    return override(gpu, dict(changes)) if changes else gpu
