"""numpy's npz and npy files as streams: headers are checked, arrays are decompressed block by block.

An object array is a pickle and is never loaded. An archive that expands far beyond its own size is refused
(a zip bomb), and so is a member whose header promises another number of bytes than the archive holds.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from sparsesim.errors import Problem, ProblemList, UserError
from sparsesim.weights.tensor import Tensor
from sparsesim.workload.files import open_bytes

__all__ = ["MAX_EXPANSION", "check_archive", "read_npy", "read_npz"]

MAX_EXPANSION = 200
"""Bytes of data per byte of archive: 2:4 weights of one value still take 1 of 100; a bomb 1 of 1000 or less."""

EXPANSION_FREE = 64 * 2**20
"""Expanded bytes below which the ratio does not matter."""

MAX_NPY_HEADER = 1 << 16

_Opener = Callable[[], AbstractContextManager[BinaryIO]]
_KINDS = {"f2": "F16", "f4": "F32", "f8": "F64", "b1": "BOOL", "c8": "C64"} | {
    f"{kind}{size}": f"{kind.upper()}{8 * size}" for kind in "iu" for size in (1, 2, 4, 8)
}
#: how numpy stores the types of ml_dtypes: as raw bytes of their size
_RAW = {"V2": "BF16", "V1": "F8_E4M3"}


def read_npz(path: Path) -> tuple[Tensor, ...]:
    """The arrays of the archive at `path`; raises `UserError` with every problem of its headers."""
    problems = ProblemList(str(path))
    tensors: list[Tensor] = []
    with _archive(path) as archive:
        members = [info for info in archive.infolist() if not info.is_dir()]
        _check_expansion(path, archive)
        names = [info.filename for info in members]
        for info in members:
            if names.count(info.filename) > 1:
                problems.add(info.filename, "each member once", f"{names.count(info.filename)} times")
                continue
            if not info.filename.endswith(".npy"):
                problems.add(info.filename, "members ending in .npy", "another file")
                continue
            if info.flag_bits & 1:
                problems.add(info.filename, "a member that is not encrypted", "an encrypted one")
                continue
            try:
                with _member(path, info.filename)() as stream:
                    name = info.filename.removesuffix(".npy")
                    held = info.file_size
                    tensors.append(_tensor(stream, path, name, held, _member(path, info.filename)))
            except UserError as error:
                problems.lines += error.problems
    problems.lines = list(dict.fromkeys(problems.lines))[:20]
    problems.raise_if_any()
    return tuple(tensors)


def check_archive(path: Path, what: str) -> None:
    """Raise UserError if `path` is no sound zip archive, or one that expands beyond reason; `what` it should hold."""
    with _archive(path, what) as archive:
        _check_expansion(path, archive)


def _check_expansion(path: Path, archive: zipfile.ZipFile) -> None:
    expanded, size = sum(info.file_size for info in archive.infolist()), path.stat().st_size
    if expanded > EXPANSION_FREE and expanded > MAX_EXPANSION * size:
        found = f"{expanded} bytes in an archive of {size}: a zip bomb"
        raise UserError(Problem.line(str(path), "", f"at most {MAX_EXPANSION} bytes of data per byte", found))


def read_npy(path: Path) -> tuple[Tensor, ...]:
    """The one array of the file at `path`."""
    with open_bytes(path) as file:
        size = file.seek(0, 2)
        file.seek(0)
        return (_tensor(file, path, path.stem, size, lambda: open_bytes(path)),)


@contextmanager
def _archive(path: Path, what: str = "npz") -> Iterator[zipfile.ZipFile]:
    """The zip archive at `path`; its faults are the user's."""
    with open_bytes(path) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                yield archive
        except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, RuntimeError, ValueError) as error:
            raise UserError(Problem.line(str(path), "", f"a sound {what} archive", str(error))) from None


def _member(path: Path, name: str) -> _Opener:
    @contextmanager
    def opened() -> Iterator[BinaryIO]:
        with _archive(path) as archive, archive.open(name) as stream:
            yield cast(BinaryIO, stream)

    return opened


def _tensor(stream: BinaryIO, path: Path, name: str, held: int, opener: _Opener) -> Tensor:
    """The array whose npy header `stream` begins with; `held` is the length of header and data [bytes]."""
    place = name if name.isprintable() else repr(name)

    def fail(expected: str, found: Any) -> UserError:
        return UserError(Problem.line(str(path), place, expected, found))

    try:
        version = np.lib.format.read_magic(stream)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, fortran, dtype = read(stream, max_header_size=MAX_NPY_HEADER)
    except KeyError:
        raise fail("an npy header of version 1 or 2", f"{version[0]}.{version[1]}") from None
    except Exception as error:  # numpy raises whatever its literal parser meets
        raise fail("a sound npy header", str(error).partition("\n")[0]) from None
    if dtype.hasobject:
        raise fail("an array of numbers", "an object array: a pickle, which is never loaded")
    kind = _KINDS.get(dtype.str[1:]) or _RAW.get(dtype.str[1:])
    if kind is None:
        raise fail("an array of numbers", str(dtype))
    if not all(type(side) is int and side >= 0 for side in shape):
        raise fail("a shape of sizes", shape)
    if dtype.byteorder == ">":
        raise fail("little-endian numbers", str(dtype))
    offset = _position(stream)
    data = math.prod(shape) * dtype.itemsize
    if offset + data != held:
        raise fail(f"{data} bytes for {dtype} of shape {shape}", held - offset)
    # in Fortran order the bytes are those of the transposed array
    stored = tuple(reversed(shape)) if fortran else tuple(shape)
    k_axis = 0 if fortran and len(shape) == 2 else None
    return Tensor(name, stored, kind, str(path), _skip(opener, offset), k_axis)


def _position(stream: BinaryIO) -> int:
    return stream.tell()


def _skip(opener: _Opener, offset: int) -> _Opener:
    """`opener`, with the header already read."""

    @contextmanager
    def opened() -> Iterator[BinaryIO]:
        with opener() as stream:
            stream.read(offset)
            yield stream

    return opened
