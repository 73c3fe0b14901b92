"""Chrome traces of the PyTorch profiler as workloads, read as a stream (extra ``[traces]``: ijson).

The profiler must have recorded shapes (``record_shapes=True``). Of nested ops the outermost product counts: an
``aten::linear`` is one GEMM, whatever it calls. Ops without products are named at their outermost level, and so
are kernels that belong to no recorded op. Equal GEMMs are one op with a count.
"""

from __future__ import annotations

import gzip
import math
import sys
import zlib
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

from sparsesim.errors import Problem, UserError
from sparsesim.importers.aten_ops import FREE, PRODUCTS, Shape, UnknownSize, aten_flops, aten_name, aten_products
from sparsesim.importers.imported import Draft, Imported, clean, tensor_core_dtype
from sparsesim.units import is_number
from sparsesim.workload.files import Unpacked, open_bytes

__all__ = ["import_torch_trace"]

Progress = Callable[[int, int], None]

#: bytes of a value by the profiler's name of its type
_BYTES = {"float": 4, "double": 8, "long": 8, "long int": 8, "int": 4, "short": 2, "bool": 1, "c10::complex<float>": 8}
#: recorded ops that are kept; a longer trace is refused
MAX_OPS = 2_000_000
_GPU = ("kernel", "gpu_memcpy", "gpu_memset")


@dataclass(slots=True)
class _Op:
    """One recorded op of the host."""

    lane: tuple[Any, Any]
    start: float
    end: float
    name: str
    shapes: tuple[Shape, ...] | None
    types: tuple[str, ...]
    scalars: tuple[Any, ...]
    children: list[_Op] = field(default_factory=list)
    product: bool = False


def import_torch_trace(path: Path, pattern: str | None, dtype: str | None, progress: Progress | None) -> Imported:
    """Read the trace at `path` (``.json`` or ``.json.gz``).

    Parameters
    ----------
    pattern
        Of the weights; by default what ran, dense or, by PyTorch's own sparse ops, 2:4.

    Raises
    ------
    UserError
        If it is no trace, fields are missing, or no product has shapes.
    """
    draft = Draft(str(path), pattern or "dense", dtype, merge=True)
    ops, kernels = _collect(path, draft, progress)
    draft.problems.raise_if_any()
    shapeless: Counter[str] = Counter()
    for root in _trees(ops):
        _walk(draft, root, shapeless)
    for (name, kind), count in kernels.items():
        draft.other(name, kind, None, None, "a device activity of no recorded op", count)
    if shapeless and not draft.gemms:
        found = ", ".join(f"{count} {name}" for name, count in shapeless.items())
        expected = "shapes of the products: profile with record_shapes=True"
        raise UserError(Problem.line(str(path), "args.Input Dims", expected, f"none of {found}"))
    for name, count in shapeless.items():
        draft.other(name, name, None, None, "a product without recorded shapes", count)
    stem = clean(path.name.partition(".")[0])
    nothing = "matrix products of recorded ops (cat cpu_op)"
    workload = draft.finish(stem, "; ".join(draft.notes), f"PyTorch profiler trace {clean(path.name)}", nothing)
    return Imported(str(path), "torch-trace", workload, tuple(draft.notes))


# --- reading ---


@contextmanager
def _bytes(path: Path) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """The text of the trace, and the file below it, whose position tells how far it is read."""
    with open_bytes(path) as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        yield (cast(BinaryIO, Unpacked(file, path.stat().st_size)) if packed else file), file


def _events(path: Path, progress: Progress | None) -> Iterator[Any]:
    """The events of the trace one by one."""
    try:
        import ijson
    except ImportError:
        found = "it is not installed (pip install 'sparsesim[traces]')"
        raise UserError(f"{path}: expected the library ijson to read it, found {found}") from None
    total = path.stat().st_size if path.exists() else 0
    with _bytes(path) as (stream, file):
        try:
            head = stream.read(64)
            mark = len(BOM_UTF8) if head.startswith(BOM_UTF8) else 0
            stream.seek(mark)
            prefix = "item" if head[mark:].lstrip().startswith(b"[") else "traceEvents.item"
            for number, event in enumerate(ijson.items(stream, prefix, use_float=True)):
                if progress is not None and number % 4096 == 0:
                    progress(file.tell(), total)
                yield event
        except (ijson.JSONError, zlib.error, gzip.BadGzipFile, EOFError, ValueError, RecursionError) as error:
            found = str(error).partition("\n")[0] or type(error).__name__
            raise UserError(Problem.line(str(path), "", "a whole Chrome trace in JSON", found)) from None


def _collect(path: Path, draft: Draft, progress: Progress | None) -> tuple[list[_Op], Counter[tuple[str, str]]]:
    """The recorded ops, and the device's activities that belong to none of them."""
    ops: list[_Op] = []
    ids: set[Any] = set()
    device: Counter[tuple[str, str, Any]] = Counter()
    seen = 0
    for number, event in enumerate(_events(path, progress)):
        seen = number + 1
        if not isinstance(event, dict):
            draft.problem(f"traceEvents[{number}]", "an object", event)
            continue
        kind = event.get("cat")
        if event.get("ph") != "X" or kind not in ("cpu_op", *_GPU):
            continue
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        link = args.get("External id", args.get("external id"))
        if kind in _GPU:
            name = event.get("name")
            if not isinstance(name, str):
                draft.problem(f"traceEvents[{number}].name", "text", name)
                continue
            link = link if isinstance(link, int) else None
            device[sys.intern(name), kind, link] += 1
            continue
        op = _op(draft, number, event, args)
        if op is not None:
            if isinstance(link, int):
                ids.add(link)
            ops.append(op)
        if len(ops) > MAX_OPS:
            raise UserError(Problem.line(str(path), "traceEvents", f"at most {MAX_OPS} recorded ops", "more"))
    if not seen:
        raise UserError(Problem.line(str(path), "traceEvents", "events of a profiler trace", "none"))
    left: Counter[tuple[str, str]] = Counter()
    for (name, kind, link), count in device.items():
        if link is None or link not in ids:
            left[name, kind] += count
    return ops, left


def _op(draft: Draft, number: int, event: dict[str, Any], args: dict[str, Any]) -> _Op | None:
    """A recorded op, or None after its problems."""
    place = f"traceEvents[{number}]"
    good = True
    for key in ("ts", "dur"):
        value = event.get(key)
        if not is_number(value) or (key == "dur" and value < 0):
            draft.problem(f"{place}.{key}", "a time in microseconds", value)
            good = False
    name = event.get("name")
    if not isinstance(name, str):
        draft.problem(f"{place}.name", "text", name)
        good = False
    if not good or not isinstance(name, str):
        return None
    dims = args.get("Input Dims", args.get("Input dims"))
    shapes = _shapes(dims)
    if dims is not None and shapes is None:
        draft.problem(f"{place}.args.Input Dims", "a list of shapes", dims)
    types = args.get("Input type")
    scalars = args.get("Concrete Inputs")
    names = tuple(sys.intern(t) if isinstance(t, str) else "" for t in types) if isinstance(types, list) else ()
    start = float(event["ts"])
    return _Op(
        (event.get("pid"), event.get("tid")), start, start + float(event["dur"]), sys.intern(name), shapes, names,
        tuple(scalars) if isinstance(scalars, list) and aten_name(name) in PRODUCTS else (),
    )  # fmt: skip


def _shapes(dims: Any) -> tuple[Shape, ...] | None:
    """Shapes by argument; a list of tensors counts as no tensor. None if they are no shapes."""
    if not isinstance(dims, list):
        return None
    shapes: list[Shape] = []
    for item in dims:
        if not isinstance(item, list):
            return None
        if all(type(side) is int and side >= 0 for side in item):
            shapes.append(tuple(item))
        else:
            shapes.append(())
    return tuple(shapes)


# --- nesting ---


def _trees(ops: list[_Op]) -> list[_Op]:
    """The outermost ops of every thread, with what they contain; `product` says whether one is inside."""
    roots: list[_Op] = []
    stack: list[_Op] = []
    for op in sorted(ops, key=lambda op: (str(op.lane), op.start, -op.end)):
        while stack and (stack[-1].lane != op.lane or op.start >= stack[-1].end):
            stack.pop()
        (stack[-1].children if stack else roots).append(op)
        stack.append(op)
        if aten_name(op.name) in PRODUCTS:
            for outer in stack:
                outer.product = True
    return roots


def _walk(draft: Draft, root: _Op, shapeless: Counter[str]) -> None:
    """Add the products in `root`, or `root` itself by name."""
    pending = [root]
    while pending:
        op = pending.pop()
        short = aten_name(op.name)
        if short in PRODUCTS:
            _product(draft, op, short, shapeless)
        elif op.product:
            pending += reversed(op.children)
        else:
            _other(draft, op, short)


def _product(draft: Draft, op: _Op, short: str, shapeless: Counter[str]) -> None:
    if not op.shapes or not any(op.shapes):
        shapeless[op.name] += 1
        return
    try:
        products = aten_products(short, op.shapes, op.scalars)
    except UnknownSize as error:
        draft.other(op.name, op.name, _moved(op), None, f"a product of unknown size: {error}")
        return
    kinds = [kind for kind in map(tensor_core_dtype, op.types) if kind]
    stored = kinds[0] if kinds else "tf32"
    if not kinds:
        draft.note("types that were not recorded count as f32 (tf32)")
    for p in products:
        if min(p.m, p.n, p.k, p.batch) < 1:
            draft.other(op.name, op.name, 0, 0, "an empty product")
            continue
        draft.gemm(
            f"{short}{p.suffix}-{p.m}x{p.n}x{p.k}", p.m, p.n, p.k, stored, place=f"op {clean(op.name)}",
            batch=p.batch, kind=p.kind, family=p.family, pattern=p.pattern,
        )  # fmt: skip


def _moved(op: _Op) -> int | None:
    """Bytes of the operands; the results of an op are not recorded."""
    if not op.shapes:
        return None
    total = 0
    for shape, kind in zip(op.shapes, op.types, strict=False):
        if shape:
            narrow = tensor_core_dtype(kind)
            width = _BYTES.get(kind) or (4 if narrow == "tf32" else 2 if narrow in ("f16", "bf16") else 1)
            total += math.prod(shape) * width
    return total


def _other(draft: Draft, op: _Op, short: str) -> None:
    if short in FREE:
        draft.other(op.name, op.name, 0, 0, "moves no data")
        return
    largest = max((math.prod(shape) for shape in op.shapes or () if shape), default=None)
    draft.other(op.name, op.name, _moved(op), aten_flops(short, largest), "bytes of the operands alone")
