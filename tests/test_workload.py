"""Workloads: the packaged files against independent formulas, the readers against broken input."""

from __future__ import annotations

import csv
import io
import json
import pickle
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsesim.datafiles import data_dir
from sparsesim.errors import UserError
from sparsesim.workload import (
    DTYPE_BYTES,
    DTYPES,
    MAX_DIM,
    MAX_MACS,
    Gemm,
    GemmError,
    Workload,
    iter_trace,
    load_trace,
    load_workload,
    workload_names,
)

PACKAGED = {
    "bert-large",
    "llama-3.1-8b",
    "llama-3.2-1b",
    "mixed-trace",
    "qwen2.5-14b",
    "qwen2.5-7b",
    "resnext101-32x8d",
    "serving-trace",
    "square",
    "vit-l-16",
}
# hidden size, heads, key/value heads, head size, MLP size, layers, vocabulary
LLMS = {
    "llama-3.2-1b": (2048, 32, 8, 64, 8192, 16, 128256),
    "llama-3.1-8b": (4096, 32, 8, 128, 14336, 32, 128256),
    "qwen2.5-7b": (3584, 28, 4, 128, 18944, 28, 152064),
    "qwen2.5-14b": (5120, 40, 8, 128, 13824, 48, 152064),
}


def problems_of(path: Path | str, **arguments: object) -> list[str]:
    """The lines of the error that loading `path` must raise, without the folder."""
    with pytest.raises(UserError) as caught:
        load_workload(path, **arguments)  # type: ignore[arg-type]
    lines = list(caught.value.problems)
    assert all("\n" not in line for line in lines)
    return [line.replace(f"{Path(path).parent}/", "") for line in lines]


@pytest.fixture
def write(tmp_path):
    """Write a file from text or bytes and return its path."""

    def _write(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return _write


# --- types ---


def test_gemm_counts():
    op = Gemm("x", 64, 32, 128, batch=3, dtype="f16")
    assert op.macs == 64 * 32 * 128 * 3
    assert op.bytes == 3 * 2 * (64 * 128 + 128 * 32 + 64 * 32)
    assert (op.accumulator, op.output, op.pattern) == ("f32", "f16", "dense")


@pytest.mark.parametrize(
    ("dtype", "accumulator", "output", "size"),
    [
        ("f16", "f32", "f16", 10 * 2 + 6 * 2),
        ("bf16", "f32", "bf16", 10 * 2 + 6 * 2),
        ("tf32", "f32", "f32", 10 * 4 + 6 * 4),
        ("i8", "i32", "i32", 10 + 6 * 4),
        ("e4m3", "f32", "bf16", 10 + 6 * 2),
        ("e2m1", "f32", "bf16", 5 + 6 * 2),
    ],
)
def test_dtype_defaults(dtype, accumulator, output, size):
    op = Gemm("x", 2, 3, 2, dtype=dtype)
    assert (op.accumulator, op.output, op.bytes) == (accumulator, output, size)
    assert all(dtype in DTYPE_BYTES for dtype in DTYPES)


def test_an_impossible_gemm_comes_back_from_a_worker_process():
    with pytest.raises(GemmError) as raised:
        Gemm("g", 0, 64, 64)
    back = pickle.loads(pickle.dumps(raised.value))
    assert type(back) is GemmError
    assert (back.problems, back.issues, str(back)) == (raised.value.problems, raised.value.issues, str(raised.value))


def test_gemm_is_frozen_and_hashable():
    op = Gemm("x", 64, 64, 64, pattern=" 2 : 4 ")
    assert op.pattern == "2:4"
    assert op == Gemm("x", 64, 64, 64, pattern="2:4")
    assert len({op, Gemm("x", 64, 64, 64, pattern="2:4")}) == 1
    with pytest.raises(AttributeError):
        op.m = 3  # type: ignore[misc]


def test_with_dtype_takes_the_new_defaults():
    op = Gemm("x", 64, 64, 64, dtype="f16", acc_dtype="f16", out_dtype="f16")
    assert op.with_dtype("i8").accumulator == "i32"
    assert op.with_pattern("2:4").pattern == "2:4"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"m": 0}, "m: expected a positive integer, found 0"),
        ({"n": -3}, "n: expected a positive integer, found -3"),
        ({"k": 64.0}, "k: expected a positive integer, found 64.0"),
        ({"k": float("nan")}, "k: expected a positive integer, found nan"),
        ({"m": True}, "m: expected a positive integer, found True"),
        ({"m": MAX_DIM + 1}, f"m: expected an integer of at most {MAX_DIM}"),
        ({"batch": 0}, "batch: expected"),
        ({"count": "2"}, "count: expected"),
        ({"name": ""}, "name: expected"),
        ({"name": None}, "name: expected"),
        ({"family": "a\nb"}, "family: expected"),
        ({"dtype": "fp16"}, "did you mean 'f16'"),
        ({"dtype": ["f16"]}, "dtype: expected"),
        ({"dtype": "bf16", "acc_dtype": "f16"}, "acc_dtype: expected f32 with dtype bf16, found 'f16'"),
        ({"out_dtype": "i32"}, "out_dtype: expected f16 or f32 with dtype f16"),
        ({"sparse_operand": "C"}, "sparse_operand: expected"),
        ({"kind": "convolution"}, "did you mean 'conv'"),
        ({"pattern": "3:2"}, "pattern: expected"),
        ({"pattern": "dence"}, "pattern: expected"),
        ({"pattern": 4}, "pattern: expected"),
    ],
)
def test_impossible_gemm(change, field):
    with pytest.raises(GemmError) as caught:
        Gemm(**{"name": "x", "m": 64, "n": 64, "k": 64, **change})
    assert len(caught.value.problems) == len(caught.value.issues) == 1
    assert field in str(caught.value)


def test_gemm_reports_everything_at_once():
    with pytest.raises(GemmError) as caught:
        Gemm("x", 0, 10**9, "7", dtype="f8", pattern="9:1")  # type: ignore[arg-type]
    assert [issue[0] for issue in caught.value.issues] == ["m", "n", "k", "dtype", "pattern"]


def test_size_of_the_product_is_bounded():
    assert Gemm("x", 65536, 65536, 65536).macs < MAX_MACS
    with pytest.raises(UserError, match=r"m\*n\*k\*batch: expected at most"):
        Gemm("x", MAX_DIM, MAX_DIM, MAX_DIM)


def test_workload_names_are_unique_and_there_is_an_op():
    op = Gemm("a/x", 8, 8, 8, count=3)
    load = Workload("w", "", "", (op, Gemm("b/x", 8, 8, 8), Gemm("y", 8, 8, 8)))
    assert load.macs == 5 * 512
    assert load.bytes == 5 * op.bytes
    assert list(load.phases()) == ["a", "b", ""]
    with pytest.raises(UserError, match="unique names, found 'a/x'"):
        Workload("w", "", "", (op, op, op))
    with pytest.raises(UserError, match="at least one op"):
        Workload("w", "", "", ())


def test_digest_follows_the_ops():
    one, two = load_workload("square"), load_workload("square")
    assert one.digest() == two.digest() == Workload("other", "", "", one.ops).digest()
    assert one.digest() != load_workload("square", pattern="dense").digest()


# --- packaged files ---


def test_packaged_names():
    assert set(workload_names()) == PACKAGED


@pytest.mark.parametrize("name", sorted(PACKAGED))
def test_every_packaged_file_loads(name):
    load = load_workload(name)
    assert load.name == name
    assert load.description
    assert load.source
    assert len(load.ops) >= 9
    assert all(op.family or name == "mixed-trace" for op in load.ops)


@pytest.mark.parametrize("name", LLMS)
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_llm_macs(name, phase):
    hidden, heads, kv, size, mlp, layers, vocab = LLMS[name]
    attention = hidden * heads * size * 2 + hidden * kv * size * 2
    weights = layers * (attention + 3 * hidden * mlp)
    load = load_workload(name, phase=phase)
    for label, ops in load.phases().items():
        tokens = int(label.removeprefix(f"{phase}-"))
        logits = hidden * vocab * (tokens if phase == "decode" else 1)
        assert sum(op.macs * op.count for op in ops) == weights * tokens + logits
        assert {op.pattern for op in ops if op.family == "lm_head"} == {"dense"}
        assert {op.pattern for op in ops if op.family != "lm_head"} == {"2:4"}
        assert {op.kind for op in ops} == {"linear"}


@pytest.mark.parametrize(
    ("name", "billions"),
    [("llama-3.2-1b", 1.24), ("llama-3.1-8b", 8.03), ("qwen2.5-7b", 7.62), ("qwen2.5-14b", 14.77)],
)
def test_llm_parameters(name, billions):
    """Published parameter counts; untied models have the vocabulary twice."""
    ops = load_workload(name, tokens=1).ops
    weights = sum(op.m * op.k * op.count for op in ops)
    if name != "llama-3.2-1b":
        weights += sum(op.m * op.k for op in ops if op.family == "lm_head")
    assert weights / 1e9 == pytest.approx(billions, abs=0.006)


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("llama-3.2-1b", {(3072, 2048), (2048, 2048), (16384, 2048), (2048, 8192)}),
        ("qwen2.5-14b", {(7168, 5120), (5120, 5120), (27648, 5120), (5120, 13824)}),
    ],
)
def test_llm_shapes_are_those_that_were_measured(name, shapes):
    """Shapes of the same models in the published timings of arXiv 2603.05232."""
    assert {(op.m, op.k) for op in load_workload(name).ops if op.family != "lm_head"} == shapes


def test_llm_tokens_span_1_to_16384():
    for name in LLMS:
        tokens = {int(phase.rpartition("-")[2]) for phase in load_workload(name).phases()}
        assert (min(tokens), max(tokens)) == (1, 16384)


def test_bert_macs():
    for label, ops in load_workload("bert-large").phases().items():
        tokens = int(label.removeprefix("encode-"))
        assert sum(op.macs * op.count for op in ops) == tokens * 24 * 12 * 1024**2


def test_vit_macs():
    load = load_workload("vit-l-16", tokens=8)
    per_image = 197 * 24 * 12 * 1024**2 + 196 * 1024 * 768 + 1024 * 1000
    assert load.macs == 8 * per_image
    # torchvision gives 61.55 G for vit_l_16; the difference is the attention, twice 197^2 x 1024 a layer.
    assert (per_image + 24 * 2 * 197**2 * 1024) / 1e9 == pytest.approx(61.55, abs=0.01)


def resnext_macs() -> int:
    """Walk the blocks of ResNeXt-101 32x8d one by one, as their definition does."""
    total, pixels, channels = 64 * 3 * 49 * 112**2, 56, 64
    for stage, blocks in enumerate((3, 4, 23, 3)):
        width = out = 256 * 2**stage
        for block in range(blocks):
            before = pixels
            if block == 0 and stage > 0:
                pixels //= 2
            total += channels * width * before**2
            total += width * (width // 32) * 9 * pixels**2
            total += width * out * pixels**2
            total += channels * out * pixels**2 if block == 0 else 0
            channels = out
    return total + channels * 1000


def test_resnext_macs():
    load = load_workload("resnext101-32x8d", tokens=1)
    assert load.macs == resnext_macs()
    assert load.macs / 1e9 == pytest.approx(16.41, abs=0.01)  # torchvision
    weights = sum(op.m * op.k * op.batch * op.count for op in load.ops)
    assert weights / 1e6 == pytest.approx(88.79, abs=0.25)  # torchvision, with batch norm
    assert {op.batch for op in load.ops if op.family == "conv3x3_grouped"} == {32}
    assert sum(op.count for op in load.ops if op.family == "conv3x3_grouped") == 33


def test_square_macs():
    load = load_workload("square")
    assert load.macs == sum(size**3 for size in (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384))
    assert all(op.m == op.n == op.k for op in load.ops)


def test_example_traces():
    serving = load_workload("serving-trace")
    hidden, heads, kv, size, mlp, layers, vocab = LLMS["llama-3.1-8b"]
    weights = layers * hidden * (2 * heads * size + 2 * kv * size + 3 * mlp)
    assert serving.macs == weights * (536 + 25 + 25 + 24) + hidden * vocab * (25 + 25 + 25 + 24)
    mixed = {op.name: op for op in load_workload("mixed-trace").ops}
    assert mixed["int8"].output == "bf16"
    assert mixed["grouped-conv"].batch == 32
    assert mixed["sparse-right"].sparse_operand == "B"


# --- selection and overrides ---


def test_tokens_select_the_phases_that_list_them():
    assert list(load_workload("llama-3.1-8b", tokens=16384).phases()) == ["prefill-16384"]
    assert list(load_workload("llama-3.1-8b", tokens=128).phases()) == ["prefill-128", "decode-128"]
    assert list(load_workload("llama-3.1-8b", tokens=100, phase="decode").phases()) == ["decode-100"]
    assert list(load_workload("bert-large", tokens=77).phases()) == ["encode-77"]
    assert [op.n for op in load_workload("square", tokens=4096).ops] == [4096]
    assert {op.n for op in load_workload("serving-trace", tokens=25).ops} == {25}


def test_overrides_leave_what_a_layer_says_itself():
    load = load_workload("llama-3.1-8b", tokens=1, dtype="i8", pattern="2:8")
    assert {(op.dtype, op.pattern) for op in load.ops if op.family != "lm_head"} == {("i8", "2:8")}
    assert [(op.dtype, op.pattern) for op in load.ops if op.family == "lm_head"] == [("bf16", "dense")]
    assert {op.dtype for op in load_workload("llama-3.1-8b", tokens=1, dtype="f16").ops} == {"f16"}
    assert {op.pattern for op in load_workload("serving-trace", pattern="2:4").ops} == {"2:4"}


def test_bad_arguments_are_reported_together():
    lines = problems_of("square", tokens=0, dtype="fp16", pattern="3:2")
    assert [line.partition(":")[0] for line in lines] == ["tokens", "dtype", "pattern"]
    assert "did you mean 'f16'" in lines[1]


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("llama-3.1-8b", {"phase": "prefil"}, "found 'prefil' (did you mean 'prefill'?)"),
        ("llama-3.1-8b", {"tokens": 100}, "or a phase to run it in, found 100"),
        ("resnext101-32x8d", {"tokens": 1000}, "in inference-1000.n: expected an integer of at most"),
        ("square", {"phase": "prefill"}, "no phase: this is a list of GEMMs, found 'prefill'"),
        ("square", {"tokens": 100}, "one of 64, 128"),
        ("serving-trace", {"tokens": 99}, "one of 24, 25, 536, found 99"),
        ("lama-3.1-8b", {}, "did you mean 'llama-3.1-8b'"),
        ("some/where/squares.toml", {}, "did you mean 'square'"),
        ("a\0b", {}, "expected an existing file"),
        ("x" * 5000, {}, "expected an existing file"),
        ("", {}, "expected an existing file"),
    ],
)
def test_what_cannot_be_selected(name, arguments, text):
    with pytest.raises(UserError) as caught:
        load_workload(name, **arguments)
    assert text in str(caught.value)


# --- files ---


def test_files_that_are_none(tmp_path, write):
    assert problems_of(tmp_path)[0].endswith("expected a file, found a directory")
    (tmp_path / "folder.toml").mkdir()
    assert problems_of(tmp_path / "folder.toml") == ["folder.toml: expected a file, found a directory"]
    assert "expected a file ending in .toml, .csv, .jsonl" in problems_of(write("a.json", "{}"))[0]
    assert "found neither" in problems_of(tmp_path / "none.csv")[0]
    for read in (load_trace, lambda path: list(iter_trace(path))):
        for path, found in (("none.csv", "nothing of that name"), ("folder.csv", "directory"), ("a.x", ".x")):
            (tmp_path / "folder.csv").mkdir(exist_ok=True)
            with pytest.raises(UserError, match=found):
                read(tmp_path / path)


@pytest.mark.parametrize("name", ["empty.toml", "empty.csv", "empty.jsonl"])
def test_empty_file(write, name):
    assert "found an empty file" in problems_of(write(name, ""))[0]
    assert len(problems_of(write(name, "\n\n"))) == 1


@pytest.mark.parametrize(
    ("name", "head"),
    [("a.toml", 'name = "x"\n'), ("a.csv", "m,n,k\n"), ("a.jsonl", '{"m":1,"n":1,"k":1}\n')],
)
def test_bad_utf8(write, name, head):
    lines = problems_of(write(name, head.encode() + b"\xff\xfe\n"))
    assert lines == [f"{name}: line 2: expected UTF-8 text, found byte 0xff"]
    assert "line 1: expected UTF-8" in problems_of(write(name, head.encode("utf-16")))[0]


def test_byte_order_mark_and_windows_lines(write):
    assert load_workload(write("a.csv", b"\xef\xbb\xbfm,n,k\r\n8,8,8\r\n")).ops[0].m == 8
    toml = '\ufeff[[gemms]]\r\nname = "x"\r\nm = 1\r\nn = 2\r\nk = 3\r\n'
    assert load_workload(write("a.toml", toml)).ops[0].k == 3


# --- TOML ---

MODEL = """
name = "tiny"
[defaults]
dtype = "bf16"
pattern = "2:4"
[phases]
prefill = [512, 2048]
decode = [1]
[[layers]]
name = "qkv"
m = 96
k = 64
count = 2
"""


def test_layers_times_phases(write):
    load = load_workload(write("tiny.toml", MODEL))
    assert [op.name for op in load.ops] == ["prefill-512/qkv", "prefill-2048/qkv", "decode-1/qkv"]
    assert [op.n for op in load.ops] == [512, 2048, 1]
    assert load.macs == 2 * 96 * 64 * (512 + 2048 + 1)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("m = 96", "m = -96", "layers[0].m: expected a positive integer, found -96"),
        ("m = 96", "m = 96.0", "layers[0].m: expected a positive integer, found 96.0"),
        ("m = 96", "m = nan", "layers[0].m: expected a positive integer, found nan"),
        ("m = 96", "m = inf", "layers[0].m: expected a positive integer, found inf"),
        ("m = 96", "m = true", "layers[0].m: expected a positive integer, found True"),
        ("m = 96", "m = 1000000000", "layers[0].m: expected an integer of at most 1048576, found 1000000000"),
        ("m = 96\n", "", "layers[0]: expected a field m, found 'name, k, count'"),
        ("count = 2", "cuont = 2", "found 'cuont' (did you mean 'count'?)"),
        ("count = 2", 'phases = ["decod"]', "found 'decod' (did you mean 'decode'?)"),
        ("count = 2", "phases = 3", "layers[0].phases: expected a list of phase names, found 3"),
        ("count = 2", "phases = [[]]", "layers[0].phases[0]: expected one of prefill, decode, found []"),
        ("count = 2", "quantize = 1", "layers[0].quantize: expected true or false, found 1"),
        ("count = 2", "n_per_unit = 0", "layers[0].n_per_unit: expected a positive integer, found 0"),
        ("count = 2", "n = 1\nn_per_unit = 2", "layers[0].n_per_unit: expected no n_per_unit beside"),
        ("count = 2", 'pattern = "5:4"', "layers[0].pattern: expected"),
        ("count = 2", 'kind = ["conv"]', "layers[0].kind: expected one of linear, conv, matmul"),
        ('name = "qkv"', "name = []", "layers[0].name: expected a printable name"),
        ('name = "tiny"', "name = 1", "name: expected text, found 1"),
        ('name = "tiny"', "titel = 1", "titel: expected one of name, description"),
        ('name = "tiny"', 'unit = "images"', "unit: expected one of token, image, found 'images'"),
        ('name = "tiny"', "defaults = 1", "expected valid TOML, found an error"),
        ('"bf16"', '"bf61"', "defaults.dtype: expected one of"),
        ('"2:4"', '"4:2"', "defaults.pattern: expected"),
        ("[defaults]", "[defaults]\nn_per_unit = 1.5", "defaults.n_per_unit: expected a positive integer"),
        ("[defaults]", "[defaults]\npatern = 1", "found 'patern' (did you mean 'pattern'?)"),
        ("[1]", "[]", "phases.decode: expected a list of token counts, found []"),
        ("[1]", "1", "phases.decode: expected a list of token counts, found 1"),
        ("[1]", "[1, 1]", "phases.decode: expected each token count once, found [1, 1]"),
        ("[1]", "[1, 0]", "phases.decode[1]: expected a positive integer, found 0"),
        ("[1]", "[2000000]", "phases.decode[0]: expected an integer of at most"),
        ("decode = [1]", '"a/b" = [1]', "phases.a/b: expected a name of letters"),
        ('name = "tiny"', '"a\\nb" = 1', "'a\\nb': expected one of name"),
        ("[[layers]]", "[layers]", "layers: expected at least one [[layers]], found {"),
        ("[defaults]", "layers = []\n[defaults]", "expected valid TOML, found an error"),
        (
            "[[layers]]",
            '[[layers]]\nname = "qkv"\nm = 1\nk = 1\n[[layers]]',
            "a unique name (layers[0] has it",
        ),
        ("[[layers]]", "[[gemms]]\n[[layers]]", "expected either [[layers]] with [phases], or [[gemms]]"),
        ("[phases]\nprefill = [512, 2048]\ndecode = [1]", "", "phases: expected at least one phase"),
        ("[1]", "[1", "expected valid TOML, found an error"),
        ("count = 2", "count = ", "(at line 13, column 9)"),
        ("count = 2", "count = " + "9" * 5000, "expected valid TOML"),
        ("count = 2", "count = 0x" + "f" * 5000, "expected valid TOML"),
        ("count = 2", "count = " + "[" * 100000, "expected valid TOML"),
    ],
)
def test_broken_model(write, old, new, line):
    assert old in MODEL
    lines = problems_of(write("tiny.toml", MODEL.replace(old, new, 1)))
    assert all(text.startswith("tiny.toml: ") for text in lines)
    assert any(line in text for text in lines), lines


def test_every_problem_of_a_model_is_raised_once(write):
    text = MODEL.replace("bf16", "x").replace("m = 96", "m = 0").replace("[1]", "[-1]")
    lines = problems_of(write("tiny.toml", text))
    assert len(lines) == 3
    assert len(problems_of(write("tiny.toml", MODEL.replace("m = 96", "m = 0")))) == 1


def test_layers_of_one_name_in_different_phases(write):
    second = '[[layers]]\nname = "qkv"\nm = 8\nk = 8\nphases = ["decode"]\n'
    first = MODEL.replace("count = 2", 'phases = ["prefill"]')
    assert [op.m for op in load_workload(write("tiny.toml", first + second)).ops] == [96, 96, 8]
    assert "unique name" in problems_of(write("tiny.toml", MODEL + second))[0]
    only = write("tiny.toml", first)
    assert problems_of(only, phase="decode") == [
        "tiny.toml: phases: expected a layer that runs in decode, found 'none'"
    ]


def test_an_override_that_nothing_takes(write):
    path = write("tiny.toml", MODEL.replace("count = 2", 'pattern = "dense"'))
    assert "expected a layer that takes its pattern from the defaults" in problems_of(path, pattern="2:4")[0]


GEMMS = '[[gemms]]\nname = "x"\nm = 8\nn = 16\nk = 32\n'


def test_list_of_gemms(write):
    load = load_workload(write("list.toml", '[defaults]\ndtype = "i8"\n' + GEMMS))
    assert load.ops == (Gemm("x", 8, 16, 32, dtype="i8"),)
    assert load.name == "list"
    lines = problems_of(write("list.toml", GEMMS + GEMMS + GEMMS.replace("n = 16\n", "nn = 16\n")))
    assert lines[0].startswith("list.toml: gemms[1].name: expected a unique name")
    assert "gemms[2].nn: expected one of" in lines[1]
    assert "gemms[2]: expected a field n" in lines[2]
    assert "no phases beside" in problems_of(write("list.toml", "[phases]\na = [1]\n" + GEMMS))[0]
    assert "beside [[gemms]]" in problems_of(write("list.toml", "[defaults]\nn_per_unit = 2\n" + GEMMS))[0]
    big = GEMMS.replace("8", "1000000").replace("16", "1000000").replace("32", "1000000")
    assert "gemms[0].m*n*k*batch: expected at most" in problems_of(write("list.toml", big))[0]


# --- traces ---

CSV = "name,m,n,k,dtype,pattern,count\na,8,16,32,bf16,2:4,3\nb,8,16,32,,,\n"


def test_csv(write):
    text = "# description: two ops\n# source: here\n# anything\n" + CSV + "\n"
    load = load_workload(write("t.csv", text))
    assert (load.name, load.description, load.source) == ("t", "two ops", "here")
    assert load.ops == (
        Gemm("a", 8, 16, 32, dtype="bf16", pattern="2:4", count=3),
        Gemm("b", 8, 16, 32),
    )
    assert tuple(iter_trace(write("t.csv", text))) == load.ops
    assert load_workload(write("t.csv", "m,n,k\n1,2,3\n")).ops[0].name == "line-2"


def test_trace_in_a_toml_or_jsonl_is_the_same(write):
    rows = list(csv.DictReader(io.StringIO(CSV)))
    objects = [{key: int(v) if key in ("m", "n", "k", "count") else v for key, v in row.items() if v} for row in rows]
    text = "\n".join(json.dumps(row) for row in [{"workload": {"source": "here"}}, *objects])
    load = load_workload(write("t.jsonl", text))
    assert load.ops == load_workload(write("t.csv", CSV)).ops
    assert load.source == "here"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("m,n,k\n8,-3,8\n", "t.csv: line 2: n: expected a positive integer, found '-3'"),
        ("m,n,k\n8,8,0\n", "t.csv: line 2: k: expected a positive integer, found 0"),
        ("m,n,k\n8,8,nan\n", "t.csv: line 2: k: expected a positive integer, found 'nan'"),
        ("m,n,k\n8,8,inf\n", "t.csv: line 2: k: expected a positive integer, found 'inf'"),
        ("m,n,k\n8,8,1e3\n", "t.csv: line 2: k: expected a positive integer, found '1e3'"),
        ("m,n,k\n8,8,8.0\n", "t.csv: line 2: k: expected a positive integer, found '8.0'"),
        ("m,n,k\n8,8,\n", "t.csv: line 2: k: expected a positive integer, found ''"),
        ("m,n,k\n8,8,1_0\n", "t.csv: line 2: k: expected a positive integer, found '1_0'"),
        ("m,n,k\n8,8,1000000000\n", "line 2: k: expected an integer of at most 1048576, found 1000000000"),
        ("m,n,k\n8,8," + "9" * 6000, "line 2: k: expected a positive integer, found '999"),
        ("m,n,k\n999999,999999,999999\n", "line 2: m*n*k*batch: expected at most"),
        ("m,n,k\n8,8\n", "t.csv: line 2: expected 3 columns, found 2"),
        ("m,n,k\n8,8,8,8\n", "t.csv: line 2: expected 3 columns, found 4"),
        ("m,n\n8,8\n", "t.csv: line 1: expected a column k, found 'm,n'"),
        ("m,n,k,m\n8,8,8,8\n", "t.csv: line 1: expected column m once, found '2 times'"),
        ("m,n,k,cuont\n8,8,8,8\n", "found 'cuont' (did you mean 'count'?)"),
        ("m,n,k,pattern\n8,8,8,3:2\n", "t.csv: line 2: pattern: expected"),
        ("m,n,k,dtype\n8,8,8,fp16\n", "found 'fp16' (did you mean 'f16'?)"),
        ("name,m,n,k\na,8,8,8\n\na,8,8,8\n", "line 4: expected a unique name (line 2 has it too), found 'a'"),
        ("# c\nm,n,k\n8,8,0\n", "t.csv: line 3: k: expected"),
        ('m,n,k\n8,"8,8\n', "t.csv: line 2: expected CSV text, found 'unexpected end of data'"),
        ('m,n,k\n8,"8"8,8\n', "t.csv: line 2: expected CSV text"),
        ("m,n,k\r8,8,8\r", "t.csv: line 1: expected CSV text"),
        ("m,n,k\n", "t.csv: expected at least one op, found none"),
        ("m,n,k\n8,8," + "x" * 200_000 + "\n", "t.csv: line 2: expected CSV text"),
    ],
)
def test_broken_csv(write, text, line):
    lines = problems_of(write("t.csv", text))
    assert len(lines) == 1
    assert line in lines[0]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{"m": 8, "n": 8, "k": 8', "t.jsonl: line 1: expected one complete JSON object"),
        ('{"m": 8, "n": 8}', "t.jsonl: line 1: expected a field k, found 'm,n'"),
        ('{"m": 8, "n": 8, "k": NaN}', "t.jsonl: line 1: k: expected a positive integer, found nan"),
        ('{"m": 8, "n": 8, "k": Infinity}', "t.jsonl: line 1: k: expected a positive integer, found inf"),
        ('{"m": 8, "n": 8, "k": 8.0}', "t.jsonl: line 1: k: expected a positive integer, found 8.0"),
        ('{"m": 8, "n": 8, "k": true}', "t.jsonl: line 1: k: expected a positive integer, found True"),
        ('{"m": 8, "n": 8, "k": "8"}', "t.jsonl: line 1: k: expected a positive integer, found '8'"),
        ('{"m": 8, "n": 8, "k": null}', "t.jsonl: line 1: k: expected a positive integer, found None"),
        ('{"m": 8, "n": 8, "k": [[8]]}', "t.jsonl: line 1: k: expected a positive integer, found [[8]]"),
        ('{"m": 8, "n": 8, "k": 8, "batc": 8}', "found 'batc' (did you mean 'batch'?)"),
        ('{"m": 8, "n": 8, "k": 8, "m": 8}', "t.jsonl: line 1: expected each field once, found 'm'"),
        ("[8, 8, 8]", "t.jsonl: line 1: expected one JSON object, found [8, 8, 8]"),
        ("8", "t.jsonl: line 1: expected one JSON object, found 8"),
        ('{"m": ' + "9" * 5000 + "}", "t.jsonl: line 1: expected one complete JSON object"),
        ("[" * 100_000, "t.jsonl: line 1: expected one complete JSON object"),
        ('{"workload": 3}', "line 1: expected the one field workload with an object"),
        ('{"workload": {"sorce": "x"}}', "did you mean 'source'"),
    ],
)
def test_broken_jsonl(write, text, line):
    lines = problems_of(write("t.jsonl", text + "\n"))
    assert len(lines) == 1
    assert line in lines[0]


def test_a_trace_cut_off_in_its_last_line(write):
    good = '{"m": 8, "n": 8, "k": 8}\n'
    (line,) = problems_of(write("t.jsonl", good + good + good[:12]))
    assert line.startswith('t.jsonl: line 3: expected one complete JSON object, found \'{"m": 8, "n"\'')
    assert line.endswith("(Expecting ':' delimiter)")


def test_twenty_problems_are_shown(write):
    lines = problems_of(write("t.csv", "m,n,k\n8,8,8\n" + "8,8,0\n" * 57))
    assert len(lines) == 21
    assert lines[0].startswith("t.csv: line 3: k")
    assert lines[-1] == "t.csv: and 37 further problems"


def test_iter_trace_ends_at_the_first_problem(write):
    path = write("t.csv", "name,m,n,k\na,8,8,8\nb,8,8,0\nc,8,8,8\nd,0,8,8\n")
    ops = []
    with pytest.raises(UserError) as caught:
        ops.extend(op.name for op in iter_trace(path))
    assert len(caught.value.problems) == 2
    stream = iter_trace(write("t.csv", "name,m,n,k\na,8,8,8\nb,8,8,0\n"))
    assert next(stream).name == "a"
    with pytest.raises(UserError):
        next(stream)


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_long_trace(write, suffix):
    rows = 200_000
    if suffix == "csv":
        text = "name,m,n,k,pattern\n" + "".join(f"op-{i},4096,{i + 1},4096,2:4\n" for i in range(rows))
    else:
        row = '{"name": "op-%d", "m": 4096, "n": %d, "k": 4096, "pattern": "2:4"}\n'
        text = "".join(row % (i, i + 1) for i in range(rows))
    load = load_workload(write(f"long.{suffix}", text))
    assert len(load.ops) == rows
    assert load.macs == 4096 * 4096 * rows * (rows + 1) // 2


# --- fuzz ---

CELLS = st.one_of(
    st.integers(-5, 2**21).map(str),
    st.sampled_from(["", "nan", "-inf", "1e9", "0x10", "2:4", "dense", "f16", "A", "conv", "٣", '"', "\r"]),
    st.text(max_size=8),
)
COLUMNS = st.sampled_from(["name", "m", "n", "k", "batch", "dtype", "pattern", "count", "kind", "mm", ""])


def loads_or_says_why(suffix: str, content: bytes) -> None:
    """A file either loads or raises `UserError` with lines that begin with its path."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"fuzz{suffix}"
        path.write_bytes(content)
        problems: tuple[str, ...] = ()
        try:
            assert load_workload(path).macs > 0
        except UserError as error:
            problems = error.problems or ("no reason",)
        assert all(line.startswith(str(path)) and "\n" not in line for line in problems)


@settings(max_examples=150, deadline=None)
@given(st.lists(COLUMNS, max_size=6), st.lists(st.lists(CELLS, max_size=6), max_size=4), st.booleans())
def test_fuzz_csv(header, rows, fix):
    header = ["m", "n", "k", *dict.fromkeys(h for h in header if h not in "mnk")] if fix else header
    text = io.StringIO()
    csv.writer(text).writerow(header)
    for row in rows:
        padded = [*row, *["8"] * len(header)][: len(header)] if fix else row
        csv.writer(text).writerow(padded)
    loads_or_says_why(".csv", text.getvalue().encode("utf-8", "surrogatepass"))


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([".csv", ".jsonl", ".toml"]), st.binary(max_size=60), st.booleans())
def test_fuzz_bytes(suffix, content, after_good):
    good = {".csv": CSV, ".jsonl": '{"m": 8, "n": 8, "k": 8}\n', ".toml": MODEL}[suffix]
    loads_or_says_why(suffix, good.encode() + content if after_good else content)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(COLUMNS | st.just("workload"), VALUES, max_size=6))
def test_fuzz_jsonl(values):
    loads_or_says_why(".jsonl", json.dumps({"m": 8, "n": 8, "k": 8, **values}).encode())
    loads_or_says_why(".jsonl", json.dumps(values).encode())


@settings(max_examples=100, deadline=None)
@given(st.integers(0, len(MODEL)), st.integers(0, 12), st.text(max_size=6))
def test_fuzz_toml(start, length, text):
    broken = MODEL[:start] + text + MODEL[start + length :]
    loads_or_says_why(".toml", broken.encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize(
    ("name", "file"), [("llama-3.1-8b", "llama-3.1-8b.toml"), ("mixed-trace", "mixed-trace.jsonl")]
)
def test_a_message_on_a_packaged_file_does_not_say_where_it_is_installed(name: str, file: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        load_workload(name, phase="nope")
    assert caught.value.problems[0].startswith(f"{file}: phase: expected ")
    mine = tmp_path / file
    mine.write_bytes((data_dir("workloads") / file).read_bytes())
    with pytest.raises(UserError) as caught:
        load_workload(mine, phase="nope")
    assert caught.value.problems[0].startswith(f"{mine}: phase: expected ")
