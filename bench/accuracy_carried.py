"""The measured rows that the project carries, and the level that `make test` holds on them.

A few rows of each (GPU, dtype, path), cheap to simulate, spread over the sizes; of the core files and of dense files.
Figures and sources as in the measured files; see their README for protocols and credits.
"""

from __future__ import annotations

import csv
import hashlib
import json
from pathlib import Path

from accuracy_groups import grouped, path_of, summary

from sparsesim.measured import COLUMNS
from sparsesim.validate import Prediction

__all__ = ["CARRIED", "HELD", "write_carried"]

DATA = Path(__file__).resolve().parent.parent / "tests" / "data"
CARRIED = DATA / "accuracy_rows.csv"
HELD = DATA / "accuracy_levels.json"
PER_GROUP = 8
#: rows of a group from which it is carried, and the work beyond which a row costs too much in a test
MIN_ROWS = 60
MAX_MACS = 3e11


def _order(p: Prediction) -> bytes:
    return hashlib.sha256(f"{p.row.m}x{p.row.n}x{p.row.k}".encode()).digest()


def choose(predictions: list[Prediction]) -> list[Prediction]:
    """`PER_GROUP` rows of each (GPU, dtype, path): one from each part of the group's range of times."""
    chosen = []
    cheap = [p for p in predictions if p.row.time_us >= 10.0 and p.row.m * p.row.n * p.row.k * p.row.batch <= MAX_MACS]
    for members in grouped(cheap, lambda row: (row.gpu, row.dtype, path_of(row))).values():
        if len(members) < MIN_ROWS:
            continue
        members = sorted(members, key=lambda p: (p.row.time_us, p.row.file, p.row.line))
        for part in range(PER_GROUP):
            piece = members[part * len(members) // PER_GROUP : (part + 1) * len(members) // PER_GROUP]
            chosen.append(min(piece, key=_order))
    return chosen


def write_carried(predictions: list[Prediction]) -> None:
    """Write the rows, unless they are there already, and the level that this model reaches on them."""
    DATA.mkdir(exist_ok=True)
    if CARRIED.is_file():
        with CARRIED.open(encoding="utf-8", newline="") as handle:
            wanted = {tuple(row[name] for name in COLUMNS) for row in csv.DictReader(handle)}
        chosen = [p for p in predictions if _cells(p) in wanted]
    else:
        chosen = choose(predictions)
        with CARRIED.open("w", encoding="utf-8", newline="") as handle:
            writer = csv.writer(handle, lineterminator="\n")
            writer.writerow(COLUMNS)
            writer.writerows(_cells(p) for p in chosen)
    held = {}
    for key, members in grouped(chosen, lambda row: (row.gpu, row.dtype, path_of(row))).items():
        held[" ".join(key)] = round(summary(members)["male"], 4)
    HELD.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")


def _cells(p: Prediction) -> tuple[str, ...]:
    return tuple(f"{getattr(p.row, name)}" for name in COLUMNS)
