"""``sparsesim check``: the audit of hardware files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparsesim.cli import options as opt
from sparsesim.cli.output import JsonTarget, add_row, say, show_table, table
from sparsesim.wording import counted

if TYPE_CHECKING:
    from sparsesim.hardware import GpuSpec
    from sparsesim.hardware.audit import AuditRow

__all__ = ["register"]

EXAMPLE = "Example: sparsesim check rtx4090 my_gpu.toml"
STATUSES = ("datasheet", "measured", "fitted", "assumed")
#: GPUs named beside a value that several share
NAMED = 3

Gpus = Annotated[
    list[str] | None,
    typer.Argument(metavar="[GPU...]", help="Packaged names or .toml files; all packaged by default."),
]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("check", epilog=EXAMPLE)(check)


def check(gpus: Gpus = None, json: opt.Json = None) -> None:
    """Audit hardware files: every value that is assumed or fitted, and what its provenance lacks.

    Exit status 1 if there are findings, 2 if a file cannot be read.
    """
    target = JsonTarget.parse(json)
    from sparsesim.hardware import gpu_names
    from sparsesim.hardware.audit import audit, findings

    specs = _load(gpus or gpu_names())
    audits = {spec.name: audit(spec) for spec in specs}
    found = {spec.name: findings(spec) for spec in specs}
    count = sum(map(len, found.values()))
    data = {
        "gpus": [_record(spec, audits[spec.name], found[spec.name]) for spec in specs],
        "findings": count,
    }
    if target.write(data):
        show(audits, found)
    if count:
        raise typer.Exit(1)


def _load(names: Sequence[str]) -> list[GpuSpec]:
    """All descriptions, or one error with the problems of all files, each named once."""
    from sparsesim.errors import UserError
    from sparsesim.hardware import load_gpu

    specs: dict[str, GpuSpec] = {}
    lines: list[str] = []
    for name in names:
        try:
            spec = load_gpu(name)
        except UserError as err:
            lines += err.problems
            continue
        if spec.name in specs:
            lines.append(f"{name}: expected each GPU once, found {spec.name!r} twice")
        specs[spec.name] = spec
    if lines:
        raise UserError(dict.fromkeys(lines))
    return list(specs.values())


def _record(spec: GpuSpec, rows: Sequence[AuditRow], found: list[str]) -> dict[str, Any]:
    """One GPU as plain data."""
    counts = Counter(row.status for row in rows)
    return {
        "gpu": spec.name,
        "title": spec.title,
        "parameters": len(rows),
        "statuses": {status: counts[status] for status in STATUSES},
        "assumed_or_fitted": [asdict(row) for row in rows if row.status in ("assumed", "fitted")],
        "findings": found,
    }


def show(audits: dict[str, list[AuditRow]], found: dict[str, list[str]]) -> None:
    """Print the counts, the values that rest on no source (those that GPUs share, once), and the findings."""
    numbers = ("values", *STATUSES, "findings")
    grid = table("gpu", *numbers, right=numbers)
    for name, rows in audits.items():
        counts = Counter(row.status for row in rows)
        add_row(grid, name, str(len(rows)), *(str(counts[status]) for status in STATUSES), str(len(found[name])))
    shared: dict[tuple[str, ...], list[str]] = {}
    for name, rows in audits.items():
        for row in rows:
            if row.status in ("assumed", "fitted"):
                shared.setdefault(_cells(row), []).append(name)
    values = table("value", "", "status", "how it was chosen", "file", "gpus", right=("",))
    for cells, names in shared.items():
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        add_row(values, *cells, ", ".join(names[:NAMED]) + more)
    show_table("Assumed and fitted values", values)
    show_table("Where the values come from", grid)
    say("")
    for line in dict.fromkeys(line for lines in found.values() for line in lines):
        say(f"finding: {line}")
    total = sum(map(len, found.values()))
    say(f"{counted(len(audits), 'GPU')}, {counted(total, 'finding') if total else 'no findings'}")


def _cells(row: AuditRow) -> tuple[str, ...]:
    """A value as the cells of its table row."""
    unit = "" if row.unit == "-" else f" {row.unit}"
    value = f"{row.value:.6g}" if isinstance(row.value, float) else str(row.value)
    span = f"; range {row.range[0]:g} to {row.range[1]:g}" if row.range else ""
    return row.path, f"{value}{unit}", row.status, f"{row.note or row.citation}{span}", row.file
