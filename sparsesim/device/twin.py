"""The reference twin of the event loop: the rules of `engine`, said again with SimPy, short and slow.

One SimPy process per CTA slot; a process sleeps, reserves servers, and sleeps again. Everything that the
jitted loop keeps in flat arrays is here what it stands for: a queue of loaded stages, a list of what
L2 holds, a server per resource. Tests hold both to the same result tick for tick, so an optimisation of
the loop cannot change its meaning.

SimPy orders events by (time, priority, serial number). Each sleep is one timeout of an integer number of
ticks, so serial numbers rise exactly as the loop's sequence numbers do. All processes begin at tick 0 in the
order of their slots, before any timeout can fire.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import simpy

from sparsesim.device.engine import OWNERS, Launch, Owner, Stat

__all__ = ["TwinResult", "run"]

Process = Generator[simpy.Event, None, None]
Block = tuple[str | int, ...]  # name of what L2 holds: an operand slab of one k-step, or an output tile

A, B, D, PARTIAL = range(4)  # operands: rows of the two tables of a launch
PORT, L2, FABRIC, DRAM, WHOLE_BYTES = range(5)  # columns of `ticks`
REQUESTED, HELD, META, ARRIVING = range(4)  # columns of `size`
SPILLED = META  # of a partial tile: what does not stay in L2
PER_SM = ("tensor", "smem", "decode", "issue", "port")  # servers of an `Sm`


@dataclass(frozen=True)
class TwinResult:
    """What a run gave: the same numbers as `engine.run` leaves in its buffers.

    busy : server of `engine.RECORDED` -> (start, ticks) of all that it did, on whichever SM
    """

    end: int
    owners: dict[str, int]
    stats: list[int]
    timeline: list[list[int]]
    busy: dict[str, list[tuple[int, int]]]


class Server:
    """A resource that serves one request after the other."""

    def __init__(self) -> None:
        self.free = 0
        self.busy = 0
        self.log: list[tuple[int, int]] = []

    def reserve(self, at: int, ticks: int) -> int:
        """Queue a request of `ticks` that comes at tick `at`. Returns its end."""
        self.log.append((max(at, self.free), ticks))
        self.free = max(at, self.free) + ticks
        self.busy += ticks
        return self.free


class Dram(Server):
    """DRAM serves reads; writes queue up and drain while no read is there. An overflow delays reads."""

    def __init__(self, queue: int) -> None:
        super().__init__()
        self.queue = queue
        self.waiting = 0

    def drain(self, at: int) -> None:
        """Write while idle, up to tick `at`."""
        written = min(self.waiting, max(at - self.free, 0))
        self.log.append((self.free, written))
        self.waiting -= written
        self.free = max(at, self.free)

    def read(self, at: int, ticks: int) -> int:
        """Serve a read that comes at tick `at`. Returns its end."""
        self.drain(at)
        return self.reserve(at, ticks)

    def write(self, at: int, ticks: int) -> None:
        """Queue a write that comes at tick `at`."""
        self.drain(at)
        self.busy += ticks
        self.waiting += ticks
        self.log.append((self.free, max(self.waiting - self.queue, 0)))
        self.free += max(self.waiting - self.queue, 0)
        self.waiting = min(self.waiting, self.queue)


@dataclass
class Sm:
    """The servers of one SM, and the tick up to which its time has owners."""

    number: int
    tensor: Server = field(default_factory=Server)
    smem: Server = field(default_factory=Server)
    decode: Server = field(default_factory=Server)
    issue: Server = field(default_factory=Server)
    port: Server = field(default_factory=Server)
    frontier: int = 0


class Cta(NamedTuple):
    """What one CTA computes: an output tile, over some of its k-steps."""

    number: int
    batch: int
    tile_m: int
    tile_n: int
    last_m: int  # 1 if the tile is the last along m, whose size may differ
    last_n: int
    k_steps: range

    @property
    def tile(self) -> Block:
        """Its output tile."""
        return ("D", self.batch, self.tile_m, self.tile_n)

    @property
    def edge(self) -> int:
        """Edge index of its output tile."""
        return 2 * self.last_m + self.last_n


@dataclass
class Entry:
    """A block in L2: when it is there (it may be under way), and its bytes."""

    ready: int
    size: int


def run(p: Launch, ticks: np.ndarray, size: np.ndarray) -> TwinResult:
    """Simulate one launch.

    Parameters
    ----------
    p, ticks, size : the launch and its two tables, as for `engine.run`

    Returns
    -------
    TwinResult
        All counters of `engine.Stat` included, `EVENTS` too: a timeout here is an event there.
    """
    return _Twin(p, ticks.tolist(), size.tolist()).run()


def _launch_order(p: Launch) -> list[Cta]:
    """The CTAs in launch order: batch, split, bands of tiles along one axis, each walked across that axis."""
    axis, across = (p.tiles_m, p.tiles_n) if p.raster_along_m else (p.tiles_n, p.tiles_m)
    tiles = [
        (along, over) if p.raster_along_m else (over, along)
        for band in range(0, axis, p.raster_group)
        for over in range(across)
        for along in range(band, min(band + p.raster_group, axis))
    ]
    places = [(b, split, m, n) for b in range(p.batch) for split in range(p.splits) for m, n in tiles]
    del places[p.skip_from : p.skip_from + p.skip_by]
    ctas = []
    for number, (b, split, m, n) in enumerate(places):
        first = split * p.steps_per_split
        steps = range(first, min(first + p.steps_per_split, p.k_steps))
        ctas.append(Cta(number, b, m, n, int(m == p.tiles_m - 1), int(n == p.tiles_n - 1), steps))
    return ctas


class _Twin:
    def __init__(self, p: Launch, ticks: list[list[list[int]]], size: list[list[list[int]]]) -> None:
        self.p, self.ticks, self.size = p, ticks, size
        self.env = simpy.Environment(initial_time=0)
        self.ctas = _launch_order(p)
        self.workers = min(p.sms * p.slots, p.ctas)
        self.sms = [Sm(i) for i in range(p.sms)]
        self.l2, self.fabric, self.dram = Server(), Server(), Dram(p.write_queue)
        self.cached: dict[Block, Entry] = {}
        self.held: list[Block] = []  # the same blocks, in the order that the random choice sees
        self.random = 0
        self.used = 0
        self.queue = iter(range(self.workers, p.ctas))
        self.owners = [0] * len(OWNERS)
        self.stats = [0] * Stat.COUNT
        self.timeline = [[0] * 5 for _ in range(p.ctas)]
        self.end = 0

    @property
    def now(self) -> int:
        return int(self.env.now)

    def run(self) -> TwinResult:
        if self.p.warm:
            self.prefill()
        for worker in range(self.workers):
            self.env.process(self.worker(worker))
        self.env.run()
        stats = self.stats
        for sm in self.sms:
            self.own(sm, self.end, Owner.IDLE)
            stats[Stat.TENSOR_BUSY] += sm.tensor.busy
            stats[Stat.SMEM_BUSY] += sm.smem.busy
            stats[Stat.DECODE_BUSY] += sm.decode.busy
            stats[Stat.ISSUE_BUSY] += sm.issue.busy
            stats[Stat.PORT_BUSY] += sm.port.busy
        stats[Stat.L2_BUSY] = self.l2.busy
        stats[Stat.DRAM_BUSY] = self.dram.busy
        stats[Stat.END] = self.end
        self.dram.log.append((self.dram.free, self.dram.waiting))
        busy = {name: [item for sm in self.sms for item in getattr(sm, name).log] for name in PER_SM}
        busy |= {"l2": self.l2.log, "dram": self.dram.log}
        return TwinResult(self.end, dict(zip(OWNERS, self.owners, strict=True)), stats, self.timeline, busy)

    def sleep(self, ticks: int) -> simpy.Timeout:
        self.stats[Stat.EVENTS] += 1
        return self.env.timeout(ticks)

    def own(self, sm: Sm, until: int, owner: int) -> None:
        """Whatever of the SM's time up to `until` has no owner yet belongs to `owner`."""
        self.owners[owner] += max(until - sm.frontier, 0)
        sm.frontier = max(until, sm.frontier)

    # --- CTAs ---

    def worker(self, number: int) -> Process:
        """A CTA slot: one CTA after the other, or as a persistent CTA one tile after the other."""
        p = self.p
        sm = self.sms[number % p.sms]
        yield self.sleep(number * p.cta_interval + p.cta_start)
        if p.persistent:
            yield from self.resident(sm, range(number, p.ctas, self.workers))
            return
        yield from self.resident(sm, [number])
        for index in self.queue:
            yield self.sleep(p.cta_start)
            yield from self.resident(sm, [index])

    def resident(self, sm: Sm, indices: Sequence[int]) -> Process:
        """From the start of a CTA to its end: it loads ahead, across tiles, and computes tile after tile."""
        p = self.p
        tiles = [self.ctas[i] for i in indices]
        loads = iter([(cta, k) for cta in tiles for k in cta.k_steps])
        loaded: deque[tuple[int, int]] = deque()
        end = 0  # of the epilogue before
        self.own(sm, self.now, Owner.PROLOGUE)
        for _ in range(max(p.stages - 1, 1)):
            self.load(sm, loads, loaded)
        for cta in tiles:
            self.timeline[cta.number][:2] = [sm.number, self.now]
            for k in cta.k_steps:
                if not loaded:  # a single buffer: it was in use until now
                    self.load(sm, loads, loaded)
                ready, why = loaded.popleft()
                if ready > self.now:
                    yield self.sleep(ready - self.now)
                if k == cta.k_steps[0]:
                    self.timeline[cta.number][2] = self.now
                    why = Owner.PROLOGUE if cta is tiles[0] else why
                self.own(sm, self.now, why)
                if p.stages > 1:
                    self.load(sm, loads, loaded)
                yield self.sleep(self.compute(sm) - self.now)
            self.timeline[cta.number][3] = self.now
            other, end = end, self.write(sm, cta, max(self.now, end))
            self.timeline[cta.number][4] = end
            self.end = max(self.end, end)
            # the next tile's main loop may run meanwhile, once the other accumulator has been written
            until = max(self.now, other) if p.epilogue_overlap and cta is not tiles[-1] else end
            self.own(sm, until, Owner.EPILOGUE)
            if until > self.now:
                yield self.sleep(until - self.now)

    def compute(self, sm: Sm) -> int:
        """Run one k-step, whose data are there. Returns its end: that of the slowest of its four servers."""
        p = self.p
        start = self.now + p.barrier
        self.own(sm, start, Owner.BARRIER)
        end, owner = sm.tensor.reserve(start, p.tensor), Owner.TENSOR
        self.own(sm, end, Owner.TENSOR)
        others = (
            (sm.smem, p.smem_read, Owner.SMEM),
            (sm.decode, p.decode, Owner.DECODE),
            (sm.issue, p.issue, Owner.ISSUE),
        )
        for server, cost, its_owner in others:
            if cost > 0 and (its_end := server.reserve(start, cost)) > end:
                end, owner = its_end, its_owner
        self.own(sm, end, owner)
        self.stats[Stat.STEPS] += 1
        return end

    # --- memory ---

    def load(self, sm: Sm, loads: Iterator[tuple[Cta, int]], loaded: deque[tuple[int, int]]) -> None:
        """Issue the next load, if any: note when its data will be there and who owns a wait for them."""
        cta, k = next(loads, (None, 0))
        if cta is None:
            return
        slabs = ((A, cta.last_m, cta.tile_m), (B, cta.last_n, cta.tile_n))
        in_sm = sm.port.reserve(self.now, sum(self.ticks[operand][edge][PORT] for operand, edge, _ in slabs))
        if self.p.smem_fill > 0:
            sm.smem.reserve(self.now, self.p.smem_fill)
        arrivals = [(in_sm + self.p.latency_l2, Owner.L2)]
        for operand, edge, tile in slabs:
            self.stats[Stat.FILL_BYTES] += self.size[operand][edge][ARRIVING]
            arrivals.append(self.fetch(operand, edge, ("AB"[operand], cta.batch, tile, k)))
        loaded.append(max(arrivals, key=lambda arrival: arrival[0]))  # the first of equals

    def fetch(self, operand: int, edge: int, block: Block) -> tuple[int, int]:
        """Read a block through L2, if need be from DRAM. Returns (arrival, owner of a wait for it)."""
        cost, size = self.ticks[operand][edge], self.size[operand][edge]
        start = max(self.now, self.l2.free)
        served = self.l2.reserve(self.now, cost[L2])
        if cost[FABRIC] > 0:
            served = max(served, self.fabric.reserve(self.now, cost[FABRIC]))
        self.stats[Stat.L2_READ_BYTES] += size[REQUESTED]
        self.stats[Stat.META_BYTES] += size[META]
        if block in self.cached:
            self.stats[Stat.L2_HIT_BYTES] += size[REQUESTED]
        else:
            self.stats[Stat.DRAM_READ_BYTES] += size[HELD]
            self.insert(block, self.now, self.dram.read(start, cost[DRAM]) + self.p.latency_dram, size[HELD])
        wait = max(self.cached[block].ready - served, 0)  # for DRAM, beyond L2's own service
        why = Owner.DRAM if wait > served - self.now else Owner.L2
        return served + wait + self.p.latency_l2, why

    def insert(self, block: Block, at: int, ready: int, size: int) -> None:
        """Put a block into L2 at tick `at` in place of others, if need be; outputs among them go to DRAM."""
        whole = self.ticks[D][0]
        while self.used + size > self.p.l2_capacity and self.held:
            victim, entry = self.evict()
            if victim[0] == "D":
                self.dram.write(at, whole[DRAM] * entry.size // max(whole[WHOLE_BYTES], 1))
                self.stats[Stat.DRAM_WRITE_BYTES] += entry.size
        self.add(block, ready, size)

    def add(self, block: Block, ready: int, size: int) -> None:
        """Note that a block is in L2 from tick `ready` on."""
        self.held.append(block)
        self.cached[block] = Entry(ready, size)
        self.used += size

    def draw(self) -> int:
        """Next pseudo-random number below 2**31."""
        self.random = (self.random * 1103515245 + 12345) % 2**31
        return self.random

    def evict(self) -> tuple[Block, Entry]:
        """Remove a pseudo-random block; the last of the list takes its place."""
        place = (self.draw() >> 8) % len(self.held)
        victim = self.held[place]
        self.held[place] = self.held[-1]
        self.held.pop()
        entry = self.cached.pop(victim)
        self.used -= entry.size
        return victim, entry

    def write(self, sm: Sm, cta: Cta, at: int) -> int:
        """The epilogue, from tick `at`: write the output tile, or a partial one, through L2. Returns its end."""
        operand = PARTIAL if self.p.splits > 1 else D
        cost, size = self.ticks[operand][cta.edge], self.size[operand][cta.edge]
        port = sm.port.reserve(at, cost[PORT])
        end = max(at + self.p.epilogue, port, self.l2.reserve(at, cost[L2]))
        if operand == PARTIAL:
            self.stats[Stat.PARTIAL_BYTES] += size[HELD]
            if cost[DRAM] > 0:
                self.dram.write(at, cost[DRAM])
                self.stats[Stat.DRAM_WRITE_BYTES] += size[SPILLED]
            return end
        self.stats[Stat.L2_WRITE_BYTES] += size[HELD]
        if cta.tile not in self.cached:
            self.insert(cta.tile, at, at, size[HELD])
        return end

    def prefill(self) -> None:
        """Fill L2 with what the last launch of the same buffers left.

        If not everything fits, a block survives with a chance that fades with the bytes used after it.
        """
        capacity = self.p.l2_capacity
        everything = self.footprint() <= capacity
        survival, since, fading = 2**31, 0, capacity // 64
        seen: set[Block] = set()
        for block, size in self.backwards():
            if block in seen:
                continue
            seen.add(block)
            since += size
            while since > fading and survival > 0:
                since -= fading
                survival = survival * 63 // 64
            if not everything and self.draw() >= survival:
                continue
            if self.used + size > capacity or survival == 0:
                break
            self.add(block, 0, size)

    def footprint(self) -> int:
        """Bytes of operands and output, with ragged output tiles counted as whole ones."""
        p, held = self.p, [[edge[HELD] for edge in operand] for operand in self.size]
        rows = (p.tiles_m - 1) * held[A][0] + held[A][1]
        columns = (p.tiles_n - 1) * held[B][0] + held[B][1]
        return p.batch * (p.k_steps * (rows + columns) + p.tiles_m * p.tiles_n * held[D][0])

    def backwards(self) -> Iterator[tuple[Block, int]]:
        """Blocks in the reverse order of use: waves backwards, in each the outputs, then its k-steps."""
        for first in reversed(range(0, self.p.ctas, self.workers)):
            wave = self.ctas[first : first + self.workers][::-1]
            for cta in wave:
                yield cta.tile, self.size[D][cta.edge][HELD]
            for back in range(1, self.p.steps_per_split + 1):
                for cta in wave:
                    if back <= len(cta.k_steps):
                        k = cta.k_steps[-back]
                        yield ("B", cta.batch, cta.tile_n, k), self.size[B][cta.last_n][HELD]
                        yield ("A", cta.batch, cta.tile_m, k), self.size[A][cta.last_m][HELD]
