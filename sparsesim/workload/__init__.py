"""Operators and workloads, and the readers of the TOML, CSV and JSONL files that hold them.

Shapes only: nothing here knows a GPU, a software stack or a kernel. Foreign formats are turned into a
`Workload` by the importers.
"""

from sparsesim.workload.load import iter_trace, load_trace, load_workload, workload_names
from sparsesim.workload.ops import (
    ACC_DTYPES,
    DTYPE_BYTES,
    DTYPES,
    KINDS,
    MAX_DIM,
    MAX_MACS,
    OUT_DTYPES,
    Gemm,
    GemmError,
    Workload,
)

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
    "Workload",
    "iter_trace",
    "load_trace",
    "load_workload",
    "workload_names",
]
