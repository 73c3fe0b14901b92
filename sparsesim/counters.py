"""Counters of a workload's run as the field asks for them: fallbacks, conversions, metadata, tensor cores, precision.

Sums over the launches of a `WorkloadResult`; two are not in it. The time that metadata cost is a counterfactual: each
sparse launch runs again with metadata that take no bytes and are decoded in no time, all else as it was. What metadata
take in memory follows from pattern and shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from sparsesim.attribution.gemm import MIN_WAVES, STEP_BUDGET
from sparsesim.attribution.launches import LaunchTimes, masks_of
from sparsesim.device.simulate import Device
from sparsesim.hardware import GpuSpec
from sparsesim.kernels import Operands
from sparsesim.lowering import shape_of
from sparsesim.results import GemmResult
from sparsesim.results_workload import OpRow, PathShare, WorkloadResult
from sparsesim.sparsity import Pattern
from sparsesim.stacks import Stack, get_stack
from sparsesim.stacks.rules import native_pattern
from sparsesim.workload import DTYPE_BYTES, Gemm

__all__ = ["Conversion", "Counters", "Metadata", "Precision", "Rate", "TensorUse", "count"]

#: what is idealised to see what metadata cost
METADATA_CAUSES = ("metadata", "decode")
#: entries of a call's overheads that are time of the host, not a launch that converts something
HOST = frozenset({"host-plan"})


@dataclass(frozen=True)
class Rate:
    """Fallback rate: shares of launches, of FLOPs and of kernel time."""

    launches: float
    flops: float
    time: float


@dataclass(frozen=True)
class Conversion:
    """Launches beside one op's products that bring an operand into another format.

    where, what : the op, and the kind of conversion; `bytes` read and written [B], None if not known; `time_us` [µs]
    """

    where: str
    what: str
    launches: int
    bytes: float | None
    time_us: float


@dataclass(frozen=True)
class Metadata:
    """What the metadata of compressed weights cost in a run.

    stored_bytes : in memory, each weight once [B]; `stored_share` of the compressed weights with their metadata
    l2_bytes : requested from L2 by all launches [B]; `l2_share` of all bytes requested from L2
    time_us : kernel time beyond that with free metadata [µs], a counterfactual; `time_share` of all kernel time
    """

    stored_bytes: float
    stored_share: float
    l2_bytes: float
    l2_share: float
    time_us: float
    time_share: float


@dataclass(frozen=True)
class TensorUse:
    """Share of the tensor cores' cycles that did work.

    makespan, dense_makespan : of the whole run and of its baseline, launch gaps and host included
    kernels, dense_kernels : while kernels run
    by_path : of the kernels of a path: sparse, fallback, dense
    """

    makespan: float
    dense_makespan: float
    kernels: float
    dense_kernels: float
    by_path: dict[str, float]


@dataclass(frozen=True)
class Precision:
    """Types of one op: asked for, and as it ran.

    asked, ran : input type that the caller asked for (else the workload), and of the kernel
    accumulator : of the kernel
    output, output_bytes : type of the result that the workload asks for (empty: the library's choice), and bytes of
        an element as the library writes it
    note : why `ran` is not `asked`, or the output is wider or narrower than asked for; empty if neither
    """

    name: str
    count: int
    asked: str
    ran: str
    accumulator: str
    output: str
    output_bytes: float
    note: str

    @property
    def kept(self) -> bool:
        """Whether the op ran in the type that was asked for."""
        return self.asked == self.ran


@dataclass(frozen=True)
class Counters:
    """All counters of one run; see the parts.

    fallbacks : launches with a sparse weight on the dense path, by reason, most kernel time first
    fallback_rate, of_sparse : their shares of the whole run, and of the launches with a sparse weight (0 if none)
    """

    fallbacks: tuple[PathShare, ...]
    fallback_rate: Rate
    of_sparse: Rate
    conversions: tuple[Conversion, ...]
    metadata: Metadata
    tensor: TensorUse
    precision: tuple[Precision, ...]

    @property
    def conversion_launches(self) -> int:
        """Launches of all conversions."""
        return sum(item.launches for item in self.conversions)

    @property
    def conversion_bytes(self) -> float | None:
        """Bytes that all conversions move; None if one's are not known."""
        known = [item.bytes for item in self.conversions if item.bytes is not None]
        return math.fsum(known) if len(known) == len(self.conversions) else None

    @property
    def conversion_us(self) -> float:
        """Time of all conversions [µs]."""
        return math.fsum(item.time_us for item in self.conversions)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "fallbacks": [share.to_dict() for share in self.fallbacks],
            "fallback_rate": asdict(self.fallback_rate),
            "fallback_rate_of_sparse_weights": asdict(self.of_sparse),
            "conversions": {
                "launches": self.conversion_launches,
                "bytes": self.conversion_bytes,
                "time_us": self.conversion_us,
                "where": [asdict(item) for item in self.conversions],
            },
            "metadata": asdict(self.metadata),
            "tensor_occupancy": asdict(self.tensor),
            "precision": [{**asdict(item), "kept": item.kept} for item in self.precision],
        }


def count(
    result: WorkloadResult,
    gpu: GpuSpec,
    stack: Stack,
    asked_dtype: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Counters:
    """The counters of `result`, which ran on `gpu` under `stack`.

    Parameters
    ----------
    result : WorkloadResult
        As it was run; one that was loaded from a file has no launches to run again.
    asked_dtype : str, optional
        Input type that the caller asked for instead of the workload's.
    progress : callable, optional
        Called as progress(done, total) after each op.

    Raises
    ------
    ValueError
        A row of `result` has no `GemmResult`.
    """
    device = Device(gpu, STEP_BUDGET, MIN_WAVES)
    known: dict[Gemm, tuple[float, float, float]] = {}
    precision, conversions = [], []
    for done, row in enumerate(result.rows, 1):
        if row.result is None:
            raise ValueError(f"{row.name}: expected a result as it was run, found one that was loaded")
        op = _plain(row.result.op)
        if op not in known:
            known[op] = _metadata_of(device, row.result, stack, result)
        precision.append(_precision(row, row.result.op, stack, asked_dtype))
        conversions += _conversions(row)
        if progress is not None:
            progress(done, len(result.rows))
    each = [known[_plain(row.result.op)] for row in result.rows if row.result is not None]
    fallbacks = result.fallbacks
    return Counters(
        fallbacks=fallbacks,
        fallback_rate=_rate(fallbacks, result.launches, result.flops, result.sparse.kernel_us),
        of_sparse=_of_sparse(result, fallbacks),
        conversions=tuple(conversions),
        metadata=_metadata(result, each),
        tensor=_tensor(result),
        precision=tuple(precision),
    )


def _plain(op: Gemm) -> Gemm:
    """`op` as its launches know it."""
    return replace(op, name="op", count=1, family="")


def _rate(shares: Iterable[PathShare], launches: int, flops: int, time_us: float) -> Rate:
    shares = list(shares)
    return Rate(
        sum(share.launches for share in shares) / launches,
        sum(share.flops for share in shares) / flops,
        math.fsum(share.time_us for share in shares) / time_us,
    )


def _of_sparse(result: WorkloadResult, fallbacks: Iterable[PathShare]) -> Rate:
    """The rate among the launches with a sparse weight."""
    rows = [row for row in result.rows if not Pattern.parse(row.gemm["pattern"]).is_dense]
    if not rows:
        return Rate(0.0, 0.0, 0.0)
    time_us = math.fsum(row.kernel_us for row in rows)
    return _rate(fallbacks, sum(row.launches for row in rows), sum(row.flops for row in rows), time_us)


def _conversions(row: OpRow) -> list[Conversion]:
    """What the stack launches beside the products of one op: its record's `overheads_us` and `overheads_bytes`."""
    times, moved = row.gemm.get("overheads_us", {}), row.gemm.get("overheads_bytes", {})
    return [
        Conversion(row.name, what, row.launches, None if what not in moved else moved[what] * row.launches,
                   us * row.launches)
        for what, us in times.items()
        if what not in HOST
    ]  # fmt: skip


# --- metadata ---


def _metadata_of(device: Device, gemm: GemmResult, stack: Stack, result: WorkloadResult) -> tuple[float, float, float]:
    """(metadata in memory [B], compressed weight with it [B], share of the kernel's time) of one launch."""
    op, launch = gemm.op, gemm.launch
    native = native_pattern(op, Pattern.parse(op.pattern), device.gpu) if gemm.path == "sparse" else None
    if native is None or not launch.kernel.sparse:
        return 0.0, 0.0, 0.0
    kept = op.m * op.k * op.batch * native.kept_fraction
    stored = kept * native.metadata_bits_per_kept / 8.0
    operands = Operands.of(device.gpu, op.dtype, op.accumulator, native)
    protocol = replace(result.protocol, timing="graph") if result.graph else result.protocol
    shape = shape_of(op, stack.output(op.dtype))
    times = LaunchTimes(device, launch.kernel, operands, shape, protocol, launch.seconds)
    busy = times.busy_s(0)
    share = (busy - times.busy_s(masks_of(METADATA_CAUSES))) / busy
    return stored, stored + kept * DTYPE_BYTES[op.dtype], share


def _metadata(result: WorkloadResult, each: Iterable[tuple[float, float, float]]) -> Metadata:
    rows = list(zip(result.rows, each, strict=True))
    stored = math.fsum(row.count * values[0] for row, values in rows)
    weights = math.fsum(row.count * values[1] for row, values in rows)
    requested = math.fsum(row.launches * row.gemm["counters"]["l2_read_bytes"] for row in result.rows)
    time_us = math.fsum(row.kernel_us * values[2] for row, values in rows)
    return Metadata(
        stored_bytes=stored,
        stored_share=stored / weights if weights else 0.0,
        l2_bytes=result.metadata_bytes,
        l2_share=result.metadata_bytes / requested if requested else 0.0,
        time_us=time_us,
        time_share=time_us / result.sparse.kernel_us,
    )


# --- tensor cores, precision ---


def _tensor(result: WorkloadResult) -> TensorUse:
    groups: dict[str, list[OpRow]] = {}
    for row in result.rows:
        groups.setdefault("fallback" if row.is_fallback else str(row.gemm["path"]), []).append(row)
    return TensorUse(
        makespan=result.sparse.tensor_busy,
        dense_makespan=result.dense.tensor_busy,
        kernels=_busy(result.rows, dense=False),
        dense_kernels=_busy(result.rows, dense=True),
        by_path={path: _busy(groups[path], dense=False) for path in sorted(groups)},
    )


def _busy(rows: Iterable[OpRow], dense: bool) -> float:
    """Busy share of the tensor cores over the kernel time of `rows`, in the run or in its baseline."""
    work = time_us = 0.0
    for row in rows:
        assert row.result is not None
        launch = row.result.dense_launch if dense else row.result.launch
        work += launch.counters["tensor_busy"] * launch.seconds * 1e6 * row.launches
        time_us += row.dense_kernel_us if dense else row.kernel_us
    return work / time_us


def _precision(row: OpRow, op: Gemm, stack: Stack, asked_dtype: str | None) -> Precision:
    sparse = row.gemm["path"] == "sparse"
    written = (stack if sparse else get_stack(stack.dense_stack)).output(op.dtype)
    asked = asked_dtype or op.dtype
    notes = []
    if asked != op.dtype:
        both = op.kind == "matmul"
        notes.append(
            "both operands are computed, none is a quantised weight" if both else "the workload keeps this layer's type"
        )
    if op.out_dtype is not None and DTYPE_BYTES[op.out_dtype] != written:
        library = stack.name if sparse else stack.dense_stack
        notes.append(f"{library} writes {written:g} B an element, {op.out_dtype} takes {DTYPE_BYTES[op.out_dtype]:g}")
    return Precision(
        row.name, row.count, asked, op.dtype, op.accumulator, op.out_dtype or "", written, "; ".join(notes)
    )
