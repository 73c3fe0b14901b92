"""What-if: paths and values, axes, sensitivities, break-even maps, patterns; from the API and the command line."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import sparsesim as ss
from sparsesim.__main__ import main
from sparsesim.errors import UserError
from sparsesim.figures import draw_breakeven, draw_patterns, draw_tornado, draw_whatif
from sparsesim.measured import MeasuredRow
from sparsesim.scenarios import build_scenario, check_expansion
from sparsesim.scenarios.breakeven import crossings
from sparsesim.scenarios.paths import apply, known_paths, parse_assignment, value_of
from sparsesim.scenarios.patterns import expansion
from sparsesim.scenarios.scenario import Scenario, _Runner, run_scenarios
from sparsesim.scenarios.sweep import parse_axis
from sparsesim.simulator import Simulator
from sparsesim.sparsity import Pattern

GPU = "a100_pcie_80gb"
SMALL = {"m": 512, "n": 256, "k": 512}
TRACE = "name,m,n,k,pattern,count\nstep/a,512,64,512,2:4,2\nstep/b,256,64,1024,2:4,1\n"


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return build_scenario(GPU, **SMALL)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE, encoding="utf-8")
    return path


def changed(scenario: Scenario, *texts: str) -> Scenario:
    return apply(scenario, [parse_assignment(text) for text in texts])


# --- paths and values ---


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("l2.bytes=16MiB", 16 * 2**20),
        ("l2.bytes = 16 MiB", 16 * 2**20),
        ("l2.bytes*=0.5", 20 * 2**20),
        ("l2.bytes+=8MiB", 48 * 2**20),
        ("clock.max=1.2GHz", 1.2e9),
        ("dram.latency-=50ns", None),
        ("sm.count/=2", 54),
        ("tensor.macs_per_clk.f16_f32*=2", 2048),
        ("cluster.multicast=true", True),
        ("tensor.native_patterns.f16+=1:4", ("2:4", "1:4")),
        ("tensor.native_patterns.f16=1:4, 2:8", ("1:4", "2:8")),
        ("m*=2", 1024),
        ("pattern=1:4", "1:4"),
        ("dtype=bf16", "bf16"),
        ("protocol.l2=warm", "warm"),
        ("protocol.clock=locked:1200", "locked:1200"),
        ("stack=cublaslt", "cublaslt"),
        ("stack.policy=heuristic", "heuristic"),
        ("gpu=rtx4090", "rtx4090"),
    ],
)
def test_set(scenario: Scenario, text: str, expected: object) -> None:
    change = parse_assignment(text)
    old, _ = value_of(scenario, change.path)
    new, _ = value_of(changed(scenario, text), change.path)
    assert (
        new == pytest.approx(old - 50e-9 if expected is None else expected)
        if isinstance(new, float)
        else new == expected
    )
    assert type(new) is type(old)


def test_a_whole_table_is_scaled_entry_by_entry(scenario: Scenario) -> None:
    before, after = (
        scenario.gpu.tensor.macs_per_clk,
        changed(scenario, "tensor.macs_per_clk*=2").gpu.tensor.macs_per_clk,
    )
    assert after == {name: 2 * rate for name, rate in before.items()}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("metadata.groups_per_cycle*=0.5", "found no such one (did you mean 'metadata.groups_per_clk'?)"),
        ("tensor.metadata.groups_per_clk=2", "(did you mean 'metadata.groups_per_clk'?)"),
        ("l2.byts=16MiB", "(did you mean 'l2.bytes'?)"),
        ("patern=2:4", "(did you mean 'pattern'?)"),
        ("metadata.groups_per_clk*=0.5", "the parameter is 0 and a factor leaves it"),
        ("l2.bytes=16", "expected a number with a unit, B or KB"),
        ("l2.bytes=16GHz", "expected a number with a unit, B or KB"),
        ("l2.bytes*=2MiB", "expected a plain number"),
        ("l2.bytes=inf", "expected a number"),
        ("l2.bytes=1e9GB", "l2.bytes: expected between 1 and 1e+14"),
        ("l2.bytes*=-1", "l2.bytes: expected greater than 0"),
        ("sm.count*=0.3", "sm.count: expected a valid integer"),
        ("smem.max_per_cta=300KiB", "smem.max_per_cta: expected at most smem.bytes"),
        ("dram.achieved_fraction=1.5", "dram.achieved_fraction: expected less than or equal to 1"),
        ("l2.bytes/=0", "expected a divisor other than 0"),
        ("m*=0.3", "m: expected a whole number"),
        ("m=0", "m: expected a positive integer"),
        ("pattern*=2", "expected = for what is no number"),
        ("pattern=4", "pattern: expected"),
        ("protocol.l2=hot", "l2: expected one of warm, rotating, cold"),
        ("cluster.multicast=yes", "expected one of true, false"),
        ("stack=cusparse", "(did you mean 'cusparselt'?)"),
        ("stack.rules-=pattern-unsupported", "a rule that can be lifted"),
        ("tokens=64", "tokens: expected a parameter path"),
        ("run.streams=2", "run.streams: expected a parameter path"),
        ("l2.bytes", "expected path=value"),
        ("=3", "expected path=value"),
        ("gpu=rtx4091", "(did you mean 'rtx4090'?)"),
    ],
)
def test_a_bad_change_is_one_clear_line(scenario: Scenario, text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        ss.whatif(GPU, [text], **SMALL)
    assert len(caught.value.problems) == 1
    assert message in caught.value.problems[0]


@pytest.mark.parametrize("order", [1, -1])
def test_what_one_change_breaks_another_may_mend(scenario: Scenario, order: int) -> None:
    """An SM with less shared memory, and a CTA that takes no more of it: neither board is possible alone."""
    texts = ("smem.bytes=120KiB", "smem.max_per_cta=110KiB", "l2.bytes*=2", "l2.bytes*=2")[::order]
    gpu = changed(scenario, *texts).gpu
    assert (gpu.smem.bytes, gpu.smem.max_per_cta, gpu.l2.bytes) == (120 * 2**10, 110 * 2**10, 160 * 2**20)
    assert ss.whatif(GPU, texts, **SMALL).changed.gpu == gpu
    with pytest.raises(UserError, match=r"smem.max_per_cta: expected at most smem.bytes"):
        changed(scenario, *[text for text in texts if "smem.bytes" in text])


@pytest.mark.parametrize("order", [1, -1])
def test_a_type_or_pattern_of_all_ops_undoes_no_other_change(order: int) -> None:
    model = build_scenario(GPU, workload="llama-3.1-8b", phase="decode", tokens=64)
    texts = ("ops.decode-64/o.n=128", "m*=2", "pattern=1:4", "dtype=f16", "ops.decode-64/down.pattern=dense")[::order]
    ops = {op.name.partition("/")[2]: op for op in changed(model, *texts).workload.ops}
    assert (ops["o"].n, ops["o"].m, ops["o"].pattern, ops["o"].dtype) == (128, 2 * 4096, "1:4", "f16")
    assert (ops["down"].pattern, ops["down"].m) == ("dense", 2 * 4096)


def test_every_problem_is_reported_at_once() -> None:
    with pytest.raises(UserError) as caught:
        ss.whatif(GPU, ["l2.byts=1MiB", "m=0"], **SMALL)
    assert len(caught.value.problems) == 2


def test_every_known_path_has_a_value(scenario: Scenario, trace: Path) -> None:
    for case in (scenario, build_scenario(GPU, workload=trace)):
        for path in known_paths(case):
            value_of(case, path)


def test_paths_of_a_workload(trace: Path) -> None:
    case = build_scenario(GPU, workload=trace)
    assert [op.n for op in changed(case, "n*=2").workload.ops] == [128, 128]
    assert [op.k for op in changed(case, "ops.step/b.k=2048").workload.ops] == [512, 2048]
    assert [op.pattern for op in changed(case, "pattern=dense").workload.ops] == ["dense", "dense"]
    assert changed(case, "run.streams=2").streams == 2
    model = build_scenario(GPU, workload="llama-3.2-1b", phase="decode", tokens=64)
    assert {op.n for op in changed(model, "tokens=128").workload.ops} == {128}
    assert {op.dtype for op in changed(model, "dtype=f16").workload.ops} == {"f16"}


# --- sweeps ---


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("l2.bytes=16MiB:128MiB:8", [f"{16 * i}MiB" for i in range(1, 9)]),
        ("l2.bytes=16:64MiB:3:log", ["16MiB", "32MiB", "64MiB"]),
        ("n=64:4096:7:log", [str(64 * 2**i) for i in range(7)]),
        ("sm.count=1:3:9", ["1", "2", "3"]),
        ("l2.bytes*=0.5:2:3:log", ["×0.5", "×1", "×2"]),
        ("pattern=2:4,1:4", ["2:4", "1:4"]),
        ("dram.latency=100ns,1us", ["100ns", "1us"]),
        ("gpu=a100_pcie_80gb,h100_pcie", ["a100_pcie_80gb", "h100_pcie"]),
    ],
)
def test_axis(scenario: Scenario, text: str, labels: list[str]) -> None:
    assert list(parse_axis(scenario, text).labels) == labels


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("l2.bytes=16MiB:8MiB:3", "expected low < high"),
        ("l2.bytes=1MiB:8MiB:1", "a count of 2 to"),
        ("l2.bytes=1MiB:8MiB", "low:high:count"),
        ("l2.bytes=0MiB:8MiB:3:log", "low > 0"),
        ("l2.bytes=,", "at least one value"),
        ("l2.bytes=16MiB,,64MiB", "none between commas empty"),
        ("tensor.native_patterns.f16=1:4,2:4", "no list of texts"),
        ("l2.byts=1MiB:2MiB:2", "did you mean 'l2.bytes'"),
        ("dram.achieved_fraction=0.5:2:4", "less than or equal to 1"),
        ("n=1:4096:4097", "a count of 2 to"),
    ],
)
def test_a_bad_axis_is_one_clear_line(text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        ss.whatif(GPU, vary=[text], **SMALL)
    assert len(caught.value.problems) == 1
    assert message in caught.value.problems[0]


def test_axes_together_have_limits() -> None:
    for vary, message in (
        (["m=1,2", "n=1,2", "k=1,2"], "at most 2 parameters"),
        (["m=16,32", "m=64,128"], "each parameter once"),
        (["m=16:1024:100", "n=16:1024:100"], "at most 4096 points"),
    ):
        with pytest.raises(UserError, match=message):
            ss.whatif(GPU, vary=vary, **SMALL)


def test_whatif_is_what_an_edited_gpu_gives() -> None:
    result = ss.whatif(GPU, ["dram.bytes_per_s*=0.25"], ["n=128,256"], jobs=1, **SMALL)
    gpu = changed(build_scenario(GPU, **SMALL), "dram.bytes_per_s*=0.25").gpu
    for point, n in zip(result.points, (128, 256), strict=True):
        direct = ss.simulate_gemm(gpu, SMALL["m"], n, SMALL["k"])
        assert point.outcome.time_us == direct.time_us
        assert point.outcome.dense_time_us == direct.dense_time_us
        assert point.outcome.kernel == direct.launch.kernel.name
    plain = ss.simulate_gemm(GPU, **SMALL)
    assert result.before.time_us == plain.time_us
    assert result.after.time_us == result.points[1].outcome.time_us > plain.time_us


def test_two_axes_come_in_order_and_processes_change_nothing() -> None:
    vary = ["n=64,128,256,512,1024", "sm.count=54,72,90,108,120"]
    one, two = (ss.whatif(GPU, vary=vary, jobs=jobs, **SMALL) for jobs in (1, 2))
    assert [point.labels for point in one.points][:2] == [("64", "54"), ("64", "72")]
    assert json.dumps(one.to_dict()) == json.dumps(two.to_dict())


def test_a_machine_without_a_kernel_is_a_point_that_says_so() -> None:
    result = ss.whatif("v100_sxm2", vary=["dtype=f16,e4m3"], jobs=1, **SMALL)
    good, bad = (point.outcome for point in result.points)
    assert not good.error
    assert "no tensor-core path" in bad.error
    assert bad.to_dict()["time_us"] is None
    with pytest.raises(ValueError, match="e4m3"):
        draw_whatif(result)


def test_a_lifted_rule_lets_an_op_run_sparse() -> None:
    result = ss.whatif(GPU, ["stack.rules-=shape-alignment"], m=512, n=256, k=1036, jobs=1)
    assert (result.before.path, result.before.reason) == ("dense", "shape-alignment")
    assert (result.after.path, result.after.fallback) == ("sparse", 0.0)


def test_whatif_of_a_workload(trace: Path) -> None:
    result = ss.whatif(GPU, ["launch.ramp*=3"], ["n=64,128"], workload=trace, jobs=1)
    assert result.after.time_us > result.before.time_us
    assert result.points[0].outcome == result.after
    direct = ss.simulate_workload(GPU, trace)
    assert result.before.time_us == direct.sparse.makespan_us
    assert result.before.speedup == direct.speedup


def test_equal_scenarios_run_once_and_equal_launches_are_shared(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Scenario] = []
    run = _Runner.run
    monkeypatch.setattr(_Runner, "run", lambda self, case: calls.append(case) or run(self, case))
    slower = changed(scenario, "launch.stream_gap*=2")
    outcomes = run_scenarios([scenario, slower, scenario, build_scenario(GPU, **SMALL)], jobs=1)
    assert len(calls) == 2
    assert outcomes[0] == outcomes[2] == outcomes[3]
    # a stream gap changes no launch: the second simulator finds all of them in the shared memory
    memory: dict[tuple[object, ...], object] = {}
    for case in (scenario, slower):
        simulator = Simulator(case.gpu, case.stack, memory=memory)
        simulator.gemm(case.op, case.protocol)
        runs = simulator.device.runs + simulator.library._scout.runs
        assert (runs > 0) == (case is scenario)


# --- sensitivity ---


def test_sensitivity_is_the_difference_of_two_runs() -> None:
    result = ss.sensitivity(GPU, 0.1, ["dram.bytes_per_s", "launch.ramp"], jobs=1, **SMALL)
    assert {row.path for row in result.rows} == {"dram.bytes_per_s", "launch.ramp"}
    row = next(row for row in result.rows if row.path == "launch.ramp")
    assert row.speedup_up is not None
    assert row.time_up is not None
    plain, longer = ss.simulate_gemm(GPU, **SMALL), ss.whatif(GPU, ["launch.ramp*=1.1"], jobs=1, **SMALL).after
    assert row.speedup_up == pytest.approx(math.log(longer.speedup / plain.speedup) / math.log(1.1))
    # the ramp is a known part of the time, which bounds its elasticity
    gpu = ss.load_gpu(GPU)
    assert row.time_up == pytest.approx(gpu.launch.ramp * 1e6 / plain.time_us, rel=0.1)
    assert result.rows[0].largest >= result.rows[1].largest


def test_sensitivity_steps_integers_and_names_limits() -> None:
    result = ss.sensitivity(GPU, 0.1, ["tensor", "l2.partitions", "metadata"], jobs=1, **SMALL)
    by_path = {row.path: row for row in result.rows}
    assert by_path["l2.partitions"].up_ratio == 1.5
    assert by_path["l2.partitions"].down_ratio == 0.5
    limited = by_path["tensor.dense_issue_ratio"]
    assert limited.down is None
    assert limited.speedup_down is None
    assert "expected greater than or equal to 1" in limited.why
    assert ("metadata.groups_per_clk", "is 0, which has no relative step") in result.skipped
    assert not any(".i8" in path for path in by_path), "only the types that the op uses"


def test_nothing_depends_on_what_does_not_run() -> None:
    """A dense weight runs the baseline itself: no parameter can change a speedup of 1."""
    result = ss.sensitivity(GPU, 0.2, ["dram", "sm.count", "smem"], pattern="dense", jobs=1, **SMALL)
    assert all(row.largest == 0.0 for row in result.rows)
    with pytest.raises(ValueError, match="found none"):
        draw_tornado(result)


def test_bad_sensitivity() -> None:
    for arguments, message in (
        ({"step": 0.0}, "step: expected a relative step"),
        ({"only": ["drum"]}, "did you mean 'dram"),
    ):
        with pytest.raises(UserError, match=message):
            ss.sensitivity(GPU, **arguments, **SMALL)  # type: ignore[arg-type]


# --- break-even ---


def test_crossings() -> None:
    assert crossings([1, 4], [0.5, 2.0]) == [pytest.approx(2.0)]
    assert crossings([1, 4, 16], [2.0, 0.5, 2.0]) == [pytest.approx(2.0), pytest.approx(8.0)]
    assert crossings([1, 4], [1.1, 1.2]) == []
    assert crossings([1, 4], [math.nan, 1.2]) == []


HEADER = "gpu,library,m,n,k,batch,dtype,acc_dtype,pattern,sparse_operand,time_us,timing,l2,clock,set,source\n"


def row(gpu: str = GPU, n: int = 256, pattern: str = "2:4", us: float = 12.0, timing: str = "stream") -> str:
    return f"{gpu},searched,512,{n},512,1,f16,f32,{pattern},A,{us},{timing},warm,free,S,src\n"


def test_break_even_with_measured_pairs(tmp_path: Path) -> None:
    file = tmp_path / "measured.csv"
    file.write_text(
        HEADER + row() + row(pattern="dense", us=10.0) + row(n=128) + row(gpu="b200") + row(timing="graph")
        + row(n=16), encoding="utf-8",
    )  # fmt: skip
    run = {"timing": "stream", "l2": "warm"}
    result = ss.break_even(GPU, (64, 256), (256, 512), [file], jobs=1, **run)
    assert np.shape(result.speedups()) == (2, 2)
    assert result.outcomes[1][1].time_us == ss.simulate_gemm(GPU, 512, 256, 512, **run).time_us
    (pair,) = result.pairs
    assert (pair.m, pair.n, pair.k, pair.measured) == (512, 256, 512, pytest.approx(10 / 12))
    assert pair.predicted > 0
    assert len(result.clear_pairs) == 1
    assert result.right_pairs == int(pair.predicted < 1)
    assert dict(result.left_out) == {
        "without a dense partner": 1,
        "of another GPU (b200)": 1,
        "taken otherwise (timing graph, L2 warm, clock free)": 1,
        "outside the map": 1,
    }
    assert "measured pairs" in draw_breakeven(result).texts[1].get_text()
    with pytest.raises(UserError, match="taken otherwise"):
        ss.break_even(GPU, (64, 256), (256, 512), [file], jobs=1)


def test_bad_break_even(trace: Path) -> None:
    for arguments, message in (
        ({"tokens": (256, 64)}, "tokens: expected rising integers"),
        ({"sides": (0, 64)}, "sides: expected rising integers"),
        ({"pattern": "dense"}, "a sparse pattern"),
    ):
        with pytest.raises(UserError, match=message):
            ss.break_even(GPU, jobs=1, **arguments)  # type: ignore[arg-type]


# --- patterns ---


@pytest.mark.parametrize(
    ("pattern", "factor"),
    [
        ("2:4", 1), ("1:4", 1), ("2:8", 1), ("4:6", Fraction(4, 3)), ("6:8", Fraction(3, 2)), ("8:10", Fraction(8, 5)),
        ("4:8", Fraction(3, 2)), ("dense", None), ("7:8", None), ("3:5", None), ("64:2:8", 1),
    ],
)  # fmt: skip
def test_expansion(pattern: str, factor: Fraction | None) -> None:
    assert expansion(Pattern.parse(pattern)) == factor


@pytest.mark.parametrize("length", [6, 8, 10])
def test_every_row_fits_into_sliding_windows(length: int) -> None:
    """The claim behind `expansion`: any L - 2 of L elements go into windows of four that slide by two, two each."""
    for kept in range(1 << length):
        places = [i for i in range(length) if kept >> i & 1]
        if len(places) != length - 2:
            continue
        room = [2] * (length // 2 - 1)
        for place in places:  # the earliest window that covers it and has room
            windows = [w for w in range(len(room)) if 2 * w <= place < 2 * w + 4 and room[w]]
            assert windows, f"{places}: nowhere for {place}"
            room[windows[0]] -= 1


def test_patterns_on_equal_hardware() -> None:
    result = ss.compare_patterns(GPU, ["dense", "2:4", "1:4", "4:8"], ["6:8"], m=1024, n=1024, k=1920, jobs=1)
    rows = {str(item.pattern): item for item in result.rows}
    assert rows["dense"].here == rows["dense"].native
    assert rows["2:4"].here == rows["2:4"].native
    assert (rows["1:4"].here.path, rows["1:4"].here.time_us) == ("sparse", rows["2:4"].here.time_us)
    assert rows["1:4"].native.time_us < rows["1:4"].here.time_us
    assert rows["4:8"].here.reason == rows["6:8"].here.reason == "pattern-unsupported"
    assert rows["4:8"].native.path == "sparse"
    assert {item.here.dense_time_us for item in result.rows} == {rows["dense"].here.time_us}
    expanded = ss.simulate_gemm(GPU, 1024, 1024, 2880)
    assert rows["6:8"].factor == Fraction(3, 2)
    assert rows["6:8"].expanded is not None
    assert rows["6:8"].expanded.time_us == expanded.time_us
    assert rows["6:8"].expanded_speedup == rows["dense"].here.time_us / expanded.time_us
    assert "6:8" in [tick.get_text() for tick in draw_patterns(result).axes[0].get_xticklabels()]


def test_bad_patterns(trace: Path) -> None:
    for arguments, message in (
        ({"patterns": ["2:x"]}, "expected 'dense', 'N:M'"),
        ({"expanded": ["7:8"]}, "expected Z:L with L even"),
        ({"expanded": ["8:10"], **SMALL}, "expected k as a multiple of 10"),
    ):
        with pytest.raises(UserError, match=message):
            ss.compare_patterns(GPU, jobs=1, **{**SMALL, **arguments})  # type: ignore[arg-type]
    with pytest.raises(UserError, match="expected one GEMM"):
        ss.compare_patterns(GPU, workload=trace)


def expanded_rows(sparse_us: float = 40.0, k: int = 1024) -> list[MeasuredRow]:
    """A dense product at k and an expanded one at 1.5 k."""
    common = ("f16", "f32")
    tail = ("stream", "warm", "free", "", "src", "file")
    return [
        MeasuredRow(GPU, "searched", 1024, 1024, k, 1, *common, "dense", "A", 36.0, *tail, 1),
        MeasuredRow(GPU, "searched", 1024, 1024, k * 3 // 2, 1, *common, "2:4", "A", sparse_us, *tail, 2),
    ]


def test_check_expansion() -> None:
    check = check_expansion(expanded_rows(), jobs=1)
    ((paired, measured, predicted),) = check.pairs
    assert paired.k == 1536
    assert measured == pytest.approx(36.0 / 40.0)
    protocol = {"timing": "stream", "l2": "warm"}
    sparse = ss.simulate_gemm(GPU, 1024, 1024, 1536, **protocol)
    assert check.groups[0]["rows"] == 1
    assert predicted > 0
    assert check.groups[0]["time_bias"] == pytest.approx(math.log(sparse.time_us / 40.0))
    for rows, message in ((expanded_rows(5.0), "found none"), (expanded_rows()[1:], "found none")):
        with pytest.raises(UserError, match=message):
            check_expansion(rows, jobs=1)
    with pytest.raises(UserError, match="which 2:4 lacks"):
        check_expansion(expanded_rows(), "1:4")


# --- command line ---

SHAPE = ("--gpu", GPU, "-m", "512", "-n", "256", "-k", "512", "--jobs", "1")


def call(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    status = main([str(word) for word in words])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize(
    "words",
    [
        ("whatif", *SHAPE, "--set", "l2.bytes*=2", "--set", "sm.count=54"),
        ("whatif", *SHAPE, "--vary", "n=64,128"),
        ("whatif", *SHAPE, "--vary", "n=64,128", "--vary", "l2.bytes=16MiB,80MiB"),
        ("sensitivity", *SHAPE, "--only", "dram", "--only", "launch.ramp"),
        ("breakeven", "--gpu", GPU, "--tokens", "64,256", "--sides", "256,512", "--jobs", "1"),
        ("patterns", "--gpu", GPU, "-m", 512, "-n", 256, "-k", 960, "--patterns", "dense,2:4", "--expand", "6:8",
         "--jobs", 1),
    ],
    ids=lambda words: " ".join(map(str, words))[:40],
)  # fmt: skip
def test_commands_print_plot_and_write_json(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: tuple[object, ...]
) -> None:
    picture = tmp_path / "figure.png"
    status, out, err = call(capsys, *words, "--plot", picture)
    assert (status, err) == (0, "")
    assert GPU in out
    assert picture.read_bytes().startswith(b"\x89PNG")
    status, out, err = call(capsys, *words, "--json", "-")
    assert (status, err) == (0, "")
    assert json.loads(out)["gpu"] == GPU


def test_commands_compare_with_measured_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "measured.csv"
    file.write_text(
        HEADER + row() + row(pattern="dense") + row().replace("512,12.0", "512,12.0").replace(",256,512,", ",256,768,"),
        encoding="utf-8",
    )
    map_ = ("breakeven", "--gpu", GPU, "--tokens", "64,256", "--sides", "256,512", "--timing", "stream", "--l2", "warm")
    status, out, err = call(capsys, *map_, "--measured", file, "--jobs", 1)
    assert (status, err) == (0, "")
    assert "1 measured pairs on the map" in out
    picture = tmp_path / "figure.png"
    status, out, err = call(capsys, "patterns", "--measured", file, "--jobs", 1, "--plot", picture)
    assert (status, err) == (0, "")
    assert "1 pairs" in out
    assert picture.is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("whatif", *SHAPE), "expected --set or --vary, found neither"),
        (("whatif", "--gpu", GPU, "--set", "m=3"), "expected m, n and k, or a workload"),
        (("whatif", "-m", 16, "-n", 16, "-k", 16, "--set", "m=32"), "--gpu: expected"),
        (("whatif", "square", *SHAPE, "--set", "n*=2"), "beside a workload"),
        (("whatif", *SHAPE, "--tokens", 3, "--set", "n*=2"), "with a workload only"),
        (("whatif", *SHAPE, "--set", "n*=2", "--plot", "/nowhere/x.png"), "--plot: expected a file"),
        (("whatif", *SHAPE, "--set", "l2.byts*=2"), "did you mean 'l2.bytes'"),
        (("whatif", *SHAPE[:-1], "0", "--set", "n*=2"), "--jobs: expected"),
        (("sensitivity", *SHAPE, "--step", "2"), "step: expected"),
        (("breakeven", "--gpu", GPU, "--tokens", "a,b"), "--tokens: expected integers"),
        (("patterns", "--gpu", GPU, "-m", 16, "--measured", "x.csv"), "one --expand pattern and no GEMM"),
    ],
)
def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str], words: tuple[object, ...], message: str) -> None:
    status, out, err = call(capsys, *words)
    assert (status, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
    assert err.startswith("error: ")
