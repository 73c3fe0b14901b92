"""Why one GEMM is not as much faster as its pattern promises.

Value of a set U of idealised causes: v(U) = ln(T_dense(U) / T_sparse(U)), both runs on the kernels that
were chosen with nothing idealised. v(empty) = ln S is what the user gets, v(all) = ln S0 = ln(M/N). The share
of a cause is its Shapley value, so that shares sum to ln S0 - ln S whatever the order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from sparsesim.attribution.causes import CAUSES, OWNER_CLASS, bit, cause
from sparsesim.attribution.launches import LaunchTimes
from sparsesim.attribution.result import Attribution, Evidence, ranked
from sparsesim.attribution.shapley import shapley
from sparsesim.device.simulate import Conditions, Device, LaunchResult
from sparsesim.kernels import Kernel, Operands
from sparsesim.lowering import NoKernelError, shape_of
from sparsesim.protocol import Protocol
from sparsesim.results import GemmResult
from sparsesim.simulator import Simulator, conditions_of
from sparsesim.sparsity import Pattern
from sparsesim.stacks import Call, Stack, get_stack
from sparsesim.stacks.calls import as_weight
from sparsesim.stacks.rules import native_pattern
from sparsesim.workload import Gemm, GemmError

__all__ = ["STEP_BUDGET", "Attribution", "Attributor", "attribute_gemm"]

#: CTA k-steps simulated per counterfactual launch before extrapolating
STEP_BUDGET = 30_000
#: waves of a counterfactual launch that are always simulated
MIN_WAVES = 5
#: part of a launch's time that the simulation does not resolve (long launches are extrapolated): kernels this near are
#: level, and which of them a search finds is no cause
RESOLVED = 0.005
#: every set of causes
MASKS = np.arange(1 << len(CAUSES))
#: multiples tried when a shape is padded for a stack
MULTIPLES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Attributor:
    """Explains ops on one simulator; equal launches are simulated once.

    Parameters
    ----------
    simulator : Simulator
    step_budget : int
        CTA k-steps simulated per counterfactual launch before extrapolating.
    joint : groups of machine causes
        Of `dense_times` and `sparse_times` then only sets with all or none of a group mean anything, and no share does;
        for who needs those sets alone, and not 2^causes runs.
    """

    def __init__(
        self, simulator: Simulator, step_budget: int = STEP_BUDGET, joint: tuple[tuple[str, ...], ...] = ()
    ) -> None:
        self.simulator = simulator
        self._joint = joint
        # launches are known by their numbers and by this budget: simulators that share theirs share these, too
        self._device = Device(simulator.gpu, step_budget, MIN_WAVES, memory=simulator.device.memory)
        self._launches: dict[tuple[object, ...], tuple[LaunchTimes, np.ndarray]] = {}
        self._known: dict[tuple[Gemm, Protocol], Attribution] = {}

    @property
    def engine_runs(self) -> int:
        """Event-loop runs so far."""
        return self._device.runs

    def gemm(self, op: Gemm, protocol: Protocol | None = None) -> Attribution:
        """Attribute the lost speedup of `op`.

        Raises
        ------
        NoKernelError
            The dtype has no dense kernel on this GPU.
        """
        protocol = protocol or Protocol()
        plain = replace(op, name="op", count=1, family="")
        if (plain, protocol) not in self._known:
            self._known[plain, protocol] = self._gemm(plain, protocol)
        return replace(self._known[plain, protocol], op=op)

    @staticmethod
    def eligible_form(simulator: Simulator, op: Gemm) -> Gemm | None:
        """`op` with its sparse operand as A and its sides at the smallest multiples that the stack runs sparse.

        None if no size helps.
        """
        if op.sparse_operand != "A":
            op = replace(op, m=op.n, n=op.m, sparse_operand="A")
        padded = _padded(simulator.stack, op, simulator)
        return padded if simulator.stack.decide(padded, simulator.gpu).path == "sparse" else None

    def _gemm(self, op: Gemm, protocol: Protocol) -> Attribution:
        before = self.engine_runs
        result = self.simulator.gemm(op, protocol)
        dense, dense_times = self._dense(op, protocol, result)
        sparse, sparse_times = self._sparse(op, protocol, result, (dense, dense_times))
        for name, table, reported in (
            ("dense", dense_times, result.dense_time_us),
            ("sparse", sparse_times, result.time_us),
        ):
            if not math.isclose(table[0] * 1e6, reported, rel_tol=1e-9):
                raise AssertionError(f"{name} run takes {table[0] * 1e6} us, reported {reported} us")
        value = np.log(dense_times / sparse_times)
        if not math.isclose(value[-1], math.log(result.nominal_speedup), abs_tol=1e-9):
            raise AssertionError(f"ideal speedup {math.exp(value[-1])}, expected {result.nominal_speedup}")
        shares = dict(zip((item.id for item in CAUSES), shapley(value).tolist(), strict=True))
        evidence = tuple(_evidence(name, dense, sparse, dense_times, sparse_times) for name, _ in ranked(shares))
        return Attribution(
            op=op,
            gpu=result.gpu,
            stack=result.stack,
            protocol=protocol,
            path=result.path,
            reason=result.reason,
            reason_text=result.reason_text,
            time_us=result.time_us,
            dense_time_us=result.dense_time_us,
            nominal_speedup=result.nominal_speedup,
            shares=shares,
            evidence=evidence,
            accounting={"dense": _accounting(result.dense_launch), "sparse": _accounting(result.launch)},
            bottleneck=_bottleneck(op, result),
            residual=_residual(dense(0), sparse(0)),
            baseline=result.baseline,
            engine_runs=self.engine_runs - before,
            dense_times=dense_times,
            sparse_times=sparse_times,
        )

    def _times(
        self,
        op: Gemm,
        operands: Operands,
        out: float,
        protocol: Protocol,
        kernel: Kernel,
        reported_s: float,
        call: Call | None = None,
    ) -> tuple[LaunchTimes, np.ndarray]:
        """One launch of `op`, and its time for every set of causes, with what `call` adds."""
        shape = shape_of(op, out)
        key = (
            replace(operands, dtype="f16") if operands.dtype == "bf16" else operands,
            shape,
            kernel,
            protocol,
            call,
        )
        if key not in self._launches:
            launch = LaunchTimes(self._device, kernel, operands, shape, protocol, reported_s, call)
            self._launches[key] = launch, launch.table(self._joint)
        return self._launches[key]

    def _dense(
        self, op: Gemm, protocol: Protocol, result: GemmResult
    ) -> tuple[Callable[[int], LaunchTimes], np.ndarray]:
        """The dense baseline for a set of causes, and its time for every set."""
        out = get_stack(self.simulator.stack.dense_stack).output(op.dtype)
        operands = self.simulator.library.operands(op, None)
        launch = result.dense_launch
        call = self.simulator.dense_call(op)
        chosen, times = self._times(op, operands, out, protocol, launch.kernel, launch.seconds, call)
        if call is not None:  # with conversions idealised the framework's dense call is its product alone
            bare, alone = self._times(op, operands, out, protocol, launch.kernel, launch.seconds)
            times = np.where(MASKS & bit("conversion"), alone, times)
            return lambda mask: bare if mask & bit("conversion") else chosen, times
        if self.simulator.baseline == "search":
            return lambda mask: chosen, times
        best = self.simulator.time_dense(op, protocol, "search")[1]
        if best.kernel == launch.kernel or best.seconds >= launch.seconds * (1.0 - RESOLVED):
            return lambda mask: chosen, times
        searched, fastest = self._times(op, operands, out, protocol, best.kernel, best.seconds)
        return lambda mask: searched if mask & bit("tile") else chosen, np.where(MASKS & bit("tile"), fastest, times)

    def _sparse(
        self,
        op: Gemm,
        protocol: Protocol,
        result: GemmResult,
        dense: tuple[Callable[[int], LaunchTimes], np.ndarray],
    ) -> tuple[Callable[[int], LaunchTimes], np.ndarray]:
        """What runs on the sparse path for a set of causes, and its time for every set."""
        pattern = Pattern.parse(op.pattern)
        if pattern.is_dense:
            return dense
        simulator, gpu = self.simulator, self.simulator.gpu
        # what is unpacked in front of the dense datapath runs as a fallback does
        refused = result.path == "dense" or simulator.stack.behaviour.emulated
        plain = as_weight(op)
        call = simulator.stack.call(_padded(simulator.stack, plain, simulator) if refused else op, gpu)
        padded = call.op
        unconverted = replace(call, op=plain, plain=plain, added=())
        # a pattern that the datapath lacks altogether is given an ideal datapath with the fallback
        native = native_pattern(op, pattern, gpu) or pattern
        out = simulator.stack.output(op.dtype)
        conditions = conditions_of(gpu, protocol, True)
        kernel, reported_s = result.launch.kernel, result.launch.seconds
        if refused:
            operands = simulator.library.operands(padded, native)
            shape = shape_of(padded, out)
            try:
                launch = simulator.sparse_launch(call, operands, shape, conditions)
            except NoKernelError:  # no sparse tile fits: the dense one, fed with compressed operands
                launch = simulator.device.launch(replace(kernel, sparse=True), operands, shape, conditions)
            kernel, reported_s = launch.kernel, launch.seconds
        searched = self._searched(call, simulator.library.operands(padded, native), out, conditions, reported_s)
        if refused:
            searched = None

        def variant(converted: bool, as_pattern: Pattern, best: bool) -> tuple[LaunchTimes, np.ndarray]:
            adds, shape_op = (call, padded) if converted else (unconverted, plain)
            operands = simulator.library.operands(shape_op, as_pattern)
            chosen, full_s = (searched.kernel, searched.seconds) if best and searched else (kernel, reported_s)
            if shape_op != padded or as_pattern != native:
                full_s = simulator.device.launch(chosen, operands, shape_of(shape_op, out), conditions).seconds
            beside = None if adds.is_plain else adds
            return self._times(shape_op, operands, out, protocol, chosen, full_s, beside)

        outer = bit("pattern") | bit("fallback") | bit("conversion") | (bit("tile") if searched else 0)
        chosen: dict[int, LaunchTimes] = {}
        times = np.zeros(len(MASKS))
        for mask in np.unique(MASKS & outer).tolist():
            here = (MASKS & outer) == mask
            if refused and not mask & bit("fallback"):
                times[here] = dense[1][here]
                continue
            best = bool(mask & bit("tile"))
            chosen[mask], table = variant(
                not mask & bit("conversion"), pattern if mask & bit("pattern") else native, best
            )
            times[here] = table[here]
        return lambda mask: chosen[mask & outer] if mask & outer in chosen else dense[0](mask), times

    def _searched(
        self, call: Call, operands: Operands, out: float, conditions: Conditions, chosen_s: float
    ) -> LaunchResult | None:
        """The product of `call` on the best of the library's own kernels, if that is faster than `chosen_s`."""
        if call.policy == "search" and call.kernels is None:
            return None
        try:
            best = self.simulator.library.run(operands, shape_of(call.op, out), conditions, "search")
        except NoKernelError:
            return None
        return best if best.seconds < chosen_s * (1.0 - RESOLVED) else None


def attribute_gemm(
    simulator: Simulator, op: Gemm, protocol: Protocol | None = None, step_budget: int = STEP_BUDGET
) -> Attribution:
    """Attribute the lost speedup of one op; use an `Attributor` for several."""
    return Attributor(simulator, step_budget).gemm(op, protocol)


def _padded(stack: Stack, op: Gemm, simulator: Simulator) -> Gemm:
    """`op` with its sides at the smallest multiples that `stack` runs sparse; `op` if no size helps."""
    group = Pattern.parse(op.pattern).group
    units = {"m": MULTIPLES[-1], "k": math.lcm(MULTIPLES[-1], group), "n": MULTIPLES[-1]}

    def at(multiples: dict[str, int]) -> Gemm | None:
        try:
            sides = {name: -(-getattr(op, name) // unit) * unit for name, unit in multiples.items()}
            padded = replace(op, **sides)
        except GemmError:
            return None
        return padded if stack.decide(padded, simulator.gpu).path == "sparse" else None

    best = at(units)
    if best is None:
        return op
    for side in units:
        for unit in MULTIPLES:
            trial = {**units, side: math.lcm(unit, group) if side == "k" else unit}
            found = at(trial)
            if found is not None:
                units, best = trial, found
                break
    return best


def _residual(dense: LaunchTimes, sparse: LaunchTimes) -> float:
    return math.log(dense.error / sparse.error)


def _accounting(launch: LaunchResult) -> dict[str, float]:
    """Owners in per cent of the SM-cycles."""
    return {name: 100.0 * cycles / (launch.cycles * launch.sms) for name, cycles in launch.owners.items()}


def _bottleneck(op: Gemm, result: GemmResult) -> str:
    """Class of what binds the run: the stack if it refused the sparse path, else what `GemmResult.bound_by` says."""
    if result.path == "dense" and not Pattern.parse(op.pattern).is_dense:
        return "software"
    return OWNER_CLASS.get(result.bound_by, result.bound_by)


def _counters(launch: LaunchTimes, mask: int, seconds: float) -> dict[str, float]:
    """Counters of a run, with those that only the whole of it shows."""
    result = launch.result(mask)
    return {
        **result.counters,
        "overhead_share": math.fsum(
            cycles for owner, cycles in result.owners.items() if OWNER_CLASS[owner] == "occupancy"
        )
        / (result.cycles * result.sms),
        # CTAs that the busiest SM works on, over the mean
        "waves": 1.0 if mask & bit("waves") else math.ceil(result.ctas / result.sms) * result.sms / result.ctas,
        "ctas_per_sm": float(result.slots),
        "padding": 1.0 if mask & bit("padding") else result.counters["padded_macs"] / result.counters["macs"],
        "added_us": launch.added_s * 1e6,
        "launch_us": float(seconds - launch.busy_s(mask)) * 1e6,
        "clock_mhz": result.clock_hz / 1e6,
        "power_w": result.power_w,
    }


def _evidence(
    name: str,
    dense: Callable[[int], LaunchTimes],
    sparse: Callable[[int], LaunchTimes],
    dense_times: np.ndarray,
    sparse_times: np.ndarray,
) -> Evidence:
    alone, others = bit(name), (1 << len(CAUSES)) - 1 - bit(name)
    names = cause(name).counters

    def pairs(before: dict[str, float], after: dict[str, float]) -> dict[str, tuple[float, float]]:
        return {counter: (before[counter], after[counter]) for counter in names}

    return Evidence(
        cause=name,
        dense_us=(float(dense_times[0]) * 1e6, float(dense_times[alone]) * 1e6),
        sparse_us=(float(sparse_times[0]) * 1e6, float(sparse_times[alone]) * 1e6),
        speedup=(float(dense_times[0] / sparse_times[0]), float(dense_times[alone] / sparse_times[alone])),
        speedup_others_ideal=float(dense_times[others] / sparse_times[others]),
        dense_counters=pairs(
            _counters(dense(0), 0, dense_times[0]), _counters(dense(alone), alone, dense_times[alone])
        ),
        sparse_counters=pairs(
            _counters(sparse(0), 0, sparse_times[0]), _counters(sparse(alone), alone, sparse_times[alone])
        ),
    )
