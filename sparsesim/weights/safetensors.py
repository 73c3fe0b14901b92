"""Headers of safetensors files: an 8-byte length, a JSON object, then the tensors back to back.

The format: https://huggingface.co/docs/safetensors. The header is read here and not by the library, because the
library reads bf16 and fp8 only through torch, and because every lie of a header is to be named: lengths beyond
the file, sizes that are not shape times type, overlaps, holes, and data that the file no longer has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from sparsesim.errors import ProblemList, UserError, nearest
from sparsesim.textfiles import parse_json, read_json
from sparsesim.weights.tensor import BITS, Tensor
from sparsesim.workload.files import open_bytes

__all__ = ["MAX_HEADER", "MAX_JSON", "read_index", "read_safetensors"]

MAX_HEADER = 100_000_000
"""Longest header [bytes]; the library's own limit."""

MAX_JSON = 64 * 2**20
"""Largest JSON file beside a checkpoint: an index of shards, a config [bytes]."""

MAX_PROBLEMS = 20
_META = "__metadata__"


def read_safetensors(path: Path) -> tuple[Tensor, ...]:
    """The tensors of the file at `path`, in the order of their bytes; no data are read.

    Raises
    ------
    UserError
        For whatever is wrong with the header: every problem, one line each.
    """
    problems = ProblemList(str(path))
    with open_bytes(path) as file:
        size = file.seek(0, 2)
        file.seek(0)
        prefix = file.read(8)
        if len(prefix) < 8:
            problems.add("", "a safetensors file, which begins with 8 bytes of header length", f"{size} bytes")
            problems.raise_if_any()
        length = int.from_bytes(prefix, "little")
        if length > min(MAX_HEADER, size - 8) or length < 2:
            most = "the file's" if size - 8 < MAX_HEADER else "the format's"
            problems.add("header length", f"2 to {min(MAX_HEADER, size - 8)} bytes ({most} limit)", length)
            problems.raise_if_any()
        raw = file.read(length)
    if not raw.startswith(b"{"):  # as the format wants it, without spaces or a byte-order mark
        problems.add("header", "a JSON object, which begins with {", raw[:20])
        problems.raise_if_any()
    header = parse_json(raw, f"{path}: header")
    entries = [entry for name, value in header.items() if name != _META and (entry := _entry(problems, name, value))]
    entries.sort(key=lambda entry: (entry[3], entry[4], entry[0]))
    if not problems.lines:
        _check_layout(problems, entries, size - 8 - length)
    if len(problems.lines) > MAX_PROBLEMS:
        rest = len(problems.lines) - MAX_PROBLEMS
        problems.lines[MAX_PROBLEMS:] = [f"{path}: and {rest} further problems"]
    problems.raise_if_any()
    return tuple(
        Tensor(name, shape, dtype, str(path), _opener(path, 8 + length + begin))
        for name, dtype, shape, begin, _ in entries
    )


def _entry(problems: ProblemList, name: str, value: Any) -> tuple[str, str, tuple[int, ...], int, int] | None:
    """(name, dtype, shape, begin, end) of one entry, or None after its problems."""
    place = name if name.isprintable() and len(name) <= 200 else repr(name[:200])
    if not isinstance(value, dict):
        problems.add(place, "an object with dtype, shape and data_offsets", value)
        return None
    dtype, shape, offsets = (value.get(key) for key in ("dtype", "shape", "data_offsets"))
    before = len(problems.lines)
    if not isinstance(dtype, str) or dtype not in BITS:
        known = ", ".join(BITS)
        problems.add(f"{place}.dtype", f"one of {known}", dtype)
        problems.lines[-1] += nearest(dtype, BITS) if isinstance(dtype, str) else ""
    if not isinstance(shape, list) or not all(type(side) is int and 0 <= side < 2**63 for side in shape):
        problems.add(f"{place}.shape", "a list of sizes", shape)
    good = isinstance(offsets, list) and len(offsets) == 2 and all(type(item) is int for item in offsets)
    if not good or not 0 <= offsets[0] <= offsets[1]:  # type: ignore[index]
        problems.add(f"{place}.data_offsets", "[begin, end] with 0 <= begin <= end", offsets)
    if len(problems.lines) > before:
        return None
    begin, end = offsets  # type: ignore[misc]
    bits = math.prod(shape) * BITS[dtype]  # type: ignore[arg-type, index]
    if bits != 8 * (end - begin):
        problems.add(f"{place}.data_offsets", f"{bits / 8:g} bytes for {dtype} of shape {shape}", end - begin)
        return None
    return name, dtype, tuple(shape), begin, end  # type: ignore[return-value, arg-type]


def _check_layout(problems: ProblemList, entries: list[Any], size: int) -> None:
    """Report overlaps, holes, and an end that is not the file's."""
    at, last = 0, "the header"
    for name, _, _, begin, end in entries:
        if begin < at:
            problems.add(f"{name}.data_offsets", f"a begin of {at}, where {last} ends", f"{begin}: they overlap")
        elif begin > at:
            problems.add(f"{name}.data_offsets", f"a begin of {at}, where {last} ends", f"{begin}: a hole")
        at, last = max(at, end), name
    if at > size:
        problems.add("", f"{at} bytes of data, as the header says", f"{size}: the file is truncated")
    elif at < size and not problems.lines:
        problems.add("", f"{at} bytes of data, as the header says", f"{size}: more than the header tells of")


def _opener(path: Path, offset: int) -> Any:
    @contextmanager
    def opened() -> Iterator[BinaryIO]:
        with open_bytes(path) as file:
            file.seek(offset)
            yield file

    return opened


def read_index(path: Path) -> tuple[Tensor, ...]:
    """The tensors of the shards that a ``model.safetensors.index.json`` lists.

    Raises
    ------
    UserError
        If a shard is no plain file name beside the index, or does not hold what the index says.
    """
    index = read_json(path, "the index of a checkpoint", MAX_JSON)
    problems = ProblemList(str(path))
    listed = index.get("weight_map")
    if not isinstance(listed, dict) or not all(isinstance(value, str) for value in listed.values()):
        problems.add("weight_map", "an object of file names by tensor", listed)
        problems.raise_if_any()
        raise AssertionError
    tensors: list[Tensor] = []
    for shard in dict.fromkeys(listed.values()):
        if not shard or Path(shard).name != shard or shard in (".", "..") or "\\" in shard or "\0" in shard:
            problems.add("weight_map", "the name of a file in the same folder", shard)
            continue
        try:
            held = {tensor.name: tensor for tensor in read_safetensors(path.parent / shard)}
        except UserError as error:
            problems.lines += error.problems
            continue
        wanted = [name for name, file in listed.items() if file == shard]
        missing = [name for name in wanted if name not in held]
        if missing:
            problems.add(f"weight_map.{missing[0]}", f"a tensor of {shard}", f"none ({len(missing)} such names)")
        tensors += [tensor for name, tensor in held.items() if listed.get(name) == shard]
    problems.raise_if_any()
    return tuple(tensors)
