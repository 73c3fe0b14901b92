"""Losses of a sparse run in the words of practitioners' reports.

What a stack adds is additive, so its time is what the call takes less without it: host time, plans, added launches,
padded columns, a kernel that a search would not have taken. The rest are times of the attribution's causes.
"""

from __future__ import annotations

from dataclasses import replace

from sparsesim.attribution.gemm import Attributor
from sparsesim.lowering import NoKernelError
from sparsesim.overheads import call_s
from sparsesim.protocol import Protocol
from sparsesim.simulator import Simulator
from sparsesim.stacks import Call
from sparsesim.workload import Gemm

__all__ = ["FROM_CAUSES", "call_losses", "losses_us"]

#: loss → causes of the attribution whose time it is
FROM_CAUSES = {
    "tile-waste": ("waves", "padding", "residency"),
    "memory-bound": ("dram",),
    "power": ("power",),
}
#: less than this [µs] is rounding
LEAST_US = 1e-6


def call_losses(simulator: Simulator, op: Gemm, protocol: Protocol) -> dict[str, float]:
    """Time [µs] that each thing which the stack itself brings about takes in a sparse call of `op`."""
    native = simulator.stack.decide(op, simulator.gpu).native
    if native is None or simulator.stack.behaviour.emulated:
        return {}
    gpu, timing = simulator.gpu, protocol.timing
    call = simulator.stack.call(op, gpu)
    whole, launch = simulator.time_sparse(op, native, protocol)

    def taken(of: Call) -> float:
        return call_s(gpu, timing, launch.seconds, launch.launches, launch.kernel.sparse, of)

    out: dict[str, float] = {}
    if call.host_s or call.plan_s:
        out["host-plan"] = whole - taken(replace(call, host_s=0.0, plan_s=0.0))
    for loss in dict.fromkeys(item.loss for item in call.added):
        kept = tuple(item for item in call.added if item.loss != loss)
        out[loss] = whole - taken(replace(call, added=kept))
    if call.op != call.plain:
        out["pad-n"] = launch.seconds - _product(simulator, call.plain, call, protocol, launch.seconds)
    if call.loss is not None:
        own = replace(call, policy="search", kernels=None)
        gained = launch.seconds - _product(simulator, call.op, own, protocol, launch.seconds)
        out[call.loss] = out.get(call.loss, 0.0) + gained
    return {name: 1e6 * seconds for name, seconds in out.items() if 1e6 * seconds > LEAST_US}


def _product(simulator: Simulator, op: Gemm, call: Call, protocol: Protocol, otherwise: float) -> float:
    """Device time [s] of the product of `call` on the shape of `op`; `otherwise` if nothing fits."""
    native = simulator.stack.decide(op, simulator.gpu).native
    if native is None:
        return otherwise
    try:
        return simulator.time_product(op, native, protocol, call)[1].seconds
    except NoKernelError:
        return otherwise


def losses_us(attributor: Attributor, op: Gemm, protocol: Protocol) -> dict[str, float]:
    """Lost time [µs] of a sparse call of `op` by loss; only losses with a time.

    ``l2-cliff`` is that of L2 and device memory where the operands do not fit in L2, and ``baseline`` what the dense
    run would gain from a search of its kernels.
    """
    simulator = attributor.simulator
    found = attributor.gemm(op, protocol)
    if found.path != "sparse":
        return {}
    out = call_losses(simulator, op, protocol)
    lost = found.lost_us
    for loss, causes in FROM_CAUSES.items():
        out[loss] = out.get(loss, 0.0) + sum(max(lost[name], 0.0) for name in causes)
    if op.bytes > simulator.gpu.l2.usable_bytes:
        out["l2-cliff"] = max(lost["l2"], 0.0) + max(lost["dram"], 0.0)
    dense_s = simulator.time_dense(op, protocol)[1].seconds
    out["baseline"] = 1e6 * (dense_s - simulator.time_dense(op, protocol, "search")[1].seconds)
    return {name: us for name, us in out.items() if us > LEAST_US}
