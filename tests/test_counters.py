"""Counters of a workload's run: identities, what a construction implies, and the forms they are shown in."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from sparsesim.__main__ import main
from sparsesim.api import simulate_workload, workload_counters
from sparsesim.counters import count
from sparsesim.hardware import load_gpu, override
from sparsesim.runtime import run_workload
from sparsesim.simulator import Simulator
from sparsesim.stacks import get_stack
from sparsesim.workload import Gemm, Workload

GPU = load_gpu("a100_pcie_80gb")
STACK = get_stack("cusparselt")
SPARSE = Gemm("sparse", 1024, 256, 1024, pattern="2:4", count=3)
ODD = Gemm("odd", 1000, 256, 1020, pattern="2:4", count=2)
OTHER = Gemm("other", 1024, 256, 1024, pattern="4:8")
DENSE = Gemm("dense", 512, 256, 1024)
MIXED = Workload("mixed", "", "", (SPARSE, ODD, OTHER, DENSE))


@pytest.fixture(scope="module")
def mixed():
    return simulate_workload(GPU, MIXED)


@pytest.fixture(scope="module")
def counters(mixed):
    return workload_counters(mixed, GPU)


def test_fallbacks_by_reason_sum_to_the_rate(mixed, counters):
    assert {share.reason: share.launches for share in counters.fallbacks} == {
        "shape-alignment": 2,
        "pattern-unsupported": 1,
    }
    rate, of_sparse = counters.fallback_rate, counters.of_sparse
    assert rate.launches == pytest.approx(3 / 7)
    assert rate.flops == pytest.approx(
        (2 * ODD.macs + OTHER.macs) / (3 * SPARSE.macs + 2 * ODD.macs + OTHER.macs + DENSE.macs)
    )
    assert rate.time == pytest.approx(sum(row.kernel_us for row in mixed.rows[1:3]) / mixed.sparse.kernel_us)
    assert of_sparse.launches == pytest.approx(3 / 6)
    assert of_sparse.time > rate.time
    assert math.fsum(share.time_share for share in mixed.paths) == pytest.approx(1.0)


def test_metadata_follow_from_pattern_and_shape(counters):
    # two bits for each of the kept half of the elements, beside 16 of the value
    elements = SPARSE.count * SPARSE.m * SPARSE.k / 2
    assert counters.metadata.stored_bytes == elements * 2 / 8
    assert counters.metadata.stored_share == pytest.approx(2 / 18)
    assert 0 < counters.metadata.l2_share < 2 / 18
    assert 0 <= counters.metadata.time_share < 1


def test_metadata_take_no_time_where_they_are_free(mixed):
    """The counterfactual is a run: on a board with so much bandwidth that bytes cost nothing it finds nothing."""
    plenty = {
        "dram.bytes_per_s": 1e15,
        "l2.bytes_per_clk": 1e6,
        "l2.sm_bytes_per_clk": 1e4,
        "l2.fabric_bytes_per_clk": 1e6,
    }
    fast = override(GPU, plenty)
    result = run_workload([replace(SPARSE, m=4096, n=4096)], Simulator(fast), mixed.protocol)
    slow = run_workload([replace(SPARSE, m=4096, n=4096)], Simulator(GPU), mixed.protocol)
    assert abs(count(result, fast, STACK).metadata.time_share) < 0.02
    assert count(slow, GPU, STACK).metadata.l2_bytes > 0


def test_nothing_falls_back_nothing_is_counted():
    result = simulate_workload(GPU, [replace(DENSE, name="a"), replace(DENSE, name="b", count=4)])
    found = workload_counters(result, GPU)
    zero = {"launches": 0.0, "flops": 0.0, "time": 0.0}
    data = found.to_dict()
    assert data["fallbacks"] == []
    assert data["fallback_rate"] == data["fallback_rate_of_sparse_weights"] == zero
    assert data["conversions"] == {"launches": 0, "bytes": 0.0, "time_us": 0.0, "where": []}
    assert set(data["metadata"].values()) == {0.0}
    # dense weights: the run is its own baseline
    assert found.tensor.kernels == found.tensor.dense_kernels == found.tensor.by_path["dense"]


def test_tensor_use_is_the_mean_of_the_paths_by_time(mixed, counters):
    times = {"sparse": 0.0, "fallback": 0.0, "dense": 0.0}
    for row in mixed.rows:
        times["fallback" if row.is_fallback else row.gemm["path"]] += row.kernel_us
    assert set(counters.tensor.by_path) == set(times)
    weighted = sum(counters.tensor.by_path[path] * us for path, us in times.items()) / mixed.sparse.kernel_us
    assert counters.tensor.kernels == pytest.approx(weighted)
    # kernels back to back: nothing but kernels in the makespan
    assert counters.tensor.makespan == pytest.approx(counters.tensor.kernels)


def test_conversions_are_the_launches_beside_the_products(mixed):
    rows = list(mixed.rows)
    extra = {"overheads_us": {"pad-copy": 3.0, "host-plan": 9.0}, "overheads_bytes": {"pad-copy": 1e6}}
    rows[0] = replace(rows[0], gemm={**rows[0].gemm, **extra})
    rows[1] = replace(rows[1], gemm={**rows[1].gemm, "overheads_us": {"transpose-copy": 2.0}})
    found = count(replace(mixed, rows=tuple(rows)), GPU, STACK)
    assert [(item.where, item.what, item.launches, item.bytes, item.time_us) for item in found.conversions] == [
        ("sparse", "pad-copy", 3, 3e6, 9.0),
        ("odd", "transpose-copy", 2, None, 4.0),
    ]
    assert (found.conversion_launches, found.conversion_us, found.conversion_bytes) == (5, 13.0, None)


def test_precision_is_what_was_asked_and_what_ran(capsys):
    assert main(["simulate", "llama-3.2-1b", "--gpu", "rtx4090", "--phase", "decode", "--tokens", "16", "--dtype", "i8",
                 "--json", "-"]) == 0  # fmt: skip
    rows = json.loads(capsys.readouterr().out)["counters"]["precision"]
    changed = {row["name"].rpartition("/")[2]: (row["asked"], row["ran"]) for row in rows if not row["kept"]}
    assert changed == {"lm_head": ("i8", "bf16")}
    assert all(row["note"] for row in rows if not row["kept"])
    result = simulate_workload(GPU, [Gemm("a", 1024, 64, 1024, dtype="i8", out_dtype="i8")])
    (row,) = workload_counters(result, GPU).precision
    assert row.kept
    assert row.note == "cublaslt writes 4 B an element, i8 takes 1"


def test_the_command_prints_them_as_a_table(capsys):
    assert main(["simulate", "mixed-trace", "--gpu", "rtx4090"]) == 0
    text = capsys.readouterr().out
    for word in ("Counters", "dense fallback", "format conversion", "metadata, from L2", "tensor ", "precision"):
        assert word in text


def test_a_loaded_result_cannot_run_again(mixed):
    loaded = replace(mixed, rows=tuple(replace(row, result=None) for row in mixed.rows))
    with pytest.raises(ValueError, match="found one that was loaded"):
        count(loaded, GPU, STACK)


def test_equal_runs_have_equal_counters(mixed, counters):
    again = workload_counters(simulate_workload(GPU, MIXED), GPU)
    assert json.dumps(again.to_dict()) == json.dumps(counters.to_dict())
