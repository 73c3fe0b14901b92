"""ONNX ops as GEMMs, or by name with their bytes and FLOPs.

MatMul, Gemm, Einsum of two operands, Conv (implicit GEMM: m = output channels, n = output pixels, k = input
channels × kernel, the groups of a grouped one as a batch), ConvTranspose, their integer and fused variants, and
attention of ONNX and of ONNX Runtime's own domain. In a product with a weight, m is the weight's side; in one of
two computed operands, m is that of the second (keys in attention scores).

FLOPs of other ops are counted by the tables of `onnx_flops`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sparsesim.importers.imported import Draft, tensor_core_dtype
from sparsesim.importers.onnx_flops import CONTROL, FREE, LIKE_FIRST, MOVES, PER_INPUT, PER_OUTPUT, POOLS
from sparsesim.weights.tensor import BITS

__all__ = ["Graph", "Shape", "contrib_shapes", "lower"]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Graph:
    """What is known about values: shapes, stored types, which are constant, and the op that makes each."""

    shapes: dict[str, Shape]
    dtypes: dict[str, str]
    constants: frozenset[str]
    makers: dict[str, str]

    def nbytes(self, name: str) -> int | None:
        """Bytes of a value, or None if a size or its type is unknown."""
        shape, kind = self.shapes.get(name), self.dtypes.get(name)
        return None if shape is None or not kind else -(-math.prod(shape) * BITS[kind] // 8)


class _UnknownShape(Exception):
    """A value whose sizes are needed and not known."""


@dataclass(frozen=True)
class _Node:
    """A node with its attributes and what the graph knows about it."""

    draft: Draft
    graph: Graph
    proto: Any
    name: str

    @property
    def op(self) -> str:
        return str(self.proto.op_type)

    def value(self, index: int) -> str:
        """Name of an input; empty if it is left out."""
        return self.proto.input[index] if index < len(self.proto.input) else ""

    def shape(self, index: int) -> Shape:
        return self.shape_of(self.value(index))

    def shape_of(self, name: str) -> Shape:
        if name not in self.graph.shapes:
            maker = self.graph.makers.get(name)
            raise _UnknownShape(f"{name!r}, " + (f"the output of a {maker}" if maker else "an input"))
        return self.graph.shapes[name]

    def constant(self, index: int) -> bool:
        return self.value(index) in self.graph.constants

    def dtype(self, index: int) -> str:
        """The type the product runs in."""
        stored = self.graph.dtypes.get(self.value(index), "")
        return tensor_core_dtype(stored) or "tf32"

    def number(self, name: str, default: int) -> int:
        return next((int(a.i) for a in self.proto.attribute if a.name == name), default)

    def numbers(self, name: str) -> list[int]:
        return next((list(a.ints) for a in self.proto.attribute if a.name == name), [])

    def gemm(self, m: int, n: int, k: int, dtype: str, suffix: str = "", **more: Any) -> None:
        self.draft.gemm(self.name + suffix, m, n, k, dtype, place=f"node {self.name} ({self.op})", **more)


def lower(draft: Draft, graph: Graph, proto: Any, number: int) -> None:
    """Add the GEMMs of one node to `draft`, or the node itself by name."""
    if proto.op_type == "Constant":
        return
    name = proto.name or (proto.output[0] if proto.output and proto.output[0] else f"{proto.op_type}_{number}")
    node = _Node(draft, graph, proto, name)
    inputs = [value for value in proto.input if value]
    if inputs and all(value in graph.constants for value in inputs) and proto.op_type not in CONTROL:
        draft.other(name, proto.op_type, 0, 0, "of constants alone: computed before the run")
        return
    product = _PRODUCTS.get(proto.op_type)
    if product is None:
        _other(node)
        return
    try:
        product(node)
    except _UnknownShape as error:
        draft.problem(f"node {name} ({proto.op_type})", "known sizes of its operands", f"none for {error}")


# --- products ---


def _matmul(node: _Node, first: int = 0, second: int = 1) -> None:
    a, b = node.shape(first), node.shape(second)
    if not a or not b:
        raise _UnknownShape("an operand without axes")
    a, b = (a if len(a) > 1 else (1, *a)), (b if len(b) > 1 else (*b, 1))
    if node.op == "FusedMatMul":
        a = (*a[:-2], a[-1], a[-2]) if node.number("transA", 0) else a
        b = (*b[:-2], b[-1], b[-2]) if node.number("transB", 0) else b
    if a[-1] != b[-2]:
        node.draft.problem(f"node {node.name} ({node.op})", f"operands that share k, {a[-1]}", b[-2])
        return
    rows, k, columns = a[-2], a[-1], b[-1]
    lead = _broadcast(a[:-2], b[:-2])
    dtype = node.dtype(first)
    if node.constant(second) and math.prod(b[:-2]) == 1:
        node.gemm(columns, lead * rows, k, dtype)
    elif node.constant(first) and math.prod(a[:-2]) == 1:
        node.gemm(rows, lead * columns, k, dtype)
    else:
        weight = node.constant(first) or node.constant(second)
        m, n = (rows, columns) if node.constant(first) else (columns, rows)
        node.gemm(m, n, k, dtype, batch=lead, kind="linear" if weight else "matmul")


def _broadcast(a: Shape, b: Shape) -> int:
    """Products in a stack of matrices whose leading sides broadcast."""
    length = max(len(a), len(b))
    wide = ((1,) * (length - len(a)) + a, (1,) * (length - len(b)) + b)
    return math.prod(map(max, *wide)) if length else 1


def _gemm(node: _Node) -> None:
    a, b = node.shape(0), node.shape(1)
    rows, k = (a[1], a[0]) if node.number("transA", 0) else (a[0], a[1])
    columns = b[0] if node.number("transB", 0) else b[1]
    if node.constant(0) and not node.constant(1):
        node.gemm(rows, columns, k, node.dtype(0))
    else:
        node.gemm(columns, rows, k, node.dtype(0), kind="linear" if node.constant(1) else "matmul")


def _conv(node: _Node, weight: int = 1) -> None:
    w, out = node.shape(weight), node.shape_of(node.proto.output[0])
    groups = max(1, node.number("group", 1))
    node.gemm(w[0] // groups, out[0] * math.prod(out[2:]), math.prod(w[1:]), node.dtype(0), batch=groups, kind="conv")


def _conv_transpose(node: _Node) -> None:
    x, w = node.shape(0), node.shape(1)
    groups = max(1, node.number("group", 1))
    node.gemm(math.prod(w[1:]), x[0] * math.prod(x[2:]), w[0] // groups, node.dtype(0), batch=groups, kind="conv")


def _einsum(node: _Node) -> None:
    equation = next((a.s.decode("utf-8", "replace") for a in node.proto.attribute if a.name == "equation"), "")
    sides, arrow, result = equation.replace(" ", "").partition("->")
    terms = sides.split(",")
    if len(terms) != 2 or not arrow or "." in equation or any(len(set(t)) < len(t) for t in terms):
        _other(node)
        return
    size: dict[str, int] = {}
    for index, term in enumerate(terms):
        size |= dict(zip(term, node.shape(index), strict=False))
    a, b = set(terms[0]), set(terms[1])
    weight = node.constant(0) or node.constant(1)
    if node.constant(0):
        a, b = b, a
    kept = set(result)
    batch, summed = a & b & kept, (a & b) - kept
    m, n = (math.prod(size[label] for label in side & kept - other) for side, other in ((b, a), (a, b)))
    if not summed or (a ^ b) - kept:
        _other(node)
        return
    node.gemm(m, n, math.prod(size[label] for label in summed), node.dtype(0),
              batch=math.prod(size[label] for label in batch), kind="linear" if weight else "matmul")  # fmt: skip


def _heads(node: _Node, q: Shape, k: Shape, v: Shape, heads: int, kv_heads: int) -> None:
    """Scores, softmax and values of attention over [batch, tokens, heads × size] or [batch, heads, tokens, size]."""
    if len(q) == 4:
        batch, heads, queries, size = q
        kv_heads, keys, value = k[1], k[2], v[3]
    else:
        batch, queries, size = q[0], q[1], q[2] // max(1, heads)
        keys, value = k[-2], v[-1] // max(1, kv_heads)
    group = heads // kv_heads if kv_heads and heads % kv_heads == 0 else 1
    dtype = node.dtype(0)
    common: dict[str, Any] = {"batch": batch * kv_heads, "kind": "matmul"}
    node.gemm(keys, queries * group, size, dtype, "/scores", family="attn_scores", **common)
    node.gemm(value, queries * group, keys, dtype, "/values", family="attn_values", **common)
    scores = batch * heads * queries * keys
    width = BITS[node.graph.dtypes.get(node.value(0)) or "F32"] // 8
    node.draft.other(f"{node.name}/softmax", "Softmax", 2 * width * scores, 5 * scores, f"inside {node.op}")


def _attention(node: _Node) -> None:
    if node.proto.domain in ("", "ai.onnx"):
        heads = node.number("q_num_heads", 1)
        _heads(node, node.shape(0), node.shape(1), node.shape(2), heads, node.number("kv_num_heads", heads))
        return
    x, w = node.shape(0), node.shape(1)  # ONNX Runtime: projection and attention in one
    heads = node.number("num_heads", 1)
    sizes = node.numbers("qkv_hidden_sizes") or [w[1] // 3] * 3
    node.gemm(w[1], x[0] * x[1], w[0], node.dtype(0), "/qkv", family="qkv")
    q, k, v = ((x[0], x[1], size) for size in sizes)
    _heads(node, q, k, v, heads, heads)


def _multi_head(node: _Node) -> None:
    heads = node.number("num_heads", 1)
    kv_heads = node.number("kv_num_heads", heads)
    q, k, v = node.shape(0), node.shape(1), node.shape(2)
    if len(k) != 3:
        raise _UnknownShape("packed keys")
    _heads(node, q, k, v, heads, kv_heads)


def _matmul_nbits(node: _Node) -> None:
    """A weight of few bits, unpacked to the type of the activations."""
    x = node.shape(0)
    node.gemm(node.number("N", 1), math.prod(x[:-1]), node.number("K", 1), node.dtype(0))
    node.draft.note("MatMulNBits multiplies in the type of its activations")


_PRODUCTS: dict[str, Callable[[_Node], None]] = {
    "MatMul": _matmul,
    "FusedMatMul": _matmul,
    "MatMulInteger": _matmul,
    "QLinearMatMul": lambda node: _matmul(node, 0, 3),
    "MatMulNBits": _matmul_nbits,
    "Gemm": _gemm,
    "FusedGemm": _gemm,
    "Conv": _conv,
    "FusedConv": _conv,
    "ConvInteger": _conv,
    "QLinearConv": lambda node: _conv(node, 3),
    "ConvTranspose": _conv_transpose,
    "Einsum": _einsum,
    "Attention": _attention,
    "MultiHeadAttention": _multi_head,
    "GroupQueryAttention": _multi_head,
}


def contrib_shapes(graph: Graph, proto: Any) -> dict[str, tuple[Shape, str]]:
    """Shape and stored type of the first output of an op that shape inference does not know, where its inputs tell."""
    if not proto.domain or proto.domain == "ai.onnx" or not proto.output or not proto.input:
        return {}
    first, kind = graph.shapes.get(proto.input[0]), graph.dtypes.get(proto.input[0], "")
    if first is None:
        return {}
    shape: Shape | None = None
    if proto.op_type in LIKE_FIRST:
        shape = first
    elif proto.op_type == "Attention" and len(first) == 3 and len(proto.input) > 1:
        weight = graph.shapes.get(proto.input[1])
        sizes = next((list(a.ints) for a in proto.attribute if a.name == "qkv_hidden_sizes"), [])
        shape = (*first[:2], sizes[2] if len(sizes) == 3 else weight[1] // 3) if weight else None
    elif proto.op_type in ("FusedMatMul", "FusedGemm") and len(proto.input) > 1:
        second = graph.shapes.get(proto.input[1])
        flags = {a.name: a.i for a in proto.attribute}
        if second and len(first) > 1 and len(second) > 1:
            rows = first[-1] if flags.get("transA") else first[-2]
            shape = (*first[:-2], rows, second[-2] if flags.get("transB") else second[-1])
    elif proto.op_type == "MatMulNBits":
        shape = (*first[:-1], next((int(a.i) for a in proto.attribute if a.name == "N"), 1))
    return {proto.output[0]: (shape, kind)} if shape is not None and proto.output[0] else {}


# --- everything else ---


def _other(node: _Node) -> None:
    """Name a node that is no product, with its bytes and FLOPs."""
    graph, op = node.graph, node.op
    sizes = [graph.nbytes(name) for name in (*node.proto.input, *node.proto.output) if name]
    total = None if any(size is None for size in sizes) else sum(size or 0 for size in sizes)
    note = "" if total is not None else "a size is unknown"
    if op in FREE:
        node.draft.other(node.name, op, 0, 0, "moves no data")
        return
    flops: int | None
    if op in MOVES:
        flops = 0
        if op in ("Gather", "GatherND", "GatherElements", "Slice") and node.proto.output:
            out = graph.nbytes(node.proto.output[0])  # what is not picked is not read
            total = None if out is None else 2 * out
    elif op in CONTROL:
        inner = {n.op_type: None for a in node.proto.attribute if a.HasField("g") for n in a.g.node}
        flops, note = None, "control flow, its body is not counted: " + ", ".join(inner)
    elif op in ("LSTM", "GRU", "RNN"):
        flops, note = _recurrent(node), "recurrent: its products depend on one another"
    else:
        flops = _flops(node)
        if flops is None:
            note = note or ("FLOPs of an unknown op" if not _is_known(op) else "a size is unknown")
    domain = node.proto.domain
    node.draft.other(node.name, f"{domain}.{op}" if domain not in ("", "ai.onnx") else op, total, flops, note)


def _is_known(op: str) -> bool:
    return op in PER_OUTPUT or op in PER_INPUT or op in POOLS


def _elements(graph: Graph, name: str) -> int | None:
    shape = graph.shapes.get(name)
    return None if shape is None else math.prod(shape)


def _flops(node: _Node) -> int | None:
    """FLOPs by the tables; None for an unknown op or size."""
    graph = node.graph
    out = _elements(graph, node.proto.output[0]) if node.proto.output else None
    if node.op in PER_OUTPUT:
        return None if out is None else PER_OUTPUT[node.op] * out
    if node.op in PER_INPUT:
        size = _elements(graph, node.value(0))
        return None if size is None else PER_INPUT[node.op] * size
    if node.op in POOLS:
        return None if out is None else out * math.prod(node.numbers("kernel_shape") or [1])
    return None


def _recurrent(node: _Node) -> int | None:
    """2 FLOPs for each weight, step and sequence."""
    x, w, r = (node.graph.shapes.get(node.value(index)) for index in range(3))
    if x is None or w is None or r is None:
        return None
    return 2 * (math.prod(w) + math.prod(r)) * math.prod(x[:2])
