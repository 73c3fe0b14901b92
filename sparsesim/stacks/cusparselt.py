"""cuSPARSELt: structured-sparse matmul with a search over its kernels.

Rules: cuSPARSELt data-type tables and headers (0.6.3 to 0.10.0), PyTorch's constraint tables and SlideSparse's
cuSPARSELt wrapper, which agree on the multiples.
"""

from __future__ import annotations

from sparsesim.hardware import GpuSpec
from sparsesim.sparsity import Pattern
from sparsesim.stacks.rules import Rule, Stack, native_pattern
from sparsesim.workload import Gemm

__all__ = ["CUSPARSELT"]

#: multiples of the sparse operand's sides (m and k), and of the dense operand's free side (n)
SPARSE_MULTIPLE = {"f16": 16, "bf16": 16, "tf32": 8, "i8": 32, "e4m3": 32, "e2m1": 32}
DENSE_MULTIPLE = {"f16": 8, "bf16": 8, "tf32": 4, "i8": 16, "e4m3": 16, "e2m1": 32}
#: i8 products are written as bf16 by the harness that the measured rows come from
OUTPUT_BYTES = {"f16": 2.0, "bf16": 2.0, "tf32": 4.0, "i8": 2.0, "e4m3": 2.0, "e2m1": 2.0}


def _no_sparse_cores(op: Gemm, pattern: Pattern, gpu: GpuSpec) -> str | None:
    return None if gpu.has_sparse else f"{gpu.name} (compute capability {gpu.compute_capability}) has none"


def _dtype(op: Gemm, pattern: Pattern, gpu: GpuSpec) -> str | None:
    key = "f16" if op.dtype == "bf16" else op.dtype
    if gpu.tensor.native_patterns.get(key):
        return None
    return f"{op.dtype} has no sparse instruction on {gpu.name}"


def _operand(op: Gemm, pattern: Pattern, gpu: GpuSpec) -> str | None:
    return None if op.sparse_operand == "A" else f"operand {op.sparse_operand} is the sparse one"


def _pattern(op: Gemm, pattern: Pattern, gpu: GpuSpec) -> str | None:
    if native_pattern(op, pattern, gpu) is not None:
        return None
    key = "f16" if op.dtype == "bf16" else op.dtype
    return f"{pattern} cannot run as {' or '.join(gpu.tensor.native_patterns[key])} of {op.dtype} on {gpu.name}"


def _minimum(op: Gemm, pattern: Pattern, gpu: GpuSpec) -> str | None:
    side, free = SPARSE_MULTIPLE[op.dtype], DENSE_MULTIPLE[op.dtype]
    small = [f"{name} = {size} < {least}" for name, size, least in _sides(op, side, free) if size < least]
    return ", ".join(small) or None


def _alignment(op: Gemm, pattern: Pattern, gpu: GpuSpec) -> str | None:
    side, free = SPARSE_MULTIPLE[op.dtype], DENSE_MULTIPLE[op.dtype]
    odd = [f"{name} = {size} is no multiple of {least}" for name, size, least in _sides(op, side, free) if size % least]
    if not odd and op.k % pattern.group:
        odd = [f"k = {op.k} is no multiple of the pattern's {pattern.group}"]
    return ", ".join(odd) or None


def _sides(op: Gemm, side: int, free: int) -> tuple[tuple[str, int, int], ...]:
    return ("m", op.m, side), ("k", op.k, side), ("n", op.n, free)


CUSPARSELT = Stack(
    name="cusparselt",
    title="cuSPARSELt",
    rules=(
        Rule(
            "arch-unsupported",
            "the GPU has sparse tensor cores",
            "cuSPARSELt release notes",
            _no_sparse_cores,
        ),
        Rule("dtype-unsupported", "the dtype has a sparse kernel", "cuSPARSELt data types", _dtype),
        Rule(
            "operand-side",
            "the weight (A) is the sparse operand, compressed ahead of time",
            "cuSPARSELt headers",
            _operand,
        ),
        Rule("pattern-unsupported", "the pattern fits one of the datapath's", "cuSPARSELt data types", _pattern),
        Rule("minimum-size", "every side is at least one multiple", "PyTorch constraint tables", _minimum),
        Rule(
            "shape-alignment",
            "every side is a multiple",
            "PyTorch constraint tables; SlideSparse",
            _alignment,
        ),
    ),
    policy="search",
    output=OUTPUT_BYTES.__getitem__,
)
