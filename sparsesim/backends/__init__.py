"""Live GPUs behind the interface of `sparsesim.measure`: PyTorch for the kernels, NVML for the sensors.

As thin as it can be: it enqueues, reads and translates errors. What is repeated, averaged or refused is decided in
`sparsesim.measure`. Everything is imported when a device is opened, so that the package needs neither library.
"""

from sparsesim.backends.find import open_device

__all__ = ["open_device"]
