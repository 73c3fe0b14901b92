"""What a call of a stack takes beside its product: added launches, and time on the host.

The product is simulated; an added launch moves memory (`device.elementwise`); the host issues the launches of a call
one after the other, and what it needs beyond a plain call delays those that follow, or holds the GPU up where a plan
is serial.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparsesim.device.elementwise import launch_s, stream_s
from sparsesim.hardware import GpuSpec
from sparsesim.protocol import interval_s
from sparsesim.stacks.calls import Added, Call

__all__ = ["added_s", "call_s", "host_s", "plan_s"]


def added_s(gpu: GpuSpec, added: Added, timing: str, free_launch: bool = False) -> float:
    """Time [s] that one added launch takes in its stream; 0 under ``kernel``, which times the product alone."""
    if timing == "kernel":
        return 0.0
    graph = timing == "graph"
    whole = stream_s(gpu, added.read_bytes, added.write_bytes, added.efficiency, graph, added.trips)
    return whole - launch_s(gpu, graph) if free_launch else whole


def host_s(gpu: GpuSpec, call: Call, timing: str) -> float:
    """Host time [s] of a call beyond that of a dense one, without a serial plan."""
    each = {"stream": gpu.launch.host_call, "host": gpu.launch.host_call, "event": 0.0}.get(timing)
    if each is None:
        return 0.0
    return len(call.added) * each + call.host_s + (0.0 if call.serial else call.plan_s)


def plan_s(call: Call, timing: str) -> float:
    """Time [s] that the GPU waits for a serial plan."""
    return call.plan_s if call.serial and timing in ("stream", "host", "event") else 0.0


def call_s(
    gpu: GpuSpec,
    timing: str,
    busy_s: float,
    launches: int,
    sparse: bool,
    call: Call | None,
    free_launch: bool = False,
    dropped: Sequence[str] = (),
) -> float:
    """Time [s] that the protocol reports of a call whose product is busy for `busy_s` in `launches` kernels.

    Parameters
    ----------
    call : None for a plain product
    free_launch : launch costs of host and GPU idealised
    dropped : losses whose added launches are left out; ``*`` = all
    """
    product = interval_s(gpu, timing, busy_s, launches, sparse, free_launch)[0]
    if call is None or call.is_plain:
        return product
    kept = [item for item in call.added if "*" not in dropped and item.loss not in dropped]
    beside = sum(added_s(gpu, item, timing, free_launch) for item in kept)
    if free_launch:
        return product + beside
    floor = {"stream": gpu.launch.host_call, "host": gpu.launch.framework_call}.get(timing, 0.0)
    # added launches are issued inside the call
    host = floor + len(kept) * gpu.launch.host_call + call.host_s + (0.0 if call.serial else call.plan_s)
    if timing in ("stream", "host"):
        return max(product + beside, host) + plan_s(call, timing)
    # between the events of one call the GPU waits for the host
    waits = call.host_s + (0.0 if call.serial else call.plan_s) if timing == "event" else 0.0
    return product + beside + waits + plan_s(call, timing)
