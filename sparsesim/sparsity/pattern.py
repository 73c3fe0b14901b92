"""Names and arithmetic of sparsity patterns: kept fraction, metadata bits, legal shapes, containment.

`Pattern` is a value, compared and hashed by what it allows. It holds no arrays and knows no hardware.

==================  ==========================================================================================
text                meaning, along k
==================  ==========================================================================================
``dense``           no constraint; every N:N is the same pattern
``N:M``             at most N nonzeros in each M consecutive elements
``V:2:M``           in each block of V rows × M columns at most 4 columns are kept, shared by the V rows, and
                    each row holds at most 2 of the 4 (VENOM, arXiv 2310.02065)
``2:M V:N:M``       the same, with V not stated (the label of the measured rows)
``2:4(pair 4:8)``   of the 4 neighbouring pairs in 8 elements at most 2 pairs are kept; the two elements of a
                    pair share a byte (Blackwell FP4; PTX ISA, ``mma.sp`` with ``kind::mxf4nvf4``)
==================  ==========================================================================================

``V:2:4`` keeps 4 of 4 columns and so is the pattern ``2:4``.
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any

from sparsesim.errors import Problem, UserError, nearest
from sparsesim.sparsity.containment import contained

__all__ = ["ASSUMED_V", "DENSE", "MAX_M", "MAX_V", "PAIR_4_8", "TWO_FOUR", "Form", "Pattern"]

MAX_M = 1024
"""Largest M accepted; the widest published pattern is 2:100."""

MAX_V = 1024
"""Largest V accepted; VENOM uses 32 to 128."""

ASSUMED_V = 128
"""Rows that share their columns where a V:N:M label states no V [rows] (assumed; the paper uses 32 to 128).
It enters only the column indices, at most a few hundredths of a bit per kept element."""

_SYNTAX = "'dense', 'N:M', 'V:2:M', '2:M V:N:M' or '2:4(pair 4:8)'"
_PAIR_TEXT = "2:4(pair 4:8)"
_NUMBERS = re.compile(r"([0-9]+)\s*:\s*([0-9]+)(?:\s*:\s*([0-9]+))?(\s+V:N:M)?", re.IGNORECASE)
_PAIR = re.compile(r"2:4\s*\(\s*pair\s+4:8\s*\)", re.IGNORECASE)


class Form(StrEnum):
    """How a pattern groups the elements."""

    DENSE = "dense"
    NM = "N:M"
    VNM = "V:N:M"
    PAIR = "pair"


@dataclass(frozen=True, slots=True)
class Pattern:
    """At most `n` nonzeros in each `m` consecutive elements along k, grouped as `form` says.

    Parameters
    ----------
    n, m : int
        Kept elements, and elements of a group. Dense is held as 1, 1 and the pair pattern as 4, 8.
    v : int, optional
        Rows of a V:N:M block; None for every other form, and for V:N:M where V is not stated.
    form : Form

    Raises
    ------
    UserError
        If no such pattern exists.
    """

    n: int
    m: int
    v: int | None = None
    form: Form = Form.NM

    def __post_init__(self) -> None:
        n, m, v, form = _checked(self.n, self.m, self.v, self.form)
        if form is Form.NM and n == m:
            n, m, form = 1, 1, Form.DENSE
        if form is Form.VNM and m == 4:
            v, form = None, Form.NM
        for name, value in (("n", n), ("m", m), ("v", v), ("form", form)):
            object.__setattr__(self, name, value)

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """Read a pattern from `text`; `str` of the result reads back as the same pattern.

        Raises
        ------
        UserError
            If `text` names no pattern; one line with what was expected and what was found.
        """
        if not isinstance(text, str):
            raise _wrong(_SYNTAX, text)
        return _parsed(text)

    @classmethod
    def _read(cls, text: str) -> Pattern:
        words = text.strip()
        if words.lower() == "dense":
            return cls(1, 1, None, Form.DENSE)
        if _PAIR.fullmatch(words):
            return cls(4, 8, None, Form.PAIR)
        match = _NUMBERS.fullmatch(words)
        if match is None or (match[3] and match[4]):
            raise _wrong(_SYNTAX, text, nearest(words.lower(), ["dense", _PAIR_TEXT]))
        # Nine digits are over every limit, and int() refuses thousands of them.
        first, second, *third = (int(part[:9]) for part in match.group(1, 2, 3) if part)
        if third:
            return cls(second, third[0], first, Form.VNM)
        return cls(first, second, None, Form.VNM if match[4] else Form.NM)

    def __str__(self) -> str:
        if self.form is Form.DENSE:
            return "dense"
        if self.form is Form.PAIR:
            return _PAIR_TEXT
        if self.form is Form.NM:
            return f"{self.n}:{self.m}"
        return f"{self.n}:{self.m} V:N:M" if self.v is None else f"{self.v}:{self.n}:{self.m}"

    @property
    def is_dense(self) -> bool:
        """Whether the pattern constrains nothing."""
        return self.form is Form.DENSE

    @property
    def is_pair(self) -> bool:
        """Whether neighbouring pairs are kept or dropped together."""
        return self.form is Form.PAIR

    @property
    def is_vnm(self) -> bool:
        """Whether rows share a choice of columns (V:N:M)."""
        return self.form is Form.VNM

    @property
    def group(self) -> int:
        """Elements of a group along k: M."""
        return self.m

    @property
    def kept_fraction(self) -> float:
        """Stored elements over logical elements: N/M."""
        return self.n / self.m

    @property
    def nominal_speedup(self) -> float:
        """Logical MACs over kept MACs: M/N."""
        return self.m / self.n

    @property
    def kept_columns_per_block(self) -> int:
        """Columns of a group in which nonzeros may stand: 4 for V:N:M, else N."""
        return 4 if self.is_vnm else self.n

    @property
    def index_bits(self) -> int:
        """Width of one packed index [bits]: ceil(log2 M); 2 for V:N:M (inside its 4 columns) and per pair."""
        if self.is_vnm or self.is_pair:
            return 2
        return (self.m - 1).bit_length()

    @property
    def indices_per_group(self) -> int:
        """Packed indices of one row of a group: N; 2 (one per kept pair) in pairs; 0 for dense."""
        if self.is_dense:
            return 0
        return 2 if self.is_pair else self.n

    @property
    def metadata_bits_per_kept(self) -> float:
        """Metadata over stored elements [bits], padding aside; 2 for 2:4, 1 in pairs, 0 for dense.

        N:M takes ceil(log2 M). V:N:M adds its column indices, 4·ceil(log2 M) for each 2·V elements (V is
        `ASSUMED_V` where it is not stated). The tf32 instruction spends 4 bits on each element of 1:2
        instead of 1, because it indexes 16-bit halves (CUTLASS, include/cutlass/arch/mma_sparse_sm80.h);
        that is a fact about the instruction and not about the pattern.
        """
        bits = self.indices_per_group * self.index_bits / self.n
        if self.is_vnm:
            bits += 4 * self.column_bits / (self.n * (self.v or ASSUMED_V))
        return bits

    @property
    def column_bits(self) -> int:
        """Width of one column index of a V:N:M block [bits]: ceil(log2 M); 0 for other forms."""
        return (self.m - 1).bit_length() if self.is_vnm else 0

    def groups(self, k: int) -> int:
        """Groups along k, the last one possibly ragged: ceil(k / M)."""
        return -(-count(k, "k") // self.m)

    def padded_k(self, k: int) -> int:
        """Smallest legal k that is not below `k`."""
        return self.groups(k) * self.m

    def legal_k(self, k: int) -> bool:
        """Whether `k` elements split into whole groups."""
        return k >= 1 and k % self.m == 0

    def kept(self, k: int) -> int:
        """Stored elements of a row of `k` logical elements, padded to whole groups."""
        return self.groups(k) * self.n

    def row_blocks(self, rows: int) -> int:
        """Blocks of V rows, the last one possibly ragged; 0 for forms other than V:N:M."""
        return -(-count(rows, "rows") // (self.v or ASSUMED_V)) if self.is_vnm else 0

    def metadata_bits(self, rows: int, k: int) -> int:
        """Metadata of a matrix of `rows` × `k`, rows not padded to bytes [bits].

        A ragged `k` counts as `padded_k(k)`, and ragged `rows` of V:N:M as whole blocks of V.
        """
        rows, groups = count(rows, "rows"), self.groups(k)
        bits = rows * groups * self.indices_per_group * self.index_bits
        return bits + self.row_blocks(rows) * groups * 4 * self.column_bits

    def runs_as(self, native: Pattern) -> bool:
        """Whether hardware that runs `native` runs this pattern: every legal matrix is legal there too.

        2:8 and 1:4 run as 2:4, 4:8 does not; everything runs as dense and dense as nothing else. The rule
        and its reasons stand in `sparsesim.sparsity.containment`.
        """
        return contained(self, native)

    def contains(self, other: Pattern) -> bool:
        """Whether every matrix legal under `other` is legal under this pattern."""
        return contained(other, self)

    def with_v(self, v: int) -> Pattern:
        """The same V:N:M pattern with `v` rows in a block."""
        return replace(self, v=v)


def count(value: Any, name: str) -> int:
    """`value` as an int of at least 1, else `UserError` naming `name`."""
    number = _integer(value)
    if number is None or number < 1:
        raise UserError(Problem.line("pattern", name, "an integer of at least 1", value))
    return number


def _integer(value: Any) -> int | None:
    """`value` as an int, or None if it is no integer (a bool is none)."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _wrong(expected: str, found: Any, hint: str = "") -> UserError:
    return UserError(Problem.line("pattern", "", expected, found) + hint)


def _checked(n: Any, m: Any, v: Any, form: Any) -> tuple[int, int, int | None, Form]:
    """The fields of a pattern as plain values, or `UserError` if there is no such pattern."""
    found = f"{n}:{m}" if v is None else f"{v}:{n}:{m}"
    if form not in list(Form):
        raise _wrong("a form among " + ", ".join(Form), form, nearest(str(form), Form))
    form, n, m = Form(form), _integer(n), _integer(m)
    if n is None or m is None or not 1 <= n <= m:
        raise _wrong("N:M with integers 1 <= N <= M", found)
    if m > MAX_M:
        raise _wrong(f"M of at most {MAX_M}", found)
    if form is not Form.VNM:
        if v is not None:
            raise _wrong("V only with a V:N:M pattern", found)
        if (form is Form.DENSE and n != m) or (form is Form.PAIR and (n, m) != (4, 8)):
            raise _wrong("1:1 for dense" if form is Form.DENSE else "4:8 for pairs", found)
        return (1, 1, None, form) if form is Form.DENSE else (n, m, None, form)
    if n != 2 or m < 4:
        raise _wrong("V:2:M with M of at least 4", found)
    rows = None if v is None else _integer(v)
    if v is not None and (rows is None or not 1 <= rows <= MAX_V):
        raise _wrong(f"V from 1 to {MAX_V}", found)
    return n, m, rows, form


DENSE = Pattern(1, 1, None, Form.DENSE)
TWO_FOUR = Pattern(2, 4)
PAIR_4_8 = Pattern(4, 8, None, Form.PAIR)


@lru_cache(maxsize=1024)
def _parsed(text: str) -> Pattern:
    """The pattern of `text`, which is asked for several times for each op of a trace."""
    return Pattern._read(text)
