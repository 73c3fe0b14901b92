"""Board power and the clock that a sustained load settles at.

P(f) = idle + E_core · v(f)² · f / C' + E_dram / t,  v(f) = 1 − slope · (1 − f / boost)

with E_core the energy of one launch inside the chip at boost voltage (occupied SM-cycles, executed MACs,
shared-memory and L2 bytes), E_dram that of its DRAM bytes, and t = max(cycles / f + gap, floor) the launch
interval. The
clock is the highest that keeps P within the limit. Source: CMOS dynamic power ∝ f·V²; voltage taken linear in
f over the DVFS range. Static power is in `idle`.

The power controller is slow: a run of launches begins with `burst_ratio` times the limit and relaxes to the limit with
the time constant `burst_window` (slidesparse_h100_pcie: f16 at 490 TFLOP/s in launches below 0.6 ms, at 395 above 3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sparsesim.hardware import GpuSpec
from sparsesim.kernels.datapath import family_dtype

__all__ = ["Energy", "board_power", "launch_energy", "run_clock", "sustained_clock"]

STEPS = 60  # bisection to far below one clock step
BURST_ROUNDS = 3  # the mean limit and the length of a run depend on each other, weakly


@dataclass(frozen=True)
class Energy:
    """Energy of one launch [J]: inside the chip at boost voltage, and of DRAM."""

    core: float
    dram: float


def launch_energy(
    gpu: GpuSpec,
    dtype: str,
    macs: float,
    sm_cycles: float,
    smem_bytes: float,
    l2_bytes: float,
    dram_bytes: float,
    sparse: bool = False,
    activity: float = 1.0,
) -> Energy:
    """Energy of a launch; `macs` are executed ones, `activity` is 1 for random data (zeros: less)."""
    power = gpu.power
    per_mac = power.mac.get(family_dtype(dtype), 0.0) * (power.sparse_mac_ratio if sparse else 1.0)
    moved = per_mac * macs + power.smem_byte * smem_bytes + power.l2_byte * l2_bytes
    return Energy(power.sm_active * sm_cycles + moved * activity, power.dram_byte * dram_bytes)


def board_power(
    gpu: GpuSpec, energy: Energy, cycles: float, gap_s: float, clock_hz: float, floor_s: float = 0.0
) -> float:
    """Mean board power [W] of launches of `cycles` SM cycles at `clock_hz`, `gap_s` apart, no closer than `floor_s`."""
    volt = 1.0 - gpu.power.voltage_slope * (1.0 - clock_hz / gpu.clock.boost)
    return gpu.power.idle + (energy.core * volt * volt + energy.dram) / max(cycles / clock_hz + gap_s, floor_s)


def run_clock(
    gpu: GpuSpec, energy: Energy, cycles: float, gap_s: float, floor_s: float, run: tuple[int, int] | None
) -> float:
    """Clock [Hz] of a run, at the mean of the power that its timed launches may draw.

    `run` = (launches before the timed ones, timed launches), back to back; None = a load without end.
    """
    clock = sustained_clock(gpu, energy, cycles, gap_s, floor_s)
    excess, window = gpu.power.burst_ratio - 1.0, gpu.power.burst_window
    if run is None or excess == 0.0 or window == 0.0:
        return clock
    before, timed = run
    for _ in range(BURST_ROUNDS):
        interval = max(cycles / clock + gap_s, floor_s)
        begin, length = before * interval / window, timed * interval / window
        mean = math.exp(-begin) * -math.expm1(-length) / length
        previous = clock
        clock = sustained_clock(gpu, energy, cycles, gap_s, floor_s, gpu.power.limit * (1.0 + excess * mean))
        if clock == previous:
            break
    return clock


def sustained_clock(
    gpu: GpuSpec, energy: Energy, cycles: float, gap_s: float, floor_s: float = 0.0, limit_w: float | None = None
) -> float:
    """Highest clock [Hz] between `clock.min` and `clock.max` that keeps the board within `limit_w` (its own limit)."""
    low, high = gpu.clock.min, gpu.clock.max
    limit = gpu.power.limit if limit_w is None else limit_w
    if board_power(gpu, energy, cycles, gap_s, high, floor_s) <= limit:
        return high
    # `board_power` written out: a search for the best kernel of one GEMM comes here some ten thousand times
    idle, slope, boost = gpu.power.idle, gpu.power.voltage_slope, gpu.clock.boost
    core, dram = energy.core, energy.dram
    for _ in range(STEPS):
        middle = 0.5 * (low + high)
        if middle in (low, high):  # neighbours: further steps change nothing
            break
        volt = 1.0 - slope * (1.0 - middle / boost)
        interval = cycles / middle + gap_s
        if idle + (core * volt * volt + dram) / (interval if interval >= floor_s else floor_s) <= limit:
            low = middle
        else:
            high = middle
    return low
