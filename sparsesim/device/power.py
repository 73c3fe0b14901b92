"""Board power and the clock that a sustained load settles at.

P(f) = idle + E_core · v(f)² · f / C' + E_dram / t,  v(f) = 1 − slope · (1 − f / boost)

with E_core the energy of one launch inside the chip at boost voltage (occupied SM-cycles, executed MACs,
shared-memory and L2 bytes), E_dram that of its DRAM bytes, and t = max(cycles / f + gap, floor) the launch
interval. The
clock is the highest that keeps P within the limit. Source: CMOS dynamic power ∝ f·V²; voltage taken linear in
f over the DVFS range. Static power is in `idle`.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparsesim.hardware import GpuSpec
from sparsesim.kernels.datapath import family_dtype

__all__ = ["Energy", "board_power", "launch_energy", "sustained_clock"]

STEPS = 60  # bisection to far below one clock step


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


def sustained_clock(gpu: GpuSpec, energy: Energy, cycles: float, gap_s: float, floor_s: float = 0.0) -> float:
    """Highest clock [Hz] between `clock.min` and `clock.max` that keeps the board within its limit."""
    low, high = gpu.clock.min, gpu.clock.max
    if board_power(gpu, energy, cycles, gap_s, high, floor_s) <= gpu.power.limit:
        return high
    for _ in range(STEPS):
        middle = 0.5 * (low + high)
        if board_power(gpu, energy, cycles, gap_s, middle, floor_s) <= gpu.power.limit:
            low = middle
        else:
            high = middle
    return low
