"""Loss attribution: shares that sum, planted causes that rank first, causes that cannot matter at 0."""

from __future__ import annotations

import itertools
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sparsesim.attribution import (
    CAUSES,
    CLASSES,
    Attribution,
    Attributor,
    attribute_gemm,
    attribute_workload,
    cause,
    shapley,
)
from sparsesim.attribution.causes import MACHINE, OWNER_CLASS, bit
from sparsesim.attribution.launches import LaunchTimes, ideal_cycles
from sparsesim.attribution.result import log_mean
from sparsesim.device.build import DEVICE_IDEALS
from sparsesim.device.engine import OWNERS
from sparsesim.device.simulate import Conditions, Device
from sparsesim.hardware import GpuSpec, load_gpu, override
from sparsesim.kernels import splits
from sparsesim.lowering import shape_of
from sparsesim.protocol import Protocol
from sparsesim.simulator import Simulator, conditions_of
from sparsesim.sparsity import Pattern
from sparsesim.workload import Gemm

A100 = load_gpu("a100_pcie_80gb")
OP = Gemm("op", m=512, n=512, k=512, pattern="2:4")
IDS = [item.id for item in CAUSES]


def explain(gpu: GpuSpec, op: Gemm, protocol: Protocol | None = None) -> Attribution:
    return attribute_gemm(Simulator(gpu), op, protocol)


@pytest.fixture(scope="module")
def attributor() -> Attributor:
    return Attributor(Simulator(A100))


@pytest.fixture(scope="module")
def base(attributor: Attributor) -> Attribution:
    return attributor.gemm(OP)


# --- arithmetic ---


def by_permutation(values: np.ndarray) -> np.ndarray:
    """Mean marginal gain over all orders."""
    n = len(values).bit_length() - 1
    result = np.zeros(n)
    for order in itertools.permutations(range(n)):
        seen = 0
        for player in order:
            result[player] += values[seen | 1 << player] - values[seen]
            seen |= 1 << player
    return result / math.factorial(n)


def test_shapley_is_the_mean_over_all_orders() -> None:
    values = np.random.default_rng(7).normal(size=32)
    assert shapley(values) == pytest.approx(by_permutation(values), abs=1e-12)
    assert shapley(values).sum() == pytest.approx(values[-1] - values[0], abs=1e-12)


def test_shapley_of_known_games() -> None:
    glove = np.array([float(bool(s & 1) and bool(s & 6)) for s in range(8)])  # one left, two right gloves
    assert shapley(glove) == pytest.approx([2 / 3, 1 / 6, 1 / 6])
    unanimity = np.array([float(s == 15) for s in range(16)])
    assert shapley(unanimity) == pytest.approx([0.25] * 4)
    weights = np.array([0.5, -2.0, 3.25])
    additive = np.array([sum(w for i, w in enumerate(weights) if s >> i & 1) for s in range(8)])
    assert shapley(additive) == pytest.approx(weights)


def test_shapley_gives_a_null_player_exactly_nothing_and_equals_equal_shares() -> None:
    rng = np.random.default_rng(1)
    pair = rng.normal(size=4)
    null = np.array([pair[s & 1 | s >> 1 & 2] for s in range(8)])  # player 1 changes nothing
    assert shapley(null)[1] == 0.0
    symmetric = np.array([[0.0, 1.7, 1.7, 2.2][s & 3] + 0.3 * (s >> 2) for s in range(8)])
    assert shapley(symmetric)[0] == shapley(symmetric)[1]


def test_shapley_does_not_depend_on_the_order_of_players() -> None:
    values = np.random.default_rng(3).normal(size=32)
    order = [3, 0, 4, 2, 1]
    moved = np.array([values[sum(1 << order[i] for i in range(5) if s >> i & 1)] for s in range(32)])
    assert shapley(moved) == pytest.approx(shapley(values)[order], abs=1e-12)


def test_shapley_refuses_a_length_that_is_no_power_of_two() -> None:
    assert len(shapley(np.zeros(1))) == 0
    for length in (0, 3):
        with pytest.raises(ValueError, match="expected 2\\*\\*n"):
            shapley(np.zeros(length))


def test_log_mean_is_finite_where_both_are_equal() -> None:
    assert log_mean(3.0, 3.0) == 3.0
    assert log_mean(3.0, 3.0 + 1e-7) == pytest.approx(3.0)
    assert log_mean(2.0, 1.0) * math.log(2.0) == pytest.approx(1.0)


# --- the table of causes ---


def test_every_cause_is_explained_and_every_owner_has_a_class() -> None:
    assert len(set(IDS)) == len(IDS)
    assert set(MACHINE) == {*DEVICE_IDEALS, "launch", "power"} <= set(IDS)
    for item in CAUSES:
        assert item.kind in CLASSES
        assert item.meaning
        assert item.idealised
        assert item.counters
    assert set(OWNER_CLASS) == set(OWNERS)
    assert set(OWNER_CLASS.values()) <= set(CLASSES)


# --- the ideal ---


@pytest.mark.parametrize("name", ["a100_pcie_80gb", "h100_pcie", "b200"])
@pytest.mark.parametrize("dtype", ["f16", "i8"])
@pytest.mark.parametrize("pattern", ["dense", "2:4", "1:4"])
def test_engine_with_everything_ideal_is_the_closed_form(name: str, dtype: str, pattern: str) -> None:
    device = Device(load_gpu(name), 20_000)
    library = Simulator(device.gpu).library
    sparse = pattern != "dense"
    # odd sides, ragged splits, one row of tiles, more tiles than SMs
    for m, n, k in ((1000, 333, 1777), (4112, 24, 1040), (128, 16, 4096), (2048, 2048, 512)):
        op = Gemm("op", m=m, n=n, k=k, dtype=dtype, pattern=pattern)
        operands = library.operands(op, Pattern.parse(pattern) if sparse else None)
        shape = shape_of(op, 2.0)
        candidates = library.candidates(operands, sparse)
        for item in candidates[:: max(1, len(candidates) // 3)]:
            kernel = item.kernel.with_split(splits(item.kernel, dtype, k)[-1])
            ideal = frozenset((*DEVICE_IDEALS, "power"))
            launch = device.launch(kernel, operands, shape, Conditions(), ideal)
            assert launch.cycles == pytest.approx(ideal_cycles(device, operands, shape), rel=1e-3), kernel.name


def test_a_weaker_baseline_instruction_is_no_part_of_the_promise() -> None:
    """Dense i8 on data-centre Blackwell runs on the legacy path; nominal speedup is M/N all the same."""
    result = explain(load_gpu("b200"), Gemm("op", m=512, n=512, k=512, dtype="i8", pattern="2:4"))
    assert result.nominal_speedup == 2.0
    assert result.shares["issue"] < 0.0
    assert any("baseline's own weakness" in note for note in result.notes())


# --- one op ---


def test_shares_sum_to_the_gap_of_the_reported_speedup(base: Attribution) -> None:
    reported = Simulator(A100).gemm(OP)
    assert base.time_us == reported.time_us
    assert base.dense_time_us == reported.dense_time_us
    assert base.speedup == reported.speedup
    assert list(base.shares) == IDS
    gap = math.log(2.0) - math.log(base.speedup)
    assert math.fsum(base.shares.values()) == pytest.approx(gap, abs=1e-9)
    assert base.percent is not None
    assert math.fsum(base.percent.values()) == pytest.approx(100.0)
    lost = base.time_us - base.dense_time_us / 2.0
    assert math.fsum(base.lost_us.values()) == pytest.approx(lost, rel=1e-9)
    assert math.fsum(base.classes.values()) == pytest.approx(gap, abs=1e-9)
    assert list(base.classes) == list(CLASSES)


def test_the_tables_begin_at_the_reported_times_and_end_at_the_nominal_speedup(base: Attribution) -> None:
    assert base.dense_times[0] * 1e6 == pytest.approx(base.dense_time_us, rel=1e-12)
    assert base.sparse_times[0] * 1e6 == pytest.approx(base.time_us, rel=1e-12)
    assert base.dense_times[-1] / base.sparse_times[-1] == pytest.approx(2.0, rel=1e-12)


def test_causes_that_cannot_matter_have_share_exactly_0(base: Attribution) -> None:
    for name in ("pattern", "fallback", "conversion"):
        assert base.shares[name] == 0.0
    masks = np.arange(len(base.dense_times))
    assert (base.dense_times == base.dense_times[masks | bit("metadata")]).all()
    # a clock that is locked low enough is never lowered, whatever else is idealised
    locked = explain(A100, OP, Protocol(locked_hz=600e6))
    assert locked.shares["power"] == 0.0
    assert "--clock locked:600" in locked.command


def test_a_dense_weight_loses_nothing(attributor: Attributor) -> None:
    result = attributor.gemm(OP.with_pattern("dense"))
    assert result.nominal_speedup == result.speedup == 1.0
    assert set(result.shares.values()) == {0.0}
    assert result.percent is None
    assert result.evidence == ()
    assert result.total_lost_us == 0.0


def test_kernel_timing_leaves_only_ramp_and_drain_to_the_launch(base: Attribution) -> None:
    (evidence,) = [item for item in base.evidence if item.cause == "launch"]
    kernels = 2 if Simulator(A100).gemm(OP).launch.kernel.split_k > 1 else 1
    edges = A100.launch.ramp + A100.launch.drain
    expected = kernels * edges + (kernels - 1) * A100.launch.stream_gap + A100.launch.sparse_ramp
    assert evidence.sparse_counters["launch_us"] == pytest.approx((expected * 1e6, 0.0))


def test_evidence_shows_each_cause_alone(base: Attribution) -> None:
    assert [item.cause for item in base.evidence] == [name for name, _ in base.ranked()]
    for item in base.evidence:
        assert item.dense_us[0] == pytest.approx(base.dense_time_us)
        assert item.sparse_us[0] == pytest.approx(base.time_us)
        assert item.speedup[1] == pytest.approx(item.dense_us[1] / item.sparse_us[1])
        assert set(item.sparse_counters) == set(item.dense_counters) == set(cause(item.cause).counters)
    by_cause = {item.cause: item for item in base.evidence}
    assert by_cause["l2"].sparse_counters["l2_busy"][0] > 0.0 == by_cause["l2"].sparse_counters["l2_busy"][1]
    assert by_cause["operand"].sparse_us[1] < by_cause["operand"].sparse_us[0]


def test_cycle_accounting_is_whole_and_names_a_class(base: Attribution) -> None:
    for run in ("dense", "sparse"):
        assert math.fsum(base.accounting[run].values()) == pytest.approx(100.0)
        assert set(base.accounting[run]) == set(OWNERS)
    assert base.bottleneck in CLASSES


def test_result_is_plain_data(base: Attribution) -> None:
    record = json.loads(json.dumps(base.to_dict()))
    assert record["shares_ln"] == base.shares
    assert record["command"].startswith("sparsesim explain --gpu a100_pcie_80gb -m 512 -n 512 -k 512")
    assert {item["cause"] for item in record["evidence"]} == {name for name, _ in base.ranked()}


def test_result_is_the_same_in_another_process_state(attributor: Attributor, base: Attribution) -> None:
    attributor.gemm(replace(OP, n=256))
    again = explain(A100, OP)
    assert again.to_dict() == base.to_dict()


def test_equal_problems_are_simulated_once(attributor: Attributor, base: Attribution) -> None:
    runs = attributor.engine_runs
    twin = attributor.gemm(replace(OP, name="other", family="f", count=9))
    assert twin.op.name == "other"
    assert twin.shares == base.shares
    bf16 = attributor.gemm(OP.with_dtype("bf16"))
    assert bf16.shares == base.shares
    assert attributor.engine_runs == runs


def test_fewer_simulated_steps_explain_the_same_reported_speedup() -> None:
    op = Gemm("op", m=1024, n=8192, k=512, pattern="2:4")
    simulator = Simulator(A100)
    coarse, fine = attribute_gemm(simulator, op, step_budget=1), attribute_gemm(simulator, op)
    assert coarse.speedup == fine.speedup
    assert abs(coarse.residual) < 0.03
    for name in IDS:
        assert coarse.shares[name] == pytest.approx(fine.shares[name], abs=0.03)


# --- planted causes ---


def test_slow_decoder_is_metadata() -> None:
    wide = override(load_gpu("hypothetical_nm"), {"tensor.native_patterns.f16": ("2:4",)})
    # f16 at 256 MAC/clk per sub-core over 8 columns, 2 kept of 4: 16 groups per clk feed it
    slow = override(wide, {"metadata.groups_per_clk": 4.0})
    op = replace(OP, m=1024, n=1024)
    before, after = explain(wide, op), explain(slow, op)
    assert after.speedup < before.speedup
    assert after.ranked()[0][0] == "decode"
    assert after.shares["decode"] > 5 * before.shares["decode"]
    assert next(item for item in after.evidence if item.cause == "decode").sparse_counters["decode_busy"][0] > 0.5


def test_a_pattern_that_runs_as_another_is_pattern() -> None:
    result = explain(A100, Gemm("op", m=2048, n=4096, k=2048, pattern="1:4"))
    assert (result.path, result.nominal_speedup) == ("sparse", 4.0)
    assert result.ranked()[0][0] == "pattern"
    assert result.shares["fallback"] == 0.0
    assert math.fsum(result.shares.values()) == pytest.approx(math.log(4.0 / result.speedup), abs=1e-9)


def test_misaligned_k_is_fallback() -> None:
    result = explain(A100, Gemm("op", m=2048, n=1024, k=1028, pattern="2:4"))
    assert (result.path, result.reason) == ("dense", "shape-alignment")
    assert result.speedup == 1.0
    assert math.fsum(result.shares.values()) == pytest.approx(math.log(2.0), abs=1e-9)
    assert result.ranked()[0][0] == "fallback"
    assert result.shares["fallback"] > 0.5 * math.log(2.0)
    assert result.shares["pattern"] == 0.0
    # padding to k = 1040 is what the sparse run would pay
    assert abs(result.shares["conversion"]) < 0.05
    masks = np.arange(len(result.dense_times))
    without = masks[masks & bit("fallback") == 0]
    assert (result.dense_times[without] == result.sparse_times[without]).all()
    assert any("k = 1028" in note for note in result.notes())
    aligned = explain(A100, Gemm("op", m=2048, n=1024, k=1024, pattern="4:8"))
    assert aligned.reason == "pattern-unsupported"
    assert aligned.shares["conversion"] == aligned.shares["pattern"] == 0.0


def test_no_sparse_tensor_cores_is_fallback() -> None:
    result = explain(load_gpu("v100_sxm2"), Gemm("op", m=1024, n=1024, k=1024, pattern="2:4"))
    assert (result.reason, result.speedup) == ("arch-unsupported", 1.0)
    assert result.ranked()[0][0] == "fallback"
    assert math.fsum(result.shares.values()) == pytest.approx(math.log(2.0), abs=1e-9)


def test_refused_and_half_supported_is_both() -> None:
    result = explain(A100, Gemm("op", m=1024, n=1024, k=1028, pattern="1:4"))
    assert result.reason == "shape-alignment"
    assert result.shares["fallback"] > 0.0
    assert result.shares["pattern"] > 0.0
    assert math.fsum(result.shares.values()) == pytest.approx(math.log(4.0), abs=1e-9)


def test_sparse_activations_are_explained_as_the_transpose() -> None:
    result = explain(A100, replace(OP, m=1024, sparse_operand="B"))
    assert result.reason == "operand-side"
    assert result.shares["fallback"] > 0.0
    assert result.shares["conversion"] == 0.0


def test_long_launch_gap_is_launch() -> None:
    gpu = override(A100, {"launch.stream_gap": 50e-6})
    # large enough that the sparse kernel is the faster one: below, its tiles are what it loses by
    result = explain(gpu, replace(OP, m=1024, n=1024, k=1024), Protocol(timing="stream"))
    assert result.ranked()[0][0] == "launch"
    assert result.bottleneck == "launch"
    assert result.speedup < 1.1


def test_low_board_limit_is_power_and_hurts_both() -> None:
    gpu = override(A100, {"power.limit": 100.0})
    result = explain(gpu, Gemm("op", m=1024, n=1024, k=1024, pattern="2:4"))
    assert result.shares["power"] != 0.0
    (evidence,) = [item for item in result.evidence if item.cause == "power"]
    slowdown = [before / after for before, after in (evidence.dense_us, evidence.sparse_us)]
    assert min(slowdown) > 1.2
    assert abs(result.shares["power"]) < 0.5 * math.log(min(slowdown))


def test_one_cta_of_tail_is_occupancy() -> None:
    simulator = Simulator(A100)
    kernel = simulator.gemm(replace(OP, m=1024, n=1024)).launch.kernel.with_split(1)

    def lost(tiles: int, sms: int) -> float:
        device = Device(override(A100, {"sm.count": sms}))
        op = replace(OP, m=kernel.tile_m * tiles, n=kernel.tile_n)
        operands = simulator.library.operands(op, Pattern.parse("2:4"))
        shape = shape_of(op, 2.0)
        run = device.launch(kernel, operands, shape, conditions_of(device.gpu, Protocol(), True))
        assert run.ctas == tiles
        times = LaunchTimes(device, kernel, operands, shape, Protocol(), run.seconds)
        return times.seconds(0) / times.seconds(bit("waves"))

    slots = simulator.device.launch(
        kernel,
        simulator.library.operands(OP, Pattern.parse("2:4")),
        shape_of(OP, 2.0),
        Conditions(),
    ).slots
    assert lost(8 * slots + 1, 8) > 1.15 * lost(8 * slots, 8)


def test_small_l2_is_memory() -> None:
    op = Gemm("op", m=2048, n=128, k=4096, pattern="2:4")
    protocol = Protocol(l2="warm")
    large = explain(A100, op, protocol)
    small = explain(override(A100, {"l2.bytes": 2.0 * 2**20}), op, protocol)
    assert small.time_us > large.time_us
    assert large.shares["dram"] == 0.0  # everything stays in L2
    assert abs(small.shares["dram"]) > 0.005
    (evidence,) = [item for item in small.evidence if item.cause == "dram"]
    assert evidence.sparse_counters["dram_read_bytes"][0] > 0.0
    assert max(before / after for before, after in (evidence.dense_us, evidence.sparse_us)) > 1.01


# --- workloads ---


WORKLOAD = (
    replace(OP, name="a", count=3, family="wide"),
    replace(OP, name="b", n=128, count=2, family="narrow"),
    replace(OP, name="c", m=1024, n=1024, k=1032, family="odd"),
    replace(OP, name="d", n=128, pattern="dense", count=4, family="head"),
    replace(OP, name="e", count=1, family="wide"),
)


def test_workload_shares_sum_and_weigh_by_time(attributor: Attributor) -> None:
    seen: list[tuple[int, int, str]] = []
    result = attribute_workload(
        attributor.simulator, WORKLOAD, progress=lambda done, total, name: seen.append((done, total, name))
    )
    assert seen == [(0, 5, "a"), (1, 5, "b"), (2, 5, "c"), (3, 5, "d"), (4, 5, "e"), (5, 5, "")]
    assert math.fsum(result.shares.values()) == pytest.approx(
        math.log(result.nominal_speedup) - math.log(result.speedup), abs=1e-9
    )
    single = [attributor.gemm(op) for op in WORKLOAD]
    assert result.time_us == pytest.approx(sum(a.time_us * a.op.count for a in single))
    assert result.dense_time_us == pytest.approx(sum(a.dense_time_us * a.op.count for a in single))
    assert math.fsum(result.lost_us.values()) == pytest.approx(result.total_lost_us)
    # the dense op dilutes the promise
    macs = [op.macs * op.count for op in WORKLOAD]
    promised = sum(macs) / (sum(macs) - 0.5 * (sum(macs) - macs[3]))
    assert result.nominal_speedup == pytest.approx(promised, rel=1e-9)
    assert result.shares["fallback"] > 0.0
    assert result.shares["pattern"] == 0.0
    json.dumps(result.to_dict())


def test_worst_layers_come_first_and_families_sum(attributor: Attributor) -> None:
    result = attribute_workload(attributor.simulator, WORKLOAD)
    layers, families = result.layers(), result.families()
    assert [row.lost_us for row in layers] == sorted((row.lost_us for row in layers), reverse=True)
    assert {row.name for row in families} == {"wide", "narrow", "odd", "head"}
    assert math.fsum(row.lost_us for row in layers) == pytest.approx(math.fsum(r.lost_us for r in families))
    for row in layers + families:
        assert math.fsum(row.lost_by_cause_us.values()) == pytest.approx(row.lost_us, abs=1e-9)
    head = next(row for row in layers if row.name == "d")
    assert (head.lost_us, head.main_cause, head.speedup, head.nominal_speedup) == (0.0, None, 1.0, 1.0)
    odd = next(row for row in layers if row.name == "c")
    assert odd.paths == ("dense",)
    wide = next(row for row in families if row.name == "wide")
    assert wide.count == 4


def test_workload_does_not_depend_on_order_and_one_op_is_itself(attributor: Attributor, base: Attribution) -> None:
    forward = attribute_workload(attributor.simulator, WORKLOAD[:3])
    backward = attribute_workload(attributor.simulator, WORKLOAD[2::-1])
    for name in IDS:
        assert forward.shares[name] == pytest.approx(backward.shares[name], abs=1e-12)
    alone = attribute_workload(attributor.simulator, [replace(OP, count=7)])
    for name in IDS:
        assert alone.shares[name] == pytest.approx(base.shares[name], abs=1e-12)
    with pytest.raises(ValueError, match="at least one op"):
        attribute_workload(attributor.simulator, [])


def test_the_worked_example_of_the_page_can_be_recomputed() -> None:
    page = (Path(__file__).resolve().parent.parent / "docs" / "attribution.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([01]) \| ([01]) \| ([01]) \| ([0-9.]+) \| ([0-9.]+) \| ([0-9.]+) \|$", page, re.MULTILINE)
    assert len(rows) == 8
    values = np.zeros(8)
    protocol = Protocol("stream", "warm")
    op = Gemm("op", 4096, 4096, 4096, dtype="bf16", pattern="2:4")
    result = attribute_gemm(Simulator(load_gpu("h100_pcie"), baseline="search"), op, protocol)
    rest = [name for name in result.shares if name not in ("power", "operand")]
    for power, operand, others, dense_us, sparse_us, log in rows:
        names = ["power"] * int(power) + ["operand"] * int(operand) + rest * int(others)
        assert result.idealised(names) == pytest.approx((float(dense_us), float(sparse_us)), abs=0.06)
        assert math.log(float(dense_us) / float(sparse_us)) == pytest.approx(float(log), abs=1e-3)
        values[int(power) + 2 * int(operand) + 4 * int(others)] = float(log)
    for name, share in zip(("power", "operand", "rest"), shapley(values), strict=True):
        (stated,) = re.findall(rf"^    {name} +=.* = ([+−][0-9.]+)$", page, re.MULTILINE)
        assert share == pytest.approx(float(stated.replace("−", "-")), abs=1e-4)
