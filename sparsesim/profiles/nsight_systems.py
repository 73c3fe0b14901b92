"""Nsight Systems: ``nsys stats`` tables and the SQLite export.

Reports read: ``cuda_gpu_trace`` (a line for each launch), ``cuda_gpu_kern_sum`` (a line for each kernel name) and
``nvtx_kern_sum`` (for each NVTX range and kernel name). Shapes come from NVTX ranges that name them (see
`shape_of_text`); in the SQLite export the range is the innermost one that is open on the thread when the launch is
made.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from sparsesim.errors import UserError
from sparsesim.profiles.kernel_names import parse_kernel_name
from sparsesim.profiles.record import Profile, ProfiledKernel, shape_of_text
from sparsesim.profiles.tables import Table, number, read_table, seconds

__all__ = ["read_nsys_sqlite", "read_nsys_stats"]

#: NVTX_EVENTS.eventType of push/pop and of start/end ranges
RANGES = (59, 60)


def read_nsys_stats(path: Path) -> Profile:
    """Kernels of one ``nsys stats --format csv`` report; raises UserError if it is none of those read."""
    for columns, reader in (
        (("Kernel Name", "NVTX Range"), _nvtx_sum),
        (("CorrId", "Name"), _trace),
        (("Instances", "Name"), _kernel_sum),
    ):
        try:
            table = read_table(path, columns)
        except UserError as err:
            if "expected a header" in err.problems[0]:
                continue
            raise
        kernels = tuple(reader(path, table))
        if not kernels:
            raise UserError(f"{path}: expected at least one kernel, found none")
        return Profile(str(path), "nsight-systems", kernels)
    raise UserError(f"{path}: expected a cuda_gpu_trace, cuda_gpu_kern_sum or nvtx_kern_sum report, found none")


def _column(table: Table, word: str) -> tuple[str, str]:
    """(column, unit) of the column called `word (unit)`."""
    for name in table.header:
        found = re.fullmatch(re.escape(word) + r"\s*\((\w+)\)", name)
        if found:
            return name, found[1]
    raise UserError(f"nsys: expected a column {word!r} with a unit, found {', '.join(table.header)}")


def _trace(path: Path, table: Table) -> Iterator[ProfiledKernel]:
    start, start_unit = _column(table, "Start")
    duration, unit = _column(table, "Duration")
    grid = next(name for name in table.header if name.startswith("Grd"))
    found = []
    for row, line in zip(table.rows, table.lines, strict=True):
        took, begun = seconds(row[duration], unit), seconds(row[start], start_unit)
        if number(row[grid]) is None or took is None or begun is None:  # a copy or a memset
            continue
        found.append((begun, line, row["Name"], took))
    for _, line, name, took in sorted(found):
        yield ProfiledKernel(name, f"{path}:{line}", parse_kernel_name(name), took * 1e6)


def _kernel_sum(path: Path, table: Table) -> Iterator[ProfiledKernel]:
    middle, unit = _column(table, "Med")
    for row, line in zip(table.rows, table.lines, strict=True):
        took = seconds(row[middle], unit)
        if took is not None:
            calls = int(number(row["Instances"]) or 1)
            name = row["Name"]
            yield ProfiledKernel(name, f"{path}:{line}", parse_kernel_name(name), took * 1e6, calls=calls)


def _nvtx_sum(path: Path, table: Table) -> Iterator[ProfiledKernel]:
    middle, unit = _column(table, "Med")
    for row, line in zip(table.rows, table.lines, strict=True):
        took = seconds(row[middle], unit)
        if took is not None:
            name = row["Kernel Name"]
            yield ProfiledKernel(
                name,
                f"{path}:{line}",
                parse_kernel_name(name),
                took * 1e6,
                shape_of_text(row["NVTX Range"]),
                calls=int(number(row.get("Kern Inst")) or 1),
            )


def read_nsys_sqlite(path: Path) -> Profile:
    """Kernels of an ``nsys export --type sqlite`` file; raises UserError if it is none."""
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as base:
            base.row_factory = sqlite3.Row
            tables = {row[0] for row in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if "CUPTI_ACTIVITY_KIND_KERNEL" not in tables:
                raise UserError(
                    f"{path}: expected a table CUPTI_ACTIVITY_KIND_KERNEL, found none: no kernel was traced"
                )
            kernels = tuple(_launches(path, base, tables))
            device = _device(base, tables)
    except sqlite3.Error as err:
        raise UserError(f"{path}: expected an SQLite export of nsys, found an error: {err}") from None
    if not kernels:
        raise UserError(f"{path}: expected at least one kernel, found none")
    return Profile(str(path), "nsight-systems-sqlite", kernels, device)


def _launches(path: Path, base: sqlite3.Connection, tables: set[str]) -> Iterator[ProfiledKernel]:
    ranges = _ranges(base, tables)
    calls: dict[int, tuple[int, int]] = {}
    if "CUPTI_ACTIVITY_KIND_RUNTIME" in tables:
        for row in base.execute("SELECT correlationId, start, globalTid FROM CUPTI_ACTIVITY_KIND_RUNTIME"):
            calls[row[0]] = (row[1], row[2])
    query = (
        "SELECT k.start AS start, k.end AS end, k.correlationId AS id, s.value AS name "
        "FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.demangledName ORDER BY k.start"
    )
    for number_, row in enumerate(base.execute(query), 1):
        call = calls.get(row["id"])
        shape = None
        if call is not None:
            begun, thread = call
            for start, end, text in reversed(ranges.get(thread, [])):  # innermost first: the latest that is open
                if start <= begun <= end:
                    shape = shape_of_text(text)
                    if shape is not None:
                        break
        yield ProfiledKernel(
            row["name"],
            f"{path}:kernel {number_}",
            parse_kernel_name(row["name"]),
            (row["end"] - row["start"]) / 1e3,
            shape,
        )


def _ranges(base: sqlite3.Connection, tables: set[str]) -> dict[int, list[tuple[int, int, str]]]:
    """Thread → its NVTX ranges (start, end, text) by start. A range's text is its own or a registered string."""
    ranges: dict[int, list[tuple[int, int, str]]] = {}
    if "NVTX_EVENTS" not in tables:
        return ranges
    columns = {row[1] for row in base.execute("PRAGMA table_info(NVTX_EVENTS)")}
    registered = "LEFT JOIN StringIds s ON s.id = e.textId" if "textId" in columns else ""
    text = "COALESCE(e.text, s.value)" if registered else "e.text"
    query = (
        f"SELECT e.start, e.end, {text}, e.globalTid FROM NVTX_EVENTS e {registered} "
        f"WHERE e.eventType IN {RANGES} AND e.end IS NOT NULL ORDER BY e.start"
    )
    for start, end, label, thread in base.execute(query):
        if label:
            ranges.setdefault(thread, []).append((start, end, label))
    return ranges


def _device(base: sqlite3.Connection, tables: set[str]) -> dict[str, Any] | None:
    if "TARGET_INFO_GPU" not in tables:
        return None
    row = base.execute("SELECT * FROM TARGET_INFO_GPU LIMIT 1").fetchone()
    if row is None:
        return None
    found = dict(row)
    names = {
        "name": "name",
        "sms": "smCount",
        "major": "computeMajor",
        "minor": "computeMinor",
        "memory": "totalMemory",
    }
    return {name: found[column] for name, column in names.items() if found.get(column) is not None}
