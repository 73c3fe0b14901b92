"""Interval of a workload's effective speedup, from the residuals of measured rows (`sparsesim.uncertainty`).

Each predicted time has a 90 % interval by GPU family, path and size. The errors of one path are taken as common to all
of its kernels (one board, one library), those of the dense and the sparse path as independent; an op on the dense path
in both runs moves both. So the speedup is taken at both ends of each path's interval, and the differences of ln add up
as squares. Launch gaps and host time are left as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from sparsesim.results_workload import OpRow, WorkloadResult
from sparsesim.uncertainty import interval_us

__all__ = ["speedup_interval"]


def speedup_interval(result: WorkloadResult, family: str) -> tuple[float, float]:
    """90 % interval (low, high) of `result.speedup` on a GPU of `family`."""
    center = math.log(result.speedup)
    down, up = [], []
    for path in ("dense", "sparse"):
        ends = [math.log(_speedup(result, family, path, end)) - center for end in (0, 1)]
        down.append(min(0.0, *ends))
        up.append(max(0.0, *ends))
    return math.exp(center - math.hypot(*down)), math.exp(center + math.hypot(*up))


def _speedup(result: WorkloadResult, family: str, moved: str, end: int) -> float:
    """The speedup with all kernels of the path `moved` at the lower (0) or upper (1) end of their intervals."""
    times = _shift((row, False) for row in result.rows), _shift((row, True) for row in result.rows)
    run, dense = (
        makespan + sum(_moved(us, launches, path, family, end) - us for path, us, launches in kernels if path == moved)
        for makespan, kernels in zip((result.sparse.makespan_us, result.dense.makespan_us), times, strict=True)
    )
    return dense / run


def _shift(rows: Iterable[tuple[OpRow, bool]]) -> list[tuple[str, float, int]]:
    """(path, kernel time [µs], launches) of each op, in the run or in the baseline."""
    return [
        ("dense", row.dense_kernel_us, row.launches)
        if baseline
        else ("sparse" if row.gemm["path"] == "sparse" else "dense", row.kernel_us, row.launches)
        for row, baseline in rows
    ]


def _moved(us: float, launches: int, path: str, family: str, end: int) -> float:
    """Kernel time [µs] of `launches` at one end of the interval."""
    return interval_us(family, path == "sparse", us / launches)[end] * launches
