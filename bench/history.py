"""History of the benchmarks: one JSON line for each run of ``make bench``, in ``bench/history.jsonl``.

Seconds of different machines cannot be compared, so each line says which machine it was and a change is shown
against the last run on the same one. The file is kept under version control: commit the line with the change that
it measures.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sparsesim._version import __version__

HISTORY = Path(__file__).with_name("history.jsonl")


def machine() -> dict[str, Any]:
    """What the run was on."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        cpu = names[0] if names else cpu
    return {"cpu": cpu, "cores": os.cpu_count(), "python": platform.python_version(), "system": platform.system()}


def commit() -> str:
    """The commit that was measured, with ``+`` if files differ from it; empty outside a checkout."""
    folder = Path(__file__).parent
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=12"], cwd=folder, capture_output=True, text=True
        )
    except OSError:
        return ""
    return done.stdout.strip()


def read(path: Path = HISTORY) -> list[dict[str, Any]]:
    """All runs, oldest first; a line that is not whole JSON is an error that names it."""
    if not path.is_file():
        return []
    runs = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            runs.append(json.loads(line))
        except ValueError:
            raise SystemExit(f"error: {path}: line {number}: expected a run as one JSON document") from None
    return runs


def last_on(this: Mapping[str, Any], runs: list[dict[str, Any]]) -> dict[str, float]:
    """Figures of the last run on the machine `this`; empty if there is none."""
    same = [run for run in runs if run["machine"] == dict(this)]
    return dict(same[-1]["figures"]) if same else {}


def append(figures: Mapping[str, float], path: Path = HISTORY) -> dict[str, float]:
    """Add a run; returns the ratio of each figure to that of the last run on this machine, where there is one."""
    this = machine()
    before = last_on(this, read(path))
    line = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": __version__,
        "commit": commit(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "machine": this,
        "figures": {name: float(f"{value:.4g}") for name, value in figures.items()},
    }
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
    return {name: value / before[name] for name, value in figures.items() if before.get(name)}
