"""Which hardware file describes the board that is measured."""

from __future__ import annotations

import re

from sparsesim.errors import UserError
from sparsesim.hardware import gpu_names, load_gpu
from sparsesim.measure.device import DeviceInfo

__all__ = ["identify", "matches"]

#: memory a driver reports is a little less than the data sheet's
MEMORY_BAND = (0.85, 1.10)
_NOISE = {"nvidia", "geforce", "tensor", "core", "gpu", "graphics", "generation"}


def _words(name: str) -> set[str]:
    """Words of a board's name, memory sizes in GB left out: ``NVIDIA A100-SXM4-80GB`` → {a100, sxm4}."""
    words = set(re.findall(r"[a-z0-9]+", name.lower())) - _NOISE
    return {word for word in words if not re.fullmatch(r"\d+gb?|hbm\w*", word)}


def matches(info: DeviceInfo) -> list[str]:
    """Packaged hardware files that may be this board, best first.

    Compute capability and SM count must be equal and the memory must fit; of those the ones that share most words
    with the driver's name for the board come first.
    """
    found = []
    for name in gpu_names():
        gpu = load_gpu(name)
        if gpu.hypothetical or gpu.compute_capability != info.compute_capability or gpu.sm.count != info.sms:
            continue
        if not MEMORY_BAND[0] <= info.memory_bytes / gpu.dram.bytes <= MEMORY_BAND[1]:
            continue
        shared = _words(info.name) & (_words(gpu.title) | set(name.split("_")))
        found.append((-len(shared), name))
    return [name for _, name in sorted(found)]


def identify(info: DeviceInfo, wanted: str | None = None) -> str:
    """The name for the `gpu` column: `wanted` (its SM count must agree), or the one packaged file that fits.

    Raises UserError where no file fits, or several do equally well.
    """
    if wanted is not None:
        gpu = load_gpu(wanted)
        if gpu.sm.count != info.sms or gpu.compute_capability != info.compute_capability:
            raise UserError(
                f"--gpu: expected a description of {info.name} ({info.sms} SMs, compute capability "
                f"{info.compute_capability}), found {gpu.name} ({gpu.sm.count} SMs, {gpu.compute_capability})"
            )
        return gpu.name
    found = matches(info)
    if not found:
        raise UserError(
            f"--gpu: expected the hardware file of {info.name} ({info.sms} SMs, compute capability "
            f"{info.compute_capability}), found none packaged; name one that describes it"
        )
    best = [name for name in found if len(_shared(info, name)) == len(_shared(info, found[0]))]
    if len(best) > 1:
        raise UserError(f"--gpu: expected one of {', '.join(best)} for {info.name}, found none given")
    return found[0]


def _shared(info: DeviceInfo, name: str) -> set[str]:
    return _words(info.name) & (_words(load_gpu(name).title) | set(name.split("_")))
