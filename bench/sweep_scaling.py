"""What a sweep costs: CPU time of workers, client and Dask scheduler per point, over 1, 2, … workers.

CPU time, not wall time, so that other work on the machine counts little. From it follow the throughput of n workers,
n / (CPU s per point), up to where client or scheduler is busy all the time, and the price of a million points.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

SWEEP = """
name = "scaling"
[design]
kind = "latin-hypercube"
points = {points}
[fixed]
gpu = "a100_pcie_80gb"
{work}
[axes]
sm.count = {{ low = 72, high = 144 }}
dram.bytes_per_s = {{ low = 0.5, high = 2.0, unit = "x", scale = "log" }}
"""
WORK = {
    "small": "m = 256\nn = 256\nk = 256",
    "model": 'workload = "llama-3.1-8b"\nphase = "prefill"\ntokens = 512',
}


def cpu(process: psutil.Process) -> float:
    """CPU seconds of a process, without those of its children."""
    times = process.cpu_times()
    return float(times.user + times.system)


@contextmanager
def cluster(workers: int) -> Iterator[tuple[str, psutil.Process, list[psutil.Process]]]:
    """A scheduler and `workers` workers of one thread as processes of their own."""
    folder = tempfile.TemporaryDirectory()
    where = Path(folder.name) / "scheduler.json"
    dask = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder.name}
    started = [subprocess.Popen([*dask, "--no-dashboard", "--scheduler-file", str(where)], **quiet)]
    try:
        while not where.is_file():
            time.sleep(0.1)
        worker = [sys.executable, "-m", "distributed.cli.dask_worker", "--scheduler-file", str(where)]
        options = ["--nthreads", "1", "--no-nanny", "--no-dashboard"]
        started += [subprocess.Popen([*worker, *options], **quiet) for _ in range(workers)]
        import json

        address = json.loads(where.read_text())["address"]
        yield address, psutil.Process(started[0].pid), [psutil.Process(p.pid) for p in started[1:]]
    finally:
        for process in reversed(started):  # a worker whose scheduler is gone may never end by itself
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        folder.cleanup()


def measure(kind: str, points: int, workers: int) -> dict[str, float]:
    """One sweep on a cluster of `workers`."""
    from sparsesim.sweep.driver import run_sweep
    from sparsesim.sweep.spec import read_spec

    with tempfile.TemporaryDirectory() as name, cluster(workers) as (address, scheduler, processes):
        file = Path(name) / "scaling.toml"
        file.write_text(SWEEP.format(points=points, work=WORK[kind]))
        spec = read_spec(file)
        small = SWEEP.format(points=8 * workers, work=WORK["small"])
        file.write_text(small)  # workers import and compile before the clock runs
        run_sweep(read_spec(file), Path(name) / "warm", cluster=address)
        client = psutil.Process()
        before = [cpu(client), cpu(scheduler), sum(map(cpu, processes))]
        memory = client.memory_info().rss, scheduler.memory_info().rss
        start = time.perf_counter()
        summary = run_sweep(spec, Path(name) / "store", cluster=address)
        wall = time.perf_counter() - start
        assert summary.failed == 0
        after = [cpu(client), cpu(scheduler), sum(map(cpu, processes))]
        used = [(b - a) / points for a, b in zip(before, after, strict=True)]
        grown = client.memory_info().rss - memory[0], scheduler.memory_info().rss - memory[1]
    return {
        "points": points,
        "workers": workers,
        "wall_s": wall,
        "client": used[0],
        "scheduler": used[1],
        "worker": used[2],
        "client_mb": grown[0] / 1e6,
        "scheduler_mb": grown[1] / 1e6,
    }


def main() -> None:
    """Measure and extrapolate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--small", type=int, nargs="+", default=[500, 2000], help="points of one small GEMM each")
    parser.add_argument("--model", type=int, default=40, help="points of one model each")
    chosen = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores before the run")
    print("work   points workers  wall s  CPU ms/point: worker client scheduler  grown MB: client scheduler")
    runs = []
    for kind, counts in (("small", chosen.small), ("model", [chosen.model])):
        for points in counts:
            for workers in chosen.workers:
                r = measure(kind, points, workers)
                runs.append((kind, r))
                print(
                    f"{kind:<6} {points:6} {workers:7} {r['wall_s']:7.1f} {r['worker'] * 1e3:21.1f} "
                    f"{r['client'] * 1e3:6.2f} {r['scheduler'] * 1e3:9.2f} "
                    f"{r['client_mb']:17.1f} {r['scheduler_mb']:9.1f}",
                    flush=True,
                )
    model = [r for kind, r in runs if kind == "model"][-1]
    longest = [r for kind, r in runs if kind == "small"][-1]
    point, serial = model["worker"], max(longest["client"], longest["scheduler"])
    print(f"\n10^6 points of the model: {point * 1e6 / 3600:.0f} core hours of workers")
    for workers in (16, 64, 256, 1024):
        rate = min(workers / point, 1.0 / serial)
        limit = "workers" if workers / point < 1.0 / serial else "client or scheduler"
        print(f"  {workers:5} workers: {rate:7.1f} points/s, {1e6 / rate / 3600:7.1f} h, limited by {limit}")
    print(f"  client and scheduler keep up with {point / serial:.0f} workers")


if __name__ == "__main__":
    main()
