"""Causes that are known because they were planted: each must come out first, with the share that its plant implies.

A case edits a board so that one mechanism limits the sparse run. Its *twin* is the same run without the plant. What the
plant costs, ln(S of the twin / S of the case) in two plain simulations on the same kernels, is the least that the share
may be: the share is the mean of that cost over all sets of other causes idealised, and the fewer other limits there
are, the more a limit costs. Where a loss needs two mechanisms (metadata bytes are free unless a memory is slow), both
share it: `joint` names them. Causes that cannot matter on a case must have share 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from sparsesim import lowering
from sparsesim.attribution import CAUSES, Attribution, attribute_gemm
from sparsesim.attribution.result import share_notes
from sparsesim.hardware import GpuSpec, load_gpu, override
from sparsesim.kernels import sparse_kernels
from sparsesim.protocol import Protocol
from sparsesim.results import GemmResult
from sparsesim.simulator import Simulator
from sparsesim.workload import Gemm

#: shapes of whole tiles and whole waves
SQUARE = (2048, 2048, 2048)


@dataclass(frozen=True)
class Planted:
    """`edits` by path; `first` = cause(s) that must lead; `zero` = causes without share; `keep` = sections whose
    bandwidths stay as they are; `twin` = edits of the board without the plant, `twin_shape` and `twin_stack` its shape
    and stack if the plant is one; `joint` = causes that share the loss with the first; `pair` = the two of `first` lead
    together; `stages` of the sparse kernels, if they are planted."""

    gpu: str
    first: tuple[str, ...]
    edits: dict[str, Any] = field(default_factory=dict)
    shape: tuple[int, int, int] = SQUARE
    dtype: str = "f16"
    pattern: str = "2:4"
    protocol: Protocol = field(default_factory=Protocol)
    zero: tuple[str, ...] = ()
    keep: str = ""
    pair: bool = False
    twin: dict[str, Any] = field(default_factory=dict)
    twin_shape: tuple[int, int, int] | None = None
    joint: tuple[str, ...] = ()
    stages: int = 0
    stack: str = "cusparselt"
    twin_stack: str = ""


def roomy(gpu: GpuSpec, keep: str) -> dict[str, float]:
    """Edits after which no launch throttles and no bandwidth limits, so that a planted cause stands alone.

    Bandwidths of the sections in `keep` stay.
    """
    wide = {
        "power.limit": 20.0 * gpu.power.limit,
        "l2.bytes_per_clk": 8.0 * gpu.l2.bytes_per_clk,
        "l2.fabric_bytes_per_clk": 8.0 * gpu.l2.fabric_bytes_per_clk,
        "l2.sm_bytes_per_clk": 4.0 * gpu.l2.sm_bytes_per_clk,
        "dram.bytes_per_s": 8.0 * gpu.dram.bytes_per_s,
        "smem.bytes_per_clk": 2.0 * gpu.smem.bytes_per_clk,
    }
    return {path: value for path, value in wide.items() if path.partition(".")[0] not in keep.split()}


NOT_REFUSED = ("pattern", "fallback", "conversion")
#: enough registers and shared memory for a second CTA of any kernel
SECOND_CTA = {"sm.registers": 4 * 65536, "smem.bytes": 512 * 1024.0}
NATIVE = {"tensor.native_patterns": {"f16": ["1:4", "2:4"], "i8": ["1:4", "2:4"]}}
NO_FLOOR = {"tensor.sparse_min_interval": 0.0}

CASES = {
    # the decoder: f16 2:4 at 256 MAC per clk and sub-core needs 16 groups per clk (Hopper and Blackwell: rows x k / 4)
    **{
        f"{gpu}, slow decoder, {dtype}": Planted(
            gpu, ("decode",), {"metadata.groups_per_clk": rate}, dtype=dtype, zero=NOT_REFUSED
        )
        for gpu, dtype, rate in (
            ("a100_pcie_80gb", "f16", 4.0), ("a100_pcie_80gb", "i8", 8.0), ("rtx4090", "f16", 2.0),
            ("rtx_a6000", "f16", 2.0), ("hypothetical_nm", "f16", 4.0), ("hypothetical_nm", "i8", 8.0),
        )
    },
    # metadata bytes: at small n the weight's traffic is the time; free DRAM would make them free as well
    **{
        f"{gpu}, metadata bits x8": Planted(
            gpu, ("metadata", "dram"), {"metadata.bits_factor": 8.0}, shape=(16384, 128, 8192), zero=("decode",),
            keep="dram", pair=True,
        )
        for gpu in ("a100_pcie_80gb", "rtx4090")
    },
    # what the datapath lacks
    **{
        f"{gpu}, 1:4 on a 2:4 datapath, {dtype}": Planted(
            gpu, ("pattern",), NO_FLOOR, shape=(4096, 4096, 2048), dtype=dtype, pattern="1:4",
            twin={**NO_FLOOR, **NATIVE}, zero=("fallback", "decode"),
        )
        for gpu, dtype in (
            ("a100_pcie_80gb", "f16"), ("a100_sxm4_80gb", "bf16"), ("rtx4090", "i8"), ("rtx3090", "f16"),
        )
    },
    # what the stack refuses
    **{
        f"{gpu}, {why}": Planted(gpu, ("fallback",), shape=shape, dtype=dtype, twin_shape=twin, zero=("decode",))
        for gpu, why, shape, dtype, twin in (
            ("a100_pcie_80gb", "k is odd", (2048, 2048, 2052), "f16", (2048, 2048, 2048)),
            ("h100_pcie", "k is odd", (2048, 2048, 2052), "bf16", (2048, 2048, 2048)),
            ("rtx4090", "k is no multiple of 32", (2048, 2048, 2064), "i8", (2048, 2048, 2048)),
            ("b200", "m is odd", (4092, 4096, 4096), "f16", (4096, 4096, 4096)),
        )
    },
    "a100, 4:8 as no 2:4": Planted(
        "a100_pcie_80gb", ("fallback",), pattern="4:8", zero=("decode",),
        twin={"tensor.native_patterns": {"f16": ["4:8", "2:4"]}},
    ),
    # launch costs
    **{
        f"{gpu}, launch gap of 50 us": Planted(
            gpu, ("launch",), {"launch.stream_gap": 50e-6}, shape=shape, protocol=Protocol("stream", "warm"),
            zero=NOT_REFUSED,
        )
        for gpu, shape in (("a100_pcie_80gb", (1024, 1024, 1024)), ("rtx4090", (2048, 2048, 2048)))
    },
    **{
        f"{gpu}, host call of 200 us": Planted(
            gpu, ("launch",), {"launch.host_call": 200e-6}, protocol=Protocol("stream", "warm"), zero=NOT_REFUSED
        )
        for gpu in ("a100_pcie_80gb", "h100_pcie", "rtx4090")
    },
    "b200, sparse ramp of 30 us": Planted(
        "b200", ("launch",), {"launch.sparse_ramp": 30e-6}, shape=(2048, 2048, 4096), zero=NOT_REFUSED
    ),
    # shared memory
    **{
        f"{gpu}, port of {width} bytes": Planted(
            gpu, ("operand",), {"smem.bytes_per_clk": width}, zero=(*NOT_REFUSED, "decode")
        )
        for gpu, width in (("a100_pcie_80gb", 48.0), ("rtx4090", 24.0), ("h100_pcie", 64.0), ("hypothetical_nm", 64.0))
    },
    # L2 and DRAM
    **{
        f"{gpu}, L2 of {width} bytes per clk": Planted(
            gpu, ("l2",), {"l2.bytes_per_clk": width, "l2.fabric_bytes_per_clk": width}, shape=(4096, 4096, 4096),
            zero=(*NOT_REFUSED, "decode"), joint=("metadata",),
        )
        for gpu, width in (("a100_pcie_80gb", 900.0), ("rtx4090", 500.0))
    },
    "h100, 16 bytes per clk into each SM": Planted(
        "h100_pcie", ("l2",), {"l2.sm_bytes_per_clk": 16.0}, shape=(4096, 4096, 4096), zero=(*NOT_REFUSED, "decode"),
        joint=("metadata",),
    ),
    **{
        f"{gpu}, DRAM at a tenth": Planted(
            gpu, ("dram",), {"dram.bytes_per_s": rate}, shape=shape, protocol=Protocol(l2="cold"),
            zero=(*NOT_REFUSED, "decode"), joint=("metadata",),
        )
        for gpu, rate, shape in (
            ("a100_pcie_80gb", 150e9, (2048, 1024, 4096)), ("rtx4090", 100e9, (2048, 1024, 4096)),
            ("h100_pcie", 80e9, (256, 8192, 2048)),
        )
    },
    "a100, L2 of 2 MiB": Planted(
        "a100_pcie_80gb", ("dram",), {"l2.bytes": 2.0 * 2**20, "dram.bytes_per_s": 1e12}, shape=(8192, 4096, 4096),
        twin={"dram.bytes_per_s": 1e12}, keep="dram", joint=("metadata",),
    ),
    # issue
    **{
        f"{gpu}, sparse interval {ratio}x": Planted(
            gpu, ("issue",), {"tensor.sparse_issue_ratio": ratio}, zero=(*NOT_REFUSED, "decode")
        )
        for gpu, ratio in (("a100_pcie_80gb", 1.8), ("rtx4090", 1.8), ("h100_pcie", 2.0), ("b200", 2.0))
    },
    "a100, floor of 14 clk": Planted(
        "a100_pcie_80gb", ("issue",), {"tensor.sparse_min_interval": 14.0}, twin=NO_FLOOR
    ),
    # exposed latency
    **{
        f"{gpu}, sparse barrier of 1500 clk": Planted(
            gpu, ("latency",), {"pipeline.sparse_barrier": 1500.0}, zero=(*NOT_REFUSED, "decode")
        )
        for gpu in ("h100_pcie", "b200")
    },
    # a sparse kernel whose loads wait for its datapath, and the other way round: latency, much of it that of L2
    **{
        f"{gpu}, pipeline of one stage": Planted(
            gpu, ("latency", "l2"), shape=(4096, 4096, 2048), stages=1, zero=NOT_REFUSED, joint=("dram",), pair=True
        )
        for gpu in ("h100_pcie", "b200")
    },
    # one CTA more than SMs: a second wave, which has a prologue and an epilogue as well
    **{
        f"{gpu}, one CTA of tail, k = {k}": Planted(
            gpu, ("waves",), {"sm.count": 63}, shape=(2048, 1024, k), twin={"sm.count": 64}, zero=NOT_REFUSED,
            joint=("latency",),
        )
        for gpu, k in (("h100_pcie", 1024), ("h100_pcie", 2048))
    },
    # too few registers for the CTA that would hide the other's start
    "rtx3090, one CTA per SM": Planted(
        "rtx3090", ("residency",), {"launch.cta_start": 4000.0}, shape=(8192, 8192, 256),
        twin={"launch.cta_start": 4000.0, **SECOND_CTA}, zero=NOT_REFUSED, joint=("latency", "l2", "dram"),
    ),
    # a board of 100 W; bytes draw power too
    **{
        f"{gpu}, 100 W": Planted(
            gpu, ("power",), {"power.limit": 100.0}, shape=(8192, 8192, 8192), keep="l2 dram smem", zero=NOT_REFUSED,
            joint=("metadata", "l2", "dram"),
        )
        for gpu in ("a100_pcie_80gb", "rtx4090")
    },
    # a matrix that the sparse tiles overhang, and the dense ones less
    "rtx4090, rows beyond the tile": Planted(
        "rtx4090", ("padding",), shape=(144, 16384, 8192), twin_shape=(256, 16384, 8192), joint=("issue", "latency")
    ),
    # a stack that writes its result once more, transposed
    "a100, transposed result": Planted(
        "a100_pcie_80gb", ("conversion",), shape=(4096, 4096, 512), protocol=Protocol("graph", "warm"),
        stack="torch-cutlass@2.12", twin_stack="torch-cutlass@2.10", zero=("pattern", "fallback"),
    ),
    # pairs: both lead
    "a100, decoder and port": Planted(
        "a100_pcie_80gb", ("decode", "operand"), {"metadata.groups_per_clk": 10.0, "smem.bytes_per_clk": 48.0},
        pair=True,
    ),
    "rtx4090, decoder and host": Planted(
        "rtx4090", ("decode", "launch"), {"metadata.groups_per_clk": 1.0, "launch.sparse_ramp": 100e-6},
        protocol=Protocol("stream", "warm"), pair=True,
    ),
    "h100, barrier and interval": Planted(
        "h100_pcie", ("latency", "issue"), {"pipeline.sparse_barrier": 1000.0, "tensor.sparse_issue_ratio": 2.0},
        pair=True,
    ),
    "a100, pattern and gap": Planted(
        "a100_pcie_80gb", ("pattern", "launch"), {"launch.sparse_ramp": 60e-6}, pattern="1:4",
        protocol=Protocol("stream", "warm"), twin=NATIVE, pair=True,
    ),
}  # fmt: skip

#: ln by which a share may miss what its plant costs: the counterfactual runs are shorter than a simulation's
SLACK = 0.005


def board(case: Planted, edits: dict[str, Any]) -> GpuSpec:
    gpu = load_gpu(case.gpu)
    return override(gpu, {**roomy(gpu, case.keep), **edits})


def gemm_of(case: Planted, shape: tuple[int, int, int]) -> Gemm:
    m, n, k = shape
    return Gemm("op", m, n, k, dtype=case.dtype, pattern=case.pattern)


def explain(case: Planted) -> tuple[Attribution, GemmResult]:
    simulator = Simulator(board(case, case.edits), case.stack, baseline="search")
    op = gemm_of(case, case.shape)
    return attribute_gemm(simulator, op, case.protocol), simulator.gemm(op, case.protocol)


def cost(case: Planted, planted: GemmResult) -> float:
    """ln by which the plant lowers the speedup: on the kernels of the planted run, if it ran sparse."""
    simulator = Simulator(board(case, case.twin), case.twin_stack or case.stack, baseline="search")
    op = gemm_of(case, case.twin_shape or case.shape)
    if planted.path == "dense" or case.twin_stack:
        twin = simulator.gemm(op, case.protocol)
        assert twin.path == "sparse"
        return math.log(twin.speedup / planted.speedup)
    native = simulator.stack.decide(op, simulator.gpu).native
    dense_kernel, kernel = planted.dense_launch.kernel, planted.launch.kernel
    if case.stages:
        operands = simulator.library.operands(op, native)
        (kernel,) = [k for k in sparse_kernels(simulator.gpu, operands) if replace(k, stages=case.stages) == kernel]
    dense_s, _ = simulator.time_kernel(op, None, dense_kernel, case.protocol)
    sparse_s, _ = simulator.time_kernel(op, native, kernel, case.protocol)
    return math.log(dense_s / sparse_s / planted.speedup)


def test_there_are_forty_cases() -> None:
    assert len(CASES) >= 40


@pytest.mark.parametrize("name", CASES)
def test_the_planted_cause_comes_first(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    if case.stages:
        monkeypatch.setattr(
            lowering, "sparse_kernels", lambda *a: [replace(k, stages=case.stages) for k in sparse_kernels(*a)]
        )
    result, planted = explain(case)
    ranked = result.ranked()
    if case.pair:
        assert {cause for cause, _ in ranked[:2]} == set(case.first), ranked
    assert ranked[0][0] in case.first, ranked
    least = cost(case, planted)
    assert least >= 0.04, f"the plant costs {least}: it is none"
    together = math.fsum(result.shares[cause] for cause in (*case.first, *case.joint))
    assert together >= least - SLACK, (together, least, ranked)
    assert math.fsum(result.shares.values()) == pytest.approx(result.gap, abs=1e-9)
    for cause in case.zero:
        assert abs(result.shares[cause]) <= 1e-12, (cause, result.shares[cause])
    assert set(result.shares) == {item.id for item in CAUSES}


def test_a_part_without_a_sparse_datapath_runs_dense_and_says_so() -> None:
    result, planted = explain(Planted("t4", ("fallback",)))
    assert planted.path == "dense"
    assert result.speedup == 1.0
    assert result.ranked()[0][0] == "fallback"
    assert result.shares["fallback"] >= 0.5 * math.log(2.0)


@pytest.mark.parametrize(
    ("gpu", "shape"), [("a100_pcie_80gb", (2048, 2048, 8192)), ("a100_sxm4_80gb", (1024, 4096, 4096))]
)
def test_a_dense_heuristic_that_picks_badly_is_named_as_the_baselines_weakness(
    gpu: str, shape: tuple[int, int, int]
) -> None:
    """A bad dense tile makes the speedup look better: the largest negative share; it fades with idealising."""
    op = Gemm("op", *shape, dtype="f16", pattern="2:4")
    simulator = Simulator(load_gpu(gpu), baseline="heuristic")
    result = attribute_gemm(simulator, op)
    heuristic, _ = simulator.time_dense(op, Protocol())
    searched, _ = simulator.time_dense(op, Protocol(), "search")
    implied = math.log(heuristic / searched)
    assert implied > 0.1
    assert min(result.shares, key=result.shares.__getitem__) == "tile"
    assert -implied <= result.shares["tile"] <= -implied / 4.0
    assert any(note.startswith("tile") for note in share_notes(result.shares, result.gap))
