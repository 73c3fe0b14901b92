"""The sustained clock of a launch: a fixed point of power and time, on every kind of launch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparsesim.device.build import Shape
from sparsesim.hardware import load_gpu
from sparsesim.protocol import Protocol
from sparsesim.simulator import Simulator, conditions_of
from sparsesim.workload import Gemm


@pytest.mark.parametrize(
    ("gpu", "shape", "sparse"),
    [
        ("a100_pcie_80gb", (28672, 2048, 4096), True),  # DRAM-bound: its cycles are proportional to the clock
        ("a100_pcie_80gb", (8192, 4096, 4096), True),  # partly
        ("a100_pcie_80gb", (8192, 4096, 4096), False),
        ("h100_pcie", (8192, 8192, 8192), True),  # cycles that hardly know the clock
        ("l40s", (8192, 4096, 4096), False),
        ("t4", (4096, 4096, 4096), False),
    ],
)
def test_a_throttled_launch_draws_the_limit_and_takes_what_a_locked_one_takes(
    gpu: str, shape: tuple[int, int, int], sparse: bool
) -> None:
    simulator = Simulator(load_gpu(gpu))
    op = Gemm("op", *shape, dtype="f16", pattern="2:4")
    result = simulator.gemm(op, Protocol())
    launch = result.launch if sparse else result.dense_launch
    assert launch.clock_hz < simulator.gpu.clock.max
    assert launch.power_w == pytest.approx(simulator.gpu.power.limit, rel=2e-3)
    native = simulator.stack.decide(op, simulator.gpu).native if sparse else None
    locked = simulator.device.launch(
        launch.kernel,
        simulator.library.operands(op, native),
        Shape(*shape),
        replace(conditions_of(simulator.gpu, Protocol(), sparse), locked_hz=launch.clock_hz),
        frozenset({"power"}),
    )
    assert launch.cycles == pytest.approx(locked.cycles, rel=3e-3)
    assert launch.power_w == pytest.approx(locked.power_w, rel=5e-3)
