"""What a simulation returns: times, path, reason, counters, and where they come from.

Identities are checked on creation: owners sum to SMs × cycles, hits never exceed reads.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any

from sparsesim.device.engine import SEED
from sparsesim.device.simulate import LaunchResult
from sparsesim.hardware import GpuSpec
from sparsesim.protocol import Protocol
from sparsesim.workload import Gemm

__all__ = ["GemmResult", "config_hash", "kernel_record"]


def config_hash(gpu: GpuSpec) -> str:
    """Short content hash of a GPU description."""
    described = [gpu.model_dump(), gpu.tuned_for.model_dump()]
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:12]


def op_hash(op: Gemm) -> str:
    """Short content hash of an op: the workload of a single GEMM."""
    return hashlib.sha256(json.dumps(asdict(op), sort_keys=True).encode()).hexdigest()[:12]


def kernel_record(launch: LaunchResult) -> dict[str, Any]:
    """A kernel as plain data: name, tile, pipeline, schedule, residency."""
    kernel = launch.kernel
    return {
        "name": kernel.name,
        "family": kernel.family,
        "tile": [kernel.tile_m, kernel.tile_n, kernel.tile_k],
        "stages": kernel.stages,
        "split_k": kernel.split_k,
        "cluster": [kernel.cluster_m, kernel.cluster_n],
        "persistent": kernel.persistent,
        "ctas": launch.ctas,
        "ctas_per_sm": launch.slots,
        "residency_limit": launch.residency_limit,
        "waves": launch.ctas / (launch.slots * launch.sms),
    }


@dataclass(frozen=True)
class GemmResult:
    """One GEMM on one GPU under one stack, beside its dense baseline.

    Times are what the protocol reports, in µs. `launch` is what ran (on fallback: the dense kernel),
    `dense_launch` the baseline's kernel, and `baseline` how the dense library picked it. `treatment` is what the stack
    does with an op that it cannot run sparse (it may raise; the time is then that of a caller who leaves the op dense);
    `overheads` names what a sparse call takes beside its product, in µs, where the timing shows it.
    """

    gpu: str
    stack: str
    op: Gemm
    protocol: Protocol
    path: str
    reason: str
    reason_text: str
    time_us: float
    dense_time_us: float
    nominal_speedup: float
    launch: LaunchResult
    dense_launch: LaunchResult
    baseline: str
    version: str
    gpu_hash: str
    treatment: str = ""
    overheads: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for launch in (self.launch, self.dense_launch):
            total = sum(launch.owners.values())
            if not math.isclose(total, launch.cycles * launch.sms, rel_tol=1e-9):
                raise AssertionError(f"owners sum to {total}, expected {launch.cycles * launch.sms} SM-cycles")
            if launch.counters["l2_hit_bytes"] > launch.counters["l2_read_bytes"]:
                raise AssertionError("more L2 hits than reads")

    @property
    def kernel(self) -> str:
        """Name of the kernel that ran."""
        return self.launch.kernel.name

    @property
    def clock_mhz(self) -> float:
        """SM clock of the run [MHz]."""
        return self.launch.clock_hz / 1e6

    @property
    def power_w(self) -> float:
        """Board power of the run [W]."""
        return self.launch.power_w

    @property
    def speedup(self) -> float:
        """Effective speedup: dense time over this time."""
        return self.dense_time_us / self.time_us

    @property
    def bound_by(self) -> str:
        """What binds: launch costs where they are most of the time, else a server of the GPU, or "occupancy"."""
        if self.launch.seconds * 1e6 < 0.5 * self.time_us:
            return "launch"
        return self.launch.bound_by

    def to_dict(self) -> dict[str, Any]:
        """Plain data in the form of the CLI's JSON contract."""
        op = self.op
        return {
            "gpu": self.gpu,
            "stack": self.stack,
            "name": op.name,
            "m": op.m,
            "n": op.n,
            "k": op.k,
            "batch": op.batch,
            "dtype": op.dtype,
            "acc_dtype": op.accumulator,
            "pattern": op.pattern,
            "path": self.path,
            "reason": self.reason,
            "reason_text": self.reason_text,
            "treatment": self.treatment,
            "overheads_us": self.overheads,
            "time_us": self.time_us,
            "dense_time_us": self.dense_time_us,
            "speedup": self.speedup,
            "nominal_speedup": self.nominal_speedup,
            "kernel": kernel_record(self.launch),
            "dense_kernel": kernel_record(self.dense_launch),
            "counters": self.launch.counters,
            "dense_counters": self.dense_launch.counters,
            "owners": self.launch.owners,
            "clock_mhz": self.launch.clock_hz / 1e6,
            "dense_clock_mhz": self.dense_launch.clock_hz / 1e6,
            "power_w": self.launch.power_w,
            "bound_by": self.bound_by,
            "timing": self.protocol.timing,
            "l2": self.protocol.l2,
            "clock": self.protocol.clock,
            "baseline": self.baseline,
            "provenance": {
                "version": self.version,
                "gpu_hash": self.gpu_hash,
                "op_hash": op_hash(self.op),
                "seed": SEED,
            },
        }
