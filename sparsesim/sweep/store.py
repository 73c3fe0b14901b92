"""The store of a sweep: a folder of Parquet files that nothing half-written can get into.

``sweep.json``
    Schema version, model, the sweep file, the columns. Holds its own hash.
``part-<number>-<hash>.parquet``
    `PART_ROWS` points each, in running order; the name has the hash of the file's content. The bytes depend on the
    results alone: not on who computed them, nor in which order.
``journal.jsonl``
    Finished points whose part is not full yet: one line each, with its checksum. A line that a killed run left
    half-written is no finished point.

A part is written under a temporary name, synced and renamed; only then its lines leave the journal.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

from sparsesim.errors import Problem, UserError
from sparsesim.textfiles import read_json

if TYPE_CHECKING:
    import pyarrow

__all__ = ["PART_ROWS", "SCHEMA", "Column", "Store", "StoreReader", "open_store"]

SCHEMA = "sparsesim-sweep/1"
PART_ROWS = 256
MANIFEST, JOURNAL, LOCK, MEMORY = "sweep.json", "journal.jsonl", ".lock", ".subproblems.sqlite"
_PART = re.compile(r"part-(\d{6})-([0-9a-f]{16})\.parquet")


@dataclass(frozen=True)
class Column:
    """A column of the results: Arrow type (``string``, ``int64``, ``float64``, ``bool``), unit, meaning."""

    name: str
    type: str
    unit: str = ""
    text: str = ""


class Store:
    """A store that is being written; `position` counts points in running order.

    Parameters
    ----------
    folder : made if missing; may hold an unfinished store of the same `identity`
    identity : what the results depend on, as plain data: model, sweep file, hashes of its inputs
    columns : of the results; the first is the point's number
    total : points, or None where that is not known beforehand

    Raises
    ------
    UserError
        The folder holds something else, another sweep's or another model's results, a damaged file, or is in use.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any], columns: Sequence[Column], total: int | None) -> None:
        self.folder = folder
        self.columns = tuple(columns)
        self.total = total
        self._lock = _locked(folder)
        self._journal: BinaryIO | None = None
        try:
            self._manifest: dict[str, Any] = {
                "schema": SCHEMA,
                "complete": None,
                "part_rows": PART_ROWS,
                "columns": [vars(column) for column in columns],
                **json.loads(json.dumps(identity)),
            }
            self._open()
        except BaseException:
            self._lock.close()
            raise

    def _open(self) -> None:
        path = self.folder / MANIFEST
        if path.is_file():
            found = _read_manifest(path)
            self.complete: int | None = found["complete"]
            _check_same(path, {**found, "complete": None}, self._manifest)
        else:
            if strangers := [path.name for path in self.folder.iterdir() if not _is_own(path.name)]:
                raise UserError(f"{self.folder}: expected an empty folder or a sweep's store, found {strangers[0]}")
            self.complete = None
            self._write_manifest()
        self._parts = {number: path for number, path in _parts(self.folder).items() if _check_part(path)}
        rows = _read_journal(self.folder / JOURNAL)
        self._pending = {position: row for position, row in rows if position // PART_ROWS not in self._parts}
        self._rewrite_journal()
        self._flush_parts({position // PART_ROWS for position in self._pending})

    def drop_failed(self) -> int:
        """Take failed points for not done, so that they run again; returns how many there were."""
        from pyarrow import parquet

        opened = {}
        for number, path in self._parts.items():
            rows = parquet.read_table(path).to_pylist()
            if any(row["status"] == "failed" for row in rows):
                opened[number] = path
                self._pending.update(enumerate(rows, start=number * PART_ROWS))
        failed = [position for position, row in self._pending.items() if row["status"] == "failed"]
        for position in failed:
            del self._pending[position]
        if failed and self.complete is not None:
            self.complete = None
            self._write_manifest()
        # first the good rows into the journal, then away with their parts: a kill in between loses nothing
        self._rewrite_journal()
        for number, path in opened.items():
            del self._parts[number]
            path.unlink()
        return len(failed)

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close_journal()
        self._lock.close()

    @property
    def memory_path(self) -> Path:
        """Where the times of sub-problems are kept meanwhile."""
        return self.folder / MEMORY

    def is_done(self, position: int) -> bool:
        """Whether the point at `position` is finished."""
        return position // PART_ROWS in self._parts or position in self._pending

    @property
    def done(self) -> int:
        """Finished points."""
        full = sum(self._length(number) for number in self._parts)
        return full + len(self._pending)

    @property
    def failed(self) -> int:
        """Finished points that could not be simulated."""
        from pyarrow import parquet

        columns = [parquet.read_table(path, columns=["status"])["status"] for path in self._parts.values()]
        stored = sum(value == "failed" for column in columns for value in column.to_pylist())
        return stored + sum(row["status"] == "failed" for row in self._pending.values())

    def rows(self) -> dict[int, dict[str, Any]]:
        """All finished points by position."""
        from pyarrow import parquet

        found = dict(self._pending)
        for number, path in self._parts.items():
            found.update(enumerate(parquet.read_table(path).to_pylist(), start=number * PART_ROWS))
        return found

    def _length(self, number: int) -> int:
        end = self.total if self.total is not None else self.complete
        return PART_ROWS if end is None else min(PART_ROWS, end - number * PART_ROWS)

    def add(self, rows: Mapping[int, Mapping[str, Any]]) -> None:
        """Finished points by position: in the journal and on the disk when this returns."""
        text = "".join(_line(position, row) for position, row in sorted(rows.items()))
        assert self._journal is not None
        self._journal.write(text.encode())
        self._journal.flush()
        os.fsync(self._journal.fileno())
        self._pending.update((position, dict(row)) for position, row in rows.items())
        self._flush_parts({position // PART_ROWS for position in rows})

    def finish(self, total: int) -> None:
        """All `total` points are done: write the last part, and say in the manifest that nothing is missing."""
        if self.complete is None:
            self.total = total
            self._flush_parts({position // PART_ROWS for position in self._pending})
            assert not self._pending, "points are missing"
            self.complete = total
            self._write_manifest()
        self._close_journal()
        (self.folder / JOURNAL).unlink(missing_ok=True)

    def _flush_parts(self, numbers: Iterable[int]) -> None:
        written = False
        for number in sorted(numbers):
            span = range(number * PART_ROWS, number * PART_ROWS + self._length(number))
            if number in self._parts or not all(position in self._pending for position in span):
                continue
            self._parts[number] = _write_part(
                self.folder, number, _table([self._pending[position] for position in span], self.columns)
            )
            for position in span:
                del self._pending[position]
            written = True
        if written:
            self._rewrite_journal()

    def _rewrite_journal(self) -> None:
        """The journal with the points that are in no part, and without a torn end."""
        path = self.folder / JOURNAL
        self._close_journal()
        text = "".join(_line(position, row) for position, row in sorted(self._pending.items()))
        _replace(path, text.encode())
        self._journal = path.open("ab")

    def _close_journal(self) -> None:
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def _write_manifest(self) -> None:
        document = {**self._manifest, "complete": self.complete}
        document["content_hash"] = _hash(document)
        _replace(self.folder / MANIFEST, (json.dumps(document, indent=1, ensure_ascii=True) + "\n").encode())


@dataclass(frozen=True)
class StoreReader:
    """A store that has been checked: its manifest, its parts in order, and the points still in the journal."""

    folder: Path
    manifest: Mapping[str, Any]
    parts: tuple[Path, ...]
    journal: tuple[Mapping[str, Any], ...]
    columns: tuple[Column, ...]

    @property
    def is_complete(self) -> bool:
        """Whether every point of the sweep is in it."""
        return self.manifest["complete"] is not None

    def journal_table(self) -> pyarrow.Table:
        """The points of the journal as an Arrow table of the same schema."""
        return _table(self.journal, self.columns)

    def table(self) -> pyarrow.Table:
        """All points, in running order, as one Arrow table."""
        import pyarrow
        from pyarrow import parquet

        tables = [parquet.read_table(path) for path in self.parts]
        return pyarrow.concat_tables([*(t.replace_schema_metadata() for t in tables), self.journal_table()])


def open_store(folder: str | Path) -> StoreReader:
    """Open a store for reading and check every file of it.

    Raises
    ------
    UserError
        No store, another schema version, a damaged or half-written file, or a missing one: each named.
    """
    folder = Path(folder)
    path = folder / MANIFEST
    if not path.is_file():
        raise UserError(f"{folder}: expected a sweep's store (a folder with {MANIFEST}), found none")
    manifest = _read_manifest(path)
    problems: list[str] = []
    parts = _parts(folder)
    for part in parts.values():
        try:
            _check_part(part)
        except UserError as err:
            problems += err.problems
    if manifest["complete"] is not None:
        count = -(-int(manifest["complete"]) // PART_ROWS)
        missing = [number for number in range(count) if number not in parts]
        problems += [f"{folder}: expected part-{number:06d}-….parquet, found none" for number in missing]
    if problems:
        raise UserError(problems)
    columns = tuple(Column(**column) for column in manifest["columns"])
    rows = _read_journal(folder / JOURNAL)
    journal = tuple(row for position, row in sorted(rows) if position // PART_ROWS not in parts)
    return StoreReader(folder, manifest, tuple(parts[number] for number in sorted(parts)), journal, columns)


# --- files ---


def _locked(folder: Path) -> Any:
    """An open lock file: one process at a time writes to a store."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = (folder / LOCK).open("w")
    except OSError as err:
        raise UserError(Problem.line(str(folder), "", "a folder that can be written", err.strerror)) from None
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        return handle
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        handle.close()
        raise UserError(f"{folder}: expected a store that nobody writes to, found a sweep at work in it") from None
    return handle


def _hash(document: Mapping[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _read_manifest(path: Path) -> dict[str, Any]:
    document = read_json(path, "the manifest of a store")
    if document.get("schema") != SCHEMA:
        raise UserError(Problem.line(str(path), "schema", repr(SCHEMA), document.get("schema")))
    stored = document.pop("content_hash", None)
    if stored != _hash(document):
        raise UserError(
            Problem.line(str(path), "content_hash", f"the hash of the content, {_hash(document)[:12]}…", stored)
        )
    return document


def _check_same(path: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse to go on with the results of another model or sweep."""
    for key in ("model", "kind", *wanted):
        if found.get(key) != wanted.get(key):
            raise UserError(Problem.line(str(path), key, f"{_short(wanted.get(key))} (the same sweep)", found.get(key))
                            + "; choose another folder")  # fmt: skip


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"


def _is_own(name: str) -> bool:
    """Whether a file without a manifest may be what a killed run left."""
    return name in (LOCK, MEMORY) or (name.startswith(".") and name.endswith(".tmp"))


def _parts(folder: Path) -> dict[int, Path]:
    """Parts by number; a file whose name says so but has the wrong form is a problem."""
    found: dict[int, Path] = {}
    problems = []
    for path in sorted(folder.glob("*.parquet")):
        match = _PART.fullmatch(path.name)
        if match is None or int(match[1]) in found:
            problems.append(f"{path}: expected part-<number>-<hash>.parquet, one of each number, found another file")
        else:
            found[int(match[1])] = path
    if problems:
        raise UserError(problems)
    return found


def _check_part(path: Path) -> bool:
    """Whether the part's content has the hash that its name says; raises `UserError` if not."""
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError as err:
        raise UserError(Problem.line(str(path), "", "a readable file", err.strerror)) from None
    match = _PART.fullmatch(path.name)
    if match is None or match[2] != found:
        raise UserError(
            f"{path}: expected a file whose content has the hash in its name, found {found}: damaged or half-written; "
            "without it the sweep runs its points again"
        )
    return True


def _line(position: int, row: Mapping[str, Any]) -> str:
    """A line of the journal: checksum, position, row."""
    text = json.dumps([position, row], separators=(",", ":"), allow_nan=False)
    return f"{zlib.crc32(text.encode()):08x} {text}\n"


def _read_journal(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """Rows by position. What stands behind the last line end was never finished: that is how a killed run ends."""
    rows: list[tuple[int, dict[str, Any]]] = []
    if not path.is_file():
        return rows
    for number, raw in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        checksum, _, text = raw.partition(b" ")
        if checksum != f"{zlib.crc32(text):08x}".encode():
            raise UserError(f"{path}: line {number}: expected a line with its checksum, found a damaged one")
        position, row = json.loads(text)
        rows.append((position, row))
    return rows


def _table(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> pyarrow.Table:
    import pyarrow

    schema = pyarrow.schema(
        [
            pyarrow.field(c.name, pyarrow.type_for_alias(c.type), metadata={"unit": c.unit, "description": c.text})
            for c in columns
        ]
    )
    arrays = [pyarrow.array([row.get(c.name) for row in rows], pyarrow.type_for_alias(c.type)) for c in columns]
    return pyarrow.Table.from_arrays(arrays, schema=schema)


def _write_part(folder: Path, number: int, table: pyarrow.Table) -> Path:
    import pyarrow
    from pyarrow import parquet

    table = table.replace_schema_metadata({"sparsesim.schema": SCHEMA})
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(table, sink, compression="zstd", write_page_checksum=True)
    content = sink.getvalue().to_pybytes()
    path = folder / f"part-{number:06d}-{hashlib.sha256(content).hexdigest()[:16]}.parquet"
    _replace(path, content)
    return path


def _replace(path: Path, content: bytes) -> None:
    """Write a file in one step: a temporary name, synced, renamed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
    except BaseException as err:
        temporary.unlink(missing_ok=True)
        if isinstance(err, OSError):
            raise UserError(Problem.line(str(path), "", "a file that can be written", err.strerror)) from None
        raise
