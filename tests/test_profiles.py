"""Profiles that users hold: kernel names, the readers on samples in each tool's format, and the comparison."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from sparsesim.__main__ import main
from sparsesim.errors import UserError
from sparsesim.hardware import load_gpu
from sparsesim.profile_check import check_kernels, read_profiles, summary
from sparsesim.profiles import FORMATS, detect_profile, gemms_of, parse_kernel_name, read_profile, shape_of_text
from sparsesim.profiles.record import KernelShape
from sparsesim.workload import load_workload

SAMPLES = Path(__file__).parent / "profiles"
A100 = "a100_pcie_80gb"

#: name → library, path, tile, stages, dtype, family
NAMES = {
    "nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNT": ("cuBLAS", "dense", (128, 256, 64), 4, "f16", "sm90"),
    "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNN": ("cuBLAS", "dense", (192, 192, 64), 4, "bf16", "sm90"),
    "nvjet_qqtst_128x128_128x6_1x2_h_bz_coopA_TNT": ("cuBLAS", "dense", (128, 128, 128), 6, "e4m3", "sm90"),
    "nvjet_sm100_tst_256x128_64x6_2x1_2cta_v_bz_TNT": ("cuBLAS", "dense", (256, 128, 64), 6, "bf16", "sm100"),
    "sm80_xmma_sparse_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x64_stage3_warpsize2x2x1_sptensor16x8x32_kernel": (
        "cuSPARSELt", "sparse", (128, 128, 64), 3, "f16", "sm80",
    ),
    "sm80_xmma_sparse_gemm_i8i8_i8i32_f32_tn_n_tilesize128x64x128_stage4_warpsize2x2x1_sptensor16x8x64_kernel": (
        "cuSPARSELt", "sparse", (128, 64, 128), 4, "i8", "sm80",
    ),
    "sm80_xmma_gemm_i8i32_i8i32_i32_tn_n_tilesize256x128x64_stage3_warpsize4x2x1_tensor16x8x32_kernel": (
        "cuBLAS", "dense", (256, 128, 64), 3, "i8", "sm80",
    ),
    "sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize64x128x128_warpgroupsize1x1x1_execute_segment_k_off_kernel"
    "__5x_cublas": ("cuBLAS", "dense", (64, 128, 128), None, "e4m3", "sm90"),
    "sm80_xmma_gemm_tf32f32_tf32f32_f32_tn_n_tilesize128x128x16_stage4_warpsize2x2x1_tensor16x8x8_kernel": (
        "cuBLAS", "dense", (128, 128, 16), 4, "tf32", "sm80",
    ),
    "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn": (
        "cuBLAS", "dense", (128, 128, 32), 5, "f16", "sm80",
    ),
    "ampere_bf16_s16816gemm_bf16_64x64_sliced1x2_ldg8_f2f_stages_64x5_tn": (
        "cuBLAS", "dense", (64, 64, 64), 5, "bf16", "sm80",
    ),
    "ampere_h16816gemm_256x128_ldg8_stages_32x3_tn": ("cuBLAS", "dense", (256, 128, 32), 3, "f16", "sm80"),
    "turing_fp16_s1688gemm_fp16_256x64_ldg8_f2f_nn": ("cuBLAS", "dense", (256, 64, None), None, "f16", "sm75"),
    "volta_fp16_s884gemm_fp16_128x64_ldg8_f2f_tn": ("cuBLAS", "dense", (128, 64, None), None, "f16", "sm70"),
    "cutlass_80_tensorop_f16_s16816gemm_f16_256x128_32x3_nn_align8": (
        "CUTLASS", "dense", (256, 128, 32), 3, "f16", "sm80",
    ),
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x64_64x3_tn_align8>(T1::Params)": (
        "CUTLASS", "dense", (128, 64, 64), 3, "bf16", "sm80",
    ),
    "cutlass_tensorop_f16_s16832spgemm_f16_128x128_64x3_tn_align8": (
        "CUTLASS", "sparse", (128, 128, 64), 3, "f16", "sm80",
    ),
    "cutlass_tensorop_s16864spgemm_e4m3_128x128_128x3_tn_align16": (
        "CUTLASS", "sparse", (128, 128, 128), 3, "e4m3", "sm80",
    ),
    "cutlass3x_sm90_tensorop_s64x128x16gemm_f16_f16_f32_f16_f16_128x128x64_2x1x1_0_tnn_align8_warpspecialized"
    "_cooperative_epi_tma": ("CUTLASS", "dense", (128, 128, 64), None, "f16", "sm90"),
    "cutlass3x_sm90_sptensorop_s64x256x32spgemm_e4m3_e4m3_f32_bf16_bf16_128x256x128_1x2x1_0_tnt_align32": (
        "CUTLASS", "sparse", (128, 256, 128), None, "e4m3", "sm90",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_kernel_names(name):
    parsed = parse_kernel_name(name)
    assert parsed is not None
    assert (parsed.library, parsed.path, parsed.tile, parsed.stages, parsed.dtype, parsed.family) == NAMES[name]
    assert parsed.role == "gemm"


def test_what_else_a_name_tells():
    jet = parse_kernel_name("nvjet_hsh_64x8_64x16_4x1_v_bz_splitK_TNT")
    assert (jet.cluster, jet.split_k, jet.layout) == ((4, 1), True, "tn")
    xmma = parse_kernel_name(next(name for name in NAMES if "sptensor16x8x64" in name))
    assert (xmma.instruction, xmma.layout) == ((16, 8, 64), "tn")
    assert parse_kernel_name("ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn").instruction == (16, 8, 16)
    assert parse_kernel_name("cutlass_tensorop_f16_s16832spgemm_f16_128x128_64x3_tn_align8").instruction == (16, 8, 32)
    assert parse_kernel_name("void cublasLt::splitKreduce_kernel<32, 16, int, float>(P)").role == "reduce"
    assert parse_kernel_name("void gemv2T_kernel_val<int, int, __half, __half, float>(P)").role == "gemv"


@pytest.mark.parametrize(
    "name",
    ["", "void at::native::vectorized_elementwise_kernel<4>(int)", "Memcpy HtoD", "flash_fwd_kernel", "nvjet_", "gemm"],
)
def test_other_kernels_are_none(name):
    assert parse_kernel_name(name) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gemm m=4096 n=512 k=1024", KernelShape(4096, 512, 1024)),
        ("k:64, m:8, n:16, dtype=bf16, pattern=2:4, batch=3", KernelShape(8, 16, 64, 3, "bf16", "2:4")),
        ("layer.0/qkv 6144x2048x4096 f16 2:4", KernelShape(6144, 2048, 4096, 1, "f16", "2:4")),
        ("6144×2048×4096", KernelShape(6144, 2048, 4096)),
        ("m=0 n=1 k=1", None),
        ("m=a n=1 k=1", None),
        ("conv 3x3", None),
        ("step 7", None),
    ],
)
def test_shapes_in_text(text, expected):
    assert shape_of_text(text) == expected


# --- the readers ---


@pytest.fixture
def sqlite_export(tmp_path):
    path = tmp_path / "report.sqlite"
    with closing(sqlite3.connect(path)) as base:
        base.executescript((SAMPLES / "nsys.sql").read_text(encoding="utf-8"))
        base.commit()
    return path


@pytest.mark.parametrize(
    ("name", "format", "count"),
    [
        ("ncu_details.csv", "nsight-compute", 3),
        ("ncu_raw.csv", "nsight-compute", 1),
        ("nsys_trace.csv", "nsight-systems", 5),
        ("nsys_kern_sum.csv", "nsight-systems", 2),
        ("nsys_nvtx_kern_sum.csv", "nsight-systems", 2),
        ("torch_trace.json", "pytorch-trace", 4),
        ("cutlass_profiler.csv", "cutlass-profiler", 4),
        ("cublaslt.log", "library-log", 2),
        ("cusparselt.log", "library-log", 1),
    ],
)
def test_samples_are_detected_and_read(name, format, count):
    assert detect_profile(SAMPLES / name) == format
    profile = read_profile(SAMPLES / name)
    assert (profile.format, len(profile.kernels)) == (format, count)


def test_nsight_compute_details():
    dense, fill, sparse = read_profile(SAMPLES / "ncu_details.csv").kernels
    assert dense.time_us == pytest.approx(311.42)
    assert dense.clock_hz == pytest.approx(1.06e9)
    assert dense.counters == pytest.approx(
        {"tensor_active": 0.879, "l2_hit_rate": 0.8731, "occupancy": 0.1248, "dram_bytes": 93.16e6}
    )
    assert dense.shape == KernelShape(4096, 2048, 4096, 1, "bf16")
    assert fill.parsed is None
    assert sparse.shape == KernelShape(4096, 2048, 4096, 1, "bf16", "2:4")
    assert sparse.parsed.path == "sparse"
    assert dense.l2 == "cold"


def test_nsight_compute_raw():
    (kernel,) = read_profile(SAMPLES / "ncu_raw.csv").kernels
    assert kernel.time_us == pytest.approx(1982)
    assert kernel.counters["dram_bytes"] == pytest.approx(1.02e9 + 134.6e6)
    assert kernel.counters["tensor_active"] == pytest.approx(0.881)
    assert kernel.clock_hz == pytest.approx(1.59e9)


def test_nsight_systems_trace_adds_the_reduction_and_tells_warm_from_cold():
    profile = read_profile(SAMPLES / "nsys_trace.csv")
    ops = load_workload(SAMPLES / "nsys_shapes.csv").ops
    gemms, skipped = gemms_of(profile, A100, [op for op in ops for _ in range(op.count)])
    assert [(g.row.l2, g.row.time_us) for g in gemms] == [
        ("cold", pytest.approx(160.513)), ("warm", pytest.approx(159.233)), ("cold", pytest.approx(18.432 + 3.712)),
    ]  # fmt: skip
    assert (gemms[2].shape.k, gemms[2].row.dtype, gemms[2].row.timing) == (8192, "f16", "kernel")
    assert skipped == []
    with pytest.raises(UserError, match=r"shapes.*\(3\), found 1"):
        gemms_of(profile, A100, list(ops)[:1])


def test_nsight_systems_summaries():
    (gemm, other) = read_profile(SAMPLES / "nsys_kern_sum.csv").kernels
    assert (gemm.time_us, gemm.calls, other.parsed) == (159.617, 20, None)
    dense, sparse = read_profile(SAMPLES / "nsys_nvtx_kern_sum.csv").kernels
    assert (dense.shape, sparse.shape.pattern) == (KernelShape(4096, 2048, 4096, 1, "f16"), "2:4")


def test_nsight_systems_sqlite_takes_the_innermost_range_of_the_thread(sqlite_export):
    profile = read_profile(sqlite_export)
    assert profile.format == "nsight-systems-sqlite"
    dense, sparse, bare = profile.kernels
    assert dense.shape == KernelShape(4096, 2048, 4096, 1, "f16")
    assert sparse.shape == KernelShape(4096, 2048, 4096, 1, "f16", "2:4")
    assert bare.shape is None
    assert dense.time_us == pytest.approx(159.617)
    assert read_profiles([sqlite_export]).gpus.keys() == {A100}


MM = {"External id": 1, "Input Dims": [[8, 64], [64, 32]], "Input type": ["c10::Half", "c10::Half"]}
KERNEL = {"External id": 1, "est. achieved occupancy %": 50}


def traced(path, kernel=None, op=None):
    """A trace of one product and its kernel, with changed fields (a field that is ... is taken out)."""
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 10, "args": MM},
        {
            "ph": "X",
            "cat": "kernel",
            "name": "ampere_fp16_s16816gemm_fp16_128x64",
            "ts": 3,
            "dur": 12.5,
            "args": KERNEL,
        },
    ]
    for event, changes in zip(events, (op, kernel), strict=True):
        event.update(changes or {})
    events = [{key: value for key, value in event.items() if value is not ...} for event in events]
    path.write_text(json.dumps({"traceEvents": events}))
    return path


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"ts": ...}, "ts: expected a time in microseconds, found None"),
        ({"ts": "3"}, "ts: expected a time in microseconds, found '3'"),
        ({"ts": 10**400}, "ts: expected a time in microseconds, found"),
        ({"dur": ...}, "dur: expected a duration above 0 [µs], found None"),
        ({"dur": True}, "dur: expected a duration above 0 [µs], found True"),
        ({"dur": 0}, "dur: expected a duration above 0 [µs], found 0"),
        ({"dur": float("inf")}, "dur: expected a duration above 0 [µs], found inf"),
        ({"name": None}, "name: expected text, found None"),
    ],
)
def test_a_kernel_of_a_trace_without_its_fields_is_an_error(tmp_path, changes, expected):
    path = traced(tmp_path / "t.json", changes)
    with pytest.raises(UserError) as caught:
        read_profile(path)
    (line,) = caught.value.problems
    assert line.startswith(f"{path}: traceEvents[1].{expected}")


def test_all_kernels_without_their_fields_are_told_up_to_a_limit(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": [{"ph": "X", "cat": "kernel"}] * 20}))
    with pytest.raises(UserError) as caught:
        read_profile(path)
    assert len(caught.value.problems) == 21
    assert caught.value.problems[-1] == f"{path}: and 40 further problems"


@pytest.mark.parametrize("args", [[1], "x", None, {"External id": [1]}, {**KERNEL, "External id": {}}])
def test_a_kernel_whose_operator_is_not_known_has_no_shape(tmp_path, args):
    (kernel,) = read_profile(traced(tmp_path / "t.json", {"args": args})).kernels
    assert kernel.shape is None
    (kernel,) = read_profile(traced(tmp_path / "t.json", op={"args": args})).kernels
    assert kernel.shape is None


@pytest.mark.parametrize("kind", [5, "ab", None, [None, 3]])
def test_a_type_that_is_none_leaves_the_shape(tmp_path, kind):
    (kernel,) = read_profile(traced(tmp_path / "t.json", op={"args": {**MM, "Input type": kind}})).kernels
    assert kernel.shape == KernelShape(32, 8, 64, 1, None, "dense")


@pytest.mark.parametrize("share", ["50", [50], True, 0, None, -1])
def test_an_occupancy_that_is_no_share_is_not_known(tmp_path, share):
    args = {**KERNEL, "est. achieved occupancy %": share}
    (kernel,) = read_profile(traced(tmp_path / "t.json", {"args": args})).kernels
    assert kernel.counters == {}


DIGITS = "9" * 5000
RANGES = (
    "NVTX Range,Style,PID,TID,NVTX Inst,Kern Inst,Total Time (ns),Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),"
    "Kernel Name\n:{},PushPop,1,1,1,1,1000,1000,1000,1000,1000,0,{}\n"
)


@pytest.mark.parametrize("text", [f"m={DIGITS} n=8 k=8", "m=² n=8 k=8", "m=٣ n=8 k=8", "m=0 n=8 k=8"])
def test_a_range_whose_sizes_are_no_plain_numbers_has_no_shape(tmp_path, text):
    path = tmp_path / "n.csv"
    path.write_text(RANGES.format(text, "kernel"))
    assert [kernel.shape for kernel in read_profile(path).kernels] == [None]


@pytest.mark.parametrize("name", [
    f"ampere_fp16_s16816gemm_fp16_{DIGITS}x64_ldg8_f2f_stages_64x3_tn",
    f"nvjet_hsh_128x{DIGITS}_64x4_2x1_v_bz_coopA_TNT",
    f"void cutlass::Kernel<cutlass::gemm::GemmShape<{DIGITS}, 64, 32>>()",
    f"sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x{DIGITS}x64_stage3_warpsize2x2x1_tensor16x8x16_kernel",
])  # fmt: skip
def test_a_kernel_name_with_an_endless_number_is_no_gemm(name):
    assert parse_kernel_name(name) is None


@pytest.mark.parametrize(
    "field", [r"rows=\d+", r"cols=\d+", r"TILE_\d+", r"STAGES_\d+", r"batchCount=\d+", r"numSplitsK=\d+"]
)
@pytest.mark.parametrize("digits", [DIGITS, "²", "٣"])
def test_a_library_log_with_numbers_that_are_none(tmp_path, field, digits):
    log = (SAMPLES / "cublaslt.log").read_text(encoding="utf-8")
    path = tmp_path / "l.log"
    path.write_text(re.sub(field, lambda found: re.sub(r"\d+", digits, found[0]), log), encoding="utf-8")
    if field.startswith(("rows", "cols")):
        with pytest.raises(UserError, match="lines with shapes, found none"):
            read_profile(path)
    else:
        assert all(kernel.shape is not None for kernel in read_profile(path).kernels)


def test_a_packed_trace_is_unpacked_within_reason(tmp_path, monkeypatch):
    plain = traced(tmp_path / "t.json")
    packed = tmp_path / "t.json.gz"
    packed.write_bytes(gzip.compress(b"\xef\xbb\xbf" + plain.read_bytes()))
    assert read_profile(packed).kernels[0].shape == read_profile(plain).kernels[0].shape
    packed.write_bytes(packed.read_bytes()[:-30])
    with pytest.raises(UserError, match="expected a Chrome trace"):
        read_profile(packed, "pytorch-trace")
    monkeypatch.setattr("sparsesim.workload.files.EXPANSION_FREE", 2**20)
    with gzip.open(packed, "wb") as file:
        file.write(b'{"traceEvents": [' + b" " * 2**23)
    with pytest.raises(UserError, match="bytes packed into a file of"):
        read_profile(packed, "pytorch-trace")


def test_pytorch_trace(tmp_path):
    dense, sparse, cutlass, add = read_profile(SAMPLES / "torch_trace.json").kernels
    assert dense.shape == KernelShape(4096, 2048, 4096, 1, "f16", "dense")
    assert sparse.shape == KernelShape(4096, 2048, 4096, 1, "f16", "2:4")
    assert cutlass.shape == sparse.shape
    assert cutlass.parsed.tile == (128, 128, 64)
    assert (add.shape, add.parsed) == (None, None)
    packed = tmp_path / "trace.json.gz"
    packed.write_bytes(gzip.compress((SAMPLES / "torch_trace.json").read_bytes()))
    assert read_profile(packed).kernels[0].shape == dense.shape


def test_cutlass_profiler_leaves_out_what_did_not_run():
    kernels = read_profile(SAMPLES / "cutlass_profiler.csv").kernels
    assert [k.time_us for k in kernels] == pytest.approx([4512, 4771, 2683, 4402])
    assert {k.timing for k in kernels} == {"stream"}
    gemms, _ = gemms_of(read_profile(SAMPLES / "cutlass_profiler.csv"), A100)
    assert "256x128_64x3" in gemms[2].row.library  # the model then runs this tile, too


def test_library_logs():
    wide, split = read_profile(SAMPLES / "cublaslt.log").kernels
    assert wide.shape == KernelShape(4096, 2048, 4096, 1, "bf16", "dense")
    assert (wide.parsed.tile, wide.parsed.stages, wide.time_us) == ((256, 128, 64), 3, None)
    assert (split.shape.k, split.parsed.split_k, split.shape.dtype) == (8192, True, "i8")
    (sparse,) = read_profile(SAMPLES / "cusparselt.log").kernels
    assert sparse.shape == KernelShape(4096, 2048, 4096, 1, "f16", "2:4")


# --- broken files ---


@pytest.mark.parametrize("name", sorted(path.name for path in SAMPLES.glob("*.[cjl]*")))
def test_a_cut_file_is_one_error_or_fewer_kernels(tmp_path, name):
    whole = (SAMPLES / name).read_bytes()
    format = detect_profile(SAMPLES / name)
    if format is None:
        return
    for share in (0.3, 0.6, 0.9, 0.99):
        path = tmp_path / name
        path.write_bytes(whole[: int(len(whole) * share)])
        problems: tuple[str, ...] = ()
        found = 0
        try:
            found = len(read_profile(path, format).kernels)
        except UserError as err:
            problems = err.problems
        assert bool(problems) != bool(found)
        assert all(str(path) in line for line in problems)
        assert found <= len(read_profile(SAMPLES / name).kernels)


@pytest.mark.parametrize("format", FORMATS)
def test_a_file_of_another_kind_is_one_error(tmp_path, format):
    path = tmp_path / "x"
    path.write_text("name,m,n,k\na,1,2,3\n", encoding="utf-8")
    assert detect_profile(path) is None
    with pytest.raises(UserError, match="expected"):
        read_profile(path, format)
    path.write_bytes(b"\xff\xfe\x00bad")
    with pytest.raises(UserError):
        read_profile(path, format)
    with pytest.raises(UserError, match="no such file"):
        read_profile(tmp_path / "none")


def test_a_trace_without_kernels_says_so(tmp_path):
    path = tmp_path / "cpu.json"
    trace = json.loads((SAMPLES / "torch_trace.json").read_text(encoding="utf-8"))
    trace["traceEvents"] = [e for e in trace["traceEvents"] if e.get("cat") != "kernel"]
    path.write_text(json.dumps(trace), encoding="utf-8")
    with pytest.raises(UserError, match="kernel events"):
        read_profile(path)


# --- beside the model ---


def test_tiles_and_counters_beside_the_model_s():
    gpu = load_gpu(A100)
    gemms, _ = gemms_of(read_profile(SAMPLES / "ncu_details.csv"), A100)
    checks, skipped = check_kernels(gemms, gpu)
    assert skipped == []
    assert len(checks) == 2
    for check in checks:
        model = check.launch.kernel
        assert check.same_tile == (check.gemm.kernel.parsed.tile[:2] == (model.tile_m, model.tile_n))
        for name, (hardware, value) in check.counters.items():
            assert hardware == check.gemm.kernel.counters[name]
            assert value > 0
            assert name == "dram_bytes" or value <= 1.0
        assert check.counters.keys() == {"tensor_active", "l2_hit_rate", "dram_bytes", "occupancy"}
        assert check.launch.clock_hz == pytest.approx(1.06e9)  # ncu holds the clock
    found = summary(checks)
    assert (found["kernels"], found["tiles_named"]) == (2, 2)
    assert found["same_tile"] == sum(check.same_tile for check in checks)


@pytest.fixture
def run(capsys):
    def call(*words):
        status = main([str(word) for word in words])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def test_validate_takes_profiles(run, sqlite_export):
    status, out, err = run("validate", SAMPLES / "torch_trace.json", sqlite_export, "--min-us", "0")
    assert (status, err) == (0, "")
    assert "Kernels that the library picked" in out
    assert "256×128×64, 3 stages" in out
    status, out, _ = run("validate", SAMPLES / "torch_trace.json", "--json", "-")
    result = json.loads(out)
    assert {row["timing"] for row in result["rows"]} == {"kernel"}
    assert len(result["kernels"]["checks"]) == 3
    assert {row["gpu"] for row in result["rows"]} == {A100}


def test_validate_needs_the_gpu_of_a_file_that_names_none(run):
    status, out, err = run("validate", SAMPLES / "ncu_details.csv")
    assert (status, out) == (2, "")
    assert "--gpu" in err
    status, out, _ = run("validate", SAMPLES / "ncu_details.csv", "--gpu", A100, "--json", "-")
    assert status == 0
    checks = json.loads(out)["kernels"]["checks"]
    assert set(checks[0]["counters"]) == {"tensor_active", "l2_hit_rate", "dram_bytes", "occupancy"}


def test_validate_takes_shapes_beside_a_trace(run):
    words = ("validate", SAMPLES / "nsys_trace.csv", "--gpu", A100, "--shapes", SAMPLES / "nsys_shapes.csv")
    status, out, _ = run(*words, "--json", "-")
    assert status == 0
    assert len(json.loads(out)["rows"]) == 3
    status, out, _ = run(*words[:4], "--json", "-")
    result = json.loads(out)
    assert status == 0
    assert result["rows"] == []
    assert any("no shape" in item["why"] for item in result["skipped"])


def test_a_fallback_shows_as_another_path(tmp_path, run):
    text = (SAMPLES / "nsys_nvtx_kern_sum.csv").read_text(encoding="utf-8")
    path = tmp_path / "fallback.csv"
    path.write_text(text.replace("dtype=f16,PushPop", "dtype=f16 pattern=2:4,PushPop"), encoding="utf-8")
    status, out, _ = run("validate", path, "--gpu", A100, "--json", "-")
    assert status == 0
    checks = json.loads(out)["kernels"]["checks"]
    assert [(c["path"], c["model_path"]) for c in checks] == [("dense", "sparse"), ("sparse", "sparse")]


def test_a_log_compares_tiles_without_times(run):
    status, out, _ = run("validate", SAMPLES / "cublaslt.log", "--gpu", A100, "--json", "-")
    result = json.loads(out)
    assert status == 0
    assert (result["rows"], result["kernels"]["tiles_named"]) == ([], 2)


def test_measured_rows_are_no_profile(tmp_path, run):
    shutil.copy(SAMPLES / "nsys_shapes.csv", tmp_path / "rows.csv")
    assert detect_profile(tmp_path / "rows.csv") is None
    status, _, err = run("validate", tmp_path / "rows.csv")
    assert status == 2
    assert "rows.csv: header" in err
