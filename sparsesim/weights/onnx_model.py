"""ONNX models without their weights: the graph as the library's own object, and where each weight's bytes are.

The data of initialisers are left in the file: the protobuf message is copied field by field without them, so that
a model of any size takes the memory of its graph. Everything else is the library's (extra ``[onnx]``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from sparsesim.errors import Problem, UserError
from sparsesim.units import natural
from sparsesim.workload.files import open_bytes

__all__ = [
    "MAX_GRAPH", "OnnxModel", "external_file", "external_place", "inlined", "load_onnx", "need_onnx", "scopes",
    "stored",
]  # fmt: skip

MAX_GRAPH = 256 * 2**20
"""Largest model apart from the data of its initialisers [bytes]."""

#: data of an initialiser up to here stay in the graph: shape inference needs the values of small ones [bytes]
INLINE = 4096

# Field numbers of onnx.proto
_MODEL_GRAPH, _GRAPH_INITIALIZER = 7, 5
_TENSOR_NAME, _TENSOR_RAW, _TENSOR_FLOATS = 8, 9, 4


@dataclass(frozen=True)
class OnnxModel:
    """An ``onnx.ModelProto`` without large data, and where these are in the file: name -> (offset, bytes)."""

    path: Path
    model: Any
    embedded: dict[str, tuple[int, int]]


class _BadMessage(Exception):
    """The bytes are no protobuf message."""


def need_onnx(path: Path) -> Any:
    """The library; `UserError` if it is not installed."""
    try:
        import onnx
    except ImportError:
        found = "it is not installed (pip install 'sparsesim[onnx]')"
        raise UserError(f"{path}: expected the library onnx to read it, found {found}") from None
    return onnx


def load_onnx(path: Path) -> OnnxModel:
    """Read the model at `path`; raises `UserError` if it is none, cut short, or too large beside its weights."""
    onnx = need_onnx(path)
    embedded: dict[str, tuple[int, int]] = {}
    with open_bytes(path) as file:
        size = file.seek(0, 2)
        try:
            kept = _Skim(file, embedded).model(size)
        except _BadMessage as error:
            raise UserError(Problem.line(str(path), "", "a whole ONNX model", str(error))) from None
    try:
        model = onnx.ModelProto.FromString(kept)
    except Exception as error:  # protobuf's own class, which moves between versions
        raise UserError(Problem.line(str(path), "", "a whole ONNX model", str(error))) from None
    if not model.graph.node and not model.graph.initializer:
        raise UserError(Problem.line(str(path), "", "an ONNX model with a graph", "none"))
    if not all(isinstance(name, str) for name in _names(model)):
        raise UserError(Problem.line(str(path), "", "a whole ONNX model", "a name that is no UTF-8 text"))
    return OnnxModel(path, model, embedded)


def _names(model: Any) -> Iterator[Any]:
    """All names of the graph; protobuf hands on as bytes what is no UTF-8."""
    for outer in (model.graph, *model.functions):
        for _, part in scopes(outer):
            for node in part.node:
                yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
                yield from (attribute.name for attribute in node.attribute)
    for _, graph in scopes(model.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            yield value.name
            yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)
        for name, tensor in stored(graph):
            yield from (name, *(text for entry in tensor.external_data for text in (entry.key, entry.value)))


def inlined(onnx: Any, path: Path, model: Any) -> Any:
    """The model with its own functions written out; raises `UserError` if that cannot be."""
    if not model.functions:
        return model
    import onnx.inliner

    try:
        return onnx.inliner.inline_local_functions(model)
    except Exception as error:  # the library raises several classes
        raise UserError(Problem.line(str(path), "functions", "functions that can be inlined", str(error))) from None


def scopes(graph: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """`graph` and the bodies of its control flow, each with what its names begin with."""
    yield place, graph
    for node in graph.node:
        for attribute in node.attribute:
            for body in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                yield from scopes(body, f"{place}{node.name or node.op_type}.{attribute.name}/")


def stored(graph: Any) -> Iterator[tuple[str, Any]]:
    """(name, tensor) of the initialisers of `graph` and of its constants with more than one axis."""
    yield from ((tensor.name, tensor) for tensor in getattr(graph, "initializer", ()))
    for node in graph.node:
        if node.op_type == "Constant" and node.output:
            for attribute in node.attribute:
                if attribute.name == "value" and len(attribute.t.dims) > 1:
                    yield node.output[0], attribute.t


class _Skim:
    """Copies a serialised ModelProto without the data of its initialisers."""

    def __init__(self, file: BinaryIO, embedded: dict[str, tuple[int, int]]) -> None:
        self.file = file
        self.embedded = embedded
        self.kept = 0

    def model(self, size: int) -> bytes:
        return self._copy(0, size, {_MODEL_GRAPH: self._graph})

    def _graph(self, start: int, end: int) -> bytes:
        return self._copy(start, end, {_GRAPH_INITIALIZER: self._tensor})

    def _tensor(self, start: int, end: int) -> bytes:
        places: list[tuple[int, int]] = []
        names: list[bytes] = []

        def data(at: int, stop: int) -> bytes | None:
            if stop - at <= INLINE:
                return self._read(at, stop)
            places.append((at, stop - at))
            return None

        def name(at: int, stop: int) -> bytes:
            names.append(self._read(at, stop))
            return names[-1]

        kept = self._copy(start, end, {_TENSOR_RAW: data, _TENSOR_FLOATS: data, _TENSOR_NAME: name})
        if len(places) > 1:
            raise _BadMessage(f"a tensor with data twice at byte {start}")
        if places and names:
            self.embedded[names[-1].decode("utf-8", "replace")] = places[0]
        return kept

    def _copy(self, start: int, end: int, inner: dict[int, Any]) -> bytes:
        """The message from `start` to `end`, with the length-delimited fields of `inner` replaced."""
        out = BytesIO()
        at = start
        while at < end:
            tag, after = self._varint(at, end)
            wire = tag & 7
            if wire == 0:
                _, stop = self._varint(after, end)
            elif wire in (1, 5):
                stop = after + (8 if wire == 1 else 4)
            elif wire == 2:
                length, after = self._varint(after, end)
                stop = after + length
            else:
                raise _BadMessage(f"a field of wire type {wire} at byte {at}")
            if stop > end or tag >> 3 == 0:
                raise _BadMessage(f"a field at byte {at} that ends {stop - end} bytes after its message")
            if wire == 2 and tag >> 3 in inner:
                body = inner[tag >> 3](after, stop)
                if body is not None:
                    out.write(_encoded(tag) + _encoded(len(body)) + body)
            else:
                out.write(self._read(at, stop))
            at = stop
        return out.getvalue()

    def _read(self, start: int, end: int) -> bytes:
        self.kept += end - start
        if self.kept > MAX_GRAPH:
            raise _BadMessage(f"more than {MAX_GRAPH} bytes beside the data of initialisers")
        self.file.seek(start)
        return self.file.read(end - start)

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        """The number at `at`, and where it ends."""
        self.file.seek(at)
        raw = self.file.read(min(10, end - at))
        value = 0
        for i, byte in enumerate(raw):
            value |= (byte & 0x7F) << 7 * i
            if byte < 0x80:
                return value, at + i + 1
        raise _BadMessage(f"no number at byte {at}")


def _encoded(value: int) -> bytes:
    """`value` as a varint."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def external_place(path: Path, name: str, entries: dict[str, str], nbytes: int) -> tuple[Path, int]:
    """File and offset of an initialiser's external data.

    Raises
    ------
    UserError
        If the location leaves the model's folder (also by a link), or the file is shorter than it says.
    """
    target = external_file(path, name, entries)

    def fail(expected: str, found: Any) -> UserError:
        return UserError(Problem.line(str(path), f"{name}.external_data", expected, found))

    numbers = {}
    for key, default in (("offset", 0), ("length", nbytes)):
        text = entries.get(key, str(default))
        number = natural(text)
        if number is None:
            raise fail(f"{key} as a count of bytes", text)
        numbers[key] = number
    if numbers["length"] != nbytes:
        raise fail(f"{nbytes} bytes, by shape and type", numbers["length"])
    with open_bytes(target) as file:
        size = file.seek(0, 2)
    if numbers["offset"] + nbytes > size:
        raise fail(f"{numbers['offset'] + nbytes} bytes in {entries['location']}", size)
    return target, numbers["offset"]


def external_file(path: Path, name: str, entries: dict[str, str]) -> Path:
    """The file of an initialiser's external data; raises `UserError` if it is not below the model's folder."""

    def fail(expected: str, found: Any) -> UserError:
        return UserError(Problem.line(str(path), f"{name}.external_data", expected, found))

    location = entries.get("location", "")
    parts = PurePosixPath(location).parts
    unsafe = not location or "\0" in location or "\\" in location or re.match(r"[A-Za-z]:", location)
    if unsafe or location.startswith("/") or ".." in parts:
        raise fail("a location in the model's folder", location)
    folder = path.parent.resolve()
    target = (folder / location).resolve()
    if not target.is_relative_to(folder):
        raise fail("a location in the model's folder", f"{location}, which links to {target}")
    return target
