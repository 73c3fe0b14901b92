"""CUTLASS profiler: the CSV of ``cutlass_profiler --operation=Gemm|SparseGemm --output=…``.

``Runtime`` [ms] is the mean of launches back to back on the same buffers: timing ``stream``, L2 ``warm``.
"""

from __future__ import annotations

from pathlib import Path

from sparsesim.errors import UserError
from sparsesim.profiles.kernel_names import KernelName, parse_kernel_name
from sparsesim.profiles.record import KernelShape, Profile, ProfiledKernel
from sparsesim.profiles.tables import number, read_table

__all__ = ["read_cutlass_profiler"]

COLUMNS = ("OperationKind", "Operation", "m", "n", "k", "Runtime")
TYPES = {"f16": "f16", "bf16": "bf16", "tf32": "tf32", "f32": "tf32", "s8": "i8", "fe4m3": "e4m3", "e4m3": "e4m3"}


def read_cutlass_profiler(path: Path) -> Profile:
    """Kernels of a CUTLASS profiler table; those that failed or were not run are left out.

    Raises UserError if it is no such table, or a row's sizes are no numbers.
    """
    table = read_table(path, COLUMNS)
    kernels = []
    for row, line in zip(table.rows, table.lines, strict=True):
        if row.get("Status", "success") != "success" or row.get("Disposition") in ("failed", "incorrect", "not_run"):
            continue
        runtime = number(row["Runtime"])
        if not runtime:
            continue
        sizes = [number(row[side]) for side in ("m", "n", "k")]
        if not all(size and size == int(size) and size > 0 for size in sizes):
            raise UserError(f"{path}: line {line}: expected positive integers m, n and k, found {sizes}")
        m, n, k = (int(size or 0) for size in sizes)
        operation = row["Operation"]
        sparse = "sp" in row["OperationKind"].lower()
        parsed = parse_kernel_name(operation) or _from_columns(row, operation, sparse)
        kernels.append(
            ProfiledKernel(
                name=operation,
                where=f"{path}:{line}",
                parsed=parsed,
                time_us=runtime * 1e3,
                shape=KernelShape(
                    m,
                    n,
                    k,
                    int(number(row.get("batch_count")) or 1),
                    TYPES.get(row.get("A", "").partition(":")[0]),
                    "2:4" if sparse else "dense",
                ),
                l2="warm",
                timing="stream",
            )
        )
    if not kernels:
        raise UserError(f"{path}: expected at least one kernel that ran, found none")
    return Profile(str(path), "cutlass-profiler", tuple(kernels))


def _from_columns(row: dict[str, str], operation: str, sparse: bool) -> KernelName | None:
    """What the tile columns say, where the name is not of a known form."""
    sides = [number(row.get(name)) for name in ("cta_m", "cta_n", "cta_k")]
    if not all(sides):
        return None
    m, n, k = (int(side or 0) for side in sides)
    stages = number(row.get("stages"))
    return KernelName(
        operation,
        "CUTLASS",
        path="sparse" if sparse else "dense",
        tile=(m, n, k),
        stages=int(stages) if stages else None,
    )
