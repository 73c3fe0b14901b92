"""Kernels of a profile beside the model's: path, tile, stages, time, and hardware counters.

The model picks its kernel freely here, as the library did, under the protocol that the tool ran with. Its counters
that have a counterpart in hardware:

- ``tensor_active``: tensor datapath busy cycles over SM cycles.
- ``l2_hit_rate``: L2 read bytes that DRAM did not have to bring, over L2 read bytes. Hardware counts sectors of reads
  and writes, so writes make its rate higher.
- ``dram_bytes``: read and written.
- ``occupancy``: warps of the resident CTAs over the most an SM holds, over the whole device for a single wave.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from sparsesim.device.simulate import LaunchResult
from sparsesim.errors import UserError
from sparsesim.hardware import GpuSpec, load_gpu
from sparsesim.lowering import NoKernelError
from sparsesim.measure.device import DeviceInfo
from sparsesim.measure.identify import identify
from sparsesim.measured import MeasuredRow
from sparsesim.profiles import Profile, ProfiledGemm, gemms_of, measured_rows, read_profile
from sparsesim.protocol import Protocol
from sparsesim.simulator import Simulator
from sparsesim.workload import Gemm

__all__ = ["KernelCheck", "Profiles", "check_kernels", "model_counters", "read_profiles", "summary"]


@dataclass(frozen=True)
class KernelCheck:
    """One profiled product beside the model's; times in µs, tiles as (m, n, k).

    `model_path` is the path that cuSPARSELt's rules give the weight that the profile names; `launch` is the model's
    kernel on the path that really ran, so that times and tiles compare like with like.
    """

    gemm: ProfiledGemm
    launch: LaunchResult
    predicted_us: float
    max_warps: int
    model_path: str

    @property
    def same_tile(self) -> bool | None:
        """Whether both picked the same m × n tile; None if the name tells none."""
        parsed = self.gemm.kernel.parsed
        if parsed is None or parsed.tile is None:
            return None
        kernel = self.launch.kernel
        return parsed.tile[:2] == (kernel.tile_m, kernel.tile_n)

    @property
    def counters(self) -> dict[str, tuple[float, float]]:
        """Counter → (hardware, model), for those that the profile has."""
        model = model_counters(self.launch, self.max_warps)
        return {name: (value, model[name]) for name, value in self.gemm.kernel.counters.items() if name in model}

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        gemm, kernel = self.gemm, self.launch.kernel
        parsed = gemm.kernel.parsed
        assert parsed is not None
        return {
            "where": gemm.kernel.where,
            "gpu": gemm.gpu,
            "m": gemm.shape.m,
            "n": gemm.shape.n,
            "k": gemm.shape.k,
            "batch": gemm.shape.batch,
            "dtype": gemm.dtype,
            "pattern": gemm.pattern,
            "calls": gemm.kernel.calls,
            "kernel": gemm.kernel.name,
            "library": parsed.library,
            "tile": list(parsed.tile) if parsed.tile else None,
            "stages": parsed.stages,
            "split_k": parsed.split_k,
            "path": parsed.path,
            "model_path": self.model_path,
            "model_kernel": kernel.name,
            "model_tile": [kernel.tile_m, kernel.tile_n, kernel.tile_k],
            "model_stages": kernel.stages,
            "model_split_k": kernel.split_k,
            "same_tile": self.same_tile,
            "measured_us": gemm.kernel.time_us,
            "predicted_us": self.predicted_us,
            "counters": {name: {"hardware": h, "model": m} for name, (h, m) in self.counters.items()},
        }


def model_counters(launch: LaunchResult, max_warps: int) -> dict[str, float]:
    """The model's counterparts of `sparsesim.profiles.record.COUNTERS`; `max_warps` is what one SM holds."""
    counters = launch.counters
    resident = min(launch.ctas, launch.slots * launch.sms) / launch.sms
    return {
        "tensor_active": counters["tensor_busy"],
        "l2_hit_rate": counters["l2_hit_rate"],
        "dram_bytes": counters["dram_read_bytes"] + counters["dram_write_bytes"],
        "occupancy": resident * launch.kernel.threads / 32 / max_warps,
    }


def check_kernels(gemms: Iterable[ProfiledGemm], gpu: GpuSpec) -> tuple[list[KernelCheck], list[dict[str, str]]]:
    """Simulate each product freely; those that the model cannot run are returned with the reason."""
    simulator = Simulator(gpu, "cusparselt")
    checks: list[KernelCheck] = []
    skipped: list[dict[str, str]] = []
    for gemm in gemms:
        try:
            checks.append(_check(simulator, gemm))
        except (UserError, NoKernelError) as err:
            skipped.append({"row": gemm.kernel.where, "why": str(err).splitlines()[0]})
    return checks, skipped


def _check(simulator: Simulator, gemm: ProfiledGemm) -> KernelCheck:
    shape = gemm.shape
    op = Gemm("row", shape.m, shape.n, shape.k, batch=shape.batch, dtype=gemm.dtype, pattern=gemm.pattern)
    clock = "free" if gemm.row is None else gemm.row.clock
    protocol = Protocol.parse(gemm.kernel.timing, gemm.l2, clock)
    if gemm.pattern == "dense":
        seconds, launch = simulator.time_dense(op, protocol)
    else:
        decision = simulator.stack.decide(op, simulator.gpu)
        if decision.native is None:
            raise UserError(f"no sparse path: {decision.reason} ({decision.text})")
        seconds, launch = simulator.time_sparse(op, decision.native, protocol)
    named = simulator.stack.decide(replace(op, pattern=shape.pattern or gemm.pattern), simulator.gpu)
    return KernelCheck(gemm, launch, seconds * 1e6, simulator.gpu.sm.max_warps, named.path)


def summary(checks: Sequence[KernelCheck]) -> dict[str, Any]:
    """Kernels whose tile is named and how many the model picked alike; per counter the median of model − hardware
    (shares) or model / hardware (bytes)."""
    named = [check.same_tile for check in checks if check.same_tile is not None]
    pairs: dict[str, list[tuple[float, float]]] = {}
    for check in checks:
        for name, pair in check.counters.items():
            pairs.setdefault(name, []).append(pair)
    counters = {}
    for name, values in sorted(pairs.items()):
        if name == "dram_bytes":
            ratios = [model / hardware for hardware, model in values if hardware > 0]
            counters[name] = {"kernels": len(ratios), "ratio": median(ratios) if ratios else None}
        else:
            counters[name] = {"kernels": len(values), "difference": median(m - h for h, m in values)}
    return {"kernels": len(checks), "tiles_named": len(named), "same_tile": sum(named), "counters": counters}


@dataclass
class Profiles:
    """The products of several profile files, by GPU, and the kernels that could not be used."""

    gpus: dict[str, GpuSpec] = field(default_factory=dict)
    gemms: list[ProfiledGemm] = field(default_factory=list)
    skipped: list[dict[str, str]] = field(default_factory=list)

    @property
    def rows(self) -> list[MeasuredRow]:
        """The timings, for `sparsesim.validate`."""
        return measured_rows(self.gemms)

    def check(self) -> list[KernelCheck]:
        """Every product beside the model's; those it cannot run are added to `skipped`."""
        checks: list[KernelCheck] = []
        for name, gpu in self.gpus.items():
            made, skipped = check_kernels([gemm for gemm in self.gemms if gemm.gpu == name], gpu)
            checks += made
            # a product with a time is also a row, and skipped there for the same reason
            timed = {gemm.kernel.where for gemm in self.gemms if gemm.row is not None}
            self.skipped += [item for item in skipped if item["row"] not in timed]
        return checks


def read_profiles(paths: Iterable[Path], gpu: GpuSpec | None = None, shapes: Sequence[Gemm] | None = None) -> Profiles:
    """Read profiles taken on `gpu`, or, if it is None, on the board that each file names.

    Raises UserError for a broken file, one that names no board (where `gpu` is None), or a wrong number of `shapes`.
    """
    out = Profiles()
    lines: list[str] = []
    for path in paths:
        try:
            profile = read_profile(path)
            spec = gpu if gpu is not None else load_gpu(_board(profile))
            gemms, skipped = gemms_of(profile, spec.name, shapes)
        except UserError as err:
            lines += err.problems
            continue
        out.gpus[spec.name] = spec
        out.gemms += gemms
        out.skipped += skipped
    if lines:
        raise UserError(lines)
    return out


def _board(profile: Profile) -> str:
    """The hardware file of the board that a profile names."""
    board = profile.device or {}
    if not {"name", "sms", "major", "minor", "memory"} <= board.keys():
        raise UserError(f"{profile.path}: --gpu: expected the GPU it was taken on, which the file does not name")
    return identify(
        DeviceInfo(
            name=str(board["name"]),
            uuid="",
            compute_capability=f"{board['major']}.{board['minor']}",
            sms=int(board["sms"]),
            memory_bytes=int(board["memory"]),
            l2_bytes=0,
            driver="",
            cuda="",
        )
    )
