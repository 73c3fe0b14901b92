"""What to measure: shapes from a workload, from measured rows (to take them again), or from a grid."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from sparsesim.errors import UserError
from sparsesim.measured import MeasuredRow
from sparsesim.workload import Gemm, GemmError
from sparsesim.workload.ops import DTYPE_BYTES, issue_line

__all__ = ["LIBRARIES", "Case", "cases_from_grid", "cases_from_measured", "cases_from_ops", "libraries_for"]

#: library → (whether its kernels are sparse, what it is)
LIBRARIES: dict[str, tuple[bool, str]] = {
    "cublaslt": (False, "cuBLASLt's heuristic, through torch.mm, _int_mm or _scaled_mm"),
    "cublaslt-bias": (False, "the same with a bias in the epilogue, through torch.addmm"),
    "cusparselt": (True, "cuSPARSELt with its search over algorithms and split-K"),
    "cusparselt-default": (True, "cuSPARSELt with its default algorithm"),
    "torch-cutlass": (True, "the CUTLASS back-end of torch.sparse.to_sparse_semi_structured"),
}
#: metadata bits of 2:4 per element of the uncompressed A: 2 for each of the two kept of four
METADATA_BITS = 1.0


@dataclass(frozen=True)
class Case:
    """One kernel to time: D[m×n] = A[m×k]·B[k×n] with A `pattern` (dense or 2:4), `batch` times.

    `set` names where the shape comes from, as the column of the measured schema does.
    """

    m: int
    n: int
    k: int
    dtype: str = "f16"
    pattern: str = "dense"
    batch: int = 1
    set: str = ""

    @property
    def is_sparse(self) -> bool:
        """Whether A is sparse."""
        return self.pattern != "dense"

    @property
    def accumulator(self) -> str:
        """The type that the libraries accumulate this product in."""
        return "i32" if self.dtype == "i8" else "f32"

    @property
    def operand_bytes(self) -> int:
        """Bytes of A as it is stored (2:4: half of it and its metadata), B and D: what one call can leave in L2."""
        size = DTYPE_BYTES[self.dtype]
        kept = 1.0
        if self.is_sparse:
            kept = 0.5 + METADATA_BITS / (8 * size)
        out = 4 if self.dtype == "i8" and not self.is_sparse else 2
        return int(self.batch * (size * self.k * (kept * self.m + self.n) + out * self.m * self.n))

    def __str__(self) -> str:
        batch = f"{self.batch} × " if self.batch > 1 else ""
        return f"{batch}{self.m}×{self.n}×{self.k} {self.dtype} {self.pattern}"


def _both(op: Gemm, name: str) -> list[Case]:
    """The dense case of an op and, if its weight is sparse, the sparse one: a pair."""
    dense = Case(op.m, op.n, op.k, op.dtype, "dense", op.batch, name)
    if op.pattern == "dense":
        return [dense]
    return [dense, Case(op.m, op.n, op.k, op.dtype, op.pattern, op.batch, name)]


def _unique(cases: Iterable[Case]) -> list[Case]:
    """Each shape, type and pattern once, in order; the first's set name stays."""
    seen: dict[tuple[object, ...], Case] = {}
    for case in cases:
        seen.setdefault((case.m, case.n, case.k, case.dtype, case.pattern, case.batch), case)
    return list(seen.values())


def cases_from_ops(ops: Iterable[Gemm], name: str = "") -> list[Case]:
    """Distinct shapes of a workload; an op with a sparse weight gives its dense partner, too."""
    return _unique(case for op in ops if isinstance(op, Gemm) for case in _both(op, name))


def cases_from_measured(rows: Iterable[MeasuredRow]) -> list[Case]:
    """The same shapes, types and patterns as measured rows, to take them again."""
    return _unique(Case(r.m, r.n, r.k, r.dtype, r.pattern, r.batch, r.set) for r in rows)


def cases_from_grid(
    m: Sequence[int], n: Sequence[int], k: Sequence[int], dtypes: Sequence[str], pattern: str = "2:4"
) -> list[Case]:
    """Every combination; where `m`, `n` or `k` are empty, the sizes of the others with equal sides (squares).

    Raises UserError for a size or type that no GEMM can have, one line each.
    """
    sides = [tuple(side) for side in (m, n, k)]
    given = [side for side in sides if side]
    if not given:
        raise UserError("-m, -n, -k: expected sizes to measure, found none")
    if len(given) < 3 and any(side != given[0] for side in given):
        raise UserError("-m, -n, -k: expected all three, or equal lists for square shapes, found some")
    shapes = product(*sides) if len(given) == 3 else ((size, size, size) for size in given[0])
    cases: list[Case] = []
    lines: list[str] = []
    for (rows, columns, depth), dtype in product(shapes, dtypes):
        try:
            op = Gemm("grid", rows, columns, depth, dtype=dtype, pattern=pattern)
        except GemmError as error:
            lines += [issue_line("grid", "", issue) for issue in error.issues]
            continue
        cases += _both(op, "grid")
    if lines:
        raise UserError(dict.fromkeys(lines))
    return _unique(cases)


def libraries_for(case: Case, libraries: Sequence[str]) -> list[str]:
    """Those of `libraries` whose kernels are of the case's kind."""
    return [name for name in libraries if LIBRARIES[name][0] == case.is_sparse]
