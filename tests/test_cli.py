"""The command line and the public API: contract, bad input, JSON files, start-up."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import sparsesim
from sparsesim.__main__ import main
from sparsesim.cli.output import JsonTarget, bar, show_time
from sparsesim.datafiles import data_dir

GEMM = ("gemm", "--gpu", "rtx4090", "-m", "256", "-n", "256", "-k", "256")
COMMANDS = (
    "gemm", "simulate", "explain", "explore", "whatif", "sensitivity", "breakeven", "patterns", "timeline", "import",
    "audit", "sweep", "query", "optimise", "serve", "quality", "frontier", "gate", "diagnose", "validate", "measure",
    "microbench", "calibrate", "check", "gpus", "workloads", "stacks",
)  # fmt: skip
CONTRACT = {
    "gpu", "stack", "m", "n", "k", "batch", "dtype", "pattern", "path", "reason", "time_us", "dense_time_us",
    "speedup", "nominal_speedup", "kernel", "dense_kernel", "counters", "clock_mhz", "bound_by",
}  # fmt: skip
MEASURED = (
    "gpu,library,m,n,k,batch,dtype,acc_dtype,pattern,sparse_operand,time_us,timing,l2,clock,set,source\n"
    "rtx4090,lib,512,512,512,1,f16,f32,2:4,A,12.5,stream,warm,free,S,src\n"
    "rtx4090,lib,512,512,512,1,f16,f32,dense,,13.5,stream,warm,free,S,src\n"
    "rtx4090,lib,256,256,256,1,f16,f32,dense,,4.0,stream,warm,free,S,src\n"
    "mi210,lib,256,256,256,1,f16,f32,dense,,14.0,stream,warm,free,S,src\n"
)
TRACE = (
    "name,m,n,k,pattern,count\n"
    "step/a,512,64,512,2:4,2\nstep/b,256,64,1024,2:4,1\nstep/c,256,64,256,dense,1\nstep/odd,256,64,250,2:4,1\n"
)


@pytest.fixture
def run(capsys):
    """Run a command in this process → (status, stdout, stderr)."""

    def call(*words):
        status = main([str(word) for word in words])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


@pytest.fixture
def folder(tmp_path):
    """Files that the commands below name, good and bad."""
    gpu = (data_dir("hw_configs") / "rtx4090.toml").read_text(encoding="utf-8")
    texts = {
        "trace.csv": TRACE,
        "measured.csv": MEASURED,
        "empty.csv": "",
        "empty.toml": "",
        "empty.jsonl": "",
        "header.csv": "name,m,n,k\n",
        "twice.csv": "name,m,n,k\na,64,64,64\na,64,64,64\n",
        "nan.csv": "name,m,n,k\na,nan,64,64\n",
        "float.jsonl": '{"name": "a", "m": 64.0, "n": 64, "k": 64}\n',
        "cut.jsonl": '{"name": "a", "m": 64, "n": 64, "k": 64}\n{"name": "b", "m"',
        "field.csv": "name,m,n,k,patern\na,64,64,64,2:4\n",
        "cut.toml": gpu[: len(gpu) // 2 - len(gpu) // 2 % 80 + 7],
        "field.toml": 'extends = "rtx4090"\nname = "mine"\ntitle = "Mine"\n[sm]\n'
        'cont = { value = 8, unit = "-", source = "X", status = "assumed" }\n',
        "negative.toml": 'extends = "rtx4090"\nname = "mine"\ntitle = "Mine"\n[sm]\n'
        'count = { value = -8, unit = "-", source = "X", status = "assumed" }\n',
        "findings.toml": 'extends = "rtx4090"\nname = "mine"\ntitle = "Mine"\n[sm]\n'
        'count = { value = 64, unit = "-", source = "ASSUMED", status = "assumed" }\n',
        "m-none.csv": "\n".join([MEASURED.splitlines()[0], *(x for x in MEASURED.splitlines() if "mi210" in x)]) + "\n",
        "unitless.toml": 'extends = "rtx4090"\nname = "mine"\n[sm]\n'
        'count = { value = 64, source = "-", status = "assumed" }\n',
        "m-header.csv": MEASURED.splitlines()[0] + "\n",
        "m-cut.csv": MEASURED[: MEASURED.index("12.5")],
        "m-columns.csv": MEASURED.replace("time_us", "time"),
        "m-nan.csv": MEASURED.replace("12.5", "nan"),
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def gemm_with(**options):
    """The words of a GEMM with some options replaced."""
    values = {"gpu": "rtx4090", "m": 64, "n": 64, "k": 64, **options}
    words = ["gemm"]
    for name, value in values.items():
        words += [f"-{name}" if len(name) == 1 else f"--{name}", str(value)]
    return words


# --- what the commands print ---


def test_gemm_prints_the_contract(run):
    words = "gemm --gpu rtx4090 -m 512 -n 512 -k 512 --dtype f16 --pattern 2:4 --stack cusparselt"
    status, out, err = run(*shlex.split(words), "--timing", "stream", "--l2", "warm", "--json", "-")
    data = json.loads(out)
    assert (status, err) == (0, "")
    assert data.keys() >= CONTRACT
    assert (data["gpu"], data["stack"], data["pattern"], data["path"]) == (
        "rtx4090", "cusparselt", "2:4", "sparse",
    )  # fmt: skip
    assert (data["timing"], data["l2"], data["clock"]) == ("stream", "warm", "free")
    assert data["speedup"] == pytest.approx(data["dense_time_us"] / data["time_us"])


def test_gemm_defaults(run):
    data = json.loads(run(*GEMM, "--json", "-")[1])
    assert (data["timing"], data["l2"], data["stack"], data["dtype"]) == (
        "kernel", "rotating", "cusparselt", "f16",
    )  # fmt: skip


def test_gemm_in_words_says_path_reason_and_speedup(run):
    status, out, _ = run(*GEMM)
    assert status == 0
    for word in ("path      sparse (eligible)", "speedup", "promised", "dense baseline", "clock", "bound by"):
        assert word in out


def test_a_k_that_is_no_multiple_of_the_group_is_a_fallback(run):
    status, out, _ = run(*gemm_with(k=250), "--json", "-")
    data = json.loads(out)
    assert status == 0
    assert (data["path"], data["reason"]) == ("dense", "shape-alignment")
    assert "250" in data["reason_text"]


def test_accumulator_and_locked_clock(run):
    data = json.loads(run(*gemm_with(acc="f16", clock="locked:1200"), "--json", "-")[1])
    assert data["clock"] == "locked:1200"
    assert data["clock_mhz"] <= 1200


def test_a_gpu_by_path(run, folder):
    data = json.loads(run(*gemm_with(gpu=folder / "findings.toml"), "--json", "-")[1])
    assert data["gpu"] == "mine"


def test_two_runs_are_byte_identical(run):
    assert run(*GEMM, "--json", "-") == run(*GEMM, "--json", "-")


def test_simulate_in_words(run, folder):
    status, out, _ = run("simulate", folder / "trace.csv", "--gpu", "rtx4090")
    assert status == 0
    for word in ("step/odd", "shape-alignment", "dense-weight", "total", "fallback", "promised"):
        assert word in out


def test_simulate_as_json(run, folder):
    status, out, _ = run("simulate", folder / "trace.csv", "--gpu", "rtx4090", "--repeats", 2, "--json", "-")
    data = json.loads(out)
    assert status == 0
    assert [row["name"] for row in data["rows"]] == ["step/a", "step/b", "step/c", "step/odd"]
    assert data["repeats"] == 2
    assert [share["reason"] for share in data["fallbacks"]] == ["shape-alignment"]


def test_explain_a_gemm(run):
    status, out, _ = run("explain", *GEMM[1:])
    assert status == 0
    for word in (
        "Where it went",
        "of the gap",
        "sum",
        "SM-cycles by owner",
        "bound by",
        "again     sparsesim",
    ):
        assert word in out
    data = json.loads(run("explain", *GEMM[1:], "--json", "-")[1])
    assert sum(data["shares_ln"].values()) == pytest.approx(data["gap_ln"], abs=1e-9)


def test_explain_a_workload_worst_layers_first_with_commands_that_reproduce(run, folder):
    words = ("explain", folder / "trace.csv", "--gpu", folder / "findings.toml")
    data = json.loads(run(*words, "--json", "-")[1])
    lost = [layer["lost_us"] for layer in data["layers"]]
    assert lost == sorted(lost, reverse=True)
    out = run(*words)[1]
    again = [line.partition("#")[0].split(maxsplit=1)[1] for line in out.splitlines() if line[:5] == "again"]
    worst = next(op for op in data["ops"] if op["name"] == data["layers"][0]["name"])
    assert again[0].strip() == worst["command"]
    program, *arguments = shlex.split(again[0])
    assert program == "sparsesim"
    assert json.loads(run(*arguments, "--json", "-")[1])["speedup"] == worst["speedup"]


def test_explain_rules_in_order(run):
    status, out, _ = run("explain", "--rules", "--json", "-")
    codes = [rule["code"] for rule in json.loads(out)["rules"]]
    assert status == 0
    assert codes[0] == "arch-unsupported"
    assert all(rule["text"] and rule["source"] for rule in json.loads(out)["rules"])
    text = run("explain", "--rules", "--stack", "cusparselt")[1]
    assert [text.index(code) for code in codes] == sorted(text.index(code) for code in codes)


def test_validate(run, folder):
    status, out, err = run("validate", folder / "measured.csv", "--json", "-")
    data = json.loads(out)
    assert (status, err) == (0, "")
    assert {(group["kind"], group["rows"]) for group in data["groups"]} == {
        ("dense", 1), ("sparse", 1), ("speedup", 1),
    }  # fmt: skip
    assert all(group.keys() >= {"gpu", "dtype", "male", "p90", "bias", "rank_correlation"} for group in data["groups"])
    assert data["rows"][0].keys() >= {
        "library", "timing", "source", "measured_us", "predicted_us", "low_us", "high_us",
    }  # fmt: skip
    assert len(data["rows"]) == 3
    assert "mi210" in data["skipped"][0]["why"]
    text = run("validate", folder / "measured.csv", "--min-us", 0)[1]
    assert "3 rows predicted, 1 skipped" in text
    assert "mi210" in text


def test_check_lists_what_rests_on_no_source(run):
    status, out, _ = run("check", "rtx4090", "t4", "--json", "-")
    data = json.loads(out)
    assert status == 0
    assert [item["gpu"] for item in data["gpus"]] == ["rtx4090", "t4"]
    for item in data["gpus"]:
        assert {row["status"] for row in item["assumed_or_fitted"]} <= {"assumed", "fitted"}
        assert item["statuses"]["assumed"] + item["statuses"]["fitted"] == len(item["assumed_or_fitted"])
    assert "clock.min" in run("check", "rtx4090")[1]


def test_check_of_all_packaged_files_is_clean(run):
    status, out, _ = run("check", "--json", "-")
    assert status == 0
    assert [item["gpu"] for item in json.loads(out)["gpus"]] == sparsesim.gpu_names()


def test_check_exits_with_1_if_there_are_findings(run, folder):
    status, out, _ = run("check", folder / "findings.toml")
    assert status == 1
    assert "sm.count: expected a note" in out
    assert out.endswith("\n1 GPU, 1 finding\n")
    assert run("check", "rtx4090", "t4")[1].endswith("\n2 GPUs, no findings\n")
    assert json.loads(run("check", folder / "findings.toml", "--json", "-")[1])["findings"] == 1


@pytest.mark.parametrize(
    ("command", "key", "name"),
    [("gpus", "gpus", "rtx4090"), ("workloads", "workloads", "square"), ("stacks", "stacks", "cublaslt")],
)
def test_listings(run, command, key, name):
    assert name in {item["name"] for item in json.loads(run(command, "--json", "-")[1])[key]}
    assert name in run(command)[1]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_an_example_and_json(run, command):
    status, out, _ = run(command, "--help")
    assert status == 0
    assert f"Example: sparsesim {command}" in out
    assert "--json" in out


def test_help_lists_the_commands(run):
    status, out, _ = run("--help")
    assert status == 0
    assert all(command in out for command in COMMANDS)
    assert run()[0] == 0
    assert run("--version")[1] == f"sparsesim {sparsesim.__version__}\n"


# --- bad input ---

BAD = {
    "unknown gpu": (gemm_with(gpu="rtx409"), "did you mean 'rtx4090'"),
    "missing gpu file": (gemm_with(gpu="nowhere/x.toml"), "no such file"),
    "empty gpu file": (gemm_with(gpu="{}/empty.toml"), "an empty file"),
    "truncated gpu file": (gemm_with(gpu="{}/cut.toml"), "expected valid TOML"),
    "unknown gpu field": (gemm_with(gpu="{}/field.toml"), "did you mean 'count'"),
    "negative gpu value": (gemm_with(gpu="{}/negative.toml"), "sm.count: expected"),
    "negative size": (gemm_with(m=-5), "m: expected a positive integer, found -5"),
    "zero size": (gemm_with(k=0), "k: expected a positive integer, found 0"),
    "zero batch": (gemm_with(batch=0), "batch: expected a positive integer"),
    "nan size": (gemm_with(m="nan"), "'-m': expected an integer, found 'nan'"),
    "float size": (gemm_with(n="64.0"), "'-n': expected an integer, found '64.0'"),
    "huge size": (gemm_with(m=10**9), "at most 1048576, found 1000000000"),
    "huge product": (gemm_with(m=2**20, n=2**20, k=2**20), "multiply-accumulates"),
    "impossible pattern": (gemm_with(pattern="5:4"), "pattern: expected N:M"),
    "no pattern": (gemm_with(pattern="many"), "pattern: expected"),
    "unknown dtype": (gemm_with(dtype="f61"), "did you mean 'f16'"),
    "dtype that the gpu lacks": (gemm_with(gpu="a100_sxm4_80gb", dtype="e4m3"), "e4m3"),
    "unknown accumulator": (gemm_with(acc="f12"), "acc_dtype: expected f32 or f16"),
    "unknown stack": (gemm_with(stack="cusparse"), "did you mean 'cusparselt'"),
    "unknown timing": (gemm_with(timing="strem"), "did you mean 'stream'"),
    "unknown l2": (gemm_with(l2="wram"), "did you mean 'warm'"),
    "bad clock": (gemm_with(clock="locked:nan"), "clock: expected free or locked:<MHz>"),
    "unknown option": ([*gemm_with(), "--patern", "2:4"], "No such option: --patern"),
    "missing option": (["gemm", "--gpu", "rtx4090"], "Missing option"),
    "unknown command": (["gem"], "No such command 'gem'"),
    "unknown workload": (["simulate", "lama-3.1-8b", "--gpu", "l4"], "did you mean 'llama-3.1-8b'"),
    "empty workload csv": (["simulate", "{}/empty.csv", "--gpu", "l4"], "an empty file"),
    "empty workload toml": (["simulate", "{}/empty.toml", "--gpu", "l4"], "an empty file"),
    "empty workload jsonl": (["explain", "{}/empty.jsonl", "--gpu", "l4"], "an empty file"),
    "workload without ops": (["simulate", "{}/header.csv", "--gpu", "l4"], "at least one op"),
    "truncated workload": (["simulate", "{}/cut.jsonl", "--gpu", "l4"], "line 2"),
    "unknown workload field": (["simulate", "{}/field.csv", "--gpu", "l4"], "did you mean 'pattern'"),
    "nan in a workload": (["simulate", "{}/nan.csv", "--gpu", "l4"], "line 2: m: expected"),
    "float in a workload": (["simulate", "{}/float.jsonl", "--gpu", "l4"], "line 1: m: expected"),
    "duplicate names": (["simulate", "{}/twice.csv", "--gpu", "l4"], "expected a unique name"),
    "unknown phase": (["simulate", "llama-3.2-1b", "--gpu", "l4", "--phase", "decod"], "mean 'decode'"),
    "zero streams": (["simulate", "{}/trace.csv", "--gpu", "l4", "--streams", "0"], "streams: expected"),
    "workload override": (["simulate", "{}/trace.csv", "--gpu", "l4", "--pattern", "5:4"], "found '5:4'"),
    "explain nothing": (["explain", "--gpu", "l4"], "expected a workload, or a GEMM"),
    "explain without gpu": (["explain", "square"], "--gpu: expected"),
    "explain half a gemm": (["explain", "--gpu", "l4", "-m", "64"], "-n, -k: expected all three sizes"),
    "explain both": (["explain", "square", "--gpu", "l4", "-m", "64"], "beside 'square'"),
    "explain tokens of a gemm": (["explain", *gemm_with()[1:], "--tokens", "3"], "--tokens: expected"),
    "explain no layer": (["explain", "square", "--gpu", "l4", "--top", "0"], "--top: expected a positive"),
    "rules of no stack": (["explain", "--rules", "--stack", "cublas"], "did you mean 'cublaslt'"),
    "missing measured file": (["validate", "{}/nowhere.csv"], "no such file"),
    "empty measured file": (["validate", "{}/empty.csv"], "an empty file"),
    "measured file without rows": (["validate", "{}/m-header.csv"], "at least one row"),
    "truncated measured file": (["validate", "{}/m-cut.csv"], "line 2"),
    "unknown measured column": (["validate", "{}/m-columns.csv"], "a column 'time_us'"),
    "measured rows of no known gpu": (["validate", "{}/m-none.csv"], "a row that the model can predict"),
    "no unit": (gemm_with(gpu="{}/unitless.toml"), "sm.count.unit: expected a non-empty string, found none"),
    "nan measured": (["validate", "{}/m-nan.csv"], "time_us: expected a positive number"),
    "measured file twice": (["validate", "{}/measured.csv", "{}/measured.csv"], "each file once"),
    "nan limit": (["validate", "{}/measured.csv", "--min-us", "nan"], "min_us: expected"),
    "unknown gpu to check": (["check", "l44"], "did you mean 'l4'"),
    "gpu twice": (["check", "l4", "l4"], "each GPU once"),
    "unknown gpu field to check": (["check", "{}/field.toml"], "did you mean 'count'"),
}  # fmt: skip


@pytest.mark.parametrize(("words", "expected"), BAD.values(), ids=BAD)
def test_bad_input_is_one_clear_error(run, folder, words, expected):
    before = sorted(folder.iterdir())
    target = folder / "result.json"
    status, out, err = run(*(word.replace("{}", str(folder)) for word in words), "--json", target)
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert expected in err
    assert sorted(folder.iterdir()) == before


def test_all_problems_are_reported_at_once(run):
    status, _, err = run(*gemm_with(gpu="l44", m=0, stack="x", timing="y"))
    assert status == 2
    assert len(err.splitlines()) == 4


# --- JSON files ---


def test_a_file_holds_what_stdout_would(run, tmp_path):
    target = tmp_path / "result.json"
    status, out, _ = run(*GEMM, "--json", target)
    assert status == 0
    assert "speedup" in out
    assert target.read_text(encoding="utf-8") == run(*GEMM, "--json", "-")[1]
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("target", ["{}", "{}/nowhere/x.json", "{}/trace.csv/x.json", "", " "])
def test_a_bad_output_path_is_an_error_before_anything_is_simulated(run, folder, monkeypatch, target):
    import sparsesim.api

    monkeypatch.setattr(sparsesim.api, "simulate_gemm", lambda *_: pytest.fail("simulated"))
    before = sorted(folder.iterdir())
    status, out, err = run(*GEMM, "--json", target.replace("{}", str(folder)))
    assert (status, out) == (2, "")
    assert err.startswith("error: --json: expected a file that can be written")
    assert err.count("\n") == 1
    assert sorted(folder.iterdir()) == before


def test_a_failed_write_leaves_what_was_there(run, tmp_path, monkeypatch):
    target = tmp_path / "result.json"
    target.write_text("old", encoding="utf-8")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sparsesim.cli.output.os.fsync", full)
    status, out, err = run("stacks", "--json", target)
    assert (status, out) == (2, "")
    assert "No space left" in err
    assert target.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_what_is_no_regular_file_is_written_and_not_replaced(run, tmp_path):
    link = tmp_path / "null"
    link.symlink_to(os.devnull)
    assert run("stacks", "--json", link)[0] == 0
    assert link.is_symlink()
    assert not Path(os.devnull).is_file()


def test_a_link_stays_a_link(run, tmp_path):
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    assert run("stacks", "--json", tmp_path / "link.json")[0] == 0
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads((tmp_path / "real.json").read_text(encoding="utf-8"))["stacks"]


def test_an_interrupt_is_one_line_and_writes_nothing(run, tmp_path, monkeypatch):
    import sparsesim.api

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(sparsesim.api, "simulate_gemm", interrupted)
    assert run(*GEMM, "--json", tmp_path / "result.json") == (130, "", "error: interrupted\n")
    assert list(tmp_path.iterdir()) == []


def test_a_bug_is_not_dressed_up_as_the_users_mistake(run, monkeypatch):
    import sparsesim.api

    def broken(*_):
        raise ValueError("a bug")

    monkeypatch.setattr(sparsesim.api, "simulate_gemm", broken)
    with pytest.raises(ValueError, match="a bug"):
        run(*GEMM)


def test_targets():
    assert JsonTarget.parse(None) == JsonTarget()
    assert JsonTarget.parse("-").stdout


def test_numbers_read_well():
    assert [show_time(us) for us in (3.14159, 432.61, 2500.0, 25000.0, 3.2e7)] == [
        "3.142 µs", "432.6 µs", "2500 µs", "25 ms", "32 s",
    ]  # fmt: skip
    assert (bar(1.0, 4), bar(0.5, 4), bar(-0.5, 4), bar(0.01, 4), bar(0.0, 4)) == (
        "████",
        "██",
        "░░",
        "█",
        "",
    )


# --- processes ---


def process(*words, **options):
    """``python -m sparsesim`` with `words`."""
    return subprocess.run(
        [sys.executable, "-m", "sparsesim", *words], capture_output=True, text=True, timeout=120, **options
    )


def test_exit_status_of_the_process():
    good = process("gpus", "--json", "-")
    assert (good.returncode, good.stderr) == (0, "")
    assert json.loads(good.stdout)
    bad = process(*gemm_with(gpu="rtx409"))
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr.count("\n") == 1
    no_kernel = process(*gemm_with(gpu="t4", dtype="tf32"))
    assert no_kernel.returncode == 2
    assert no_kernel.stderr.startswith("error: ")
    assert "Traceback" not in no_kernel.stderr + bad.stderr


@pytest.mark.parametrize("words", [("gpus",), ("gpus", "--json", "-"), ("--help",)])
def test_a_closed_pipe_is_quiet(words):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "sparsesim", *words],
            stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120,
        )  # fmt: skip
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(
    ("code", "light"),
    [
        ("import sparsesim", {"numba", "numpy", "simpy", "matplotlib", "pydantic", "typer", "rich"}),
        (
            "from sparsesim.__main__ import main; main(['gemm', '--help'])",
            {"numba", "numpy", "simpy", "matplotlib"},
        ),
        (
            "from sparsesim.__main__ import main; main(['--help'])",
            {
                "numba",
                "numpy",
                "simpy",
                "matplotlib",
                "pydantic",
                "scipy",
                "pyarrow",
                "duckdb",
                "jinja2",
                "distributed",
                "optuna",
                "starlette",
                "uvicorn",
                "torch",
                "onnx",
                "yaml",
            },
        ),
        ("import sparsesim; sparsesim.load_gpu('l4')", {"numba", "simpy", "matplotlib", "typer"}),
    ],
    ids=["import", "help of a command", "help", "load_gpu"],
)
def test_start_imports_nothing_heavy(code, light):
    script = f"{code}\nimport sys\nprint(*({light!r} & sys.modules.keys()), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr.strip()) == (0, "")


# --- public API ---


def test_every_public_name_can_be_had():
    for name in sparsesim.__all__:
        assert getattr(sparsesim, name) is not None
    assert set(sparsesim.__all__) <= set(dir(sparsesim))
    assert set(sparsesim._HOMES) | {"__version__"} == set(sparsesim.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = sparsesim.nothing


def test_a_loaded_gpu_is_as_good_as_its_name():
    spec = sparsesim.load_gpu("rtx4090")
    by_name = sparsesim.simulate_gemm("rtx4090", 256, 256, 256)
    assert sparsesim.simulate_gemm(spec, 256, 256, 256).to_dict() == by_name.to_dict()


def test_workloads_through_the_api():
    ops = [
        sparsesim.Gemm("a", 256, 64, 256, pattern="2:4"),
        sparsesim.Gemm("b", 256, 64, 512, pattern="2:4", count=2),
    ]
    seen = []
    result = sparsesim.simulate_workload("l4", ops, progress=lambda done, total, name: seen.append(done))
    assert seen == [1, 2]
    assert result.launches == 3
    explained = sparsesim.explain_workload("l4", ops)
    assert sum(explained.shares.values()) == pytest.approx(explained.gap, abs=1e-9)
    with pytest.raises(sparsesim.UserError, match="tokens: expected nothing"):
        sparsesim.simulate_workload("l4", ops, tokens=8)


def test_explain_gemm_through_the_api():
    result = sparsesim.explain_gemm("l4", 256, 64, 256)
    assert sum(result.shares.values()) == pytest.approx(result.gap, abs=1e-9)


def test_validate_files_through_the_api(folder):
    seen = []
    files = [folder / "measured.csv"]
    result = sparsesim.validate_files(files, progress=lambda done, total: seen.append((done, total)))
    assert len(result.predictions) == 3
    assert seen[-1] == (4, 4)
    with pytest.raises(sparsesim.UserError, match="at least one CSV file"):
        sparsesim.validate_files([])


def test_help_says_what_a_timing_and_the_explorers_gpu_are(run):
    assert "power limit has settled" in " ".join(run("gemm", "--help")[1].replace("│", " ").split())
    shown = " ".join(run("explore", "--help")[1].replace("│", " ").split())
    assert "GPU to begin with: packaged" in shown
    assert "path to a .toml" not in shown
