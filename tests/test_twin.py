"""The jitted event loop and its SimPy twin agree tick for tick, on random launches and on real kernels."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparsesim.device import engine, twin
from sparsesim.device.build import Shape, build
from sparsesim.device.engine import OWNERS, RECORDED, Launch, Stat, allocate
from sparsesim.hardware import load_gpu
from sparsesim.kernels import Operands, dense_kernels, sparse_kernels
from sparsesim.sparsity import Pattern

NEVER = 1 << 60
STATS = [name for name in vars(Stat) if name.isupper() and name != "COUNT"]
Tables = tuple[Launch, np.ndarray, np.ndarray]


def random_launch(rng: Random) -> Tables:
    """A small launch with anything in it: free servers, empty edges, an L2 that holds next to nothing.

    Requests are 1/c of a block for one c per launch, as in a cluster of c.
    """
    tiles_m, tiles_n, batch = rng.randint(1, 6), rng.randint(1, 6), rng.randint(1, 2)
    k_steps = rng.randint(1, 12)
    per_split = math.ceil(k_steps / rng.randint(1, min(4, k_steps)))
    splits = math.ceil(k_steps / per_split)
    ctas = tiles_m * tiles_n * batch * splits

    cluster = rng.choice((1, 1, 2))
    port, l2, fabric, dram = (rng.choice((0, 1, 10, 60, 200)) for _ in range(4))  # ticks per 8 bytes
    ticks = np.zeros((4, 4, 5), dtype=np.int64)
    size = np.zeros((4, 4, 4), dtype=np.int64)
    for operand in range(4):
        whole = rng.randint(1, 40)
        for edge in range(4 if operand > 1 else 2):
            request = whole if edge == 0 else rng.randint(0, whole)
            block = request * cluster if operand < 2 else request
            input_only = (rng.randint(0, request), request) if operand < 2 else (0, 0)
            size[operand, edge] = (request, block, *input_only)
            ticks[operand, edge] = (
                port * request // 8,
                l2 * request // 8,
                fabric * request // 16 if operand < 2 else 0,
                dram * block // 8 if operand < 3 or rng.randint(0, 1) else 0,
                block,
            )
    footprint = int(
        batch * k_steps * (tiles_m * size[0, 0, 1] + tiles_n * size[1, 0, 1])
        + batch * tiles_m * tiles_n * size[2, 0, 1]
    )
    capacity = int(footprint * rng.choice((0.02, 0.1, 0.3, 0.6, 1, 2)))

    def cost(most: int) -> int:
        return 0 if rng.randint(0, 6) == 0 else rng.randint(1, most)

    persistent = rng.randint(0, 1)
    launch = Launch(
        tiles_m=tiles_m,
        tiles_n=tiles_n,
        batch=batch,
        splits=splits,
        k_steps=k_steps,
        steps_per_split=per_split,
        raster_group=rng.randint(1, 4),
        raster_along_m=rng.randint(0, 1),
        ctas=ctas,
        skip_from=NEVER,
        skip_by=0,
        sms=rng.randint(1, 8),
        slots=rng.randint(1, 3),
        persistent=persistent,
        epilogue_overlap=persistent * rng.randint(0, 1),
        stages=rng.randint(1, 5),
        tensor=cost(400),
        smem_read=cost(400),
        smem_fill=cost(100),
        decode=cost(300),
        issue=cost(300),
        barrier=cost(50),
        cta_start=cost(300),
        cta_interval=cost(80),
        epilogue=cost(500),
        latency_l2=cost(400),
        latency_dram=cost(800),
        l2_capacity=capacity,
        write_queue=cost(2000),
        warm=rng.randint(0, 1),
    )
    return launch, ticks, size


def without_middle(launch: Launch, rng: Random) -> Launch:
    """The launch with some CTAs cut out of it, as the extrapolation of long launches does."""
    cut = rng.randint(0, launch.ctas - 1)
    return launch._replace(ctas=launch.ctas - cut, skip_from=rng.randint(0, launch.ctas - cut), skip_by=cut)


def compare(launch: Launch, ticks: np.ndarray, size: np.ndarray) -> None:
    """Run both and compare everything they give."""
    buffers = allocate(launch)
    end = engine.run(launch, buffers, ticks, size)
    expected = twin.run(launch, ticks, size)
    assert end == expected.end
    assert dict(zip(OWNERS, buffers.owners.tolist(), strict=True)) == expected.owners
    assert {name: buffers.stats[getattr(Stat, name)] for name in STATS} == {
        name: expected.stats[getattr(Stat, name)] for name in STATS
    }
    assert buffers.timeline.tolist() == expected.timeline
    compare_records(launch, ticks, size, end, expected)


def compare_records(launch: Launch, ticks: np.ndarray, size: np.ndarray, end: int, expected: twin.TwinResult) -> None:
    """A run that records its servers' use changes nothing else, and says what the twin's log says."""
    bins = 7
    width = max(1, -(-end // bins) - end // 50)  # a little too short, so that the last row gets its share
    buffers = allocate(launch, bins, width)
    assert engine.run(launch, buffers, ticks, size) == end
    assert buffers.stats.tolist() == expected.stats
    assert buffers.busy is not None
    edges = np.append(np.arange(bins + 1) * width, 1 << 60)
    for column, name in enumerate(RECORDED):
        start, length = np.array(expected.busy[name], dtype=np.int64).reshape(-1, 2).T
        done = np.clip(edges[:, None], start, start + length).sum(axis=1)
        assert buffers.busy[:, column].tolist() == np.diff(done).tolist()
        assert buffers.busy[:, column].sum() == buffers.stats[getattr(Stat, f"{name.upper()}_BUSY")]


@settings(max_examples=400, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_random_launches(rng):
    compare(*random_launch(rng))


@pytest.mark.parametrize("block", range(8))
def test_seeded_launches(block):
    for seed in range(100 * block, 100 * (block + 1)):
        compare(*random_launch(Random(seed)))


def test_launches_without_their_middle():
    for seed in range(200):
        rng = Random(seed)
        launch, ticks, size = random_launch(rng)
        compare(without_middle(launch, rng), ticks, size)


# --- real kernels ---


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("pattern", [None, "2:4"], ids=["dense", "2:4"])
@pytest.mark.parametrize("name", ["a100_pcie_80gb", "h100_pcie", "b200"])
def test_real_kernels(name, pattern, warm):
    gpu = load_gpu(name)
    operands = Operands.of(gpu, "f16", "f32", pattern and Pattern.parse(pattern))
    kernels = list((sparse_kernels if pattern else dense_kernels)(gpu, operands))
    for kernel, split_k, shape in (
        (kernels[0], 1, Shape(2048, 1000, 512)),
        (kernels[-1], 1, Shape(520, 130, 1024, batch=2)),
        (kernels[len(kernels) // 2], 4, Shape(384, 300, 2048)),
    ):
        plan = build(gpu, kernel.with_split(split_k), operands, shape, gpu.clock.max, warm)
        compare(plan.launch, plan.ticks, plan.size)


def test_real_kernel_in_a_small_l2():
    gpu = load_gpu("a100_pcie_80gb")
    operands = Operands.of(gpu, "f16", "f32", Pattern.parse("2:4"))
    for kernel in list(sparse_kernels(gpu, operands))[::4]:
        plan = build(gpu, kernel, operands, Shape(1024, 1024, 1024), gpu.clock.max, True)
        launch = plan.launch._replace(l2_capacity=1 << 19, sms=7)
        buffers = allocate(launch)
        engine.run(launch, buffers, plan.ticks, plan.size)
        assert buffers.stats[Stat.DRAM_WRITE_BYTES] > 0
        compare(launch, plan.ticks, plan.size)
