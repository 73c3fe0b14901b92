"""Compressed storage of a matrix that is legal under a pattern: values, packed indices, column indices.

The order is logical: row by row, k ascending. A kernel reorders the metadata again for its own loads
(CUTLASS, tools/util/include/cutlass/util/host_reorder.h), which moves words and changes no size.

2:4
    Each group of 4 gives two 2-bit indices, idx0 < idx1, idx0 in the low bits: ``idx0 | idx1 << 2``. Four
    groups fill a 16-bit word, the first group in the low bits, and a row is padded to whole words (PTX ISA,
    "Sparse matrix storage" of ``mma.sp``; CUTLASS, include/cutlass/arch/mma_sparse_sm80.h, ElementE). A word
    of 32 bits, as 8-bit types use it, is two such words in little-endian order, so the bytes are equal.
    Groups with fewer than two nonzeros are coded as PyTorch codes them (torch/sparse/
    _semi_structured_conversions.py): nothing, only element 2, or only element 3 as (2, 3); only element 0 as
    (0, 2); only element 1 as (1, 2). Padding groups at the end of a row are zero bits and are never read.
2:4(pair 4:8)
    The same on pairs: an index names one of the 4 pairs of a group of 8, and both elements are stored.
N:M
    N ascending indices per group of ceil(log2 M) bits each, little-endian into bytes, each row padded to a
    whole byte. Groups with fewer nonzeros also name their highest free positions.
V:2:M
    Per block of V rows × M columns 4 ascending column indices, packed like N:M, one row of bytes for each
    row of blocks; then the M columns read as 4 and coded as 2:4 (VENOM, arXiv 2310.02065).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsesim.sparsity._arrays import Array, fail, rows_by_k, whole_blocks
from sparsesim.sparsity.pattern import TWO_FOUR, Pattern, count
from sparsesim.sparsity.prune import check

__all__ = ["Compressed", "compress", "compressed_bytes", "decompress", "kept_columns", "metadata_bytes"]

Index = NDArray[np.intp]

_NIBBLE = np.array(
    # nonzero flags e3 e2 e1 e0, from 0000 to 1111; more than two are not legal and never looked up
    [0xE, 0x8, 0x9, 0x4, 0xE, 0x8, 0x9, 0x0, 0xE, 0xC, 0xD, 0x0, 0xE, 0x0, 0x0, 0x0],
    dtype=np.uint8,
)


@dataclass(frozen=True, slots=True, eq=False)
class Compressed:
    """A compressed matrix of `shape` (m, k).

    Attributes
    ----------
    pattern : Pattern
    shape : tuple of int
        Logical rows and columns (m, k).
    values : (m, k·N/M)
        Stored elements, in order of k.
    metadata : (m, words)
        Packed indices: uint16 where the pattern is coded as 2:4 (also pairs and V:2:M), else uint8;
        no columns for dense.
    columns : (m/V, bytes) of uint8
        Packed column indices of V:2:M; empty for other patterns.

    Raises
    ------
    UserError
        If the arrays do not have the shapes that `pattern` and `shape` ask for.
    """

    pattern: Pattern
    shape: tuple[int, int]
    values: Array
    metadata: Array
    columns: Array

    def __post_init__(self) -> None:
        m, k = self.shape
        whole_blocks(m, k, self.pattern, "compressed")
        word = _word_bytes(self.pattern)
        blocks = m // self.pattern.v if self.pattern.v else 0
        wanted = {
            "values": (m, self.pattern.kept(k)),
            "metadata": (m, _row_bytes(self.pattern, k) // word),
            "columns": (blocks, _column_row_bytes(self.pattern, k)),
        }
        for name, shape in wanted.items():
            found = getattr(self, name).shape
            if found != shape:
                raise fail("compressed", f"{name}.shape", str(shape), found)
        for name, dtype in (("metadata", np.dtype(f"u{word}")), ("columns", np.dtype("u1"))):
            if getattr(self, name).dtype != dtype:
                raise fail("compressed", f"{name}.dtype", str(dtype), str(getattr(self, name).dtype))

    @property
    def nbytes(self) -> int:
        """Bytes of values, metadata and column indices."""
        return self.values.nbytes + self.metadata.nbytes + self.columns.nbytes


def compress(array: Any, pattern: Pattern) -> Compressed:
    """Compress an (m, k) array that is legal under `pattern`; `decompress` gives back equal values.

    Parameters
    ----------
    array : (m, k)
        Integers or floats without NaN. A negative zero counts as zero and may lose its sign.
    pattern : Pattern

    Raises
    ------
    UserError
        If the array is not 2-D, holds NaN, does not split into whole groups, or breaks the pattern.
    """
    weights = rows_by_k(array, 1, "compress")
    m, k = weights.shape
    whole_blocks(m, k, pattern, "compress")
    state = check(weights, pattern)
    if not state.ok:
        found = f"{state.broken} of {state.groups} groups with more, the first at {state.first}"
        raise fail("compress", "array", f"an array legal under {pattern}", found)
    nothing = np.zeros((0, 0), dtype=np.uint8)
    if pattern.is_dense:
        return Compressed(pattern, (m, k), weights.copy(), np.zeros((m, 0), dtype=np.uint8), nothing)
    if pattern.is_vnm:
        return _compress_vnm(weights, pattern)
    if pattern.is_pair:
        pairs = weights.reshape(m, -1, 4, 2)
        local = _two_of_four((pairs != 0).any(axis=-1))
        values = np.take_along_axis(pairs, local[..., None], axis=2)
    else:
        groups = weights.reshape(m, -1, pattern.m)
        local = _two_of_four(groups != 0) if pattern == TWO_FOUR else _ascending(groups != 0, pattern.n)
        values = np.take_along_axis(groups, local, axis=2)
    metadata = _pack(local.reshape(m, -1), pattern.index_bits, _word_bytes(pattern))
    return Compressed(pattern, (m, k), values.reshape(m, -1), metadata, nothing)


def decompress(compressed: Compressed) -> Array:
    """The (m, k) array that `compressed` stands for, in the dtype of its values.

    Raises
    ------
    UserError
        If the metadata is not legal: an index out of range, or indices that do not ascend.
    """
    out = np.zeros(compressed.shape, dtype=compressed.values.dtype)
    np.put_along_axis(out, kept_columns(compressed), compressed.values, axis=1)
    return out


def kept_columns(compressed: Compressed) -> Index:
    """The column of each stored value, read from the metadata: shape of the values, ascending in each row.

    Raises
    ------
    UserError
        If the metadata is not legal: an index out of range, or indices that do not ascend.
    """
    pattern, (m, k) = compressed.pattern, compressed.shape
    if pattern.is_dense:
        return np.broadcast_to(np.arange(k, dtype=np.intp), (m, k))
    groups = pattern.groups(k)
    base = pattern.m * np.arange(groups, dtype=np.intp)[:, None]
    flat = _unpack(compressed.metadata, groups * pattern.indices_per_group, pattern.index_bits)
    local = flat.reshape(m, groups, pattern.indices_per_group)
    if pattern.is_vnm:
        _require_ascending(local, 4, "metadata")
        columns = _unpack(compressed.columns, groups * 4, pattern.column_bits).reshape(-1, groups, 4)
        _require_ascending(columns, pattern.m, "columns")
        local = np.take_along_axis(np.repeat(columns, pattern.v or 1, axis=0), local, axis=2)
    elif pattern.is_pair:
        _require_ascending(local, 4, "metadata")
        local = (2 * local[..., None] + np.arange(2, dtype=np.intp)).reshape(m, groups, 4)
    else:
        _require_ascending(local, pattern.m, "metadata")
    return (base + local).reshape(m, -1)


def metadata_bytes(m: int, k: int, pattern: Pattern) -> int:
    """Packed indices and column indices of an (m, k) matrix, with the padding of each row [bytes].

    Ragged k counts as whole groups and ragged m of V:N:M as whole blocks; a V that is not stated counts as
    `ASSUMED_V`. Without padding it is ``pattern.metadata_bits(m, k) / 8``.
    """
    row = count(m, "m") * _row_bytes(pattern, k)
    return row + pattern.row_blocks(m) * _column_row_bytes(pattern, k)


def compressed_bytes(
    m: int, k: int, pattern: Pattern, dtype_bytes: float, index_bits_per_kept: float | None = None
) -> int:
    """Bytes of an (m, k) matrix in compressed form, values and metadata.

    For 2:4 with k a multiple of 16 this is 9/16 of the dense bytes in 16-bit types and 10/16 in 8-bit types
    (pytorch/pytorch pull request 163125, comments); FP4 in pairs gives 10/16 too.

    Parameters
    ----------
    m, k : int
        Logical rows and columns. Ragged k counts as whole groups.
    pattern : Pattern
    dtype_bytes : float
        Bytes of one element; 0.5 for FP4. Values of a row fill whole bytes.
    index_bits_per_kept : float, optional
        Bits that an instruction spends on each stored element in place of the pattern's own, such as 4 for
        tf32 1:2 (CUTLASS, include/cutlass/arch/mma_sparse_sm80.h).

    Raises
    ------
    UserError
        If a size is not positive.
    """
    if not dtype_bytes > 0:
        raise fail("compressed_bytes", "dtype_bytes", "a positive number", dtype_bytes)
    kept = pattern.kept(k)
    values = count(m, "m") * math.ceil(kept * dtype_bytes)
    if index_bits_per_kept is None:
        return values + metadata_bytes(m, k, pattern)
    if not index_bits_per_kept >= 0:
        raise fail("compressed_bytes", "index_bits_per_kept", "a number of at least 0", index_bits_per_kept)
    indices = m * math.ceil(kept * index_bits_per_kept / 8)
    return values + indices + pattern.row_blocks(m) * _column_row_bytes(pattern, k)


def _compress_vnm(weights: Array, pattern: Pattern) -> Compressed:
    m, k = weights.shape
    height = pattern.v or 1
    blocks = weights.reshape(m // height, height, -1, pattern.m)
    columns = _ascending((blocks != 0).any(axis=1), 4)
    four = np.take_along_axis(blocks, columns[:, None], axis=3).reshape(m, -1, 4)
    local = _two_of_four(four != 0)
    return Compressed(
        pattern,
        (m, k),
        np.take_along_axis(four, local, axis=2).reshape(m, -1),
        _pack(local.reshape(m, -1), pattern.index_bits, _word_bytes(pattern)),
        _pack(columns.reshape(m // height, -1), pattern.column_bits, 1),
    )


def _two_of_four(nonzero: NDArray[np.bool_]) -> Index:
    """Two ascending indices (..., 2) for flags (..., 4), coded as the module says."""
    flags = np.packbits(nonzero, axis=-1, bitorder="little")
    nibble = _NIBBLE[flags]
    return np.concatenate((nibble & 3, nibble >> 2), axis=-1).astype(np.intp)


def _ascending(nonzero: NDArray[np.bool_], n: int) -> Index:
    """Ascending indices (..., n) of all nonzeros in flags (..., M), filled up with the highest free ones."""
    width = nonzero.shape[-1]
    rank = np.where(nonzero, 0, width - np.arange(width))
    return np.sort(np.argsort(rank, axis=-1, kind="stable")[..., :n], axis=-1)


def _word_bytes(pattern: Pattern) -> int:
    """Bytes of one metadata word: 2 where coded as 2:4, else 1."""
    return 2 if pattern == TWO_FOUR or pattern.is_pair or pattern.is_vnm else 1


def _row_bytes(pattern: Pattern, k: int) -> int:
    """Bytes of the indices of one row, padded to whole words."""
    bits = pattern.groups(k) * pattern.indices_per_group * pattern.index_bits
    word = _word_bytes(pattern)
    return -(-bits // (8 * word)) * word


def _column_row_bytes(pattern: Pattern, k: int) -> int:
    """Bytes of the column indices of one row of V:N:M blocks, padded to a whole byte; 0 for other forms."""
    return -(-pattern.groups(k) * 4 * pattern.column_bits // 8)


def _pack(entries: Index, bits: int, word_bytes: int) -> Array:
    """Pack rows of `entries` into `bits` each, low bits first, rows padded to whole words."""
    rows = entries.shape[0]
    split = (entries[..., None] >> np.arange(bits)) & 1
    packed = np.packbits(split.astype(np.uint8).reshape(rows, -1), axis=1, bitorder="little")
    packed = np.pad(packed, ((0, 0), (0, -packed.shape[1] % word_bytes)))
    return np.ascontiguousarray(packed).view(f"<u{word_bytes}").astype(f"u{word_bytes}", copy=False)


def _unpack(words: Array, entries: int, bits: int) -> Index:
    """The first `entries` entries of each row that `_pack` packed: shape (rows, entries)."""
    rows = words.shape[0]
    raw = np.ascontiguousarray(words.astype(words.dtype.newbyteorder("<"), copy=False)).view(np.uint8)
    split = np.unpackbits(raw, axis=1, count=entries * bits, bitorder="little").reshape(rows, entries, bits)
    return split.astype(np.intp) @ (1 << np.arange(bits, dtype=np.intp))


def _require_ascending(local: Index, limit: int, name: str) -> None:
    """Raise `UserError` unless indices (..., n) ascend strictly and stay below `limit`."""
    legal = (local[..., 1:] > local[..., :-1]).all(axis=-1) & (local[..., -1] < limit)
    if not legal.all():
        row, group = np.unravel_index(int(np.argmin(legal)), legal.shape)
        expected = f"ascending indices below {limit}"
        raise fail("compressed", f"{name}[row {int(row)}, group {int(group)}]", expected, local[row, group].tolist())
