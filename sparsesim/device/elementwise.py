"""Kernels that only move memory: element-wise ops, copies, transposes.

A kernel takes its launch costs, the latency of the loads that depend on each other, and then its traffic. What it
reads was written by the one before it, so part of it is still in L2: under random replacement,
exp(-bytes / capacity) of it.
"""

from __future__ import annotations

import math

from sparsesim.hardware import GpuSpec

__all__ = ["latency_s", "launch_s", "stream_s"]


def launch_s(gpu: GpuSpec, graph: bool) -> float:
    """Ramp, drain and the gap to the next kernel [s]."""
    launch = gpu.launch
    return launch.ramp + launch.drain + (launch.graph_gap if graph else launch.stream_gap)


def latency_s(gpu: GpuSpec) -> float:
    """A load from DRAM, uncontended [s]."""
    return gpu.dram.latency + gpu.l2.latency_far / gpu.clock.boost


def stream_s(gpu: GpuSpec, read: float, write: float, efficiency: float, graph: bool, trips: int = 1) -> float:
    """Time of an element-wise kernel [s].

    Parameters
    ----------
    read, write : bytes; `read` is what the kernel before wrote
    efficiency : share of the best DRAM rate that such kernels reach
    trips : loads that depend on each other; a row reduction before the result makes two
    """
    capacity = gpu.l2.usable_bytes
    cached = math.exp(-(read + write) / capacity)
    dram = (read + write) * (1.0 - cached) / (gpu.dram.bytes_per_s * gpu.dram.achieved_fraction * efficiency)
    l2 = (read + write) / (gpu.l2.bytes_per_clk * gpu.clock.boost)
    return launch_s(gpu, graph) + trips * latency_s(gpu) + max(dram, l2)
