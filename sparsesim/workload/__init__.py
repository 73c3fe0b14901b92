"""Operators and workloads, the readers of the TOML, CSV and JSONL files that hold them, and their writer.

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
from sparsesim.workload.others import OtherOp
from sparsesim.workload.write import write_workload

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
    "OtherOp",
    "Workload",
    "iter_trace",
    "load_trace",
    "load_workload",
    "workload_names",
    "write_workload",
]
