"""The commands that measure: without a GPU one line, with one (a fake) the files that the others read."""

from __future__ import annotations

import importlib.util
import json
import sys

import pytest
from fake_gpu import FakeGpu

from sparsesim import backends
from sparsesim.__main__ import main
from sparsesim.hardware import load_gpu
from sparsesim.measure import NoDeviceError
from sparsesim.measured import read_measured
from sparsesim.simulator import Simulator
from sparsesim.workload import Gemm

QUICK = ("--warmup-seconds", "0.01", "--most-seconds", "0.2")


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def call(*words):
        status = main([str(word) for word in words])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


@pytest.fixture
def gpu(monkeypatch):
    """A fake A100 PCIe whose kernels take what the model says, and 5 % more."""
    model = Simulator(load_gpu("a100_pcie_80gb"))

    def seconds(case, library):
        result = model.gemm(Gemm("x", case.m, case.n, case.k, dtype=case.dtype, pattern="2:4"))
        return 1.05e-6 * (result.time_us if case.is_sparse else result.dense_time_us)

    fake = FakeGpu(seconds=seconds, noise=0.002)
    monkeypatch.setattr(backends, "open_device", lambda index: fake)
    return fake


@pytest.mark.parametrize("words", [("measure", "-m", "256"), ("validate", "--live")], ids=lambda w: w[0])
def test_without_pytorch_one_line_says_how_to_get_it(run, monkeypatch, tmp_path, words):
    real = importlib.util.find_spec
    monkeypatch.setattr("sparsesim.backends.find.find_spec", lambda name: None if name == "torch" else real(name))
    monkeypatch.setattr("shutil.which", lambda name: None)
    status, out, err = run(*words)
    assert (status, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert "no GPU" in err
    assert "sparsesim[cuda]" in err or "nvcc" in err
    assert not list(tmp_path.iterdir())


def test_pytorch_without_cuda_is_named(monkeypatch):
    class Torch:
        __version__ = "2.13.0+cpu"

        class version:
            cuda = None

    monkeypatch.setitem(sys.modules, "torch", Torch)
    monkeypatch.setattr("sparsesim.backends.find.find_spec", lambda name: object())
    with pytest.raises(NoDeviceError, match="built without CUDA"):
        backends.open_device()


def test_a_wrong_option_is_found_before_the_gpu_is_opened(run):
    for words, expected in (
        (("-m", "256", "--timing", "kernel"), "--timing"),
        (("-m", "256", "--l2", "cold"), "--l2"),
        (("-m", "2.5"), "-m"),
        (("-m", "256", "--library", "cusparse"), "cusparselt"),
        ((), "-m, -n, -k"),
        (("nothing.csv",), "nothing.csv"),
    ):
        status, _, err = run("measure", *words)
        assert status == 2
        assert expected in err
        assert "no GPU" not in err


def test_measure_writes_what_validate_and_calibrate_read(run, gpu, tmp_path):
    status, out, err = run(
        "measure", "-m", "512,640,768,1024,1280,1536", "--dtype", "f16,bf16", "--out", "mine.csv", *QUICK
    )
    assert (status, err) == (0, "")
    assert "24 measured" in out
    rows = read_measured(tmp_path / "mine.csv")
    assert len(rows) == 24
    assert {row.gpu for row in rows} == {"a100_pcie_80gb"}
    status, out, _ = run("validate", "mine.csv", "--min-us", "0", "--json", "-")
    assert status == 0
    groups = {(g["dtype"], g["kind"]): g for g in json.loads(out)["groups"]}
    assert groups["f16", "speedup"]["rows"] == 6
    status, out, err = run(
        "calibrate", "mine.csv", "--gpu", "a100_pcie_80gb", "--parameter", "power.idle", "--rounds", "1", "--rows", "8",
        "--jobs", "1", "--out", "fit.toml",
    )  # fmt: skip
    assert (status, err) == (0, "")
    assert load_gpu(tmp_path / "fit.toml").sm.count == 108
    status, out, err = run("measure", "-m", "512", "--out", "mine.csv")
    assert status == 2
    assert "finished session" in err


def test_measure_takes_the_rows_of_a_file_again(run, gpu, tmp_path):
    run("measure", "-m", "512", "--out", "first.csv", *QUICK)
    status, _, _ = run("measure", "first.csv", "--out", "second.csv", "--timing", "graph", "--l2", "rotating", *QUICK)
    assert status == 0
    first, second = read_measured(tmp_path / "first.csv"), read_measured(tmp_path / "second.csv")
    assert [(r.m, r.pattern, r.set) for r in first] == [(r.m, r.pattern, r.set) for r in second]
    assert {(r.timing, r.l2) for r in second} == {("graph", "rotating")}


def test_measure_takes_a_workload(run, gpu, tmp_path):
    status, _, _ = run("measure", "llama-3.2-1b", "--phase", "decode", "--tokens", "16", "--out", "w.csv", *QUICK)
    assert status == 0
    assert {row.set for row in read_measured(tmp_path / "w.csv")} == {"llama-3.2-1b"}


def test_validate_live_ends_in_the_page_of_this_board(run, gpu, tmp_path):
    gpu.reasons = lambda now: frozenset({"thermal"})
    gpu.unsupported = frozenset({"cusparselt: 512×512×512 bf16 2:4"})
    (tmp_path / "shapes.csv").write_text(
        "name,m,n,k,dtype,pattern\na,512,512,512,bf16,2:4\nb,1024,1024,1024,bf16,2:4\n", encoding="utf-8"
    )
    status, out, err = run("validate", "--live", "shapes.csv", "--out", "live.csv", "--min-us", "0")
    assert (status, err) == (0, "")
    assert "wrote live.md" in out
    page = (tmp_path / "live.md").read_text(encoding="utf-8")
    assert "NVIDIA A100 80GB PCIe" in page
    assert "| bf16 | dense | 2 |" in page
    assert "thermal" in page
    assert "no kernel for this shape" in page
    assert "timing stream, L2 warm" in page


def test_a_lost_device_is_status_2_and_says_how_to_go_on(run, gpu, tmp_path):
    gpu.lost_after = 300
    status, _, err = run("measure", "-m", "256,512,1024", "--out", "x.csv", *QUICK)
    assert status == 2
    assert "unspecified launch failure" in err
    assert "x.csv.part" in err
    assert not (tmp_path / "x.csv").exists()


def test_a_wrong_result_is_status_1(run, gpu):
    gpu.wrong = {"cusparselt: 256×256×256 f16 2:4": 0.9}
    status, out, _ = run("measure", "-m", "256", "--out", "x.csv", *QUICK)
    assert status == 1
    assert "wrong result" in out


def test_a_hardware_file_of_one_s_own_stands_for_its_gpu(run, gpu, tmp_path):
    run("measure", "-m", "1024", "--out", "rows.csv", *QUICK)
    (tmp_path / "slow.toml").write_text(
        'extends = "a100_pcie_80gb"\n[launch]\nhost_call = { value = 500, unit = "us", source = "made up", '
        'status = "assumed", note = "slow" }\n',
        encoding="utf-8",
    )
    predicted = []
    for words in ((), ("--gpu", "slow.toml")):
        status, out, _ = run("validate", "rows.csv", *words, "--json", "-")
        assert status == 0
        predicted.append(json.loads(out)["rows"][0]["predicted_us"])
    assert predicted[0] < 500 <= predicted[1]
    assert run("validate", "--live", "rows.csv", "--gpu", "slow.toml", "--out", "again.csv")[0] == 0
    status, _, err = run("validate", "--live", "rows.csv", "--gpu", "rtx4090", "--out", "other.csv")
    assert status == 2
    assert "108 SMs" in err
