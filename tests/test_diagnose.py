"""Diagnosis of planted regressions: the planted change is named first; pairs without an effect name none.

All cases are small variations of one base, so that what is simulated for one serves the others. The mechanisms of
some are asserted, too, where the construction implies them; sizes of effects are not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsesim.__main__ import main
from sparsesim.diagnose import Conversion, Evaluator, Owners, Run, Settings, diagnose, load_owners, read_pair, read_run
from sparsesim.diagnose.attribute import MATERIAL, attribute_changes
from sparsesim.diagnose.changes import aligned, apply, find_changes
from sparsesim.diagnose.decision import Figure, decide
from sparsesim.diagnose.fixes import padded
from sparsesim.diagnose.mechanism import MechanismFinder
from sparsesim.diagnose.page import page, write_folder
from sparsesim.diagnose.quality import compare_quality, read_quality
from sparsesim.diagnose.run import EFFECTS
from sparsesim.diagnose.runfile import run_lines
from sparsesim.diagnose.slices import KEEP, _ddmin, find_slice
from sparsesim.errors import UserError
from sparsesim.hardware import load_gpu, override
from sparsesim.protocol import Protocol
from sparsesim.stacks import get_stack
from sparsesim.stacks.rules import Rule
from sparsesim.workload import Gemm, Workload

A100 = load_gpu("a100_pcie_80gb")
SIZES = {"qkv": (1536, 1024), "o": (1024, 1024), "up": (4096, 1024), "down": (1024, 4096)}
OPS = tuple(Gemm(f"p/{n}", m, 512, k, pattern="2:4", family=n, count=2) for n, (m, k) in SIZES.items())
BASE = Run("base", A100, "a100_pcie_80gb", Workload("small", "", "", OPS), get_stack("cusparselt"))
STREAM = replace(BASE, protocol=Protocol("stream", "warm"))

#: what is simulated for one test serves the others
EVALUATOR = Evaluator()
FINDER = MechanismFinder(EVALUATOR, step_budget=3_000)


def run_of(change: Callable[[Gemm], Gemm], base: Run = BASE, only: str = "") -> Run:
    """`base` with `change` made to its ops, or to those of one family."""
    ops = tuple(change(op) if only in ("", op.family) else op for op in base.workload.ops)
    return replace(base, label="candidate", workload=Workload("small", "", "", ops))


def board(edits: dict[str, float], base: Run = BASE) -> Run:
    return replace(base, label="candidate", gpu=override(base.gpu, edits))


def scaled(path: str, factor: float, base: Run = BASE) -> Run:
    section, field = path.split(".")
    return board({path: getattr(getattr(base.gpu, section), field) * factor}, base)


def judge(base: Run, candidate: Run, mechanisms: bool = False, **options):
    return diagnose(base, candidate, settings=Settings(mechanisms=mechanisms, **options), evaluator=EVALUATOR,
                    finder=FINDER)  # fmt: skip


def no_sparse_below(size: int):
    """cuSPARSELt with a rule that drops the path of narrow weights, as a downgraded version would."""
    stack = get_stack("cusparselt")
    rule = Rule("minimum-size", "m is large enough", "planted", lambda op, _, __: "too small" if op.m < size else None)
    return replace(stack, rules=(*stack.rules, rule))


@dataclass(frozen=True)
class Planted:
    """`cause` is the id that must be named first; `mechanism` the one that must fail first, where it is asserted."""

    candidate: Run
    cause: str
    mechanism: str = ""
    base: Run = BASE
    figure: str = ""


def sharded(size: int) -> Run:
    rows = ("o", "down")
    return run_of(lambda op: replace(op, k=op.k // size) if op.family in rows else replace(op, m=op.m // size))


SLOW = override(A100, {"dram.bytes_per_s": 0.3e12})
#: the weight's bytes are the time
NARROW = replace(BASE, gpu=SLOW, workload=Workload("w", "", "", (Gemm("narrow", 4096, 16, 2048, pattern="2:4"),)))
BIG = replace(BASE, workload=Workload("big", "", "", (Gemm("big", 8192, 1024, 8192, pattern="2:4"),)))
WIDE = replace(BASE, workload=Workload("w", "", "", (Gemm("down", 8192, 1024, 1040, pattern="2:4"),)))
HEAD = replace(BASE, workload=Workload("w", "", "", (*OPS, Gemm("head", 8192, 512, 1024, pattern="2:4"))))
CASES = {
    "k of one layer odd": Planted(run_of(lambda op: replace(op, k=4100), only="down"), "ops.p/down.k", "fallback"),
    "m of one layer odd": Planted(run_of(lambda op: replace(op, m=4100), only="up"), "ops.p/up.m"),
    "tokens no multiple of 8": Planted(run_of(lambda op: replace(op, n=500)), "n"),
    "a stack without sparse kernels": Planted(replace(BASE, stack=get_stack("cublaslt")), "stack"),
    "a stack downgrade that drops a path": Planted(replace(BASE, stack=no_sparse_below(4096)), "stack", "fallback"),
    "a conversion before each call": Planted(
        replace(BASE, conversions=tuple(Conversion(op.name, 4e6) for op in OPS)), "conversion", "conversion kernels"
    ),
    "a conversion at one layer": Planted(
        replace(BASE, conversions=(Conversion("p/up", 1e7, 2),)), "conversion", "conversion kernels"
    ),
    "one family in tf32": Planted(
        run_of(lambda op: op.with_dtype("tf32"), only="up"), "ops.p/up.dtype", figure="throughput"
    ),
    "i8 back to f16": Planted(
        BASE, "dtype", base=run_of(lambda op: op.with_dtype("i8")), figure="throughput"
    ),
    "tokens halved": Planted(run_of(lambda op: replace(op, n=256)), "n"),
    "tokens down to a decode step": Planted(run_of(lambda op: replace(op, n=32)), "n"),
    "a power cap": Planted(board({"power.limit": 150.0}), "power.limit", "power", figure="throughput"),
    "L2 halved": Planted(
        scaled("l2.bytes", 0.5, replace(BIG, gpu=SLOW)), "l2.bytes", base=replace(BIG, gpu=SLOW)
    ),
    "L2 bandwidth halved": Planted(scaled("l2.bytes_per_clk", 0.35), "l2.bytes_per_clk", "l2"),
    "DRAM bandwidth cut": Planted(scaled("dram.bytes_per_s", 0.2), "dram.bytes_per_s", "dram"),
    "metadata decoder slowed": Planted(board({"metadata.groups_per_clk": 4.0}), "metadata.groups_per_clk", "decode"),
    "metadata bits eightfold": Planted(
        scaled("metadata.bits_factor", 8.0, NARROW), "metadata.bits_factor", "metadata", base=NARROW
    ),
    "shared memory port halved": Planted(scaled("smem.bytes_per_clk", 0.5), "smem.bytes_per_clk", "operand"),
    "host launch gap raised": Planted(
        board({"launch.stream_gap": 30e-6}, STREAM), "launch.stream_gap", "launch", base=STREAM
    ),
    "host calls slower": Planted(
        board({"launch.host_call": 60e-6}, STREAM), "launch.host_call", base=STREAM
    ),
    "CUDA graph given up": Planted(
        replace(STREAM, gpu=override(A100, {"launch.host_call": 60e-6})), "graph",
        base=replace(STREAM, gpu=override(A100, {"launch.host_call": 60e-6}), graph=True),
    ),
    "sparse kernels start late": Planted(board({"launch.sparse_ramp": 20e-6}), "launch.sparse_ramp", "launch"),
    "clock locked lower": Planted(
        replace(BASE, protocol=Protocol(locked_hz=800e6)), "protocol.clock", "peak", figure="throughput"
    ),
    "boost clock lower": Planted(
        board({"clock.max": 1065e6, "clock.boost": 1065e6}), "clock.max", figure="throughput"
    ),
    "2:4 to 1:4 on a 2:4 machine": Planted(
        run_of(lambda op: op.with_pattern("1:4")), "pattern", "pattern", figure="delivered"
    ),
    "4:8 on a 2:4 machine": Planted(run_of(lambda op: op.with_pattern("4:8")), "pattern", "fallback"),
    "one family unpruned": Planted(run_of(lambda op: op.with_pattern("dense"), only="up"), "ops.p/up.pattern", "promise"),
    "a head pruned along the wrong axis": Planted(
        replace(HEAD, unusable=(("head", "pruned along m"),)), "weight layout", base=HEAD
    ),
    "a layer pruned along the wrong axis": Planted(
        replace(BASE, unusable=(("p/down", "pruned along m"),)), "weight layout", "fallback"
    ),
    "SM count cut": Planted(board({"sm.count": 54}), "sm.count", "peak", figure="throughput"),
    "batch of one product": Planted(
        run_of(lambda op: replace(op, batch=1)), "batch", base=run_of(lambda op: replace(op, batch=8))
    ),
    "a shard of the wrong size": Planted(sharded(64), "m"),
    "a shard with a misaligned k": Planted(
        run_of(lambda op: replace(op, k=520), WIDE), "ops.down.k", base=WIDE
    ),
    "activations sparse, not weights": Planted(
        run_of(lambda op: replace(op, sparse_operand="B"), only="up"), "ops.p/up.sparse_operand"
    ),
    "tensor rate halved": Planted(
        board({f"tensor.macs_per_clk.{key}": value / 2 for key, value in A100.tensor.macs_per_clk.items()}),
        "tensor.macs_per_clk", "peak", figure="throughput",
    ),
    "timed by events": Planted(replace(BASE, protocol=Protocol("event")), "protocol.timing", "launch"),
    "cold L2": Planted(
        replace(BASE, protocol=Protocol("kernel", "cold")), "protocol.l2", base=replace(BASE, protocol=Protocol("kernel", "warm"))
    ),
    "a dense baseline that is searched": Planted(replace(BASE, baseline="search"), "baseline", figure="speedup"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_planted_cause_is_named_first(case):
    found = judge(case.base, case.candidate, mechanisms=bool(case.mechanism))
    assert found.first is not None
    assert found.first.id == case.cause
    if case.mechanism:
        assert found.first.mechanism == case.mechanism
    if case.figure:
        assert found.first.effect == case.figure
    # the change taken back is among the fixes, and recovers all of it where it is the only one
    back = next(fix for fix in found.fixes if fix.takes_back == case.cause)
    assert back.recovers == pytest.approx(1.0) or (len(found.found.changes) > 1 and back.recovers > 0.5)
    assert len(found.fixes) <= 5
    cut = found.slice
    assert cut is not None
    assert cut.effect * cut.whole > 0
    assert abs(cut.effect) >= KEEP * abs(cut.whole)
