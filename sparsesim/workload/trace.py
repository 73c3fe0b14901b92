"""Long traces: one GEMM a line, as CSV with a header or as JSONL, read line by line.

CSV may begin with comment lines; ``# description: …`` and ``# source: …`` among them are kept. JSONL may
begin with ``{"workload": {"description": "…", "source": "…"}}``. Fields are those of `Gemm`; m, n and k
are required and an op without a name is called after its line. A JSONL line ``{"other": {"name": "…",
"op": "…", …}}`` is an op that is no GEMM, with the fields of `OtherOp`.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from sparsesim.errors import Problem, UserError, nearest
from sparsesim.workload.files import BadText, open_bytes, text_lines
from sparsesim.workload.ops import GEMM_FIELDS, Gemm, GemmError, Workload, issue_line
from sparsesim.workload.others import OTHER_FIELDS, OtherOp

__all__ = ["SHOWN_PROBLEMS", "TRACE_SUFFIXES", "iter_trace", "load_trace"]

TRACE_SUFFIXES = (".csv", ".jsonl")
SHOWN_PROBLEMS = 20
"""Problems worded per trace; further ones are counted."""

_REQUIRED = ("m", "n", "k")
_SIZES = frozenset(("m", "n", "k", "batch", "count"))
_ABOUT = ("description", "source")
_FIELDS = frozenset(GEMM_FIELDS)


@dataclass
class _Trace:
    """What is known about one file while it is read: its problems and its own description."""

    where: str
    lines: list[str] = field(default_factory=list)
    problems: int = 0
    about: dict[str, str] = field(default_factory=dict)
    others: dict[str, OtherOp] = field(default_factory=dict)

    def add(self, line: str) -> None:
        """Count a problem, and keep its wording if it is among the first."""
        self.problems += 1
        if self.problems <= SHOWN_PROBLEMS:
            self.lines.append(line)

    def at(self, number: int, expected: str, found: Any, hint: str = "") -> None:
        """Record a problem of line `number`."""
        self.add(Problem.line(self.where, f"line {number}", expected, found) + hint)

    def raise_if_any(self) -> None:
        """Raise `UserError` with the first problems and the number of further ones."""
        if self.problems > SHOWN_PROBLEMS:
            self.lines.append(f"{self.where}: and {self.problems - SHOWN_PROBLEMS} further problems")
        if self.lines:
            raise UserError(self.lines)


def iter_trace(path: str | Path) -> Iterator[Gemm]:
    """The ops of a CSV or JSONL trace one by one, in constant memory; names may repeat here.

    Raises
    ------
    UserError
        Ops end at the first problem; the rest of the file is then checked, and all problems are raised.
    """
    path = Path(path)
    trace = _Trace(str(path))
    for _, op in _read(path, trace):
        if not trace.problems:
            yield op
    trace.raise_if_any()


def load_trace(path: str | Path) -> Workload:
    """The whole trace at `path` as a workload named after the file; raises `UserError`."""
    path = Path(path)
    trace = _Trace(str(path))
    first: dict[str, int] = {}
    ops: list[Gemm] = []
    for number, op in _read(path, trace):
        if first.setdefault(op.name, number) != number:
            trace.at(number, f"a unique name (line {first[op.name]} has it too)", op.name)
        ops.append(op)
    trace.raise_if_any()
    about = trace.about.get("description", ""), trace.about.get("source", "")
    return Workload(path.stem, *about, tuple(ops), tuple(trace.others.values()))


def _read(path: Path, trace: _Trace) -> Iterator[tuple[int, Gemm]]:
    """Line numbers and ops of `path`; problems go to `trace`."""
    rows = {".csv": _csv_rows, ".jsonl": _jsonl_rows}.get(path.suffix.lower())
    if rows is None:
        raise UserError(Problem.line(str(path), "", "a file ending in .csv or .jsonl", path.suffix))
    seen = False
    with open_bytes(path) as file:
        try:
            for number, values in rows(file, trace):
                seen = True
                values.setdefault("name", f"line-{number}")
                try:
                    yield number, Gemm(**values)
                except GemmError as error:
                    for issue in error.issues:
                        trace.add(issue_line(trace.where, f"line {number}: ", issue))
        except BadText as error:
            trace.add(f"{trace.where}: {error}")
        size = file.tell()
    if not seen and not trace.problems:
        trace.add(f"{trace.where}: expected at least one op, found {'none' if size else 'an empty file'}")


# --- CSV ---


def _csv_rows(file: BinaryIO, trace: _Trace) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line numbers and `Gemm` arguments of the rows of a CSV file."""
    lines = _Comments(text_lines(file), trace)
    reader = csv.reader(lines, strict=True)
    header: list[str] | None = None
    try:
        for row in reader:
            number = lines.skipped + reader.line_num
            if not row or (len(row) == 1 and not row[0].strip()):
                continue
            if header is None:
                header = [cell.strip() for cell in row]
                if not _good_header(header, number, trace):
                    return
            elif len(row) != len(header):
                trace.at(number, f"{len(header)} columns", len(row))
            else:
                yield number, _csv_values(header, row)
    except csv.Error as error:
        trace.at(lines.skipped + reader.line_num, "CSV text", str(error))


class _Comments:
    """Iterator over lines without the comment lines at the top, which may describe the trace."""

    def __init__(self, lines: Iterator[str], trace: _Trace) -> None:
        self.lines = lines
        self.trace = trace
        self.skipped = 0
        self.top = True

    def __iter__(self) -> _Comments:
        return self

    def __next__(self) -> str:
        line = next(self.lines)
        while self.top and line.startswith("#"):
            key, _, value = line[1:].partition(":")
            if key.strip() in _ABOUT:
                self.trace.about[key.strip()] = value.strip()
            self.skipped += 1
            line = next(self.lines)
        self.top = False
        return line


def _good_header(header: list[str], number: int, trace: _Trace) -> bool:
    """Whether the header names each required column and only known ones, once each."""
    before = trace.problems
    for column in dict.fromkeys(header):
        if column not in GEMM_FIELDS:
            expected = "columns among " + ", ".join(GEMM_FIELDS)
            trace.at(number, expected, column, nearest(column, GEMM_FIELDS))
        elif header.count(column) > 1:
            trace.at(number, f"column {column} once", f"{header.count(column)} times")
    for column in _REQUIRED:
        if column not in header:
            trace.at(number, f"a column {column}", ",".join(header))
    return trace.problems == before


def _csv_values(header: list[str], row: list[str]) -> dict[str, Any]:
    """Arguments from one row; an empty cell leaves the default, an odd size stays text."""
    values: dict[str, Any] = {}
    for column, cell in zip(header, row, strict=True):
        text = cell.strip()
        if column not in _SIZES:
            if text:
                values[column] = text
        elif text.isascii() and text.isdigit() and len(text) < 1000:
            values[column] = int(text)
        elif text or column in _REQUIRED:
            values[column] = text
    return values


# --- JSONL ---


class _TwiceError(ValueError):
    """A field that occurs twice in one JSON object."""


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A dict of JSON fields that must not repeat."""
    values = dict(pairs)
    if len(values) != len(pairs):
        keys = [key for key, _ in pairs]
        raise _TwiceError(next(key for key in keys if keys.count(key) > 1))
    return values


def _jsonl_rows(file: BinaryIO, trace: _Trace) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line numbers and `Gemm` arguments of the objects of a JSONL file."""
    decode = json.JSONDecoder(object_pairs_hook=_pairs).decode
    first = True
    for number, line in enumerate(text_lines(file), start=1):
        if not line.strip():
            continue
        try:
            values = decode(line)
        except _TwiceError as error:
            trace.at(number, "each field once", str(error))
            continue
        except (ValueError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else "out of range"
            trace.at(number, "one complete JSON object", line.strip(), f" ({reason})")
            continue
        if first and isinstance(values, dict) and "workload" in values:
            _jsonl_about(values, number, trace)
        elif isinstance(values, dict) and "other" in values:
            _jsonl_other(values, number, trace)
        elif not isinstance(values, dict):
            trace.at(number, "one JSON object", values)
        elif _good_fields(values, number, trace):
            yield number, values
        first = False


def _jsonl_about(values: dict[str, Any], number: int, trace: _Trace) -> None:
    """Keep description and source of a leading ``{"workload": {…}}``."""
    about = values["workload"]
    if len(values) > 1 or not isinstance(about, dict):
        trace.at(number, "the one field workload with an object", values)
        return
    for key, value in about.items():
        if key not in _ABOUT or not isinstance(value, str):
            trace.at(number, "a description and a source, as text", {key: value}, nearest(key, _ABOUT))
        else:
            trace.about[key] = value


def _jsonl_other(values: dict[str, Any], number: int, trace: _Trace) -> None:
    """Keep the op of an ``{"other": {…}}``."""
    fields_ = values["other"]
    if len(values) > 1 or not isinstance(fields_, dict):
        trace.at(number, "the one field other with an object", values)
        return
    before = trace.problems
    for key in fields_:
        if key not in OTHER_FIELDS:
            trace.at(number, "fields among " + ", ".join(OTHER_FIELDS), key, nearest(key, OTHER_FIELDS))
    for key in ("name", "op"):
        if key not in fields_:
            trace.at(number, f"a field {key}", ",".join(fields_))
    if trace.problems > before:
        return
    try:
        other = OtherOp(**fields_)
    except UserError as error:
        for line in error.problems:
            trace.add(f"{trace.where}: line {number}: {line}")
        return
    if trace.others.setdefault(other.name, other) is not other:
        trace.at(number, "a unique name", other.name)


def _good_fields(values: dict[str, Any], number: int, trace: _Trace) -> bool:
    """Whether an object has every required field and only known ones."""
    before = trace.problems
    for key in values:
        if key not in _FIELDS:
            expected = "fields among " + ", ".join(GEMM_FIELDS)
            trace.at(number, expected, key, nearest(key, GEMM_FIELDS))
    for key in _REQUIRED:
        if key not in values:
            trace.at(number, f"a field {key}", ",".join(values))
    return trace.problems == before
