"""How a time was, or is to be, taken: what it includes, the L2 state, the clock.

The same words as the measured-timings schema. Nothing here simulates; `interval_s` only adds the launch costs
that each way of timing includes to a kernel's own time.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparsesim.errors import UserError, nearest
from sparsesim.hardware import GpuSpec

__all__ = ["L2_STATES", "TIMINGS", "Protocol", "interval_s", "launch_gaps", "launch_run", "parse_clock"]

TIMINGS = ("stream", "graph", "kernel", "event", "host")
L2_STATES = ("warm", "rotating", "cold")
#: launches of a benchmark loop before and while the clock is read: the usual order of size (triton.testing,
#: CUTLASS profiler); published timings seldom say theirs
BENCHMARK_LOOP = (25, 100)


@dataclass(frozen=True)
class Protocol:
    """timing: what the figure includes; l2: what is in L2 at the start; locked_hz: clock, None = free."""

    timing: str = "kernel"
    l2: str = "rotating"
    locked_hz: float | None = None

    def __post_init__(self) -> None:
        if not (self.locked_hz is None or isinstance(self.locked_hz, int | float)):
            raise UserError(
                f"locked_hz: expected a number [Hz] or None, found {self.locked_hz!r}; Protocol.parse takes words"
            )

    @staticmethod
    def parse(timing: str = "kernel", l2: str = "rotating", clock: str = "free") -> Protocol:
        """From the words of the schema; raises UserError naming the field and the nearest valid word."""
        problems = []
        for field, value, valid in (("timing", timing, TIMINGS), ("l2", l2, L2_STATES)):
            if value not in valid:
                problems.append(f"{field}: expected one of {', '.join(valid)}, found {value!r}{nearest(value, valid)}")
        locked = None
        try:
            locked = parse_clock(clock)
        except UserError as err:
            problems += err.problems
        if problems:
            raise UserError(problems)
        return Protocol(timing, l2, locked)

    @property
    def clock(self) -> str:
        """The clock in the words of the schema."""
        return "free" if self.locked_hz is None else f"locked:{self.locked_hz / 1e6:g}"


def parse_clock(text: str) -> float | None:
    """``free`` → None, ``locked:<MHz>`` → Hz."""
    if text == "free":
        return None
    if not isinstance(text, str):
        raise UserError(f"clock: expected free or locked:<MHz>, found {text!r}")
    word, _, number = text.partition(":")
    try:
        mhz = float(number)
    except ValueError:
        mhz = 0.0
    if word != "locked" or not 1.0 <= mhz <= 10_000.0:
        raise UserError(f"clock: expected free or locked:<MHz>, found {text!r}")
    return mhz * 1e6


def launch_run(timing: str) -> tuple[int, int] | None:
    """(launches before, launches timed) of the loop behind a figure; None for a tracer's view into a running model."""
    return None if timing == "kernel" else BENCHMARK_LOOP


def launch_gaps(gpu: GpuSpec, timing: str, launches: int = 1, sparse: bool = False) -> tuple[float, float]:
    """(idle time that a call adds to its kernels' busy time, shortest interval between calls) [s].

    A call of `launches` dependent kernels pays ramp and drain for each; a sparse one has a longer ramp. graph and
    stream add the gap between dependent kernels; stream and host calls come no faster than the host issues them;
    event adds its overhead.
    """
    launch = gpu.launch
    inner_gap = launch.graph_gap if timing == "graph" else launch.stream_gap
    gap = launches * (launch.ramp + launch.drain) + (launches - 1) * inner_gap
    gap += launch.sparse_ramp if sparse else 0.0
    floor = {"stream": launch.host_call, "host": launch.framework_call}.get(timing, 0.0)
    after = {"kernel": 0.0, "event": launch.event_overhead}.get(timing, inner_gap)
    return gap + after, floor


def interval_s(
    gpu: GpuSpec,
    timing: str,
    busy_s: float,
    launches: int = 1,
    sparse: bool = False,
    free_launch: bool = False,
) -> tuple[float, float]:
    """(time that the protocol reports, idle time in it) [s] of a call whose kernels are busy for `busy_s`.

    `free_launch` idealises all launch costs. See `launch_gaps`.
    """
    if free_launch:
        return busy_s, 0.0
    gap, floor = launch_gaps(gpu, timing, launches, sparse)
    total = max(busy_s + gap, floor)
    return total, total - busy_s
