"""One design point → one row of numbers, by the same calls as ``simulate`` and ``gemm``.

A sub-problem is one op timed on one path: what a `Simulator` remembers under one key. `SharedTimes` stands in for that
memory and gives every sub-problem its content address, so that whoever hands out the points can pass on what is known
and collect what is new. `needs` says which sub-problems a point has, without running any.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from sparsesim.device.simulate import LaunchResult
from sparsesim.errors import UserError
from sparsesim.hardware import GpuSpec
from sparsesim.kernels import Kernel
from sparsesim.lowering import NoKernelError
from sparsesim.protocol import Protocol
from sparsesim.results import GemmResult
from sparsesim.runtime import run_workload
from sparsesim.simulator import Simulator
from sparsesim.sweep.address import digest, hardware_digest, model_version
from sparsesim.sweep.parameters import edited, value_at
from sparsesim.workload import Gemm, Workload

__all__ = ["OUTPUTS", "Context", "Outcome", "Point", "Task", "evaluate", "needs", "set_context"]

#: column → (type, unit, meaning) of what is simulated
OUTPUTS: dict[str, tuple[str, str, str]] = {
    "status": ("string", "", "ok, or failed: then error says why and the other numbers are missing"),
    "error": ("string", "", "why the point failed"),
    "gpu_digest": ("string", "", "content hash of the hardware description"),
    "time_us": ("float64", "us", "time of the workload (makespan) or of the GEMM, as the protocol reports it"),
    "dense_time_us": ("float64", "us", "the same of the dense baseline on the same hardware"),
    "speedup": ("float64", "", "dense_time_us / time_us"),
    "nominal_speedup": ("float64", "", "promised speedup"),
    "sparse_share": ("float64", "", "share of the kernel time on the sparse path"),
    "fallback_share": ("float64", "", "share of the FLOPs of sparse weights that ran on the dense path"),
    "fallback_reasons": ("string", "", "codes of the rules that refused, comma-separated"),
    "tensor_busy": ("float64", "", "share of the kernel time that the tensor cores work"),
    "dense_tensor_busy": ("float64", "", "the same of the dense baseline"),
    "host_bound": ("float64", "", "share of the makespan in which the device waits for the host"),
    "energy_j": ("float64", "J", "board power x kernel time, summed over the launches"),
    "dense_energy_j": ("float64", "J", "the same of the dense baseline"),
    "clock_mhz": ("float64", "MHz", "SM clock, mean over the kernel time"),
    "dense_clock_mhz": ("float64", "MHz", "the same of the dense baseline"),
    "dram_bytes": ("float64", "B", "read and written by all launches"),
    "bound_by": (
        "string",
        "",
        "what binds most of the time: the busiest server, occupancy or launch",
    ),
}

#: sub-problems that a worker keeps of one board; what it drops comes back with the tasks that need it
MOST_TIMES = 4000


@dataclass(frozen=True)
class Context:
    """What all points share: GPUs by name, proxies (weights by path), the model's version."""

    bases: Mapping[str, GpuSpec]
    proxies: Mapping[str, Mapping[str, float]]
    model: str = field(default_factory=model_version)


@dataclass(frozen=True)
class Point:
    """A design point, ready to be simulated: `changes` to the GPU `base`, and ops or the settings of one GEMM."""

    base: str
    changes: Mapping[str, Any]
    work: Workload | Gemm
    stack: str
    protocol: Protocol
    baseline: str | None = None
    streams: int = 1
    graph: bool = False
    repeats: int = 1

    @property
    def ops(self) -> tuple[Gemm, ...]:
        """The ops that are timed."""
        return (self.work,) if isinstance(self.work, Gemm) else self.work.ops

    @property
    def op_protocol(self) -> Protocol:
        """The protocol under which `run_workload` times each op."""
        if self.graph and isinstance(self.work, Workload):
            return Protocol("graph", self.protocol.l2, self.protocol.locked_hz)
        return self.protocol


@dataclass(frozen=True)
class Task:
    """A point to evaluate and what is already known: address → time and launch as `encode` writes them."""

    position: int
    point: Point
    known: Mapping[str, str] = field(default_factory=dict)
    model: str = ""


@dataclass(frozen=True)
class Outcome:
    """What became of a task: its numbers, and every sub-problem that had to be run for it.

    mismatch : the worker's own model where it is another one than the task's
    """

    position: int
    outputs: Mapping[str, Any]
    new: Mapping[str, str] = field(default_factory=dict)
    mismatch: str = ""


class _Needed(Exception):
    """A sub-problem that is asked for while planning."""

    def __init__(self, address: str) -> None:
        self.address = address


class SharedTimes(MutableMapping[tuple[object, ...], tuple[float, LaunchResult]]):
    """The times that a `Simulator` remembers, by content address.

    planning : nothing is known, and asking raises `_Needed`
    """

    def __init__(self, gpu: GpuSpec, stack: str, dense_stack: str, planning: bool = False) -> None:
        self.hardware = hardware_digest(gpu)
        self.stacks = (dense_stack, stack)
        self.planning = planning
        self.times: dict[str, tuple[float, LaunchResult]] = {}
        self.new: dict[str, str] = {}

    def address(self, key: tuple[object, ...]) -> str:
        """Content address: model, hardware, library, and all that the simulator tells apart."""
        operands = key[0]
        library = self.stacks[getattr(operands, "gain", 1.0) > 1.0]
        return digest(model_version(), self.hardware, library, *(repr(part) for part in key))

    def learn(self, known: Mapping[str, str]) -> None:
        """Take over what is known elsewhere, and forget what was new before."""
        self.new = {}
        self.times.update((address, decode(text)) for address, text in known.items() if address not in self.times)

    def __contains__(self, key: object) -> bool:
        assert isinstance(key, tuple)
        address = self.address(key)
        if self.planning:
            raise _Needed(address)
        return address in self.times

    def __getitem__(self, key: tuple[object, ...]) -> tuple[float, LaunchResult]:
        return self.times[self.address(key)]

    def __setitem__(self, key: tuple[object, ...], value: tuple[float, LaunchResult]) -> None:
        address = self.address(key)
        self.times[address] = value
        self.new[address] = encode(value)

    def __delitem__(self, key: tuple[object, ...]) -> None:
        raise TypeError("a time is never forgotten")

    def __iter__(self) -> Iterator[tuple[object, ...]]:
        raise TypeError("addresses cannot be turned back into keys")

    def __len__(self) -> int:
        return len(self.times)


def encode(value: tuple[float, LaunchResult]) -> str:
    """A timed launch as JSON; floats keep every bit."""
    seconds, launch = value
    # what takes no part in comparisons is a recording, which sweeps do not make
    compared = {item.name for item in fields(launch) if item.compare}
    data = {name: value for name, value in asdict(launch).items() if name in compared}
    return json.dumps([seconds, data], default=float)


def decode(text: str) -> tuple[float, LaunchResult]:
    """What `encode` wrote."""
    seconds, data = json.loads(text)
    stored: dict[str, Any] = data.pop("kernel")
    kernel: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in stored.items()}
    return seconds, LaunchResult(kernel=Kernel(**kernel), **data)


def _simulator(gpu: GpuSpec, point: Point, planning: bool = False) -> tuple[Simulator, SharedTimes]:
    simulator = Simulator(gpu, point.stack, point.baseline)
    times = SharedTimes(gpu, simulator.stack.name, simulator.stack.dense_stack, planning)
    simulator.remember(times)
    return simulator, times


class Planner:
    """Says which sub-problems points have; keeps the simulator of the last board."""

    def __init__(self) -> None:
        self._last: tuple[Any, Simulator | None] = (None, None)

    def needs(self, gpu: GpuSpec, point: Point) -> frozenset[str]:
        """Addresses of the point's sub-problems."""
        key = (gpu, point.stack, point.baseline)
        if self._last[0] != key:
            self._last = key, _simulator(gpu, point, planning=True)[0]
        simulator = self._last[1]
        assert simulator is not None
        return frozenset(needs(simulator, point.ops, point.op_protocol))


def needs(simulator: Simulator, ops: Sequence[Gemm], protocol: Protocol) -> Iterator[str]:
    """Addresses of the sub-problems of `ops`; the memory of `simulator` is a planning `SharedTimes`."""
    for op in ops:
        try:
            simulator.time_dense(op, protocol)
        except _Needed as needed:
            yield needed.address
        except NoKernelError:
            continue
        native = simulator.stack.decide(op, simulator.gpu).native
        if native is None:
            continue
        try:
            simulator.time_sparse(op, native, protocol)
        except _Needed as needed:
            yield needed.address
        except NoKernelError:
            continue


class _Worker(threading.local):
    """What a worker (a thread) keeps between points: the context, and the simulator of the last board."""

    context: Context | None = None
    board: tuple[Any, ...] | None = None
    simulator: Simulator
    times: SharedTimes
    gpu: GpuSpec


_worker = _Worker()
_shared: dict[str, Context] = {}


def set_context(context: Context) -> None:
    """Give this process the context of the tasks to come."""
    _shared[context.model] = context


def evaluate(task: Task) -> Outcome:
    """Simulate a point. What goes wrong with it is part of the outcome."""
    if task.model != model_version():
        return Outcome(task.position, {}, mismatch=model_version())
    context = _shared[task.model]
    point = task.point
    try:
        board = (id(context), point.base, repr(sorted(point.changes.items())), point.stack, point.baseline)
        if _worker.board != board or len(_worker.times) > MOST_TIMES:
            _worker.board = None
            _worker.gpu = edited(context.bases[point.base], point.changes)
            _worker.simulator, _worker.times = _simulator(_worker.gpu, point)
            _worker.board = board
        _worker.times.learn(task.known)
        outputs = _outputs(_worker.simulator, point)
        for name, weights in context.proxies.items():
            outputs[f"proxy_{name}"] = proxy(context.bases[point.base], _worker.gpu, weights)
        outputs["gpu_digest"] = _worker.times.hardware[:16]
        if odd := [name for name, value in outputs.items() if isinstance(value, float) and not math.isfinite(value)]:
            raise ArithmeticError(f"no finite number in {', '.join(odd)}")
    except (UserError, NoKernelError) as err:
        return failure(task.position, str(err))
    except Exception as err:  # one bad point must not end the sweep
        return failure(task.position, f"{type(err).__name__}: {err}")
    return Outcome(task.position, outputs, dict(_worker.times.new))


def failure(position: int, why: str) -> Outcome:
    """The outcome of a point that could not be simulated."""
    return Outcome(position, {"status": "failed", "error": why})


def proxy(base: GpuSpec, gpu: GpuSpec, weights: Mapping[str, float]) -> float:
    """Σ weight × (parameter / the same of `base`) / Σ weight: 1 for the board that the design started from.

    No area or energy, only what the file's weights say about it.
    """
    ratios = []
    for path, weight in weights.items():
        own, now = value_at(base, path), value_at(gpu, path)
        if not own:
            raise UserError(f"{base.name}: {path}: expected a value above 0 to compare with, found {own!r}")
        ratios.append(weight * now / own)
    return math.fsum(ratios) / math.fsum(weights.values())


def _outputs(simulator: Simulator, point: Point) -> dict[str, Any]:
    work = point.work
    if isinstance(work, Gemm):
        gemm = simulator.gemm(work, point.protocol)
        rows = [(gemm, 1, 2.0 * work.macs, gemm.time_us, gemm.dense_time_us)]
        total = {
            "time_us": gemm.time_us,
            "dense_time_us": gemm.dense_time_us,
            "speedup": gemm.speedup,
            "nominal_speedup": gemm.nominal_speedup,
            "host_bound": None,
        }
    else:
        result = run_workload(work, simulator, point.protocol, point.streams, point.graph, point.repeats)
        rows = [
            (row.result, row.launches, float(row.flops), row.kernel_us, row.dense_kernel_us)
            for row in result.rows
            if row.result is not None
        ]
        total = {
            "time_us": result.sparse.makespan_us,
            "dense_time_us": result.dense.makespan_us,
            "speedup": result.speedup,
            "nominal_speedup": result.nominal_speedup,
            "host_bound": result.sparse.host_bound,
        }
    return {"status": "ok", "error": "", **total, **_sums(rows)}


def _sums(rows: Sequence[tuple[GemmResult, int, float, float, float]]) -> dict[str, Any]:
    """Totals over ops: (result, launches, FLOPs, kernel time, dense kernel time [µs]) of each."""
    time = math.fsum(us for *_, us, _ in rows)
    dense = math.fsum(us for *_, us in rows)
    fell = [(gemm, flops) for gemm, _, flops, _, _ in rows if gemm.path == "dense" and gemm.reason != "dense-weight"]
    wanted = math.fsum(flops for gemm, _, flops, _, _ in rows if gemm.reason != "dense-weight")
    bound: dict[str, float] = {}
    for gemm, _, _, us, _ in rows:
        bound[gemm.bound_by] = bound.get(gemm.bound_by, 0.0) + us
    return {
        "sparse_share": math.fsum(us for gemm, _, _, us, _ in rows if gemm.path == "sparse") / time,
        "fallback_share": math.fsum(flops for _, flops in fell) / wanted if wanted else 0.0,
        "fallback_reasons": ",".join(sorted({gemm.reason for gemm, _ in fell})),
        "tensor_busy": math.fsum(g.launch.counters["tensor_busy"] * us for g, _, _, us, _ in rows) / time,
        "dense_tensor_busy": math.fsum(g.dense_launch.counters["tensor_busy"] * us for g, *_, us in rows) / dense,
        "energy_j": 1e-6 * math.fsum(g.launch.power_w * us for g, _, _, us, _ in rows),
        "dense_energy_j": 1e-6 * math.fsum(g.dense_launch.power_w * us for g, *_, us in rows),
        "clock_mhz": 1e-6 * math.fsum(g.launch.clock_hz * us for g, _, _, us, _ in rows) / time,
        "dense_clock_mhz": 1e-6 * math.fsum(g.dense_launch.clock_hz * us for g, *_, us in rows) / dense,
        "dram_bytes": math.fsum(
            n * (g.launch.counters["dram_read_bytes"] + g.launch.counters["dram_write_bytes"]) for g, n, *_ in rows
        ),
        "bound_by": max(bound, key=lambda name: bound[name]),
    }
