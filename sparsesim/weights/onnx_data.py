"""The initialisers of an ONNX model as tensors, each with the product that sums over it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from sparsesim.errors import Problem, ProblemList, UserError
from sparsesim.weights.onnx_model import OnnxModel, external_place, inlined, load_onnx, need_onnx, scopes, stored
from sparsesim.weights.tensor import BITS, Tensor
from sparsesim.workload.files import open_bytes

__all__ = ["STORED", "read_onnx"]

#: element types of onnx.TensorProto -> stored types
STORED = {
    "FLOAT": "F32", "FLOAT16": "F16", "BFLOAT16": "BF16", "DOUBLE": "F64", "BOOL": "BOOL",
    "INT8": "I8", "INT16": "I16", "INT32": "I32", "INT64": "I64",
    "UINT8": "U8", "UINT16": "U16", "UINT32": "U32", "UINT64": "U64",
    "FLOAT8E4M3FN": "F8_E4M3", "FLOAT8E4M3FNUZ": "F8_E4M3FNUZ", "FLOAT8E5M2": "F8_E5M2",
    "FLOAT8E5M2FNUZ": "F8_E5M2FNUZ",
    "FLOAT8E8M0": "F8_E8M0", "INT4": "I4", "UINT4": "U4", "FLOAT4E2M1": "F4", "COMPLEX64": "C64",
}  # fmt: skip

#: ops that hand a weight on as it is
_PASS = ("DequantizeLinear", "QuantizeLinear", "Cast", "Identity")


@dataclass(frozen=True)
class _Use:
    """What multiplies by a tensor, along which of its axes it sums, and in how many groups."""

    op: str
    k_axis: int | None = None
    groups: int = 1


def read_onnx(path: Path) -> tuple[Tensor, ...]:
    """Initialisers and constants of the model at `path`, and of the bodies of its control flow.

    Raises
    ------
    UserError
        Every problem, one line each.
    """
    onnx = need_onnx(path)
    loaded = load_onnx(path)
    problems = ProblemList(str(path))
    tensors: list[Tensor] = []
    for place, graph in scopes(inlined(onnx, path, loaded.model).graph):
        uses = _uses(graph)
        for name, proto in stored(graph):
            try:
                tensors.append(_tensor(onnx, loaded, place, name, proto, uses.get(name, _Use("nothing"))))
            except UserError as error:
                problems.lines += error.problems
        for sparse in graph.sparse_initializer:
            found = f"a sparse_initializer of shape {list(sparse.dims)}"
            problems.add(f"{place}{sparse.values.name}", "an initialiser that stores its zeros", found)
    problems.lines = problems.lines[:20]
    problems.raise_if_any()
    if not tensors:
        raise UserError(Problem.line(str(path), "", "a model with initialisers", "none"))
    return tuple(tensors)


def _tensor(onnx: Any, loaded: OnnxModel, place: str, name: str, proto: Any, use: _Use) -> Tensor:
    """One initialiser, with its bytes in this file, in another, or in memory if they are few; `place` is its scope."""
    path, label = loaded.path, place + name
    label = label if label.isprintable() else repr(label)
    types = {number: text for text, number in onnx.TensorProto.DataType.items()}
    dtype = STORED.get(types.get(proto.data_type, ""))
    shape = tuple(proto.dims)
    if dtype is None:
        raise UserError(
            Problem.line(str(path), label, "a type of numbers", types.get(proto.data_type, proto.data_type))
        )
    if any(side < 0 for side in shape):
        raise UserError(Problem.line(str(path), label, "a shape of sizes", shape))
    nbytes = -(-math.prod(shape) * BITS[dtype] // 8)
    if proto.data_location == onnx.TensorProto.EXTERNAL:
        entries = {entry.key: entry.value for entry in proto.external_data}
        opener = _in_file(*external_place(path, label, entries, nbytes))
    elif not place and name in loaded.embedded and not proto.raw_data:
        offset, length = loaded.embedded[name]
        if length != nbytes:
            raise UserError(Problem.line(str(path), label, f"{nbytes} bytes for {dtype} of shape {shape}", length))
        opener = _in_file(path, offset)
    else:
        opener = _in_memory(_raw(onnx, path, label, proto, nbytes))
    return Tensor(label, shape, dtype, str(path), opener, use.k_axis, use.op, use.groups)


def _raw(onnx: Any, path: Path, label: str, proto: Any, nbytes: int) -> bytes:
    """The bytes of a tensor that the graph itself holds."""
    raw = bytes(proto.raw_data)
    if not raw and nbytes:
        try:
            raw = onnx.numpy_helper.to_array(proto).tobytes()
        except Exception as error:  # the library raises several classes
            raise UserError(Problem.line(str(path), label, "data that fit its shape", str(error))) from None
    if len(raw) != nbytes:
        raise UserError(Problem.line(str(path), label, f"{nbytes} bytes by its shape and type", len(raw)))
    return raw


def _in_file(path: Path, offset: int) -> Any:
    @contextmanager
    def opened() -> Iterator[BinaryIO]:
        with open_bytes(path) as file:
            file.seek(offset)
            yield file

    return opened


def _in_memory(raw: bytes) -> Any:
    @contextmanager
    def opened() -> Iterator[BinaryIO]:
        yield BytesIO(raw)

    return opened


def _uses(graph: Any) -> dict[str, _Use]:
    """For each value, the first product that multiplies by it, directly or through a transpose or a cast.

    The bodies of control flow see the values of the graph around them: that is where a merged decoder multiplies.
    """
    uses: dict[str, _Use] = {}
    for node in reversed([node for _, part in scopes(graph) for node in part.node]):
        attributes = {attribute.name: attribute for attribute in node.attribute}
        for index, name in enumerate(node.input):
            use = _use(node.op_type, index, attributes)
            if use is None and index == 0 and node.output and node.output[0] in uses:
                use = uses[node.output[0]]
                if node.op_type == "Transpose" and use.k_axis is not None:
                    use = _Use(use.op, 1 - use.k_axis, use.groups)
            if use is None:
                use = _Use(node.op_type)
            if name and (name not in uses or uses[name].k_axis is None):
                uses[name] = use
    return uses


def _use(op: str, index: int, attributes: dict[str, Any]) -> _Use | None:
    """How an op uses its input `index`; None where it hands the input on."""
    if op in _PASS or op == "Transpose":
        return None if index == 0 else _Use(op)
    if op in ("MatMul", "MatMulInteger", "FusedMatMul") and index < 2:
        return _Use("MatMul", 1 - index)
    if op == "QLinearMatMul" and index in (0, 3):
        return _Use("MatMul", 1 if index == 0 else 0)
    if op in ("Gemm", "FusedGemm") and index < 2:
        key = ("transA", "transB")[index]
        turned = bool(attributes[key].i) if key in attributes else False
        return _Use("Gemm", (0 if turned else 1) if index == 0 else (1 if turned else 0))
    if (op in ("Conv", "ConvInteger", "FusedConv") and index == 1) or (op == "QLinearConv" and index == 3):
        groups = attributes["group"].i if "group" in attributes else 1
        return _Use("Conv", 1, max(1, groups))
    return _Use(op)
