"""CSV tables inside tool output: lines before the header, quoted numbers with thousands separators, units."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sparsesim import textfiles
from sparsesim.errors import UserError

__all__ = ["Table", "number", "read_table", "read_text", "seconds"]

#: time units of the tools → seconds
TIME_UNITS = {
    "s": 1.0, "second": 1.0, "sec": 1.0, "ms": 1e-3, "msecond": 1e-3, "us": 1e-6, "usecond": 1e-6, "µs": 1e-6,
    "ns": 1e-9, "nsecond": 1e-9,
}  # fmt: skip
MAX_BYTES = 2**30


@dataclass(frozen=True)
class Table:
    """Header and rows of a CSV table; `lines` are the line numbers of the rows in the file."""

    header: tuple[str, ...]
    rows: list[dict[str, str]]
    lines: list[int]


def read_text(path: Path) -> str:
    """The text of a profile; raises UserError if it is none, or larger than 1 GiB."""
    if path.is_file() and path.stat().st_size > MAX_BYTES:
        raise UserError(f"{path}: expected a profile of at most {MAX_BYTES >> 20} MiB, found a larger file")
    return textfiles.read_text(path, "a readable file")


def read_table(path: Path, columns: Iterable[str], text: str | None = None) -> Table:
    """The table whose header has all `columns`, wherever in the file it begins.

    Rows end at an empty line or at one of a tool's messages (``==PROF==``). Raises UserError if there is no such
    header, or a row has too few or too many cells.
    """
    wanted = set(columns)
    lines = (read_text(path) if text is None else text).splitlines()
    for start, line in enumerate(lines):
        header = tuple(cell.strip() for cell in _cells(line))
        if not wanted <= set(header):
            continue
        rows: list[dict[str, str]] = []
        numbers: list[int] = []
        for at, row in enumerate(lines[start + 1 :], start + 2):
            if row.startswith("==") or not row.strip():
                if rows:
                    break
                continue
            cells = _cells(row)
            if len(cells) != len(header):
                raise UserError(f"{path}: line {at}: expected {len(header)} cells, found {len(cells)}")
            rows.append(dict(zip(header, cells, strict=True)))
            numbers.append(at)
        return Table(header, rows, numbers)
    raise UserError(f"{path}: expected a header with {', '.join(sorted(wanted))}, found none")


def _cells(line: str) -> list[str]:
    try:
        return next(csv.reader(io.StringIO(line), strict=True), [])
    except csv.Error:
        return []


def number(text: str | None) -> float | None:
    """The number in a cell (``1,234.5``, ``12 %``), or None."""
    if text is None:
        return None
    try:
        value = float(text.strip().rstrip("%").replace(",", "").replace("'", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def seconds(text: str | None, unit: str) -> float | None:
    """A time in `unit` as seconds, or None."""
    value, factor = number(text), TIME_UNITS.get(unit.strip().lower())
    return None if value is None or factor is None else value * factor
