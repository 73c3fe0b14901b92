"""The files of a measuring session: rows as they come, and where they come from.

While a session runs its rows are in ``NAME.csv.part``, each flushed to disk before the next kernel is timed; a
finished session renames it to ``NAME.csv``. Beside it stands ``NAME.provenance.json`` (board, software, protocol,
command, sessions, failures, outliers), replaced in one step after each row. A session that is started again with the
same file goes on where the rows end; a last line that was cut off is dropped, and its kernel timed again.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparsesim.errors import UserError
from sparsesim.measured import COLUMNS
from sparsesim.textfiles import read_json

__all__ = ["EXTRA_COLUMNS", "SessionFiles"]

#: columns after those of the measured schema; readers of the schema ignore them
EXTRA_COLUMNS = (
    "low_us", "high_us", "samples", "calls", "converged", "outliers", "relative_error", "data", "sm_mhz",
    "memory_mhz", "power_w", "temperature_c", "limited_by", "throttled",
)  # fmt: skip
HEADER = (*COLUMNS, *EXTRA_COLUMNS)


class SessionFiles:
    """The rows file and the provenance file of one session.

    Parameters
    ----------
    target : Path
        The CSV that a finished session leaves.
    facts : mapping
        What must be equal for rows to belong together: board, software, protocol, data. A session that goes on
        with a file of other facts is an error.
    """

    def __init__(self, target: Path, facts: Mapping[str, Any]) -> None:
        self.target = target
        self.part = target.with_name(target.name + ".part")
        self.provenance = target.with_name(target.stem + ".provenance.json")
        self.facts = json.loads(json.dumps(facts, sort_keys=True))
        self.record: dict[str, Any] = {"facts": self.facts, "sessions": [], "rows": [], "failures": []}
        self.rows: list[dict[str, str]] = []

    def open(self) -> None:
        """Check that the session can be written, and read what an earlier one left.

        Raises UserError if the finished file exists, if its folder does not, or if the part file is of other facts.
        """
        if self.target.suffix != ".csv":
            raise UserError(f"--out: expected a file that ends in .csv, found {str(self.target)!r}")
        folder = self.target.absolute().parent
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            raise UserError(f"--out: expected a folder that can be written, found {str(folder)!r}")
        if self.target.exists():
            raise UserError(
                f"--out: expected a file that does not exist yet, found {str(self.target)!r} (a finished session)"
            )
        if not self.part.exists():
            return
        if not self.provenance.is_file():
            raise UserError(f"{self.part}: expected {self.provenance.name} beside it, found no such file")
        record = read_json(self.provenance, "the provenance of a session")
        found = record.get("facts")
        if not isinstance(found, dict):
            raise UserError(f"{self.provenance}: expected the provenance of a session, found no facts in it")
        for name, value in self.facts.items():
            if found.get(name) != value:
                raise UserError(
                    f"{self.part}: {name}: expected {json.dumps(value)} to go on with it, "
                    f"found {json.dumps(found.get(name))}"
                )
        self.record = record
        self._read_rows()

    def _read_rows(self) -> None:
        """The whole lines of the part file; what follows the last line break is cut off."""
        raw = self.part.read_bytes()
        whole = raw[: raw.rfind(b"\n") + 1]
        if len(whole) < len(raw):
            with self.part.open("r+b") as handle:
                handle.truncate(len(whole))
        reader = csv.DictReader(io.StringIO(whole.decode("utf-8"), newline=""))
        if whole and tuple(reader.fieldnames or ()) != HEADER:
            raise UserError(f"{self.part}: expected the columns of a measuring session, found others")
        self.rows = list(reader)
        # a row whose entry in the provenance was not written before the end is timed again
        known = self.record["rows"]
        if len(self.rows) > len(known):
            self.rows = self.rows[: len(known)]
            self._rewrite()
        del known[len(self.rows) :]

    def _rewrite(self) -> None:
        text = _line(HEADER) + "".join(_line([row[name] for name in HEADER]) for row in self.rows)
        _replace(self.part, text)

    def done(self) -> set[tuple[str, str]]:
        """(library, case) of the kernels that have a row, or have failed for good."""
        entries = [*self.record["rows"], *(f for f in self.record["failures"] if f["final"])]
        return {(entry["library"], entry["case"]) for entry in entries}

    def begin(self, session: Mapping[str, Any]) -> None:
        """Note that a session starts (`session`: date, command), and write the header of a new file."""
        self.record["sessions"].append(dict(session))
        self.record["failures"] = [f for f in self.record["failures"] if f["final"]]
        self._save()
        if not self.part.exists() or not self.part.stat().st_size:
            self._append(HEADER)

    def add(self, row: Mapping[str, object], entry: Mapping[str, Any]) -> None:
        """Write a measured row, then its entry (library, case, outliers …) in the provenance."""
        cells = [str(row.get(name, "")) for name in HEADER]
        self._append(cells)
        self.rows.append(dict(zip(HEADER, cells, strict=True)))
        self.record["rows"].append(dict(entry))
        self._save()

    def fail(self, entry: Mapping[str, Any]) -> None:
        """Note a kernel that was not measured: library, case, kind, why, and whether trying again is pointless."""
        self.record["failures"].append(dict(entry))
        self._save()

    def finish(self, session: Mapping[str, Any]) -> None:
        """Note how the session ended, and give the rows their name."""
        self.note_end(session)
        self.part.replace(self.target)

    def note_end(self, session: Mapping[str, Any]) -> None:
        """Add to the current session's entry how it ended."""
        self.record["sessions"][-1].update(session)
        self._save()

    def _append(self, cells: tuple[str, ...] | list[str]) -> None:
        with self.part.open("a", encoding="utf-8", newline="") as handle:
            handle.write(_line(cells))
            handle.flush()
            os.fsync(handle.fileno())

    def _save(self) -> None:
        _replace(self.provenance, json.dumps(self.record, indent=1, sort_keys=True) + "\n")


def _line(cells: tuple[str, ...] | list[str]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(cells)
    return buffer.getvalue()


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name[:100]}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", newline="") as handle:
            handle.write(text)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
