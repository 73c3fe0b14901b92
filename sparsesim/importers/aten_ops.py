"""PyTorch's ATen ops as GEMMs: the same rules for exported programs, profiler traces and NVTX ranges.

An op is its name, the shapes of its tensor arguments and, where they are known, its scalar arguments and the
shape of its result. In x·wᵀ the weight's rows are m, all leading sides of x together are n.
FLOPs of other ops are counted per element of the largest operand, by the table below.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["FREE", "PRODUCTS", "Product", "Shape", "UnknownSize", "aten_flops", "aten_name", "aten_products"]

Shape = tuple[int, ...]
Scalars = Sequence[object]

FREE = frozenset(
    [
        *("view", "reshape", "t", "transpose", "permute", "expand", "unsqueeze", "squeeze", "detach", "as_strided"),
        *("slice", "select", "empty", "empty_like", "empty_strided", "alias", "flatten", "unflatten", "split", "chunk"),
        *("_unsafe_view", "lift_fresh", "resolve_conj", "resolve_neg", "result_type", "view_as", "expand_as", "unbind"),
        *(
            "narrow",
            "movedim",
            "is_nonzero",
            "item",
            "_local_scalar_dense",
            "sym_size",
            "getitem",
            "dropout",
            "numpy_T",
        ),
        *("split_with_sizes", "_reshape_alias", "size", "assert_tensor_metadata", "_assert_tensor_metadata", "set_"),
    ]
)
"""Ops that move no data."""

_FLOPS = {
    "add": 1, "add_": 1, "sub": 1, "mul": 1, "mul_": 1, "div": 1, "div_": 1, "neg": 1, "relu": 1, "relu_": 1,
    "where": 1, "sum": 1, "mean": 1, "masked_fill": 1, "masked_fill_": 1, "max": 1, "amax": 1, "pow": 1, "sqrt": 1,
    "rsqrt": 1, "exp": 1, "cos": 1, "sin": 1, "batch_norm": 1, "max_pool2d": 1, "avg_pool2d": 1,
    "adaptive_avg_pool2d": 1,
    "sigmoid": 4, "tanh": 4, "silu": 4, "silu_": 4, "softmax": 5, "_softmax": 5, "layer_norm": 7,
    "native_layer_norm": 7, "group_norm": 7, "rms_norm": 4, "gelu": 8,
    "copy_": 0, "to": 0, "_to_copy": 0, "clone": 0, "contiguous": 0, "cat": 0, "stack": 0, "embedding": 0, "gather": 0,
    "index": 0, "index_select": 0, "zeros": 0, "ones": 0, "full": 0, "arange": 0, "fill_": 0, "zero_": 0, "pad": 0,
    "constant_pad_nd": 0, "triu": 0, "tril": 0, "roll": 0, "repeat": 0, "index_put_": 0, "scatter": 0,
}  # fmt: skip

_CONVS = ("conv1d", "conv2d", "conv3d", "convolution", "_convolution", "cudnn_convolution", "mkldnn_convolution")
_ATTENTION = (
    "scaled_dot_product_attention",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
)
_SPARSE = ("_sparse_semi_structured_linear", "_sparse_semi_structured_mm", "_sparse_semi_structured_addmm")

PRODUCTS = frozenset(
    [*_CONVS, *_ATTENTION, *_SPARSE, "_cslt_sparse_mm", "linear", "matmul", "mm", "addmm", "bmm", "baddbmm",
     "_scaled_mm", "_int_mm"]
)  # fmt: skip
"""Ops that are matrix products; what they call inside themselves is part of them."""


@dataclass(frozen=True)
class Product:
    """One GEMM of an op; `pattern` is set where the op itself is sparse."""

    m: int
    n: int
    k: int
    batch: int = 1
    kind: str = "linear"
    family: str = ""
    pattern: str | None = None
    suffix: str = ""


class UnknownSize(Exception):
    """A product whose sizes the record does not tell; the text says which."""


def aten_name(name: str) -> str:
    """``aten::addmm`` or ``aten.addmm.default`` as ``addmm``."""
    short = name.rpartition("::")[2]
    if short.startswith("aten."):
        short = short.split(".")[1]
    return short


def aten_products(op: str, shapes: Sequence[Shape], scalars: Scalars = (), out: Shape | None = None) -> list[Product]:
    """The GEMMs of the op called `op` (see `aten_name`).

    Parameters
    ----------
    shapes
        Of the arguments in order; () for one that is no tensor.
    scalars
        The arguments in order where they are no tensors (strides, groups), as numbers, lists or text.
    out
        Shape of the result, where it is known.

    Raises
    ------
    UnknownSize
        If the record does not tell the sizes.
    """
    try:
        return _lower(op, shapes, scalars, out)
    except (IndexError, ValueError, ZeroDivisionError):
        raise UnknownSize(f"operands of shape {', '.join(str(list(shape)) for shape in shapes)}") from None


def _lower(op: str, shapes: Sequence[Shape], scalars: Scalars, out: Shape | None) -> list[Product]:
    if op == "linear":
        x, w = shapes[0], shapes[1]
        _same(x[-1], w[-1])
        return [Product(w[0] if len(w) > 1 else 1, math.prod(x[:-1]), x[-1])]
    if op in ("mm", "_scaled_mm", "_int_mm"):
        return _matmul(shapes[0], shapes[1])
    if op == "addmm":
        return _matmul(shapes[1], shapes[2])
    if op in ("matmul", "bmm"):
        return _matmul(shapes[0], shapes[1])
    if op == "baddbmm":
        return _matmul(shapes[1], shapes[2])
    if op in _CONVS:
        return [_conv(op, shapes, scalars, out)]
    if op in _ATTENTION:
        return _attention(shapes[0], shapes[1], shapes[2])
    if op == "_cslt_sparse_mm":
        return [_cslt(shapes, scalars)]
    return [_semi_structured(op, shapes)]


def _same(a: int, b: int) -> None:
    if a != b:
        raise ValueError


def _matmul(a: Shape, b: Shape) -> list[Product]:
    """a·b with leading sides that broadcast; a second operand of two axes is taken for a weight."""
    if len(a) == 0 or len(b) == 0:
        raise ValueError
    a, b = (a if len(a) > 1 else (1, *a)), (b if len(b) > 1 else (*b, 1))
    _same(a[-1], b[-2])
    lead = math.prod(a[:-2])
    if len(b) == 2:
        return [Product(b[1], lead * a[-2], a[-1])]
    length = max(len(a), len(b)) - 2
    wide = ((1,) * (length + 2 - len(a)) + a[:-2], (1,) * (length + 2 - len(b)) + b[:-2])
    return [Product(b[-1], a[-2], a[-1], math.prod(map(max, *wide)), "matmul")]


def _numbers(value: object, count: int, default: int) -> list[int]:
    """A scalar argument (a number, a list, or the text of one) as `count` integers."""
    if value is None or value == "":
        return [default] * count
    if isinstance(value, str):
        value = [int(part) for part in value.strip("[]() ").split(",") if part.strip()]
    values = [int(part) for part in value] if isinstance(value, list | tuple) else [int(value)]  # type: ignore[call-overload]
    return values * count if len(values) == 1 else values


def _conv(op: str, shapes: Sequence[Shape], scalars: Scalars, out: Shape | None) -> Product:
    """A convolution as implicit GEMM; without the result's shape it follows from stride, padding and dilation."""
    x, w = shapes[0], shapes[1]
    spatial = len(w) - 2
    groups = max(1, x[1] // w[1]) if len(x) == len(w) else 1
    if out is None:
        # cudnn_convolution and mkldnn_convolution put the padding before the stride
        order = (4, 3, 5) if op == "mkldnn_convolution" else (3, 2, 4) if op == "cudnn_convolution" else (3, 4, 5)
        if max(order) >= len(scalars):
            raise UnknownSize("a convolution whose strides are not recorded")
        stride, padding, dilation = (_numbers(scalars[i], spatial, d) for i, d in zip(order, (1, 0, 1), strict=True))
        if op in ("convolution", "_convolution") and str(scalars[6]).lower() == "true":
            raise UnknownSize("a transposed convolution")
        out = (x[0], w[0], *(
            (x[2 + i] + 2 * padding[i] - dilation[i] * (w[2 + i] - 1) - 1) // stride[i] + 1 for i in range(spatial)
        ))  # fmt: skip
    return Product(w[0] // groups, out[0] * math.prod(out[2:]), math.prod(w[1:]), groups, "conv")


def _attention(q: Shape, k: Shape, v: Shape) -> list[Product]:
    """Scores and values; query heads that share a key are one operand."""
    heads, kv_heads = q[-3] if len(q) > 2 else 1, k[-3] if len(k) > 2 else 1
    group = heads // kv_heads
    batch = math.prod(q[:-3]) * kv_heads
    return [
        Product(k[-2], q[-2] * group, q[-1], batch, "matmul", "attn_scores", suffix=".scores"),
        Product(v[-1], q[-2] * group, k[-2], batch, "matmul", "attn_values", suffix=".values"),
    ]


def _semi_structured(op: str, shapes: Sequence[Shape]) -> Product:
    """PyTorch's own 2:4 ops: the compressed weight has half of k (torch/sparse/_semi_structured_ops.py)."""
    if op == "_sparse_semi_structured_linear":
        x, w = shapes[0], shapes[1]
        _same(x[-1], 2 * w[-1])
        return Product(w[0], math.prod(x[:-1]), x[-1], pattern="2:4")
    w, b = (shapes[0], shapes[2]) if op == "_sparse_semi_structured_mm" else (shapes[1], shapes[3])
    _same(b[0], 2 * w[-1])
    return Product(w[0], b[1], b[0], pattern="2:4")


def _cslt(shapes: Sequence[Shape], scalars: Scalars) -> Product:
    """cuSPARSELt through PyTorch: rows from the compressed size, 9/16 of the elements of 16-bit types and 10/16 of
    8-bit ones (aten/src/ATen/native/sparse/cuda/cuSPARSELtOps.cpp); whichever comes out whole."""
    compressed, b = math.prod(shapes[0]), shapes[1]
    for factor in (9, 10):
        rows, rest = divmod(compressed * 16, factor * b[0])
        if rest == 0:
            return Product(rows, b[1], b[0], pattern="2:4")
    raise ValueError


def aten_flops(op: str, elements: int | None) -> int | None:
    """FLOPs of an op that is no product, over so many elements; None if either is unknown."""
    if op in FREE:
        return 0
    return None if op not in _FLOPS or elements is None else _FLOPS[op] * elements
