"""Nsight Compute: ``ncu --csv`` in both of its layouts.

The details page has a line for each kernel and metric (``"Metric Name","Metric Unit","Metric Value"``); the raw page
(``--page raw``) has a line for each kernel, a column for each metric, and a line of units under the header. Metrics are
taken by their names and by the labels of the standard sections. ncu locks the SM clock to base and flushes the caches
before each pass unless told otherwise (``--clock-control``, ``--cache-control``), so a kernel's L2 is ``cold`` and its
clock is what the profile says.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sparsesim.errors import UserError
from sparsesim.profiles.kernel_names import parse_kernel_name
from sparsesim.profiles.record import KernelShape, Profile, ProfiledKernel, shape_of_text
from sparsesim.profiles.tables import Table, number, read_table, seconds

__all__ = ["METRICS", "read_nsight_compute"]

#: what is taken → the names it has, best first: the metric's, then the label of a standard section
METRICS = {
    "duration": ("gpu__time_duration.sum", "Duration"),
    "clock": (
        "gpc__cycles_elapsed.avg.per_second", "smsp__cycles_elapsed.avg.per_second",
        "sm__cycles_elapsed.avg.per_second", "SM Frequency",
    ),
    "tensor_active": (
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
        "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active",
        "sm__pipe_tensor_op_imma_cycles_active.avg.pct_of_peak_sustained_active",
        "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
    ),
    "l2_hit_rate": ("lts__t_sector_hit_rate.pct", "L2 Hit Rate"),
    "dram_read": ("dram__bytes_read.sum",),
    "dram_write": ("dram__bytes_write.sum",),
    "dram_bytes": ("dram__bytes.sum",),
    "occupancy": ("sm__warps_active.avg.pct_of_peak_sustained_active", "Achieved Occupancy"),
}  # fmt: skip
BYTE_UNITS = {
    "byte": 1.0, "b": 1.0, "kbyte": 1e3, "kb": 1e3, "mbyte": 1e6, "mb": 1e6, "gbyte": 1e9, "gb": 1e9, "tbyte": 1e12,
}  # fmt: skip
RATE_UNITS = {
    "hz": 1.0, "khz": 1e3, "mhz": 1e6, "ghz": 1e9, "cycle/second": 1.0, "cycle/usecond": 1e6, "cycle/nsecond": 1e9,
    "cycle/s": 1.0, "cycle/us": 1e6, "cycle/ns": 1e9,
}  # fmt: skip
#: a kernel's metrics: name → (value, unit)
_Metrics = dict[str, tuple[str, str]]


def read_nsight_compute(path: Path) -> Profile:
    """Kernels of an ``ncu --csv`` export, in order; raises UserError if it is none."""
    table = read_table(path, ("ID", "Kernel Name"))
    kernels = tuple(_long(path, table) if "Metric Name" in table.header else _wide(path, table))
    if not kernels:
        raise UserError(f"{path}: expected at least one kernel, found none")
    return Profile(str(path), "nsight-compute", kernels)


def _long(path: Path, table: Table) -> Iterable[ProfiledKernel]:
    for column in ("Metric Unit", "Metric Value"):
        if column not in table.header:
            raise UserError(f"{path}: expected a column {column!r}, found none")
    launches: dict[tuple[str, str], tuple[int, dict[str, str], _Metrics]] = {}
    for row, line in zip(table.rows, table.lines, strict=True):
        _, _, metrics = launches.setdefault((row.get("Process ID", ""), row["ID"]), (line, row, {}))
        if row["Metric Name"]:
            metrics.setdefault(row["Metric Name"], (row["Metric Value"], row["Metric Unit"]))
    for line, row, metrics in launches.values():
        yield _kernel(path, line, row, metrics)


def _wide(path: Path, table: Table) -> Iterable[ProfiledKernel]:
    # the line under the header holds units, and no kernel
    units = table.rows[0] if table.rows and not table.rows[0]["ID"].strip() else {}
    start = 1 if units else 0
    for row, line in zip(table.rows[start:], table.lines[start:], strict=True):
        yield _kernel(path, line, row, {name: (value, units.get(name, "")) for name, value in row.items()})


def _kernel(path: Path, line: int, row: dict[str, str], metrics: _Metrics) -> ProfiledKernel:
    duration = _first(metrics, "duration")
    took = None if duration is None else seconds(*duration)
    clock = _scaled(_first(metrics, "clock"), RATE_UNITS)
    counters = {}
    for name in ("tensor_active", "l2_hit_rate", "occupancy"):
        share = _first(metrics, name)
        value = None if share is None else number(share[0])
        if value is not None:
            counters[name] = value / 100.0
    moved = [_scaled(_first(metrics, name), BYTE_UNITS) for name in ("dram_read", "dram_write")]
    known = [value for value in moved if value is not None]
    total = sum(known) if len(known) == len(moved) else _scaled(_first(metrics, "dram_bytes"), BYTE_UNITS)
    if total is not None:
        counters["dram_bytes"] = total
    name = row["Kernel Name"]
    return ProfiledKernel(
        name=name,
        where=f"{path}:{line}",
        parsed=parse_kernel_name(name),
        time_us=None if took is None else took * 1e6,
        shape=_shape(row),
        counters=counters,
        clock_hz=clock,
        l2="cold",
    )


def _shape(row: dict[str, str]) -> KernelShape | None:
    """The shape that an NVTX range round the launch names (``ncu --nvtx``)."""
    for column, value in row.items():
        if "_Range" in column or "NVTX" in column.upper():
            shape = shape_of_text(value)
            if shape is not None:
                return shape
    return None


def _first(metrics: _Metrics, what: str) -> tuple[str, str] | None:
    return next((metrics[name] for name in METRICS[what] if name in metrics and metrics[name][0].strip()), None)


def _scaled(found: tuple[str, str] | None, units: dict[str, float]) -> float | None:
    if found is None:
        return None
    value, factor = number(found[0]), units.get(found[1].strip().lower())
    return None if value is None or factor is None else value * factor
