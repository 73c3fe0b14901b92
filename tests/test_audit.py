"""The audit of weights: counts against brute force, layouts, types, reasons, and the trace it writes."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file

import sparsesim as ss
from sparsesim.__main__ import main
from sparsesim.audit import audit_weights
from sparsesim.audit.groups import GroupCounter, block_multiple
from sparsesim.errors import UserError
from sparsesim.hardware import load_gpu
from sparsesim.sparsity import Pattern, check, prune
from sparsesim.stacks import get_stack
from sparsesim.weights import nonzero, open_weights
from sparsesim.weights.tensor import BITS
from sparsesim.workload import load_workload

GPU = load_gpu("a100_pcie_80gb")
STACK = get_stack("cusparselt")
PATTERNS = ["1:2", "2:4", "1:4", "4:8", "2:8", "1:8", "2:16", "3:5", "7:16", "2:4(pair 4:8)", "4:2:8"]


def audit(path, **more):
    return audit_weights(path, GPU, STACK, **more)


def by_name(path, **more):
    return {tensor.name: tensor for tensor in audit(path, **more).tensors}


def weights(rows, k, dtype=np.float16, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, k)).astype(dtype)


# --- counting ---


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 37), st.integers(1, 41)),
    density=st.sampled_from([0.1, 0.3, 0.5, 0.9]),
    seed=st.integers(0, 2**32 - 1),
    watched=st.sampled_from(PATTERNS),
)
def test_counts_are_those_of_the_definition_along_both_axes(shape, density, seed, watched):
    mask = np.random.default_rng(seed).random(shape) < density
    patterns = [Pattern.parse(text) for text in PATTERNS]
    target = Pattern.parse(watched)
    along, across = GroupCounter(patterns, target), GroupCounter(patterns, target)
    step = block_multiple(patterns)
    for start in range(0, shape[0], step):
        block = mask[start : start + step]
        along.add(block[:, :, None], (start, 0, 0))
        across.add(block[None], (0, start, 0))
    for counter, axis in ((along, 1), (across, 0)):
        for pattern in patterns:
            expected = check(mask.astype(np.uint8), pattern, axis=axis)
            assert (counter.groups[pattern], counter.broken[pattern]) == (expected.groups, expected.broken), pattern
        expected = check(mask.astype(np.uint8), target, axis=axis)
        assert (counter.first is None) == (expected.first is None)
    first = check(mask.astype(np.uint8), target).first
    assert first is None or along.first == (*first, 0)


@pytest.mark.parametrize("block", [1, 64, 1000])
def test_the_size_of_the_blocks_changes_nothing(block, tmp_path, monkeypatch):
    path = tmp_path / "w.safetensors"
    experts = prune(weights(3 * 50, 48), Pattern(2, 4)).reshape(3, 50, 48)
    experts[1, 37, 5:8] = 1
    save_file({"experts.w": experts, "b": weights(200, 33)}, path)
    whole = audit(path).to_dict()
    monkeypatch.setattr("sparsesim.audit.run.BLOCK", block)
    assert audit(path).to_dict() == whole


# --- types ---


def bf16_bits(array):
    """bf16 as the 16 bits that are stored: the upper half of the float32."""
    return (array.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def write_safetensors(path, tensors):
    """A file with types that the library cannot write from numpy: {name: (dtype, shape, bytes)}."""
    header, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [
        ("BF16", bf16_bits),
        ("F8_E4M3", lambda a: np.where(a != 0, 0x38 + (a < 0) * 0x80, (a < 0) * 0x80).astype(np.uint8)),
        ("F32", lambda a: a.astype(np.float32)),
        ("F64", lambda a: a.astype(np.float64)),
        ("I8", lambda a: np.sign(a).astype(np.int8)),
    ],
)
def test_narrow_types_are_read_without_their_library(dtype, stored, tmp_path):
    array = prune(weights(64, 128, np.float32), Pattern(2, 4))
    path = tmp_path / "w.safetensors"
    write_safetensors(path, {"w": (dtype, array.shape, stored(array).tobytes())})
    found = by_name(path)["w"]
    assert found.sparsity == 0.5
    assert found.pattern == "2:4"


def test_negative_zero_is_zero_and_nan_is_not():
    assert nonzero(np.array([-0.0, np.nan, 0, 1e-8], np.float16).tobytes(), "F16").tolist() == [
        False,
        True,
        False,
        False,
    ]
    assert nonzero(bytes([0x80, 0x7F, 0x01, 0]), "F8_E4M3").tolist() == [False, True, True, False]
    # the variants of AMD's MI300 have no negative zero: those bits are their NaN
    for dtype in ("F8_E4M3FNUZ", "F8_E5M2FNUZ"):
        assert nonzero(bytes([0x80, 0x7F, 0x01, 0]), dtype).tolist() == [True, True, True, False]


def test_every_type_that_safetensors_stores_has_its_bits(tmp_path):
    """The types that the library's headers may name; older ones do not know all."""
    pytest.importorskip("safetensors", minversion="0.8")
    names = [
        "BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "U16", "I16", "F16", "BF16",
        "U32", "I32", "F32", "U64", "I64", "F64", "C64", "F4", "F6_E2M3", "F6_E3M2",
    ]  # fmt: skip
    header, at = {}, 0
    for name in names:
        size = 64 * BITS[name] // 8
        header[name] = {"dtype": name, "shape": [8, 8], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    path = tmp_path / "w.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(at))
    with safe_open(path, "np") as file:
        assert set(file.keys()) == set(names)
    found = by_name(path)
    assert {name for name, tensor in found.items() if tensor.reason == "dtype-unknown"} == {
        "F8_E8M0", "C64", "F6_E2M3", "F6_E3M2",
    }  # fmt: skip
    assert nonzero(bytes([0x80, 0x01]), "F4").tolist() == [False, False, True, False]


def test_bf16_that_torch_writes_is_read(tmp_path):
    torch = pytest.importorskip("torch", reason="writes the bf16 file")
    from safetensors.torch import save_file as save_torch

    array = torch.from_numpy(prune(weights(32, 64, np.float32), Pattern(1, 4))).to(torch.bfloat16)
    fp8 = array.to(torch.float8_e4m3fn)
    save_torch({"a": array, "b": fp8}, tmp_path / "w.safetensors")
    found = by_name(tmp_path / "w.safetensors")
    assert [found[name].pattern for name in "ab"] == ["1:4", "1:4"]
    assert {name: found[name].op.dtype for name in "ab"} == {"a": "bf16", "b": "e4m3"}
    # Ampere has no fp8: the stack says so
    assert (found["a"].eligible, found["b"].reason) == (True, "dtype-unsupported")


# --- layouts and reasons ---


@pytest.fixture
def checkpoint(tmp_path):
    """One tensor for each outcome."""
    two_four = prune(weights(256, 512), Pattern(2, 4))
    broken = two_four.copy()
    broken[3, 4:8] = 1
    path = tmp_path / "model.safetensors"
    tensors = {
        "good.weight": two_four,
        "transposed.weight": prune(weights(256, 512), Pattern(2, 4), axis=0),
        "dense.weight": weights(256, 512),
        "one_group.weight": broken,
        "odd.weight": prune(weights(100, 36), Pattern(2, 4)),
        "four_eight.weight": prune(weights(64, 64), Pattern(4, 8)),
        "model.embed_tokens.weight": two_four,
        "conv.weight": np.moveaxis(prune(weights(32 * 9, 64), Pattern(2, 4)).reshape(32, 3, 3, 64), 3, 1).copy(),
        "experts.down_proj": prune(weights(4 * 64, 128), Pattern(2, 4)).reshape(4, 64, 128),
        "stem.conv.weight": weights(16, 27).reshape(16, 3, 3, 3),
        "packed.qweight": np.ones((16, 16), np.int32),
        "norm.weight": weights(1, 512)[0],
    }
    save_file(tensors, path)
    return path


def test_each_tensor_has_its_pattern_and_its_reason(checkpoint):
    found = by_name(checkpoint)
    assert {name: tensor.reason for name, tensor in found.items()} == {
        "good.weight": "eligible",
        "transposed.weight": "transposed-layout",
        "dense.weight": "pattern-broken",
        "one_group.weight": "pattern-broken",
        "odd.weight": "shape-alignment",
        "four_eight.weight": "pattern-unsupported",
        "model.embed_tokens.weight": "embedding",
        "conv.weight": "eligible",
        "experts.down_proj": "eligible",
        "stem.conv.weight": "axis-too-short",
        "packed.qweight": "dtype-unsupported",
        "norm.weight": "not-a-matrix",
    }
    one = found["one_group.weight"]
    assert one.first == (3, 4)
    assert (one.along_k.broken["2:4"], one.along_k.groups["2:4"]) == (1, 256 * 128)
    assert "first at [3, 4]" in one.text
    assert found["transposed.weight"].across_k.complies[0] == "2:4"
    assert found["transposed.weight"].across_k.axis == 0
    conv = found["conv.weight"].op
    assert (conv.m, conv.k, conv.batch, conv.kind) == (32, 64 * 9, 1, "conv")
    experts = found["experts.down_proj"].op
    assert (experts.m, experts.k, experts.batch) == (64, 128, 4)
    # A side shorter than a group complies with nothing, though it breaks nothing.
    assert found["stem.conv.weight"].along_k.complies == ()


def test_a_stored_transpose_is_a_question_of_the_summed_axis(checkpoint):
    found = by_name(checkpoint, k_axis=0)
    assert found["transposed.weight"].reason == "eligible"
    assert (found["transposed.weight"].op.m, found["transposed.weight"].op.k) == (512, 256)
    assert found["good.weight"].reason == "transposed-layout"


def test_the_caller_names_the_pattern_to_judge_by(checkpoint):
    found = by_name(checkpoint, patterns=["4:8"])
    assert found["four_eight.weight"].reason == "pattern-unsupported"
    assert found["dense.weight"].text.startswith("100 % of the groups along axis 1 break 4:8")
    blocks = by_name(checkpoint, patterns=["16:2:8"])
    assert set(blocks["good.weight"].along_k.groups) == {"16:2:8"}
    for bad in (["dense"], ["2:8 V:N:M"]):
        with pytest.raises(UserError, match="patterns: expected"):
            audit(checkpoint, patterns=bad)


def test_the_command_writes_the_trace_of_the_eligible(checkpoint, tmp_path, capsys):
    out = tmp_path / "eligible.jsonl"
    arguments = ["audit", str(checkpoint), "--gpu", "a100_pcie_80gb", "--out", str(out)]
    assert main([*arguments, "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["eligible"] == 3
    assert data["reasons"]["pattern-broken"] == {"tensors": 2, "elements": 2 * 256 * 512}
    workload = load_workload(out)
    assert {op.name for op in workload.ops} == {"good.weight", "conv.weight", "experts.down_proj"}
    result = ss.simulate_workload(GPU, workload)
    assert {row.gemm["path"] for row in result.rows} == {"sparse"}
    assert main(arguments) == 0
    assert "transposed-layout" in capsys.readouterr().out


@pytest.mark.parametrize("suffix", [".jsonl", ".toml"])
def test_a_name_that_no_workload_has_is_no_reason_to_be_refused(suffix, tmp_path, capsys):
    escape = "\x1b[31mred\u202e"
    names = ["a" * 300 + "1", "a" * 300 + "2", escape, "encoder/layer.0/w", "encoder.layer.0.w"]
    good = prune(weights(64, 64), Pattern(2, 4))
    folder = tmp_path / "odd\u202ename"
    folder.mkdir()
    save_file(dict.fromkeys(names, good), folder / "w.safetensors")
    out = tmp_path / f"out{suffix}"
    assert main(["audit", str(folder), "--gpu", "a100_pcie_80gb", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "eligible  5 of 5 tensors" in printed
    # what commands a terminal stays on the page of the file it came in
    assert not {"\x1b", "\u202e"} & set(printed)
    assert r"\x1b[31mred\u202e" in printed
    ops = {op.name for op in load_workload(out).ops}
    assert len(ops) == 5
    assert {"?[31mred?", "encoder.layer.0.w", "encoder.layer.0.w#2"} <= ops


def test_nothing_eligible_writes_nothing(tmp_path, capsys):
    save_file({"w": weights(64, 64)}, tmp_path / "w.safetensors")
    out = tmp_path / "out.jsonl"
    assert main(["audit", str(tmp_path / "w.safetensors"), "--gpu", "rtx4090", "--out", str(out)]) == 2
    captured = capsys.readouterr()
    assert "expected a tensor that cusparselt runs sparse on rtx4090, found 'none of 1'" in captured.err
    assert "pattern-broken" in captured.out  # what was found is told all the same
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--gpu", "a100"], "a100"),
        (["--gpu", "rtx4090", "--pattern", "9:4"], "pattern: expected"),
        (["--gpu", "rtx4090", "--k-axis", "2"], "k_axis: expected 0 or 1, found 2"),
        (["--gpu", "rtx4090", "--tokens", "0"], "error: tokens: expected a positive integer, found 0"),
        (["--gpu", "rtx4090", "--out", "x.csv"], "expected a file ending in .toml or .jsonl"),
        (["--gpu", "rtx4090", "--out", "/nowhere/x.toml"], "expected a file that can be written"),
    ],
)
def test_bad_arguments_are_one_line(arguments, expected, checkpoint, capsys):
    assert main(["audit", str(checkpoint), *arguments]) == 2
    captured = capsys.readouterr()
    assert expected in captured.err
    assert captured.out == ""


# --- the other formats ---


def test_npz_npy_and_fortran_order(tmp_path):
    array = prune(weights(64, 128), Pattern(2, 4))
    np.savez(tmp_path / "plain.npz", w=array, bias=array[0])
    np.savez_compressed(tmp_path / "small.npz", w=np.asfortranarray(array))
    np.save(tmp_path / "w.npy", array.astype(np.float32))
    for name in ("plain.npz", "small.npz", "w.npy"):
        found = by_name(tmp_path / name)["w"]
        assert found.pattern == "2:4", name
        assert (found.op.m, found.op.k) == (64, 128)
    assert by_name(tmp_path / "w.npy")["w"].op.dtype == "tf32"


def test_shards_by_index_and_by_folder(tmp_path):
    array = prune(weights(64, 128), Pattern(2, 4))
    save_file({"a": array}, tmp_path / "model-1.safetensors")
    save_file({"b": array}, tmp_path / "model-2.safetensors")
    assert set(by_name(tmp_path)) == {"a", "b"}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}))
    assert set(by_name(tmp_path)) == set(by_name(index)) == {"a", "b"}
    assert open_weights(index).nbytes == 2 * array.nbytes
