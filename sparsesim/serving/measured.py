"""Reader of measured serving throughputs (CSV), one row a cell.

Columns: gpu, model, dtype, phase, tokens, dense_tokens_per_s, speedup.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

from sparsesim.errors import ProblemList, UserError, nearest

__all__ = ["COLUMNS", "Cell", "is_serving_file", "read_cells"]

COLUMNS = ("gpu", "model", "dtype", "phase", "tokens", "dense_tokens_per_s", "speedup")
PHASES = ("prefill", "decode")
MAX_SHOWN = 20


@dataclass(frozen=True)
class Cell:
    """One measured cell: throughput of the dense model [tokens/s], and that of the 2:4 model over it."""

    gpu: str
    model: str
    dtype: str
    phase: str
    tokens: int
    dense_tokens_per_s: float
    speedup: float
    file: str
    line: int


def is_serving_file(path: str | Path) -> bool:
    """Whether the header of `path` is that of serving throughputs; False where it cannot be read."""
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as handle:
            header = next(csv.reader(handle), [])
    except (OSError, UnicodeDecodeError, csv.Error):
        return False
    return {"model", "phase", "dense_tokens_per_s"} <= set(header)


def read_cells(path: str | Path) -> list[Cell]:
    """Cells of one file, in order.

    Raises
    ------
    UserError
        Missing file or columns, words or numbers that are none: every problem (at most 20 shown).
    """
    path = Path(path)
    problems = ProblemList(str(path))
    cells: list[Cell] = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as handle:
            reader = csv.DictReader(handle, strict=True)
            header = reader.fieldnames or []
            for column in COLUMNS:
                if column not in header:
                    problems.add("header", f"a column {column!r}{nearest(column, header)}", ",".join(header))
            problems.raise_if_any()
            for row in reader:
                cell = _cell(row, path, reader.line_num, problems)
                if cell is not None:
                    cells.append(cell)
    except OSError as error:
        raise UserError(f"{path}: expected a CSV file of serving throughputs, found {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: expected UTF-8 text, found byte {error.start} that is not") from None
    except csv.Error as error:
        raise UserError(f"{path}: expected CSV, found an error: {error}") from None
    if len(problems.lines) > MAX_SHOWN:
        problems.lines[MAX_SHOWN:] = [f"{path}: and {len(problems.lines) - MAX_SHOWN} further problems"]
    problems.raise_if_any()
    if not cells:
        raise UserError(f"{path}: expected at least one row, found none")
    return cells


def _cell(row: dict[str, str], path: Path, line: int, problems: ProblemList) -> Cell | None:
    before = len(problems.lines)
    if any(row.get(column) is None for column in COLUMNS):
        problems.add(f"line {line}", f"{len(COLUMNS)} fields", "fewer")
        return None
    if row["phase"] not in PHASES:
        problems.add(f"line {line}: phase", "prefill or decode", row["phase"])
    try:
        tokens = int(row["tokens"])
    except ValueError:
        tokens = 0
    if not 1 <= tokens <= 1 << 20:
        problems.add(f"line {line}: tokens", "an integer from 1 to 1048576", row["tokens"])
    numbers: dict[str, float] = {}
    for column in COLUMNS[5:]:
        try:
            value = float(row[column])
        except ValueError:
            value = math.nan
        if not 0.0 < value < math.inf:
            problems.add(f"line {line}: {column}", "a positive number", row[column])
        numbers[column] = value
    if len(problems.lines) > before:
        return None
    return Cell(
        gpu=row["gpu"],
        model=row["model"],
        dtype=row["dtype"],
        phase=row["phase"],
        tokens=tokens,
        dense_tokens_per_s=numbers["dense_tokens_per_s"],
        speedup=numbers["speedup"],
        file=str(path),
        line=line,
    )
