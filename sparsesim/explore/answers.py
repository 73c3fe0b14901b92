"""What the page asks for: exact answers of the event loop, and quick ones that say that they are estimates.

The curve and the map are asked for twice. `estimate` gives every point at once from the closed form with which the
libraries rank their kernels (`kernels.estimate`): no event loop, no power limit. `point` then gives one exact point
at a time, so that a slider that moves on leaves no long work behind. Of the losses, `alone` idealises each cause by
itself, a few launches; `losses` is the full attribution.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sparsesim.attribution import attribute_gemm
from sparsesim.attribution.causes import CAUSES, bit, cause
from sparsesim.attribution.gemm import MIN_WAVES, STEP_BUDGET
from sparsesim.attribution.launches import LaunchTimes
from sparsesim.attribution.result import ranked
from sparsesim.device.simulate import Device
from sparsesim.errors import UserError
from sparsesim.explore.state import MAX_SIDE, Board, State, sliders
from sparsesim.hardware import gpu_names, load_gpu
from sparsesim.kernels import splits
from sparsesim.kernels.estimate import estimate_shapes
from sparsesim.lowering import NoKernelError, shape_of
from sparsesim.measured import MeasuredRow
from sparsesim.protocol import L2_STATES, TIMINGS, interval_s
from sparsesim.scenarios.breakeven import SIDES, TOKENS
from sparsesim.simulator import Simulator
from sparsesim.sparsity import Pattern
from sparsesim.stacks import get_stack, stack_names
from sparsesim.workload import DTYPES, Gemm, workload_names

__all__ = ["CURVE", "PATTERNS", "Explorer"]

#: n of the speedup curve
CURVE = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
#: patterns offered; any other can stand in the address
PATTERNS = ("2:4", "1:4", "1:2", "4:8", "2:8", "64:2:8", "6:8", "dense")
#: simulators (one for each changed GPU and stack) and launches kept
MAX_SIMULATORS = 16
MAX_LAUNCHES = 20_000


class Explorer:
    """Answers about states; equal launches are simulated once. Its methods can be called from several threads.

    Parameters
    ----------
    measured : sequence of MeasuredRow
        Drawn beside the model where they are of the state's GPU, type, pattern and protocol.
    boards : sequence of Board
        Offered beside the packaged GPUs.
    """

    def __init__(self, measured: Sequence[MeasuredRow] = (), boards: Sequence[Board] = ()) -> None:
        self.boards = {board.gpu.name: board for board in boards}
        dense = {row.pair_key: row for row in measured if not row.is_sparse}
        self._pairs = [(dense[row.pair_key], row) for row in measured if row.is_sparse and row.pair_key in dense]
        self._memory: dict[tuple[object, ...], Any] = {}
        self._simulators: OrderedDict[tuple[object, ...], Simulator] = OrderedDict()
        self._lock = threading.Lock()

    def choices(self) -> dict[str, Any]:
        """What the page's lists offer."""
        return {
            "gpu": [
                *({"value": name, "text": load_gpu(name).title} for name in gpu_names()),
                *({"value": name, "text": board.gpu.title} for name, board in self.boards.items()),
            ],
            "workload": list(workload_names()),
            "dtype": list(DTYPES),
            "pattern": list(PATTERNS),
            "stack": list(stack_names()),
            "timing": list(TIMINGS),
            "l2": list(L2_STATES),
            "curve": list(CURVE),
            "tokens": list(TOKENS),
            "sides": list(SIDES),
            "causes": {item.id: item.meaning for item in CAUSES},
        }

    def answer(self, state: State) -> dict[str, Any]:
        """The op that is drawn, exactly, with its counters; sliders, command and measured points."""
        op = state.scenario.workload.ops[state.op]
        result = self._simulator(state).gemm(op, state.scenario.protocol)
        return {
            "exact": True,
            "gpu": state.gpu.title,
            "changed": list(state.sets),
            "command": state.command(),
            "sliders": [slider.to_dict() for slider in sliders(state)],
            "ops": [] if state.scenario.single else [_describe(item) for item in state.scenario.workload.ops],
            "op": _describe(op),
            "result": result.to_dict(),
            "measured": self._measured(state, op),
        }

    def point(self, state: State, m: int, n: int, k: int) -> dict[str, Any]:
        """The op with other sides, exactly."""
        op = _with_sides(state.scenario.workload.ops[state.op], m, n, k)
        try:
            result = self._simulator(state).gemm(op, state.scenario.protocol)
        except NoKernelError as error:
            return {"exact": True, "m": m, "n": n, "k": k, "error": str(error)}
        return {
            "exact": True, "m": m, "n": n, "k": k, "time_us": result.time_us, "dense_time_us": result.dense_time_us,
            "speedup": result.speedup, "path": result.path, "reason": result.reason, "bound_by": result.bound_by,
        }  # fmt: skip

    def row(self, state: State, index: int) -> dict[str, Any]:
        """One op of the workload, exactly."""
        ops = state.scenario.workload.ops
        if not 0 <= index < len(ops):
            raise UserError(f"row: expected an op from 0 to {len(ops) - 1}, found {index}")
        result = self._simulator(state).gemm(ops[index], state.scenario.protocol)
        return {
            "exact": True, **_describe(ops[index]), "time_us": result.time_us, "dense_time_us": result.dense_time_us,
            "speedup": result.speedup, "path": result.path, "reason": result.reason,
        }  # fmt: skip

    def estimate(self, state: State) -> dict[str, Any]:
        """Curve and map from the closed form: an estimate, and labelled so."""
        op = state.scenario.workload.ops[state.op]
        simulator = self._simulator(state)
        curve = [_with_sides(op, op.m, n, op.k) for n in CURVE]
        squares = [_with_sides(op, side, n, side) for side in SIDES for n in TOKENS]
        found = _estimated(simulator, state, [*curve, *squares])
        rows = found[len(curve) :]
        return {
            "exact": False,
            "label": "estimate: closed form; no event loop, power limit, or calls beside the product",
            "curve": [{"n": n, "speedup": speedup} for n, speedup in zip(CURVE, found, strict=False)],
            "map": [rows[i * len(TOKENS) : (i + 1) * len(TOKENS)] for i in range(len(SIDES))],
        }

    def alone(self, state: State) -> dict[str, Any]:
        """Speedup with each cause idealised by itself, dense and sparse: not shares, and not to be added."""
        op, protocol = state.scenario.workload.ops[state.op], state.scenario.protocol
        simulator = self._simulator(state)
        result = simulator.gemm(op, protocol)
        about = {"exact": False, "speedup": result.speedup, "nominal": result.nominal_speedup, "path": result.path}
        label = "each cause idealised alone: parts overlap, not to be added; shares follow"
        nothing: dict[str, Any] = {**about, "label": "the full shares follow", "causes": []}
        native = simulator.stack.decide(op, state.gpu).native
        if result.path != "sparse" or native is None or simulator.stack.behaviour.emulated:
            return nothing
        device = Device(state.gpu, STEP_BUDGET, MIN_WAVES, memory=self._memory)
        call = simulator.stack.call(op, state.gpu)
        launch, out = result.launch, simulator.stack.output(op.dtype)
        operands = simulator.library.operands(call.op, native)
        sparse = LaunchTimes(device, launch.kernel, operands, shape_of(call.op, out), protocol, launch.seconds, call)
        launch, out = result.dense_launch, get_stack(simulator.stack.dense_stack).output(op.dtype)
        operands, call_dense = simulator.library.operands(op, None), simulator.dense_call(op)
        dense = LaunchTimes(device, launch.kernel, operands, shape_of(op, out), protocol, launch.seconds, call_dense)
        if not math.isclose(dense.seconds(0) / sparse.seconds(0), result.speedup, rel_tol=1e-9):
            return nothing  # the stack runs it in a way that only the full attribution knows
        found = []
        for item in CAUSES:
            mask = bit(item.id)
            gain = math.log(dense.seconds(mask) / sparse.seconds(mask)) - math.log(result.speedup)
            if gain:
                found.append({"id": item.id, "meaning": item.meaning, "ln": gain})
        found.sort(key=lambda row: -abs(float(row["ln"])))  # type: ignore[arg-type]
        return {**about, "label": label, "causes": found}

    def losses(self, state: State) -> dict[str, Any]:
        """The full attribution: Shapley shares that sum to the gap."""
        op = state.scenario.workload.ops[state.op]
        found = attribute_gemm(self._simulator(state), op, state.scenario.protocol)
        return {
            "exact": True, "speedup": found.speedup, "nominal": found.nominal_speedup, "path": found.path,
            "label": "Shapley shares: they sum to the gap",
            "causes": [
                {"id": name, "meaning": cause(name).meaning, "ln": share} for name, share in ranked(found.shares)
                if share
            ],
        }  # fmt: skip

    def _simulator(self, state: State) -> Simulator:
        key = state.scenario.machine
        with self._lock:
            if len(self._memory) > MAX_LAUNCHES:
                self._memory = {}
                self._simulators.clear()
            if key not in self._simulators:
                self._simulators[key] = Simulator(state.gpu, state.scenario.stack, memory=self._memory)
                if len(self._simulators) > MAX_SIMULATORS:
                    self._simulators.popitem(last=False)
            self._simulators.move_to_end(key)
            return self._simulators[key]

    def _measured(self, state: State, op: Gemm) -> dict[str, list[dict[str, Any]]]:
        """Measured pairs of the packaged GPU: those of this weight for the curve, all for the map."""
        protocol = state.scenario.protocol
        asked = (state.base.gpu.name, op.dtype, op.pattern, protocol.timing, protocol.l2, protocol.clock)
        points = [
            {"m": sparse.m, "n": sparse.n, "k": sparse.k, "speedup": dense.time_us / sparse.time_us,
             "source": sparse.source}
            for dense, sparse in self._pairs
            if (sparse.gpu, sparse.dtype, sparse.pattern, sparse.timing, sparse.l2, sparse.clock) == asked
            and sparse.batch == op.batch
        ]  # fmt: skip
        return {"curve": [point for point in points if (point["m"], point["k"]) == (op.m, op.k)], "map": points}


def _describe(op: Gemm) -> dict[str, Any]:
    return {
        "name": op.name, "m": op.m, "n": op.n, "k": op.k, "batch": op.batch, "count": op.count, "dtype": op.dtype,
        "pattern": op.pattern,
    }  # fmt: skip


def _with_sides(op: Gemm, m: int, n: int, k: int) -> Gemm:
    for name, side in (("m", m), ("n", n), ("k", k)):
        if not 1 <= side <= MAX_SIDE:
            raise UserError(f"{name}: expected an integer from 1 to {MAX_SIDE}, found {side}")
    return replace(op, m=m, n=n, k=k)


def _estimated(simulator: Simulator, state: State, ops: Sequence[Gemm]) -> list[float | None]:
    """Dense over sparse time of the kernels that the closed form ranks first, per op; None without a kernel.

    `ops` differ in their sides alone.
    """
    natives = [simulator.stack.decide(op, state.gpu).native for op in ops]
    out = get_stack(simulator.stack.dense_stack).output(ops[0].dtype)
    dense = _estimated_s(simulator, state, ops, None, out)
    if dense is None:
        return [None] * len(ops)
    found: list[float | None] = [1.0] * len(ops)
    for native in dict.fromkeys(native for native in natives if native is not None):
        places = [place for place, its in enumerate(natives) if its == native]
        out = simulator.stack.output(ops[0].dtype)
        sparse = _estimated_s(simulator, state, [ops[place] for place in places], native, out)
        for place, seconds in zip(places, sparse or (), strict=False):
            found[place] = dense[place] / seconds
    return found


def _estimated_s(
    simulator: Simulator, state: State, ops: Sequence[Gemm], native: Pattern | None, out_bytes: float
) -> list[float] | None:
    """Seconds of each of `ops` on its fastest kernel; None if the library has none."""
    gpu, protocol = state.gpu, state.scenario.protocol
    clock = protocol.locked_hz or gpu.clock.max
    operands = simulator.library.operands(ops[0], native)
    try:
        candidates = simulator.library.candidates(operands, native is not None)
    except NoKernelError:
        return None
    if not candidates:
        return None
    batch = ops[0].batch
    shapes = np.array([(op.m, op.n, op.k) for op in ops])
    m, n, k = shapes.T
    moved = operands.bytes_per_element * batch * k * (m * operands.kept + n)
    warm = protocol.l2 == "warm"
    in_l2 = (moved + batch * m * n * out_bytes <= gpu.l2.usable_bytes) & warm
    fastest = np.full(len(ops), np.inf)
    reduced = np.zeros(len(ops), dtype=bool)
    reduction = gpu.launch.ramp + gpu.launch.drain + gpu.launch.stream_gap
    for candidate in candidates:
        tried = {depth: splits(candidate.kernel, operands.dtype, depth) for depth in set(k.tolist())}
        for split in sorted({split for options in tried.values() for split in options}):
            kernel = candidate.kernel.with_split(split)
            cycles = estimate_shapes(
                gpu, kernel, candidate.step, candidate.slots, shapes, batch, clock, out_bytes, in_l2
            )
            seconds = cycles / clock + (reduction if split > 1 else 0.0)
            offered = np.array([split in tried[depth] for depth in k.tolist()])
            better = offered & (seconds < fastest)
            fastest[better] = seconds[better]
            reduced[better] = split > 1
    busy = fastest - np.where(reduced, reduction, 0.0)
    sparse = candidates[0].kernel.sparse
    return [
        interval_s(gpu, protocol.timing, float(s), 2 if two else 1, sparse)[0]
        for s, two in zip(busy, reduced, strict=True)
    ]
