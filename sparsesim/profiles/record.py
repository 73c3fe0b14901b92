"""What a profile says of each kernel, whatever tool wrote it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from sparsesim.profiles.kernel_names import KernelName
from sparsesim.units import natural

__all__ = ["COUNTERS", "KernelShape", "Profile", "ProfiledKernel", "shape_of_text"]

#: counters that are compared with the model's, and what they are
COUNTERS = {
    "tensor_active": "share of the SM cycles in which the tensor pipe is active",
    "l2_hit_rate": "share of the L2 sectors that hit",
    "dram_bytes": "bytes read from and written to device memory",
    "occupancy": "achieved active warps over the most an SM holds",
}


@dataclass(frozen=True)
class KernelShape:
    """The product that a kernel computes: D[m×n] = A[m×k]·B[k×n], `batch` times. None where the profile is silent."""

    m: int
    n: int
    k: int
    batch: int = 1
    dtype: str | None = None
    pattern: str | None = None


@dataclass(frozen=True)
class ProfiledKernel:
    """One launch (or, in a summary, the median of several).

    time_us : device time; None in a log, which has none
    counters : those of `COUNTERS` that were collected
    clock_hz : SM clock of the run, where the tool says it
    l2 : what the tool did to L2: ``cold`` if it flushed it, ``warm`` if launches repeat; None = not known
    timing : what the time includes, in the words of the measured schema
    where : file and line, event or row
    """

    name: str
    where: str
    parsed: KernelName | None
    time_us: float | None
    shape: KernelShape | None = None
    counters: dict[str, float] = field(default_factory=dict)
    clock_hz: float | None = None
    l2: str | None = None
    timing: str = "kernel"
    calls: int = 1


@dataclass(frozen=True)
class Profile:
    """Kernels of one file in the order of their launches; `device` is what the file says of the board, if it does."""

    path: str
    format: str
    kernels: tuple[ProfiledKernel, ...]
    device: dict[str, Any] | None = None


_NAMED = re.compile(r"\b([mnkb]|batch|dtype|pattern)\s*[=:]\s*(\d{1,3}(?::\d{1,3})+|\w+)", re.IGNORECASE)
_CROSS = re.compile(r"(?<![\dx×])(\d{1,7})\s*[x×]\s*(\d{1,7})\s*[x×]\s*(\d{1,7})(?![\dx×])")
_WORDS = re.compile(r"(?<![\w:])(bf16|f16|tf32|i8|e4m3|e2m1|dense|\d{1,2}:\d{1,2})(?!\w)")


def shape_of_text(text: str) -> KernelShape | None:
    """The shape that an NVTX range or a label names: ``m=4096 n=512 k=4096 dtype=f16 pattern=2:4``, in any order and
    with any separators, or ``4096x512x4096 f16 2:4``; None if it names none."""
    named = {key.lower(): value for key, value in _NAMED.findall(text)}
    if {"m", "n", "k"} <= named.keys():
        sizes = [named["m"], named["n"], named["k"], named.get("batch", named.get("b", "1"))]
        m, n, k, batch = (natural(size) for size in sizes)
        if m and n and k and batch:
            return KernelShape(m, n, k, batch, named.get("dtype"), named.get("pattern"))
        return None
    cross = _CROSS.search(text)
    if not cross or not all(int(size) for size in cross.groups()):
        return None
    words = _WORDS.findall(text)
    dtype = next((w for w in words if w != "dense" and ":" not in w), None)
    pattern = next((w for w in words if w == "dense" or ":" in w), None)
    return KernelShape(int(cross[1]), int(cross[2]), int(cross[3]), 1, dtype, pattern)
