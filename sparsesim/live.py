"""The model against rows measured on this machine, as a page: errors by protocol and size, worst rows, the board.

The same tables as ``docs/accuracy.md``, which is about published rows; this one is about one board, so it also says
how it was measured and which rows a throttled clock makes doubtful.
"""

from __future__ import annotations

import collections
import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sparsesim.errors import UserError
from sparsesim.textfiles import read_json
from sparsesim.validate import Prediction, Validation, error_summary

__all__ = ["accuracy_page", "doubtful_rows", "read_provenance"]

SIZES = (("<10", 10.0), ("10-30", 30.0), ("30-100", 100.0), ("100-1000", 1000.0), (">1000", float("inf")))
WORST = 20


def read_provenance(path: Path) -> dict[str, Any]:
    """The provenance file of a measuring session; raises UserError if it is none."""
    record = read_json(path, "the provenance of a session")
    if not isinstance(record.get("facts"), dict):
        raise UserError(f"{path}: expected the provenance of a session, found no facts in it")
    return record


def doubtful_rows(path: Path) -> dict[int, str]:
    """Line → why: rows of a session's file that were throttled, or whose median did not settle."""
    doubtful: dict[int, str] = {}
    with path.open(newline="", encoding="utf-8") as handle:
        reader = csv.DictReader(handle)
        for row in reader:
            reasons = [row.get("throttled") or ""]
            if row.get("converged") == "no":
                reasons.append("median not settled")
            text = ", ".join(reason for reason in reasons if reason)
            if text:
                doubtful[reader.line_num] = text
    return doubtful


def accuracy_page(
    validation: Validation,
    provenance: Mapping[str, Any],
    doubtful: Mapping[int, str],
    min_us: float,
) -> str:
    """The page (Markdown) of one board.

    Parameters
    ----------
    validation : Validation
        Of the session's rows.
    provenance : mapping
        As `read_provenance` gives it.
    doubtful : mapping
        As `doubtful_rows` gives it.
    min_us : float
        Rows measured below this [µs] count in no table but that by size.
    """
    facts = provenance["facts"]
    board = facts["device"]
    rows = validation.predictions
    long = [p for p in rows if p.row.time_us >= min_us]
    libraries = ", ".join(f"{name} {version}" for name, version in sorted(board["libraries"].items()))
    limit = board.get("power_limit_w")
    parts = [
        f"# Accuracy on this board: {board['name']}",
        "Written by `sparsesim validate --live`. male = mean |ln(predicted / measured)|, p90 its 90th percentile,\n"
        f"bias = median ln(predicted / measured); rows of {min_us:g} µs and more unless said.",
        _table(
            ("", ""),
            [
                ("hardware file", facts["gpu"]),
                ("driver, CUDA", f"{board['driver'] or 'unknown'}, {board['cuda']}"),
                ("libraries", libraries),
                ("power limit", "unknown" if limit is None else f"{limit:g} W"),
                ("protocol", f"timing {facts['timing']}, L2 {facts['l2']}, clock {facts['clock']}"),
                ("data", facts["data"]),
                ("measured", ", ".join(s.get("started", "") for s in provenance["sessions"])),
                ("rows", f"{len(rows)} compared, {len(validation.skipped)} not simulated, {len(doubtful)} doubtful"),
                ("kernels not measured", str(len(provenance["failures"]))),
            ],
        ),
        "## By type and path",
        _table(
            ("dtype", "kind", "rows", "male", "p90", "bias", "right side of 1"),
            [
                (
                    g["dtype"], g["kind"], g["rows"], f"{g['male']:.3f}", f"{g['p90']:.3f}", f"{g['bias']:+.3f}",
                    f"{g['sign_accuracy']:.0%}" if "sign_accuracy" in g else "",
                )
                for g in validation.groups
            ],
        ),
        "## By measured time",
        _table(("path", "measured, µs", "rows", "male", "bias"), list(_by_size(rows))),
        f"## Worst {WORST} rows",
        _table(
            ("dtype", "pattern", "m×n×k", "measured µs", "predicted µs", "ln ratio", "library"),
            [
                (
                    p.row.dtype, p.row.pattern, f"{p.row.m}×{p.row.n}×{p.row.k}", f"{p.row.time_us:.1f}",
                    f"{p.predicted_us:.1f}", f"{p.log_error:+.2f}", p.row.library,
                )
                for p in sorted(long, key=lambda p: -abs(p.log_error))[:WORST]
            ],
        ),
    ]  # fmt: skip
    if doubtful:
        parts += [
            "## Doubtful rows",
            "The clock was not what the protocol says, or the median did not settle within the time given.",
            _table(("line", "why"), sorted(doubtful.items())),
        ]
    if provenance["failures"]:
        parts += [
            "## Kernels that were not measured",
            _table(
                ("library", "case", "kind", "why"),
                [(f["library"], f["case"], f["kind"], f["why"]) for f in provenance["failures"]],
            ),
        ]
    if validation.skipped:
        reasons = collections.Counter(item["why"] for item in validation.skipped)
        parts += ["## Rows that were not simulated", _table(("rows", "why"), [(c, w) for w, c in reasons.items()])]
    return "\n\n".join(parts) + "\n"


def _by_size(rows: Iterable[Prediction]) -> Iterable[tuple[object, ...]]:
    groups: dict[tuple[str, str], list[Prediction]] = {}
    for p in rows:
        size = next(name for name, most in SIZES if p.row.time_us < most)
        groups.setdefault(("sparse" if p.row.is_sparse else "dense", size), []).append(p)
    names = [name for name, _ in SIZES]
    for key in sorted(groups, key=lambda key: (key[0], names.index(key[1]))):
        members = groups[key]
        errors = error_summary([p.predicted_us for p in members], [p.row.time_us for p in members])
        yield (*key, len(members), f"{errors['male']:.3f}", f"{errors['bias']:+.3f}")


def _table(header: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(str(c).replace("|", "\\|") for c in row) + " |" for row in rows)])
