"""Losses of a sparse run in the words of practitioners' reports, cheaply.

What a stack adds is additive, so its time is what the call takes less without it: host time, plans, added launches,
padded columns, a kernel that a search would not have taken. What the device loses is taken from the attribution's
counterfactual runs of the sparse launch: of a Shapley value's orders only the first and the last, each cause idealised
alone and each left as the only one. That is two points of the mean over all orders, in few event-loop runs, and of the
sparse run's own time: a dense run that is as much bound by memory does not cancel it, as it does in the attribution.
"""

from __future__ import annotations

import math
from dataclasses import replace

from sparsesim.attribution.launches import LaunchTimes, masks_of
from sparsesim.device.build import DEVICE_IDEALS
from sparsesim.device.simulate import Device
from sparsesim.lowering import NoKernelError, shape_of
from sparsesim.overheads import call_s
from sparsesim.protocol import Protocol
from sparsesim.simulator import Simulator
from sparsesim.stacks import Call
from sparsesim.workload import Gemm

__all__ = ["FROM_CAUSES", "call_losses", "device_losses", "losses_of"]

#: loss → causes that are idealised together
FROM_CAUSES = {
    "tile-waste": ("waves", "padding", "residency"),
    "memory-bound": ("dram",),
    "l2-cliff": ("l2", "dram"),
    "power": ("power",),
}
#: shares [ln] smaller than this are below the resolution of the counterfactual runs, and of any report
LEAST = 1e-3
#: CTA k-steps and waves of a counterfactual run
STEP_BUDGET, WAVES = 12_000, 4


def call_losses(simulator: Simulator, op: Gemm, protocol: Protocol) -> dict[str, float]:
    """ln share of the time that each thing which the stack itself brings about takes in a sparse call of `op`."""
    native = simulator.stack.decide(op, simulator.gpu).native
    if native is None or simulator.stack.behaviour.emulated:
        return {}
    gpu, timing = simulator.gpu, protocol.timing
    call = simulator.stack.call(op, gpu)
    whole, launch = simulator.time_sparse(op, native, protocol)

    def taken(of: Call, busy_s: float = launch.seconds) -> float:
        return call_s(gpu, timing, busy_s, launch.launches, launch.kernel.sparse, of)

    without: dict[str, float] = {}
    if call.host_s or call.plan_s:
        without["host-plan"] = taken(replace(call, host_s=0.0, plan_s=0.0))
    for loss in dict.fromkeys(item.loss for item in call.added):
        without[loss] = taken(replace(call, added=tuple(item for item in call.added if item.loss != loss)))
    if call.op != call.plain:
        # all that padding costs: the wider product, and the copies, which pad-copy has alone
        bare = replace(call, op=call.plain, added=tuple(item for item in call.added if item.loss != "pad-copy"))
        without["pad-n"] = taken(bare, _product_s(simulator, call.plain, call, protocol, launch.seconds))
    if call.loss is not None:
        own = replace(call, policy="search", kernels=None)
        without[call.loss] = taken(call, _product_s(simulator, call.op, own, protocol, launch.seconds))
    return {name: share for name, less in without.items() if (share := math.log(whole / less)) > LEAST}


def _product_s(simulator: Simulator, op: Gemm, call: Call, protocol: Protocol, otherwise: float) -> float:
    """Device time [s] of the product of `call` on the shape of `op`; `otherwise` if nothing fits."""
    native = simulator.stack.decide(call.plain, simulator.gpu).native
    if native is None:
        return otherwise
    try:
        return simulator.time_product(op, native, protocol, call)[1].seconds
    except NoKernelError:
        return otherwise


def device_losses(simulator: Simulator, op: Gemm, protocol: Protocol, device: Device) -> dict[str, float]:
    """ln share by loss of the time of the sparse run of `op`; `device` runs the counterfactuals."""
    native = simulator.stack.decide(op, simulator.gpu).native
    if native is None or simulator.stack.behaviour.emulated:
        return {}
    call = simulator.stack.call(op, simulator.gpu)
    launch = simulator.time_sparse(op, native, protocol)[1]
    shape = shape_of(call.op, simulator.stack.output(op.dtype))
    operands = simulator.library.operands(call.op, native)
    run = LaunchTimes(device, launch.kernel, operands, shape, protocol, launch.seconds)
    everything = (*DEVICE_IDEALS, "power")

    def log_s(causes: tuple[str, ...]) -> float:
        return math.log(run.busy_s(masks_of(causes)))

    now, ideal = log_s(()), log_s(everything)
    out: dict[str, float] = {}
    for loss, causes in FROM_CAUSES.items():
        if loss == "l2-cliff" and op.bytes <= simulator.gpu.l2.usable_bytes:
            continue
        alone = now - log_s(causes)
        last = log_s(tuple(name for name in everything if name not in causes)) - ideal
        out[loss] = (alone + last) / 2
    return out


def losses_of(simulator: Simulator, op: Gemm, protocol: Protocol, device: Device | None = None) -> dict[str, float]:
    """ln share of a sparse call of `op` by loss, those above `LEAST`; ``baseline`` is what the dense run would gain
    from a search of its kernels."""
    device = device or Device(simulator.gpu, STEP_BUDGET, WAVES)
    out = device_losses(simulator, op, protocol, device)
    for name, share in call_losses(simulator, op, protocol).items():
        out[name] = max(out.get(name, 0.0), 0.0) + share
    dense_s = simulator.time_dense(op, protocol)[1].seconds
    out["baseline"] = math.log(dense_s / simulator.time_dense(op, protocol, "search")[1].seconds)
    return {name: share for name, share in out.items() if share > LEAST}
