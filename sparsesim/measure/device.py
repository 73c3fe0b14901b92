"""What measuring needs of a GPU: a host clock, events, launches, graphs, an L2 flush, and the board's sensors.

Everything that decides how a time is taken is above this interface, so that it can be tested without a GPU. An
implementation enqueues and reads; it never repeats, averages, or changes a setting of the board.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from sparsesim.measure.cases import Case

__all__ = [
    "DeviceInfo",
    "DeviceLostError",
    "Graph",
    "KernelError",
    "MeasureError",
    "MeasuringDevice",
    "NoDeviceError",
    "OutOfMemoryError",
    "PreparedKernel",
    "Telemetry",
    "UnsupportedError",
]


class MeasureError(Exception):
    """A case could not be measured; the message is one line."""


class UnsupportedError(MeasureError):
    """The library has no kernel for this shape, type or pattern on this GPU."""


class OutOfMemoryError(MeasureError):
    """The operands do not fit in the device's free memory."""


class KernelError(MeasureError):
    """The library or the kernel reported an error; the device goes on working."""


class DeviceLostError(MeasureError):
    """The device stopped answering: nothing more can be measured in this process."""


class NoDeviceError(Exception):
    """There is no GPU to measure on; the message says what is missing and how to get it."""


@dataclass(frozen=True)
class DeviceInfo:
    """The board and the software that a time belongs to.

    `libraries` maps a library to its version; `power_limit_w` and `max_sm_mhz` are None where they cannot be read.
    """

    name: str
    uuid: str
    compute_capability: str
    sms: int
    memory_bytes: int
    l2_bytes: int
    driver: str
    cuda: str
    libraries: Mapping[str, str] = field(default_factory=dict)
    power_limit_w: float | None = None
    max_sm_mhz: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @property
    def source(self) -> str:
        """The `source` of measured rows taken on this board: equal for all rows of one set-up."""
        torch = self.libraries.get("torch")
        return f"sparsesim measure, {self.name}, driver {self.driver}, CUDA {self.cuda}" + (
            f", torch {torch}" if torch else ""
        )


@dataclass(frozen=True)
class Telemetry:
    """One reading of the board: SM and memory clock [MHz], power [W], temperature [°C], why it holds back.

    `reasons` holds the words of `sparsesim.measure.telemetry.REASONS`; a sensor that the board lacks is None.
    """

    sm_mhz: float | None = None
    memory_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    reasons: frozenset[str] = frozenset()


class Graph(Protocol):
    """A captured sequence of launches."""

    def replay(self) -> None:
        """Enqueue the whole sequence."""


class PreparedKernel(Protocol):
    """Operands of one case on the device, in one or more copies, and the library call that multiplies them.

    label : the library and how its kernel was picked, as the `library` column holds it
    copies : sets of operands
    """

    @property
    def label(self) -> str: ...

    @property
    def copies(self) -> int: ...

    def launch(self, copy: int) -> None:
        """Enqueue one call on operand set `copy`; raises `KernelError` or `DeviceLostError`."""

    def relative_error(self) -> float:
        """‖D − R‖ / ‖R‖ (Frobenius) of a call against R, the product in float32 of the values that the operands
        hold; for R = 0, ‖D‖. Not a number or infinite if D is. Raises as `launch`."""

    def release(self) -> None:
        """Free the operands; further calls do nothing."""


class MeasuringDevice(Protocol):
    """A GPU to measure on."""

    @property
    def info(self) -> DeviceInfo: ...

    def prepare(self, case: Case, library: str, data: str, copies: int, seed: int) -> PreparedKernel:
        """Operands with ``random`` or ``zeros`` data, and the kernel of `library`, searched where it can search.

        Raises UnsupportedError, OutOfMemoryError, KernelError or DeviceLostError.
        """

    def now(self) -> float:
        """Host clock [s]."""

    def synchronize(self) -> None:
        """Wait until the device has done all that was enqueued; raises KernelError or DeviceLostError."""

    def record(self) -> Any:
        """Enqueue an event and return it."""

    def elapsed_s(self, start: Any, end: Any) -> float:
        """Device time [s] between two events that have happened."""

    def flush_l2(self) -> None:
        """Enqueue writes that leave nothing of the operands in L2."""

    def capture(self, work: Callable[[], None]) -> Graph:
        """The launches of `work` as one graph; raises KernelError where they cannot be captured."""

    def telemetry(self) -> Telemetry:
        """A reading of the board's sensors; empty where there are none."""
