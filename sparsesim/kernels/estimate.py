"""A closed-form estimate of a kernel's cycles, used to rank candidates, never as a result.

A search ranks with it to decide which kernels are worth simulating. A library's heuristic picks with it. Where
`library.heuristic_whole_waves` is false (A100: at n = k = 4096 cuBLAS keeps its 256x128 tile through every wave
step), it counts throughput beyond the first wave and no help from co-resident CTAs.
"""

from __future__ import annotations

import math

import numpy as np

from sparsesim.hardware import GpuSpec
from sparsesim.kernels.datapath import KStep, barrier_cycles
from sparsesim.kernels.kernel import Kernel

__all__ = ["estimate_cycles", "estimate_shapes"]


def estimate_cycles(
    gpu: GpuSpec,
    kernel: Kernel,
    step: KStep,
    slots: int,
    shape: tuple[int, int, int, int],
    clock_hz: float,
    out_bytes: float,
    in_l2: bool,
    heuristic: bool = False,
) -> float:
    """Estimated SM cycles of `kernel` for `shape` = (m, n, k, batch)."""
    m, n, k, batch = shape
    tiles_m, tiles_n = kernel.tiles(m, n)
    k_steps = kernel.k_steps(k)
    per_split = math.ceil(k_steps / kernel.split_k)
    split_k = math.ceil(k_steps / per_split)
    ctas = tiles_m * tiles_n * batch * split_k
    per_sm = ctas / gpu.sm.count
    by_throughput = heuristic and not kernel.persistent and not gpu.library.heuristic_whole_waves
    rounds = max(1.0, per_sm) if by_throughput else math.ceil(per_sm)
    together = 1.0 if by_throughput else min(float(slots), math.ceil(per_sm))
    busy = min(ctas, gpu.sm.count)
    part_m, part_n = m / (tiles_m * kernel.sm_tile_m), n / (tiles_n * kernel.tile_n)
    moved = step.a_request * part_m + step.b_request * part_n
    service = max(step.tensor, step.smem_read + step.smem_fill, step.issue, step.decode)
    l2_share = moved * busy / gpu.l2.bytes_per_clk
    barrier = barrier_cycles(gpu, kernel)
    latency = gpu.l2.latency_far + (0.0 if in_l2 else gpu.dram.latency * clock_hz)
    hidden = latency / (max(kernel.stages - 1, 1) * together)
    main_loop = per_split * max(service, (service + barrier) / together, l2_share, hidden)
    element = 4.0 if kernel.family == "sm80" else out_bytes
    epilogue = gpu.pipeline.epilogue + kernel.sm_tile_m * kernel.tile_n * 2 * element / gpu.smem.bytes_per_clk
    start = gpu.launch.cta_start + latency
    if kernel.persistent:  # started once; an epilogue hides behind the next tile's main loop, or follows it
        loop = rounds * (max(main_loop, epilogue) if kernel.overlap else main_loop + epilogue)
        overhead = start + (epilogue if kernel.overlap else 0.0)
    else:
        loop = rounds * main_loop
        overhead = (start + epilogue) * max(1.0, rounds / together)
    output = float(m) * n * batch * out_bytes
    if split_k > 1:  # partial tiles are written, and reduced by another kernel
        partials = float(m) * n * batch * 4.0 * split_k
        overhead += gpu.launch.cta_start + latency
        output += 2 * partials
    operands = batch * k_steps * (tiles_m * part_m * step.a_bytes + tiles_n * part_n * step.b_bytes)
    dram_per_clk = gpu.dram.bytes_per_s * gpu.dram.achieved_fraction * gpu.dram.tiled_fraction / clock_hz
    memory = output / (dram_per_clk if output > gpu.l2.usable_bytes else gpu.l2.bytes_per_clk) + (
        0.0 if in_l2 else operands / dram_per_clk
    )
    return max(loop, memory) + overhead


def estimate_shapes(
    gpu: GpuSpec,
    kernel: Kernel,
    step: KStep,
    slots: int,
    shapes: np.ndarray,
    batch: int,
    clock_hz: float,
    out_bytes: float,
    in_l2: np.ndarray,
) -> np.ndarray:
    """`estimate_cycles` of many shapes at once, the same to the last bit: each operation in the same order.

    shapes : int64[shapes, 3], m, n, k; in_l2 : bool[shapes]. Returns float[shapes].
    """
    m, n, k = shapes.T
    tiles_m = -(-m // kernel.tile_m) * (kernel.tile_m // kernel.sm_tile_m)
    tiles_n = -(-n // kernel.tile_n)
    k_steps = -(-k // kernel.tile_k)
    per_split = -(-k_steps // kernel.split_k)
    split_k = -(-k_steps // per_split)
    ctas = tiles_m * tiles_n * batch * split_k
    rounds = np.ceil(ctas / gpu.sm.count)
    together = np.minimum(float(slots), rounds)
    busy = np.minimum(ctas, gpu.sm.count)
    part_m, part_n = m / (tiles_m * kernel.sm_tile_m), n / (tiles_n * kernel.tile_n)
    moved = step.a_request * part_m + step.b_request * part_n
    service = max(step.tensor, step.smem_read + step.smem_fill, step.issue, step.decode)
    barrier = barrier_cycles(gpu, kernel)
    latency = gpu.l2.latency_far + np.where(in_l2, 0.0, gpu.dram.latency * clock_hz)
    hidden = latency / (max(kernel.stages - 1, 1) * together)
    slowest = np.maximum(service, (service + barrier) / together)
    main_loop = per_split * np.maximum(np.maximum(slowest, moved * busy / gpu.l2.bytes_per_clk), hidden)
    element = 4.0 if kernel.family == "sm80" else out_bytes
    epilogue = gpu.pipeline.epilogue + kernel.sm_tile_m * kernel.tile_n * 2 * element / gpu.smem.bytes_per_clk
    start = gpu.launch.cta_start + latency
    if kernel.persistent:
        loop = rounds * (np.maximum(main_loop, epilogue) if kernel.overlap else main_loop + epilogue)
        overhead = start + (epilogue if kernel.overlap else 0.0)
    else:
        loop = rounds * main_loop
        overhead = (start + epilogue) * np.maximum(1.0, rounds / together)
    elements = m.astype(float) * n * batch
    output = elements * out_bytes
    reduced = split_k > 1
    overhead = np.where(reduced, overhead + (gpu.launch.cta_start + latency), overhead)
    output = np.where(reduced, output + 2 * (elements * 4.0 * split_k), output)
    operands = batch * k_steps * (tiles_m * part_m * step.a_bytes + tiles_n * part_n * step.b_bytes)
    dram_per_clk = gpu.dram.bytes_per_s * gpu.dram.achieved_fraction * gpu.dram.tiled_fraction / clock_hz
    memory = output / np.where(output > gpu.l2.usable_bytes, dram_per_clk, gpu.l2.bytes_per_clk)
    memory = memory + np.where(in_l2, 0.0, operands / dram_per_clk)
    return np.asarray(np.maximum(loop, memory) + overhead)
