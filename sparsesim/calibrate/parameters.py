"""The parameters that a fit may move: those with a range, mapped to [0, 1] over it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sparsesim.errors import UserError, nearest
from sparsesim.hardware import GpuSpec
from sparsesim.hardware.audit import AuditRow, audit
from sparsesim.hardware.spec import unit_of
from sparsesim.units import to_canonical

__all__ = ["DEFAULT_PARAMETERS", "Parameter", "family_file", "parameters_of"]

#: what is fitted where no list is given, as far as it has a range and moves the rows. launch.drain is not here:
#: it acts as launch.ramp does
DEFAULT_PARAMETERS = (
    "power.mac.f16", "power.mac.tf32", "power.mac.i8", "power.mac.e4m3", "power.mac.e2m1", "power.sparse_mac_ratio",
    "power.sm_active", "power.idle", "power.burst_ratio", "power.burst_window",
    "dram.tiled_fraction", "dram.latency", "l2.bytes_per_clk",
    "l2.sm_bytes_per_clk", "l2.far_copies", "smem.fill_contention", "pipeline.barrier", "pipeline.sparse_barrier",
    "pipeline.epilogue", "launch.cta_start", "launch.ramp", "launch.sparse_ramp", "launch.stream_gap",
    "launch.graph_gap", "launch.event_overhead", "launch.host_call", "launch.framework_call",
)  # fmt: skip
#: significant digits of a fitted value
DIGITS = 4
#: share of a range that begins at 0 below which a value is 0
NOTHING = 1e-6


@dataclass(frozen=True)
class Parameter:
    """A parameter with its range, in the unit of its hardware file.

    Its coordinate runs from 0 at `low` to 1 at `high`: linear in ln(value), or in the value itself where the
    range begins at 0 (`scale`).
    """

    path: str
    unit: str
    start: float
    low: float
    high: float
    file: str

    @property
    def scale(self) -> str:
        """``log`` or ``linear``."""
        return "log" if self.low > 0 else "linear"

    @property
    def canonical_factor(self) -> float:
        """Canonical units in one of `unit`."""
        section, field = self.path.split(".")[:2]
        model = GpuSpec.model_fields[section].annotation
        assert isinstance(model, type)
        return to_canonical(1.0, self.unit, unit_of(model, field))

    def coordinate(self, value: float) -> float:
        """Coordinate of a value."""
        if self.scale == "log":
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def value(self, coordinate: float) -> float:
        """Value at a coordinate, within the range whatever the rounding."""
        if self.scale == "log":
            value = self.low * (self.high / self.low) ** coordinate
        else:
            value = self.low + coordinate * (self.high - self.low)
            if value < NOTHING * self.high:  # rounding of a fit that ended at 0
                value = 0.0
        return min(max(value, self.low), self.high)

    def rounded(self, coordinate: float) -> float:
        """Value at a coordinate in `DIGITS` significant digits, as a hardware file holds it."""
        return min(max(float(f"{self.value(coordinate):.{DIGITS}g}"), self.low), self.high)

    def slope(self, value: float) -> float:
        """d coordinate / d ln(value)."""
        if self.scale == "log":
            return 1.0 / math.log(self.high / self.low)
        return value / (self.high - self.low)


def family_file(gpu: GpuSpec) -> str:
    """Name of the file that the GPUs of one family share."""
    return f"{gpu.family}.toml"


def parameters_of(
    gpu: GpuSpec, paths: Sequence[str] | None = None, shared_by: Sequence[GpuSpec] = ()
) -> list[Parameter]:
    """The parameters at `paths`, or those of `DEFAULT_PARAMETERS` that a fit of `gpu` may move.

    A parameter can be fitted if its provenance has a range and its status is not ``datasheet``. With
    `shared_by`, only values that the family's file sets for `gpu` and for all of those GPUs count.

    Raises
    ------
    UserError
        Unknown paths (with the nearest one), parameters without a range, or set outside the family's file:
        every problem, one line each.
    """
    rows = {row.path: row for row in audit(gpu)}
    problems = []
    found = []
    for path in dict.fromkeys(DEFAULT_PARAMETERS if paths is None else paths):
        why = _unfit(gpu, path, rows, shared_by)
        if why is None:
            row = rows[path]
            assert row.range is not None
            found.append(Parameter(path, row.unit, float(row.value), *row.range, row.file))
        elif paths is not None:
            problems.append(why)
    if problems:
        raise UserError(problems)
    if not found:
        raise UserError(f"{gpu.name}: expected a parameter with a range to fit, found none")
    return found


def _unfit(gpu: GpuSpec, path: str, rows: dict[str, AuditRow], shared_by: Sequence[GpuSpec]) -> str | None:
    """Why the parameter at `path` cannot be fitted, or None."""
    row = rows.get(path)
    if row is None:
        return f"{gpu.name}: {path}: expected a parameter path{nearest(path, rows)}, found no such one"
    if row.range is None or row.status == "datasheet" or row.range[0] == row.range[1]:
        return f"{gpu.name}: {path}: expected a parameter with a range, found one without ({row.status or 'default'})"
    if isinstance(row.value, bool) or not isinstance(row.value, int | float):
        return f"{gpu.name}: {path}: expected a number, found {row.value!r}"
    if not shared_by:
        return None
    family = family_file(gpu)
    for other in (gpu, *shared_by):
        file = other.provenance[path].file if path in other.provenance else ""
        if file != family:
            return f"{gpu.name}: {path}: expected a value of the family's {family}, found one of {file or 'no file'}"
    return None
