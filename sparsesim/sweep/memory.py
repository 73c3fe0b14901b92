"""Times of sub-problems on disk, so that none is run twice and none takes the client's memory.

An SQLite file beside the store, in use while the sweep runs: address → time and launch, of the boards whose points are
not all done. A killed sweep leaves it, and the next run goes on from it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path

from sparsesim.errors import UserError

__all__ = ["Memory"]

#: addresses looked up in one statement
BATCH = 500


class Memory:
    """Address → encoded time, grouped by board."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._db = sqlite3.connect(path)
        try:
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.execute("CREATE TABLE IF NOT EXISTS times (address TEXT PRIMARY KEY, board INTEGER, value TEXT)")
            self._db.execute("CREATE INDEX IF NOT EXISTS boards ON times (board)")
            self._db.commit()
        except sqlite3.DatabaseError as err:
            self._db.close()
            raise UserError(
                f"{path}: expected the times of sub-problems (SQLite), found: {err}; it can be deleted, no finished "
                "point is in it"
            ) from None

    def get(self, addresses: Iterable[str]) -> dict[str, str]:
        """What is known of `addresses`."""
        wanted = list(addresses)
        found: dict[str, str] = {}
        for start in range(0, len(wanted), BATCH):
            part = wanted[start : start + BATCH]
            marks = ",".join("?" * len(part))
            found.update(self._db.execute(f"SELECT address, value FROM times WHERE address IN ({marks})", part))
        return found

    def put(self, board: int, times: Mapping[str, str]) -> None:
        """Remember times of one board."""
        rows = [(address, board, value) for address, value in times.items()]
        self._db.executemany("INSERT OR IGNORE INTO times VALUES (?, ?, ?)", rows)
        self._db.commit()

    def forget(self, board: int) -> None:
        """Drop a board whose points are all done."""
        self._db.execute("DELETE FROM times WHERE board = ?", (board,))
        self._db.commit()

    def close(self, delete: bool = False) -> None:
        """Close the file; with `delete` also remove it: the sweep is complete."""
        self._db.close()
        if delete:
            for suffix in ("", "-wal", "-shm"):
                self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
