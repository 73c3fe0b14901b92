"""Measuring kernels on a GPU: protocol, repeats, statistics, checks and files.

Nothing here knows CUDA. What a GPU has to offer is the small interface in `device`; `sparsesim.backends` implements
it for a live GPU, and the tests implement it with a device whose clock, noise and failures they set.
"""

from sparsesim.measure.cases import Case, cases_from_grid, cases_from_measured, cases_from_ops
from sparsesim.measure.device import (
    DeviceInfo,
    DeviceLostError,
    KernelError,
    MeasuringDevice,
    NoDeviceError,
    OutOfMemoryError,
    PreparedKernel,
    Telemetry,
    UnsupportedError,
)
from sparsesim.measure.session import Outcome, SessionReport, run_session
from sparsesim.measure.timing import Budget, Timed, time_kernel

__all__ = [
    "Budget",
    "Case",
    "DeviceInfo",
    "DeviceLostError",
    "KernelError",
    "MeasuringDevice",
    "NoDeviceError",
    "OutOfMemoryError",
    "Outcome",
    "PreparedKernel",
    "SessionReport",
    "Telemetry",
    "Timed",
    "UnsupportedError",
    "cases_from_grid",
    "cases_from_measured",
    "cases_from_ops",
    "run_session",
    "time_kernel",
]
