"""One launch on one GPU → time, clock, power and counters.

Three things are added to the event loop: long launches run their first waves and their tail and are
extrapolated over the steady middle; the clock is brought to what the board's power limit sustains; and equal
launches are simulated once per `Device`.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sparsesim.device.bound import least_seconds
from sparsesim.device.build import LaunchPlan, Shape, build, reduction_cycles
from sparsesim.device.engine import OWNERS, RECORDED, TICKS, Launch, Owner, Stat, allocate, run
from sparsesim.device.power import Energy, board_power, launch_energy, run_clock
from sparsesim.hardware import GpuSpec
from sparsesim.kernels import Kernel, Operands

__all__ = ["Conditions", "Device", "LaunchResult", "Utilisation"]

#: CTA k-steps that are simulated before the steady middle of a launch is extrapolated
STEP_BUDGET = 400_000
#: waves that are always simulated: ramp, enough of the steady middle to measure it, tail
MIN_WAVES = 8
#: k-steps of one CTA beyond which a launch is extrapolated along k
MAX_CTA_STEPS = 1024
CLOCK_TOLERANCE = 0.002
#: share of the time that a server which binds is busy
BOUND = 0.5
#: CTA k-steps and waves of the short runs on which a long launch settles its clock, and how near they must come
PILOT_BUDGET = 40_000
PILOT_WAVES = 5
PILOT_STEPS = 128
PILOT_TOLERANCE = 0.02
CLOCK_ROUNDS = 4
#: after runs at two clocks the third is interpolated if it is nearer to the second than this part of their distance
REACH = 0.5
SECANT_ROUNDS = 12
#: how far beyond two runs a third is extrapolated, in parts of their distance
FARTHEST = 0.9
#: recorded servers of which each SM has its own
PER_SM = ("tensor", "smem", "decode", "issue", "port")


@dataclass(frozen=True)
class Conditions:
    """How a launch is run.

    l2 : "warm" (the same buffers again and again), "rotating" or "cold" (nothing of them is in L2)
    locked_hz : SM clock if it is locked, else None: power decides
    gap_s, floor_s : for the power balance, idle time between launches and the shortest interval between them
    run : (launches before the timed ones, timed launches) of a benchmark loop; None = a load without end
    activity : switching activity of the data, 1 for random; None = zeros (the GPU's `zeros_activity`)
    """

    l2: str = "rotating"
    locked_hz: float | None = None
    gap_s: float = 0.0
    floor_s: float = 0.0
    run: tuple[int, int] | None = None
    activity: float | None = 1.0


@dataclass(frozen=True)
class Utilisation:
    """How busy each server of `engine.RECORDED` is over the time of a launch, as the event loop recorded it.

    cycles : SM cycles of one bin
    share : float[bins, len(RECORDED)]; of an SM's server the mean over all SMs. The last bin may begin before and
        end after the launch's end.
    """

    cycles: float
    share: np.ndarray


@dataclass(frozen=True)
class LaunchResult:
    """What one launch took. Cycles are SM cycles at `clock_hz`; `owners` sum to SMs × cycles."""

    kernel: Kernel
    cycles: float
    clock_hz: float
    power_w: float
    sms: int
    ctas: int
    slots: int
    residency_limit: str
    extrapolated: bool
    owners: dict[str, float]
    counters: dict[str, float]
    timeline: np.ndarray | None = field(default=None, compare=False, repr=False)
    utilisation: Utilisation | None = field(default=None, compare=False, repr=False)

    @property
    def seconds(self) -> float:
        """Device time from the first CTA to the last, without ramp and drain [s]."""
        return self.cycles / self.clock_hz

    @property
    def launches(self) -> int:
        """GPU kernels that this launch takes: split-K adds one that reduces the partial tiles."""
        return 2 if self.kernel.split_k > 1 else 1

    @property
    def bound_by(self) -> str:
        """Server that is busy for the largest part of the time; "occupancy" if none is for `BOUND` of it.

        The largest owner of SM-cycles is another thing: a k-step's time belongs to the last of its servers alone.
        """
        busy = {name: self.counters[f"{name}_busy"] for name in ("tensor", "smem", "decode", "issue", "l2", "dram")}
        busy["l2"] = max(busy["l2"], self.counters["port_busy"])
        most = max(busy, key=lambda name: busy[name])
        return most if busy[most] >= BOUND else "occupancy"


@dataclass(frozen=True)
class _Raw:
    """Counters of one (possibly extrapolated) run of the event loop."""

    cycles: float
    owners: np.ndarray
    stats: np.ndarray
    extrapolated: bool
    timeline: np.ndarray | None = None
    utilisation: Utilisation | None = None


class Device:
    """A GPU that runs launches; remembers those it has run.

    Parameters
    ----------
    gpu : GpuSpec
    step_budget : CTA k-steps simulated before extrapolating; larger is slower and no more exact than 0.5 %
    min_waves : waves that are always simulated, whatever they cost
    max_steps : k-steps of one CTA beyond which a launch is extrapolated along k
    memory : launches that other devices have run, to share with them; equal launches of different GPUs are one
    """

    def __init__(
        self,
        gpu: GpuSpec,
        step_budget: int = STEP_BUDGET,
        min_waves: int = MIN_WAVES,
        max_steps: int = MAX_CTA_STEPS,
        memory: dict[tuple[object, ...], Any] | None = None,
    ) -> None:
        self.gpu = gpu
        self.max_steps = max_steps
        self.min_waves = min_waves
        self.step_budget = step_budget
        #: launches that the event loop has run
        self.runs = 0
        self.memory: dict[tuple[object, ...], Any] = {} if memory is None else memory
        self._running: dict[tuple[object, ...], threading.Event] = {}
        self._lock = threading.Lock()

    def launch(
        self,
        kernel: Kernel,
        operands: Operands,
        shape: Shape,
        conditions: Conditions,
        ideal: frozenset[str] = frozenset(),
        keep_timeline: bool = False,
        clock_guess: float | None = None,
        bins: int = 0,
    ) -> LaunchResult:
        """Run one launch.

        `clock_guess` is where the search for the sustained clock begins (default: `clock.max`). `ideal` names
        mechanisms to idealise (`build.DEVICE_IDEALS`, and "power": the clock is never lowered). With `bins`, the
        timeline is kept and the use of the servers recorded in so many equal parts of the launch.
        """
        gpu = self.gpu
        activity = gpu.power.zeros_activity if conditions.activity is None else conditions.activity
        clock = conditions.locked_hz or gpu.clock.max
        device_ideal = ideal - {"power"}
        warm = conditions.l2 == "warm"
        tolerance = CLOCK_TOLERANCE
        if conditions.locked_hz is None and "power" not in ideal:
            clock = clock_guess or clock
            if clock_guess is None and self.step_budget > 2 * PILOT_BUDGET and _steps(kernel, shape) > self.step_budget:
                # a long launch settles its clock on short runs, and is then run once
                pilot = Device(gpu, PILOT_BUDGET, PILOT_WAVES, PILOT_STEPS, self.memory)
                clock = pilot.launch(kernel, operands, shape, conditions, ideal).clock_hz
                tolerance = PILOT_TOLERANCE
        ran: list[tuple[float, _Raw]] = []
        for round_ in range(CLOCK_ROUNDS):
            plan = build(gpu, kernel, operands, shape, clock, warm, device_ideal)
            raw = _with_reduction(self._run(plan, keep_timeline), gpu, plan, clock, device_ideal)
            energy = self._energy(plan, raw, activity)
            settled = run_clock(gpu, energy, raw.cycles, conditions.gap_s, conditions.floor_s, conditions.run)
            if conditions.locked_hz or "power" in ideal:
                settled = min(clock, settled) if conditions.locked_hz and "power" not in ideal else clock
                if settled == clock:
                    break
            if abs(settled / clock - 1.0) < tolerance or round_ == CLOCK_ROUNDS - 1:
                clock = settled
                break
            ran.append((clock, raw))
            if conditions.locked_hz:
                clock = settled
            elif len(ran) == 1:
                clock = self._between(plan, ran[0], _slower(*ran[0]), conditions, activity)[0]
            else:
                settled, between = self._between(plan, ran[-2], ran[-1], conditions, activity)
                if abs(settled - clock) <= abs(ran[-2][0] - clock) * REACH and not (keep_timeline or bins):
                    clock, raw, energy = settled, between, self._energy(plan, between, activity)
                    break
                clock = settled
        power = board_power(gpu, energy, raw.cycles, conditions.gap_s, clock, conditions.floor_s)
        if bins:
            raw = replace(raw, **self._record(plan, bins))
        return LaunchResult(
            kernel=kernel,
            cycles=raw.cycles,
            clock_hz=clock,
            power_w=power,
            sms=gpu.sm.count,
            ctas=plan.launch.ctas,
            slots=plan.launch.slots,
            residency_limit=plan.residency_limit,
            extrapolated=raw.extrapolated,
            owners={name: float(value) / TICKS for name, value in zip(OWNERS, raw.owners, strict=True)},
            counters=_counters(gpu, plan, raw),
            timeline=raw.timeline,
            utilisation=raw.utilisation,
        )

    def at_least(self, kernel: Kernel, operands: Operands, shape: Shape, conditions: Conditions) -> float:
        """Device time [s] that a launch takes at least, without running it; see `bound.least_seconds`."""
        gpu, c = self.gpu, conditions
        clock = c.locked_hz or gpu.clock.max
        plan = build(gpu, kernel, operands, shape, clock, c.l2 == "warm")
        activity = gpu.power.zeros_activity if c.activity is None else c.activity
        return least_seconds(gpu, plan, clock, c.locked_hz is not None, c.gap_s, c.floor_s, c.run, activity)

    def _between(
        self, plan: LaunchPlan, a: tuple[float, _Raw], b: tuple[float, _Raw], conditions: Conditions, activity: float
    ) -> tuple[float, _Raw]:
        """Clock at which a launch that ran at two clocks settles, and its run there: all counts linear in the clock.

        They are so where one server binds: of DRAM's time the cycles are proportional to the clock.
        """
        clock, raw = b
        last = 0.0
        for _ in range(SECANT_ROUNDS):
            energy = self._energy(plan, raw, activity)
            clock = run_clock(self.gpu, energy, raw.cycles, conditions.gap_s, conditions.floor_s, conditions.run)
            if clock == last:  # settled to the last bit
                break
            last = clock
            weight = (clock - a[0]) / (b[0] - a[0])
            raw = _blend(a[1], b[1], min(max(weight, -FARTHEST), 1.0 + FARTHEST))
        return clock, raw

    def _energy(self, plan: LaunchPlan, raw: _Raw, activity: float) -> Energy:
        idle = raw.owners[Owner.IDLE] / TICKS
        steps = raw.stats[Stat.STEPS]
        return launch_energy(
            self.gpu,
            plan.operands.dtype,
            plan.shape.macs / plan.operands.gain,
            raw.cycles * self.gpu.sm.count - idle,
            steps * plan.step.smem_bytes,
            raw.stats[Stat.L2_READ_BYTES] + raw.stats[Stat.L2_WRITE_BYTES],
            raw.stats[Stat.DRAM_READ_BYTES] + raw.stats[Stat.DRAM_WRITE_BYTES],
            plan.operands.gain > 1.0,
            activity,
        )

    def _run(self, plan: LaunchPlan, keep_timeline: bool) -> _Raw:
        if keep_timeline:
            return self._run_waves(plan.launch, plan, keep_timeline=True)
        deep = plan.launch.steps_per_split > self.max_steps
        whole = not deep and _shorten(plan.launch, self.step_budget, self.min_waves)[1] == 0
        # a launch of which nothing is cut is the same under every budget
        budget = () if whole else (self.step_budget, self.min_waves, self.max_steps)
        key = (*budget, *plan.key)
        with self._lock:  # threads that want a launch which another one runs wait for it
            mine = key not in self._running and key not in self.memory
            if mine:
                self._running[key] = threading.Event()
            event = self._running.get(key)
        if mine:
            try:
                self.memory[key] = self._run_deep(plan) if deep else self._run_waves(plan.launch, plan, False)
            finally:
                with self._lock:
                    self._running.pop(key).set()
        elif event is not None:
            event.wait()
        known: _Raw | None = self.memory.get(key)
        return known if known is not None else self._run(plan, keep_timeline)

    def _run_waves(self, whole: Launch, plan: LaunchPlan, keep_timeline: bool) -> _Raw:
        """Run a launch, without its steady middle if it is long."""
        launch, waves = _shorten(whole, self.step_budget, self.min_waves)
        buffers = allocate(launch)
        end = run(launch, buffers, plan.ticks, plan.size)
        with self._lock:
            self.runs += 1
        raw = _Raw(
            end / TICKS,
            buffers.owners.astype(float),
            buffers.stats.astype(float),
            extrapolated=launch.ctas < whole.ctas,
            timeline=buffers.timeline.copy() if keep_timeline else None,
        )
        return _extrapolate(raw, whole, launch, waves, buffers.timeline) if raw.extrapolated else raw

    def _record(self, plan: LaunchPlan, bins: int) -> dict[str, Any]:
        """Timeline and utilisation of a launch. It runs twice: the first run says how long a bin has to be."""
        launch, _ = _shorten(plan.launch, self.step_budget, self.min_waves)
        end = run(launch, allocate(launch), plan.ticks, plan.size)
        width = -(-end // bins)
        buffers = allocate(launch, bins, width)
        run(launch, buffers, plan.ticks, plan.size)
        self.runs += 2
        assert buffers.busy is not None
        units = np.array([launch.sms if name in PER_SM else 1 for name in RECORDED])
        share = buffers.busy[:-1] / (units * width)
        return {"timeline": buffers.timeline, "utilisation": Utilisation(width / TICKS, share)}

    def _run_deep(self, plan: LaunchPlan) -> _Raw:
        """A launch with very many k-steps per CTA: two shallower ones, extrapolated along k.

        L2 shrinks with the depth, so that as much of the operands stays in it.
        """

        def shallow(steps: int) -> _Raw:
            p = plan.launch
            capacity = max(p.l2_capacity * steps // p.steps_per_split, int(plan.size[:, 0, 1].max()))
            cut = p._replace(k_steps=steps * p.splits, steps_per_split=steps, l2_capacity=capacity)
            return self._run_waves(cut, plan, keep_timeline=False)

        most = self.max_steps
        half, full = shallow(most // 2), shallow(most)
        beyond = (plan.launch.steps_per_split - most) / (most - most // 2)
        cycles = full.cycles + (full.cycles - half.cycles) * beyond
        owners = np.maximum(full.owners + (full.owners - half.owners) * beyond, 0.0)
        owners *= cycles * TICKS * plan.launch.sms / owners.sum()
        return _Raw(cycles, owners, full.stats + (full.stats - half.stats) * beyond, extrapolated=True)


def _slower(clock: float, raw: _Raw) -> tuple[float, _Raw]:
    """What a run at half the clock is expected to be: where DRAM binds it takes as long, else as many cycles."""
    busy = min(float(raw.stats[Stat.DRAM_BUSY]) / TICKS / raw.cycles, 1.0)
    share = max(busy - BOUND, 0.0)
    return 0.5 * clock, replace(raw, cycles=raw.cycles * (1.0 - share), owners=raw.owners * (1.0 - share))


def _blend(a: _Raw, b: _Raw, weight: float) -> _Raw:
    """`a` for weight 0, `b` for 1."""
    cycles = a.cycles + (b.cycles - a.cycles) * weight
    owners = np.maximum(a.owners + (b.owners - a.owners) * weight, 0.0)
    owners *= cycles / b.cycles * b.owners.sum() / owners.sum()
    return replace(b, cycles=cycles, owners=owners, stats=a.stats + (b.stats - a.stats) * weight)


def _steps(kernel: Kernel, shape: Shape) -> int:
    """CTA k-steps of a launch."""
    tiles_m, tiles_n = kernel.tiles(shape.m, shape.n)
    return tiles_m * tiles_n * shape.batch * kernel.k_steps(shape.k)


def _with_reduction(raw: _Raw, gpu: GpuSpec, plan: LaunchPlan, clock_hz: float, ideal: frozenset[str]) -> _Raw:
    """Add the kernel that reduces split-K partials; its SM-cycles belong to the epilogue."""
    extra = reduction_cycles(gpu, plan, clock_hz, ideal)
    if extra == 0.0:
        return raw
    owners = raw.owners.copy()
    owners[Owner.EPILOGUE] += extra * TICKS * gpu.sm.count
    partials = float(raw.stats[Stat.PARTIAL_BYTES])
    spilled = float(raw.stats[Stat.DRAM_WRITE_BYTES]) if plan.size[3, 0, 2] > 0 else 0.0
    stats = raw.stats.copy()
    stats[Stat.L2_READ_BYTES] += partials
    stats[Stat.DRAM_READ_BYTES] += min(spilled, partials)
    stats[Stat.L2_WRITE_BYTES] += plan.shape.m * plan.shape.n * plan.shape.batch * plan.shape.out_bytes
    return replace(raw, cycles=raw.cycles + extra, owners=owners, stats=stats)


def _shorten(launch: Launch, budget: int, min_waves: int) -> tuple[Launch, int]:
    """The launch without its steady middle, and the whole waves that are left (0: nothing was cut)."""
    workers = min(launch.sms * launch.slots, launch.ctas)
    waves = max(min_waves, budget // (workers * launch.steps_per_split))
    kept = waves * workers + launch.ctas % workers
    if launch.ctas <= kept + 2 * workers:
        return launch, 0
    return launch._replace(ctas=kept, skip_from=(waves - 2) * workers, skip_by=launch.ctas - kept), waves


def _extrapolate(raw: _Raw, whole: Launch, short: Launch, waves: int, timeline: np.ndarray) -> _Raw:
    """Add the cut waves at the steady rate at which the kept ones started."""
    workers = min(short.sms * short.slots, short.ctas)
    first, last = waves // 3, waves - 2
    # a wave starts with the mean start of its CTAs: they drift apart
    start = timeline[: waves * workers, 1].reshape(waves, workers).mean(axis=1)
    period = (start[last] - start[first]) / (last - first) / TICKS
    cycles = raw.cycles + (whole.ctas - short.ctas) / workers * period
    stats = raw.stats * (whole.ctas / short.ctas)
    owners = raw.owners * (cycles / raw.cycles)
    return replace(raw, cycles=cycles, stats=stats, owners=owners)


def _counters(gpu: GpuSpec, plan: LaunchPlan, raw: _Raw) -> dict[str, float]:
    """Named counters [bytes, or shares of the available cycles]."""
    stats = raw.stats
    sm_cycles = raw.cycles * gpu.sm.count

    def busy(which: int, units: float) -> float:
        return float(stats[which] / TICKS / units)

    read = float(stats[Stat.L2_READ_BYTES])
    # what DRAM did not have to bring; a cluster's CTAs read shares of a block that DRAM brings once
    hit = max(read - float(stats[Stat.DRAM_READ_BYTES]), 0.0)
    return {
        "macs": plan.shape.macs,
        "executed_macs": plan.shape.macs / plan.operands.gain,
        "padded_macs": plan.shape.macs / plan.useful,
        "k_steps": float(stats[Stat.STEPS]),
        "l2_read_bytes": read,
        "l2_hit_bytes": hit,
        "l2_write_bytes": float(stats[Stat.L2_WRITE_BYTES]),
        "partial_bytes": float(stats[Stat.PARTIAL_BYTES]),
        "dram_read_bytes": float(stats[Stat.DRAM_READ_BYTES]),
        "dram_write_bytes": float(stats[Stat.DRAM_WRITE_BYTES]),
        "metadata_bytes": float(stats[Stat.META_BYTES]),
        "smem_fill_bytes": float(stats[Stat.FILL_BYTES]),
        "smem_read_bytes": float(stats[Stat.STEPS] * (plan.step.smem_bytes - plan.step.fill_bytes)),
        "tensor_busy": busy(Stat.TENSOR_BUSY, sm_cycles),
        "smem_busy": busy(Stat.SMEM_BUSY, sm_cycles),
        "decode_busy": busy(Stat.DECODE_BUSY, sm_cycles),
        "issue_busy": busy(Stat.ISSUE_BUSY, sm_cycles),
        "port_busy": busy(Stat.PORT_BUSY, sm_cycles),
        "l2_busy": busy(Stat.L2_BUSY, raw.cycles),
        # write-backs still queued when the launch ends are not its time
        "dram_busy": min(busy(Stat.DRAM_BUSY, raw.cycles), 1.0),
        "l2_hit_rate": hit / read if read else 0.0,
        "events": float(stats[Stat.EVENTS]),
    }
