"""Causes that are known because they were planted: each must come out first, with at least a stated share.

A case edits a board so that one mechanism limits the sparse run, on a shape where nothing else costs much. The least
share of a case is chosen well below what its construction costs; it is not derived from it. Causes that cannot matter
on a case must have share 0. Not planted yet: waves, residency, tile, conversion, a pipeline of one stage.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest

from sparsesim.attribution import CAUSES, Attribution, attribute_gemm
from sparsesim.hardware import GpuSpec, load_gpu, override
from sparsesim.protocol import Protocol
from sparsesim.simulator import Simulator
from sparsesim.workload import Gemm

#: shapes of whole tiles and whole waves
SQUARE = (2048, 2048, 2048)


@dataclass(frozen=True)
class Planted:
    """`edits` by path; `first` = cause(s) that must lead; `least` ln share of the first; `zero` = causes without share;
    `keep` = sections whose bandwidths stay as they are; `pair` = the two of `first` lead together."""

    gpu: str
    first: tuple[str, ...]
    edits: dict[str, Any] = field(default_factory=dict)
    shape: tuple[int, int, int] = SQUARE
    dtype: str = "f16"
    pattern: str = "2:4"
    protocol: Protocol = field(default_factory=Protocol)
    least: float = 0.05
    zero: tuple[str, ...] = ()
    keep: str = ""
    pair: bool = False


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
CASES = {
    # the decoder: f16 2:4 at 256 MAC per clk and sub-core needs 16 groups per clk (Hopper and Blackwell: rows x k / 4)
    **{
        f"{gpu}, slow decoder, {dtype}": Planted(
            gpu, ("decode",), {"metadata.groups_per_clk": rate}, dtype=dtype, least=0.3, zero=NOT_REFUSED
        )
        for gpu, dtype, rate in (
            ("a100_pcie_80gb", "f16", 4.0), ("a100_pcie_80gb", "i8", 8.0), ("rtx4090", "f16", 2.0),
            ("rtx_a6000", "f16", 2.0), ("hypothetical_nm", "f16", 4.0), ("hypothetical_nm", "i8", 8.0),
        )
    },
    # metadata bytes: at small n the weight's traffic is the time
    **{
        f"{gpu}, metadata bits x8": Planted(
            gpu, ("metadata",), {"metadata.bits_factor": 8.0}, shape=(16384, 64, 8192), least=0.2, zero=("decode",),
            keep="dram",
        )
        for gpu in ("a100_pcie_80gb", "rtx4090")
    },
    # what the datapath lacks
    **{
        f"{gpu}, 1:4 on a 2:4 datapath, {dtype}": Planted(
            gpu, ("pattern",), shape=(4096, 4096, 2048), dtype=dtype, pattern="1:4", least=0.3, zero=("fallback",
            "decode")
        )
        for gpu, dtype in (
            ("a100_pcie_80gb", "f16"), ("a100_sxm4_80gb", "bf16"), ("rtx4090", "i8"), ("rtx3090", "f16"),
        )
    },
    # what the stack refuses
    **{
        f"{gpu}, {why}": Planted(
            gpu, ("fallback",), shape=shape, dtype=dtype, pattern=pattern, least=0.25, zero=("decode",))
        for gpu, why, shape, dtype, pattern in (
            ("a100_pcie_80gb", "k is odd", (2048, 2048, 2052), "f16", "2:4"),
            ("h100_pcie", "k is odd", (2048, 2048, 2052), "bf16", "2:4"),
            ("rtx4090", "k is no multiple of 32", (2048, 2048, 2064), "i8", "2:4"),
            ("b200", "m is odd", (4092, 4096, 4096), "f16", "2:4"),
            ("a100_pcie_80gb", "4:8 as no 2:4", (2048, 2048, 2048), "f16", "4:8"),
            ("t4", "no sparse datapath", (2048, 2048, 2048), "f16", "2:4"),
        )
    },
    # launch costs
    **{
        f"{gpu}, launch gap of 50 us": Planted(
            gpu, ("launch",), {"launch.stream_gap": 50e-6}, shape=shape, protocol=Protocol("stream", "warm"),
            least=0.1, zero=NOT_REFUSED,
        )
        for gpu, shape in (("a100_pcie_80gb", (1024, 1024, 1024)), ("rtx4090", (2048, 2048, 2048)))
    },
    **{
        f"{gpu}, host call of 200 us": Planted(
            gpu, ("launch",), {"launch.host_call": 200e-6}, shape=SQUARE, protocol=Protocol("stream", "warm"),
            least=0.5,
            zero=NOT_REFUSED,
        )
        for gpu in ("a100_pcie_80gb", "h100_pcie", "rtx4090")
    },
    "b200, sparse ramp of 30 us": Planted(
        "b200", ("launch",), {"launch.sparse_ramp": 30e-6}, shape=(2048, 2048, 4096), dtype="f16", least=0.5,
        zero=NOT_REFUSED
    ),
    # shared memory
    **{
        f"{gpu}, port of {width} bytes": Planted(
            gpu, ("operand",), {"smem.bytes_per_clk": width}, least=0.15, zero=(*NOT_REFUSED, "decode")
        )
        for gpu, width in (("a100_pcie_80gb", 48.0), ("rtx4090", 24.0), ("h100_pcie", 64.0), ("hypothetical_nm", 64.0))
    },
    # L2 and DRAM
    **{
        f"{gpu}, L2 at an eighth": Planted(
            gpu, ("l2",), {"l2.bytes_per_clk": width, "l2.fabric_bytes_per_clk": width}, shape=shape, least=0.1,
            zero=(*NOT_REFUSED, "decode"),
        )
        for gpu, width, shape in (
            ("a100_pcie_80gb", 900.0, SQUARE), ("rtx4090", 500.0, SQUARE), ("h100_pcie", 400.0, (256, 8192, 2048)),
        )
    },
    **{
        f"{gpu}, DRAM at a tenth": Planted(
            gpu, ("dram",), {"dram.bytes_per_s": rate}, shape=shape, protocol=Protocol(l2="cold"), least=0.1,
            zero=(*NOT_REFUSED, "decode"),
        )
        for gpu, rate, shape in (
            ("a100_pcie_80gb", 150e9, (2048, 1024, 4096)), ("rtx4090", 100e9, (2048, 1024, 4096)),
            ("h100_pcie", 80e9, (256, 8192, 2048)),
        )
    },
    # issue
    **{
        f"{gpu}, sparse interval {ratio}x": Planted(
            gpu, ("issue",), {"tensor.sparse_issue_ratio": ratio}, least=0.25, zero=(*NOT_REFUSED, "decode")
        )
        for gpu, ratio in (("a100_pcie_80gb", 1.8), ("rtx4090", 1.8), ("h100_pcie", 2.0), ("b200", 2.0))
    },
    "a100, floor of 14 clk": Planted("a100_pcie_80gb", ("issue",), {"tensor.sparse_min_interval": 14.0}, least=0.25),
    # exposed latency
    **{
        f"{gpu}, sparse barrier of 1500 clk": Planted(
            gpu, ("latency",), {"pipeline.sparse_barrier": 1500.0}, least=0.2, zero=(*NOT_REFUSED, "decode")
        )
        for gpu in ("h100_pcie", "b200")
    },
    # a board of 100 W
    **{
        f"{gpu}, 100 W": Planted(
            gpu, ("power",), {"power.limit": 100.0}, shape=(4096, 4096, 2048), least=0.05, keep="l2 dram smem")
        for gpu in ("a100_pcie_80gb", "rtx4090")
    },
    # a matrix that the sparse tiles overhang, and the dense ones less
    "a100, rows beyond the tile": Planted("a100_pcie_80gb", ("padding",), shape=(144, 8192, 4096), least=0.05),
    # an L2 that holds nothing
    "a100, L2 of 2 MiB": Planted(
        "a100_pcie_80gb", ("dram",), {"l2.bytes": 2.0 * 2**20, "dram.bytes_per_s": 500e9}, shape=(512, 16384, 4096),
        least=0.1, keep="dram"
    ),
    # pairs: both lead
    "a100, decoder and port": Planted(
        "a100_pcie_80gb", ("decode", "operand"), {"metadata.groups_per_clk": 10.0, "smem.bytes_per_clk": 48.0},
        pair=True
    ),
    "rtx4090, decoder and host": Planted(
        "rtx4090", ("decode", "launch"), {"metadata.groups_per_clk": 1.0, "launch.sparse_ramp": 100e-6},
        protocol=Protocol("stream", "warm"), pair=True,
    ),
    "h100, barrier and interval": Planted(
        "h100_pcie", ("latency", "issue"), {"pipeline.sparse_barrier": 1000.0, "tensor.sparse_issue_ratio": 2.0},
        pair=True
    ),
    "a100, pattern and gap": Planted(
        "a100_pcie_80gb", ("pattern", "launch"), {"launch.sparse_ramp": 60e-6}, pattern="1:4", pair=True,
        protocol=Protocol("stream", "warm"),
    ),
}  # fmt: skip


def explain(case: Planted) -> Attribution:
    gpu = load_gpu(case.gpu)
    gpu = override(gpu, {**roomy(gpu, case.keep), **case.edits})
    m, n, k = case.shape
    op = Gemm("op", m, n, k, dtype=case.dtype, pattern=case.pattern)
    return attribute_gemm(Simulator(gpu, baseline="search"), op, case.protocol)


def test_there_are_forty_cases() -> None:
    assert len(CASES) >= 40


@pytest.mark.parametrize("name", CASES)
def test_the_planted_cause_comes_first(name: str) -> None:
    case = CASES[name]
    result = explain(case)
    ranked = result.ranked()
    if case.pair:
        assert {cause for cause, _ in ranked[:2]} == set(case.first), ranked
    assert ranked[0][0] in case.first, ranked
    assert ranked[0][1] >= case.least, ranked
    assert math.fsum(result.shares.values()) == pytest.approx(result.gap, abs=1e-9)
    for cause in case.zero:
        assert abs(result.shares[cause]) <= 1e-12, (cause, result.shares[cause])
    assert set(result.shares) == {item.id for item in CAUSES}
