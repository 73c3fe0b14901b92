"""A kernel on a GPU → the numbers that the event loop runs (`engine.Launch` and its two tables).

Every mechanism that can be idealised is idealised here, by changing numbers; the loop never knows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from sparsesim.device.engine import TICKS, Launch
from sparsesim.hardware import GpuSpec
from sparsesim.kernels import Kernel, KStep, Operands, kstep, occupancy, resident_limit, stage_bytes
from sparsesim.kernels.datapath import barrier_cycles, rate_key

__all__ = ["DEVICE_IDEALS", "LaunchPlan", "Shape", "build", "inert", "reduction_cycles"]

#: mechanisms that are idealised by changing the launch (the others are outside the device, or the clock)
DEVICE_IDEALS = (
    "metadata",
    "decode",
    "waves",
    "padding",
    "latency",
    "residency",
    "issue",
    "operand",
    "l2",
    "dram",
)

NEVER = 1 << 60  # a CTA index beyond every launch
PARTIAL_BYTES = 4  # split-K partial sums are f32 or i32


@dataclass(frozen=True)
class Shape:
    """D[m×n] = A[m×k]·B[k×n], `batch` times, with `out_bytes` per element of D."""

    m: int
    n: int
    k: int
    batch: int = 1
    out_bytes: float = 2.0

    @property
    def macs(self) -> float:
        """Dense-equivalent multiply-accumulates."""
        return float(self.m) * self.n * self.k * self.batch


@dataclass(frozen=True)
class LaunchPlan:
    """The numbers of one launch, and what is needed to read its counters back."""

    launch: Launch
    ticks: np.ndarray
    size: np.ndarray
    step: KStep
    kernel: Kernel
    operands: Operands
    shape: Shape
    useful: float
    residency_limit: str

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for launches whose simulations are identical."""
        return (self.launch, self.ticks.tobytes(), self.size.tobytes())


def _ticks(cycles: float) -> int:
    return round(cycles * TICKS)


def build(
    gpu: GpuSpec,
    kernel: Kernel,
    operands: Operands,
    shape: Shape,
    clock_hz: float,
    warm: bool,
    ideal: frozenset[str] = frozenset(),
) -> LaunchPlan:
    """Numbers of `kernel` on `gpu` for `shape` at an SM clock of `clock_hz`.

    `warm` starts with what a previous launch on the same buffers left in L2. `ideal` names mechanisms of
    `DEVICE_IDEALS` to idealise. Raises ValueError if the kernel does not fit on the GPU.
    """
    resident = occupancy(gpu, kernel, stage_bytes(kernel, operands))
    if resident.ctas < 1:
        raise ValueError(f"{kernel.name} does not fit on {gpu.name}: {resident.limit}")
    slots = 1 if kernel.persistent else resident.ctas
    if "residency" in ideal and not kernel.persistent:
        slots = max(slots, resident_limit(gpu, kernel))
    step = kstep(gpu, kernel, operands)
    tiles_m, tiles_n = kernel.tiles(shape.m, shape.n)
    k_steps = kernel.k_steps(shape.k)
    per_split = math.ceil(k_steps / kernel.split_k)
    split_k = math.ceil(k_steps / per_split)
    ctas = tiles_m * tiles_n * shape.batch * split_k
    waves, padding, hidden = "waves" in ideal, "padding" in ideal, "latency" in ideal
    if waves:  # no ragged split: all CTAs of a tile share its depth equally
        k_steps = per_split * split_k
    useful = shape.macs / (tiles_m * tiles_n * shape.batch * k_steps * step.macs)

    # without wave quantisation and tile padding, the busiest SM does its exact share of the useful work
    scale = ctas / (math.ceil(ctas / gpu.sm.count) * gpu.sm.count) if waves else 1.0
    scale *= useful if padding else 1.0
    no_meta = "metadata" in ideal and operands.gain > 1.0
    meta_share = step.meta_bytes / step.a_bytes if no_meta else 0.0
    tensor = step.macs / operands.gain / _rate(gpu, operands) if "issue" in ideal else step.tensor
    issue = 0.0 if "issue" in ideal else step.issue
    port_saved = meta_share * step.a_bytes / gpu.smem.bytes_per_clk
    reads_of_a = kernel.warps_n if kernel.family == "sm80" else 1
    free_port = "operand" in ideal
    read = 0.0 if free_port else step.smem_read - port_saved * reads_of_a
    fill = 0.0 if free_port else step.smem_fill - port_saved * gpu.smem.fill_contention
    barrier = barrier_cycles(gpu, kernel)

    table, size = _tables(gpu, kernel, step, shape, clock_hz, meta_share, k_steps, ideal)
    latency_l2 = 0.0 if hidden or "l2" in ideal else _mean_latency(gpu)
    latency_dram = 0.0 if hidden or "dram" in ideal else gpu.dram.latency * clock_hz
    launch = Launch(
        tiles_m=tiles_m,
        tiles_n=tiles_n,
        batch=shape.batch,
        splits=split_k,
        k_steps=k_steps,
        steps_per_split=per_split,
        raster_group=kernel.raster_group,
        raster_along_m=int(kernel.raster_along_m),
        ctas=ctas,
        skip_from=NEVER,
        skip_by=0,
        sms=gpu.sm.count,
        slots=slots,
        persistent=int(kernel.persistent),
        epilogue_overlap=int(kernel.overlap),
        stages=kernel.stages,
        tensor=max(_ticks(tensor * scale), 1),
        smem_read=_ticks(read * scale),
        smem_fill=_ticks(fill * scale),
        decode=0 if "decode" in ideal else _ticks(step.decode * scale),
        issue=_ticks(issue * scale),
        barrier=0 if hidden else _ticks(barrier),
        cta_start=0 if hidden else _ticks(gpu.launch.cta_start),
        cta_interval=0 if hidden else _ticks(1 / gpu.launch.cta_rate),
        epilogue=0
        if hidden
        else _ticks(gpu.pipeline.epilogue + _drain(gpu) + (0.0 if free_port else _staging(gpu, kernel, shape))),
        latency_l2=_ticks(latency_l2),
        latency_dram=_ticks(latency_dram),
        l2_capacity=int(gpu.l2.usable_bytes),
        write_queue=0 if "dram" in ideal else _ticks(gpu.dram.write_queue / _dram_per_clk(gpu, clock_hz)),
        warm=int(warm),
    )
    if no_meta:  # neither filled nor read
        gone = step.meta_bytes
        moved = step.smem_bytes - gone * (1 + reads_of_a)
        step = replace(step, smem_bytes=moved, fill_bytes=step.fill_bytes - gone, meta_bytes=0.0)
    if padding:  # padding moves nothing through shared memory
        step = replace(step, smem_bytes=step.smem_bytes * useful, fill_bytes=step.fill_bytes * useful)
    return LaunchPlan(launch, table, size, step, kernel, operands, shape, useful, resident.limit)


def inert(gpu: GpuSpec, kernel: Kernel, operands: Operands, shape: Shape) -> frozenset[str]:
    """Mechanisms of `DEVICE_IDEALS` that leave this launch as it is, whatever else is ideal."""
    plan = build(gpu, kernel, operands, shape, gpu.clock.max, False)
    p = plan.launch
    ragged = p.k_steps != p.steps_per_split * p.splits
    nothing = {
        "metadata": plan.step.meta_bytes == 0.0,
        "decode": p.decode == 0,
        "waves": p.ctas % p.sms == 0 and not ragged,
        "padding": plan.useful == 1.0 and not ragged,
        "residency": bool(p.persistent) or p.slots >= resident_limit(gpu, kernel) or p.ctas <= p.sms * p.slots,
    }
    return frozenset(name for name, same in nothing.items() if same)


def _rate(gpu: GpuSpec, operands: Operands) -> float:
    """Nominal dense MAC per clk per SM of the GPU, whichever instruction family the kernel uses."""
    return gpu.tensor.macs_per_clk[rate_key(operands.dtype, operands.acc_dtype)]


def _dram_per_clk(gpu: GpuSpec, clock_hz: float) -> float:
    """DRAM bytes per SM cycle that tiled operand reads reach."""
    return gpu.dram.bytes_per_s * gpu.dram.achieved_fraction * gpu.dram.tiled_fraction / clock_hz


def reduction_cycles(gpu: GpuSpec, plan: LaunchPlan, clock_hz: float, ideal: frozenset[str]) -> float:
    """SM cycles of the kernel that reduces split-K partials: it reads them all and writes the output.

    Bound by L2, or by DRAM for the partials that did not stay in L2, plus one start and one latency.
    """
    if plan.launch.splits == 1:
        return 0.0
    partials = plan.shape.m * plan.shape.n * plan.shape.batch * PARTIAL_BYTES * plan.launch.splits
    output = plan.shape.m * plan.shape.n * plan.shape.batch * plan.shape.out_bytes
    spilled = float(plan.size[3, 0, 2] / max(plan.size[3, 0, 1], 1)) * partials
    through_l2 = 0.0 if "l2" in ideal else (partials + output) / gpu.l2.bytes_per_clk
    from_dram = 0.0 if "dram" in ideal else spilled / _dram_per_clk(gpu, clock_hz)
    latency = 0.0 if "latency" in ideal else gpu.launch.cta_start + plan.launch.latency_l2 / TICKS
    return max(through_l2, from_dram) + latency


def _drain(gpu: GpuSpec) -> float:
    """Cycles from a tile's last issued instruction to its result: the last fragments are read and multiplied."""
    return gpu.smem.latency + gpu.tensor.latency


def _staging(gpu: GpuSpec, kernel: Kernel, shape: Shape) -> float:
    """Cycles that an output tile takes through shared memory on its way out.

    mma.sync epilogues write f32 accumulators and read them back in rows (CUTLASS epilogue/threadblock);
    TMA epilogues stage the converted tile.
    """
    element = 4.0 if kernel.family == "sm80" else shape.out_bytes
    return kernel.sm_tile_m * kernel.tile_n * 2 * element / gpu.smem.bytes_per_clk


def _mean_latency(gpu: GpuSpec) -> float:
    """Hit latency [clk] of a slab whose lines are spread over all partitions: it waits for the far ones."""
    return gpu.l2.latency_far if gpu.l2.partitions > 1 else gpu.l2.latency_near


def _tables(
    gpu: GpuSpec,
    kernel: Kernel,
    step: KStep,
    shape: Shape,
    clock_hz: float,
    meta_share: float,
    k_steps: int,
    ideal: frozenset[str],
) -> tuple[np.ndarray, np.ndarray]:
    """Ticks and bytes of the operand slabs and output tiles; see `engine.Launch` for the layout."""
    ticks = np.zeros((4, 4, 5), dtype=np.int64)
    size = np.zeros((4, 4, 4), dtype=np.int64)
    free_l2, free_dram = "l2" in ideal, "dram" in ideal
    dram_per_clk = _dram_per_clk(gpu, clock_hz)
    far = (gpu.l2.partitions - 1) / gpu.l2.partitions

    def fill_in(operand: int, edge: int, requested: float, block: float, meta: float, arriving: float) -> None:
        size[operand, edge] = [round(requested), round(block), round(meta), round(arriving)]
        ticks[operand, edge] = [
            0 if free_l2 else _ticks(arriving / gpu.l2.sm_bytes_per_clk),
            0 if free_l2 else _ticks(requested / gpu.l2.bytes_per_clk),
            0 if free_l2 else _ticks(requested * far / gpu.l2.fabric_bytes_per_clk),
            0 if free_dram else _ticks(block / dram_per_clk),
            round(block),
        ]

    rows, cols = kernel.sm_tile_m, kernel.tile_n
    last_m = shape.m - (math.ceil(shape.m / rows) - 1) * rows
    last_n = shape.n - (math.ceil(shape.n / cols) - 1) * cols
    depth = shape.k / (k_steps * kernel.tile_k)  # share of the padded depth that exists
    # rows of a pair's second half can lie wholly outside the matrix
    edge_m = 0.0 if math.ceil(shape.m / rows) < kernel.tiles(shape.m, shape.n)[0] else last_m / rows
    keep = 1.0 - meta_share
    # a cluster shares an operand among those of its CTAs that exist
    tiles_m, tiles_n = kernel.tiles(shape.m, shape.n)
    a_request = step.a_bytes / min(kernel.cluster_n, tiles_n)
    b_request = (step.fill_bytes - step.a_bytes) / min(kernel.cluster_m, tiles_m)
    # split-K partials that L2 cannot hold until they are reduced go to DRAM and back
    partials = float(shape.m) * shape.n * shape.batch * PARTIAL_BYTES * kernel.split_k
    spilled = max(0.0, 1.0 - gpu.l2.usable_bytes / partials)
    for edge, share in ((0, 1.0), (1, edge_m)):
        x = share * depth
        fill_in(
            0, edge, a_request * keep * x, step.a_bytes * keep * x,
            0.0 if meta_share else step.meta_bytes / step.a_bytes * a_request * x, step.a_bytes * keep * x,
        )  # fmt: skip
    for edge, share in ((0, 1.0), (1, last_n / cols)):
        x = share * depth
        held = step.fill_bytes - step.a_bytes  # of B in this SM's shared memory
        fill_in(1, edge, b_request * x, step.b_bytes * x, 0.0, held * x)
    for edge in range(4):
        part = (edge_m if edge & 2 else 1.0) * (last_n / cols if edge & 1 else 1.0)
        out = rows * cols * part * shape.out_bytes
        fill_in(2, edge, out, out, 0.0, 0.0)
        ticks[2, edge, 0] = 0 if free_l2 else _ticks(out / gpu.l2.sm_bytes_per_clk)
        partial = rows * cols * part * PARTIAL_BYTES
        fill_in(3, edge, partial, partial, partial * spilled, 0.0)
        ticks[3, edge, 3] = 0 if free_dram else _ticks(partial * spilled / dram_per_clk)
        ticks[3, edge, 0] = 0 if free_l2 else _ticks(partial / gpu.l2.sm_bytes_per_clk)
    return ticks, size
