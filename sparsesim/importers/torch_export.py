"""Programs of ``torch.export`` (``.pt2``) as workloads (extra ``[torch]``).

Sizes come from the program's own metadata. A dynamic dimension needs a size: by its symbol, or as
``input.axis``. Parameters and buffers are weights; their values are not read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparsesim.errors import Problem, ProblemList, UserError, nearest
from sparsesim.importers.aten_ops import FREE, PRODUCTS, Shape, UnknownSize, aten_flops, aten_name, aten_products
from sparsesim.importers.imported import Draft, Imported, clean, tensor_core_dtype
from sparsesim.weights.npz import check_archive

__all__ = ["import_torch_export"]


def import_torch_export(path: Path, pattern: str | None, dtype: str | None, dims: Mapping[str, int]) -> Imported:
    """Read the program at `path`; parameters as for ONNX models.

    Raises
    ------
    UserError
        If torch is missing or cannot load it, or a dimension has no size.
    """
    program = _load(path)
    sizes = _symbols(path, program, dims)
    draft = Draft(str(path), pattern or "2:4", dtype)
    graph = program.graph
    for node in graph.nodes:
        if node.op == "call_function":
            _lower(draft, node, sizes)
    used = ", ".join(f"{name}={size}" for name, size in dims.items())
    source = clean(f"torch.export program {path.name}" + (f", {used}" if used else ""))
    if any(op.dtype == "tf32" for op in draft.gemms):
        draft.note("f32 products run as tf32; --dtype f16 (or another) for a narrower build")
    workload = draft.finish(clean(path.stem), "; ".join(draft.notes), source, "a matrix product")
    return Imported(str(path), "torch-export", workload, tuple(draft.notes))


def _load(path: Path) -> Any:
    """The program; whatever torch raises about a broken file is the user's."""
    check_archive(path, "pt2")  # torch unpacks whatever it is given
    try:
        import torch
    except ImportError:
        found = "it is not installed (pip install 'sparsesim[torch]')"
        raise UserError(f"{path}: expected the library torch to read it, found {found}") from None
    try:
        return torch.export.load(str(path))
    except Exception as error:  # torch raises many classes
        found = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UserError(Problem.line(str(path), "", "a program that torch.export.load reads", found)) from None


def _symbols(path: Path, program: Any, dims: Mapping[str, int]) -> dict[str, int]:
    """Sizes by symbol; a missing one and an unknown name are problems."""
    problems = ProblemList(str(path))
    names: dict[str, str] = {}  # symbol -> input.axis
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder" and hasattr(value, "shape"):
            for axis, side in enumerate(value.shape):
                if not isinstance(side, int):
                    names.setdefault(str(side), f"{node.name}.{axis}")
    sizes: dict[str, int] = {}
    for symbol, place in names.items():
        size = dims.get(symbol, dims.get(place))
        if size is None:
            expected = f"a size for dynamic dimension {symbol}: --dim {place}=SIZE"
            problems.add(f"input {place}", expected, "none")
        else:
            sizes[symbol] = size
    known = [*names, *names.values()]
    for name in dims:
        if name not in known:
            line = Problem.line(str(path), "dim", "a dynamic dimension: " + (", ".join(known) or "none here"), name)
            problems.add_line(line + nearest(name, known))
    problems.raise_if_any()
    return sizes


def _shape(value: Any, sizes: Mapping[str, int]) -> Shape | None:
    """The shape of a tensor of the metadata, or None if `value` is none or a side stays unknown."""
    if not hasattr(value, "shape"):
        return None
    sides = []
    for side in value.shape:
        if not isinstance(side, int):
            expression = side.node.expr
            solved = expression.subs({symbol: sizes.get(str(symbol), symbol) for symbol in expression.free_symbols})
            if not solved.is_integer or solved.free_symbols:
                return None
            side = int(solved)
        sides.append(side)
    return tuple(sides)


def _lower(draft: Draft, node: Any, sizes: Mapping[str, int]) -> None:
    """Add the GEMMs of one call, or the call by name."""
    label = str(node.target)
    short = aten_name(label) if label.startswith("aten.") else getattr(node.target, "__name__", label)
    values = [getattr(arg, "meta", {}).get("val") for arg in node.args]
    shapes = [_shape(value, sizes) or () for value in values]
    out = _shape(node.meta.get("val"), sizes)
    if short in PRODUCTS:
        tensors: list[Any] = [value for value in values if hasattr(value, "dtype")]
        stored = tensor_core_dtype(str(tensors[0].dtype)) if tensors else None
        scalars = [None if hasattr(arg, "meta") else arg for arg in node.args]
        try:
            for p in aten_products(short, shapes, scalars, out):
                draft.gemm(
                    node.name + p.suffix, p.m, p.n, p.k, stored or "tf32", place=f"node {node.name}",
                    batch=p.batch, kind=p.kind, family=p.family, pattern=p.pattern,
                )  # fmt: skip
        except UnknownSize as error:
            draft.problem(f"node {node.name}", "known sizes of its operands", str(error))
        return
    if short in FREE:
        draft.other(node.name, label, 0, 0, "moves no data")
        return
    if not label.startswith("aten.") and not hasattr(node.meta.get("val"), "shape"):
        draft.other(node.name, short, 0, 0, "arithmetic on sizes")
        return
    pieces = [_nbytes(value, sizes) for value in (*values, node.meta.get("val")) if hasattr(value, "shape")]
    total = None if any(piece is None for piece in pieces) else sum(piece or 0 for piece in pieces)
    largest = max((math.prod(shape) for shape in (*shapes, out or ()) if shape), default=None)
    flops = aten_flops(short, largest)
    draft.other(node.name, label, total, flops, "" if flops is not None else "FLOPs of an unknown op")


def _nbytes(value: Any, sizes: Mapping[str, int]) -> int | None:
    shape = _shape(value, sizes)
    return None if shape is None else math.prod(shape) * int(value.dtype.itemsize)
