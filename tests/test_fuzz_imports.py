"""Whatever bytes or fields a foreign file has: a workload, or a `UserError`; never another exception."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx_models import bert, vit

from sparsesim.errors import UserError
from sparsesim.importers import import_file
from sparsesim.importers.hf_families import FAMILIES
from sparsesim.weights import open_weights

FUZZ = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
LLAMA = json.loads((Path(__file__).parent / "workloads" / "llama-3.1-8b-config.json").read_text())
FIELDS = [
    *LLAMA, "num_local_experts", "num_experts", "num_experts_per_tok", "moe_intermediate_size", "sliding_window",
    "layer_types", "text_config", "vision_config", "image_size", "patch_size", "d_model", "d_kv", "d_ff", "num_heads",
    "num_layers", "n_embd", "n_head", "n_layer", "id2label", "quantization_config", "ffn_dim", "mlp_only_layers",
    "shared_expert_intermediate_size", "decoder_sparse_step", "max_window_layers", "use_sliding_window", "head_dim",
]  # fmt: skip
VALUES = (
    st.integers(-1, 9)
    | st.sampled_from([0, 64, 4096, 1 << 20, 1 << 21, 1 << 70, 1.5, float("nan"), "", "gelu", "2:4"])
    | st.none()
    | st.booleans()
    | st.lists(st.integers(-1, 3) | st.text(max_size=2), max_size=2)
    | st.dictionaries(st.sampled_from(FIELDS), st.integers(-1, 64) | st.text(max_size=2), max_size=3)
)


def attempt(read):
    """Run `read`; a `UserError` must have lines, and few of them."""
    try:
        return read()
    except UserError as error:
        lines = error.problems
    assert 1 <= len(lines) <= 60
    assert all(line and "\n" not in line for line in lines)
    return None


@FUZZ
@given(st.sampled_from(sorted(FAMILIES)), st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=6))
def test_configs(tmp_path, kind, fields):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, "num_experts": 8, "num_experts_per_tok": 2, **fields, "model_type": kind}))
    attempt(lambda: import_file(path))


@FUZZ
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255)), min_size=1, max_size=3), st.booleans())
def test_onnx_models_with_flipped_bytes(tmp_path, flips, image):
    raw = bytearray((vit(hidden=16, ffn=32) if image else bert(hidden=16, ffn=32, vocab=10)).SerializeToString())
    for place, flip in flips:
        raw[place % len(raw)] ^= flip
    path = tmp_path / "m.onnx"
    path.write_bytes(raw)
    attempt(lambda: import_file(path, dims={"batch": 1} if image else {"batch": 1, "sequence": 8}))
    weights = attempt(lambda: open_weights(path))
    for tensor in weights.tensors if weights else ():
        if tensor.readable and tensor.size < 10**6:
            attempt(lambda tensor=tensor: list(tensor.blocks([tensor.size])))


EVENTS = st.dictionaries(
    st.sampled_from(["ph", "cat", "name", "pid", "tid", "ts", "dur", "args"]),
    st.sampled_from(["X", "cpu_op", "kernel", "aten::mm", "aten::linear", "aten::conv2d"])
    | st.integers(-1, 9)
    | st.dictionaries(
        st.sampled_from(["Input Dims", "Input type", "Concrete Inputs", "External id"]),
        st.lists(st.lists(st.integers(-1, 9), max_size=4) | st.text(max_size=3) | st.integers(), max_size=4),
        max_size=3,
    )
    | st.none(),
)


@FUZZ
@given(st.lists(EVENTS | st.integers() | st.none(), max_size=4), st.booleans())
def test_traces(tmp_path, events, good):
    if good:  # so that deeper checks are reached
        events = [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2, **(e or {})} for e in events
                  if not isinstance(e, int)]  # fmt: skip
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    attempt(lambda: import_file(path))


@FUZZ
@given(st.text(max_size=200) | st.binary(max_size=200), st.sampled_from([".json", ".csv", ".onnx", ".json.gz"]))
def test_any_text_or_bytes(tmp_path, content, suffix):
    path = tmp_path / f"x{suffix}"
    path.write_bytes(content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content)
    attempt(lambda: import_file(path))


@FUZZ
@given(
    st.lists(
        st.sampled_from(
            ['":aten::mm, sizes = [[8, 8], [8, 8]]"', '":aten::mm, sizes = [[8,"',
             '":aten::bmm, sizes = [[1], [2, 3]]"', "PushPop", "1", "-1", "x", '"', "", "sm80_sparse_gemm"]
        ),
        min_size=3, max_size=5,
    )
)  # fmt: skip
def test_nsight_rows(tmp_path, cells):
    path = tmp_path / "x.csv"
    path.write_text("NVTX Range,NVTX Inst,Kernel Name\n" + ",".join(cells) + "\n")
    attempt(lambda: import_file(path))


def test_a_program_of_other_bytes(tmp_path):
    pytest.importorskip("torch", reason="reads the program")
    path = tmp_path / "x.pt2"
    path.write_bytes(b"PK\x03\x04 no archive")
    assert attempt(lambda: import_file(path)) is None
