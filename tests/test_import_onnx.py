"""ONNX models made with the library: sizes, products, everything else by name, and broken files."""

import os

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import Builder, bert, save, vit

import sparsesim as ss
from sparsesim.__main__ import main
from sparsesim.audit import audit_weights
from sparsesim.errors import UserError
from sparsesim.hardware import load_gpu
from sparsesim.importers import import_file
from sparsesim.results_workload import WorkloadResult
from sparsesim.sparsity import Pattern, prune
from sparsesim.stacks import get_stack
from sparsesim.weights import open_weights
from sparsesim.weights.onnx_model import load_onnx
from sparsesim.workload import load_workload

F16 = TensorProto.FLOAT16


def info(name, shape, elem=F16):
    return helper.make_tensor_value_info(name, elem, shape)


def ops_of(path, **dims):
    return {op.name: op for op in import_file(path, dims=dims or None).workload.ops}


def size(op):
    return (op.batch, op.m, op.n, op.k, op.kind)


def test_bert_is_its_products_and_everything_else_by_name(tmp_path):
    imported = import_file(save(bert(), tmp_path / "bert.onnx"), dims={"batch": 2, "sequence": 48})
    ops = {op.name: op for op in imported.workload.ops}
    assert len(ops) == 2 * 8
    assert size(ops["layer.0.query.MatMul"]) == (1, 64, 96, 64, "linear")
    assert size(ops["layer.1.up.MatMul"]) == (1, 256, 96, 64, "linear")
    assert size(ops["layer.1.down.MatMul"]) == (1, 64, 96, 256, "linear")
    # 2 sequences × 4 heads: keys × queries × head size, then values
    assert size(ops["layer.0.attention.QK"]) == (8, 48, 48, 16, "matmul")
    assert size(ops["layer.0.attention.PV"]) == (8, 16, 48, 48, "matmul")
    assert {op.pattern for op in ops.values() if op.kind == "linear"} == {"2:4"}
    assert {op.pattern for op in ops.values() if op.kind == "matmul"} == {"dense"}
    others = {op.name: op for op in imported.workload.others}
    nodes = bert().graph.node
    assert len(others) + len(ops) == len(nodes)
    softmax = others["layer.0.attention.Softmax"]
    assert (softmax.bytes, softmax.flops) == (2 * 2 * 8 * 48 * 48, 5 * 8 * 48 * 48)
    assert others["layer.0.q.Reshape"].bytes == 0
    assert others["layer.0.norm1"].flops == 7 * 2 * 48 * 64
    assert all(op.bytes is not None and op.flops is not None for op in others.values())


def test_vit_is_a_convolution_as_implicit_gemm_and_a_gemm(tmp_path):
    ops = ops_of(save(vit(), tmp_path / "vit.onnx"), batch=8)
    assert size(ops["embed.Conv"]) == (1, 64, 8 * 16, 3 * 8 * 8, "conv")
    assert size(ops["head.Gemm"]) == (1, 10, 8, 64, "linear")
    assert size(ops["layer.0.attention.QK"]) == (8 * 4, 16, 16, 16, "matmul")


def test_the_workload_simulates_and_reads_back(tmp_path):
    imported = import_file(save(bert(), tmp_path / "bert.onnx"), dims={"batch": 1, "sequence": 128})
    for suffix in (".jsonl", ".toml"):
        imported.write(tmp_path / f"out{suffix}")
        read = load_workload(tmp_path / f"out{suffix}")
        assert (read.ops, read.others) == (imported.workload.ops, imported.workload.others)
    result = ss.simulate_workload("a100_pcie_80gb", tmp_path / "out.jsonl")
    reasons = {row.name: row.reason for row in result.rows}
    assert reasons["layer.0.up.MatMul"] == "eligible"
    assert reasons["layer.0.attention.QK"] == "dense-weight"
    assert result.others == imported.workload.others
    result.save(tmp_path / "result.json")
    assert WorkloadResult.load(tmp_path / "result.json").to_dict() == result.to_dict()


def test_products_of_all_sorts(tmp_path):
    build = Builder()
    x = build.node("Conv", ["x", build.random("c.w", 32, 4, 3, 3)], "grouped", group=4, pads=[1, 1, 1, 1])
    x = build.node("ConvTranspose", [x, build.random("t.w", 32, 8, 2, 2)], "up", strides=[2, 2])
    x = build.node("GlobalAveragePool", [x], "pool")
    x = build.node("Flatten", [x], "flat")
    turned = build.node("Transpose", [build.random("l.w", 24, 8)], "turn", perm=[1, 0])
    x = build.node("MatMul", [x, turned], "turned")
    build.node("Einsum", [x, build.random("e.w", 40, 24)], "einsum", equation="bi,oi->bo")
    build.node("Einsum", ["q", "k"], "scores", equation="bhqd,bhkd->bhqk")
    build.node("MatMul", [build.random("left.w", 16, 24), build.node("Transpose", [x], "xt", perm=[1, 0])], "left")
    build.node("MatMul", ["q", build.random("stack.w", 2, 16, 8)], "stack")
    model = build.model([info("x", [5, 16, 10, 10]), info("q", [3, 2, 7, 16]), info("k", [3, 2, 9, 16])], x)
    imported = import_file(save(model, tmp_path / "m.onnx"))
    ops = {op.name: op for op in imported.workload.ops}
    assert size(ops["grouped"]) == (4, 8, 5 * 100, 4 * 9, "conv")
    assert size(ops["up"]) == (1, 8 * 4, 5 * 100, 32, "conv")
    assert size(ops["turned"]) == (1, 24, 5, 8, "linear")
    assert size(ops["einsum"]) == (1, 40, 5, 24, "linear")
    assert size(ops["scores"]) == (6, 9, 7, 16, "matmul")
    assert size(ops["left"]) == (1, 16, 5, 24, "linear")
    assert size(ops["stack"]) == (6, 8, 7, 16, "linear")
    others = {op.name: op for op in imported.workload.others}
    assert "before the run" in others["turn"].note
    assert others["pool"].flops == 5 * 8 * 400


def test_integer_products_and_attention_ops(tmp_path):
    build = Builder()
    zero = build.const("zero", np.int8(0))
    scale = build.const("scale", np.float32(1))
    w = build.const("w", np.ones((64, 32), np.int8))
    build.node("MatMulInteger", ["a", w], "integer")
    build.node("QLinearMatMul", ["a", scale, zero, w, scale, zero, scale, zero], "quantised")
    build.node("Attention", ["q", "k", "v"], "attention")
    y = build.node("Attention", ["h", build.random("qkv.w", 64, 192)], "fused", domain="com.microsoft", num_heads=4)
    y = build.node("BiasGelu", [y, build.const("b", np.zeros(64, np.float16))], "gelu", domain="com.microsoft")
    y = build.node("MatMul", [y, build.random("after.w", 64, 16)], "after")
    inputs = [info("a", [10, 64], TensorProto.INT8), info("q", [1, 8, 20, 16]), info("k", [1, 2, 30, 16]),
              info("v", [1, 2, 30, 16]), info("h", [3, 12, 64])]  # fmt: skip
    model = build.model(inputs, y, opsets=["com.microsoft"])
    model.opset_import[0].version = 23
    imported = import_file(save(model, tmp_path / "m.onnx"))
    ops = {op.name: op for op in imported.workload.ops}
    assert ops["integer"].dtype == ops["quantised"].dtype == "i8"
    assert size(ops["quantised"]) == (1, 32, 10, 64, "linear")
    # 8 query heads share 2 keys: 4 × 20 queries for each
    assert size(ops["attention.scores"]) == (2, 30, 80, 16, "matmul")
    assert size(ops["attention.values"]) == (2, 16, 80, 30, "matmul")
    assert size(ops["fused.qkv"]) == (1, 192, 36, 64, "linear")
    assert size(ops["fused.scores"]) == (12, 12, 12, 16, "matmul")
    # sizes pass through ops that the library's shape inference does not know
    assert size(ops["after"]) == (1, 16, 36, 64, "linear")
    assert {"com.microsoft.BiasGelu", "Softmax"} <= {op.op for op in imported.workload.others}


def test_unknown_ops_and_control_flow_are_named(tmp_path):
    build = Builder()
    y = build.node("MatMul", ["x", build.random("w", 8, 16)], "known")
    build.node("Mystery", [y], "odd", domain="my.domain")
    inner = helper.make_graph([helper.make_node("MatMul", [y, "w2"], ["z"])], "then", [], [info("z", None)])
    build.const("w2", np.zeros((16, 4), np.float16))
    build.node("If", ["flag"], "branch", then_branch=inner, else_branch=inner)
    model = build.model([info("x", [4, 8]), info("flag", [], TensorProto.BOOL)], y, opsets=["my.domain"])
    others = {op.name: op for op in import_file(save(model, tmp_path / "m.onnx")).workload.others}
    assert (others["odd"].op, others["odd"].bytes, others["odd"].flops) == ("my.domain.Mystery", None, None)
    assert others["branch"].note == "control flow, its body is not counted: MatMul"


def test_functions_of_the_model_are_inlined(tmp_path):
    build = Builder()
    build.node("Twice", ["x", build.random("w", 8, 8)], "call", domain="mine")
    nodes = [helper.make_node("MatMul", ["a", "b"], ["t"]), helper.make_node("MatMul", ["t", "b"], ["c"])]
    twice = helper.make_function("mine", "Twice", ["a", "b"], ["c"], nodes, [helper.make_opsetid("", 21)])
    model = build.model([info("x", [4, 8])], "call_out", functions=[twice], opsets=["mine"])
    assert len(ops_of(save(model, tmp_path / "m.onnx"))) == 2


# --- errors ---


def error_of(path, **more):
    with pytest.raises(UserError) as caught:
        import_file(path, **more)
    return caught.value.problems


def test_dynamic_dimensions_need_sizes(tmp_path, capsys):
    path = save(bert(), tmp_path / "bert.onnx")
    lines = error_of(path)
    assert len(lines) == 2
    assert lines[0].endswith("axis 0: expected a size for dynamic dimension batch: --dim batch=SIZE, found 'none'")
    lines = error_of(path, dims={"batch": 1, "sequenze": 4})
    assert lines[-1].endswith("(did you mean 'sequence'?)")
    out = tmp_path / "out.toml"
    assert main(["import", str(path), "--out", str(out)]) == 2
    assert capsys.readouterr().err.count("error:") == 2
    assert not out.exists()
    assert (
        main(["import", str(path), "--dim", "batch=1", "--dim", "sequence=16", "--out", str(out), "--json", "-"]) == 0
    )
    for bad in ("batch", "batch=", "=1", "batch=x", "batch=0"):
        assert main(["import", str(path), "--dim", bad, "--dim", "sequence=16"]) == 2


@pytest.mark.parametrize("command", [["import"], ["report", "--gpu", "a100_pcie_80gb"]])
@pytest.mark.parametrize("text", ["9" * 5000, "²", "٣", "1_0", "+3", " 3", "-1", "0", "3.0", ""])
def test_a_size_that_is_no_plain_number_is_one_line(command, text, tmp_path, capsys):
    path = save(bert(), tmp_path / "bert.onnx")
    assert main([*command, str(path), "--dim", f"batch={text}", "--dim", "sequence=8"]) == 2
    assert capsys.readouterr().err.startswith("error: --dim batch: expected a positive integer, found '")


def test_an_unnamed_dimension_is_called_by_its_input(tmp_path):
    build = Builder()
    y = build.node("MatMul", ["x", build.random("w", 8, 16)], "mm")
    path = save(build.model([info("x", [None, 8])], y), tmp_path / "m.onnx")
    assert "--dim x.0=SIZE" in error_of(path)[0]
    assert ops_of(path, **{"x.0": 3})["mm"].n == 3


def test_a_product_of_unknown_size_is_an_error_that_names_why(tmp_path):
    build = Builder()
    y = build.node("Mystery", ["x"], "odd", domain="mine")
    y = build.node("MatMul", [y, build.random("w", 8, 16)], "mm")
    path = save(build.model([info("x", [4, 8])], y, opsets=["mine"]), tmp_path / "m.onnx")
    assert error_of(path) == (
        f"{path}: node mm (MatMul): expected known sizes of its operands, "
        "found \"none for 'odd_out', the output of a Mystery\"",
    )


def test_a_model_without_products_names_what_it_has(tmp_path):
    build = Builder()
    path = save(build.model([info("x", [4])], build.node("Relu", ["x"], "relu")), tmp_path / "m.onnx")
    assert "none among 1 ops (Relu)" in error_of(path)[0]


@pytest.mark.parametrize("cut", [0, 1, 10, 0.3, 0.9, -1])
def test_a_truncated_model_is_one_error(cut, tmp_path):
    raw = bert().SerializeToString()
    path = tmp_path / "m.onnx"
    path.write_bytes(raw[: int(len(raw) * cut) if isinstance(cut, float) else cut])
    for read in (lambda: import_file(path, dims={"batch": 1, "sequence": 4}), lambda: open_weights(path)):
        with pytest.raises(UserError) as caught:
            read()
        assert len(caught.value.problems) == 1
        assert "ONNX model" in caught.value.problems[0]


def test_bytes_that_are_no_model_at_all(tmp_path):
    path = tmp_path / "m.onnx"
    rng = np.random.default_rng(0)
    for length in (1, 5, 50, 500):
        for _ in range(40):
            path.write_bytes(rng.integers(0, 256, length, dtype=np.uint8).tobytes())
            with pytest.raises(UserError):
                open_weights(path)


# --- weights ---


def pruned(array):
    return prune(array, Pattern(2, 4), axis=0)


def audit(path):
    found = audit_weights(path, load_gpu("a100_pcie_80gb"), get_stack("cusparselt"))
    return {tensor.name: tensor for tensor in found.tensors}


@pytest.mark.parametrize("external", [False, True])
def test_initialisers_are_audited_along_the_axis_their_product_sums(external, tmp_path):
    model = vit(weight=pruned, hidden=96, ffn=384)
    more = {"save_as_external_data": True, "location": "weights.bin", "size_threshold": 0} if external else {}
    found = audit(save(model, tmp_path / "vit.onnx", **more))
    up = found["layer.0.up.weight"]
    assert (up.eligible, up.along_k.axis, up.along_k.complies[0]) == (True, 0, "2:4")
    assert (up.op.m, up.op.k) == (384, 96)
    # Gemm with transB sums along axis 1; the Conv along its channels, of which there are 3
    assert found["head.weight"].along_k.axis == 1
    assert found["embed.weight"].reason == "axis-too-short"
    assert found["layer.0.up.bias"].reason == "not-a-matrix"
    assert audit(save(bert(), tmp_path / "bert.onnx"))["embeddings.word"].reason == "embedding"


def test_a_weight_behind_a_transpose_or_a_cast_keeps_its_axis(tmp_path):
    build = Builder(np.float32)
    w = build.const("w", prune(build.rng.standard_normal((64, 32)).astype(np.float32), Pattern(2, 4)))
    w = build.node("Cast", [build.node("Transpose", [w], "turn", perm=[1, 0])], "cast", to=F16)
    build.node("MatMul", ["x", w], "mm")
    build.node("Add", ["x", build.const("table", np.ones((4, 32), np.float16))], "add")
    found = audit(save(build.model([info("x", [4, 32])], "mm_out"), tmp_path / "m.onnx"))
    assert (found["w"].along_k.axis, found["w"].pattern, found["w"].op.m) == (1, "2:4", 64)
    assert found["table"].reason == "op-unsupported"


def test_weights_that_control_flow_multiplies_by_are_audited(tmp_path):
    """As in a merged decoder: the weights are outside, or inside, of the branches that use them."""
    build = Builder()
    outside = build.const("w", pruned(build.rng.standard_normal((64, 32)).astype(np.float16)))
    own = numpy_helper.from_array(pruned(build.rng.standard_normal((64, 32)).astype(np.float16)), "own")
    branches = []
    for name, weight, stored in (("then", outside, []), ("else", "own", [own])):
        node = helper.make_node("MatMul", ["x", weight], [f"{name}_out"])
        branches.append(helper.make_graph([node], name, [], [info(f"{name}_out", None)], stored))
    y = build.node("If", ["flag"], "merged", then_branch=branches[0], else_branch=branches[1])
    model = build.model([info("x", [4, 64]), info("flag", [], TensorProto.BOOL)], y)
    found = audit(save(model, tmp_path / "m.onnx"))
    assert {name: (tensor.eligible, tensor.along_k.axis) for name, tensor in found.items()} == {
        "w": (True, 0), "merged.else_branch/own": (True, 0),
    }  # fmt: skip


def test_weights_of_a_functions_products_are_audited(tmp_path):
    build = Builder()
    build.node("Linear", ["x", build.const("w", pruned(np.ones((64, 32), np.float16)))], "call", domain="mine")
    nodes = [helper.make_node("MatMul", ["a", "b"], ["c"])]
    linear = helper.make_function("mine", "Linear", ["a", "b"], ["c"], nodes, [helper.make_opsetid("", 21)])
    model = build.model([info("x", [4, 64])], "call_out", functions=[linear], opsets=["mine"])
    assert audit(save(model, tmp_path / "m.onnx"))["w"].eligible


def test_a_weight_that_is_stored_without_its_zeros_is_named(tmp_path):
    build = Builder()
    build.node("MatMul", ["x", "w"], "mm")
    model = build.model([info("x", [4, 16])], "mm_out")
    values = numpy_helper.from_array(np.ones(3, np.float16), "w")
    model.graph.sparse_initializer.append(
        helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([1, 5, 9]), "w_at"), [16, 8])
    )
    path = save(model, tmp_path / "m.onnx")
    assert size(ops_of(path)["mm"]) == (1, 8, 4, 16, "linear")
    with pytest.raises(UserError, match=r"w: expected an initialiser that stores its zeros, found 'a sparse_init"):
        audit(path)


def test_large_data_stay_in_the_file(tmp_path):
    path = save(vit(hidden=128), tmp_path / "vit.onnx")
    loaded = load_onnx(path)
    kept = sum(len(tensor.raw_data) for tensor in loaded.model.graph.initializer)
    assert kept < 0.02 * path.stat().st_size
    array = onnx.numpy_helper.to_array(
        next(t for t in vit(hidden=128).graph.initializer if t.name == "layer.0.up.weight")
    )
    offset, length = loaded.embedded["layer.0.up.weight"]
    assert path.read_bytes()[offset : offset + length] == array.tobytes()


def external(tmp_path, **entries):
    """A model whose one weight is said to be at `entries`."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "w.bin").write_bytes(bytes(2 * 16 * 16))
    (tmp_path / "secret.bin").write_bytes(bytes(2 * 16 * 16))
    build = Builder()
    build.node("MatMul", ["x", build.random("w", 16, 16)], "mm")
    model = build.model([info("x", [4, 16])], "mm_out")
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    return folder / "m.onnx"


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ({"location": "../secret.bin"}, "expected a location in the model's folder, found '../secret.bin'"),
        ({"location": "a/../../secret.bin"}, "expected a location in the model's folder"),
        ({"location": "/etc/passwd"}, "expected a location in the model's folder"),
        ({"location": "C:\\secret.bin"}, "expected a location in the model's folder"),
        ({"location": "link.bin"}, "which links to"),
        ({}, "expected a location in the model's folder"),
        ({"location": "missing.bin"}, "expected a file, found nothing of that name"),
        ({"location": "w.bin", "length": "100"}, "expected 512 bytes, by shape and type, found 100"),
        ({"location": "w.bin", "offset": "8"}, "expected 520 bytes in w.bin, found 512"),
        ({"location": "w.bin", "offset": "-8"}, "expected offset as a count of bytes, found '-8'"),
    ],
)
def test_external_data_cannot_leave_the_folder_or_lie(entries, expected, tmp_path):
    path = external(tmp_path, **entries)
    os.symlink(tmp_path / "secret.bin", path.parent / "link.bin")
    with pytest.raises(UserError) as caught:
        audit(path)
    assert len(caught.value.problems) == 1
    assert expected in caught.value.problems[0]
    # an import reads no weights, so that they may be missing; but a model that leaves its folder is refused
    if "folder" in expected or "links" in expected:
        assert error_of(path) == caught.value.problems
    else:
        assert size(ops_of(path)["mm"]) == (1, 16, 4, 16, "linear")


def test_sound_external_data_are_read(tmp_path):
    found = audit(external(tmp_path, location="w.bin", offset="0", length="512"))
    assert found["w"].sparsity == 1.0


def test_simulate_says_what_it_leaves_out(tmp_path, capsys):
    path = save(bert(), tmp_path / "bert.onnx")
    arguments = ["--dim", "batch=1", "--dim", "sequence=64", "--out", str(tmp_path / "o.jsonl")]
    assert main(["import", str(path), *arguments]) == 0
    assert main(["simulate", str(tmp_path / "o.jsonl"), "--gpu", "a100_pcie_80gb"]) == 0
    assert "ops that are no GEMM, not simulated" in capsys.readouterr().out


@pytest.mark.filterwarnings("default")
def test_a_model_that_torch_exported(tmp_path):
    torch = pytest.importorskip("torch", reason="exports the model")
    pytest.importorskip("onnxscript", reason="torch exports with it")
    layer = torch.nn.TransformerEncoderLayer(32, 4, 128, batch_first=True).eval()
    path = tmp_path / "layer.onnx"
    dynamic = {"src": {0: torch.export.Dim("batch", min=1, max=64)}}
    torch.onnx.export(layer, (torch.randn(2, 16, 32),), str(path), dynamo=True, dynamic_shapes=dynamic, verbose=False)
    found = {(op.m, op.n, op.k, op.batch) for op in ops_of(path, batch=3).values()}
    assert found >= {(96, 48, 32, 1), (32, 48, 32, 1), (128, 48, 32, 1), (32, 48, 128, 1), (16, 16, 8, 12)}
