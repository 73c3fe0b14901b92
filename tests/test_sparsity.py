"""Patterns, pruning, compressed storage and the reference product."""

from __future__ import annotations

from math import comb, lcm
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsesim.errors import UserError
from sparsesim.sparsity import (
    ASSUMED_V,
    DENSE,
    PAIR_4_8,
    TWO_FOUR,
    Compressed,
    Form,
    Pattern,
    check,
    compress,
    compressed_bytes,
    decompress,
    keep_mask,
    kept_columns,
    metadata_bytes,
    prune,
    spmm,
)

PAIR_TEXT = "2:4(pair 4:8)"

few = settings(max_examples=150, deadline=None)
TEXTS = [
    "dense",
    "2:4",
    "1:2",
    "1:4",
    "2:8",
    "4:8",
    "3:7",
    "1:3",
    "5:6",
    "2:4(pair 4:8)",
    "2:2:5",
    "4:2:8",
    "3:2:10",
]
DTYPES = ["f2", "f4", "f8", "i1", "u1", "i2", "i4", "i8"]

patterns = st.sampled_from([Pattern.parse(text) for text in TEXTS])


def random_array(pattern: Pattern, rows: int, groups: int, dtype: str, seed: int) -> np.ndarray[Any, Any]:
    """Whole groups of small numbers, with zeros and ties."""
    shape = (rows * (pattern.v or 1), groups * pattern.m)
    low = 0 if dtype.startswith("u") else -5
    return np.random.default_rng(seed).integers(low, 6, shape).astype(dtype)


arrays = st.builds(
    lambda pattern, rows, groups, dtype, seed: (pattern, random_array(pattern, rows, groups, dtype, seed)),
    patterns,
    st.integers(1, 4),
    st.integers(1, 9),
    st.sampled_from(DTYPES),
    st.integers(0, 2**32),
)


# ---------------------------------------------------------------- names


@pytest.mark.parametrize("text", [*TEXTS, "2:7 V:N:M", "2:8 V:N:M", "2:100 V:N:M", "64:2:100", "1:1024"])
def test_text_round_trip(text: str) -> None:
    assert str(Pattern.parse(text)) == text
    assert Pattern.parse(str(Pattern.parse(text))) == Pattern.parse(text)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("4:4", "dense"),
        ("1:1", "dense"),
        (" Dense ", "dense"),
        (" 2 : 4 ", "2:4"),
        ("2:4 (PAIR 4:8)", "2:4(pair 4:8)"),
        ("64:2:4", "2:4"),
        ("2:4 V:N:M", "2:4"),
        ("2:8  v:n:m", "2:8 V:N:M"),
    ],
)
def test_equal_names_are_one_pattern(text: str, same: str) -> None:
    assert Pattern.parse(text) == Pattern.parse(same)
    assert hash(Pattern.parse(text)) == hash(Pattern.parse(same))


@pytest.mark.parametrize(
    "text",
    [
        "5:4",
        "0:4",
        "0:0",
        "4:0",
        "-2:4",
        "2:-4",
        "2.0:4",
        "a:b",
        "",
        ":",
        "2:",
        "2:4:",
        "2/4",
        "2:1025",
        "9" * 5000 + ":4",
        "2:" + "9" * 5000,
        "0:2:8",
        "2000:2:8",
        "64:1:8",
        "64:3:8",
        "64:2:3",
        "1:8 V:N:M",
        "4:2:8 V:N:M",
        "1:2:3:4",
        "2:4(pair)",
        "4:8(pair 4:8)",
        "٢:4",
        "2:4\n8",
        None,
        4,
        b"2:4",
    ],
)
def test_impossible_pattern_is_one_clear_line(text: Any) -> None:
    with pytest.raises(UserError) as caught:
        Pattern.parse(text)
    (line,) = caught.value.problems
    assert "expected" in line
    assert "found" in line
    assert "\n" not in line
    assert len(line) < 250


def test_typo_names_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'dense'"):
        Pattern.parse("dens")


@pytest.mark.parametrize(
    "fields",
    [
        (2.0, 4),
        (True, 4),
        (2, None),
        ("2", "4"),
        (2, 4, 8, Form.NM),
        (1, 2, None, Form.DENSE),
        (2, 4, None, Form.PAIR),
        (2, 4, None, "N:N"),
        (2, 8, 2.5, Form.VNM),
    ],
)
def test_impossible_fields(fields: tuple[Any, ...]) -> None:
    with pytest.raises(UserError, match="expected"):
        Pattern(*fields)


def test_numpy_integers_are_integers() -> None:
    pattern = Pattern(np.int64(2), np.int32(4))  # type: ignore[arg-type]
    assert pattern == TWO_FOUR
    assert type(pattern.n) is int


# ---------------------------------------------------------------- arithmetic


@pytest.mark.parametrize(
    ("text", "kept", "bits", "speedup"),
    [
        ("dense", 1.0, 0.0, 1.0),
        ("2:4", 0.5, 2.0, 2.0),
        ("1:2", 0.5, 1.0, 2.0),
        ("1:4", 0.25, 2.0, 4.0),
        ("2:8", 0.25, 3.0, 4.0),
        ("3:7", 3 / 7, 3.0, 7 / 3),
        ("2:4(pair 4:8)", 0.5, 1.0, 2.0),
        ("64:2:8", 0.25, 2 + 4 * 3 / 128, 4.0),
    ],
)
def test_numbers_of_a_pattern(text: str, kept: float, bits: float, speedup: float) -> None:
    pattern = Pattern.parse(text)
    assert pattern.kept_fraction == kept
    assert pattern.metadata_bits_per_kept == bits
    assert pattern.nominal_speedup == speedup
    assert pattern.group == pattern.m


def test_v_that_is_not_stated_counts_as_assumed() -> None:
    unstated = Pattern.parse("2:10 V:N:M")
    stated = unstated.with_v(ASSUMED_V)
    assert str(stated) == f"{ASSUMED_V}:2:10"
    assert unstated.metadata_bits(256, 100) == stated.metadata_bits(256, 100)
    assert unstated.metadata_bits_per_kept == stated.metadata_bits_per_kept


def test_legal_and_padded_k() -> None:
    pattern = Pattern.parse("2:7 V:N:M")
    assert not pattern.legal_k(768)
    assert pattern.padded_k(768) == 770
    assert pattern.kept(768) == 220
    assert [k for k in range(-4, 13) if TWO_FOUR.legal_k(k)] == [4, 8, 12]
    assert DENSE.legal_k(1)
    assert not DENSE.legal_k(0)
    assert not PAIR_4_8.legal_k(12)
    with pytest.raises(UserError, match="k: expected an integer of at least 1, found 0"):
        TWO_FOUR.metadata_bits(1, 0)


@few
@given(patterns, st.integers(1, 4), st.integers(1, 40))
def test_metadata_bits_agree_with_bits_per_kept(pattern: Pattern, blocks: int, groups: int) -> None:
    rows, k = blocks * (pattern.v or 1), groups * pattern.m
    assert pattern.metadata_bits(rows, k) == pytest.approx(
        pattern.metadata_bits_per_kept * rows * k * pattern.kept_fraction, rel=1e-12
    )
    padding = metadata_bytes(rows, k, pattern) - pattern.metadata_bits(rows, k) / 8
    assert 0 <= padding < 2 * rows + blocks


# ---------------------------------------------------------------- containment


def is_legal(pattern: Pattern, batch: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Legality of each matrix of a batch (count, rows, k) of flags, written from the definitions."""
    size, rows, k = batch.shape
    if pattern.is_dense:
        return np.ones(size, dtype=bool)
    grouped = batch.reshape(size, rows, k // pattern.m, pattern.m)
    if pattern.is_pair:
        pairs = grouped[..., 0::2] | grouped[..., 1::2]
        return (pairs.sum(axis=-1) <= 2).all(axis=(1, 2))
    legal = (grouped.sum(axis=-1) <= pattern.n).all(axis=(1, 2))
    if pattern.is_vnm:
        assert pattern.v is not None
        blocks = grouped.reshape(size, rows // pattern.v, pattern.v, k // pattern.m, pattern.m)
        legal &= (blocks.any(axis=2).sum(axis=-1) <= 4).all(axis=(1, 2))
    return legal


def legal_blocks(pattern: Pattern) -> np.ndarray[Any, Any]:
    """Every legal block of one group: (count, V, M) flags."""
    rows, bits = pattern.v or 1, (pattern.v or 1) * pattern.m
    codes = np.arange(2**bits)
    batch = ((codes[:, None] >> np.arange(bits)) & 1).astype(bool).reshape(-1, rows, pattern.m)
    return batch[is_legal(pattern, batch)]


def all_legal(pattern: Pattern, rows: int, k: int, limit: int) -> np.ndarray[Any, Any] | None:
    """Every legal matrix of `rows` × `k`, or None if there are more than `limit`."""
    high, wide = rows // (pattern.v or 1), k // pattern.m
    blocks = legal_blocks(pattern)
    total = len(blocks) ** (high * wide)
    if total > limit:
        return None
    digits = np.arange(total)[:, None] // len(blocks) ** np.arange(high * wide) % len(blocks)
    tiles = blocks[digits].reshape(total, high, wide, pattern.v or 1, pattern.m)
    return tiles.swapaxes(2, 3).reshape(total, rows, k)


def proven(data: list[str], native: list[str], limit: int) -> int:
    """Compare `runs_as` with the enumeration for every pair of patterns; the number of pairs compared."""
    compared = 0
    for data_text in data:
        for native_text in native:
            a, b = Pattern.parse(data_text), Pattern.parse(native_text)
            rows, k = lcm(a.v or 1, b.v or 1), lcm(a.m, b.m)
            matrices = all_legal(a, rows, k, limit)
            if matrices is None:
                continue
            expected = bool(is_legal(b, matrices).all())
            assert a.runs_as(b) == expected, (data_text, native_text)
            assert b.contains(a) == expected
            compared += 1
    return compared


def test_containment_by_brute_force_in_rows() -> None:
    texts = [
        "dense",
        PAIR_TEXT,
        *(f"{n}:{m}" for m in range(2, 7) for n in range(1, m)),
        "1:8",
        "2:8",
        "4:8",
        "6:8",
    ]
    assert proven(texts, texts, limit=30_000) > 200


def test_containment_by_brute_force_in_blocks() -> None:
    texts = ["1:2:5", "2:2:5", "3:2:5", "1:2:6", "2:2:6", "1:5", "2:5", "3:5", "1:3", "2:6", "1:10", "2:10"]
    natives = [*texts, "4:2:5", "5:2:5", "4:2:6", "2:2:10", "3:2:10", "5:2:10", "2:4", "4:8", PAIR_TEXT]
    assert proven(texts, natives, limit=70_000) > 60


@pytest.mark.parametrize(
    ("data", "native", "runs"),
    [
        ("2:8", "2:4", True),
        ("1:4", "2:4", True),
        ("1:2", "2:4", True),
        ("4:8", "2:4", False),
        ("2:6", "2:4", False),
        ("2:4", "4:8", True),
        ("2:4", PAIR_TEXT, False),
        ("2:8", PAIR_TEXT, True),
        (PAIR_TEXT, "4:8", True),
        (PAIR_TEXT, "2:4", False),
        ("dense", "2:4", False),
        ("4:4", "dense", True),
        ("2:4", "dense", True),
        ("64:2:8", "2:8", True),
        ("64:2:8", "2:4", True),
        ("2:8", "64:2:8", False),
        ("2:8", "2:2:8", True),
        ("1:8", "4:2:8", True),
        ("64:2:8", "32:2:8", True),
        ("32:2:8", "64:2:8", False),
        ("64:2:16", "64:2:8", True),
        ("2:8 V:N:M", "2:8", True),
        ("2:8 V:N:M", "2:8 V:N:M", True),
        ("2:8 V:N:M", "64:2:8", False),
        ("64:2:8", "2:8 V:N:M", False),
    ],
)
def test_containment_cases(data: str, native: str, runs: bool) -> None:
    assert Pattern.parse(data).runs_as(Pattern.parse(native)) is runs


# ---------------------------------------------------------------- pruning


@few
@given(arrays)
def test_prune_gives_a_legal_array_and_is_idempotent(case: tuple[Pattern, np.ndarray[Any, Any]]) -> None:
    pattern, array = case
    before = array.copy()
    pruned = prune(array, pattern)
    assert check(pruned, pattern).ok
    assert pruned.dtype == array.dtype
    assert np.array_equal(prune(pruned, pattern), pruned)
    assert np.array_equal(array, before)
    kept = pruned != 0
    assert np.array_equal(pruned[kept], array[kept])
    assert np.count_nonzero(keep_mask(array, pattern)) == array.shape[0] * pattern.kept(array.shape[1])


@few
@given(arrays)
def test_kept_magnitude_is_maximal(case: tuple[Pattern, np.ndarray[Any, Any]]) -> None:
    pattern, array = case
    size = np.abs(array.astype(np.float64))
    kept = np.where(keep_mask(array, pattern), size, 0)
    rows, k = array.shape
    if pattern.is_vnm:
        assert pattern.v is not None
        shape = (rows // pattern.v, pattern.v, k // pattern.m, pattern.m)
        blocks = size.reshape(shape)
        columns = np.argsort(-blocks.sum(axis=1, keepdims=True), axis=-1, kind="stable")[..., :4]
        best = np.sort(np.take_along_axis(blocks, columns, axis=-1), axis=-1)[..., 2:].sum(axis=-1)
        assert np.array_equal(kept.reshape(shape).sum(axis=-1), best)
        return
    unit = size.reshape(rows, -1, 4, 2).sum(axis=-1) if pattern.is_pair else size.reshape(rows, -1, pattern.m)
    take = 2 if pattern.is_pair else pattern.n
    best = np.sort(unit, axis=-1)[..., -take:].sum(axis=-1)
    assert np.array_equal(kept.reshape(rows, -1, pattern.m).sum(axis=-1), best)


def test_ties_keep_the_lower_index() -> None:
    assert prune([[1, -1, 1, 1, 0, 2, -2, 2]], TWO_FOUR).tolist() == [[1, -1, 0, 0, 0, 2, -2, 0]]
    assert prune(np.ones((2, 5)), Pattern.parse("2:2:5")).tolist() == [[1, 1, 0, 0, 0]] * 2
    assert prune(np.ones((1, 8)), PAIR_4_8).tolist() == [[1, 1, 1, 1, 0, 0, 0, 0]]


def test_pairs_weigh_both_elements() -> None:
    assert prune([[9, 0, 5, 5, 8, 0, 4, 4]], PAIR_4_8).tolist() == [[9, 0, 5, 5, 0, 0, 0, 0]]


def test_venom_picks_columns_for_the_block_then_two_in_each_row() -> None:
    block = np.array([[9, 1, 2, 3, 0, 4], [0, 1, 2, 3, 9, 4]])
    # column sums 9 2 4 6 9 8: columns 0 3 4 5
    assert prune(block, Pattern.parse("2:2:6")).tolist() == [[9, 0, 0, 0, 0, 4], [0, 0, 0, 0, 9, 4]]


def test_extreme_integers_do_not_overflow() -> None:
    assert prune(np.array([[-128, 127, 1, -2]], dtype="i1"), Pattern(1, 4)).tolist() == [[-128, 0, 0, 0]]
    low = np.iinfo("i8").min
    assert prune(np.array([[1, low, low + 1, 0]]), Pattern(1, 4)).tolist() == [[0, low, 0, 0]]
    assert prune(np.array([[3, 255, 0, 254]], dtype="u1"), TWO_FOUR).tolist() == [[0, 255, 0, 254]]


def test_axis_of_k() -> None:
    array = np.random.default_rng(0).normal(size=(8, 6))
    assert np.array_equal(prune(array, TWO_FOUR, axis=0), prune(array.T, TWO_FOUR).T)
    assert np.array_equal(prune(array, TWO_FOUR, axis=-2), prune(array, TWO_FOUR, axis=0))
    array[:, :] = 0
    array[4:7, 5] = 1
    state = check(array, TWO_FOUR, axis=0)
    assert (state.groups, state.broken, state.first, state.share) == (12, 1, (4, 5), 1 / 12)


def test_check_names_share_and_place() -> None:
    array = np.zeros((4, 16))
    assert check(array, TWO_FOUR).ok
    assert check(array, TWO_FOUR).first is None
    array[2, 9:12] = 1
    array[3, 0:4] = 1
    state = check(array, TWO_FOUR)
    assert (state.groups, state.broken, state.first, state.ok) == (16, 2, (2, 8), False)
    assert state.share == 0.125
    assert check(array, PAIR_4_8).ok
    assert check(array, DENSE).ok


def test_check_of_ragged_groups() -> None:
    assert check([[0, 0, 0, 0, 1, 1]], TWO_FOUR).ok
    assert check([[0, 0, 0, 0, 1, 1, 1]], TWO_FOUR).first == (0, 4)
    assert check(np.ones((1, 5)), PAIR_4_8).first == (0, 0)
    assert check(np.ones((1, 4)), PAIR_4_8).ok
    ragged = np.zeros((3, 12))
    ragged[2, 10:] = 1
    assert check(ragged, Pattern.parse("2:2:10")).ok
    ragged[2, 7:10] = 1
    assert check(ragged, Pattern.parse("2:2:10")).first == (2, 0)


def test_check_of_venom_blocks() -> None:
    pattern = Pattern.parse("3:2:6")
    block = np.zeros((3, 6))
    block[0, :2] = block[1, 2:4] = 1
    assert check(block, pattern).ok
    block[2, 4] = 1
    assert check(block, pattern).first == (0, 0)
    assert check(block, Pattern(2, 6)).ok


@pytest.mark.parametrize(
    ("array", "text", "message"),
    [
        (np.ones(8), "2:4", "ndim: expected 2, found 1"),
        (np.ones((1, 2, 4)), "2:4", "ndim: expected 2, found 3"),
        (np.ones((2, 6)), "2:4", "k: expected a multiple of 4 for pattern 2:4, found 6"),
        (np.ones((2, 12)), PAIR_TEXT, "k: expected a multiple of 8"),
        (np.ones((3, 8)), "2:2:8", "rows: expected a multiple of 2"),
        (np.ones((128, 8)), "2:8 V:N:M", "expected a pattern that states V, such as 64:2:8"),
        (
            np.array([[0, 0, 0, 0], [0, np.nan, 0, 0]]),
            "2:4",
            r"array\[1, 1\]: expected a number, found 'nan'",
        ),
        (np.ones((0, 4)), "2:4", "at least one row and one column"),
        (np.ones((1, 4), dtype=complex), "2:4", "expected integers or floats, found 'complex128'"),
        (np.ones((1, 4), dtype=bool), "2:4", "expected integers or floats"),
        ([[1, 2], [3]], "2:4", "rows of different lengths"),
        ([["a", "b", "c", "d"]], "2:4", "expected integers or floats"),
        (None, "2:4", "ndim"),
    ],
)
def test_bad_arrays(array: Any, text: str, message: str) -> None:
    for call in (prune, compress):
        with pytest.raises(UserError, match=message) as caught:
            call(array, Pattern.parse(text))
        assert len(caught.value.problems) == 1


def test_bad_arrays_for_check() -> None:
    with pytest.raises(UserError, match="nan"):
        check([[np.nan]], TWO_FOUR)
    with pytest.raises(UserError, match="ndim"):
        check([1, 2], TWO_FOUR)
    with pytest.raises(UserError, match="axis: expected 0 or 1, found 2"):
        check([[1, 2]], TWO_FOUR, axis=2)
    with pytest.raises(UserError, match="states V"):
        check([[1, 2]], Pattern.parse("2:8 V:N:M"))


# ---------------------------------------------------------------- compressed storage


@few
@given(arrays)
def test_compress_round_trip(case: tuple[Pattern, np.ndarray[Any, Any]]) -> None:
    pattern, array = case
    m, k = array.shape
    pruned = prune(array, pattern)
    packed = compress(pruned, pattern)
    back = decompress(packed)
    assert back.dtype == array.dtype
    assert np.array_equal(back, pruned)
    assert packed.values.shape == (m, k * pattern.n // pattern.m)
    assert packed.metadata.nbytes + packed.columns.nbytes == metadata_bytes(m, k, pattern)
    assert packed.nbytes == compressed_bytes(m, k, pattern, array.itemsize)
    columns = kept_columns(packed)
    assert (np.diff(columns, axis=1) > 0).all()
    assert columns.max() < k


@few
@given(arrays)
def test_spmm_equals_the_dense_product(case: tuple[Pattern, np.ndarray[Any, Any]]) -> None:
    pattern, array = case
    pruned = prune(array, pattern)
    rng = np.random.default_rng(1)
    whole = rng.integers(-9, 9, (array.shape[1], 5))
    product = spmm(compress(pruned, pattern), whole)
    assert product.dtype == (np.float64 if array.dtype.kind == "f" else np.int64)
    assert np.array_equal(product, pruned.astype("f8") @ whole)
    real = rng.normal(size=(array.shape[1], 3)).astype("f4")
    np.testing.assert_allclose(
        spmm(compress(pruned, pattern), real), pruned.astype("f8") @ real.astype("f8"), rtol=1e-12, atol=1e-12
    )


def test_spmm_in_chunks() -> None:
    rng = np.random.default_rng(3)
    a, b = prune(rng.integers(-9, 9, (64, 256)), TWO_FOUR), rng.integers(-9, 9, (256, 700))
    assert np.array_equal(spmm(compress(a, TWO_FOUR), b), a @ b)


def test_spmm_bad_operands() -> None:
    packed = compress(np.zeros((2, 8), dtype="i4"), TWO_FOUR)
    with pytest.raises(UserError, match=r"b\.shape: expected 8 rows"):
        spmm(packed, np.ones((7, 3)))
    with pytest.raises(UserError, match=r"b\.ndim: expected 2, found 1"):
        spmm(packed, np.ones(8))
    with pytest.raises(UserError, match="uint64"):
        spmm(packed, np.ones((8, 1), dtype="u8"))


@pytest.mark.parametrize(
    ("group", "nibble"),
    [
        ([1, 1, 0, 0], 0b0100),
        ([1, 0, 1, 0], 0b1000),
        ([0, 1, 1, 0], 0b1001),
        ([1, 0, 0, 1], 0b1100),
        ([0, 1, 0, 1], 0b1101),
        ([0, 0, 1, 1], 0b1110),
        ([0, 0, 0, 0], 0b1110),
        ([0, 0, 0, 1], 0b1110),
        ([0, 0, 1, 0], 0b1110),
        ([0, 1, 0, 0], 0b1001),
        ([1, 0, 0, 0], 0b1000),
    ],
)
def test_two_four_nibbles(group: list[int], nibble: int) -> None:
    assert compress([group], TWO_FOUR).metadata.tolist() == [[nibble]]
    pairs = np.repeat(group, 2)[None]
    assert compress(pairs, PAIR_4_8).metadata.tolist() == [[nibble]]
    pairs[0, ::2] = 0
    assert compress(pairs, PAIR_4_8).metadata.tolist() == [[nibble]]


def test_two_four_words_hold_four_groups_lowest_first() -> None:
    row = [1, 2, 0, 0, 3, 0, 4, 0, 0, 5, 6, 0, 7, 0, 0, 8, 0, 0, 9, 10]
    packed = compress([row], TWO_FOUR)
    assert packed.metadata.dtype == np.uint16
    assert packed.metadata.tolist() == [[0b1100_1001_1000_0100, 0b1110]]
    assert packed.values.tolist() == [list(range(1, 11))]


def test_general_indices_are_packed_low_bits_first() -> None:
    # 2:8: three bits each, 1 and 6, then 0 and 7 (no nonzero but 0: filled with the highest free)
    packed = compress([[0, 1, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0]], Pattern(2, 8))
    assert packed.metadata.dtype == np.uint8
    bits = 1 | 6 << 3 | 0 << 6 | 7 << 9
    assert packed.metadata.tolist() == [[bits & 255, bits >> 8]]


def test_venom_columns_and_metadata() -> None:
    pattern = Pattern.parse("2:2:8")
    packed = compress([[0, 1, 0, 2, 0, 0, 0, 0], [0, 3, 0, 0, 0, 4, 0, 0]], pattern)
    columns = 1 | 3 << 3 | 5 << 6 | 7 << 9
    assert packed.columns.tolist() == [[columns & 255, columns >> 8]]
    assert packed.metadata.tolist() == [[0b0100], [0b1000]]
    assert packed.values.tolist() == [[1, 2], [3, 4]]


def test_every_group_of_a_pattern_survives() -> None:
    for text in ("2:4", "1:2", "2:5", "3:6", PAIR_TEXT):
        pattern = Pattern.parse(text)
        groups = legal_blocks(pattern)[:, 0, :].astype("i1")
        if not pattern.is_pair:
            assert len(groups) == sum(comb(pattern.m, i) for i in range(pattern.n + 1))
        assert np.array_equal(decompress(compress(groups, pattern)), groups)


@pytest.mark.parametrize(
    ("text", "dtype_bytes", "bits", "share"),
    [
        ("2:4", 2, None, 9 / 16),
        ("2:4", 1, None, 10 / 16),
        (PAIR_TEXT, 0.5, None, 10 / 16),
        ("1:2", 4, 4, 9 / 16),
        ("dense", 2, None, 1.0),
        ("64:2:16", 2, None, 1 / 8 + (4 / 16 + 4 * 4 / (64 * 16)) / 16),
    ],
)
def test_compressed_share(text: str, dtype_bytes: float, bits: float | None, share: float) -> None:
    size = compressed_bytes(256, 4096, Pattern.parse(text), dtype_bytes, bits)
    assert size / (256 * 4096 * dtype_bytes) == share


def test_small_sizes() -> None:
    assert compressed_bytes(8, 16, TWO_FOUR, 2) == 144
    assert metadata_bytes(1, 4, TWO_FOUR) == 2
    assert metadata_bytes(1, 9, Pattern(1, 3)) == 1
    assert metadata_bytes(3, 7, DENSE) == 0
    with pytest.raises(UserError, match="dtype_bytes: expected a positive number, found 0"):
        compressed_bytes(8, 16, TWO_FOUR, 0)
    with pytest.raises(UserError, match="index_bits_per_kept"):
        compressed_bytes(8, 16, TWO_FOUR, 2, -1)
    with pytest.raises(UserError, match="m: expected an integer of at least 1"):
        compressed_bytes(0, 16, TWO_FOUR, 2)


def test_compress_refuses_an_array_that_breaks_the_pattern() -> None:
    array = np.zeros((2, 8))
    array[1, 4:7] = 1
    with pytest.raises(UserError, match=r"expected an array legal under 2:4, found .1 of 4 groups .*\(1, 4\)"):
        compress(array, TWO_FOUR)


def test_damaged_storage_is_refused() -> None:
    packed = compress([[1, 1, 0, 0, 0, 0, 1, 1]], TWO_FOUR)
    bad = Compressed(TWO_FOUR, (1, 8), packed.values, np.array([[0b0001_0100]], dtype="u2"), packed.columns)
    for call in (decompress, lambda c: spmm(c, np.ones((8, 1)))):
        with pytest.raises(UserError, match=r"metadata\[row 0, group 1\]: expected ascending .* found \[1, 0\]"):
            call(bad)
    out = compress([[0, 0, 1]], Pattern(1, 3))
    over = Compressed(out.pattern, out.shape, out.values, np.array([[3]], dtype="u1"), out.columns)
    with pytest.raises(UserError, match="ascending indices below 3, found \\[3\\]"):
        decompress(over)
    with pytest.raises(UserError, match=r"metadata\.shape: expected \(1, 1\), found \(1, 0\)"):
        Compressed(TWO_FOUR, (1, 8), packed.values, packed.metadata[:, :0], packed.columns)
    with pytest.raises(UserError, match=r"metadata\.dtype: expected uint16, found 'uint8'"):
        Compressed(TWO_FOUR, (1, 8), packed.values, packed.metadata.astype("u1"), packed.columns)


def test_float_zero_signs_and_big_endian() -> None:
    assert np.array_equal(decompress(compress([[-0.0, -0.0, -0.0, -0.0]], TWO_FOUR)), np.zeros((1, 4)))
    array = prune(np.arange(16, dtype=">f4").reshape(2, 8), TWO_FOUR)
    assert np.array_equal(decompress(compress(array, TWO_FOUR)), array)
