"""Reader of measured kernel timings (CSV), one row a timing.

Columns: gpu, library, m, n, k, batch, dtype, acc_dtype, pattern, sparse_operand, time_us, timing, l2, clock, set,
source. A file that is not of this schema is an error; a row that cannot be read is one, too, with its line.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsesim.errors import ProblemList, UserError, nearest

__all__ = ["COLUMNS", "MeasuredRow", "read_measured"]

COLUMNS = (
    "gpu", "library", "m", "n", "k", "batch", "dtype", "acc_dtype", "pattern", "sparse_operand", "time_us", "timing",
    "l2", "clock", "set", "source",
)  # fmt: skip
MAX_SHOWN = 20


@dataclass(frozen=True)
class MeasuredRow:
    """One measured timing; `line` and `file` say where it stands."""

    gpu: str
    library: str
    m: int
    n: int
    k: int
    batch: int
    dtype: str
    acc_dtype: str
    pattern: str
    sparse_operand: str
    time_us: float
    timing: str
    l2: str
    clock: str
    set: str
    source: str
    file: str
    line: int

    @property
    def is_sparse(self) -> bool:
        """Whether the row was taken on a sparse kernel."""
        return self.pattern != "dense"

    @property
    def pair_key(self) -> tuple[object, ...]:
        """Equal for a dense and a sparse row of one source with equal shape and dtype."""
        return (
            self.gpu,
            self.source,
            self.m,
            self.n,
            self.k,
            self.batch,
            self.dtype,
            self.timing,
            self.l2,
            self.clock,
            self.set,
        )


def read_measured(path: str | Path) -> list[MeasuredRow]:
    """Rows of one file, in order.

    Raises
    ------
    UserError
        Missing or empty file, missing columns, or unreadable numbers: every problem (at most 20 shown).
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(
            f"{path}: expected a CSV file of measured timings, found {'a folder' if path.is_dir() else 'no such file'}"
        )
    problems = ProblemList(str(path))
    rows: list[MeasuredRow] = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as handle:
            reader = csv.DictReader(handle, strict=True)
            header = reader.fieldnames or []
            if not header:
                raise UserError(f"{path}: expected a header and at least one row, found an empty file")
            for column in COLUMNS:
                if column not in header:
                    problems.add("header", f"a column {column!r}{nearest(column, header)}", ",".join(header))
            problems.raise_if_any()
            for raw in reader:
                row = _row(raw, path, reader.line_num, problems)
                if row is not None:
                    rows.append(row)
    except UnicodeDecodeError as err:
        raise UserError(f"{path}: expected UTF-8 text, found byte {err.start} that is not") from None
    except csv.Error as err:
        raise UserError(f"{path}: expected CSV, found an error: {err}") from None
    if len(problems.lines) > MAX_SHOWN:
        more = len(problems.lines) - MAX_SHOWN
        problems.lines[MAX_SHOWN:] = [f"{path}: and {more} further problem{'s' if more > 1 else ''}"]
    problems.raise_if_any()
    if not rows:
        raise UserError(f"{path}: expected at least one row, found none")
    return rows


def _row(raw: dict[str, Any], path: Path, line: int, problems: ProblemList) -> MeasuredRow | None:
    if None in raw or any(value is None for value in raw.values()):
        problems.add(f"line {line}", f"{len(COLUMNS)} fields", f"{sum(v is not None for v in raw.values())} fields")
        return None
    sizes: dict[str, int] = {}
    for name in ("m", "n", "k", "batch"):
        try:
            sizes[name] = int(raw[name])
        except ValueError:
            sizes[name] = 0
        if sizes[name] < 1:
            problems.add(f"line {line}: {name}", "a positive integer", raw[name])
            return None
    try:
        time_us = float(raw["time_us"])
    except ValueError:
        time_us = math.nan
    if not (math.isfinite(time_us) and time_us > 0):
        problems.add(f"line {line}: time_us", "a positive number", raw["time_us"])
        return None
    text = {name: raw[name].strip() for name in COLUMNS if name not in ("m", "n", "k", "batch", "time_us")}
    return MeasuredRow(time_us=time_us, file=str(path), line=line, **sizes, **text)  # type: ignore[arg-type]
