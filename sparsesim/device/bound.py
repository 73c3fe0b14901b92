"""The least time of a launch, from its numbers alone: what a search need not simulate to turn down.

No server can do its work faster than back to back, and no launch can draw less energy than its MACs, its bytes and
the time of its busiest server. The clock at which that work and that energy would settle gives the least time:
sustained time only rises with cycles and with energy. Where the event loop runs every event this holds to the
rounding; where it extrapolates (the steady middle, or k), to what the extrapolation is exact to.
"""

from __future__ import annotations

import numpy as np

from sparsesim.device.build import LaunchPlan, reduction_cycles
from sparsesim.device.engine import TICKS
from sparsesim.device.power import launch_energy, run_clock
from sparsesim.hardware import GpuSpec

__all__ = ["least_seconds"]

A, B, D, PARTIAL = range(4)  # operands: rows of the tables of a launch
PORT, L2, FABRIC, DRAM = range(4)  # columns of `ticks`
REQUESTED, HELD, SPILLED = range(3)  # columns of `size`


def least_seconds(
    gpu: GpuSpec,
    plan: LaunchPlan,
    clock_hz: float,
    locked: bool,
    gap_s: float,
    floor_s: float,
    run: tuple[int, int] | None,
    activity: float,
) -> float:
    """Device time [s] that `plan`, built at `clock_hz` (`clock.max` or the locked clock), takes at least.

    `gap_s`, `floor_s`, `run`, `activity` as in `Conditions`.
    """
    p, ticks, size = plan.launch, plan.ticks, plan.size
    loads = _loads(plan)
    outputs = _outputs(plan)
    written = ticks[PARTIAL if p.splits > 1 else D]
    steps = p.tiles_m * p.tiles_n * p.batch * p.k_steps
    step = max(p.tensor, p.smem_read, p.decode, p.issue)
    first = p.cta_start + p.latency_l2  # before the first k-step of the launch
    most = max(steps / p.sms, _most_steps(plan))
    on_chip = max(
        first + most * step + p.epilogue,
        p.cta_start + most * (p.smem_read + p.smem_fill) + p.epilogue,
        _serial(plan, step),
        p.cta_start + float((loads * ticks[:2, :2, PORT]).sum() + (outputs * written[:, PORT]).sum()) / p.sms,
        p.cta_start + float((loads * ticks[:2, :2, L2]).sum() + (outputs * written[:, L2]).sum()),
        first + float((loads * ticks[:2, :2, FABRIC]).sum()),
    )
    blocks = p.batch * p.k_steps * np.array([[p.tiles_m - 1, 1], [p.tiles_n - 1, 1]])
    read_ticks = 0.0 if p.warm else float((blocks * ticks[:2, :2, DRAM]).sum())
    dram_bytes = 0.0 if p.warm else float((blocks * size[:2, :2, HELD]).sum())
    cycles = on_chip / TICKS
    dram_s = read_ticks / TICKS / clock_hz

    # split-K: the kernel that reduces the partial tiles, bound by L2 in cycles or by DRAM in seconds
    reduction = reduction_cycles(gpu, plan, clock_hz, frozenset({"dram"}))
    whole = reduction_cycles(gpu, plan, clock_hz, frozenset())
    after_s = whole / clock_hz if whole > reduction else 0.0
    after = 0.0 if after_s else reduction
    l2_bytes = (
        float((loads * size[:2, :2, REQUESTED]).sum())
        + plan.shape.m * plan.shape.n * plan.shape.batch * plan.shape.out_bytes
    )
    if p.splits > 1:
        l2_bytes += float((outputs * size[PARTIAL, :, HELD]).sum())
        dram_bytes += 2 * float((outputs * size[PARTIAL, :, SPILLED]).sum())

    occupied = steps * step / TICKS + (after + after_s * gpu.clock.min) * gpu.sm.count
    energy = launch_energy(
        gpu,
        plan.operands.dtype,
        plan.shape.macs / plan.operands.gain,
        occupied,
        steps * plan.step.smem_bytes,
        l2_bytes,
        dram_bytes,
        plan.operands.gain > 1.0,
        activity,
    )
    cycles += after
    settled = run_clock(gpu, energy, cycles, gap_s + after_s, floor_s, run)
    settled = min(settled, clock_hz) if locked else settled
    return max(cycles / settled + after_s, dram_s + whole / clock_hz)


def _loads(plan: LaunchPlan) -> np.ndarray:
    """int64[operand A or B, edge]: loads of k-step slabs by all CTAs."""
    p = plan.launch
    per_tile = p.batch * p.k_steps
    return per_tile * np.array([[(p.tiles_m - 1) * p.tiles_n, p.tiles_n], [(p.tiles_n - 1) * p.tiles_m, p.tiles_m]])


def _outputs(plan: LaunchPlan) -> np.ndarray:
    """int64[edge]: tiles (with split-K partial ones) that all CTAs write."""
    p = plan.launch
    inner_m, inner_n = p.tiles_m - 1, p.tiles_n - 1
    return p.batch * p.splits * np.array([inner_m * inner_n, inner_m, inner_n, 1])


def _most_steps(plan: LaunchPlan) -> int:
    """k-steps that the busiest SM runs at least: its share of the CTAs, of the shortest ones."""
    p = plan.launch
    shortest = p.k_steps - (p.splits - 1) * p.steps_per_split
    return -(-p.ctas // p.sms) * shortest


def _serial(plan: LaunchPlan, step: int) -> float:
    """Ticks of the slot that runs the most CTAs, one k-step after the other."""
    p = plan.launch
    ctas = -(-p.ctas // min(p.sms * p.slots, p.ctas))
    shortest = p.k_steps - (p.splits - 1) * p.steps_per_split
    steps = ctas * shortest * (p.barrier + step)
    once = p.cta_start + p.latency_l2 + p.epilogue
    if p.persistent:
        return once + steps + (0 if p.epilogue_overlap else (ctas - 1) * p.epilogue)
    return ctas * once + steps
