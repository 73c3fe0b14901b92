"""The event loop against the same loop in C (`engine.c`, -O3): equal results, and events per second of both.

Needs a C compiler (``CC``, or ``cc``). Run alone for the table of launches: ``python bench/engine_c.py``.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sparsesim.device.build import LaunchPlan, Shape, build
from sparsesim.device.engine import Buffers, Stat, allocate, run
from sparsesim.hardware import load_gpu
from sparsesim.kernels import Kernel, Operands
from sparsesim.sparsity import Pattern

SOURCE = Path(__file__).with_name("engine.c")
#: tuned to this processor, as Numba compiles
FLAGS = ("-O3", "-march=native", "-std=c11", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror")
#: alternating runs of each, of which the shortest counts
REPEATS = 9
ARRAYS = ("block", "resident", "work", "units", "ready", "why", "heap", "owners", "stats", "timeline", "glob")


class NoCompilerError(RuntimeError):
    """There is no C compiler."""


class _Buffers(ctypes.Structure):
    _fields_ = [*((name, ctypes.c_void_p) for name in ARRAYS), ("blocks", ctypes.c_int64)]


Engine = Callable[[LaunchPlan, Buffers], int]


@contextmanager
def compiled() -> Iterator[Engine]:
    """The loop in C, as a function like `sparsesim.device.engine.run`; raises NoCompilerError."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise NoCompilerError("no C compiler: neither $CC nor cc")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "engine.so"
        subprocess.run([compiler, *FLAGS, "-o", str(library), str(SOURCE)], check=True)
        loop = ctypes.CDLL(str(library)).run
        loop.restype = ctypes.c_int64
        loop.argtypes = [ctypes.c_void_p] * 4

        def run_c(plan: LaunchPlan, buffers: Buffers) -> int:
            launch = np.array(plan.launch, dtype=np.int64)
            pointers = [getattr(buffers, name).ctypes.data for name in ARRAYS]
            given = _Buffers(*pointers, len(buffers.block))
            ticks, size = (np.ascontiguousarray(table, dtype=np.int64) for table in (plan.ticks, plan.size))
            return int(loop(launch.ctypes.data, ctypes.addressof(given), ticks.ctypes.data, size.ctypes.data))

        yield run_c


def run_numba(plan: LaunchPlan, buffers: Buffers) -> int:
    """The package's loop, called as `compiled` is."""
    return run(plan.launch, buffers, plan.ticks, plan.size)


def plans() -> dict[str, LaunchPlan]:
    """Launches that take every branch: warm and cold, L2 outgrown, split-K, persistent, one stage, ragged edges."""
    a100, h100 = load_gpu("a100_pcie_80gb"), load_gpu("h100_pcie")
    pattern = Pattern.parse("2:4")
    sparse, dense = Operands.of(a100, "f16", "f32", pattern), Operands.of(a100, "f16", "f32", None)
    large = Kernel("sm80", True, 256, 128, 64, 3, 4, 2, raster_group=1)
    small = Kernel("sm80", False, 128, 128, 32, 4, 2, 2)
    split = large.with_split(3)
    made = {
        "sparse 4096x2048x1024, cold": (a100, large, sparse, Shape(4096, 2048, 1024), False),
        "sparse 8192x8192x8192, warm": (a100, large, sparse, Shape(8192, 8192, 8192), True),
        "dense 4096x4096x4096, cold": (a100, small, dense, Shape(4096, 4096, 4096), False),
        "sparse 1000x520x8200, split-K 3": (a100, split, sparse, Shape(1000, 520, 8200), True),
    }
    from sparsesim.simulator import Simulator
    from sparsesim.workload import Gemm

    for text in ("dense", "2:4"):
        op = Gemm("op", 4096, 4000, 4096, dtype="f16", pattern=text)
        simulator = Simulator(h100)
        kernel = simulator.gemm(op).launch.kernel
        native = None if text == "dense" else pattern
        made[f"{text} 4096x4000x4096, H100"] = (
            h100, kernel, simulator.library.operands(op, native), Shape(4096, 4000, 4096), False,
        )  # fmt: skip
    return {
        name: build(gpu, kernel, operands, shape, gpu.clock.max, warm=warm)
        for name, (gpu, kernel, operands, shape, warm) in made.items()
    }


def differences(plan: LaunchPlan, run_c: Engine) -> list[str]:
    """Arrays in which the two loops end differently: none, or C is no yardstick."""
    ours, theirs = allocate(plan.launch), allocate(plan.launch)
    ends = run_numba(plan, ours), run_c(plan, theirs)
    found = [] if ends[0] == ends[1] else ["end"]
    return found + [name for name in ARRAYS if not np.array_equal(getattr(ours, name), getattr(theirs, name))]


@dataclass(frozen=True)
class Comparison:
    """Events per second of both loops on one launch."""

    name: str
    events: int
    numba_s: float
    c_s: float

    @property
    def ratio(self) -> float:
        """Events per second over those of C."""
        return self.c_s / self.numba_s


def compare(repeats: int = REPEATS) -> list[Comparison]:
    """Each launch on both loops in turn, so that what else the machine does hits both.

    Raises NoCompilerError, and AssertionError where the loops give different results.
    """
    found = []
    with compiled() as run_c:
        for name, plan in plans().items():
            different = differences(plan, run_c)
            assert not different, f"{name}: the loop in C differs in {', '.join(different)}"
            times: dict[Any, list[float]] = {run_numba: [], run_c: []}
            events = 0
            for _ in range(repeats):
                for loop, seconds in times.items():
                    buffers = allocate(plan.launch)
                    start = time.perf_counter()
                    loop(plan, buffers)
                    seconds.append(time.perf_counter() - start)
                    events = int(buffers.stats[Stat.EVENTS])
            found.append(Comparison(name, events, min(times[run_numba]), min(times[run_c])))
    return found


def mean_ratio(comparisons: list[Comparison]) -> float:
    """Geometric mean of the ratios."""
    return statistics.geometric_mean(item.ratio for item in comparisons)


def main() -> None:
    """Print a row for each launch."""
    rows = compare()
    print(f"{'launch':<34}{'events':>10}{'M/s':>8}{'C, M/s':>8}{'ratio':>8}")
    for item in rows:
        speeds = item.events / item.numba_s / 1e6, item.events / item.c_s / 1e6
        print(f"{item.name:<34}{item.events:>10}{speeds[0]:>8.2f}{speeds[1]:>8.2f}{item.ratio:>8.2f}")
    print(f"geometric mean of the ratios: {mean_ratio(rows):.2f}")


if __name__ == "__main__":
    main()
