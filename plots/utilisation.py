"""How busy tensor cores, shared memory, L2 and DRAM are over the time of one GEMM, dense above sparse."""

from __future__ import annotations

from typing import TYPE_CHECKING

import script

import sparsesim as ss
from sparsesim.chrometrace import record_launch
from sparsesim.figures import draw_utilisation
from sparsesim.runtime import run_workload

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "utilisation"


def draw(name: str = "h100_pcie", size: int = 4096, bins: int = 150) -> Figure:
    """The recorded launches of a bf16 2:4 GEMM and of its dense baseline."""
    gpu = ss.load_gpu(name)
    simulator = ss.Simulator(gpu)
    op = ss.Gemm("gemm", size, size, size, dtype="bf16", pattern="2:4")
    result = run_workload([op], simulator, ss.Protocol())
    dense, sparse = (record_launch(result, simulator, 0, run, bins) for run in ("dense", "sparse"))
    ports = 100.0 * sparse.counters["smem_busy"]
    title = (
        f"2:4 moves the load to shared memory: ports {100 * dense.counters['smem_busy']:.0f} % busy dense, "
        f"{ports:.0f} % sparse"
    )
    return draw_utilisation(dense, sparse, title, f"{gpu.title}, {size}³, bf16, 2:4, rotating L2")


if __name__ == "__main__":
    script.run(NAME, draw, __doc__)
