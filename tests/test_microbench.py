"""Micro-benchmarks without a GPU: the sources compile for each architecture, and readings become a hardware file."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess

import pytest

from sparsesim.__main__ import main
from sparsesim.errors import UserError
from sparsesim.hardware import load_gpu
from sparsesim.hardware.audit import audit, findings
from sparsesim.kernels.datapath import mma_interval
from sparsesim.microbench import PROGRAMS, compile_program, fragment_of, run_programs
from sparsesim.microbench.programs import SOURCES, architecture, find_compiler, parse_readings

A100 = {
    "device": "NVIDIA A100 80GB PCIe", "compute_capability": "8.0", "sms": 108, "l2_bytes": 41943040,
    "cuda_driver": 13000, "cuda_runtime": 13000,
}  # fmt: skip
#: what an A100 would print: intervals of SUN's table, the rest invented
READINGS = {
    "mma.interval.f16_f32.k16": (8.06, "clk"), "mma.latency.f16_f32.k16": (24.7, "clk"),
    "mma_sp.interval.f16_f32.k32": (8.3, "clk"), "mma_sp.interval.f16_f32_small.k16": (6.4, "clk"),
    "mma.interval.i8.k32": (8.05, "clk"), "mma.interval.bf16_f32.k16": (8.06, "clk"),
    "smem.bandwidth": (127.1, "B/clk"), "smem.latency": (29.0, "clk"), "l2.bandwidth": (4800.0, "B/clk"),
    "l2.bandwidth_s": (6.5e12, "B/s"), "l2.latency.p10": (205.0, "clk"), "l2.latency.p50": (260.0, "clk"),
    "l2.latency.p90": (420.0, "clk"), "dram.bandwidth_s": (1.76e12, "B/s"), "dram.bandwidth": (1250.0, "B/clk"),
    "dram.latency.p50": (620.0, "clk"), "dram.latency.clock": (1.41, "GHz"),
    "launch.stream_interval": (2300.0, "ns"), "launch.graph_interval": (1300.0, "ns"),
    "launch.event_pair": (5200.0, "ns"), "launch.host_call": (2100.0, "ns"), "clock.light": (1410.0, "MHz"),
    "clock.tensor": (1230.0, "MHz"), "clock.tensor_sparse": (1180.0, "MHz"),
}  # fmt: skip


def printed(board=A100, readings=READINGS, only=None):
    lines = [json.dumps(board)]
    lines += [
        json.dumps({"name": name, "value": value, "unit": unit})
        for name, (value, unit) in readings.items()
        if only is None or name.startswith(only)
    ]
    return "\n".join(lines) + "\n"


def execute(name, arguments, timeout_s):
    only = {"mma": "mma", "memory": ("smem", "l2", "dram"), "launch": "launch", "clock": "clock"}[name]
    return printed(only=only)


@pytest.fixture
def nvcc():
    try:
        return find_compiler()
    except UserError:
        pytest.skip("needs nvcc")


@pytest.mark.parametrize(
    ("program", "capability"),
    [("mma", "8.0"), ("mma", "8.9"), ("mma", "9.0"), ("mma", "12.0"), ("wgmma", "9.0"), ("memory", "8.0"),
     ("memory", "9.0"), ("launch", "8.0"), ("clock", "8.9")],
)  # fmt: skip
def test_programs_compile(nvcc, tmp_path, program, capability):
    compile_program(program, capability, tmp_path / "out", nvcc, ["-cubin"])
    assert (tmp_path / "out").stat().st_size > 1000


def test_the_instructions_that_are_timed_are_in_the_code(nvcc, tmp_path):
    compile_program("mma", "8.9", tmp_path / "mma.ptx", nvcc, ["-ptx"])
    text = (tmp_path / "mma.ptx").read_text(encoding="utf-8")
    shapes = set(re.findall(r"mma\.(?:sp::ordered_metadata\.)?sync\.aligned\.m16n8k\d+\.row\.col\.[\w.]+", text))
    assert len(shapes) == 13  # six types dense and sparse, and the small sparse one
    assert sum(".sp::" in shape for shape in shapes) == 7
    compile_program("wgmma", "9.0", tmp_path / "wgmma.ptx", nvcc, ["-ptx"])
    text = (tmp_path / "wgmma.ptx").read_text(encoding="utf-8")
    for name in ("mma_async.sync.aligned.m64n256k16", "mma_async.sp.sync.aligned.m64n256k32"):
        count = text.count(f"wgmma.{name}.f32.f16.f16")
        assert count > 0
        assert count % 8 == 0  # a chain of eight, however often the loop round it is unrolled


def test_the_compiler_s_first_error_is_the_error(nvcc, tmp_path, monkeypatch):
    (tmp_path / "mma.cu").write_text("#error no such luck\n", encoding="utf-8")
    monkeypatch.setattr("sparsesim.microbench.programs.SOURCES", tmp_path)
    with pytest.raises(UserError, match=r"mma\.cu: .*no such luck"):
        compile_program("mma", "8.0", tmp_path / "out", nvcc, ["-cubin"])


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="needs a machine without an NVIDIA driver")
def test_a_program_without_a_gpu_fails_in_one_line(nvcc, tmp_path):
    compile_program("launch", "8.0", tmp_path / "launch", nvcc)
    done = subprocess.run([tmp_path / "launch"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (3, "", 1)


def test_every_source_is_a_program():
    assert {path.stem for path in SOURCES.glob("*.cu")} == set(PROGRAMS)
    assert architecture("9.0") == "sm_90a"
    assert architecture("12.0") == "sm_120"


# --- readings ---


def test_readings_become_a_hardware_file(tmp_path):
    gpu = load_gpu("a100_pcie_80gb")
    fragment = fragment_of(run_programs("8.0", execute=execute), gpu, "a100_pcie_80gb", "2026-03-01")
    path = tmp_path / "mine.toml"
    fragment.write(path)
    mine = load_gpu(path)
    assert mine.tensor.dense_issue_ratio == pytest.approx(8.06 / 8)
    assert mine.tensor.sparse_issue_ratio == pytest.approx(8.3 / 8)
    assert mine.tensor.sparse_min_interval == pytest.approx(6.4)
    assert mma_interval(mine, "f16", "f32", 16) == pytest.approx(8.06)
    assert mine.tensor.macs_per_clk == gpu.tensor.macs_per_clk  # near the data sheet's: no rates of their own
    assert mine.smem.bytes_per_clk == pytest.approx(127.1)
    assert (mine.l2.latency_near, mine.l2.latency_far) == (205.0, 420.0)
    assert mine.dram.achieved_fraction == pytest.approx(1.76e12 / gpu.dram.bytes_per_s, rel=1e-5)
    assert mine.dram.latency == pytest.approx((620 - 260) / 1.41e9, rel=1e-5)
    ends = gpu.launch.ramp + gpu.launch.drain
    assert mine.launch.stream_gap == pytest.approx(max(2.3e-6 - ends, 0), rel=1e-5)
    assert mine.launch.graph_gap == pytest.approx(max(1.3e-6 - ends, 0), rel=1e-5)
    assert mine.clock.max == pytest.approx(1410e6)
    assert findings(mine) == findings(gpu)
    rows = {row.path: row for row in audit(mine)}
    assert all(rows[value.path].status == "measured" for value in fragment.values)
    assert "NVIDIA A100 80GB PCIe, 2026-03-01" in rows["smem.latency"].source
    assert "clock.tensor = 1230 MHz" in path.read_text(encoding="utf-8")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine.toml"]


def test_a_rate_far_from_the_description_is_a_rate_of_its_own(tmp_path):
    gpu = load_gpu("a100_pcie_80gb")
    slow = {**READINGS, "mma.interval.f16_f32.k16": (16.2, "clk"), "mma_sp.interval.f16_f32.k32": (16.4, "clk")}
    fragment = fragment_of(parse_readings("all", printed(readings=slow)), gpu, gpu.name, "d")
    fragment.write(tmp_path / "x.toml")
    mine = load_gpu(tmp_path / "x.toml")
    assert mine.tensor.macs_per_clk["f16_f32"] == pytest.approx(4 * 2048 / 16.2, abs=0.1)
    assert mma_interval(mine, "f16", "f32", 16) == pytest.approx(16.2, rel=1e-3)


def test_no_floor_where_half_the_depth_takes_half_the_time():
    gpu = load_gpu("a100_pcie_80gb")
    free = {**READINGS, "mma_sp.interval.f16_f32_small.k16": (4.2, "clk")}
    values = {v.path: v.value for v in fragment_of(parse_readings("a", printed(readings=free)), gpu, "x", "d").values}
    assert values["tensor.sparse_min_interval"] == 0.0


def test_hopper_gets_its_legacy_rates_and_wgmma(tmp_path):
    gpu = load_gpu("h100_pcie")
    board = {**A100, "device": "NVIDIA H100 PCIe", "compute_capability": "9.0", "sms": 114}
    found = {
        "mma.interval.f16_f32.k16": (6.36, "clk"), "mma_sp.interval.f16_f32.k32": (8.96, "clk"),
        "wgmma.interval.f16_f32.n256.k16": (128.6, "clk"), "wgmma_sp.interval.f16_f32.n256.k32": (144.2, "clk"),
        "l2.latency.p10": (250.0, "clk"), "l2.latency.p50": (300.0, "clk"), "l2.latency.p90": (420.0, "clk"),
    }  # fmt: skip
    fragment = fragment_of(parse_readings("a", printed(board, found)), gpu, "h100_pcie", "d")
    fragment.write(tmp_path / "x.toml")
    mine = load_gpu(tmp_path / "x.toml")
    assert mine.tensor.legacy_macs_per_clk["f16_f32"] == pytest.approx(8192 / 6.36, abs=0.1)
    assert mine.tensor.legacy_sparse_gain == pytest.approx(2 * 6.36 / 8.96, rel=1e-4)
    assert mine.tensor.dense_issue_ratio == pytest.approx(128.6 / 128, rel=1e-5)
    assert mine.tensor.macs_per_clk == gpu.tensor.macs_per_clk
    assert "wgmma_sp.interval.f16_f32.n256.k32 = 144.2 clk" in (tmp_path / "x.toml").read_text(encoding="utf-8")


def test_readings_of_another_board_are_refused():
    with pytest.raises(UserError, match="108 SMs"):
        fragment_of(parse_readings("a", printed()), load_gpu("rtx4090"), "rtx4090", "d")

    def mixed(name, arguments, timeout_s):
        board = {**A100, "device": "another"} if name == "clock" else A100
        return printed(board, READINGS, only=name)

    with pytest.raises(UserError, match="clock: expected readings of NVIDIA A100"):
        run_programs("8.0", execute=mixed)


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, -1.0])
def test_a_reading_that_is_none(value):
    text = printed(readings={"smem.latency": (value, "clk")})
    with pytest.raises(UserError, match="readings above 0"):
        parse_readings("memory", text)


@pytest.mark.parametrize("text", ["", "oops\n", "[1]\n", '{"name": "x", "value": 1, "unit": "s"}\n'])
def test_output_that_is_none(text):
    with pytest.raises(UserError, match="memory: expected"):
        parse_readings("memory", text)


def test_wgmma_runs_on_hopper_only():
    ran = []

    def note(name, arguments, timeout_s):
        ran.append((name, tuple(arguments)))
        return printed(only=name)

    run_programs("8.0", 1, 2.5, execute=note)
    assert ran == [("mma", ("1",)), ("memory", ("1",)), ("launch", ("1",)), ("clock", ("1", "2.5"))]


# --- the command ---


def test_the_command_writes_the_file(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "sparsesim.microbench.run_programs",
        lambda capability, device, seconds, progress: run_programs(capability, device, seconds, execute=execute),
    )
    assert main(["microbench", "--gpu", "a100_pcie_80gb", "--out", "mine.toml"]) == 0
    out = capsys.readouterr().out
    assert "tensor.dense_issue_ratio" in out
    assert "clock.tensor = 1230 MHz" in out
    assert main(["gemm", "--gpu", "mine.toml", "-m", "256", "-n", "256", "-k", "256"]) == 0
    capsys.readouterr()
    assert main(["microbench", "--gpu", "a100_pcie_80gb", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["readings"]["clock.tensor"] == {"value": 1230.0, "unit": "MHz"}


def test_without_a_gpu_one_line(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert main(["microbench", "--gpu", "rtx4090", "--out", "x.toml"]) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert "no GPU to measure on: nvidia-smi is not installed" in err
    assert not list(tmp_path.iterdir())


def test_a_missing_compiler_is_named(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setenv("CUDA_HOME", "/nowhere")
    monkeypatch.setattr("pathlib.Path.is_file", lambda self: False)
    with pytest.raises(UserError, match="nvcc: expected the CUDA toolkit"):
        find_compiler()


def test_a_program_that_fails_or_is_missing_is_one_error(tmp_path):
    from sparsesim.microbench.programs import _output

    with pytest.raises(UserError, match="memory: expected readings, found an error: out of luck"):
        _output("memory", ["sh", "-c", "echo first >&2; echo out of luck >&2; exit 3"], 10)
    with pytest.raises(UserError, match=r"within 0\.2 s"):
        _output("memory", ["sleep", "5"], 0.2)
    with pytest.raises(UserError, match="a program that starts"):
        _output("memory", [str(tmp_path / "none")], 1)


def test_readings_below_what_the_schema_allows_say_so(tmp_path):
    gpu = load_gpu("a100_pcie_80gb")
    odd = {
        **READINGS, "mma.interval.f16_f32.k16": (7.97, "clk"), "launch.graph_interval": (100.0, "ns"),
        "clock.light": (500.0, "MHz"),
    }  # fmt: skip
    fragment = fragment_of(parse_readings("a", printed(readings=odd)), gpu, gpu.name, "d")
    values = {value.path: value for value in fragment.values}
    assert values["tensor.dense_issue_ratio"].value == 1.0
    assert "came out" in values["tensor.dense_issue_ratio"].note
    assert (values["launch.graph_gap"].value, "came out" in values["launch.graph_gap"].note) == (0.0, True)
    assert "clock.max" not in values  # the board was held back
    assert "clock.light = 500 MHz" in fragment.text()
    fragment.write(tmp_path / "x.toml")
    load_gpu(tmp_path / "x.toml")
