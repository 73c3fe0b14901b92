"""Measured rows against the model. The error definitions are here, and nowhere else.

male = mean |ln(predicted / measured)|; bias = median ln(predicted / measured); p90 = 90th percentile of
|ln(predicted / measured)|; rank_correlation = Spearman's, of predicted and measured times; sign_accuracy (of
pairs) = share on the right side of 1 among those measured below 0.95 or above 1.05.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import as_completed
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsesim.errors import UserError
from sparsesim.hardware import GpuSpec, load_gpu
from sparsesim.kernels import Kernel
from sparsesim.lowering import NoKernelError
from sparsesim.measured import MeasuredRow
from sparsesim.processes import worker_processes
from sparsesim.protocol import Protocol
from sparsesim.simulator import Simulator
from sparsesim.uncertainty import interval_us
from sparsesim.workload import Gemm

__all__ = ["Prediction", "Validation", "error_summary", "predict_rows", "speedup_groups", "validate_rows"]

SIGN_BAND = (0.95, 1.05)
#: lists of at least so many rows are predicted by several processes, in so many parts each
PARALLEL_ROWS = 200
PARTS_PER_JOB = 12
#: (seconds, kernel name) of a row, or (None, why it cannot be simulated)
_Outcome = tuple[float | None, str]
#: a tile in a kernel's name: 256x128_64x3 = tile m, tile n, k per stage, stages
TILE_NAME = re.compile(r"(?<!\d)(\d{1,4})x(\d{1,4})_(\d{1,4})x(\d{1,2})(?!\d)")


@dataclass(frozen=True)
class Prediction:
    """One measured row with the model's time for it."""

    row: MeasuredRow
    predicted_us: float
    low_us: float
    high_us: float
    kernel: str

    @property
    def log_error(self) -> float:
        """ln(predicted / measured)."""
        return math.log(self.predicted_us / self.row.time_us)


@dataclass(frozen=True)
class Validation:
    """Groups, rows and skipped rows of one comparison."""

    groups: list[dict[str, Any]]
    predictions: list[Prediction]
    skipped: list[dict[str, str]]
    #: where profiles were among the files: each kernel beside the model's, and a summary
    kernels: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data in the form of the CLI's JSON contract."""
        return {
            "groups": self.groups,
            "rows": [
                {
                    **{
                        name: getattr(p.row, name)
                        for name in (
                            "gpu", "library", "m", "n", "k", "batch", "dtype", "pattern",
                            "timing", "l2", "clock", "source",
                        )
                    },
                    "measured_us": p.row.time_us,
                    "predicted_us": p.predicted_us,
                    "low_us": p.low_us,
                    "high_us": p.high_us,
                    "kernel": p.kernel,
                }
                for p in self.predictions
            ],
            "skipped": self.skipped,
            **({} if self.kernels is None else {"kernels": self.kernels}),
        }  # fmt: skip


def error_summary(predicted: Iterable[float], measured: Iterable[float]) -> dict[str, float]:
    """male, p90, bias and rank correlation of predictions against measurements (equal lengths, > 0)."""
    p, q = np.asarray(list(predicted), float), np.asarray(list(measured), float)
    error = np.log(p / q)
    return {
        "male": float(np.mean(np.abs(error))),
        "p90": float(np.quantile(np.abs(error), 0.9)),
        "bias": float(np.median(error)),
        "rank_correlation": _spearman(p, q),
    }


def _spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Spearman's rank correlation with mean ranks for ties; 1 for fewer than two rows."""
    if len(x) < 2:
        return 1.0
    a, b = _ranks(x), _ranks(y)
    if a.std() == 0 or b.std() == 0:
        return 1.0 if a.std() == b.std() else 0.0
    return float(np.corrcoef(a, b)[0, 1])


def _ranks(x: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[inverse]


def op_of(row: MeasuredRow) -> Gemm:
    """The op of a measured row; raises UserError if the model has no such dtype or pattern."""
    acc = row.acc_dtype if row.acc_dtype in ("f32", "f16", "i32") else None
    if "(f16 acc)" in row.library:  # the label of a CUTLASS kernel is more precise than the column
        acc = "f16"
    return Gemm(
        name="row",
        m=row.m,
        n=row.n,
        k=row.k,
        batch=row.batch,
        dtype=row.dtype,
        acc_dtype=acc,
        pattern=row.pattern,
        sparse_operand="B" if row.sparse_operand == "B" else "A",
    )


def _named_tile(library: str) -> Callable[[Kernel], bool] | None:
    """A filter for the tile that a library label names, or None if it names none."""
    found = TILE_NAME.search(library)
    if not found:
        return None
    m, n = int(found[1]), int(found[2])
    return lambda kernel: (kernel.tile_m, kernel.tile_n) == (m, n) and kernel.split_k == 1


def _predict(simulator: Simulator, row: MeasuredRow) -> tuple[float, str]:
    """(seconds, kernel name) of one row under its own protocol."""
    op = op_of(row)
    protocol = Protocol.parse(row.timing, row.l2, row.clock)
    policy = "search" if "search" in row.library else "heuristic"
    native = None
    if row.is_sparse:
        decision = simulator.stack.decide(op, simulator.gpu)
        if decision.path != "sparse":
            raise UserError(f"no sparse path: {decision.reason} ({decision.text})")
        native = decision.native
    accept = _named_tile(row.library)
    if accept is not None:
        operands = simulator.library.operands(op, native)
        kernels = [c.kernel for c in simulator.library.candidates(operands, row.is_sparse) if accept(c.kernel)]
        if kernels:
            times = [simulator.time_kernel(op, native, kernel, protocol) for kernel in kernels]
            seconds, launch = min(times, key=lambda pair: pair[0])
            return seconds, launch.kernel.name
    timed = (
        simulator.time_dense(op, protocol, policy)
        if native is None
        else simulator.time_sparse(op, native, protocol, policy)
    )
    return timed[0], timed[1].kernel.name


def predict_rows(
    rows: Iterable[MeasuredRow],
    gpu_of: Callable[[str], GpuSpec] = load_gpu,
    progress: Callable[[int], None] | None = None,
    jobs: int | None = None,
) -> tuple[list[Prediction], list[dict[str, str]]]:
    """Predict every row that can be simulated; name every row that cannot, with the reason.

    Rows are spread over `jobs` processes (None: one per core for long lists), equal shapes together, so that
    each is simulated once; the result does not depend on `jobs`. `progress` is told the rows done so far.
    """
    rows = list(rows)
    gpus: dict[str, GpuSpec | str] = {}
    for name in dict.fromkeys(row.gpu for row in rows):
        try:
            gpus[name] = gpu_of(name)
        except UserError as err:
            gpus[name] = str(err)
    jobs = jobs if jobs is not None else (os.cpu_count() or 1 if len(rows) >= PARALLEL_ROWS else 1)
    parts = _partition(rows, 1 if jobs == 1 else jobs * PARTS_PER_JOB)
    outcomes: list[_Outcome | None] = [None] * len(rows)
    done = 0
    for indices, results in _run_parts(parts, rows, gpus, jobs, progress):
        for index, result in zip(indices, results, strict=True):
            outcomes[index] = result
        done += len(indices)
        if progress is not None:
            progress(done)
    predictions: list[Prediction] = []
    skipped: list[dict[str, str]] = []
    for row, outcome in zip(rows, outcomes, strict=True):
        assert outcome is not None
        seconds, text = outcome
        if seconds is None:
            skipped.append({"row": f"{row.file}:{row.line}", "why": text})
        else:
            us = seconds * 1e6
            gpu = gpus[row.gpu]
            assert not isinstance(gpu, str)
            low, high = interval_us(gpu.family, row.is_sparse, us)
            predictions.append(Prediction(row, us, low, high, text))
    return predictions, skipped


def _partition(rows: list[MeasuredRow], parts: int) -> list[list[int]]:
    """Indices of rows in `parts` lists, rows of one GPU and shape together."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault((row.gpu, row.m, row.n, row.k), []).append(index)
    lists: list[list[int]] = [[] for _ in range(parts)]
    for number, members in enumerate(groups.values()):
        lists[number % parts] += members
    return [part for part in lists if part]


def _run_parts(
    parts: list[list[int]],
    rows: list[MeasuredRow],
    gpus: dict[str, GpuSpec | str],
    jobs: int,
    progress: Callable[[int], None] | None,
) -> Iterator[tuple[list[int], list[_Outcome]]]:
    if jobs == 1:
        for part in parts:
            yield part, _predict_part([rows[i] for i in part], gpus, progress)
        return
    with worker_processes([jobs]) as (pool,):
        waiting = {pool.submit(_predict_part, [rows[i] for i in part], gpus): part for part in parts}
        for future in as_completed(waiting):
            yield waiting[future], future.result()


def _predict_part(
    rows: list[MeasuredRow], gpus: dict[str, GpuSpec | str], progress: Callable[[int], None] | None = None
) -> list[_Outcome]:
    """(seconds, kernel name) of each row, or (None, reason)."""
    simulators: dict[str, Simulator] = {}
    outcomes: list[_Outcome] = []
    for row in rows:
        gpu = gpus[row.gpu]
        if isinstance(gpu, str):
            outcomes.append((None, gpu.splitlines()[0]))
            continue
        if row.gpu not in simulators:
            simulators[row.gpu] = Simulator(gpu, "cusparselt")
        try:
            outcomes.append(_predict(simulators[row.gpu], row))
        except (UserError, NoKernelError) as err:
            outcomes.append((None, str(err).splitlines()[0]))
        if progress is not None:
            progress(len(outcomes))
    return outcomes


def validate_rows(
    rows: Iterable[MeasuredRow],
    gpu_of: Callable[[str], GpuSpec] = load_gpu,
    min_us: float = 0.0,
    progress: Callable[[int], None] | None = None,
    jobs: int | None = None,
) -> Validation:
    """Compare rows with the model; groups by gpu, dtype and kind over rows of at least `min_us`."""
    predictions, skipped = predict_rows(rows, gpu_of, progress, jobs)
    kept = [p for p in predictions if p.row.time_us >= min_us]
    groups: list[dict[str, Any]] = []
    by_kind: dict[tuple[str, str, str], list[Prediction]] = {}
    for p in kept:
        by_kind.setdefault((p.row.gpu, p.row.dtype, "sparse" if p.row.is_sparse else "dense"), []).append(p)
    for (gpu, dtype, kind), members in sorted(by_kind.items()):
        summary = error_summary([p.predicted_us for p in members], [p.row.time_us for p in members])
        groups.append({"gpu": gpu, "dtype": dtype, "kind": kind, "rows": len(members), **summary})
    groups += speedup_groups(kept)
    return Validation(groups, predictions, skipped)


def speedup_groups(predictions: list[Prediction]) -> list[dict[str, Any]]:
    """Errors of the speedups of pairs: a dense and a sparse row of one source with equal shape and dtype."""
    dense = {p.row.pair_key: p for p in predictions if not p.row.is_sparse}
    pairs: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for p in predictions:
        base = dense.get(p.row.pair_key) if p.row.is_sparse else None
        if base is not None:
            speedups = (base.predicted_us / p.predicted_us, base.row.time_us / p.row.time_us)
            pairs.setdefault((p.row.gpu, p.row.dtype), []).append(speedups)
    groups = []
    for (gpu, dtype), values in sorted(pairs.items()):
        predicted, measured = [v[0] for v in values], [v[1] for v in values]
        clear = [(p, q) for p, q in values if q < SIGN_BAND[0] or q > SIGN_BAND[1]]
        right = sum((p > 1) == (q > 1) for p, q in clear)
        groups.append(
            {
                "gpu": gpu, "dtype": dtype, "kind": "speedup", "rows": len(values),
                **error_summary(predicted, measured),
                "sign_accuracy": right / len(clear) if clear else 1.0,
            }
        )  # fmt: skip
    return groups
