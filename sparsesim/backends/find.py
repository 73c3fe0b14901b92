"""Opening the GPU to measure on, or saying in one line what is missing and how to get it."""

from __future__ import annotations

from importlib.util import find_spec

from sparsesim.measure.device import MeasuringDevice, NoDeviceError

__all__ = ["open_device"]

INSTALL = "pip install 'sparsesim[cuda]'"


def open_device(index: int = 0) -> MeasuringDevice:
    """The CUDA device `index` (as PyTorch counts them).

    Raises NoDeviceError: PyTorch is not installed, is built without CUDA, finds no driver or no such GPU.
    """
    if find_spec("torch") is None:
        raise NoDeviceError(
            f"no GPU to measure on: PyTorch is not installed; on a machine with an NVIDIA GPU: {INSTALL}"
        )
    import torch

    if torch.version.cuda is None:
        raise NoDeviceError(
            f"no GPU to measure on: PyTorch {torch.__version__} is built without CUDA; on a machine with an NVIDIA "
            "GPU install its CUDA build (pytorch.org/get-started)"
        )
    if not torch.cuda.is_available():
        raise NoDeviceError(
            f"no GPU to measure on: PyTorch {torch.__version__} (CUDA {torch.version.cuda}) finds no NVIDIA GPU or "
            "no driver for it; `nvidia-smi` must list one"
        )
    count = torch.cuda.device_count()
    if not 0 <= index < count:
        raise NoDeviceError(f"no GPU to measure on: expected --device between 0 and {count - 1}, found {index}")
    from sparsesim.backends.cuda import CudaDevice

    return CudaDevice(index)
