"""Benchmarks: how long the simulator takes. Prints a table; compare ratios, not absolute times.

Every figure is the best of several warm runs in this process on one core. "x SimPy twin" compares events per
second of the jitted loop with those of the reference twin in the same run, so machine speed cancels out.
"""

from __future__ import annotations

import math
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable

import engine_c
import history

from sparsesim.device import twin
from sparsesim.device.build import Shape, build
from sparsesim.device.engine import Stat, allocate, run
from sparsesim.device.simulate import Conditions, Device
from sparsesim.hardware import GpuSpec, load_gpu
from sparsesim.kernels import Kernel, Operands
from sparsesim.protocol import Protocol
from sparsesim.simulator import Simulator
from sparsesim.sparsity import Pattern
from sparsesim.workload import Gemm

#: squares whose cost is compared with their work
SIDES = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)


def best(function: Callable[[], object], repeats: int = 5) -> float:
    """Shortest of several runs [s], after one that is not counted."""
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def work_rows(gpu: GpuSpec, kernel: Kernel, operands: Operands) -> list[tuple[str, float, str]]:
    """Seconds for each million CTA k-steps of a square launch: linear or better if they do not grow with the side.

    A launch within the step budget runs every event; beyond it the steady middle is extrapolated.
    """
    found = []
    first = 0.0
    for side in SIDES:
        work = math.prod(kernel.tiles(side, side)) * kernel.k_steps(side) / 1e6
        seconds = best(lambda side=side: Device(gpu).launch(kernel, operands, Shape(side, side, side), Conditions()), 3)
        first = first or seconds / work
        found.append((f"{side}³: s for 10⁶ CTA k-steps", seconds / work, f"{seconds / work / first:.3f} x {SIDES[0]}³"))
    return found


def launch_megabytes(gpu: GpuSpec, kernel: Kernel, operands: Operands) -> float:
    """Peak memory that one launch of 65536³ allocates, arrays of NumPy included [MB]; the loop itself takes none."""
    tracemalloc.start()
    try:
        Device(gpu).launch(kernel, operands, Shape(65536, 65536, 65536), Conditions())
        return tracemalloc.get_traced_memory()[1] / 1e6
    finally:
        tracemalloc.stop()


def main() -> None:
    """Run all benchmarks and print the table."""
    gpu = load_gpu("a100_pcie_80gb")
    operands = Operands.of(gpu, "f16", "f32", Pattern.parse("2:4"))
    kernel = Kernel("sm80", True, 256, 128, 64, 3, 4, 2, raster_group=1)
    conditions = Conditions(l2="warm")
    rows: list[tuple[str, float, str]] = []

    def launch(side: int, budget: int) -> Callable[[], object]:
        return lambda: Device(gpu, budget).launch(kernel, operands, Shape(side, side, side), conditions)

    def engine_run(side: int) -> Callable[[], object]:
        plan = build(gpu, kernel, operands, Shape(side, side, side), gpu.clock.max, warm=True)
        return lambda: run(plan.launch, allocate(plan.launch), plan.ticks, plan.size)

    rows.append(("8192³ f16 2:4, one tile, every event", best(engine_run(8192)), "target 0.15 s"))
    rows.append(("8192³ f16 2:4, with clock settling", best(launch(8192, 400_000)), ""))
    rows.append(("65536³ f16 2:4, steady middle extrapolated", best(launch(65536, 400_000), 3), "target 1 s"))

    def gemm(side: int) -> Callable[[], object]:
        op = Gemm(name="square", m=side, n=side, k=side, dtype="f16", pattern="2:4")
        return lambda: Simulator(gpu).gemm(op, Protocol("stream", "warm"))

    rows.append(("4096³ with full tile search, dense and sparse", best(gemm(4096), 5), "target 0.06 s"))
    searched = Gemm(name="square", m=4096, n=4096, k=4096, dtype="f16", pattern="2:4")
    both = best(lambda: Simulator(gpu, baseline="search").gemm(searched, Protocol("kernel", "rotating")), 5)
    rows.append(("4096³ kernel, rotating; the baseline searched too", both, "target 0.06 s"))
    rows += work_rows(gpu, kernel, operands)
    rows.append(("65536³, memory of the launch [MB]", launch_megabytes(gpu, kernel, operands), "target 200 MB"))
    try:
        loops = engine_c.compare()
        rows += [
            (f"events/s over those of C -O3: {item.name}", item.ratio, f"C {item.events / item.c_s / 1e6:.1f} M/s")
            for item in loops
        ]
        rows.append(("events/s over those of C -O3, geometric mean", engine_c.mean_ratio(loops), "target 0.9"))
    except engine_c.NoCompilerError as error:
        print(f"left out: {error}")

    small = build(gpu, kernel, operands, Shape(4096, 2048, 1024), gpu.clock.max, warm=False)
    buffers = allocate(small.launch)
    run(small.launch, buffers, small.ticks, small.size)
    events = float(buffers.stats[Stat.EVENTS])
    fast = events / best(lambda: run(small.launch, allocate(small.launch), small.ticks, small.size))
    slow = events / best(lambda: twin.run(small.launch, small.ticks, small.size), 1)
    rows.append(("events per second, jitted loop [M/s]", fast / 1e6, f"{fast / slow:.0f} x SimPy twin"))
    start = [
        sys.executable,
        "-m",
        "sparsesim",
        "gemm",
        "--gpu",
        "rtx4090",
        "-m",
        "4096",
        "-n",
        "4096",
        "-k",
        "4096",
    ]
    seconds = best(lambda: subprocess.run(start, check=True, capture_output=True), 2)
    rows.append(("start of `sparsesim gemm`, second process", seconds, "target 2 s"))

    def python(*arguments: str) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, *arguments], check=True, capture_output=True)

    rows.append(("import sparsesim, new process", best(python("-c", "import sparsesim"), 5), "target 0.3 s"))
    rows.append(("sparsesim --help, new process", best(python("-m", "sparsesim", "--help"), 5), "target 0.4 s"))

    changes = history.append({name: value for name, value, _ in rows})
    width = max(len(name) for name, _, _ in rows)
    for name, value, note in rows:
        change = f"{changes[name]:6.2f} x last run" if name in changes else ""
        print(f"{name:<{width}}  {value:9.3f}  {note:<20}  {change}")
    print(f"\nadded to {history.HISTORY.name}, {len(history.read())} runs")


if __name__ == "__main__":
    main()
