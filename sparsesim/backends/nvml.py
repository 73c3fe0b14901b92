"""The board's sensors through NVML. Reads only."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from sparsesim.measure.device import Telemetry

__all__ = ["REASON_BITS", "Sensors", "reasons_of"]

#: bit of nvmlClocksEventReasons (nvml.h) → word of `sparsesim.measure.telemetry.REASONS`
REASON_BITS = {
    0x04: "power-cap",
    0x08: "hw-slowdown",
    0x20: "thermal",
    0x40: "hw-thermal",
    0x80: "power-brake",
}


def reasons_of(bits: int) -> frozenset[str]:
    """The words for a mask of nvmlClocksEventReasons; idle, application clocks and the like are no limits."""
    return frozenset(name for bit, name in REASON_BITS.items() if bits & bit)


class Sensors:
    """Sensors of the board with PyTorch's `uuid`; without nvidia-ml-py every reading is empty."""

    def __init__(self, uuid: str) -> None:
        self._nvml: Any = None
        self._board: Any = None
        if find_spec("pynvml") is None:
            return
        import pynvml

        try:
            pynvml.nvmlInit()
            self._board = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
            self._nvml = pynvml
        except pynvml.NVMLError:
            self._nvml = None

    def _value(self, name: str, *arguments: Any) -> Any:
        """What NVML's `name` returns for the board, or None where it cannot."""
        read = getattr(self._nvml, name, None)
        if read is None:
            return None
        try:
            return read(self._board, *arguments)
        except self._nvml.NVMLError:
            return None

    @property
    def driver(self) -> str:
        """Version of the driver, or an empty string."""
        if self._nvml is None:
            return ""
        try:
            version = self._nvml.nvmlSystemGetDriverVersion()
        except self._nvml.NVMLError:
            return ""
        return version.decode() if isinstance(version, bytes) else str(version)

    @property
    def power_limit_w(self) -> float | None:
        """Enforced power limit [W]."""
        if self._nvml is None:
            return None
        milliwatts = self._value("nvmlDeviceGetEnforcedPowerLimit")
        return None if milliwatts is None else milliwatts / 1e3

    @property
    def max_sm_mhz(self) -> float | None:
        """Highest SM clock [MHz]."""
        if self._nvml is None:
            return None
        value = self._value("nvmlDeviceGetMaxClockInfo", self._nvml.NVML_CLOCK_SM)
        return None if value is None else float(value)

    def read(self) -> Telemetry:
        """One reading."""
        if self._nvml is None:
            return Telemetry()
        nvml = self._nvml
        power = self._value("nvmlDeviceGetPowerUsage")
        bits = self._value("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:  # the name before NVML 12.2
            bits = self._value("nvmlDeviceGetCurrentClocksThrottleReasons")
        return Telemetry(
            sm_mhz=self._value("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            memory_mhz=self._value("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
            power_w=None if power is None else power / 1e3,
            temperature_c=self._value("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            reasons=reasons_of(bits or 0),
        )
