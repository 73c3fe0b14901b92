"""A GPU for tests of measuring: its clock, noise, throttling and failures are what a test sets.

Time is simulated: the host clock advances by what host calls cost, the device works through a queue. No call reads a
real clock, so every run gives the same bytes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sparsesim.measure import (
    Case,
    DeviceInfo,
    DeviceLostError,
    KernelError,
    OutOfMemoryError,
    Telemetry,
    UnsupportedError,
)

A100 = DeviceInfo(
    name="NVIDIA A100 80GB PCIe", uuid="GPU-0", compute_capability="8.0", sms=108, memory_bytes=85_000_000_000,
    l2_bytes=40 << 20, driver="580.65", cuda="13.0", libraries={"torch": "2.13.0", "cusparselt": "800"},
    power_limit_w=300.0, max_sm_mhz=1410.0,
)  # fmt: skip


@dataclass
class FakeGpu:
    """A device whose kernels take `seconds(case, library)`, plus what a cold L2 and the noise add.

    `host_s` is what the host pays per launch, `gap_s` the idle time between kernels of a stream, `graph_gap_s` in a
    graph. `noise` is the relative standard deviation, `spike_every`/`spike` make every such launch so much slower.
    Failures: `unsupported` and `broken` cases, `wrong` results, `memory` bytes, `lost_after` launches.
    """

    seconds: Callable[[Case, str], float] = lambda case, library: 1e-4
    info: DeviceInfo = A100
    host_s: float = 2e-6
    gap_s: float = 1e-6
    graph_gap_s: float = 2e-7
    cold_s: float = 0.0
    noise: float = 0.0
    spike_every: int = 0
    spike: float = 10.0
    unsupported: frozenset[str] = frozenset()
    broken: frozenset[str] = frozenset()
    wrong: Mapping[str, float] = field(default_factory=dict)
    memory: float = float("inf")
    lost_after: int | None = None
    reasons: Callable[[float], frozenset[str]] = lambda now: frozenset()
    sm_mhz: Callable[[float], float] = lambda now: 1410.0
    seed: int = 1
    backwards: bool = False

    def __post_init__(self) -> None:
        self.host = 0.0
        self.device = 0.0
        self.launches = 0
        self.by_copy: dict[int, int] = {}
        self.flushes = 0
        self.cold = True
        self.random = random.Random(self.seed)
        self.prepared = 0
        self.released = 0
        self.in_graph: list[tuple[FakeKernel, int]] | None = None
        self.replaying = False
        self.reads: list[bool] = []
        self.lost = False

    def prepare(self, case: Case, library: str, data: str, copies: int, seed: int) -> FakeKernel:
        self._check()
        if f"{library}: {case}" in self.unsupported:
            raise UnsupportedError("no kernel for this shape")
        if case.operand_bytes * copies > self.memory:
            raise OutOfMemoryError(f"tried to allocate {case.operand_bytes * copies} bytes")
        self.prepared += 1
        return FakeKernel(self, case, library, data, copies)

    def now(self) -> float:
        return self.host

    def synchronize(self) -> None:
        self._check()
        self.host = max(self.host, self.device)

    def record(self) -> Any:
        return [max(self.device, self.host)]

    def elapsed_s(self, start: Any, end: Any) -> float:
        return -1.0 if self.backwards else end[0] - start[0]

    def flush_l2(self) -> None:
        self.flushes += 1
        self.cold = True
        self.device = max(self.device, self.host) + 5e-5

    def capture(self, work: Callable[[], None]) -> Any:
        self.in_graph = []
        work()
        launches, self.in_graph = self.in_graph, None
        return FakeGraph(self, launches)

    def telemetry(self) -> Telemetry:
        self.reads.append(self.device > self.host)
        return Telemetry(self.sm_mhz(self.host), 1593.0, 250.0, 60.0, self.reasons(self.host))

    def _check(self) -> None:
        if self.lost:
            raise DeviceLostError("unspecified launch failure")

    def run(self, kernel: FakeKernel, copy: int, gap: float) -> None:
        """Put one kernel into the queue."""
        self._check()
        self.launches += 1
        self.by_copy[copy] = self.by_copy.get(copy, 0) + 1
        if self.lost_after is not None and self.launches > self.lost_after:
            self.lost = True
            self._check()
        took = kernel.seconds * max(self.random.gauss(1.0, self.noise), 0.1)
        if self.spike_every and self.launches % self.spike_every == 0:
            took *= self.spike
        if self.cold:
            took += self.cold_s
            self.cold = False
        self.device = max(self.device + gap, self.host) + took


@dataclass
class FakeKernel:
    gpu: FakeGpu
    case: Case
    library: str
    data: str
    copies: int

    def __post_init__(self) -> None:
        self.seconds = self.gpu.seconds(self.case, self.library)
        self.label = f"{self.library} (fake)"
        self.freed = False

    def launch(self, copy: int) -> None:
        assert not self.freed
        assert 0 <= copy < self.copies
        if self.gpu.in_graph is not None:
            self.gpu.in_graph.append((self, copy))
            return
        if f"{self.library}: {self.case}" in self.gpu.broken:
            raise KernelError("CUBLAS_STATUS_EXECUTION_FAILED")
        self.gpu.host += self.gpu.host_s
        self.gpu.run(self, copy, self.gpu.gap_s)

    def relative_error(self) -> float:
        return self.gpu.wrong.get(f"{self.library}: {self.case}", 1e-4 if self.case.dtype != "i8" else 0.0)

    def release(self) -> None:
        if not self.freed:
            self.freed = True
            self.gpu.released += 1


@dataclass
class FakeGraph:
    gpu: FakeGpu
    launches: list[tuple[FakeKernel, int]]

    def replay(self) -> None:
        self.gpu.host += self.gpu.host_s
        self.gpu.device = max(self.gpu.device, self.gpu.host)
        for kernel, copy in self.launches:
            self.gpu.run(kernel, copy, self.gpu.graph_gap_s)
