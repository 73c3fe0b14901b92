"""Edited hardware: implausible files are refused in one line, plausible ones behave as hardware would."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sparsesim.api import simulate_gemm
from sparsesim.errors import UserError
from sparsesim.hardware import load_gpu, override
from sparsesim.lowering import NoKernelError
from sparsesim.protocol import Protocol
from sparsesim.simulator import Simulator
from sparsesim.workload import Gemm

LEAF = '{{ value = {}, unit = "{}", source = "mine", status = "assumed", note = "edited" }}'


def variant(tmp_path, text: str, base: str = "a100_pcie_80gb", encoding: str = "utf-8"):
    path = tmp_path / "mine.toml"
    path.write_text(f'extends = "{base}"\n{text}\n', encoding=encoding)
    return path


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('compute_capability = "sm_80"', "compute_capability"),
        (f"[dram]\nbytes_per_s = {LEAF.format(1, 'B/s')}", "dram.bytes_per_s"),
        (f"[dram]\nlatency = {LEAF.format(1e6, 's')}", "dram.latency"),
        (f"[clock]\nboost = {LEAF.format(1, 'Hz')}", "clock.boost"),
        (f"[sm]\ncount = {LEAF.format(10**9, '-')}", "sm.count"),
        (f"[launch]\ncta_rate = {LEAF.format(1e-15, 'CTA/clk')}", "launch.cta_rate"),
        (f"[pipeline]\nepilogue = {LEAF.format(1e30, 'clk')}", "pipeline.epilogue"),
        (f"[metadata]\ngroups_per_clk = {LEAF.format(1e-9, 'group/clk')}", "metadata.groups_per_clk"),
        ("[tensor.native_patterns]\nf16 = " + LEAF.format('["5:4"]', "-"), "tensor.native_patterns.f16"),
        ("[tensor.native_patterns]\nf16 = " + LEAF.format('["dense"]', "-"), "tensor.native_patterns.f16"),
        ("[tensor.native_patterns]\ne4m3 = " + LEAF.format('["2:4"]', "-"), "tensor.native_patterns.e4m3"),
        ("[tensor.macs_per_clk]\ne2m1 = " + LEAF.format(4096, "MAC/clk"), "power.mac.e2m1"),
    ],
)
def test_implausible_files_are_refused(tmp_path, text, names):
    with pytest.raises(UserError) as err:
        load_gpu(variant(tmp_path, text))
    assert len(err.value.problems) == 1
    assert names in err.value.problems[0]


def test_a_byte_order_mark_is_no_error(tmp_path):
    assert load_gpu(variant(tmp_path, "", encoding="utf-8-sig")).sm.count == 108


def test_sparse_kernels_that_do_not_fit_are_a_fallback(tmp_path):
    text = f"[smem]\nbytes = {LEAF.format(100, 'KiB')}\nmax_per_cta = {LEAF.format(99, 'KiB')}"
    gpu = load_gpu(variant(tmp_path, text, "h100_pcie"))
    result = Simulator(gpu).gemm(Gemm("op", 1024, 1024, 1024, pattern="2:4"))
    assert (result.path, result.reason, result.speedup) == ("dense", "kernel-unavailable", 1.0)


def test_without_clusters_nothing_is_multicast():
    gpu = load_gpu("h100_pcie")
    op = Gemm("op", 4096, 4096, 1024, pattern="2:4")
    alone = Simulator(override(gpu, {"cluster.multicast": False})).gemm(op)
    shared = Simulator(gpu).gemm(op)
    assert alone.launch.kernel.cluster_m * alone.launch.kernel.cluster_n == 1
    assert alone.launch.counters["l2_read_bytes"] > 1.2 * shared.launch.counters["l2_read_bytes"]


def test_a_heuristic_knows_the_board_it_was_built_for():
    gpu = load_gpu("a100_pcie_80gb")
    faster = override(gpu, {"l2.bytes_per_clk": 1.1 * gpu.l2.bytes_per_clk})
    assert faster.tuned_for.l2 == gpu.l2
    for op in (Gemm("op", 2048, 128, 4096, dtype="i8"), Gemm("op", 768, 2048, 64, dtype="tf32")):
        before, after = (Simulator(each).gemm(op) for each in (gpu, faster))
        assert before.dense_launch.kernel == after.dense_launch.kernel
        assert after.time_us <= before.time_us * 1.01
    fewer = override(gpu, {"sm.count": 54})
    assert fewer.tuned_for.sm.count == 54


@pytest.mark.parametrize("mhz", [1, 9000])
def test_a_clock_that_the_part_does_not_have(mhz):
    with pytest.raises(UserError, match="clock: expected locked"):
        Simulator(load_gpu("rtx4090")).gemm(Gemm("op", 256, 256, 256), Protocol(locked_hz=mhz * 1e6))


def test_split_k_writes_the_output_and_reads_its_partials():
    launch = Simulator(load_gpu("rtx4090")).gemm(Gemm("op", 64, 64, 8192, pattern="2:4")).launch
    assert launch.kernel.split_k > 1
    counters = launch.counters
    assert counters["l2_write_bytes"] == 64 * 64 * 2
    assert counters["l2_read_bytes"] == counters["smem_fill_bytes"] + counters["partial_bytes"]


GEMM = [sys.executable, "-m", "sparsesim", "gemm", "--gpu", "a100_pcie_80gb", "-m", "64", "-n", "64", "-k", "64"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_one_line():
    with open("/dev/full", "w") as full:
        done = subprocess.run([*GEMM, "--json", "-"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_a_closed_or_narrow_output_is_no_crash():
    closed = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *GEMM], stderr=subprocess.PIPE, text=True, check=False)
    assert (closed.returncode, closed.stderr) == (0, "")
    narrow = subprocess.run(
        GEMM, env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, text=True, check=False
    )
    assert narrow.returncode == 0, narrow.stderr


def test_the_dense_baseline_can_be_searched() -> None:
    heuristic = simulate_gemm("h100_pcie", 5120, 4096, 256, dtype="i8")
    searched = simulate_gemm("h100_pcie", 5120, 4096, 256, dtype="i8", baseline="search")
    assert (heuristic.baseline, searched.baseline) == ("heuristic", "search")
    assert searched.dense_time_us <= heuristic.dense_time_us * 1.001
    with pytest.raises(UserError, match="baseline: expected one of heuristic, search, found 'serch'"):
        simulate_gemm("h100_pcie", 512, 512, 512, baseline="serch")


@pytest.mark.parametrize(("gpu", "works"), [("hypothetical_nm", True), ("t4", False), ("v100_sxm2", False)])
def test_bf16_runs_where_the_file_says_so(gpu: str, works: bool) -> None:
    if works:
        assert simulate_gemm(gpu, 512, 512, 512, dtype="bf16").path == "sparse"
        return
    with pytest.raises(NoKernelError, match="bf16"):
        simulate_gemm(gpu, 512, 512, 512, dtype="bf16")
