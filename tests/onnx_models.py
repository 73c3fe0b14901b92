"""ONNX models as an export writes them, built with the library: a small BERT encoder and a small ViT."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Builder:
    """Collects nodes and initialisers of one graph."""

    def __init__(self, dtype=np.float16, weight=None, seed=0):
        self.nodes, self.initializers = [], []
        self.dtype = np.dtype(dtype)
        self.rng = np.random.default_rng(seed)
        self.weight = weight or (lambda array: array)

    @property
    def elem(self):
        return helper.np_dtype_to_tensor_dtype(self.dtype)

    def const(self, name, array):
        self.initializers.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def random(self, name, *shape):
        """A weight, with the pattern that the builder gives it: along axis 0 of [in, out]."""
        return self.const(name, self.weight(self.rng.standard_normal(shape).astype(self.dtype)))

    def node(self, op, inputs, name, outputs=1, domain="", **attributes):
        names = [f"{name}_out{i}" if i else f"{name}_out" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, name=name, domain=domain, **attributes))
        return names[0] if outputs == 1 else names

    def linear(self, x, name, k, m):
        product = self.node("MatMul", [x, self.random(f"{name}.weight", k, m)], f"{name}/MatMul")
        bias = self.const(f"{name}.bias", np.zeros(m, self.dtype))
        return self.node("Add", [bias, product], f"{name}/Add")

    def norm(self, x, name, hidden):
        scale = self.const(f"{name}.weight", np.ones(hidden, self.dtype))
        bias = self.const(f"{name}.bias", np.zeros(hidden, self.dtype))
        return self.node("LayerNormalization", [x, scale, bias], name)

    def heads(self, x, name, heads, size, perm):
        shape = self.const(f"{name}.shape", np.array([0, -1, heads, size]))
        return self.node("Transpose", [self.node("Reshape", [x, shape], f"{name}/Reshape")], f"{name}/T", perm=perm)

    def block(self, x, prefix, hidden, heads, ffn):
        size = hidden // heads
        q, k, v = (self.linear(x, f"{prefix}.{name}", hidden, hidden) for name in ("query", "key", "value"))
        q = self.heads(q, f"{prefix}.q", heads, size, [0, 2, 1, 3])
        k = self.heads(k, f"{prefix}.k", heads, size, [0, 2, 3, 1])
        v = self.heads(v, f"{prefix}.v", heads, size, [0, 2, 1, 3])
        scores = self.node("MatMul", [q, k], f"{prefix}.attention/QK")
        scale = self.const(f"{prefix}.scale", np.array(size**-0.5, self.dtype))
        scores = self.node("Mul", [scores, scale], f"{prefix}.attention/Mul")
        scores = self.node("Softmax", [scores], f"{prefix}.attention/Softmax", axis=-1)
        y = self.node("MatMul", [scores, v], f"{prefix}.attention/PV")
        y = self.node("Transpose", [y], f"{prefix}.merge/T", perm=[0, 2, 1, 3])
        merged = self.const(f"{prefix}.merge", np.array([0, -1, hidden]))
        y = self.linear(self.node("Reshape", [y, merged], f"{prefix}.merge/Reshape"), f"{prefix}.out", hidden, hidden)
        x = self.norm(self.node("Add", [x, y], f"{prefix}.add1"), f"{prefix}.norm1", hidden)
        y = self.node("Gelu", [self.linear(x, f"{prefix}.up", hidden, ffn)], f"{prefix}.gelu")
        y = self.linear(y, f"{prefix}.down", ffn, hidden)
        return self.norm(self.node("Add", [x, y], f"{prefix}.add2"), f"{prefix}.norm2", hidden)

    def model(self, inputs, output, functions=(), opsets=()):
        graph = helper.make_graph(
            self.nodes, "graph", inputs, [helper.make_tensor_value_info(output, self.elem, None)], self.initializers
        )
        imports = [helper.make_opsetid("", 21), *(helper.make_opsetid(name, 1) for name in opsets)]
        return helper.make_model(graph, opset_imports=imports, functions=list(functions), ir_version=10)


def bert(layers=2, hidden=64, heads=4, ffn=256, vocab=100, **more):
    """A BERT encoder with dynamic batch and sequence."""
    build = Builder(**more)
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "sequence"])
    table = build.const("embeddings.word", build.rng.standard_normal((vocab, hidden)).astype(build.dtype))
    x = build.norm(build.node("Gather", [table, "input_ids"], "embeddings/Gather"), "embeddings.norm", hidden)
    for layer in range(layers):
        x = build.block(x, f"layer.{layer}", hidden, heads, ffn)
    return build.model([ids], x)


def vit(layers=2, hidden=64, heads=4, ffn=256, image=32, patch=8, labels=10, **more):
    """A ViT with a dynamic batch: a convolution embeds the patches, a Gemm classifies."""
    build = Builder(**more)
    pixels = helper.make_tensor_value_info("pixel_values", build.elem, ["batch", 3, image, image])
    kernel = build.const("embed.weight", build.rng.standard_normal((hidden, 3, patch, patch)).astype(build.dtype))
    x = build.node("Conv", ["pixel_values", kernel], "embed/Conv", strides=[patch, patch])
    shape = build.const("embed.shape", np.array([0, hidden, -1]))
    x = build.node("Transpose", [build.node("Reshape", [x, shape], "embed/Reshape")], "embed/T", perm=[0, 2, 1])
    for layer in range(layers):
        x = build.block(x, f"layer.{layer}", hidden, heads, ffn)
    x = build.node("ReduceMean", [x, build.const("pool.axes", np.array([1]))], "pool", keepdims=0)
    weight = build.const("head.weight", build.rng.standard_normal((labels, hidden)).astype(build.dtype))
    bias = build.const("head.bias", np.zeros(labels, build.dtype))
    return build.model([pixels], build.node("Gemm", [x, weight, bias], "head/Gemm", transB=1))


def save(model, path, **more):
    onnx.save(model, str(path), **more)
    return path
