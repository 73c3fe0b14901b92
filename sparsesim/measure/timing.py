"""One kernel under one protocol: warm-up, batches of calls, repeats until the median is known well enough.

What each protocol times (the words of the measured schema):

- ``stream``: calls back to back between two events; a sample is the mean over a batch.
- ``graph``: the same calls captured once and replayed; a sample is the mean over a replay.
- ``event``: an event pair round each call; a sample is one call. With L2 ``cold`` a flush stands before each pair.
- ``host``: host clock round one call and a synchronisation, on an idle device; a sample is one call.

L2: ``warm`` launches on one set of operands, ``rotating`` on as many sets in turn as exceed L2 `ROTATION` times,
``cold`` after a flush. Sensors are read while the device works on an enqueued batch, so that reading them leaves no
gap; under ``host`` between two calls, outside the timed part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sparsesim.errors import UserError
from sparsesim.measure.device import Graph, KernelError, MeasuringDevice, PreparedKernel, Telemetry
from sparsesim.measure.statistics import Summary, summarize
from sparsesim.protocol import Protocol

__all__ = ["LIVE_TIMINGS", "ROTATION", "Budget", "Timed", "check_protocol", "copies_needed", "time_kernel"]

LIVE_TIMINGS = ("stream", "graph", "event", "host")
#: bytes of all rotating operand sets over the size of L2
ROTATION = 2.5
MOST_COPIES = 64
#: calls of a rough timing that sizes the batches
PILOT_CALLS = 5
#: the median is looked at again when there are so many times more samples: sorting leaves the device idle
GROWTH = 1.25


@dataclass(frozen=True)
class Budget:
    """How long to measure.

    warmup_s : the kernel runs at least so long before the first sample, for clocks and caches to settle
    batch_s, most_calls : a batch is so many calls that it takes this long, and at most so many
    least_samples, most_samples : of the median
    least_s : sampling lasts at least so long, for the sensors to be read and the power controller to act
    precision : target half-width of the median's 95 % interval, over the median
    most_s : sampling ends after this time [s], whatever the precision
    """

    warmup_s: float = 0.2
    batch_s: float = 0.005
    most_calls: int = 200
    least_samples: int = 12
    most_samples: int = 2000
    least_s: float = 0.25
    precision: float = 0.01
    most_s: float = 5.0
    telemetry_s: float = 0.02


@dataclass(frozen=True)
class Timed:
    """A kernel's time: the summary of its samples, the calls in a batch, the board's readings.

    `converged` says whether the interval came under the target before a cap.
    """

    summary: Summary
    calls: int
    converged: bool
    readings: tuple[Telemetry, ...]


def check_protocol(protocol: Protocol) -> None:
    """Raise UserError for a protocol that cannot be measured live."""
    if protocol.timing not in LIVE_TIMINGS:
        raise UserError(
            f"--timing: expected one of {', '.join(LIVE_TIMINGS)} on a live GPU, found {protocol.timing!r}"
            " (device times need a tracer: profile the run and give its file to `validate`)"
        )
    if protocol.l2 == "cold" and protocol.timing in ("stream", "graph"):
        raise UserError(
            f"--l2: expected warm or rotating where launches run back to back, found 'cold' with timing "
            f"{protocol.timing!r} (the flush between two launches would be timed, too; use event or host)"
        )


def copies_needed(l2_state: str, bytes_per_copy: int, l2_bytes: int) -> int:
    """Operand sets that a protocol launches on."""
    if l2_state != "rotating":
        return 1
    return min(max(math.ceil(ROTATION * l2_bytes / bytes_per_copy) + 1, 2), MOST_COPIES)


def time_kernel(
    device: MeasuringDevice, kernel: PreparedKernel, protocol: Protocol, budget: Budget | None = None
) -> Timed:
    """Time `kernel` until its median is known to `budget.precision`, or a cap is reached.

    Raises
    ------
    UserError
        The protocol cannot be measured live.
    KernelError, DeviceLostError
        A launch failed.
    """
    check_protocol(protocol)
    return _Run(device, kernel, protocol, budget or Budget()).run()


class _Run:
    def __init__(self, device: MeasuringDevice, kernel: PreparedKernel, protocol: Protocol, budget: Budget) -> None:
        self.device, self.kernel, self.protocol, self.budget = device, kernel, protocol, budget
        self.next_copy = 0
        self.readings: list[Telemetry] = []
        self.last_reading = -math.inf

    def run(self) -> Timed:
        self._warm_up()
        self.readings.clear()  # what counts is the board's state while samples are taken
        calls = self._calls()
        batch = self._batch(calls)
        samples: list[float] = []
        look_at = self.budget.least_samples
        started = self.device.now()
        while True:
            samples += batch()
            passed = self.device.now() - started
            late = passed > self.budget.most_s
            early = passed < self.budget.least_s or len(samples) < look_at
            if len(samples) < self.budget.least_samples or (early and not late):
                continue
            summary = summarize(samples)
            converged = summary.half_width < self.budget.precision
            if converged or late or len(samples) >= self.budget.most_samples:
                return Timed(summary, calls, converged, tuple(self.readings))
            look_at = min(math.ceil(GROWTH * len(samples)), max(self.budget.most_samples, len(samples) + 1))

    def _launch(self) -> None:
        self.kernel.launch(self.next_copy)
        self.next_copy = (self.next_copy + 1) % self.kernel.copies

    def _read(self) -> None:
        """Read the sensors, if the last reading is old enough."""
        now = self.device.now()
        if now - self.last_reading >= self.budget.telemetry_s:
            self.last_reading = now
            self.readings.append(self.device.telemetry())

    def _warm_up(self) -> None:
        started = self.device.now()
        while True:
            for _ in range(PILOT_CALLS):
                self._launch()
            self._read()
            self.device.synchronize()
            if self.device.now() - started >= self.budget.warmup_s:
                return

    def _calls(self) -> int:
        """Calls of a batch, from a rough timing; whole turns over the operand sets."""
        started = self.device.now()
        for _ in range(PILOT_CALLS):
            self._launch()
        self.device.synchronize()
        rough = max((self.device.now() - started) / PILOT_CALLS, 1e-7)
        calls = min(max(math.ceil(self.budget.batch_s / rough), 2), self.budget.most_calls)
        return math.ceil(calls / self.kernel.copies) * self.kernel.copies

    def _batch(self, calls: int) -> Callable[[], list[float]]:
        """The function that takes the next samples [s]."""
        timing = self.protocol.timing
        if timing == "stream":
            return lambda: [self._span(lambda: self._repeat(calls)) / calls]
        if timing == "graph":
            graph = self._captured(calls)
            return lambda: [self._span(graph.replay) / calls]
        if timing == "event":
            return lambda: list(self._pairs(calls))
        return lambda: list(self._host_calls(calls))

    def _repeat(self, calls: int) -> None:
        for _ in range(calls):
            self._launch()

    def _captured(self, calls: int) -> Graph:
        self.next_copy = 0
        graph = self.device.capture(lambda: self._repeat(calls))
        graph.replay()  # the first replay uploads the graph
        self.device.synchronize()
        return graph

    def _span(self, work: Callable[[], None]) -> float:
        start = self.device.record()
        work()
        end = self.device.record()
        self._read()
        self.device.synchronize()
        return self._checked(self.device.elapsed_s(start, end))

    def _pairs(self, calls: int) -> Iterator[float]:
        pairs = []
        for _ in range(calls):
            if self.protocol.l2 == "cold":
                self.device.flush_l2()
            start = self.device.record()
            self._launch()
            pairs.append((start, self.device.record()))
        self._read()
        self.device.synchronize()
        return (self._checked(self.device.elapsed_s(start, end)) for start, end in pairs)

    def _host_calls(self, calls: int) -> Iterator[float]:
        for _ in range(calls):
            if self.protocol.l2 == "cold":
                self.device.flush_l2()
            self.device.synchronize()
            start = self.device.now()
            self._launch()
            self.device.synchronize()
            yield self._checked(self.device.now() - start)
            self._read()

    @staticmethod
    def _checked(seconds: float) -> float:
        if not (math.isfinite(seconds) and seconds > 0.0):
            raise KernelError(f"a timer that runs forwards was expected, it read {seconds!r} s")
        return seconds
