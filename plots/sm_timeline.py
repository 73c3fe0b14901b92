"""What a few SMs do while one GEMM runs, dense above sparse."""

from __future__ import annotations

from typing import TYPE_CHECKING

import script

import sparsesim as ss
from sparsesim.device.simulate import Conditions
from sparsesim.figures import draw_timeline
from sparsesim.lowering import shape_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "sm_timeline"


def draw(name: str = "a100_pcie_80gb", m: int = 3072, n: int = 3072, k: int = 3072) -> Figure:
    """The launches of a bf16 2:4 GEMM and of its dense baseline."""
    gpu = ss.load_gpu(name)
    simulator = ss.Simulator(gpu)
    op = ss.Gemm("gemm", m, n, k, dtype="bf16", pattern="2:4")
    protocol = ss.Protocol("kernel", "warm")
    result = simulator.gemm(op, protocol)
    sparse_operands = simulator.library.operands(op, simulator.stack.decide(op, gpu).native)
    runs = ((simulator.library.operands(op, None), result.dense_launch), (sparse_operands, result.launch))
    dense, sparse = (
        simulator.device.launch(
            launch.kernel,
            operands,
            shape_of(op, 2.0),
            Conditions(l2=protocol.l2),
            keep_timeline=True,
            clock_guess=launch.clock_hz,
        )
        for operands, launch in runs
    )
    times = f"dense {dense.seconds * 1e6:.0f} µs, sparse {sparse.seconds * 1e6:.0f} µs"
    title = f"A last wave that is not full idles SMs: {times}"
    return draw_timeline(dense, sparse, title, f"{gpu.title}, {m} × {n} × {k}, bf16, 2:4, {protocol.l2} L2")


if __name__ == "__main__":
    script.run(NAME, draw, __doc__)
