"""What a run of a workload returns: makespans, rows per op, fallbacks, waiting times; saved and loaded.

Everything but the stored fields is derived from them, so a loaded file can be checked by deriving it again.
Identities are checked on creation: busy, gap and waiting time add up to the makespan, the times of the ops to
the time of all kernels, their shares to 1.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, field, fields
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from sparsesim.errors import Problem, UserError
from sparsesim.outfiles import write_file
from sparsesim.protocol import Protocol
from sparsesim.results import GemmResult
from sparsesim.sparsity import Pattern
from sparsesim.textfiles import read_json
from sparsesim.workload import OtherOp

__all__ = ["SCHEMA", "Interval", "OpRow", "PathShare", "RunRecord", "WorkloadResult", "plain"]

SCHEMA = "sparsesim-workload-result/1"

#: reason of an op whose weight is dense: on the dense path, but no fallback
DENSE_WEIGHT = "dense-weight"

#: relative difference that summing in another order may make
SUM_TOLERANCE = 1e-9

#: what rebuilding a result from a wrong document may raise
_MISFITS = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError, UserError)

T = TypeVar("T")


class Interval(NamedTuple):
    """One launch on the timeline: its stream, the row of its op, admission and completion [µs]."""

    stream: int
    row: int
    start_us: float
    end_us: float


@dataclass(frozen=True)
class RunRecord:
    """One run of all launches, from the host's first instruction to the last completion. Times in µs.

    Parameters
    ----------
    makespan_us : the whole run = `busy_us` + `gap_us` + `host_us`
    passes_us : completion of each pass over the workload
    busy_us : at least one kernel on the device, from its ramp to its drain
    gap_us : no kernel on the device, and a stream between two dependent kernels
    host_us : no kernel on the device, and no stream has one to begin: waiting for the host
    kernel_us : sum over the launches of completion − admission; more than `busy_us` where kernels overlap
    launches : calls that were issued
    tensor_busy : share of the tensor cores' cycles over the whole makespan that did work
    timeline : the first launches in order of completion; not all of them in a long run
    """

    makespan_us: float
    passes_us: tuple[float, ...]
    busy_us: float
    gap_us: float
    host_us: float
    kernel_us: float
    launches: int
    tensor_busy: float
    timeline: tuple[Interval, ...] = field(repr=False)

    def __post_init__(self) -> None:
        _check_sum("busy, gap and host time", self.busy_us + self.gap_us + self.host_us, self.makespan_us)
        if self.kernel_us < self.busy_us * (1.0 - SUM_TOLERANCE):
            raise AssertionError(f"kernels run for {self.kernel_us} us, but the device is busy for {self.busy_us} us")
        if not self.passes_us or not math.isclose(max(self.passes_us), self.makespan_us):
            raise AssertionError(f"expected passes up to {self.makespan_us} us, found {self.passes_us}")
        if not 0.0 <= self.tensor_busy <= 1.0 + SUM_TOLERANCE:
            raise AssertionError(f"expected a busy share between 0 and 1, found {self.tensor_busy}")
        if len(self.timeline) > self.launches:
            raise AssertionError(f"{len(self.timeline)} launches on the timeline, {self.launches} issued")
        free: dict[int, float] = {}
        for stream, _, start, end in self.timeline:
            if not free.get(stream, 0.0) <= start <= end <= self.makespan_us * (1.0 + SUM_TOLERANCE):
                raise AssertionError(f"stream {stream}: launch from {start} to {end} us is out of order")
            free[stream] = end

    @property
    def pass_us(self) -> float:
        """Time of a pass in the steady state [µs]: mean after the first; of a single one, the makespan."""
        if len(self.passes_us) == 1:
            return self.makespan_us
        return (self.passes_us[-1] - self.passes_us[0]) / (len(self.passes_us) - 1)

    @property
    def host_bound(self) -> float:
        """Share of the makespan in which the device waits for the host."""
        return self.host_us / self.makespan_us

    @property
    def concurrency(self) -> float:
        """Kernels on the device, averaged over the time that there is any."""
        return self.kernel_us / self.busy_us

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the stored fields, then what is derived from them."""
        return {
            **{item.name: getattr(self, item.name) for item in fields(self)},
            "passes_us": list(self.passes_us),
            "timeline": [list(interval) for interval in self.timeline],
            "pass_us": self.pass_us,
            "host_bound": self.host_bound,
            "concurrency": self.concurrency,
        }


@dataclass(frozen=True)
class OpRow:
    """One op of the workload.

    Parameters
    ----------
    name, family, count, macs : of the op; `macs` of one launch, dense-equivalent
    stream : that it was issued to
    launches : `count` × passes
    kernel_us, dense_kernel_us : its kernels' time on the device, all launches, in the run and in the baseline
    share, dense_share : of all kernels' time
    gemm : `GemmResult.to_dict` of one launch
    result : the `GemmResult` itself; None in a loaded result
    """

    name: str
    family: str
    count: int
    macs: int
    stream: int
    launches: int
    kernel_us: float
    dense_kernel_us: float
    share: float
    dense_share: float
    gemm: dict[str, Any]
    result: GemmResult | None = field(default=None, compare=False, repr=False)

    @property
    def flops(self) -> int:
        """Dense-equivalent operations of all launches: two per MAC."""
        return 2 * self.macs * self.launches

    @property
    def reason(self) -> str:
        """Code of the rule that decided the path."""
        return str(self.gemm["reason"])

    @property
    def is_fallback(self) -> bool:
        """Whether a sparse weight ran on the dense path."""
        return self.gemm["path"] == "dense" and not Pattern.parse(self.gemm["pattern"]).is_dense

    @property
    def metadata_bytes(self) -> float:
        """Metadata that all launches requested from L2 [B]."""
        return float(self.gemm["counters"]["metadata_bytes"]) * self.launches

    @property
    def speedup(self) -> float:
        """Kernel time of the baseline over that of the run."""
        return self.dense_kernel_us / self.kernel_us

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        data = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "result"}
        return {**data, "flops": self.flops, "fallback": self.is_fallback, "speedup": self.speedup}


@dataclass(frozen=True)
class PathShare:
    """The launches that one rule decided: how many, and their shares of launches, FLOPs and kernel time."""

    reason: str
    path: str
    fallback: bool
    ops: int
    launches: int
    flops: int
    time_us: float
    launch_share: float
    flop_share: float
    time_share: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


@dataclass(frozen=True)
class WorkloadResult:
    """A workload on one GPU under one stack, beside its dense baseline.

    `sparse` is the run in which each op takes the path that the stack decides, `dense` the baseline.
    What operands cost to convert between formats is in `sparsesim.counters`, which asks the stack's calls.
    `others` are the workload's ops that are no GEMM: no time here counts them.
    """

    gpu: str
    stack: str
    workload: str
    protocol: Protocol
    graph: bool
    streams: int
    repeats: int
    rows: tuple[OpRow, ...]
    sparse: RunRecord
    dense: RunRecord
    version: str
    gpu_hash: str
    workload_digest: str
    seed: int = 0
    others: tuple[OtherOp, ...] = ()

    def __post_init__(self) -> None:
        for run, times, shares in (
            (self.sparse, [row.kernel_us for row in self.rows], [row.share for row in self.rows]),
            (self.dense, [row.dense_kernel_us for row in self.rows], [row.dense_share for row in self.rows]),
        ):
            _check_sum("kernel times of the ops", sum(times), run.kernel_us)
            _check_sum("shares of the ops", sum(shares), 1.0)
            if run.launches != self.launches:
                raise AssertionError(f"the ops have {self.launches} launches, the run {run.launches}")
            if len(run.passes_us) != self.repeats:
                raise AssertionError(f"{len(run.passes_us)} passes, expected {self.repeats}")
            if self.streams == 1:
                _check_sum("kernel times in one stream", run.kernel_us, run.busy_us)
        for row in self.rows:
            if row.launches != row.count * self.repeats:
                raise AssertionError(f"{row.name}: {row.launches} launches, expected {row.count} x {self.repeats}")

    @property
    def launches(self) -> int:
        """Calls that each run issued."""
        return sum(row.launches for row in self.rows)

    @property
    def flops(self) -> int:
        """Dense-equivalent operations of a run."""
        return sum(row.flops for row in self.rows)

    @property
    def speedup(self) -> float:
        """Effective speedup: makespan of the baseline over that of the run."""
        return self.dense.makespan_us / self.sparse.makespan_us

    @property
    def steady_speedup(self) -> float:
        """The same of one pass among many."""
        return self.dense.pass_us / self.sparse.pass_us

    @property
    def nominal_speedup(self) -> float:
        """What was promised: FLOPs over kept FLOPs, that is Σ F / Σ (F / S0) (Amdahl's law in FLOPs)."""
        return self.flops / sum(row.flops / row.gemm["nominal_speedup"] for row in self.rows)

    @property
    def metadata_bytes(self) -> float:
        """Metadata that the run's launches requested from L2 [B]."""
        return sum(row.metadata_bytes for row in self.rows)

    @property
    def paths(self) -> tuple[PathShare, ...]:
        """Every launch under the rule that decided its path, most kernel time first; the shares sum to 1."""
        groups: dict[tuple[str, str, bool], list[OpRow]] = {}
        for row in self.rows:
            groups.setdefault((row.reason, row.gemm["path"], row.is_fallback), []).append(row)
        shares = []
        for (reason, path, fallback), rows in groups.items():
            launches, flops = sum(row.launches for row in rows), sum(row.flops for row in rows)
            time_us = sum(row.kernel_us for row in rows)
            shares.append(
                PathShare(
                    reason=reason,
                    path=path,
                    fallback=fallback,
                    ops=len(rows),
                    launches=launches,
                    flops=flops,
                    time_us=time_us,
                    launch_share=launches / self.launches,
                    flop_share=flops / self.flops,
                    time_share=time_us / self.sparse.kernel_us,
                )
            )
        return tuple(sorted(shares, key=lambda share: (-share.time_us, share.reason)))

    @property
    def fallbacks(self) -> tuple[PathShare, ...]:
        """Of `paths`, the reasons for which sparse weights ran on the dense path."""
        return tuple(share for share in self.paths if share.fallback)

    def to_dict(self) -> dict[str, Any]:
        """Plain data: stored and derived fields, and where they come from."""
        return {
            "schema": SCHEMA,
            "gpu": self.gpu,
            "stack": self.stack,
            "workload": self.workload,
            "timing": self.protocol.timing,
            "l2": self.protocol.l2,
            "clock": self.protocol.clock,
            "graph": self.graph,
            "streams": self.streams,
            "repeats": self.repeats,
            "launches": self.launches,
            "flops": self.flops,
            "makespan_us": self.sparse.makespan_us,
            "dense_makespan_us": self.dense.makespan_us,
            "speedup": self.speedup,
            "steady_speedup": self.steady_speedup,
            "nominal_speedup": self.nominal_speedup,
            "host_bound": self.sparse.host_bound,
            "dense_host_bound": self.dense.host_bound,
            "tensor_busy": self.sparse.tensor_busy,
            "dense_tensor_busy": self.dense.tensor_busy,
            "metadata_bytes": self.metadata_bytes,
            "fallbacks": [share.to_dict() for share in self.fallbacks],
            "paths": [share.to_dict() for share in self.paths],
            "rows": [row.to_dict() for row in self.rows],
            "sparse": self.sparse.to_dict(),
            "dense": self.dense.to_dict(),
            **({"others": [asdict(other) for other in self.others]} if self.others else {}),
            "provenance": {
                "version": self.version,
                "gpu_hash": self.gpu_hash,
                "workload_digest": self.workload_digest,
                "stack": self.stack,
                "protocol": {
                    "timing": self.protocol.timing,
                    "l2": self.protocol.l2,
                    "locked_hz": self.protocol.locked_hz,
                },
                "seed": self.seed,
            },
        }

    def save(self, path: str | Path) -> None:
        """Write `to_dict` and its content hash as JSON, under a temporary name that is then renamed.

        Raises
        ------
        UserError
            If the file cannot be written; what was at `path` is still there then.
        """
        path = Path(path)
        document = self.to_dict()
        document["content_hash"] = _content_hash(document)
        pieces = json.JSONEncoder(indent=1, allow_nan=False).iterencode(document)
        write_file(path, chain(pieces, ["\n"]))

    @staticmethod
    def load(path: str | Path) -> WorkloadResult:
        """Read what `save` wrote.

        Raises
        ------
        UserError
            If the file is missing, half written, changed since, of another schema, or breaks an identity.
        """
        where = str(path)
        document = read_json(Path(path), "a result file", constants=False)
        if document.get("schema") != SCHEMA:
            raise UserError(Problem.line(where, "schema", repr(SCHEMA), document.get("schema")))
        stored, found = document.pop("content_hash", None), _content_hash(document)
        if stored != found:
            expected = f"the hash of the content, {found[:12]}…"
            raise UserError(Problem.line(where, "content_hash", expected, stored))
        try:
            result = _result(document)
            rebuilt = result.to_dict()
        except _MISFITS as error:
            text = f"{type(error).__name__}: {error}"
            raise UserError(Problem.line(where, "", "fields that fit together", text)) from None
        wrong = [key for key in {**document, **rebuilt} if document.get(key) != rebuilt.get(key)]
        if wrong:
            raise UserError(
                Problem.line(where, key, "the value that follows from the others", document.get(key)) for key in wrong
            )
        return result


def plain(data: dict[str, Any]) -> dict[str, Any]:
    """`data` as it is after a round trip through JSON: no tuples, no NumPy numbers."""
    copy: dict[str, Any] = json.loads(json.dumps(data, allow_nan=False, default=float))
    return copy


def _check_sum(what: str, total: float, expected: float) -> None:
    if not math.isclose(total, expected, rel_tol=SUM_TOLERANCE):
        raise AssertionError(f"{what} sum to {total}, expected {expected}")


def _content_hash(document: dict[str, Any]) -> str:
    """SHA-256 (hex) of the document in canonical JSON."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _stored(cls: type[T], table: dict[str, Any], **converted: Any) -> T:
    """A `cls` from the entries of `table` that it stores, some already `converted`."""
    names = [item.name for item in fields(cls) if item.name != "result"]  # type: ignore[arg-type]
    return cls(**{name: converted[name] if name in converted else table[name] for name in names})


def _run(table: dict[str, Any]) -> RunRecord:
    timeline = tuple(Interval(*interval) for interval in table["timeline"])
    return _stored(RunRecord, table, passes_us=tuple(table["passes_us"]), timeline=timeline)


def _result(document: dict[str, Any]) -> WorkloadResult:
    """The result that `document` is the plain form of."""
    provenance = document["provenance"]
    return WorkloadResult(
        gpu=document["gpu"],
        stack=document["stack"],
        workload=document["workload"],
        protocol=Protocol(**provenance["protocol"]),
        graph=document["graph"],
        streams=document["streams"],
        repeats=document["repeats"],
        rows=tuple(_stored(OpRow, row) for row in document["rows"]),
        sparse=_run(document["sparse"]),
        dense=_run(document["dense"]),
        version=provenance["version"],
        gpu_hash=provenance["gpu_hash"],
        workload_digest=provenance["workload_digest"],
        seed=provenance["seed"],
        others=tuple(OtherOp(**other) for other in document.get("others", ())),
    )
