"""A run that can be diagnosed: everything its times depend on, as parts that can be exchanged one by one; its outcome.

Simulated runs come from the JSON of ``simulate`` or from a run file, measured ones from a profile (see `runfile`). The
counterfactuals between two runs are runs, too, so all of them go through `Evaluator`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sparsesim.diagnose.quality import QualityRun
from sparsesim.hardware import GpuSpec
from sparsesim.protocol import Protocol, interval_s
from sparsesim.results import config_hash
from sparsesim.results_workload import WorkloadResult
from sparsesim.runtime import run_workload
from sparsesim.serving.kernels import latency_s
from sparsesim.simulator import Simulator
from sparsesim.sparsity import Pattern
from sparsesim.stacks import Stack
from sparsesim.workload import Gemm, Workload

__all__ = ["EFFECTS", "STREAM_EFFICIENCY", "Conversion", "Effect", "Evaluator", "Outcome", "Run"]

#: share of the best DRAM rate that element-wise kernels reach: fitted for serving (docs/serving.md)
STREAM_EFFICIENCY = 0.77


@dataclass(frozen=True)
class Conversion:
    """A kernel before each call of `op` that rewrites an operand: a cast, a transpose, a re-compression.

    `bytes` are read and written together, in one of `launches` kernels each.
    """

    op: str
    bytes: float
    launches: int = 1

    def __str__(self) -> str:
        kernels = f"{self.launches} kernels" if self.launches > 1 else "a kernel"
        return f"{kernels} of {self.bytes / 1e6:.4g} MB before each call"


@dataclass(frozen=True)
class Run:
    """One run.

    Parameters
    ----------
    label : for the reader
    gpu_source : packaged name or file that `gpu` is, but for changed parameters
    tuned_source : packaged name or file of the board that the libraries' heuristics know, where it is not that of
        `gpu_source`
    stack_source : packaged name or rule file that `stack` is, but for `whatif`'s changes; "" = its name
    workload : ops as they are meant, with the pattern that was promised
    unusable : op → why its sparse weight runs dense whatever the stack says: pruned along the wrong axis, or seen on
        the dense path in a profile
    measured : op → measured time of one launch [µs], for a run that comes from a profile
    kernels : op → name of the kernel that the profile saw
    recorded : (makespan, dense makespan) [µs] that a result file says
    """

    label: str
    gpu: GpuSpec
    gpu_source: str
    workload: Workload
    stack: Stack
    protocol: Protocol = field(default_factory=Protocol)
    baseline: str = "heuristic"
    streams: int = 1
    graph: bool = False
    repeats: int = 1
    unusable: tuple[tuple[str, str], ...] = ()
    conversions: tuple[Conversion, ...] = ()
    quality: QualityRun | None = None
    tuned_source: str = ""
    stack_source: str = ""
    measured: tuple[tuple[str, float], ...] = ()
    kernels: tuple[tuple[str, str], ...] = ()
    recorded: tuple[float, float] | None = None
    notes: tuple[str, ...] = ()

    @property
    def runs_as(self) -> Workload:
        """The ops as the stack sees them: a weight that cannot be used sparse is dense."""
        broken = dict(self.unusable)
        if not any(op.name in broken for op in self.workload.ops):
            return self.workload
        ops = tuple(op.with_pattern("dense") if op.name in broken else op for op in self.workload.ops)
        return replace(self.workload, ops=ops)

    @property
    def flops(self) -> float:
        """Dense-equivalent operations of all passes: two per MAC."""
        return 2.0 * self.workload.macs * self.repeats

    @property
    def nominal_speedup(self) -> float:
        """What the patterns promise: FLOPs over kept FLOPs."""
        kept = math.fsum(op.macs * op.count / Pattern.parse(op.pattern).nominal_speedup for op in self.workload.ops)
        return self.workload.macs / kept

    def only(self, names: frozenset[str]) -> Run:
        """The same run of the ops called `names` alone; nothing that was measured of the whole stays."""
        ops = tuple(op for op in self.workload.ops if op.name in names)
        return replace(
            self,
            workload=Workload(self.workload.name, self.workload.description, self.workload.source, ops),
            unusable=tuple(item for item in self.unusable if item[0] in names),
            conversions=tuple(item for item in self.conversions if item.op in names),
            measured=tuple(item for item in self.measured if item[0] in names),
            kernels=tuple(item for item in self.kernels if item[0] in names),
            recorded=None,
        )


@dataclass(frozen=True)
class Effect:
    """A figure that two runs are compared in, as a logarithm; more is better."""

    id: str
    title: str
    unit: str
    meaning: str


EFFECTS = (
    Effect("speedup", "effective speedup", "x", "dense time over time, on the run's own GPU, stack and shapes"),
    Effect("throughput", "throughput", "TFLOP/s", "dense-equivalent operations of the workload over its time"),
    Effect("delivered", "share of the promise", "%", "effective speedup over the speedup that the patterns promise"),
)


@dataclass(frozen=True)
class Outcome:
    """What a run gives. Times in µs, conversions included; `flops` are the useful ones."""

    time_us: float
    dense_time_us: float
    nominal_speedup: float
    flops: float
    conversion_us: float
    result: WorkloadResult

    @property
    def speedup(self) -> float:
        """Effective speedup."""
        return self.dense_time_us / self.time_us

    @property
    def throughput(self) -> float:
        """Dense-equivalent TFLOP/s."""
        return self.flops / self.time_us / 1e6

    @property
    def ln(self) -> dict[str, float]:
        """Effect → its logarithm."""
        return {
            "speedup": math.log(self.speedup),
            "throughput": math.log(self.throughput),
            "delivered": math.log(self.speedup / self.nominal_speedup),
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "time_us": self.time_us,
            "dense_time_us": self.dense_time_us,
            "speedup": self.speedup,
            "nominal_speedup": self.nominal_speedup,
            "throughput_tflops": self.throughput,
            "conversion_us": self.conversion_us,
            "fallback": math.fsum(share.time_share for share in self.result.fallbacks),
        }


class Evaluator:
    """Simulates runs; simulators, launches and outcomes are kept, so that a counterfactual costs what is new in it."""

    def __init__(self) -> None:
        self._memory: dict[tuple[object, ...], Any] = {}
        self._simulators: dict[tuple[object, ...], Simulator] = {}
        self._outcomes: dict[tuple[object, ...], Outcome] = {}

    @property
    def simulated(self) -> int:
        """Different runs so far."""
        return len(self._outcomes)

    def simulator(self, run: Run) -> Simulator:
        """The simulator of a run's GPU, stack and baseline."""
        # the simulator keeps its stack alive, so that its id stays its own
        key = (config_hash(run.gpu), id(run.stack), run.baseline)
        if key not in self._simulators:
            self._simulators[key] = Simulator(run.gpu, run.stack, run.baseline, memory=self._memory)
        return self._simulators[key]

    def outcome(self, run: Run, flops: float | None = None) -> Outcome:
        """Simulate a run; `flops` are the useful operations where its shapes hold padding.

        Raises
        ------
        UserError, NoKernelError
            The run is impossible on its GPU.
        """
        simulator = self.simulator(run)
        workload = run.runs_as
        key = (
            id(simulator), workload.digest(), run.protocol, run.streams, run.graph, run.repeats, run.conversions,
            run.nominal_speedup,
        )  # fmt: skip
        if key not in self._outcomes:
            result = run_workload(workload, simulator, run.protocol, run.streams, run.graph, run.repeats)
            extra = conversion_us(run)
            self._outcomes[key] = Outcome(
                time_us=result.sparse.makespan_us + extra,
                dense_time_us=result.dense.makespan_us,
                nominal_speedup=run.nominal_speedup,
                flops=run.flops,
                conversion_us=extra,
                result=result,
            )
        found = self._outcomes[key]
        return found if flops is None else replace(found, flops=flops)


def conversion_us(run: Run) -> float:
    """Time of a run's conversions [µs]: each kernel is bound by DRAM, and they follow the others in their stream."""
    gpu = run.gpu
    rate = gpu.dram.bytes_per_s * gpu.dram.achieved_fraction * STREAM_EFFICIENCY
    counts: Mapping[str, int] = {op.name: op.count for op in run.workload.ops}
    timing = "graph" if run.graph else run.protocol.timing
    total = 0.0
    for item in run.conversions:
        busy = latency_s(gpu) + item.bytes / rate
        total += counts.get(item.op, 0) * run.repeats * item.launches * interval_s(gpu, timing, busy)[0]
    return 1e6 * total


def op_of(run: Run, name: str) -> Gemm:
    """The op called `name`."""
    return next(op for op in run.workload.ops if op.name == name)
