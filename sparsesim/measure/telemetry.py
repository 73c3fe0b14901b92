"""Readings of the board during a run, and what they say about it: was the clock what the row claims?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparsesim.measure.device import Telemetry
from sparsesim.measure.statistics import median

__all__ = ["REASONS", "BoardState", "board_state"]

#: why a board runs below its highest clock → whether a row then counts as throttled. The power cap is the normal
#: state of a sustained load on random data; the row says so, but it is what the user gets.
REASONS = {
    "power-cap": False,
    "thermal": True,
    "hw-slowdown": True,
    "hw-thermal": True,
    "power-brake": True,
}
#: a locked clock that reads this far off [MHz] was not held
LOCK_TOLERANCE_MHZ = 20.0


@dataclass(frozen=True)
class BoardState:
    """Medians over a run's readings, the hottest temperature, and every reason that was seen.

    throttled : reasons that make the row's clock not what its protocol says, in words; empty if it was held
    """

    readings: int
    sm_mhz: float | None
    sm_mhz_low: float | None
    memory_mhz: float | None
    power_w: float | None
    temperature_c: float | None
    reasons: tuple[str, ...]
    throttled: tuple[str, ...]


def board_state(readings: Sequence[Telemetry], locked_mhz: float | None = None) -> BoardState:
    """What the readings of one run say; `locked_mhz` is the clock that the user says is locked."""
    clocks = [r.sm_mhz for r in readings if r.sm_mhz is not None]
    memory = [r.memory_mhz for r in readings if r.memory_mhz is not None]
    power = [r.power_w for r in readings if r.power_w is not None]
    heat = [r.temperature_c for r in readings if r.temperature_c is not None]
    reasons = tuple(name for name in REASONS if any(name in r.reasons for r in readings))
    throttled = [name for name in reasons if REASONS[name]]
    if locked_mhz is not None and clocks and abs(median(clocks) - locked_mhz) > LOCK_TOLERANCE_MHZ:
        throttled.append("clock-not-locked")
    return BoardState(
        readings=len(readings),
        sm_mhz=median(clocks) if clocks else None,
        sm_mhz_low=min(clocks) if clocks else None,
        memory_mhz=median(memory) if memory else None,
        power_w=median(power) if power else None,
        temperature_c=max(heat) if heat else None,
        reasons=reasons,
        throttled=tuple(throttled),
    )
