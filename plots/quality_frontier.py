"""Bits per byte of a small language model against simulated latency: dense sizes, and 2:4 and 2:8 by several methods.

Quality is that of `docs/quality/byte_lm.json`; latency is simulated for the models scaled to Llama-3.2-3B's sizes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import script

import sparsesim as ss
from sparsesim.figures import draw_frontier
from sparsesim.quality.frontier import Frontier, frontier
from sparsesim.quality.latency import Sla
from sparsesim.quality.record import Scale, read_quality

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "quality_frontier"
FILE = Path(__file__).parent.parent / "docs/quality/byte_lm.json"
#: methods worth their place: one-shot magnitude and Wanda are off the axis
KEYS = tuple(f"lm-96/{pattern}/{method}" for pattern in ("2:4", "2:8") for method in ("sparsegpt", "gradual", "sr-ste"))
SLA = Sla("e2e_p95", rate=4.0, requests=200, replications=4, dtype="i8")
GPU = "a100_pcie_80gb"
#: bits per byte at which the axis ends
WORST = 3.45


def result(sla: Sla = SLA, gpu: str = GPU, scale: Scale | None = None) -> Frontier:
    """What is drawn."""
    file = read_quality(FILE)
    known = {entry.key for entry in file.entries}
    return frontier(file, ss.load_gpu(gpu), sla, scale=scale, keys=[key for key in KEYS if key in known])


def draw(sla: Sla = SLA, gpu: str = GPU, scale: Scale | None = None) -> Figure:
    """One GPU, one load."""
    found = result(sla, gpu, scale)
    best = max(found.comparisons, key=lambda c: c.speedup / (c.break_even.speedup or float("inf")))
    needs = best.break_even.speedup
    title = f"{best.point.entry.pattern} gives {best.speedup:.2f}× at p95"
    if needs is not None:
        title += f"; to equal a smaller dense model it needs {needs:.2f}×"
    return draw_frontier(found, title, WORST)


if __name__ == "__main__":
    script.run(NAME, draw, __doc__)
