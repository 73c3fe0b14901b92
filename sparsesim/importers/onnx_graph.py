"""ONNX models as workloads: sizes by shape inference, then node by node (see `onnx_ops`).

Dynamic dimensions need a size of the caller's. Model-local functions are inlined; the bodies of control flow are
not entered, and say so. Weights are not read: their pattern is the caller's assumption, or the audit's finding.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparsesim.errors import Problem, ProblemList, UserError, nearest
from sparsesim.importers.imported import Draft, Imported, clean, tensor_core_dtype
from sparsesim.importers.onnx_ops import Graph, Shape, contrib_shapes, lower
from sparsesim.weights.onnx_data import STORED
from sparsesim.weights.onnx_model import external_file, inlined, load_onnx, need_onnx, scopes, stored

__all__ = ["import_onnx"]

#: rounds of shape inference: each carries sizes past the next layer of ops of other domains
ROUNDS = 200


def import_onnx(path: Path, pattern: str | None, dtype: str | None, dims: Mapping[str, int]) -> Imported:
    """Read the model at `path`.

    Parameters
    ----------
    pattern
        Of the weights; 2:4 by default.
    dtype
        Instead of the model's (f32 counts as tf32) for products with a weight.
    dims
        Sizes of dynamic dimensions: by their name, or as ``input.axis`` where they have none.

    Raises
    ------
    UserError
        If the file is no whole model, a dimension has no size, or a product's sizes cannot be inferred.
    """
    onnx = need_onnx(path)
    model = load_onnx(path).model
    _check_places(onnx, path, model)
    model = inlined(onnx, path, model)
    _set_dims(path, model.graph, dims)
    graph = _inferred(onnx, path, model)
    draft = Draft(str(path), pattern or "2:4", dtype)
    for number, node in enumerate(model.graph.node):
        lower(draft, graph, node, number)
        if draft.full:
            break
    if any(op.dtype == "tf32" for op in draft.gemms):
        draft.note("f32 products run as tf32; --dtype f16 (or another) for a narrower build")
    stem = clean(path.stem)
    used = ", ".join(f"{name}={size}" for name, size in dims.items())
    source = clean(f"ONNX {path.name}" + (f", {used}" if used else ""))
    workload = draft.finish(stem, "; ".join(draft.notes), source, "a MatMul, Gemm, Conv or attention")
    return Imported(str(path), "onnx", workload, tuple(draft.notes))


def _check_places(onnx: Any, path: Path, model: Any) -> None:
    """Refuse external data outside the model's folder, though none are read here: such a model is not passed on."""
    problems = ProblemList(str(path))
    for place, graph in scopes(model.graph):
        for name, tensor in stored(graph):
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                try:
                    external_file(path, clean(place + name), {entry.key: entry.value for entry in tensor.external_data})
                except UserError as error:
                    problems.lines += error.problems
    problems.lines = problems.lines[:20]
    problems.raise_if_any()


def _set_dims(path: Path, graph: Any, dims: Mapping[str, int]) -> None:
    """Give every dynamic dimension of the inputs its size; a missing one and an unknown name are problems."""
    problems = ProblemList(str(path))
    constants = {tensor.name for tensor in graph.initializer}
    known: dict[str, None] = {}
    for value in graph.input:
        if value.name in constants or not value.type.HasField("tensor_type"):
            continue
        if not value.type.tensor_type.HasField("shape"):
            problems.add(f"input {value.name}", "an input of known rank", "no shape")
            continue
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.HasField("dim_value") and dim.dim_value > 0:
                continue
            name = dim.dim_param if dim.HasField("dim_param") and dim.dim_param else f"{value.name}.{axis}"
            if name not in dims and name not in known:
                expected = f"a size for dynamic dimension {name}: --dim {name}=SIZE"
                problems.add(f"input {value.name}, axis {axis}", expected, "none")
            known[name] = None
            if name in dims:
                dim.dim_value = dims[name]
    for name in dims:
        if name not in known:
            found = Problem.line(str(path), "dim", "a dynamic dimension: " + (", ".join(known) or "none here"), name)
            problems.add_line(found + nearest(name, known))
    problems.raise_if_any()
    for value in (*graph.value_info, *graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.HasField("dim_param"):
                size = dims.get(dim.dim_param)
                dim.Clear()
                if size is not None:
                    dim.dim_value = size


def _inferred(onnx: Any, path: Path, model: Any) -> Graph:
    """Shapes and types of all values that can be known."""
    import onnx.shape_inference

    last = -1
    for _ in range(ROUNDS):
        try:
            model = onnx.shape_inference.infer_shapes(model, check_type=False, strict_mode=False, data_prop=True)
        except Exception as error:  # the library raises several classes
            found = str(error).partition("\n")[0]
            raise UserError(Problem.line(str(path), "", "a model whose shapes can be inferred", found)) from None
        graph = _graph(onnx, model.graph)
        added = 0
        for node in model.graph.node:
            for name, (shape, kind) in contrib_shapes(graph, node).items():
                if name not in graph.shapes:
                    elem = next(
                        (number for text, number in onnx.TensorProto.DataType.items() if STORED.get(text) == kind), 1
                    )
                    model.graph.value_info.append(onnx.helper.make_tensor_value_info(name, elem, shape))
                    added += 1
        if not added or added == last == 0:
            return graph
        last = added
    return graph


def _graph(onnx: Any, graph: Any) -> Graph:
    """What inference knows about the values of `graph`."""
    types = {number: STORED.get(text, "") for text, number in onnx.TensorProto.DataType.items()}
    shapes: dict[str, Shape] = {}
    dtypes: dict[str, str] = {}
    for value in (*graph.input, *graph.output, *graph.value_info):
        tensor = value.type.tensor_type
        if tensor.elem_type:
            dtypes[value.name] = types.get(tensor.elem_type, "")
        if tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim):
            shapes[value.name] = tuple(dim.dim_value for dim in tensor.shape.dim)
    constants: set[str] = set()
    for tensor in graph.initializer:
        shapes[tensor.name], dtypes[tensor.name] = tuple(tensor.dims), types.get(tensor.data_type, "")
        constants.add(tensor.name)
    for sparse in graph.sparse_initializer:
        name = sparse.values.name
        shapes[name], dtypes[name] = tuple(sparse.dims), types.get(sparse.values.data_type, "")
        constants.add(name)
    makers: dict[str, str] = {}
    for node in graph.node:
        inputs = [name for name in node.input if name]
        if node.op_type == "Constant" or (inputs and all(name in constants for name in inputs)):
            constants.update(node.output)
        makers.update(dict.fromkeys(node.output, node.op_type))
    return Graph(shapes, dtypes, frozenset(constants), makers)


assert tensor_core_dtype("f32") == "tf32"
