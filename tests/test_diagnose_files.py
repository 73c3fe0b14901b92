"""Files of a diagnosis: runs, profiles and quality that come in; page, slice and fixes that go out; the command."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from sparsesim.__main__ import main
from sparsesim.diagnose import Evaluator, Run, Settings, diagnose, is_pair, read_pair, read_run
from sparsesim.diagnose.changes import find_changes
from sparsesim.diagnose.page import noted, page, write_folder
from sparsesim.diagnose.quality import compare_quality, read_quality
from sparsesim.diagnose.runlines import run_lines
from sparsesim.errors import UserError
from sparsesim.hardware import load_gpu, override
from sparsesim.quality.stats import paired
from sparsesim.stacks import get_stack, stack_files
from sparsesim.stacks.rules import Rule
from sparsesim.workload import Gemm, Workload

EVALUATOR = Evaluator()
QUICK = Settings(mechanisms=False)
OPS = """
[[gemms]]
name = "p/up"
m = 4096
n = 256
k = 1024
pattern = "2:4"
family = "up"
[[gemms]]
name = "p/down"
m = 1024
n = 256
k = 4096
pattern = "2:4"
family = "down"
"""
RUN = f'gpu = "a100_pcie_80gb"\n{OPS}'


def write(path, text):
    path.write_text(text)
    return path


def quick(base: Run, candidate: Run):
    return diagnose(base, candidate, settings=QUICK, evaluator=EVALUATOR)


# --- run files ---


def test_a_run_file_says_what_a_run_is_made_of(tmp_path):
    text = 'gpu = "a100_pcie_80gb"\nset = ["l2.bytes/=2", "families.up.dtype=i8", "ops.p/down.n=128"]\n'
    text += 'clock = "locked:900"\nwrong_axis = ["down"]\n'
    text += OPS + '[[conversions]]\nop = "up"\nbytes = 1e6\nlaunches = 2\n'
    run = read_run(write(tmp_path / "run.toml", text))
    assert run.gpu.l2.bytes == load_gpu("a100_pcie_80gb").l2.bytes / 2
    assert [(op.dtype, op.n) for op in run.workload.ops] == [("i8", 256), ("f16", 128)]
    assert [name for name, _ in run.unusable] == ["p/down"]
    assert run.conversions[0].op == "p/up"
    assert run.protocol.locked_hz == 900e6
    base = read_run(write(tmp_path / "base.toml", RUN))
    ids = {change.id for change in find_changes(base, run)}
    assert ids == {
        "l2.bytes", "ops.p/up.dtype", "ops.p/down.n", "protocol.clock", "conversion", "weight layout"
    }  # fmt: skip


def test_a_shard_with_a_misaligned_k_is_named(tmp_path):
    text = RUN.replace("k = 4096", "k = 4160").replace("n = 256", "n = 4096").replace("m = 1024", "m = 8192")
    for size in (4, 8):
        head = f'tensor_parallel = {{ size = {size}, rows = ["down"] }}\n'
        write(tmp_path / f"tp{size}.toml", head + text)
    runs = [read_run(tmp_path / f"tp{size}.toml") for size in (4, 8)]
    assert [[(op.m, op.k) for op in run.workload.ops] for run in runs] == [
        [(1024, 1024), (8192, 1040)], [(512, 1024), (8192, 520)]
    ]  # fmt: skip
    found = quick(*runs)
    assert found.first.id == "ops.p/down.k"
    assert {pair.candidate["reason"] for pair in found.ops if pair.name == "p/down"} == {"shape-alignment"}


def test_what_is_written_reads_back_as_the_same_run(tmp_path):
    gpu = override(load_gpu("a100_pcie_80gb"), {"l2.bytes": 31234567.0, "power.limit": 222.2, "sm.count": 100,
                                                "cluster.multicast": True})  # fmt: skip
    ops = (Gemm('a "b"/c', 256, 64, 256, pattern="2:4", count=3), Gemm("x", 64, 64, 64, dtype="i8", sparse_operand="B",
                                                                       pattern="2:4"))  # fmt: skip
    run = Run("x", gpu, "a100_pcie_80gb", Workload("x", "", "", ops), get_stack("cusparselt"), streams=2, graph=True,
              unusable=(('a "b"/c', "pruned along m"),))  # fmt: skip
    again = read_run(write(tmp_path / "run.toml", "\n".join(run_lines(run))))
    assert find_changes(run, again) == []
    assert again.workload.ops == run.workload.ops
    assert again.unusable == run.unusable
    pair = write(tmp_path / "pair.toml", "\n".join([*run_lines(run, "base"), *run_lines(run, "candidate")]))
    assert is_pair(pair)
    assert not is_pair(tmp_path / "run.toml")
    assert [find_changes(run, each) for each in read_pair(pair)] == [[], []]


def rule_file(path):
    """cuSPARSELt under another name, which refuses shapes below m = 2048."""
    rule = (
        '[[rules]]\ncode = "shape-alignment"\ntext = "m is large"\nsource = "planted"\nwhen = { most = { m = 2047 } }\n'
    )
    source = next(file for file in stack_files() if file.stem == "cusparselt").read_text()
    source = source.replace('name = "cusparselt"', 'name = "mine"')
    return write(path, source.replace("[[rules]]", f"{rule}\n[[rules]]", 1))


ODD = RUN.replace("k = 4096", "k = 4100")
LARGE = RUN.replace("m = 4096", "m = 28672").replace("n = 256", "n = 1024").replace("k = 1024", "k = 4096")
PLANS = 'stack = "torch-cusparselt@2.6"\n'
KEPT = 'setting = { flags = ["plan-cache"], caller = "torchao", caller_version = "0.8", layout = "TN" }\n'
#: run files: what of a run a file of the diagnosis has to carry
CARRIED = {
    "two parameters of which neither can change alone": (
        RUN, 'set = ["smem.bytes=120KiB", "smem.max_per_cta=110KiB"]\n' + RUN
    ),
    "the policy of the stack": (LARGE, 'set = ["stack.policy=heuristic"]\n' + LARGE),
    "a rule that is lifted": ('set = ["stack.rules-=shape-alignment"]\n' + ODD, ODD),
    "circumstances of the calls": (PLANS + KEPT + 'timing = "host"\n' + RUN, PLANS + 'timing = "host"\n' + RUN),
    "a rule file, with a treatment": ('stack = "cusparselt"\n' + RUN, 'stack = "mine.toml:dense"\n' + RUN),
    "a board of another architecture": (
        RUN, RUN.replace("a100_pcie_80gb", "rtx4090").replace("n = 256", "n = 250")
    ),
    "heuristics of a sister board": (
        RUN.replace("a100_pcie_80gb", "a100_sxm4_80gb"), 'set = ["power.limit=150W"]\n' + RUN.replace("= 256", "= 255")
    ),
    "heuristics that a run names": (RUN, 'tuned_for = "rtx4090"\n' + RUN.replace("n = 256", "n = 250")),
}  # fmt: skip


@pytest.mark.parametrize("name", CARRIED)
def test_slice_and_fixes_give_the_runs_again_from_their_files(tmp_path, name):
    (tmp_path / "in").mkdir()
    rule_file(tmp_path / "in" / "mine.toml")
    texts = CARRIED[name]
    runs = [read_run(write(tmp_path / "in" / f"{i}.toml", text)) for i, text in enumerate(texts)]
    found = noted(quick(*runs))
    assert not [note for note in found.notes if "lost" in note]
    write_folder(found, tmp_path / "out")
    wanted = {f"fix-{i}.toml": (runs[0], fix.run) for i, fix in enumerate(found.fixes, 1)}
    if found.slice is not None:
        wanted["slice.toml"] = (found.slice.base, found.slice.candidate)
    assert wanted
    for file, pair in wanted.items():
        for run, again in zip(pair, read_pair(tmp_path / "out" / file), strict=True):
            assert find_changes(run, again) == [], file
            assert EVALUATOR.outcome(again).ln == EVALUATOR.outcome(run).ln, file


def test_what_no_file_can_say_is_named_in_a_note():
    base = Run("base", load_gpu("a100_pcie_80gb"), "a100_pcie_80gb", Workload("w", "", "", (
        Gemm("up", 4096, 256, 1024, pattern="2:4"),)), get_stack("cusparselt"))  # fmt: skip
    rule = Rule("minimum-size", "m is large", "planted", lambda op, _, __: "too small" if op.m < 8192 else None)
    run = replace(base, stack=replace(base.stack, rules=(rule, *base.stack.rules)))
    found = noted(quick(base, run))
    assert found.first.id == "stack"
    assert [note.partition(";")[0] for note in found.notes] == ["slice.toml, candidate does not give the run again"]


def test_a_hardware_file_beside_the_run_is_found_from_elsewhere(tmp_path):
    (tmp_path / "in").mkdir()
    text = 'extends = "a100_pcie_80gb"\nname = "mine"\ntitle = "Mine"\n[sm]\n'
    text += 'count = { value = 54, unit = "-", source = "ASSUMED", status = "assumed" }\n'
    write(tmp_path / "in" / "mine.toml", text)
    run = read_run(write(tmp_path / "in" / "run.toml", RUN.replace("a100_pcie_80gb", "mine.toml")))
    assert run.gpu.sm.count == 54
    (tmp_path / "out").mkdir()
    lines = run_lines(run, folder=tmp_path / "out")
    assert 'gpu = "../in/mine.toml"' in lines
    assert read_run(write(tmp_path / "out" / "again.toml", "\n".join(lines))).gpu.sm.count == 54


BAD = {
    'gpu = "a100_pcie_80g"\n' + OPS: ["did you mean 'a100_pcie_80gb'"],
    "gpus = 1\n" + RUN: ["gpus: expected a key of a run file", "did you mean 'gpu'"],
    'gpu = "a100_pcie_80gb"\n': ["workload: expected either a workload or [[gemms]], found neither"],
    'workload = "square"\ntokens = 3\n' + RUN: ["found both", "tokens: expected it with a workload file only"],
    'set = ["l2.byte/=2", "families.mlp.k=3", "stack=x"]\n' + RUN: ["l2.byte", "families.mlp.k", "the key stack"],
    'wrong_axis = ["head"]\nrepeats = 0\n' + RUN: ["repeats"],
    'wrong_axis = ["head"]\n' + RUN: ["wrong_axis: expected ops or families of the workload, found 'head'"],
    'tensor_parallel = { size = 3 }\n' + RUN: ["a divisor of m = 4096", "a divisor of m = 1024"],
    RUN.replace("m = 4096", "m = 0"): ["gemms[0].m: expected a positive integer, found 0"],
    RUN + '[[conversions]]\nop = "x"\nbytes = 1\n': ["conversions.op"],
    RUN + '[[conversions]]\nop = "up"\nbytes = "1e6"\n': ["conversions.0.bytes: expected a valid number, found '1e6'"],
    RUN + '[quality]\nmethod = "x"\n': ["quality.file"],
    'setting = { flags = ["plan-cach"], layout = "XX", flag = 1 }\n' + RUN: [
        "setting.flags: expected one of", "did you mean 'plan-cache'", "setting.layout", "setting.flag: expected a key"
    ],
    'tuned_for = "h100"\nset = ["l2.byts=3"]\n' + RUN: ["tuned_for: ", "did you mean 'h100_sxm5'", "l2.byts"],
    'baseline = "b"\n' + RUN: ["baseline: expected 'heuristic' or 'search', found 'b'"],
    "gpu = ": ["expected valid TOML"],
}  # fmt: skip


@pytest.mark.parametrize("text", BAD, ids=[words[0][:30] for words in BAD.values()])
def test_faults_of_a_run_file_are_named(tmp_path, text):
    with pytest.raises(UserError) as caught:
        read_run(write(tmp_path / "run.toml", text))
    for words in BAD[text]:
        assert words in str(caught.value)


# --- results of simulate and gemm ---


def simulated(tmp_path, name, *extra):
    path = tmp_path / name
    workload = write(tmp_path / "w.toml", 'name = "w"\n' + OPS)
    assert main(["simulate", str(workload), "--gpu", "a100_pcie_80gb", "--json", str(path), *extra]) == 0
    return path


def test_results_of_simulate_are_runs_again(tmp_path, capsys):
    base, other = (
        simulated(tmp_path, "base.json"),
        simulated(tmp_path, "other.json", "--pattern", "1:4", "--streams", "2"),
    )
    runs = [read_run(path) for path in (base, other)]
    found = quick(*runs)
    assert not found.notes  # this version gives the recorded times again
    assert {change.id for change in find_changes(*runs)} == {"pattern", "streams"}
    document = json.loads(base.read_text())
    document["makespan_us"] *= 2
    write(base, json.dumps(document))
    assert "the file says" in quick(read_run(base), runs[1]).notes[0]
    gemm = tmp_path / "gemm.json"
    assert main(["gemm", "--gpu", "a100_pcie_80gb", "-m", "512", "-n", "512", "-k", "512", "--json", str(gemm)]) == 0
    assert quick(read_run(gemm), read_run(gemm)).decision.verdict == "ship"
    capsys.readouterr()


def test_faults_of_a_result_name_the_file(tmp_path, capsys):
    path = simulated(tmp_path, "base.json")
    good = path.read_text()
    faults = {
        "stack": lambda d: d.update(stack="my-stack"),
        "timing": lambda d: d.update(timing="slow"),
        "m: expected a positive integer, found -3": lambda d: d["rows"][0]["gemm"].update(m=-3),
        "m: expected a positive integer, found '30'": lambda d: d["rows"][0]["gemm"].update(m="30"),
        "rows: expected at least one op, found []": lambda d: d.update(rows=[]),
        "ops: expected unique names": lambda d: d["rows"][1]["gemm"].update(name=d["rows"][0]["gemm"]["name"]),
    }
    for words, change in faults.items():
        document = json.loads(good)
        change(document)
        write(path, json.dumps(document))
        assert main(["diagnose", str(path), str(path)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: {path}: "), line
        assert words in line


def test_a_run_of_serve_is_sent_to_gate(tmp_path):
    path = write(tmp_path / "serving.json", json.dumps({"variants": [], "scheduler": {}, "gains": []}))
    with pytest.raises(UserError, match=r"serving.json: expected .*, found one of serve: `sparsesim gate` judges"):
        read_run(path)


def test_a_result_of_an_unknown_board_asks_for_its_file(tmp_path, capsys):
    path = simulated(tmp_path, "base.json")
    document = json.loads(path.read_text())
    document["provenance"]["gpu_hash"] = "0" * 12
    write(path, json.dumps(document))
    with pytest.raises(UserError, match=r"provenance.gpu_hash: .*--hardware FILE"):
        read_run(path)
    write(path, '{"schema": "x"}')
    with pytest.raises(UserError, match="schema: expected"):
        read_run(path)
    document["rows"] = [{}]
    write(path, json.dumps(document))
    with pytest.raises(UserError, match="expected the fields that `sparsesim simulate --json` writes"):
        read_run(path)
    capsys.readouterr()


# --- profiles ---

HEAD = (
    "NVTX Range,Style,PID,TID,NVTX Inst,Kern Inst,Total Time (ns),Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),"
    "Kernel Name\n"
)
SPARSE = "sm80_xmma_sparse_gemm_f16f16_f16f32_f32_tn_n_tilesize128x256x64_stage3_warpsize2x4x1_sptensor16x8x32_kernel"
DENSE = "ampere_fp16_s16816gemm_fp16_256x128_ldg8_f2f_stages_64x3_tn"


def profile(path, rows):
    """An Nsight Systems summary: (range that names the shape, kernel, µs) for each kernel, called 10 times."""
    lines = []
    for shape, name, us in rows:
        times = [f"{10000 * us:.0f}", *[f"{1000 * us:.1f}"] * 2, *[f"{1000 * us:.0f}"] * 2, "1.0"]
        lines.append(",".join([f":{shape}", "PushPop", "1", "1", "10", "10", *times, name]))
    return write(path, HEAD + "\n".join(lines) + "\n")


WIDE, DOWN = (f"m={m} n=512 k={k} dtype=f16 pattern=2:4" for m, k in ((4096, 1024), (1024, 4096)))


def of_profiles(tmp_path, base, candidate):
    paths = [profile(tmp_path / f"{name}.csv", rows) for name, rows in (("base", base), ("new", candidate))]
    return quick(*(read_run(path, "a100_pcie_80gb") for path in paths))


def test_a_layer_that_fell_back_is_found_in_two_profiles(tmp_path):
    base = [(WIDE, SPARSE, 25.0), (DOWN, SPARSE, 24.0)]
    found = of_profiles(tmp_path, base, [(WIDE, SPARSE, 25.0), (DOWN, DENSE, 36.0)])
    assert found.first.id == "weight layout"
    assert "ran dense in the profile" in found.first.what
    assert math.exp(found.figure("throughput").change) == pytest.approx((25.0 + 24.0) / (25.0 + 36.0))
    (pair,) = found.ops
    assert (pair.base["measured_us"], pair.candidate["measured_kernel"]) == (24.0, DENSE)
    # the shares and what the model does not explain add up to what was measured
    shares = math.fsum(found.found.shares["throughput"].values())
    assert shares + found.unexplained == pytest.approx(found.figure("throughput").change)


def test_what_no_change_explains_is_said_to_be_unexplained(tmp_path):
    base = [(WIDE, SPARSE, 25.0), (DOWN, SPARSE, 24.0)]
    found = of_profiles(tmp_path, base, [(WIDE, SPARSE, 37.0), (DOWN, SPARSE, 24.0)])
    assert found.found.changes == ()
    assert found.first.id == "not modelled"
    assert found.unexplained == pytest.approx(math.log(49 / 61))
    assert found.decision.verdict == "roll back"
    assert of_profiles(tmp_path, base, base).first is None
    # nor has the noise of two profiles of one thing
    again = of_profiles(tmp_path, base, [(WIDE, SPARSE, 25.4), (DOWN, SPARSE, 24.2)])
    assert (again.first, again.decision.verdict) == (None, "ship")
    assert again.unexplained == pytest.approx(math.log(49 / 49.6))


def test_a_measured_run_is_not_compared_with_a_simulated_one(tmp_path):
    measured = read_run(profile(tmp_path / "p.csv", [(WIDE, SPARSE, 25.0)]), "a100_pcie_80gb")
    with pytest.raises(UserError, match="one of each"):
        quick(read_run(write(tmp_path / "run.toml", RUN)), measured)


# --- quality ---


def records(path, *tables):
    entries = [{"metric": "acc", "better": "higher", "model": "m", **table} for table in tables]
    return write(path, json.dumps({"format": "sparsesim quality 1", "study": "x", "entries": entries}))


def zeros_and_ones(seed, mean, count=200):
    """Samples of 0 and 1 of a given mean, in an order that the seed decides."""
    ones = round(mean * count)
    values = [1.0] * ones + [0.0] * (count - ones)
    random.Random(seed).shuffle(values)
    return values


def with_quality(run, path, variant=None):
    return replace(run, quality=read_quality(path, variant))


@pytest.fixture
def run(tmp_path):
    return read_run(write(tmp_path / "run.toml", RUN))


def test_an_overall_drop_of_quality_is_named(tmp_path, run):
    same = zeros_and_ones(1, 0.8)
    worse = [0.0 if i % 5 == 0 else x for i, x in enumerate(same)]
    paths = [
        records(tmp_path / f"{name}.json", *({"task": part, "samples": [samples]} for part in ("all", "code", "prose")))
        for name, samples in (("base", same), ("new", worse))
    ]
    found = quick(with_quality(run, paths[0]), with_quality(run, paths[1]))
    assert found.first.kind == "quality"
    assert found.first.id == "weights"
    assert found.quality_where == "all slices"
    assert found.decision.verdict == "roll back"
    assert found.drifts[0].paired
    assert found.drifts[0].low > found.drifts[0].allowed
    (fix,) = found.fixes
    assert (fix.takes_back, fix.quality_gain) == ("weights", pytest.approx(found.drifts[0].loss))
    assert "--quality fix-1.quality.json" in found.to_dict()["fixes"][0]["validation"]
    unchanged = quick(with_quality(run, paths[0]), with_quality(run, paths[0]))
    assert (unchanged.first, unchanged.decision.verdict) == (None, "ship")


def sliced(path, seed, drop=0.0, where=-1, slices=10, samples=600, seeds=3):
    """Right and wrong answers of a model that was trained anew: the same held-out samples, other noise; `drop` of the
    right ones are lost in one slice, or in all of them."""
    hard = np.random.default_rng(1).random(samples) < 0.15
    rng = np.random.default_rng(seed)
    of = np.arange(samples) % slices
    right = np.where(rng.random((seeds, samples)) < 0.03, hard, ~hard)
    lost = rng.random((seeds, samples)) < (drop if where < 0 else np.where(of == where, drop, 0.0))
    answers = (right & ~lost).astype(float).tolist()
    entry = {"model": "m", "metric": "acc", "better": "higher", "task": "t", "samples": answers}
    document = {"format": "sparsesim quality 1", "study": "x", "entries": [entry],
                "tasks": {"t": {"slices": [f"s{i}" for i in of]}}}  # fmt: skip
    return write(path, json.dumps(document))


def test_noise_has_no_cause_and_what_is_none_has(tmp_path, run):
    """Of ten slices' figures some are worse by chance: an unchanged model, measured anew, names none of them."""
    base = with_quality(run, sliced(tmp_path / "base.json", 0))
    by_figure = 0
    for seed in range(2, 22):
        found = quick(base, with_quality(run, sliced(tmp_path / "new.json", seed)))
        assert found.first is None, (seed, found.first)
        assert found.decision.verdict in ("hold", "ship")
        by_figure += max(drift.severity for drift in found.drifts) > 1.0
    assert by_figure > 10  # by figures alone, most would have had a cause
    drop = quick(base, with_quality(run, sliced(tmp_path / "new.json", 2, 0.6, where=3)))
    assert (drop.first.id, drop.quality_where) == ("weights", "slice t/s3")
    drop = quick(base, with_quality(run, sliced(tmp_path / "new.json", 2, 0.3)))
    assert (drop.first.id, drop.quality_where) == ("weights", "all slices")
    # the slices of a task are judged together, the task as a whole by itself
    by_slice = {drift.slice: drift for drift in drop.drifts}
    ours, theirs = (np.asarray(each.quality.own["acc", "t/s3"].samples) for each in (base, drop.candidate))
    alone = paired(ours - theirs)
    assert by_slice["t/s3"].high - by_slice["t/s3"].low > 1.5 * (alone.high - alone.low)


def test_a_drop_in_one_slice_is_named_with_the_slice(tmp_path, run):
    def tables(code):
        parts = {
            "all": (0.8 - (0.9 - code) / 4, 0.002),
            "prose": (0.8, 0.01),
            "maths": (0.7, 0.01),
            "code": (code, 0.01),
        }
        return [{"task": s, "value": v, "low": v - h, "high": v + h} for s, (v, h) in parts.items()]

    base = with_quality(run, records(tmp_path / "base.json", *tables(0.90)))
    new = with_quality(run, records(tmp_path / "new.json", *tables(0.70)))
    found = quick(base, new)
    assert found.quality_where == "slice code"
    assert "in slice code" in found.first.what
    assert found.decision.verdict == "roll back"


def test_slices_of_samples_are_figures_of_their_own(tmp_path):
    names = ["a", "b"] * 10
    path = tmp_path / "q.json"
    document = {
        "format": "sparsesim quality 1", "study": "x",
        "tasks": {"task": {"slices": names}, "lm": {"slices": names, "unit": "slice"}},
        "entries": [
            {"metric": "acc", "better": "higher", "samples": [[1.0, 0.0] * 10, [0.0, 0.0] * 10]},
            {"metric": "ppl", "better": "lower", "task": "lm", "samples": [[3.0, 5.0] * 10]},
        ],
    }  # fmt: skip
    found = read_quality(write(path, json.dumps(document))).own
    assert {key: record.value for key, record in found.items()} == {
        ("acc", "all"): 0.25, ("acc", "a"): 0.5, ("acc", "b"): 0.0, ("ppl", "lm"): 4.0, ("ppl", "lm/a"): 3.0,
        ("ppl", "lm/b"): 5.0,
    }  # fmt: skip
    assert found["ppl", "lm"].samples == ((3.0, 5.0),)
    document["tasks"]["lm"]["slices"] = names[1:]
    with pytest.raises(UserError, match=r"tasks.lm.slices: expected one for each of the 20 samples"):
        read_quality(write(path, json.dumps(document)))


def test_seeds_that_disagree_widen_the_interval_of_a_drift(tmp_path, run):
    """Planted: one seed of three lost 12 points in all samples; averaged over seeds first, that would be a sure 4."""
    samples = [0.90 + 0.01 * (i % 5) for i in range(60)]

    def tables(losses):
        return {"metric": "acc", "better": "higher", "samples": [[x - loss for x in samples] for loss in losses]}

    base = read_quality(records(tmp_path / "base.json", tables([0.0, 0.0, 0.0])))
    one_bad, all_bad = (
        read_quality(records(tmp_path / f"{name}.json", tables(losses)))
        for name, losses in (("one", [0.12, 0.0, 0.0]), ("all", [0.04, 0.04, 0.04]))
    )
    ((drift,), _), ((sure,), _) = (compare_quality(base, new, 0.01) for new in (one_bad, all_bad))
    assert drift.paired
    assert drift.loss == pytest.approx(sure.loss) == pytest.approx(0.04)
    assert drift.state == "undecided"
    # three seeds: t with two degrees of freedom times the standard error of their means
    assert drift.high - drift.loss == pytest.approx(4.3027 * 0.12 / 3, rel=1e-3)
    assert sure.state == "fail"
    fewer = read_quality(records(tmp_path / "fewer.json", tables([0.04, 0.04])))
    ((drift,), _) = compare_quality(base, fewer, 0.01)
    assert not drift.paired


def test_quality_is_attributed_over_pattern_and_method_by_looking_figures_up(tmp_path, run):
    def table(pattern, method, value):
        return {"pattern": pattern, "method": method, "value": value, "low": value - 0.001, "high": value + 0.001}

    grid = [table("2:4", "sparsegpt", 0.80), table("2:4", "magnitude", 0.74), table("1:4", "sparsegpt", 0.70),
            table("1:4", "magnitude", 0.50)]  # fmt: skip
    path = records(tmp_path / "q.json", *grid)
    base = with_quality(run, path, {"pattern": "2:4", "method": "sparsegpt"})
    pruned = replace(run, workload=Workload("w", "", "", tuple(op.with_pattern("1:4") for op in run.workload.ops)))
    new = with_quality(pruned, path, {"pattern": "1:4", "method": "magnitude"})
    found = quick(base, new)
    causes = {cause.id: cause for cause in found.quality_causes}
    # Shapley by hand: the mean of what each costs first and what it costs second
    assert causes["pattern"].loss == pytest.approx(0.5 * ((0.80 - 0.70) + (0.74 - 0.50)))
    assert causes["method"].loss == pytest.approx(0.5 * ((0.80 - 0.74) + (0.70 - 0.50)))
    assert causes["pattern"].change == "pattern"
    assert found.first.id == "pattern"
    back = next(fix for fix in found.fixes if fix.takes_back == "pattern")
    assert back.quality_gain == pytest.approx(causes["pattern"].loss)
    # without a figure between them they cannot be told apart, and it is said which is missing
    path = records(tmp_path / "r.json", grid[0], grid[1], grid[3])
    base = with_quality(run, path, {"method": "sparsegpt"})
    found = quick(base, with_quality(pruned, path, {"pattern": "1:4"}))
    (cause,) = found.quality_causes
    assert (cause.id, cause.exact) == ("pattern and method", False)
    assert "no figure of model m, pattern 1:4, method sparsegpt" in cause.what


def test_a_drop_without_an_interval_is_undecided_and_held(tmp_path, run):
    values = [{"metric": "ppl", "better": "lower", "value": v} for v in (10.0, 10.5)]
    base, new = (with_quality(run, records(tmp_path / f"{i}.json", t)) for i, t in enumerate(values))
    found = quick(base, new)
    assert found.drifts[0].loss == pytest.approx(0.5)
    assert (found.drifts[0].state, found.decision.verdict) == ("undecided", "hold")
    assert quick(new, base).first is None
    drifts, notes = compare_quality(base.quality, None, 0.01)
    assert drifts == []
    assert "nothing to compare it with" in notes[0]


def test_faults_of_a_quality_file_are_named(tmp_path):
    bad = [
        {"better": "up", "value": 1}, {"value": "x"}, {"samples": [[1]]}, {"value": 1.0, "low": 2.0, "high": 3.0},
        {"value": 1.0, "low": 0.5}, {"value": 1.0, "slise": "a"},
    ]  # fmt: skip
    with pytest.raises(UserError) as caught:
        read_quality(records(tmp_path / "q.json", *bad))
    assert [line.split(": ")[1] for line in caught.value.problems] == [
        "entries[0].better", "entries[1].value", "entries[2].samples", "entries[3]", "entries[4]",
        "entries[5].slise",
    ]  # fmt: skip
    two = records(tmp_path / "q.json", {"value": 1.0, "method": "a"}, {"value": 1.0, "method": "b"})
    with pytest.raises(UserError, match="one variant that the run is"):
        read_quality(two)
    assert read_quality(two, {"method": "b"}).own[("acc", "all")].variant == (("model", "m"), ("method", "b"))
    with pytest.raises(UserError, match="expected a quality file"):
        read_quality(tmp_path / "none.json")


# --- what goes out ---


class Tags(HTMLParser):
    """Which elements a page opens, what it refers to, and its text."""

    def __init__(self):
        super().__init__()
        self.tags, self.links, self.text = [], [], ""

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for key, value in attrs if key in ("src", "href")]

    def handle_data(self, data):
        self.text += data


def test_pages_escape_names_and_stand_alone(run):
    name = 'p/<script>alert("x")</script> | `a` *b*'
    ops = (replace(run.workload.ops[0], name=name), run.workload.ops[1])
    base = replace(run, label="<b>base</b>", workload=Workload("w", "", "", ops))
    new = replace(base, workload=Workload("w", "", "", (replace(ops[0], k=1028), ops[1])))
    found = quick(base, new)
    tags = Tags()
    tags.feed(page(found, "html"))
    assert "script" not in tags.tags
    assert tags.links == []
    assert name in tags.text
    assert "<b>base</b>" in tags.text
    markdown = page(found, "md")
    assert "<script>" not in markdown
    assert "First cause: in features (k) of p/" + chr(92) + "<script" in markdown
    for each in (page(quick(base, base), "html"), page(quick(base, base), "md")):
        assert "differ in nothing that has an effect" in each


def test_the_folder_holds_a_slice_and_fixes_that_run(tmp_path, run, capsys):
    new = replace(run, workload=Workload("w", "", "", (run.workload.ops[0], replace(run.workload.ops[1], k=4100))))
    found = quick(run, new)
    files = write_folder(found, tmp_path / "out")
    again = quick(*read_pair(files["slice"]))
    assert again.first.id == found.first.id
    assert again.figure(found.effect).change == pytest.approx(found.slice.effect, abs=1e-9)
    for number, fix in enumerate(found.fixes, 1):
        mended = quick(*read_pair(files[f"fix {number}"]))
        assert mended.outcomes[1].time_us == pytest.approx(EVALUATOR.outcome(fix.run).time_us)
        assert main(["simulate", files[f"shapes {number}"], "--gpu", "a100_pcie_80gb"]) == 0
    assert quick(*read_pair(files["fix 1"])).decision.verdict == "ship"
    assert json.loads((tmp_path / "out" / "diagnosis.json").read_text())["files"] == files
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    write_folder(quick(run, new), tmp_path / "out")
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    with pytest.raises(UserError, match="--out"):
        write_folder(found, tmp_path / "none" / "out")
    capsys.readouterr()


def test_the_command_prints_writes_and_exits(tmp_path, capsys):
    base, new = write(tmp_path / "base.toml", RUN), write(tmp_path / "new.toml", RUN.replace("k = 4096", "k = 4100"))
    owners = write(tmp_path / "OWNERS", "* @all\n")
    out = tmp_path / "out"
    target = tmp_path / "found.json"
    arguments = ["diagnose", str(base), str(new), "--owners", str(owners), "--out", str(out), "--json", str(target)]
    assert main([*arguments, "--exit-status"]) in (1, 3)
    shown = capsys.readouterr().out
    assert "first cause  in features (k) of p/down: 4096 → 4100" in shown
    assert "mechanism    fallback (class software)" in shown
    document = json.loads(target.read_text())
    assert document["first_cause"]["owner"] == "@all"
    assert document["slice"]["ops"] == ["p/down"]
    assert is_pair(out / "slice.toml")
    assert main(["diagnose", str(base), str(base), "--exit-status", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["first_cause"] is None
    # the change taken back: a pair file that ships
    assert main(["diagnose", str(out / "fix-1.toml"), "--exit-status"]) == 0
    capsys.readouterr()
    assert main(["diagnose", str(base)]) == 2
    assert "[base] and [candidate]" in capsys.readouterr().err
    assert main(["diagnose", str(base), str(tmp_path / "none"), "--tolerance", "2"]) == 2
    assert "tolerance" in capsys.readouterr().err
