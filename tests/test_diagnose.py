"""Diagnosis of planted regressions: the planted change is named first; pairs without an effect name none.

All cases are small variations of one base, so that what is simulated for one serves the others. The mechanisms of
some are asserted, too, where the construction implies them; sizes of effects are not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsesim.diagnose import Conversion, Evaluator, Owners, Run, Settings, diagnose, load_owners
from sparsesim.diagnose.attribute import attribute_changes
from sparsesim.diagnose.changes import aligned, apply, find_changes
from sparsesim.diagnose.decision import Figure, decide
from sparsesim.diagnose.fixes import padded
from sparsesim.diagnose.mechanism import MechanismFinder
from sparsesim.diagnose.run import EFFECTS
from sparsesim.diagnose.slices import KEEP, _ddmin, find_slice
from sparsesim.errors import UserError
from sparsesim.hardware import load_gpu, override
from sparsesim.protocol import Protocol
from sparsesim.results import config_hash
from sparsesim.stacks import Setting, get_stack
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
#: a stack whose host makes a plan on each call, unless it keeps them
PLANNED = replace(STREAM, stack=get_stack("torch-cusparselt@2.6"))
#: the weight's bytes are the time
NARROW = replace(BASE, gpu=SLOW, workload=Workload("w", "", "", (Gemm("narrow", 4096, 16, 2048, pattern="2:4"),)))
BIG = replace(BASE, workload=Workload("big", "", "", (Gemm("big", 8192, 1024, 8192, pattern="2:4"),)))
WIDE = replace(BASE, workload=Workload("w", "", "", (Gemm("down", 8192, 1024, 1040, pattern="2:4"),)))
HEAD = replace(BASE, workload=Workload("w", "", "", (*OPS, Gemm("head", 8192, 512, 1024, pattern="2:4"))))
#: a layer that gains more than the others
WITH_HEAD = replace(BASE, workload=Workload("w", "", "", (*OPS, Gemm("head", 8192, 2048, 8192, pattern="2:4"))))
ADA = replace(BASE, gpu=load_gpu("rtx4090"), gpu_source="rtx4090")
GRAPH = replace(BASE, protocol=Protocol("graph", "warm"))
CASES = {
    "k of one layer odd": Planted(run_of(lambda op: replace(op, k=4100), only="down"), "ops.p/down.k", "fallback"),
    "m of one layer odd": Planted(run_of(lambda op: replace(op, m=4100), only="up"), "ops.p/up.m", "fallback"),
    "tokens no multiple of 8": Planted(run_of(lambda op: replace(op, n=500)), "n"),
    "a stack without sparse kernels": Planted(replace(BASE, stack=get_stack("cublaslt")), "stack", "fallback"),
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
    "plans made on every call": Planted(
        PLANNED, "stack", base=replace(PLANNED, stack=PLANNED.stack.under(Setting(flags=frozenset({"plan-cache"}))))
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
    "one family unpruned": Planted(
        run_of(lambda op: op.with_pattern("dense"), only="up"), "ops.p/up.pattern", "promise"
    ),
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
        replace(BASE, protocol=Protocol("kernel", "cold")), "protocol.l2",
        base=replace(BASE, protocol=Protocol("kernel", "warm")),
    ),
    "DRAM reached less": Planted(scaled("dram.achieved_fraction", 0.25), "dram.achieved_fraction", "dram"),
    "DRAM answers late": Planted(scaled("dram.latency", 8.0), "dram.latency", figure="throughput"),
    "sparse instructions issue slower": Planted(
        board({"tensor.sparse_issue_ratio": 2.0}), "tensor.sparse_issue_ratio", "issue"
    ),
    "a board that idles hot": Planted(
        board({"power.idle": 200.0}, BIG), "power.idle", base=BIG, figure="throughput"
    ),
    "less shared memory, and less of it for a CTA": Planted(
        board({"smem.bytes": 80 * 1024.0, "smem.max_per_cta": 70 * 1024.0}), "hardware: smem", figure="throughput"
    ),
    "an op that no one pruned is added": Planted(
        replace(BASE, workload=Workload("w", "", "", (*OPS, Gemm("p/new", 8192, 512, 2048, count=2)))),
        "op added: p/new",
    ),
    "the layer that gained most is gone": Planted(
        replace(WITH_HEAD, workload=BASE.workload), "op removed: head", base=WITH_HEAD
    ),
    "f16 sums no more": Planted(
        run_of(lambda op: replace(op, acc_dtype="f32"), ADA), "dtype", base=run_of(
            lambda op: replace(op, acc_dtype="f16"), ADA), figure="throughput"
    ),
    "a version that transposes its result": Planted(
        replace(GRAPH, stack=get_stack("torch-cutlass@2.12")), "stack",
        base=replace(GRAPH, stack=get_stack("torch-cutlass@2.10")),
    ),
    "an odd k and a slower DRAM": Planted(
        board({"dram.bytes_per_s": 1.5e12}, run_of(lambda op: replace(op, k=4100), only="down")), "ops.p/down.k",
        "fallback",
    ),
    "a hard power cap and one dense layer": Planted(
        board({"power.limit": 110.0}, run_of(lambda op: op.with_pattern("dense"), only="o")), "power.limit",
        figure="throughput",
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


# --- nothing to name ---

SAME = {
    "itself": BASE,
    "another label": replace(BASE, label="candidate"),
    "the same stack, loaded again": replace(
        BASE, stack=replace(BASE.stack, output=lambda dtype: get_stack("cusparselt").output(dtype))
    ),
    "ops renamed": run_of(lambda op: replace(op, name=f"layer-{op.name}", family="")),
    "ops in another order": replace(BASE, workload=Workload("small", "", "", OPS[::-1])),
    "another kind of layer": run_of(lambda op: replace(op, kind="matmul")),
    "accumulator spelt out": run_of(lambda op: replace(op, acc_dtype="f32", out_dtype="f16")),
    "operand side of a dense weight": run_of(lambda op: op),
    "a board of another name": replace(BASE, gpu=A100.model_copy(update={"name": "mine", "title": "Mine"})),
    "device memory": scaled("dram.bytes", 2.0),
    "a rated clock that nothing runs at": board({"clock.base": 1000e6}),
    "a stream gap that the timing leaves out": board({"launch.event_overhead": 9e-6}),
    "capacity that nothing needs": scaled("l2.bytes", 2.0),
    "why a weight is unusable": replace(BASE, unusable=(("p/o", "b"),)),
}
SAME_BASE = {"why a weight is unusable": replace(BASE, unusable=(("p/o", "a"),))}


@pytest.mark.parametrize("name", SAME)
def test_no_cause_is_named_where_nothing_has_an_effect(name):
    found = judge(SAME_BASE.get(name, BASE), SAME[name], mechanisms=True)
    assert (found.first, found.causes, found.fixes, found.slice) == (None, (), (), None)
    assert found.found.changes == ()
    assert [figure.change for figure in found.figures] == [0.0, 0.0, 0.0]
    assert found.decision.verdict == "ship"


def test_a_better_candidate_ships_without_a_cause():
    found = judge(CASES["k of one layer odd"].candidate, BASE)
    assert found.first is None
    assert found.decision.verdict == "ship"


def test_a_faster_run_with_a_smaller_speedup_is_said_to_be_one():
    found = judge(CASES["a power cap"].candidate, BASE)
    assert found.figure("throughput").change > 0 > found.figure("speedup").change
    assert found.first.effect == "speedup"
    assert any("the dense baseline gains more" in note for note in found.notes)


@pytest.mark.parametrize("effect", [effect.id for effect in EFFECTS])
def test_what_the_mechanisms_add_sums_to_the_change(effect):
    for name in ("k of one layer odd", "a conversion at one layer", "host calls slower", "metadata decoder slowed"):
        case = CASES[name]
        one, other = (run.only(frozenset(["p/down", "p/up"])) for run in (case.base, case.candidate))
        parts = FINDER.difference(one, other, effect)
        before, after = (EVALUATOR.outcome(run).ln[effect] for run in (one, other))
        assert math.fsum(part.change for part in parts) == pytest.approx(after - before, abs=1e-9)


# --- several causes ---

PAIRS = {
    "odd k and fewer tokens": (("down", {"k": 4100}), {}, ("ops.p/down.k",)),
    "odd k and a power cap": (("down", {"k": 4100}), {"power.limit": 200.0}, ("ops.p/down.k", "power.limit")),
    "slow decoder and half of the SMs": ((), {"metadata.groups_per_clk": 4.0, "sm.count": 54},
                                         ("metadata.groups_per_clk", "sm.count")),
    "DRAM and L2": ((), {"dram.bytes_per_s": 0.4e12, "l2.bytes_per_clk": 1200.0},
                    ("dram.bytes_per_s", "l2.bytes_per_clk")),
}  # fmt: skip


def pair_of(name: str) -> Run:
    layer, edits, _ = PAIRS[name]
    run = run_of(lambda op: replace(op, **layer[1]), only=layer[0]) if layer else BASE
    return board(edits, run) if edits else run


@pytest.mark.parametrize("name", PAIRS)
def test_shares_of_several_causes_are_exact(name):
    run = pair_of(name)
    found = attribute_changes(EVALUATOR, BASE, run, find_changes(BASE, run))
    assert {change.id for change in found.changes} >= set(PAIRS[name][2])
    ends = [EVALUATOR.outcome(each).ln for each in (BASE, run)]
    for effect in EFFECTS:
        total = math.fsum(found.shares[effect.id].values())
        assert total == pytest.approx(ends[1][effect.id] - ends[0][effect.id], abs=1e-9)
    assert found.runs == 1 << len(found.changes)


def test_of_two_causes_the_larger_comes_first():
    small = board({"power.limit": 250.0}, run_of(lambda op: replace(op, k=4100), only="down"))
    large = board({"power.limit": 110.0}, run_of(lambda op: replace(op, k=1028), only="o"))
    assert judge(BASE, small).first.id == "ops.p/down.k"
    found = judge(BASE, large)
    assert found.first.id == "power.limit"
    assert found.first.effect == "throughput"


def test_with_two_players_the_share_is_the_mean_over_both_orders():
    run = pair_of("odd k and a power cap")
    changes = find_changes(BASE, run)
    found = attribute_changes(EVALUATOR, BASE, run, changes)
    first, second = changes
    value = {
        chosen: EVALUATOR.outcome(apply(BASE, run, [c for c in changes if c.id in chosen])).ln["throughput"]
        for chosen in ((), (first.id,), (second.id,), (first.id, second.id))
    }
    both = value[first.id, second.id]
    by_hand = 0.5 * (value[first.id,] - value[()] + both - value[second.id,])
    assert found.shares["throughput"][first.id] == pytest.approx(by_hand, abs=1e-12)


def test_many_changes_are_put_together_and_stay_exact():
    edits = {
        "dram.bytes_per_s": 0.6e12, "dram.latency": 400e-9, "l2.bytes_per_clk": 2000.0, "l2.latency_near": 300.0,
        "l2.latency_far": 600.0, "smem.bytes_per_clk": 100.0, "smem.latency": 60.0, "pipeline.barrier": 60.0,
        "pipeline.epilogue": 900.0, "tensor.latency": 50.0,
    }  # fmt: skip
    run = replace(board(edits), workload=Workload("w", "", "", OPS[:1]))
    base = replace(BASE, workload=Workload("w", "", "", OPS[:1]))
    found = attribute_changes(EVALUATOR, base, run, find_changes(base, run))
    assert found.grouped
    assert {change.id for change in found.changes} == {
        "hardware: dram", "hardware: l2", "hardware: smem", "hardware: pipeline", "tensor.latency"
    }  # fmt: skip
    assert [len(change.members) for change in found.changes if change.id == "hardware: l2"] == [3]
    ends = [EVALUATOR.outcome(each).ln["throughput"] for each in (base, run)]
    assert math.fsum(found.shares["throughput"].values()) == pytest.approx(ends[1] - ends[0], abs=1e-9)


def test_another_architecture_is_one_change_and_a_sister_board_several():
    hopper = replace(BASE, gpu=load_gpu("h100_pcie"), gpu_source="h100_pcie")
    assert [change.id for change in find_changes(BASE, hopper)] == ["gpu"]
    assert judge(BASE, hopper).first.id == "gpu"
    sister = replace(BASE, gpu=load_gpu("a100_sxm4_80gb"), gpu_source="a100_sxm4_80gb")
    assert {"power.limit", "dram.bytes_per_s", "library tuning"} <= {change.id for change in find_changes(BASE, sister)}
    assert judge(BASE, sister).found.shares["throughput"]["power.limit"] > 0


def test_what_only_runs_together_is_attributed_together():
    ada = load_gpu("rtx4090")
    f8 = run_of(lambda op: op.with_dtype("e4m3"))
    run = replace(f8, gpu=ada, gpu_source="rtx4090")  # an A100 has no e4m3
    found = attribute_changes(EVALUATOR, BASE, run, find_changes(BASE, run))
    assert [change.id for change in found.changes] == ["GPU, stack and data types"]


def test_ops_that_come_and_go_are_changes():
    extra = Gemm("p/extra", 4096, 512, 4096, pattern="dense")
    run = replace(BASE, workload=Workload("w", "", "", (*OPS[1:], extra)))
    ids = {change.id for change in find_changes(BASE, aligned(BASE, run))}
    assert ids <= {"op removed: p/qkv", "op added: p/extra"} or len(ids) >= 1
    added = replace(BASE, workload=Workload("w", "", "", (*OPS, extra)))
    found = judge(BASE, added)
    assert found.first.id == "op added: p/extra"
    assert judge(added, BASE).first is None


@settings(max_examples=12, deadline=None)
@given(subset=st.sets(st.integers(0, 4)), swap=st.booleans())
def test_applying_all_changes_gives_the_candidate_and_none_the_base(subset, swap):
    run = CASES["a conversion at one layer"].candidate
    run = board({"l2.bytes": 2e7, "dram.bytes_per_s": 1e12}, replace(run, graph=True, unusable=(("p/o", "x"),)))
    first, second = (run, BASE) if swap else (BASE, run)
    changes = find_changes(first, second)
    assert len(changes) == 5
    whole = apply(first, second, changes)
    assert config_hash(whole.gpu) == config_hash(second.gpu)
    assert (whole.workload.ops, whole.conversions, whole.unusable, whole.graph) == (
        second.workload.ops, second.conversions, second.unusable, second.graph,
    )  # fmt: skip
    part = apply(first, second, [change for i, change in enumerate(changes) if i in subset])
    left = find_changes(part, second)
    assert {change.id for change in left} == {change.id for i, change in enumerate(changes) if i not in subset}


# --- slices ---


@given(st.sets(st.integers(0, 30), min_size=1, max_size=4), st.integers(31, 60))
def test_delta_debugging_finds_a_minimal_subset(wanted, total):
    items = [str(i) for i in range(total)]
    needed = {str(i) for i in wanted}
    assert set(_ddmin(items, lambda part: needed <= set(part))) == needed


def test_a_slice_of_two_ops_where_one_does_not_show_it():
    # one op gains what the other loses beyond, so that neither alone has 80 % of the sum's sign and size
    ops = [Gemm(f"a/{i}", 1024, 256, 1024, pattern="2:4") for i in range(6)]
    base = replace(BASE, workload=Workload("w", "", "", tuple(ops)))
    run = replace(base, unusable=tuple((op.name, "x") for op in ops), gpu=BASE.gpu)
    cut = find_slice(EVALUATOR, base, run, "speedup")
    assert len(cut.ops) == 1  # equal ops: any one shows all of it
    assert cut.effect == pytest.approx(cut.whole)
    assert "80 %" in cut.criterion


def test_the_slice_runs_each_op_once():
    cut = judge(BASE, CASES["k of one layer odd"].candidate).slice
    assert cut.ops == ("p/down",)
    assert [op.count for op in cut.base.workload.ops] == [1]


# --- fixes and owners ---


def test_padding_is_the_least_that_runs_sparse():
    op = Gemm("x", 4100, 500, 4100, pattern="2:4")
    wide = padded(get_stack("cusparselt"), op, A100)
    assert (wide.m, wide.n, wide.k) == (4112, 504, 4112)
    assert padded(get_stack("cusparselt"), OPS[0], A100) is None
    assert padded(get_stack("cublaslt"), OPS[0], A100) is None


def test_fixes_go_forward_too_and_are_ranked_by_what_they_bring():
    found = judge(BASE, CASES["k of one layer odd"].candidate)
    gains = [fix.gain for fix in found.fixes]
    assert gains == sorted(gains, reverse=True)
    pad = next(fix for fix in found.fixes if fix.id == "pad")
    assert pad.takes_back is None
    assert 0.5 < pad.recovers < 1.1
    assert found.decision.verdict in ("hold", "roll back")
    graph = judge(STREAM, CASES["host calls slower"].candidate)
    assert "graph" in [fix.id for fix in graph.fixes]
    stack = judge(BASE, CASES["a stack without sparse kernels"].candidate)
    assert [fix.id for fix in stack.fixes] == ["take back stack"]


def test_owners_are_those_of_the_last_line_that_matches(tmp_path):
    path = tmp_path / "OWNERS"
    path.write_text(
        "# who\n*  @all\nmechanism:fallback @kernels\nclass:launch @runtime\np/d* @mlp @second  # layers\n"
        "change:ops.*.k  @export\n"
    )
    owners = load_owners(path)
    assert owners.of(["mechanism:fallback", "class:software"]) == "@kernels"
    assert owners.of(["mechanism:fallback", "p/down"]) == "@mlp @second"
    assert owners.of(["p/down", "change:ops.p/down.k"]) == "@export"
    assert owners.of(["x"]) == "@all"
    assert Owners().of(["x"]) == "unowned"
    run = CASES["k of one layer odd"].candidate
    found = diagnose(BASE, run, owners, Settings(mechanisms=False), EVALUATOR)
    assert found.first.owner == "@export"
    assert {fix.owner for fix in found.fixes} == {"@export", "@mlp @second", "@all"}


def test_faults_of_an_owners_file_are_named_together(tmp_path):
    path = tmp_path / "OWNERS"
    path.write_text("* @all\nlonely\nmachanism:launch @x\nclass: @y\nclass:* @z\n")
    with pytest.raises(UserError) as caught:
        load_owners(path)
    assert [line.split(": ")[1] for line in caught.value.problems] == ["line 2", "line 3", "line 4"]
    with pytest.raises(UserError, match="expected an owners file"):
        load_owners(tmp_path / "none")


# --- decision ---


@pytest.mark.parametrize(
    ("change", "error", "state"),
    [
        (0.0, 0.14, "pass"),
        (-0.019, 0.14, "pass"),
        (-0.03, 0.14, "undecided"),
        (-0.3, 0.14, "fail"),
        (-0.03, 0.0, "fail"),
    ],
)
def test_a_figure_fails_where_even_the_good_end_is_worse(change, error, state):
    figure = Figure("speedup", "effective speedup", "x", 2.0, 1.0, change, error, 0.02)
    assert figure.state == state
    verdict = {"pass": "ship", "undecided": "hold", "fail": "roll back"}[state]
    assert decide([figure], [], []).verdict == verdict


def test_a_failure_with_a_way_forward_is_held():
    found = judge(BASE, run_of(lambda op: replace(op, n=510)), model_error=0.02)
    assert any(fix.id == "pad" and fix.recovers > 0.9 for fix in found.fixes)
    assert found.decision.verdict == "hold"
    assert "keeps the change" in found.decision.reasons[-1]


def test_a_larger_promise_that_buys_nothing_is_held():
    found = judge(BASE, CASES["2:4 to 1:4 on a 2:4 machine"].candidate)
    assert found.decision.verdict == "hold"
    assert "buys nothing" in found.decision.reasons[0]
