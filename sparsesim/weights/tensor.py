"""One stored tensor: name, shape, type, and its bytes in storage order; and which of its elements are zero.

Types keep the names of safetensors. Narrow floats need no library: an element is zero where all bits but the sign
are, so bf16 and fp8 are judged as the integers they are stored as.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from sparsesim.errors import Problem, UserError

__all__ = ["BITS", "GEMM_DTYPE", "Tensor", "Weights", "nonzero"]

BITS: dict[str, int] = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "C64": 64,
    "I64": 64, "I32": 32, "I16": 16, "I8": 8, "I4": 4, "U64": 64, "U32": 32, "U16": 16, "U8": 8, "U4": 4, "BOOL": 8,
}  # fmt: skip
"""Stored bits of an element."""

GEMM_DTYPE = {"F32": "tf32", "F16": "f16", "BF16": "bf16", "I8": "i8", "F8_E4M3": "e4m3", "F4": "e2m1",
              "F8_E4M3FNUZ": "e4m3"}  # fmt: skip
"""Stored type -> the type a tensor core multiplies it in."""

#: stored type -> (integer it is viewed as, the bits that make it nonzero)
_MASKS: dict[str, tuple[str, int]] = {
    "F64": ("<u8", (1 << 63) - 1), "F32": ("<u4", (1 << 31) - 1),
    "F16": ("<u2", 0x7FFF), "BF16": ("<u2", 0x7FFF), "F8_E4M3": ("u1", 0x7F), "F8_E5M2": ("u1", 0x7F),
    # no negative zero: its bits are the one NaN
    "F8_E4M3FNUZ": ("u1", 0xFF), "F8_E5M2FNUZ": ("u1", 0xFF),
    "I64": ("<u8", (1 << 64) - 1), "U64": ("<u8", (1 << 64) - 1),
    "I32": ("<u4", 0xFFFFFFFF), "U32": ("<u4", 0xFFFFFFFF),
    "I16": ("<u2", 0xFFFF), "U16": ("<u2", 0xFFFF), "I8": ("u1", 0xFF), "U8": ("u1", 0xFF), "BOOL": ("u1", 0xFF),
}  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """A tensor of a weight file.

    Parameters
    ----------
    name, shape, dtype
        dtype is a key of `BITS`.
    file
        The file that holds its bytes.
    open
        Opens its bytes, C order, little endian; the stream may end early if the file lies.
    k_axis
        The axis along which a product sums, if the file knows it; else None.
    used_by
        What multiplies by it, where the file knows: ``"MatMul"``, ``"Conv"``, …; empty if unknown.
    groups
        Groups of a grouped convolution, where the file knows.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    file: str
    open: Callable[[], AbstractContextManager[BinaryIO]]
    k_axis: int | None = None
    used_by: str = ""
    groups: int = 1

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Stored bytes."""
        return -(-self.size * BITS[self.dtype] // 8)

    @property
    def readable(self) -> bool:
        """Whether its zeros can be told."""
        return self.dtype in _MASKS or self.dtype in ("F4", "I4", "U4")

    def blocks(self, sizes: Iterable[int]) -> Iterator[NDArray[np.bool_]]:
        """Which elements are nonzero, in storage order, in blocks of `sizes` elements (which add up to all).

        Raises
        ------
        UserError
            If the file ends before the tensor does.
        """
        bits, kept = BITS[self.dtype], np.zeros(0, dtype=np.bool_)
        with self.open() as stream:
            for size in sizes:
                # a block of 4-bit elements may end inside a byte, whose other half begins the next one
                wanted = size - kept.size
                raw = bytearray(-(-wanted * bits // 8))
                self._fill(stream, raw)
                block = nonzero(raw, self.dtype)
                block, kept = (np.concatenate([kept, block]) if kept.size else block), block[wanted:]
                yield block[:size]

    def _fill(self, stream: BinaryIO, raw: bytearray) -> None:
        """Read exactly as many bytes as `raw` holds."""
        view, done = memoryview(raw), 0
        while done < len(raw):
            got = stream.readinto(view[done:])  # type: ignore[attr-defined]
            if not got:
                expected = f"{self.nbytes} bytes of data"
                raise UserError(Problem.line(self.file, self.name, expected, "the end of the file before them"))
            done += got


@dataclass(frozen=True)
class Weights:
    """The tensors of a checkpoint, in the order of their bytes; `source` says what it is."""

    path: str
    source: str
    tensors: tuple[Tensor, ...]

    @property
    def nbytes(self) -> int:
        """Stored bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors)


def nonzero(raw: Any, dtype: str) -> NDArray[np.bool_]:
    """Which of the elements stored in the buffer `raw` are nonzero; negative zero is zero, NaN is not."""
    if dtype in ("F4", "I4", "U4"):
        pairs = np.frombuffer(raw, dtype="u1")
        kept = 0x7 if dtype == "F4" else 0xF
        return np.stack([(pairs & kept) != 0, (pairs >> 4 & kept) != 0], axis=-1).reshape(-1)
    view, mask = _MASKS[dtype]
    values = np.frombuffer(raw, dtype=view)
    out: NDArray[np.bool_] = (values & values.dtype.type(mask)) != 0
    return out
