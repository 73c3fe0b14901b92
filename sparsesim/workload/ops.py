"""The operator of a workload and the workload itself: frozen, validated, hardware-free.

A `Gemm` says what is to be computed, never how: tiles, paths and padding are decided by the stacks and
the kernel catalogue. The readers in this package, the importers and user code build them.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

from sparsesim.errors import Problem, UserError, nearest, show
from sparsesim.workload.others import OTHER_FIELDS, OtherOp

__all__ = [
    "ACC_DTYPES",
    "DTYPES",
    "DTYPE_BYTES",
    "KINDS",
    "MAX_DIM",
    "MAX_MACS",
    "OUT_DTYPES",
    "Gemm",
    "GemmError",
    "Issue",
    "Workload",
]

DTYPES = ("f16", "bf16", "tf32", "i8", "e4m3", "e2m1")
"""Input types a tensor core multiplies."""

DTYPE_BYTES: dict[str, float] = {
    "f32": 4,
    "i32": 4,
    "tf32": 4,
    "f16": 2,
    "bf16": 2,
    "i8": 1,
    "e4m3": 1,
    "e2m1": 0.5,
}
"""Bytes an element takes in memory; tf32 is stored as 32 bits. Without the scales of block formats."""

ACC_DTYPES: dict[str, tuple[str, ...]] = {
    "f16": ("f32", "f16"),
    "bf16": ("f32",),
    "tf32": ("f32",),
    "i8": ("i32",),
    "e4m3": ("f32",),
    "e2m1": ("f32",),
}
"""Accumulators each input type may have; the first is the default."""

OUT_DTYPES: dict[str, tuple[str, ...]] = {
    "f16": ("f16", "f32"),
    "bf16": ("bf16", "f32"),
    "tf32": ("f32",),
    "i8": ("i32", "i8", "bf16", "f16", "f32"),
    "e4m3": ("bf16", "f16", "f32", "e4m3"),
    "e2m1": ("bf16", "f16", "f32", "e2m1"),
}
"""Types D may have; the first is counted where the op leaves the choice to the library."""

KINDS = ("linear", "conv", "matmul")
"""`linear`: weight times activations; `conv`: as implicit GEMM; `matmul`: both operands computed."""

MAX_DIM = 2**20
"""Largest m, n, k, batch or count."""

MAX_MACS = 2**50
"""Largest m*n*k*batch of one op: 65536 cubed has 2**48."""

MAX_NAME = 200

Issue = tuple[str, str, Any]
"""A problem without its place: (field, what was expected, what was found)."""


class GemmError(UserError):
    """An impossible `Gemm`; `issues` lets a reader word the problems with their file and line."""

    def __init__(self, name: Any, issues: Iterable[Issue]) -> None:
        self.issues = tuple(issues)
        super().__init__(issue_line(f"gemm {show(name)}", "", issue) for issue in self.issues)


def issue_line(where: str, prefix: str, issue: Issue) -> str:
    """The problem line of `issue` in `where`, its field below `prefix`, with the nearest valid name."""
    field, expected, found = issue
    line = Problem.line(where, prefix + field, expected, found)
    valid = _CHOICES.get(field)
    return line + nearest(found, valid) if valid and isinstance(found, str) else line


@lru_cache(maxsize=512)
def _parsed(text: str) -> str:
    """The canonical spelling of `text`, remembered: a long trace repeats it."""
    from sparsesim.sparsity import Pattern

    return str(Pattern.parse(text))


def canonical_pattern(text: str) -> str:
    """The canonical spelling of the sparsity pattern `text`; raises `UserError` if there is none."""
    if not isinstance(text, str):
        raise UserError(Problem.line("pattern", "", "text such as dense or 2:4", text))
    return _parsed(text)


_CHOICES: dict[str, tuple[str, ...]] = {"dtype": DTYPES, "sparse_operand": ("A", "B"), "kind": KINDS}
_SIZES = ("m", "n", "k", "batch", "count")


@dataclass(frozen=True, slots=True)
class Gemm:
    """D[m x n] = A[m x k] B[k x n], `batch` times with its own operands each.

    Parameters
    ----------
    name
        Unique within a workload, e.g. ``"prefill-2048/qkv"``.
    m, n, k
        Out features, tokens, in features [elements], 1..`MAX_DIM`; k is the full, uncompressed length.
    batch
        Independent products in one op, as in a grouped convolution.
    dtype
        Input type, one of `DTYPES`.
    acc_dtype, out_dtype
        Accumulator and type of D; None leaves the default, see `accumulator` and `output`.
    pattern
        Of the sparse operand: ``"dense"``, ``"N:M"`` or ``"V:N:M"``; kept in canonical spelling.
    sparse_operand
        ``"A"`` (the weight) or ``"B"``; without meaning for ``"dense"``.
    count
        Times per forward pass.
    family
        Free name of the kind of layer, the same across models: ``"qkv"``, ``"mlp_down"``.
    kind
        One of `KINDS`.

    Raises
    ------
    GemmError
        With every impossible field, or when m*n*k*batch exceeds `MAX_MACS`.
    """

    name: str
    m: int
    n: int
    k: int
    batch: int = 1
    dtype: str = "f16"
    acc_dtype: str | None = None
    out_dtype: str | None = None
    pattern: str = "dense"
    sparse_operand: str = "A"
    count: int = 1
    family: str = ""
    kind: str = "linear"

    def __post_init__(self) -> None:
        issues = [*_text_issues(self), *_size_issues(self), *_dtype_issues(self)]
        for field in ("sparse_operand", "kind"):
            value = getattr(self, field)
            if not isinstance(value, str) or value not in _CHOICES[field]:
                issues.append((field, "one of " + ", ".join(_CHOICES[field]), value))
        try:
            object.__setattr__(self, "pattern", canonical_pattern(self.pattern))
        except UserError as error:
            issues.append(("pattern", _expected_pattern(error), self.pattern))
        if issues:
            raise GemmError(self.name, issues)
        for field in ("dtype", "family", "kind", "sparse_operand"):  # a long trace repeats them
            object.__setattr__(self, field, sys.intern(getattr(self, field)))

    @property
    def macs(self) -> int:
        """Dense-equivalent multiply-accumulates of one execution: m*n*k*batch."""
        return self.m * self.n * self.k * self.batch

    @property
    def accumulator(self) -> str:
        """`acc_dtype`, or the default of the input type."""
        return self.acc_dtype or ACC_DTYPES[self.dtype][0]

    @property
    def output(self) -> str:
        """`out_dtype`, or the type that is counted where the library may choose."""
        return self.out_dtype or OUT_DTYPES[self.dtype][0]

    @property
    def bytes(self) -> int:
        """Uncompressed bytes of A, B and D of one execution, each touched once."""
        inputs = (self.m * self.k + self.k * self.n) * DTYPE_BYTES[self.dtype]
        return self.batch * math.ceil(inputs + self.m * self.n * DTYPE_BYTES[self.output])

    def with_dtype(self, dtype: str) -> Gemm:
        """The same op with inputs of `dtype` and that type's default accumulator and output."""
        return replace(self, dtype=dtype, acc_dtype=None, out_dtype=None)

    def with_pattern(self, pattern: str) -> Gemm:
        """The same op with another sparsity pattern."""
        return replace(self, pattern=pattern)


GEMM_FIELDS = tuple(field.name for field in fields(Gemm))


def _expected_pattern(error: UserError) -> str:
    """What the parser of patterns expected, out of its ``pattern: expected …, found …``."""
    expected = error.problems[0].partition("expected ")[2].partition(", found ")[0]
    return expected or "a sparsity pattern such as dense or 2:4"


def _text_issues(op: Gemm) -> list[Issue]:
    """Problems of the free texts."""
    issues: list[Issue] = []
    for field, least in (("name", 1), ("family", 0)):
        value = getattr(op, field)
        if not isinstance(value, str) or not least <= len(value) <= MAX_NAME or not value.isprintable():
            issues.append((field, f"a printable name of {least} to {MAX_NAME} characters", value))
    return issues


def size_issue(field: str, value: Any) -> Issue | None:
    """The problem of `value` as a dimension or count, if it has one."""
    if type(value) is not int or value < 1:
        return (field, "a positive integer", value)
    if value > MAX_DIM:
        return (field, f"an integer of at most {MAX_DIM}", value)
    return None


def _size_issues(op: Gemm) -> list[Issue]:
    """Problems of the dimensions and, if there are none, of their product."""
    issues = [issue for field in _SIZES if (issue := size_issue(field, getattr(op, field)))]
    if not issues and op.macs > MAX_MACS:
        issues.append(("m*n*k*batch", f"at most {MAX_MACS} multiply-accumulates", op.macs))
    return issues


def _dtype_issues(op: Gemm) -> list[Issue]:
    """Problems of the input type or, if there are none, of accumulator and output."""
    if not isinstance(op.dtype, str) or op.dtype not in DTYPES:
        return [("dtype", "one of " + ", ".join(DTYPES), op.dtype)]
    issues: list[Issue] = []
    for field, allowed in (("acc_dtype", ACC_DTYPES[op.dtype]), ("out_dtype", OUT_DTYPES[op.dtype])):
        value = getattr(op, field)
        if value is not None and (not isinstance(value, str) or value not in allowed):
            issues.append((field, f"{' or '.join(allowed)} with dtype {op.dtype}", value))
    return issues


@dataclass(frozen=True, slots=True)
class Workload:
    """Named ops in the order they run.

    Parameters
    ----------
    name, description, source
        What it is and where its shapes come from.
    ops
        At least one, with unique names. The part of a name before the first ``/`` is its phase.
    others
        Ops that are no GEMM, with unique names: named and counted, not simulated.

    Raises
    ------
    UserError
        If there are no ops or two share a name.
    """

    name: str
    description: str
    source: str
    ops: tuple[Gemm, ...]
    others: tuple[OtherOp, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "ops", tuple(self.ops))
        object.__setattr__(self, "others", tuple(self.others))
        where = f"workload {self.name}"
        if not self.ops:
            raise UserError(Problem.line(where, "ops", "at least one op", ()))
        lines: list[str] = []
        for field, ops in (("ops", self.ops), ("others", self.others)):
            seen: set[str] = set()
            twice = [op.name for op in ops if op.name in seen or seen.add(op.name)]  # type: ignore[func-returns-value]
            lines += [Problem.line(where, field, "unique names", name) for name in dict.fromkeys(twice)]
        if lines:
            raise UserError(lines)

    @property
    def macs(self) -> int:
        """Dense-equivalent multiply-accumulates of all ops, each `count` times."""
        return sum(op.macs * op.count for op in self.ops)

    @property
    def bytes(self) -> int:
        """Uncompressed operand bytes of all ops, each `count` times."""
        return sum(op.bytes * op.count for op in self.ops)

    def phases(self) -> dict[str, tuple[Gemm, ...]]:
        """Ops by phase (``"prefill-2048"``), in order; ops without a ``/`` are under ``""``."""
        groups: dict[str, list[Gemm]] = {}
        for op in self.ops:
            phase, slash, _ = op.name.partition("/")
            groups.setdefault(phase if slash else "", []).append(op)
        return {phase: tuple(ops) for phase, ops in groups.items()}

    def digest(self) -> str:
        """SHA-256 (hex) over all fields of all ops: the workload hash a result records."""
        sha = hashlib.sha256()
        for op in self.ops:
            sha.update(repr(tuple(getattr(op, field) for field in GEMM_FIELDS)).encode())
        for other in self.others:
            sha.update(repr(("other", *(getattr(other, field) for field in OTHER_FIELDS))).encode())
        return sha.hexdigest()
