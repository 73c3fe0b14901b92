"""Laws that every run of the event loop obeys, hand-computed launches, and the extrapolation of long ones."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_twin import NEVER, random_launch

from sparsesim.device import engine
from sparsesim.device.build import Shape, build
from sparsesim.device.engine import OWNERS, Buffers, Launch, Stat, allocate
from sparsesim.device.simulate import Conditions, Device, LaunchResult
from sparsesim.hardware import load_gpu
from sparsesim.kernels import Operands, dense_kernels, sparse_kernels
from sparsesim.sparsity import Pattern

A, B, D, PARTIAL = range(4)
PORT, L2, FABRIC, DRAM = range(4)
REQUESTED, HELD, META, ARRIVING = range(4)

launches = st.randoms(use_true_random=False).map(random_launch)
many = settings(
    max_examples=200, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


def simulate(launch: Launch, ticks: np.ndarray, size: np.ndarray) -> Buffers:
    buffers = allocate(launch)
    end = engine.run(launch, buffers, ticks, size)
    assert end == buffers.stats[Stat.END]
    return buffers


def end_of(launch: Launch, ticks: np.ndarray, size: np.ndarray) -> int:
    return int(simulate(launch, ticks, size).stats[Stat.END])


def edges(tiles: int, last: int) -> list[int]:
    """Edge index of each tile along one axis."""
    return [0] * (tiles - 1) + [last]


def wanted(p: Launch, table: np.ndarray, column: int) -> int:
    """Sum of a column of a table over all loads of a launch: each tile loads both slabs of each k-step."""
    a = sum(int(table[A, e, column]) for e in edges(p.tiles_m, 1)) * p.tiles_n
    b = sum(int(table[B, e, column]) for e in edges(p.tiles_n, 1)) * p.tiles_m
    return (a + b) * p.batch * p.k_steps


def outputs(p: Launch, table: np.ndarray, operand: int, column: int) -> int:
    """Sum of a column of a table over all output tiles of a launch."""
    corners = [m + n for m in edges(p.tiles_m, 2) for n in edges(p.tiles_n, 1)]
    return sum(int(table[operand, e, column]) for e in corners) * p.batch


def distinct(p: Launch, size: np.ndarray) -> int:
    """Bytes of the operands."""
    a = sum(int(size[A, e, HELD]) for e in edges(p.tiles_m, 1))
    b = sum(int(size[B, e, HELD]) for e in edges(p.tiles_n, 1))
    return (a + b) * p.batch * p.k_steps


def everything_fits(p: Launch, size: np.ndarray) -> bool:
    """Whether operands and output fit in L2 together."""
    output = int(size[D, :, HELD].max()) * p.tiles_m * p.tiles_n * p.batch
    return distinct(p, size) + output <= p.l2_capacity


def steps_of_ctas(p: Launch) -> list[int]:
    """k-steps of each CTA in launch order."""
    one = [min(p.steps_per_split, p.k_steps - s * p.steps_per_split) for s in range(p.splits)]
    return [steps for _ in range(p.batch) for steps in one for _ in range(p.tiles_m * p.tiles_n)]


# --- laws ---


@many
@given(launches)
def test_every_sm_cycle_has_one_owner(case):
    p, ticks, size = case
    s = simulate(p, ticks, size)
    assert s.owners.sum() == p.sms * s.stats[Stat.END]
    assert (s.owners >= 0).all()


@many
@given(launches)
def test_two_runs_are_identical(case):
    first, second = simulate(*case), simulate(*case)
    for one, other in zip(first, second, strict=True):
        if one is None:  # nothing is recorded
            assert other is None
            continue
        assert one.tobytes() == other.tobytes()


@many
@given(launches)
def test_no_server_works_longer_than_the_launch(case):
    p, ticks, size = case
    s = simulate(p, ticks, size)
    end = s.stats[Stat.END]
    per_sm = Counter()
    for sm, steps in zip(s.timeline[:, 0].tolist(), steps_of_ctas(p), strict=True):
        per_sm[sm] += steps
    busiest = max(per_sm.values())
    assert end >= busiest * max(p.tensor, p.smem_read, p.decode, p.issue)
    assert end >= -(-p.ctas * min(steps_of_ctas(p)) // p.sms) * p.tensor
    assert end >= s.stats[Stat.L2_BUSY]
    assert end >= wanted(p, ticks, FABRIC)
    if s.stats[Stat.DRAM_WRITE_BYTES] == 0 and p.splits == 1:  # nobody waits for the last writes
        assert end >= s.stats[Stat.DRAM_BUSY]
    assert s.stats[Stat.PORT_BUSY] <= p.sms * end
    if p.smem_read > 0:  # else nothing waits for the last fills
        assert s.stats[Stat.SMEM_BUSY] <= p.sms * end
    assert end >= p.cta_start + p.latency_l2 + p.barrier + p.tensor


@many
@given(launches)
def test_work_is_conserved(case):
    p, ticks, size = case
    s = simulate(p, ticks, size)
    steps = p.tiles_m * p.tiles_n * p.batch * p.k_steps
    assert s.stats[Stat.STEPS] == steps == sum(steps_of_ctas(p))
    assert s.stats[Stat.TENSOR_BUSY] == steps * p.tensor
    assert s.stats[Stat.SMEM_BUSY] == steps * (p.smem_read + p.smem_fill)
    assert s.stats[Stat.DECODE_BUSY] == steps * p.decode
    assert s.stats[Stat.ISSUE_BUSY] == steps * p.issue
    # with split-K each CTA writes a partial tile in place of its output tile
    written = PARTIAL if p.splits > 1 else D
    for stat, column in ((Stat.L2_BUSY, L2), (Stat.PORT_BUSY, PORT)):
        assert s.stats[stat] == wanted(p, ticks, column) + p.splits * outputs(p, ticks, written, column)
    bytes_written = p.splits * outputs(p, size, written, HELD)
    assert s.stats[Stat.PARTIAL_BYTES] == (bytes_written if p.splits > 1 else 0)
    assert s.stats[Stat.L2_WRITE_BYTES] == (bytes_written if p.splits == 1 else 0)


@many
@given(launches)
def test_bytes_are_conserved(case):
    p, ticks, size = case
    s = simulate(p, ticks, size)
    read, hit = s.stats[Stat.L2_READ_BYTES], s.stats[Stat.L2_HIT_BYTES]
    assert read == wanted(p, size, REQUESTED)
    assert s.stats[Stat.META_BYTES] == wanted(p, size, META)
    assert s.stats[Stat.FILL_BYTES] == wanted(p, size, ARRIVING)
    assert s.stats[Stat.L2_WRITE_BYTES] == (outputs(p, size, D, HELD) if p.splits == 1 else 0)
    # a block is `share` requests, and DRAM delivers a block per request that missed
    share = max(size[A, 0, HELD] // size[A, 0, REQUESTED], 1)
    assert s.stats[Stat.DRAM_READ_BYTES] == (read - hit) * share
    if not p.warm:
        assert s.stats[Stat.DRAM_READ_BYTES] >= distinct(p, size)
    if everything_fits(p, size):
        assert s.stats[Stat.DRAM_READ_BYTES] == (0 if p.warm else distinct(p, size))
        assert s.stats[Stat.DRAM_WRITE_BYTES] == 0 or p.splits > 1  # partial tiles may spill
    resident = s.block["size"][s.block["ready"] >= 0]
    assert resident.sum() <= max(p.l2_capacity, size[:, :, HELD].max())


@many
@given(launches)
def test_ctas_run_in_order(case):
    p, ticks, size = case
    timeline = simulate(p, ticks, size).timeline
    assert (np.diff(timeline[:, 1:], axis=1) >= 0).all()
    if not p.persistent:
        assert (np.diff(timeline[min(p.sms * p.slots, p.ctas) :, 1]) >= 0).all()
    assert timeline[:, 4].max() == end_of(p, ticks, size)


# --- faster parts ---


def halved(p: Launch, ticks: np.ndarray):
    """The launch with one service time halved, for each service."""
    for name in ("tensor", "smem_read", "smem_fill", "decode", "issue"):
        yield name, p._replace(**{name: getattr(p, name) // 2}), ticks
    for column, name in enumerate(("port", "l2", "fabric", "dram")):
        faster = ticks.copy()
        faster[:, :, column] //= 2
        yield name, p, faster


def test_a_faster_part_hardly_ever_hurts():
    """Scheduling anomalies exist (a CTA lands on a busier SM, LRU drops another block), but they are rare.

    A launch without competing CTAs on an SM, eviction, splits or persistence has none to speak of.
    """
    later, orderly = [], []
    for seed in range(1000):
        p, ticks, size = random_launch(Random(seed))
        end = end_of(p, ticks, size)
        for _, faster, table in halved(p, ticks):
            change = end_of(faster, table, size) / max(end, 1) - 1
            later.append(change)
            if p.slots == 1 and everything_fits(p, size) and p.splits == 1 and not p.persistent:
                orderly.append(change)
    assert np.mean(np.array(later) > 0.01) < 0.004
    assert max(later) < 0.3
    assert len(orderly) > 100
    assert max(orderly) < 0.01


# --- launches computed by hand ---


PLAIN = Launch(
    tiles_m=1, tiles_n=1, batch=1, splits=1, k_steps=4, steps_per_split=4, raster_group=1, raster_along_m=0,
    ctas=1, skip_from=NEVER, skip_by=0, sms=1, slots=1, persistent=0, epilogue_overlap=0, stages=3,
    tensor=100, smem_read=0, smem_fill=0, decode=0, issue=0, barrier=0, cta_start=0, cta_interval=0,
    epilogue=0, latency_l2=0, latency_dram=0, l2_capacity=1 << 40, write_queue=0,
    warm=0,
)  # fmt: skip


def tables(**ticks_of_a: int) -> tuple[np.ndarray, np.ndarray]:
    """Tables in which every block has 100 bytes and only A's servers take time."""
    ticks = np.zeros((4, 4, 5), dtype=np.int64)
    size = np.full((4, 4, 4), 100, dtype=np.int64)
    for name, value in ticks_of_a.items():
        ticks[A, :, ("port", "l2", "fabric", "dram").index(name)] = value
    return ticks, size


def owners(s: Buffers) -> dict[str, int]:
    """Owners that own something."""
    return {name: int(ticks) for name, ticks in zip(OWNERS, s.owners, strict=True) if ticks}


def test_tensor_alone():
    p = PLAIN._replace(cta_start=7, epilogue=30)
    assert owners(simulate(p, *tables())) == {"prologue": 7, "tensor": 400, "epilogue": 30}
    p = p._replace(barrier=5)
    assert owners(simulate(p, *tables())) == {"prologue": 7, "tensor": 400, "barrier": 20, "epilogue": 30}


def test_the_slowest_server_sets_the_pace():
    for name in ("smem_read", "decode", "issue"):
        p = PLAIN._replace(**{name: 130})
        assert owners(simulate(p, *tables())) == {"tensor": 400, name.removesuffix("_read"): 120}


def test_loads_ahead_hide_the_latency():
    # one buffer: every k-step waits; two: a load runs beside each step; more: only the first step waits
    for stages, end in ((1, 4 * (150 + 100)), (2, 4 * 150 + 100), (3, 150 + 400), (4, 150 + 400)):
        s = simulate(PLAIN._replace(stages=stages, latency_l2=150), *tables())
        assert s.stats[Stat.END] == end
        assert owners(s).get("l2", 0) == end - 150 - 400


def test_dram_bandwidth():
    s = simulate(PLAIN._replace(latency_dram=50), *tables(dram=300))
    assert owners(s) == {"prologue": 350, "tensor": 400, "dram": 600}
    assert s.stats[Stat.END] == 50 + 4 * 300 + 100
    s = simulate(PLAIN._replace(latency_dram=50, warm=1), *tables(dram=300))
    assert owners(s) == {"tensor": 400}


def test_two_ctas_share_an_sm():
    p = PLAIN._replace(tiles_m=2, ctas=2, slots=2, latency_l2=150, stages=1)
    s = simulate(p, *tables())
    # the second CTA computes while the first one waits, so only the gap of 50 is left of each wait
    assert s.stats[Stat.END] == 4 * 250 + 100
    assert owners(s) == {"prologue": 150, "tensor": 800, "l2": 150}


def test_waves():
    p = PLAIN._replace(tiles_m=5, ctas=5, sms=2)
    s = simulate(p, *tables())
    assert owners(s) == {"tensor": 5 * 400, "idle": 400}
    assert s.timeline[:, 0].tolist() == [0, 1, 0, 1, 0]
    assert s.timeline[:, 1].tolist() == [0, 0, 400, 400, 800]


def test_persistent_epilogue_is_hidden():
    p = PLAIN._replace(tiles_m=3, ctas=3, persistent=1, epilogue=60)
    assert end_of(p, *tables()) == 3 * 460
    assert end_of(p._replace(epilogue_overlap=1), *tables()) == 3 * 400 + 60


def test_a_third_tile_waits_for_its_accumulator():
    p = PLAIN._replace(tiles_m=3, ctas=3, k_steps=1, steps_per_split=1, persistent=1, epilogue=1000)
    assert end_of(p, *tables()) == 3 * 1100
    # tile 1 computes beside tile 0's epilogue; tile 2 needs the accumulator that tile 0 leaves at 1100
    s = simulate(p._replace(epilogue_overlap=1), *tables())
    assert s.timeline[:, 2].tolist() == [0, 100, 1100]
    assert s.timeline[:, 4].tolist() == [1100, 2100, 3100]


def test_split_k_writes_partial_tiles():
    p = PLAIN._replace(splits=2, steps_per_split=2, ctas=2, sms=2)
    ticks, size = tables()
    ticks[PARTIAL, :, PORT] = 40
    ticks[PARTIAL, :, DRAM] = 7
    s = simulate(p, ticks, size)
    assert s.timeline[:, 4].tolist() == [240, 240]
    assert s.stats[Stat.PARTIAL_BYTES] == 200
    assert s.stats[Stat.DRAM_BUSY] == 14


def test_reads_overtake_queued_writes():
    # tile 1 evicts tile 0 at tick 200: its write of 500 waits in the queue, and CTA 2 reads at once
    p = PLAIN._replace(tiles_m=3, ctas=3, k_steps=1, steps_per_split=1, stages=1, l2_capacity=100, write_queue=600)
    ticks, size = tables()
    size[A], size[B], size[D] = 1, 0, 99
    ticks[D, :, DRAM], ticks[D, :, 4] = 500, 99
    s = simulate(p, ticks, size)
    assert s.timeline[:, 2].tolist() == [0, 100, 200]
    assert s.stats[Stat.DRAM_BUSY] == 1000


def test_a_write_back_takes_time_that_has_not_passed():
    # tile 1 evicts tile 0 at tick 200, DRAM idle since tick 0: CTA 2 queues behind that write until 200 + 500
    p = PLAIN._replace(tiles_m=3, ctas=3, k_steps=1, steps_per_split=1, stages=1, l2_capacity=100, latency_dram=0)
    ticks, size = tables()
    size[A], size[B], size[D] = 1, 0, 99
    ticks[D, :, DRAM], ticks[D, :, 4] = 500, 99
    s = simulate(p, ticks, size)
    assert s.stats[Stat.DRAM_WRITE_BYTES] == 2 * 99
    assert s.timeline[:, 2].tolist() == [0, 100, 700]


# --- L2 from one launch to the next ---


def in_l2(s: Buffers) -> set[int]:
    """Blocks that are in L2."""
    return set(np.flatnonzero(s.block["ready"] >= 0).tolist())


@pytest.mark.parametrize("name", ["a100_pcie_80gb", "rtx4090"])
def test_a_warm_launch_begins_with_what_a_launch_leaves(name):
    gpu = load_gpu(name)
    operands = Operands.of(gpu, "f16", "f32", None)
    kernel = next(iter(dense_kernels(gpu, operands)))
    plan = build(gpu, kernel, operands, Shape(4096, 4096, 2048), gpu.clock.max, False)
    p = plan.launch._replace(l2_capacity=8 << 20)
    after = simulate(p, plan.ticks, plan.size)
    left = in_l2(after)
    warm = allocate(p)
    engine._prefill(p, warm, plan.ticks, plan.size)
    # which blocks survive is random; how many of each age is not: the overlap is that of two such draws
    found = in_l2(warm)
    held = [int(s.block["size"][sorted(blocks)].sum()) for s, blocks in ((warm, found), (after, left))]
    assert held[0] == pytest.approx(held[1], rel=0.05)
    assert 0.25 < len(found & left) / len(left) < 0.9


# --- extrapolation ---


WIDE, LARGE = Shape(16384, 8192, 4096), Shape(16384, 16384, 8192)
LONG = (
    ("a100_pcie_80gb", None, 0, WIDE),
    ("a100_pcie_80gb", "2:4", 0, WIDE),
    ("rtx4090", None, 0, WIDE),
    ("h100_pcie", None, 1, WIDE),
    ("h100_pcie", "2:4", 0, WIDE),
    ("b200", "2:4", 0, LARGE),
)


def shortened(name: str, pattern: str | None, which: int, shape: Shape, split_k: int = 1) -> list[LaunchResult]:
    """A launch in full, with half of its waves, and with the few that a search takes."""
    gpu = load_gpu(name)
    operands = Operands.of(gpu, "f16", "f32", pattern and Pattern.parse(pattern))
    kernel = list((sparse_kernels if pattern else dense_kernels)(gpu, operands))[which].with_split(split_k)
    steps = shape.macs / (kernel.sm_tile_m * kernel.tile_n * kernel.tile_k)
    return [
        Device(gpu, int(budget)).launch(kernel, operands, shape, Conditions(l2="cold"), frozenset({"power"}))
        for budget in (1 << 40, steps / 2, 60_000)
    ]


@pytest.mark.parametrize(("name", "pattern", "which", "shape"), LONG, ids=[f"{n}-{p}" for n, p, *_ in LONG])
def test_extrapolation(name, pattern, which, shape):
    """Half of the waves give the whole to 0.5 %, the first few to 4 %.

    The first waves are not yet the steady state: CTAs that began together take a dozen waves to drift apart,
    and every band of the raster order begins with misses.
    """
    whole, half, few = shortened(name, pattern, which, shape)
    assert not whole.extrapolated
    for short, tolerance in ((half, 0.005), (few, 0.04)):
        assert short.extrapolated
        assert short.cycles == pytest.approx(whole.cycles, rel=tolerance)
        assert short.counters["k_steps"] == pytest.approx(whole.counters["k_steps"])
        assert sum(short.owners.values()) == pytest.approx(short.sms * short.cycles)


def test_extrapolation_of_split_k():
    """To 2 %: the whole launch begins three times with cold misses (once per split), the short one twice."""
    whole, half, _ = shortened("h100_pcie", None, 0, Shape(8192, 8192, 2048), split_k=3)
    assert half.cycles == pytest.approx(whole.cycles, rel=0.02)
