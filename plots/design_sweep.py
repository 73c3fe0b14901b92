"""The thousand designs of ``sweeps/a100_designs.toml``: what they gain against their area proxy.

Needs the store of the sweep (``make sweep``), so it is not drawn with the other figures.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import script

import sparsesim as ss
from sparsesim.figures import DesignPanel, draw_designs, save
from sparsesim.sweep.query import pareto_mask, sql
from sparsesim.sweep.store import open_store

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "design_sweep"
STORE = Path("out/a100_designs")


def draw(store: Path = STORE) -> Figure:
    """All points that could be simulated, beside the board as it is."""
    reader = open_store(store)
    table = sql(
        reader,
        "SELECT proxy_area, dram_bytes_per_s, speedup, time_us FROM results WHERE status = 'ok' ORDER BY point",
    ).to_pydict()
    fixed = reader.manifest["sweep"]["fixed"]
    start = ss.simulate_workload(
        fixed["gpu"], fixed["workload"], tokens=fixed["tokens"], phase=fixed["phase"], pattern=fixed["pattern"]
    )
    name, kind = fixed["pattern"], reader.manifest["sweep"]["design"]["kind"]
    area = np.array(table["proxy_area"])
    speedup = np.array(table["speedup"])
    rate = start.sparse.makespan_us / np.array(table["time_us"])
    panels = [
        DesignPanel(f"{name} over dense, same board", "speedup, ×", speedup, _front(area, speedup), start.speedup),
        DesignPanel(f"{name} over {name} on the board as it is", "rate, ×", rate, _front(area, rate), 1.0),
    ]
    return draw_designs(
        area,
        "area proxy, × the board's",
        table["dram_bytes_per_s"],
        "DRAM bandwidth, × the board's",
        panels,
        f"What {name} gains over dense follows DRAM bandwidth more than area",
        f"{len(area)} designs round {fixed['gpu']} ({kind}); {fixed['workload']}, {fixed['phase']} of "
        f"{fixed['tokens']} tokens\nthe area proxy is a weighting chosen for this example, no floor plan",
    )


def _front(cost: np.ndarray, value: np.ndarray) -> list[bool]:
    """Points that no other reaches with less cost."""
    return list(pareto_mask(np.stack([cost, -value], axis=1)))


def main() -> None:
    """Draw the figure of a store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, default=STORE, help="store of the sweep (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=script.OUT, help="folder for the PNG file (default: %(default)s)")
    chosen = parser.parse_args()
    print(save(draw(chosen.store), chosen.out / f"{NAME}.png"))


if __name__ == "__main__":
    main()
