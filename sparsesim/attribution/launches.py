"""Times of one launch with every set of mechanisms idealised.

Sets are bit masks over `causes.CAUSES`. A launch only sees the machine causes; those that choose what is
launched are `gemm`'s. Engine runs are few: sets that lead to equal launch numbers share one (`Device`
remembers), so a cause that cannot matter is found exactly, not guessed.

With all device mechanisms idealised a launch takes ``macs / (gain * rate * SMs)`` cycles: the closed form is
used there (and wherever the engine gives the same time), and the engine agrees with it within 0.1 %.

Launch costs only add outside the engine: with them idealised the board's power balance still has the idle
time between launches, so that they do not lower the clock.

The engine's step budget is smaller here than in a simulation, which moves times by a fraction of a per cent.
So that what is explained is what was reported, the time above the ideal one is scaled:
``t = ideal + (run - ideal) * (reported - ideal) / (run of the empty set - ideal)``.
This leaves the ideal time, and causes that change nothing, untouched.
"""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from sparsesim.attribution.causes import CAUSES, MACHINE, bit
from sparsesim.device.build import DEVICE_IDEALS, Shape, inert
from sparsesim.device.simulate import Device, LaunchResult
from sparsesim.kernels import Kernel, Operands
from sparsesim.kernels.datapath import rate_key
from sparsesim.overheads import added_s, call_s
from sparsesim.protocol import Protocol
from sparsesim.simulator import conditions_of
from sparsesim.stacks import Call

__all__ = ["LaunchTimes", "ideal_cycles", "masks_of"]


def ideal_cycles(device: Device, operands: Operands, shape: Shape) -> float:
    """SM cycles of a launch that only the datapath at its nominal rate bounds."""
    gpu = device.gpu
    rate = gpu.tensor.macs_per_clk[rate_key(operands.dtype, operands.acc_dtype)]
    return shape.macs / (operands.gain * rate * gpu.sm.count)


def masks_of(names: tuple[str, ...]) -> int:
    """Bit mask of the causes called `names`."""
    return sum(bit(name) for name in names)


class LaunchTimes:
    """One launch under one protocol.

    Parameters
    ----------
    device : Device
        Runs the counterfactuals.
    kernel, operands, shape
        The launch; the kernel stays the same whatever is idealised.
    protocol : Protocol
    reported_s : float
        Device time of the launch with nothing idealised, as simulated in full [s].
    call : Call, optional
        Of the stack, whose added launches and host time come on top.
    """

    def __init__(
        self,
        device: Device,
        kernel: Kernel,
        operands: Operands,
        shape: Shape,
        protocol: Protocol,
        reported_s: float,
        call: Call | None = None,
    ) -> None:
        self.device = device
        self.call = call
        self.kernel = kernel
        self.operands = replace(operands, dtype="f16") if operands.dtype == "bf16" else operands
        self.shape = shape
        self.protocol = protocol
        self._cycles = ideal_cycles(device, operands, shape)
        self._ideal_s = self._cycles / (protocol.locked_hz or device.gpu.clock.max)
        self._conditions = conditions_of(device.gpu, protocol, kernel.sparse)
        idle = inert(device.gpu, kernel, operands, shape)
        #: causes that can change this launch; the others are known beforehand (`build.inert`)
        self._active = masks_of(tuple(name for name in MACHINE if name not in idle))
        self._results: dict[int, LaunchResult] = {}
        run_s = self.result(0).seconds
        self.error = reported_s / run_s
        self._scale = (reported_s - self._ideal_s) / (run_s - self._ideal_s) if run_s > self._ideal_s else 1.0

    def result(self, mask: int) -> LaunchResult:
        """The engine's run with the machine causes of `mask` idealised."""
        known = mask & self._active & ~bit("launch")
        if known not in self._results:
            ideal = frozenset(name for name in (*DEVICE_IDEALS, "power") if known & bit(name))
            self._results[known] = self.device.launch(self.kernel, self.operands, self.shape, self._conditions, ideal)
        return self._results[known]

    def busy_s(self, mask: int) -> float:
        """Device time [s] with the machine causes of `mask` idealised."""
        result = self.result(mask)
        ideal = self.result(mask | masks_of(DEVICE_IDEALS))
        run_s = self._cycles / result.clock_hz if result.cycles == ideal.cycles else result.seconds
        return self._ideal_s + (run_s - self._ideal_s) * self._scale

    @property
    def added_s(self) -> float:
        """Time [s] of the launches that the stack adds to the product."""
        added = () if self.call is None else self.call.added
        return math.fsum(added_s(self.device.gpu, item, self.protocol.timing) for item in added)

    def seconds(self, mask: int) -> float:
        """Time that the protocol reports [s] with the machine causes of `mask` idealised."""
        launches = self.result(mask).launches
        free = bool(mask & bit("launch"))
        args = self.device.gpu, self.protocol.timing, self.busy_s(mask), launches, self.kernel.sparse
        return call_s(*args, self.call, free)

    def table(self, joint: tuple[tuple[str, ...], ...] = ()) -> np.ndarray:
        """`seconds` of all sets of all causes, float[2**causes]; only sets of those that can matter run.

        The causes of a group of `joint` are idealised together or not at all, which takes fewer runs: a set with some
        of them has the value of the set without.
        """
        own = np.arange(1 << len(CAUSES)) & self._active
        for group in joint:
            members = masks_of(group) & self._active
            own = np.where((own & members) == members, own, own & ~members)
        masks = np.unique(own).tolist()
        values = np.zeros(len(own))
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # the event loop lets other threads run
            values[masks] = list(pool.map(self.seconds, masks))
        return values[own]
