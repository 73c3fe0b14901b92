"""The main job for one op: decide its path, run it and its dense baseline under one protocol."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import replace
from typing import Any

from sparsesim._version import __version__
from sparsesim.device.build import Shape
from sparsesim.device.simulate import Conditions, Device, LaunchResult
from sparsesim.errors import UserError, nearest
from sparsesim.hardware import GpuSpec
from sparsesim.kernels import Kernel, Operands
from sparsesim.lowering import FIRST, POLICIES, Library, NoKernelError, shape_of
from sparsesim.overheads import added_s, call_s, host_s, plan_s
from sparsesim.protocol import Protocol, launch_gaps, launch_run
from sparsesim.results import GemmResult, config_hash
from sparsesim.sparsity import Pattern
from sparsesim.stacks import Call, Decision, Stack, get_stack
from sparsesim.workload import Gemm

__all__ = ["Simulator", "conditions_of"]

#: a builder times its tactics with noise of about a per cent, and a tie stays with the dense one (assumed)
BUILDER_NOISE = 1.01


def conditions_of(gpu: GpuSpec, protocol: Protocol, sparse: bool) -> Conditions:
    """How a launch is run under `protocol`: L2 state, clock, and the idle time that the power balance sees."""
    gap, floor = launch_gaps(gpu, protocol.timing, sparse=sparse)
    return Conditions(
        l2=protocol.l2, locked_hz=protocol.locked_hz, gap_s=gap, floor_s=floor, run=launch_run(protocol.timing)
    )


class Simulator:
    """Simulates ops on one GPU; equal sub-problems are simulated once.

    Parameters
    ----------
    gpu : GpuSpec
    stack : Stack or its name; None = the stack with a sparse path on that GPU (cuSPARSELt)
    baseline : "heuristic" or "search", how the dense library picks its kernel; None = as its stack does
    memory : of the launches of other simulators, to share with them: a launch is known by its numbers, so that a
        parameter which leaves them alone costs no further run
    weight_bits : bits of a stored weight that the kernels unpack themselves, dense and sparse (w4a16: 4)

    Raises UserError for an unknown stack or baseline.
    """

    def __init__(
        self,
        gpu: GpuSpec,
        stack: Stack | str | None = None,
        baseline: str | None = None,
        memory: dict[tuple[object, ...], Any] | None = None,
        weight_bits: int | None = None,
    ) -> None:
        if baseline is not None and baseline not in POLICIES:
            raise UserError(
                f"baseline: expected one of {', '.join(POLICIES)}, found {baseline!r}{nearest(baseline, POLICIES)}"
            )
        self.gpu = gpu
        self.stack = stack if isinstance(stack, Stack) else get_stack(stack or "cusparselt")
        self.baseline = baseline or get_stack(self.stack.dense_stack).policy
        self.device = Device(gpu, memory=memory)
        self.library = Library(self.device, weight_bits)
        self._gpu_hash = config_hash(gpu)
        self._timed: MutableMapping[tuple[object, ...], tuple[float, LaunchResult]] = {}
        self._results: dict[tuple[Gemm, Protocol], GemmResult] = {}

    def remember(self, times: MutableMapping[tuple[object, ...], tuple[float, LaunchResult]]) -> None:
        """Keep timed sub-problems in `times`, which others can share, instead of in a dictionary of its own."""
        self._timed = times

    def time_dense(self, op: Gemm, protocol: Protocol, policy: str | None = None) -> tuple[float, LaunchResult]:
        """(seconds as the protocol reports, launch) of `op` on the dense path of the stack's framework."""
        dense = get_stack(self.stack.dense_stack)
        seconds, launch = self._time(op, None, dense.output(op.dtype), protocol, policy or self.baseline)
        call = self.dense_call(op)
        if call is not None:
            seconds = call_s(self.gpu, protocol.timing, launch.seconds, launch.launches, False, call)
        return seconds, launch

    def dense_call(self, op: Gemm) -> Call | None:
        """What the dense call of the stack's framework does beside its product; None if nothing."""
        if not self.stack.behaviour.dense_added or Pattern.parse(op.pattern).is_dense:
            return None
        added = self.stack.call(op, self.gpu).dense_added
        return Call(op, op, self.baseline, added) if added else None

    def time_sparse(
        self, op: Gemm, native: Pattern, protocol: Protocol, policy: str | None = None
    ) -> tuple[float, LaunchResult]:
        """(seconds as the protocol reports, launch of the product) of `op` on the sparse path, as `native`."""
        call = self.stack.call(op, self.gpu)
        if self.stack.behaviour.emulated:
            seconds, launch = self.time_dense(call.op, protocol, policy)
        else:
            seconds, launch = self._time(call.op, native, self.stack.output(op.dtype), protocol, policy, call)
        if not call.is_plain:
            args = self.gpu, protocol.timing, launch.seconds, launch.launches, launch.kernel.sparse
            seconds = call_s(*args, call)
        return seconds, launch

    def time_product(self, op: Gemm, native: Pattern, protocol: Protocol, call: Call) -> tuple[float, LaunchResult]:
        """(seconds, launch) of the product alone on the shape of `op`, its kernel picked as `call` says."""
        return self._time(op, native, self.stack.output(op.dtype), protocol, None, call)

    def sparse_launch(self, call: Call, operands: Operands, shape: Shape, conditions: Conditions) -> LaunchResult:
        """The product of `call`, on the kernel that its stack picks."""
        return self.library.run(operands, shape, conditions, call.policy, kernels=call.kernels)

    def gemm(self, op: Gemm, protocol: Protocol | None = None) -> GemmResult:
        """Simulate one op and its dense baseline.

        Raises
        ------
        NoKernelError
            The dtype has no dense kernel on this GPU.
        """
        protocol = protocol or Protocol()
        # a trace repeats few shapes under many names: equal ops share one result, and what it points to
        key = replace(op, name="op", family="", count=1), protocol
        if key not in self._results:
            self._results[key] = self._gemm(op, protocol)
        return replace(self._results[key], op=op)

    def _gemm(self, op: Gemm, protocol: Protocol) -> GemmResult:
        decision = self.stack.decide(op, self.gpu)
        try:
            dense_s, dense_launch = self.time_dense(op, protocol)
        except NoKernelError as err:
            raise NoKernelError(f"{op.name}: {err}") from None
        time_s, launch = dense_s, dense_launch
        if decision.native is not None:
            try:
                time_s, launch = self.time_sparse(op, decision.native, protocol)
            except NoKernelError as err:
                decision = Decision("dense", "kernel-unavailable", str(err))
            if self.stack.behaviour.builder and time_s * BUILDER_NOISE >= dense_s and decision.path == "sparse":
                found = f"{time_s * 1e6:.4g} µs sparse, {dense_s * 1e6:.4g} µs dense"
                text = f"the builder times both and keeps the faster: {found}"
                decision = Decision("dense", "not-faster", text, None, "dense")
                time_s, launch = dense_s, dense_launch
        return GemmResult(
            gpu=self.gpu.name,
            stack=self.stack.name,
            op=op,
            protocol=protocol,
            path=decision.path,
            reason=decision.reason,
            reason_text=decision.text,
            time_us=time_s * 1e6,
            dense_time_us=dense_s * 1e6,
            nominal_speedup=Pattern.parse(op.pattern).nominal_speedup,
            launch=launch,
            dense_launch=dense_launch,
            baseline=self.baseline,
            version=__version__,
            gpu_hash=self._gpu_hash,
            treatment=decision.treatment,
            overheads=self.overheads(op, protocol) if decision.path == "sparse" else {},
        )

    def overheads(self, op: Gemm, protocol: Protocol) -> dict[str, float]:
        """What a sparse call of `op` takes beside its product [µs], by the name of the loss."""
        call = self.stack.call(op, self.gpu)
        out: dict[str, float] = {}
        for item in call.added:
            out[item.loss] = out.get(item.loss, 0.0) + 1e6 * added_s(self.gpu, item, protocol.timing)
        host = host_s(self.gpu, call, protocol.timing) + plan_s(call, protocol.timing)
        if host:
            out["host-plan"] = 1e6 * host
        return out

    def time_kernel(
        self, op: Gemm, native: Pattern | None, kernel: Kernel, protocol: Protocol
    ) -> tuple[float, LaunchResult]:
        """(seconds, launch) of `op` on one given kernel."""
        out = (self.stack if native else get_stack(self.stack.dense_stack)).output(op.dtype)
        operands = self.library.operands(op, native)
        return self._settle(
            protocol,
            native is not None,
            lambda conditions: self.device.launch(kernel, operands, shape_of(op, out), conditions),
        )

    def _time(
        self,
        op: Gemm,
        native: Pattern | None,
        out: float,
        protocol: Protocol,
        policy: str | None,
        call: Call | None = None,
    ) -> tuple[float, LaunchResult]:
        operands = self.library.operands(op, native)
        shape = shape_of(op, out)
        policy = policy or (call.policy if call is not None else self.baseline)
        kernels = None if call is None or policy not in (call.policy, FIRST) else call.kernels
        key: tuple[object, ...] = (
            operands if op.dtype != "bf16" else replace(operands, dtype="f16"), shape, protocol, policy,
        )  # fmt: skip
        if kernels is not None:
            key = (*key, kernels)
        if key not in self._timed:
            self._timed[key] = self._settle(
                protocol,
                native is not None,
                lambda conditions: self.library.run(operands, shape, conditions, policy, kernels=kernels),
            )
        return self._timed[key]

    def _settle(
        self, protocol: Protocol, sparse: bool, launch_with: Callable[[Conditions], LaunchResult]
    ) -> tuple[float, LaunchResult]:
        """Run with the power balance of back-to-back launches: the idle time follows from the protocol."""
        clock = self.gpu.clock
        if protocol.locked_hz is not None and not clock.min <= protocol.locked_hz <= clock.max:
            raise UserError(
                f"clock: expected locked:<MHz> between {clock.min / 1e6:g} and {clock.max / 1e6:g} on {self.gpu.name}, "
                f"found {protocol.clock}"
            )
        launch = launch_with(conditions_of(self.gpu, protocol, sparse))
        return call_s(self.gpu, protocol.timing, launch.seconds, launch.launches, launch.kernel.sparse, None), launch
