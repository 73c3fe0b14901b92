"""Profiler traces, exported programs and Nsight exports: real ones where torch is there, and the forms they have."""

import gzip
import json
import zipfile

import pytest

from sparsesim.__main__ import main
from sparsesim.errors import UserError
from sparsesim.importers import detect_format, import_file
from sparsesim.importers.aten_ops import UnknownSize, aten_products


def event(name, ts, dur, dims=None, types=(), link=None, tid=1, scalars=None, cat="cpu_op"):
    """One complete event as the profiler writes it."""
    args = {} if link is None else {"External id": link}
    if dims is not None:
        args |= {"Input Dims": dims, "Input type": list(types) or ["c10::BFloat16"] * len(dims)}
        args["Concrete Inputs"] = scalars or [""] * len(dims)
    return {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, "ts": ts, "dur": dur, "args": args}


LAYER = [
    event("aten::linear", 0, 10, [[2, 64, 512], [1024, 512], [1024]], link=1),
    event("aten::t", 1, 1, [[1024, 512]], link=2),
    event("aten::addmm", 3, 5, [[1024], [128, 512], [512, 1024], [], []], link=3),
    event("aten::gelu", 12, 3, [[2, 64, 1024], []], link=4),
    event("sm90_xmma_gemm_bf16", 4, 3, link=3, cat="kernel"),
    event("mystery_kernel", 20, 3, link=999, cat="kernel"),
]


def write(path, events, **more):
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": [], **more, "traceEvents": events}))
    return path


def of(path, **more):
    imported = import_file(path, **more)
    return {op.name: op for op in imported.workload.ops}, {op.name: op for op in imported.workload.others}


# --- PyTorch traces ---


def test_the_outermost_product_counts_and_everything_else_is_named(tmp_path):
    second = [event(e["name"], e["ts"] + 100, e["dur"], e["args"].get("Input Dims"), cat=e["cat"]) for e in LAYER[:4]]
    ops, others = of(write(tmp_path / "trace.json", [*LAYER, *second]))
    (op,) = ops.values()
    assert (op.m, op.n, op.k, op.count, op.dtype, op.pattern) == (1024, 128, 512, 2, "bf16", "dense")
    assert others["aten::gelu"].count == 2
    assert others["aten::gelu"].flops == 8 * 2 * 64 * 1024
    assert others["aten::gelu"].bytes == 2 * 2 * 64 * 1024
    # the t and the kernel belong to the linear; the kernel of no op does not vanish
    assert set(others) == {"aten::gelu", "mystery_kernel"}
    assert of(tmp_path / "trace.json", pattern="2:4")[0][op.name].pattern == "2:4"


def test_threads_do_not_nest_in_one_another(tmp_path):
    events = [
        event("aten::linear", 0, 100, [[8, 16], [32, 16]], tid=1),
        event("aten::mm", 10, 5, [[8, 16], [16, 64]], tid=2),
    ]
    ops, _ = of(write(tmp_path / "t.json", events))
    assert {(op.m, op.n, op.k) for op in ops.values()} == {(32, 8, 16), (64, 8, 16)}


def test_a_composite_op_is_opened_up(tmp_path):
    events = [
        event("my::block", 0, 100),
        event("aten::layer_norm", 5, 5, [[4, 16], [], [16], [16]]),
        event("aten::bmm", 20, 5, [[6, 8, 16], [6, 16, 4]]),
    ]
    ops, others = of(write(tmp_path / "t.json", events))
    (op,) = ops.values()
    assert (op.batch, op.m, op.n, op.k, op.kind) == (6, 4, 8, 16, "matmul")
    assert set(others) == {"aten::layer_norm"}


def test_gzip_and_bare_arrays(tmp_path):
    (tmp_path / "t.json.gz").write_bytes(gzip.compress(json.dumps({"traceEvents": LAYER}).encode()))
    (tmp_path / "list.json").write_text(json.dumps(LAYER))
    assert of(tmp_path / "t.json.gz") == of(tmp_path / "list.json") == of(write(tmp_path / "t.json", LAYER))


@pytest.mark.parametrize(
    ("op", "shapes", "scalars", "expected"),
    [
        ("_sparse_semi_structured_linear", [(8, 64), (32, 32), (32, 4)], (), (32, 8, 64, "2:4")),
        ("_sparse_semi_structured_mm", [(32, 32), (32, 4), (64, 8)], (), (32, 8, 64, "2:4")),
        ("_sparse_semi_structured_addmm", [(8,), (32, 32), (32, 4), (64, 8)], (), (32, 8, 64, "2:4")),
        # 9/16 of the elements in 16-bit types, 10/16 in 8-bit ones
        ("_cslt_sparse_mm", [(128 * 256 * 9 // 16,), (256, 8)], (), (128, 8, 256, "2:4")),
        ("_scaled_mm", [(8, 64), (64, 32)], (), (32, 8, 64, None)),
        ("conv2d", [(2, 3, 32, 32), (16, 3, 3, 3), ()], ("", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "1"),
         (16, 2 * 16 * 16, 27, None)),
        ("cudnn_convolution", [(2, 3, 32, 32), (16, 3, 3, 3)], ("", "", "[1, 1]", "[2, 2]", "[1, 1]", "1"),
         (16, 2 * 16 * 16, 27, None)),
    ],
)  # fmt: skip
def test_aten_products(op, shapes, scalars, expected):
    (product,) = aten_products(op, shapes, scalars)
    assert (product.m, product.n, product.k, product.pattern) == expected


@pytest.mark.parametrize(
    ("op", "shapes"),
    [("linear", [(8, 64)]), ("mm", [(8, 64), (63, 32)]), ("mm", [(), (8, 8)]), ("conv2d", [(1, 3, 8, 8), (4, 3, 3, 3)]),
     ("_cslt_sparse_mm", [(1000,), (256, 8)]), ("bmm", [(2,), ()]), ("scaled_dot_product_attention", [(1, 2), (0, 2)])],
)  # fmt: skip
def test_operands_that_do_not_fit_are_no_product(op, shapes):
    with pytest.raises(UnknownSize):
        aten_products(op, shapes)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], "traceEvents: expected events of a profiler trace, found 'none'"),
        ([7], "traceEvents[0]: expected an object, found 7"),
        ([{"ph": "X", "cat": "cpu_op", "name": "aten::mm"}], "traceEvents[0].ts: expected a time in microseconds"),
        ([event("aten::mm", 0, "1", [])], "traceEvents[0].dur: expected a time in microseconds, found '1'"),
        ([event("aten::mm", 0, -1, [])], "traceEvents[0].dur: expected a time in microseconds, found -1"),
        ([event(None, 0, 1)], "traceEvents[0].name: expected text, found None"),
        ([event("aten::mm", 0, 1, {"a": 1})], "traceEvents[0].args.Input Dims: expected a list of shapes"),
        ([event("aten::mm", 0, 1)], "profile with record_shapes=True, found 'none of 1 aten::mm'"),
        ([event("aten::relu", 0, 1, [[4]])], "none among 1 ops (aten::relu)"),
        ([event("aten::mm", 0, 1, [[1, 1 << 40], [1 << 40, 1]])], "k: expected an integer of at most 1048576"),
    ],
)  # fmt: skip
def test_a_trace_with_missing_or_impossible_fields_is_an_error(events, expected, tmp_path, capsys):
    path = write(tmp_path / "t.json", events)
    out = tmp_path / "out.toml"
    assert main(["import", str(path), "--out", str(out)]) == 2
    assert expected in capsys.readouterr().err
    assert not out.exists()


def test_many_broken_events_are_counted(tmp_path):
    path = write(tmp_path / "t.json", [event("aten::mm", None, 1) for _ in range(500)])
    with pytest.raises(UserError) as caught:
        import_file(path)
    assert len(caught.value.problems) <= 21


@pytest.mark.parametrize("packed", [False, True])
def test_a_byte_order_mark_is_no_part_of_a_trace(packed, tmp_path):
    plain = write(tmp_path / "t.json", LAYER)
    marked = tmp_path / ("marked.json.gz" if packed else "marked.json")
    raw = b"\xef\xbb\xbf" + plain.read_bytes()
    marked.write_bytes(gzip.compress(raw) if packed else raw)
    assert of(marked) == of(plain)


@pytest.mark.parametrize("cut", [0.1, 0.5, 0.99])
@pytest.mark.parametrize("packed", [False, True])
def test_a_truncated_trace_is_one_error(cut, packed, tmp_path):
    raw = write(tmp_path / "t.json", LAYER * 20).read_bytes()
    raw = gzip.compress(raw) if packed else raw
    path = tmp_path / ("t.json.gz" if packed else "t.json")
    path.write_bytes(raw[: int(len(raw) * cut)])
    with pytest.raises(UserError) as caught:
        import_file(path, format="torch-trace")
    assert len(caught.value.problems) == 1
    assert "a whole Chrome trace in JSON" in caught.value.problems[0]


def test_a_packed_trace_that_expands_without_end_is_refused(tmp_path):
    path = tmp_path / "t.json.gz"
    with gzip.open(path, "wb") as file:
        file.write(b'{"traceEvents": [')
        for _ in range(300):
            file.write(b" " * (1 << 20))
        file.write(b"]}")
    assert path.stat().st_size < 1 << 20
    with pytest.raises(UserError, match="packed into a file"):
        import_file(path)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", "expected a sound pt2 archive"),
        (b"no archive", "expected a sound pt2 archive"),
        (bytes(200 << 20), "a zip bomb"),
    ],
)
def test_a_program_is_looked_at_before_torch_unpacks_it(raw, expected, tmp_path):
    path = tmp_path / "m.pt2"
    if len(raw) < 1 << 20:
        path.write_bytes(raw)
    else:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("data/weights/w", raw)
    with pytest.raises(UserError) as caught:
        import_file(path)
    (line,) = caught.value.problems
    assert expected in line


# --- real ones ---


@pytest.fixture(scope="module")
def net():
    torch = pytest.importorskip("torch", reason="makes the trace and the program")

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 32, 8, stride=8)
            self.block = torch.nn.TransformerEncoderLayer(32, 4, 128, batch_first=True)
            self.head = torch.nn.Linear(32, 10)

        def forward(self, x):
            return self.head(self.block(self.conv(x).flatten(2).transpose(1, 2)).mean(1))

    return Net().eval()


#: (m, n, k, batch) of the products of `net` for a batch of 2
NET = {(32, 32, 192, 1), (96, 32, 32, 1), (16, 16, 8, 8), (8, 16, 16, 8), (32, 32, 32, 1), (128, 32, 32, 1),
       (32, 32, 128, 1), (10, 2, 32, 1)}  # fmt: skip


@pytest.mark.filterwarnings("default")
def test_a_trace_that_the_profiler_wrote(net, tmp_path):
    import torch

    x = torch.randn(2, 3, 32, 32)
    net.train()  # in eval mode the whole layer is one fused op
    with torch.no_grad(), torch.profiler.profile(record_shapes=True) as profile:
        for _ in range(3):
            net(x)
    net.eval()
    profile.export_chrome_trace(str(tmp_path / "t.json"))
    ops, others = of(tmp_path / "t.json")
    assert {(op.m, op.n, op.k, op.batch) for op in ops.values()} == NET
    assert {op.count for op in ops.values()} == {3}
    assert {"aten::layer_norm", "aten::relu"} <= set(others)


@pytest.mark.filterwarnings("default")
def test_a_program_that_torch_exported(net, tmp_path):
    import torch

    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(net, (torch.randn(4, 3, 32, 32),), dynamic_shapes={"x": {0: batch}})
    path = tmp_path / "net.pt2"
    torch.export.save(program, str(path))
    with pytest.raises(UserError, match=r"--dim x.0=SIZE"):
        import_file(path)
    with pytest.raises(UserError, match="a dynamic dimension"):
        import_file(path, dims={"x.0": 2, "y": 3})
    ops, others = of(path, dims={"x.0": 2})
    assert {(op.m, op.n, op.k, op.batch) for op in ops.values()} == NET
    assert all(op.bytes is not None for op in others.values())
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(UserError) as caught:
        import_file(path, dims={"x.0": 2})
    assert len(caught.value.problems) == 1


# --- Nsight ---

LINEAR = "aten::linear, op_id = 116, sizes = [[8, 768], [3072, 768], [3072]]"
ADDMM = "aten::addmm, op_id = 117, sizes = [[3072], [8, 768], [768, 3072], [], []]"
RELU = "aten::relu, op_id = 118, sizes = [[8, 3072]]"
GEMM_KERNEL = "sm90_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize64x128x64"

KERN_SUM = f"""Generating SQLite file report.sqlite from report.nsys-rep
Processing [report.sqlite] with [nvtx_kern_sum.py]...
NVTX Range,Style,PID,TID,NVTX Inst,Kern Inst,Total Time (ns),Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Kernel Name
":{LINEAR}",PushPop,1,1,12,12,120000,10000,10000,9000,11000,1,{GEMM_KERNEL}
":{ADDMM}",PushPop,1,1,12,12,120000,10000,10000,9000,11000,1,{GEMM_KERNEL}
":{RELU}",PushPop,1,1,12,12,12000,1000,1000,900,1100,1,"void at::native::vectorized_elementwise_kernel<4, float>"
"""


def test_nsight_systems_ranges_of_shapes(tmp_path):
    path = tmp_path / "report_nvtx_kern_sum.csv"
    path.write_text(KERN_SUM)
    assert detect_format(path) == "nsys"
    ops, others = of(path)
    (op,) = ops.values()
    assert (op.m, op.n, op.k, op.count, op.dtype, op.pattern) == (3072, 8, 768, 12, "f16", "dense")
    (other,) = others.values()
    assert other.name.startswith("void at::native::vectorized")
    assert other.count == 12


def test_nsight_systems_projected_ranges_nest(tmp_path):
    path = tmp_path / "report_nvtx_gpu_proj_trace.csv"
    head = (
        "Name,Projected Start (ns),Projected Duration (ns),Orig Start (ns),Orig Duration (ns),Style,PID,TID,"
        "NumGPUOps,Lvl,NumChild,RangeId,ParentId,RangeStack"
    )
    rows = [
        f'"{name}",0,10,0,10,PushPop,1,1,1,{level},1,{own},{parent},:1'
        for base in (0, 10)
        for name, level, own, parent in ((LINEAR, 0, base + 1, ""), (ADDMM, 1, base + 2, base + 1))
    ]
    path.write_text("\n".join([head, *rows]) + "\n")
    ops, _ = of(path, dtype="bf16")
    (op,) = ops.values()
    assert (op.m, op.n, op.k, op.count, op.dtype) == (3072, 8, 768, 2, "bf16")


def test_nsight_compute_counts_each_kernel_once(tmp_path):
    path = tmp_path / "ncu.csv"
    ranges = "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
    header = ["ID", "Process ID", "Kernel Name", "Block Size", "Grid Size", ranges, "Metric Name", "Metric Value"]
    sparse = "sm80_xmma_sparse_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64"
    rows = []
    for number, (kernel, text) in enumerate(
        [(sparse, LINEAR), (sparse, LINEAR), ("relu_kernel", RELU), ("splitKreduce", "")]
    ):
        for metric in ("gpu__time_duration.sum", "dram__bytes.sum"):
            rows.append(
                [str(number), "1", kernel, "(128, 1, 1)", "(8, 4, 1)", f"<default domain>:{text}:none", metric, "1"]
            )
    lines = [",".join(f'"{cell}"' for cell in row) for row in [header, *rows]]
    path.write_text("==PROF== Connected to process 1\n" + "\n".join(lines) + "\n")
    assert detect_format(path) == "ncu"
    ops, others = of(path)
    (op,) = ops.values()
    assert (op.m, op.n, op.k, op.count, op.dtype, op.pattern) == (3072, 8, 768, 2, "bf16", "2:4")
    assert {name: other.count for name, other in others.items()} == {"relu_kernel": 1, "splitKreduce": 1}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (KERN_SUM.replace(":aten::", ":torch::"), "expected NVTX ranges of products with their sizes"),
        (KERN_SUM.replace("PushPop,1,1,12", "PushPop,1,1,-3"), "expected a positive count as NVTX Inst"),
        (KERN_SUM.replace(",9000,", ","), "line 4: expected 13 columns, found 12"),
        (KERN_SUM.replace("768]", "768000000]"), "expected"),
        ("Time (%),Total Time (ns),Instances,Name\n1,2,3,some_gemm\n", "none among 1 ops (kernel)"),
        ("a,b\n1,2\n", "expected columns of an Nsight Systems or Nsight Compute export"),
        ("", "expected columns of an Nsight"),
    ],
)
def test_an_export_without_shapes_or_with_broken_rows_is_an_error(text, expected, tmp_path, capsys):
    path = tmp_path / "x.csv"
    path.write_text(text)
    assert main(["import", str(path), "--out", str(tmp_path / "o.toml")]) == 2
    assert expected in capsys.readouterr().err
    assert not (tmp_path / "o.toml").exists()
