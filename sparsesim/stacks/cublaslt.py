"""cuBLASLt: the dense library, and the baseline that every speedup is measured against."""

from __future__ import annotations

from sparsesim.hardware import GpuSpec
from sparsesim.sparsity import Pattern
from sparsesim.stacks.rules import Rule, Stack
from sparsesim.workload import Gemm

__all__ = ["CUBLASLT"]

#: bytes of one output element: i8 products are written as i32, 8- and 4-bit floats as bf16
OUTPUT_BYTES = {"f16": 2.0, "bf16": 2.0, "tf32": 4.0, "i8": 4.0, "e4m3": 2.0, "e2m1": 2.0}


def _dense_only(op: Gemm, pattern: Pattern, gpu: GpuSpec) -> str | None:
    return f"{pattern} weight multiplied as dense"


CUBLASLT = Stack(
    name="cublaslt",
    title="cuBLASLt",
    rules=(Rule("op-unsupported", "the library has no sparse kernels", "cuBLAS documentation", _dense_only),),
    policy="heuristic",
    output=OUTPUT_BYTES.__getitem__,
)
