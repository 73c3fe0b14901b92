"""Calibration: known parameters are found again, ranges hold, the file it writes is the model it fitted."""

import json
import math
from pathlib import Path

import pytest

from sparsesim.__main__ import main
from sparsesim.calibrate import calibrate
from sparsesim.calibrate.parameters import DEFAULT_PARAMETERS, parameters_of
from sparsesim.calibrate.rows import contradictions, in_fit_part, sample, split_rows, stratum
from sparsesim.calibrate.workers import open_pool
from sparsesim.errors import UserError
from sparsesim.hardware import load_gpu, override
from sparsesim.hardware.audit import findings
from sparsesim.measured import COLUMNS, MeasuredRow
from sparsesim.validate import predict_rows

GPU = "a100_pcie_80gb"
#: shapes that a few milliseconds simulate
SHAPES = [(m, n, k) for m in (512, 1024, 2048) for n in (64, 256, 1024) for k in (512, 1536, 4096)]
#: what the made-up measurements obey, in the units of the hardware files
TRUTH = {"launch.stream_gap": 1.2, "launch.cta_start": 500.0, "launch.sparse_ramp": 2.2}
CANONICAL = {"launch.stream_gap": 1e-6, "launch.cta_start": 1.0, "launch.sparse_ramp": 1e-6}


def row(m, n, k, time_us=10.0, gpu=GPU, pattern="dense", line=2, **others):
    values = {
        "library": "lib", "batch": 1, "dtype": "f16", "acc_dtype": "f32", "sparse_operand": "A", "timing": "stream",
        "l2": "warm", "clock": "free", "set": "S", "source": "made", "file": "made.csv",
    }  # fmt: skip
    return MeasuredRow(gpu=gpu, m=m, n=n, k=k, time_us=time_us, pattern=pattern, line=line, **{**values, **others})


def measure(gpu, patterns=("dense", "2:4"), shapes=SHAPES):
    """Rows whose times are those of `gpu`'s model."""
    blank = [row(*shape, pattern=pattern) for shape in shapes for pattern in patterns]
    predictions, skipped = predict_rows(blank, gpu_of=lambda _: gpu, jobs=1)
    assert not skipped
    return [
        row(p.row.m, p.row.n, p.row.k, p.predicted_us, p.row.gpu, p.row.pattern, line=number + 2)
        for number, p in enumerate(predictions)
    ]


def write_csv(path: Path, rows):
    lines = [",".join(COLUMNS)]
    lines += [",".join(str(getattr(item, column)) for column in COLUMNS) for item in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def start():
    return load_gpu(GPU)


@pytest.fixture(scope="module")
def truth_rows(start):
    return measure(override(start, {path: value * CANONICAL[path] for path, value in TRUTH.items()}))


@pytest.fixture(scope="module")
def fitted(start, truth_rows):
    return calibrate(truth_rows, start, parameters=[*TRUTH, "launch.graph_gap"], count=60)


# --- the fit ---


def test_known_parameters_are_found_again(fitted):
    found = {item.parameter.path: item.after for item in fitted.parameters}
    for path, value in TRUTH.items():
        assert found[path] == pytest.approx(value, rel=0.05), path


def test_errors_fall_on_rows_that_were_not_fitted(fitted):
    held_out = fitted.group("held_out")
    assert held_out["rows"] == fitted.rows["held_out"] >= 10
    assert held_out["before"]["male"] > 0.04
    assert held_out["after"]["male"] < 0.01
    assert fitted.group("held_out", "f16", "speedup")["after"]["male"] < 0.01
    assert fitted.history[-1] < fitted.history[0]


def test_a_parameter_that_changes_no_row_stays_and_is_uncertain(fitted):
    item = next(item for item in fitted.parameters if item.parameter.path == "launch.graph_gap")
    assert item.after == item.parameter.start
    assert item.sensitivity == item.effect == 0.0
    others = [other for other in fitted.parameters if other is not item]
    assert all(other.effect > 0.05 for other in others)
    span = item.parameter.high - item.parameter.low
    assert all(other.error / (other.parameter.high - other.parameter.low) < 0.5 * item.error / span for other in others)


def test_ranges_hold_and_bounds_are_told(start):
    far = override(start, {"launch.stream_gap": 3e-6})
    result = calibrate(measure(far, ("dense",)), start, parameters=["launch.stream_gap"], rounds=2)
    (item,) = result.parameters
    assert item.at_bound == "high"
    assert item.parameter.low <= item.after <= item.parameter.high
    assert item.after == pytest.approx(item.parameter.high, rel=0.01)


def test_a_fit_never_ends_worse_than_it_began(start):
    rows = measure(start, ("dense",))
    result = calibrate(rows, start, parameters=["launch.cta_start", "launch.stream_gap"], rounds=1)
    assert result.group("fit")["after"]["male"] <= result.group("fit")["before"]["male"] + 1e-12
    for item in result.parameters:
        assert item.after == pytest.approx(item.parameter.start, rel=0.02)


def test_default_parameters_are_those_that_move_the_rows(start, truth_rows):
    result = calibrate(truth_rows, start, count=16, rounds=1)
    chosen = {item.parameter.path for item in result.parameters}
    weak = {path for path, _ in result.weak}
    assert chosen | weak <= set(DEFAULT_PARAMETERS)
    assert not chosen & weak
    assert "launch.stream_gap" in chosen
    assert {"launch.graph_gap", "power.mac.i8"} <= weak
    assert "l2.bytes_per_clk" not in chosen | weak  # measured there, without a range


def test_the_result_does_not_depend_on_processes(start, truth_rows):
    options = {"parameters": ["launch.stream_gap", "launch.cta_start"], "count": 12, "rounds": 1}
    one = calibrate(truth_rows, start, **options)
    seen = []
    two = calibrate(truth_rows, start, jobs=2, progress=lambda done, total: seen.append((done, total)), **options)
    assert json.dumps(one.to_dict()) == json.dumps(two.to_dict())
    assert one.variant(GPU, "T") == two.variant(GPU, "T")
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1]


def test_a_variant_that_changes_no_launch_costs_no_run(start, truth_rows):
    with open_pool({GPU: start}, truth_rows[:4], 1, lambda _: None) as pool:
        picks = pool.choose({}, dict.fromkeys(range(4)))
        runs = pool._local.runs
        pool.times([{"launch.stream_gap": 3e-6}, {"launch.stream_gap": 1.5e-6}], picks)
        assert pool._local.runs == runs


def test_leaving_a_gpu_out_fits_the_family_and_predicts_it(start):
    change = {"launch.stream_gap": 1.0e-6, "launch.cta_start": 1900.0}
    other = override(load_gpu("a100_sxm4_80gb"), change)
    shapes = SHAPES
    rows = [
        *(row(r.m, r.n, r.k, r.time_us, other.name, line=r.line) for r in measure(other, ("dense",), shapes)),
        *measure(override(start, change), ("dense",), shapes),
    ]
    result = calibrate(rows, start, leave_out=True, parameters=list(change), count=30)
    assert result.fitted_on == ("a100_sxm4_80gb",)
    left_out = result.group("left_out")
    assert left_out["rows"] == len(shapes)
    assert left_out["after"]["male"] < 0.3 * left_out["before"]["male"]
    with pytest.raises(UserError, match=r"power\.idle: expected a value of the family's ampere_dc\.toml"):
        calibrate(rows, start, leave_out=True, parameters=["power.idle"])


# --- rows ---


def test_the_split_is_by_shape_and_about_even():
    rows = [row(m, n, k, dtype=dtype) for m, n, k in SHAPES * 1 for dtype in ("f16", "bf16", "i8")]
    sides = {(r.m, r.n, r.k): set() for r in rows}
    for item in rows:
        sides[item.m, item.n, item.k].add(in_fit_part(item, 0.5))
    assert all(len(side) == 1 for side in sides.values())
    many = [in_fit_part(row(m, 64, 64), 0.5) for m in range(1, 2001)]
    assert 0.45 < sum(many) / len(many) < 0.55
    assert all(in_fit_part(row(m, 64, 64), 1.0) for m in range(1, 2001))


def test_a_sample_is_spread_over_strata_and_keeps_to_its_count():
    rows = [row(m, 64, 64, time_us=us) for m in range(1, 200) for us in (5.0,)]
    rows += [row(m, 64, 64, time_us=500.0, pattern="2:4") for m in range(1, 6)]
    chosen = sample(rows, 20)
    assert len(chosen) == 20
    assert sum(stratum(r)[1] == "sparse" for r in chosen) == 5
    assert sample(list(reversed(rows)), 20) == chosen
    assert len(sample(rows[:3], 20)) == 3


def test_rows_that_contradict_larger_ones_are_named_and_not_fitted():
    good = [row(512 * i, 512, 512, time_us=10.0 * i, line=i) for i in range(1, 8)]
    slow = row(768, 512, 512, time_us=60.0, line=20)
    just = row(520, 512, 512, time_us=24.0, line=21)  # slower by 20 %
    found = contradictions([*good, slow, just])
    assert [(item.row.line, item.larger.line) for item in found] == [(20, 2)]
    assert found[0].to_dict()["row"] == "made.csv:20"
    sets = split_rows([*good, slow, just], 20, 1.0)
    assert slow not in sets.fit
    assert just in sets.fit
    assert not contradictions([*good, row(768, 512, 512, time_us=60.0, dtype="i8")])


# --- parameters ---


@pytest.mark.parametrize(("low", "value"), [(0.0, 0.0), (0.0, 150.0), (100.0, 100.0), (100.0, 1000.0)])
def test_coordinates(start, low, value):
    path = "pipeline.barrier" if low == 0 else "launch.cta_start"
    (parameter,) = parameters_of(start, [path])
    assert parameter.scale == ("linear" if low == 0 else "log")
    assert parameter.value(parameter.coordinate(value)) == pytest.approx(value)
    assert (parameter.value(-0.1), parameter.value(1.1)) == (parameter.low, parameter.high)
    assert parameter.value(1e-17) == parameter.low  # nothing between 0 and what a hardware file may hold
    if value:
        step = 1e-6
        moved = parameter.coordinate(value * math.exp(step)) - parameter.coordinate(value)
        assert parameter.slope(value) == pytest.approx(moved / step, rel=1e-4)


def test_every_problem_with_parameters_is_told_at_once(start):
    with pytest.raises(UserError) as caught:
        parameters_of(start, ["power.mac.f61", "l2.bytes_per_clk", "power.limit", "launch.ramp"])
    first, *rest = caught.value.problems
    assert "power.mac.f61: expected a parameter path (did you mean 'power.mac.f16'?)" in first
    assert [line.partition(": expected")[0] for line in rest] == [f"{GPU}: l2.bytes_per_clk", f"{GPU}: power.limit"]


# --- the file ---


def test_the_file_loads_and_is_the_fitted_model(start, truth_rows, fitted, tmp_path):
    target = tmp_path / "mine.toml"
    fitted.write(target, GPU, start.title)
    assert list(tmp_path.iterdir()) == [target]
    loaded = load_gpu(target)
    assert loaded.model_dump() == override(start, fitted.changes).model_dump()
    assert not findings(loaded)
    for item in fitted.parameters:
        origin = loaded.provenance[item.parameter.path]
        assert (origin.status, origin.source, origin.file) == ("fitted", "fit on measured rows", "mine.toml")
        assert "made.csv" in origin.rows
        assert origin.range == pytest.approx(start.provenance[item.parameter.path].range)
    predictions, _ = predict_rows([r for r in truth_rows if not in_fit_part(r, 0.5)], lambda _: loaded, jobs=1)
    errors = [abs(p.log_error) for p in predictions]
    assert sum(errors) / len(errors) == pytest.approx(fitted.group("held_out")["after"]["male"], abs=0.002)


# --- the command ---


@pytest.fixture
def run(capsys):
    def call(*words):
        status = main([str(word) for word in words])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


@pytest.fixture
def measured(tmp_path, truth_rows):
    return write_csv(tmp_path / "made.csv", truth_rows)


def test_the_command_writes_equal_bytes_twice(run, measured, tmp_path):
    target = tmp_path / "mine.toml"
    words = (
        "calibrate", measured, "--gpu", GPU, "--rows", 10, "--rounds", 1, "--jobs", 1, "--out", target,
        "--parameter", "launch.stream_gap", "--parameter", "launch.cta_start",
    )  # fmt: skip
    status, out, err = run(*words)
    first = target.read_bytes()
    assert (status, err) == (0, "")
    for word in ("held-out", "male before", "launch.stream_gap", "round by round", f"wrote {target}"):
        assert word in out
    again = run(*words, "--json", "-")
    assert again == run(*words, "--json", "-")
    assert target.read_bytes() == first
    data = json.loads(again[1])
    assert [item["path"] for item in data["parameters"]] == ["launch.stream_gap", "launch.cta_start"]
    # a fit can go on from the file of another
    status, _, err = run("calibrate", measured, "--gpu", target, *words[4:10], "--out", tmp_path / "next.toml")
    assert (status, err) == (0, "")
    assert load_gpu(tmp_path / "next.toml").name == GPU
    assert 'extends = "mine.toml"' in (tmp_path / "next.toml").read_text(encoding="utf-8")


BAD = {
    "neither GPU": ([], "expected one of the two, found neither"),
    "both GPUs": (["--gpu", GPU, "--leave-out", GPU], "expected one of the two, found both"),
    "unknown GPU": (["--gpu", "a100_pcie"], "did you mean"),
    "no rows of the GPU": (["--gpu", "rtx4090"], f"expected measured rows of it, found rows of {GPU}"),
    "unknown parameter": (["--gpu", GPU, "--parameter", "launch.stream_gab"], "did you mean 'launch.stream_gap'"),
    "parameter without a range": (["--gpu", GPU, "--parameter", "sm.count"], "sm.count: expected a parameter with a"),
    "no other GPU of the family": (["--leave-out", GPU], "another GPU of the family ampere_dc, found none"),
    "too few rows": (["--gpu", GPU, "--rows", "2"], "rows: expected at least 8, found 2"),
    "no rounds": (["--gpu", GPU, "--rounds", "0"], "rounds: expected at least 1"),
    "no jobs": (["--gpu", GPU, "--jobs", "0"], "jobs: expected at least 1"),
    "rows in words": (["--gpu", GPU, "--rows", "many"], "expected an integer"),
    "file without ending": (["--gpu", GPU, "--out", "{}/mine"], "a hardware file ends in .toml"),
    "file in no folder": (["--gpu", GPU, "--out", "{}/no/mine.toml"], "its folder does not exist"),
    "file that extends itself": (["--gpu", GPU, "--out", "{}/" + GPU + ".toml"], "it would extend itself"),
    "missing file": (["{}/nowhere.csv", "--gpu", GPU], "no such file"),
    "file twice": (["{}/made.csv", "--gpu", GPU], "each file once"),
}


@pytest.mark.parametrize("name", BAD)
def test_mistakes_are_one_line_and_nothing_is_written(run, measured, tmp_path, name):
    words, expected = BAD[name]
    before = sorted(tmp_path.iterdir())
    status, out, err = run("calibrate", measured, *(word.replace("{}", str(tmp_path)) for word in words))
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert expected in err
    assert sorted(tmp_path.iterdir()) == before


def test_without_scipy_the_error_says_what_to_install(run, measured, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    status, _, err = run("calibrate", measured, "--gpu", GPU)
    assert status == 2
    assert "sparsesim[calibrate]" in err
