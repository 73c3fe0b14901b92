"""A GPU kernel: its tile, pipeline and schedule, and how many of its CTAs fit on an SM.

A kernel is what a library ships. What one of its k-steps costs on a GPU is in `datapath`; which kernels a
library has is in `catalogue`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from sparsesim.hardware import GpuSpec

__all__ = ["Kernel", "Occupancy", "occupancy", "resident_limit"]

#: registers per thread beside the accumulators: fragments, addresses, loop state. CUTLASS-built kernels stay
#: near 56-64 (facts: CTA bounds of the tile tables); not published per kernel.
OTHER_REGISTERS = 60


@dataclass(frozen=True)
class Kernel:
    """One kernel of a library.

    Parameters
    ----------
    family : "sm80" (mma.sync, register-fed), "sm90" (wgmma, shared-memory operands), "sm100" (tcgen05)
    tile_m, tile_n, tile_k : CTA tile in elements of the uncompressed operands; m is along the weight's rows
    stages : shared-memory pipeline depth
    warps_m, warps_n : MMA warps (sm80) or warpgroups (sm90) along each side
    cluster_m, cluster_n : CTAs per cluster; operands are multicast inside it
    pair : two SMs work on one tile and share its B operand (tcgen05 2-SM)
    persistent : one CTA per slot walks over tiles; `overlap` = its epilogue hides behind the next tile
    split_k : CTAs that share one output tile along k
    min_outputs : output elements per SM below which the library does not offer this kernel
    raster_group, raster_along_m : width of the band of tiles that the launch order walks, and its axis
    """

    family: Literal["sm80", "sm90", "sm100"]
    sparse: bool
    tile_m: int
    tile_n: int
    tile_k: int
    stages: int
    warps_m: int = 2
    warps_n: int = 2
    cluster_m: int = 1
    cluster_n: int = 1
    pair: bool = False
    persistent: bool = False
    overlap: bool = False
    split_k: int = 1
    raster_group: int = 8
    raster_along_m: bool = False
    min_outputs: int = 0

    @property
    def name(self) -> str:
        """A name in the manner of the libraries: family, path, tile, stages, warps or cluster, split."""
        path = "spgemm" if self.sparse else "gemm"
        shape = f"{self.tile_m}x{self.tile_n}_{self.tile_k}x{self.stages}"
        extra = f"_{self.warps_m}x{self.warps_n}" if self.family == "sm80" else ""
        if self.pair:
            extra += "_2sm"
        elif self.cluster_m * self.cluster_n > 1:
            extra += f"_c{self.cluster_m}x{self.cluster_n}"
        if self.persistent:
            extra += "_persistent"
        if self.split_k > 1:
            extra += f"_splitk{self.split_k}"
        return f"{self.family}_{path}_{shape}{extra}"

    @property
    def threads(self) -> int:
        """Threads per CTA; warp-specialised families have a producer warpgroup beside the consumers."""
        if self.family == "sm80":
            return 32 * self.warps_m * self.warps_n
        if self.family == "sm90":
            return 128 * (self.warps_m * self.warps_n + 1)
        return 256

    def with_split(self, split_k: int) -> Kernel:
        """The same kernel with another split along k."""
        return replace(self, split_k=split_k)

    @property
    def sm_tile_m(self) -> int:
        """Rows of the tile that one SM computes: half of them in a pair."""
        return self.tile_m // 2 if self.pair else self.tile_m

    def k_steps(self, k: int) -> int:
        """k-steps of one output tile."""
        return math.ceil(k / self.tile_k)

    def tiles(self, m: int, n: int) -> tuple[int, int]:
        """Per-SM output tiles along m and n (a pair's two halves count as two)."""
        return math.ceil(m / self.tile_m) * (self.tile_m // self.sm_tile_m), math.ceil(n / self.tile_n)


#: warps per sub-core behind which latency is hidden: while some start or drain their tile, others feed the datapath.
#: Still more would only widen what is worked on at once, which is a matter of raster order and L2, not of residency
ENOUGH_WARPS = 4


@dataclass(frozen=True)
class Occupancy:
    """Resident CTAs per SM and the resource that limits them."""

    ctas: int
    limit: str


def occupancy(gpu: GpuSpec, kernel: Kernel, stage_bytes: int) -> Occupancy:
    """CTAs of `kernel` that fit on one SM; 0 CTAs if none does.

    Source: CUDA occupancy rules (registers per warp rounded up to the allocation unit, shared memory rounded
    up plus a reservation per CTA); accumulators of tcgen05 kernels are in tensor memory.
    """
    smem = stage_bytes * kernel.stages
    if smem > gpu.smem.max_per_cta:
        return Occupancy(0, "shared memory per CTA")
    unit = gpu.smem.alloc_unit
    per_cta = math.ceil(smem / unit) * unit + gpu.smem.reserved_per_cta
    limits = {
        "shared memory": int(gpu.smem.bytes // per_cta),
        "CTA slots": gpu.sm.max_ctas,
        "warps": min(gpu.sm.max_warps * 32, gpu.sm.max_threads) // kernel.threads,
    }
    if kernel.family == "sm80":
        accumulators = kernel.tile_m * kernel.tile_n / kernel.threads
        registers = min(accumulators + OTHER_REGISTERS, gpu.sm.max_registers_per_thread)
        if accumulators > gpu.sm.max_registers_per_thread - 24:
            return Occupancy(0, "registers per thread")
        warp_registers = math.ceil(registers * 32 / gpu.sm.register_alloc_unit) * gpu.sm.register_alloc_unit
        limits["registers"] = int(gpu.sm.registers // (warp_registers * kernel.threads // 32))
    elif kernel.family == "sm90":
        # setmaxnreg hands nearly the whole file to the consumers: one CTA of 3 warpgroups fills it
        limits["registers"] = max(1, int(gpu.sm.registers // (168 * kernel.threads)))
    else:
        # 128 lanes x 512 columns of tensor memory; a persistent CTA double-buffers its accumulator
        columns = max(kernel.tile_n, 32) * (2 if kernel.overlap else 1)
        limits["tensor memory"] = 512 // columns
    limit = min(limits, key=lambda key: limits[key])
    return Occupancy(limits[limit], limit)


def resident_limit(gpu: GpuSpec, kernel: Kernel) -> int:
    """CTAs of `kernel` that an SM would hold if registers and shared memory were free: up to `ENOUGH_WARPS`."""
    most = min(gpu.sm.max_warps * 32, gpu.sm.max_threads) // kernel.threads
    enough = math.ceil(ENOUGH_WARPS * gpu.sm.subcores * 32 / kernel.threads)
    return max(1, min(gpu.sm.max_ctas, most, enough))
