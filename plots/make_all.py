"""Draws every figure of this folder, two at a time."""

from __future__ import annotations

import importlib
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import script

from sparsesim.figures import save

#: scripts, those that take longest first
SCRIPTS = (
    "speedup_vs_tokens",
    "speedup_vs_size",
    "loss_waterfall",
    "roofline",
    "cycle_accounting",
    "sm_timeline",
)


def make(name: str, folder: Path) -> tuple[Path, float]:
    """Draw one script's figure; returns the file and the seconds that it took."""
    start = time.perf_counter()
    path = save(importlib.import_module(name).draw(), folder / f"{name}.png")
    return path, time.perf_counter() - start


def main() -> None:
    """Draw all, with a line for each as it is done."""
    folder = script.out_folder(__doc__)
    with ProcessPoolExecutor(max_workers=2) as pool:
        jobs = [pool.submit(make, name, folder) for name in SCRIPTS]
        for done, job in enumerate(as_completed(jobs), start=1):
            path, seconds = job.result()
            print(f"[{done}/{len(jobs)}] {path} ({seconds:.1f} s)", flush=True)


if __name__ == "__main__":
    main()
