"""What one k-step of a kernel costs on one SM's resources, in SM cycles and bytes.

Everything follows from the tile, the operand widths and the hardware file; nothing is looked up by shape.

- mma (sm80): every warp reads its own A and B fragments through the shared-memory port; the tensor time is
  (instructions per sub-core) x (issue interval). The sparse interval has a floor (A100: 6.2 cycles), which
  binds for small-K shapes only.
- wgmma (sm90): one m64nNkK instruction feeds four sub-cores; A (64 rows) and B come from shared memory, B once
  for every 64 rows. cycles = max(tensor, bytes / 128): the port law of the hardware facts (144 cycles for
  sparse SS at N = 256).
- tcgen05 (sm100): as wgmma with M = 128 rows per SM; in a pair each SM holds half of B.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sparsesim.hardware import GpuSpec
from sparsesim.kernels.kernel import Kernel
from sparsesim.sparsity import Pattern

__all__ = [
    "KStep",
    "Operands",
    "barrier_cycles",
    "kstep",
    "mma_interval",
    "operand_bytes",
    "rate_key",
    "stage_bytes",
    "wgmma_cycles",
]

DTYPE_BYTES = {"f16": 2.0, "bf16": 2.0, "tf32": 4.0, "i8": 1.0, "e4m3": 1.0, "e2m1": 0.5}
#: K of the large dense mma.sync instruction (PTX ISA: m16n8k16 f16, k8 tf32, k32 8-bit, k64 4-bit)
MMA_K = {"f16": 16, "tf32": 8, "i8": 32, "e4m3": 32, "e2m1": 64}
#: metadata bits per kept element where the instruction spends more than the pattern needs (CUTLASS
#: mma_sparse_sm80.h, kMetaSizeInBits: tf32 keeps 1 of 2 and stores 4 bits)
INSTRUCTION_INDEX_BITS = {"tf32": 4.0}
#: bytes moved by one ldmatrix.x4 or one 16-byte cp.async of a full warp
WARP_ACCESS_BYTES = 512


def family_dtype(dtype: str) -> str:
    """bf16 shares the f16 datapath on every part listed."""
    return "f16" if dtype == "bf16" else dtype


def rate_key(dtype: str, acc_dtype: str) -> str:
    """Key of the rate tables for an operand dtype and its accumulator."""
    base = family_dtype(dtype)
    if base in ("f16", "e4m3"):
        return f"{base}_{'f16' if acc_dtype == 'f16' else 'f32'}"
    return base


@dataclass(frozen=True)
class Operands:
    """What the operands of a launch look like to the datapath.

    `kept` and `meta_bits` (metadata bits per uncompressed element of A) describe the compressed A; dense is
    1 and 0. `gain` is the rate of the native pattern over dense, `group` its M.
    """

    dtype: str
    acc_dtype: str
    kept: float = 1.0
    meta_bits: float = 0.0
    gain: float = 1.0
    group: int = 1

    @property
    def bytes_per_element(self) -> float:
        """Bytes of one uncompressed element."""
        return DTYPE_BYTES[self.dtype]

    @staticmethod
    def of(gpu: GpuSpec, dtype: str, acc_dtype: str, native: Pattern | None) -> Operands:
        """Operands of a launch that runs `native` (a pattern the datapath has), or dense for None."""
        if native is None or native.is_dense:
            return Operands(dtype, acc_dtype)
        kept = native.kept_fraction
        index_bits = INSTRUCTION_INDEX_BITS.get(dtype)
        per_element = native.metadata_bits(1, native.group) / native.group if index_bits is None else kept * index_bits
        bits = per_element * gpu.metadata.bits_factor
        return Operands(dtype, acc_dtype, kept, bits, 1 / kept, native.group)


@dataclass(frozen=True)
class KStep:
    """Service times [SM cycles] and bytes of one k-step of one CTA.

    `a_bytes` (with metadata) and `b_bytes` are the slabs, `a_request` and `b_request` what this CTA reads of
    them from L2 (a cluster or a pair shares the rest), `fill_bytes` what arrives in its shared memory.
    """

    tensor: float
    smem_read: float
    smem_fill: float
    decode: float
    issue: float
    smem_bytes: float
    a_bytes: float
    b_bytes: float
    meta_bytes: float
    a_request: float
    b_request: float
    fill_bytes: float
    macs: float


def operand_bytes(kernel: Kernel, ops: Operands) -> tuple[float, float, float]:
    """(A incl. metadata, metadata of A, B) bytes of the slabs that one k-step of one SM's tile needs."""
    size = ops.bytes_per_element
    meta = kernel.sm_tile_m * kernel.tile_k * ops.meta_bits / 8
    a = kernel.sm_tile_m * kernel.tile_k * size * ops.kept + meta
    return a, meta, kernel.tile_n * kernel.tile_k * size


def stage_bytes(kernel: Kernel, ops: Operands) -> int:
    """Shared memory of one pipeline stage on one SM [bytes]; a pair splits B between its two SMs."""
    a, _, b = operand_bytes(kernel, ops)
    return math.ceil(a + (b / 2 if kernel.pair else b))


def barrier_cycles(gpu: GpuSpec, kernel: Kernel) -> float:
    """Serial cost [SM cycles] of the stage barrier in each k-step of `kernel`."""
    legacy = kernel.family == "sm80" and gpu.tensor.generation != "mma"
    barrier = gpu.pipeline.legacy_barrier if legacy else gpu.pipeline.barrier
    return barrier + (gpu.pipeline.sparse_barrier if kernel.sparse else 0.0)


def mma_interval(gpu: GpuSpec, dtype: str, acc_dtype: str, k: int, ops: Operands | None = None) -> float:
    """Issue interval of one m16n8kK mma / mma.sp per sub-core [cycles].

    `k` is the instruction's uncompressed K. Ideal = 16*8*K / (gain * rate per sub-core); the measured ratio
    over ideal and the sparse floor come from the hardware file (source there: SUN for A100).
    """
    key = rate_key(dtype, acc_dtype)
    tensor = gpu.tensor
    legacy = tensor.generation != "mma" and key in tensor.legacy_macs_per_clk
    rate = (tensor.legacy_macs_per_clk if legacy else tensor.macs_per_clk)[key] / gpu.sm.subcores
    if ops is None or ops.gain == 1.0:
        return 16 * 8 * k / rate * tensor.dense_issue_ratio
    gain = min(ops.gain, tensor.legacy_sparse_gain) if legacy else ops.gain
    return max(16 * 8 * k / (rate * gain) * tensor.sparse_issue_ratio, tensor.sparse_min_interval)


def wgmma_cycles(gpu: GpuSpec, n: int, dtype: str = "f16", sparse: bool = False, a_in_smem: bool = True) -> float:
    """Cycles of one m64nNkK wgmma (K = 32 bytes of A): max(tensor, shared-memory bytes / port width).

    Reads 2048 + 32*N bytes dense SS, 2048 + 64*N sparse SS, 2048 less with A in registers (the port law;
    measured at N = 256 sparse: 144 SS, 128 RS).
    """
    k = 32 / DTYPE_BYTES[dtype] * (2 if sparse else 1)
    rate = gpu.tensor.macs_per_clk[rate_key(dtype, "i32" if dtype == "i8" else "f32")]
    tensor = 64 * n * k / (rate * (2 if sparse else 1))
    read = (2048 if a_in_smem else 0) + n * k * DTYPE_BYTES[dtype]
    return max(tensor, read / gpu.smem.bytes_per_clk)


def kstep(gpu: GpuSpec, kernel: Kernel, ops: Operands) -> KStep:
    """Costs of one k-step of one CTA of `kernel` on one SM."""
    a, meta, b = operand_bytes(kernel, ops)
    rows, cols, depth = kernel.sm_tile_m, kernel.tile_n, kernel.tile_k
    macs = float(rows * cols * depth)
    held_b = b / 2 if kernel.pair else b  # of B, what this SM's shared memory holds
    sub = gpu.sm.subcores
    sparse = ops.gain > 1.0
    if kernel.family == "sm80":
        instr_k = MMA_K[family_dtype(ops.dtype)] * (2 if sparse else 1)
        warps = kernel.warps_m * kernel.warps_n
        per_warp = math.ceil(rows / kernel.warps_m / 16) * math.ceil(cols / kernel.warps_n / 8) * (depth / instr_k)
        per_subcore = per_warp * warps / min(sub, warps)
        tensor = per_subcore * mma_interval(gpu, ops.dtype, ops.acc_dtype, instr_k, ops)
        read = a * kernel.warps_n + b * kernel.warps_m
        loads = (read + a + b) / WARP_ACCESS_BYTES
        issue = per_subcore + (loads + warps * gpu.pipeline.overhead_instructions) / min(sub, warps)
        decoded = per_subcore * 16 * instr_k / ops.group
    else:
        rate = gpu.tensor.macs_per_clk[rate_key(ops.dtype, ops.acc_dtype)]
        ratio = gpu.tensor.sparse_issue_ratio if sparse else gpu.tensor.dense_issue_ratio
        tensor = macs / (rate * ops.gain) * ratio
        instr_rows = 64 if kernel.family == "sm90" else 128
        read = a + held_b * math.ceil(rows / instr_rows)
        if not sparse:  # a dense product may be computed transposed: take the cheaper operand order
            read = min(read, held_b + a * math.ceil(cols / instr_rows))
        issue = gpu.pipeline.overhead_instructions
        decoded = rows * depth / ops.group / sub
    return KStep(
        tensor=tensor,
        smem_read=read / gpu.smem.bytes_per_clk,
        smem_fill=(a + held_b) / gpu.smem.bytes_per_clk * gpu.smem.fill_contention,
        decode=decoded / gpu.metadata.groups_per_clk if sparse and gpu.metadata.groups_per_clk > 0 else 0.0,
        issue=issue / gpu.sm.issue_per_clk,
        smem_bytes=read + a + held_b,
        a_bytes=a,
        b_bytes=b,
        meta_bytes=meta,
        a_request=a / kernel.cluster_n,
        b_request=held_b / kernel.cluster_m,
        fill_bytes=a + held_b,
        macs=macs,
    )
