"""The jitted event loop: one launch on a whole device, in integer ticks. ALL jitted code is in this file.

What it is: a discrete-event loop over (CTA, k-step). Every resource is a server with a *free-at* time; a
reservation starts at max(now, free-at) and moves it. What it is not: it knows no GPU, dtype or pattern;
`launch` turns those into the numbers of `Launch`. `twin` is the same semantics in SimPy, slow and short;
tests compare the two tick for tick.

The rules, in the order in which they are applied:

1. Worker w (a resident CTA slot) sits on SM ``w % sms``. CTA i of the first wave starts at
   ``i * cta_interval + cta_start``. A worker whose CTA ends takes the next CTA of the queue (persistent: the
   CTA ``workers`` further) and starts it ``cta_start`` later (persistent: at once).
2. A CTA begins by loading ``stages - 1`` k-steps ahead; each k-step's start frees one buffer and issues one
   more load. A persistent CTA's loads run on into its next tile.
3. A load takes the SM's port, then the shared-memory port for its fill, then for A and for B: the L2 server,
   the fabric between partitions, and on a miss the DRAM server. Blocks (one operand slab of one k-step) in
   flight are merged. A block that does not fit evicts others, chosen pseudo-randomly; an evicted output block
   costs a DRAM write. (Measured rates fall gradually once a matrix outgrows L2, as with random replacement;
   with LRU a cyclic walk would lose every hit at once.)
4. A k-step starts when its data are there, pays the barrier, then reserves tensor datapath, shared-memory
   port, metadata decoder and issue slots of its SM at once; it ends with the last of them.
   DRAM reads go first: writes wait in a queue that drains while no read is there, and delay reads only once
   it overflows.
5. The epilogue writes the output tile through L2; with split-K, every split a partial tile (another kernel
   reduces them). A persistent CTA with two accumulators starts its next tile meanwhile, unless the tile
   before still holds the other one.
6. Events are ordered by (time, sequence number). One event is pending per worker.

Source of the scheme: the mechanisms of the design, each with its parameters named in `launch`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np

__all__ = ["OWNERS", "RECORDED", "SEED", "TICKS", "Buffers", "Launch", "Owner", "Stat", "allocate", "run"]

#: ticks per SM cycle: fine enough that rounding a service time costs less than 1e-4 of it
TICKS = 4096
#: of the pseudo-random L2 replacement, the only chance there is; fixed, so that equal launches are equal
SEED = 0

F = TypeVar("F", bound=Callable[..., Any])


#: cached on disk, no fast-math, NumPy error model, other threads may run meanwhile. `_nrt=False` leaves out counting
#: references to arrays, two thirds of the time otherwise: the loop allocates nothing, and its caller holds them all
POLICY: dict[str, Any] = {"cache": True, "fastmath": False, "error_model": "numpy", "nogil": True, "_nrt": False}


def jit(function: F) -> F:
    """The one jit policy."""
    return cast(F, numba.njit(**POLICY)(function))


def inlined(function: F) -> F:
    """As `jit`, for what `_run` calls: part of its caller, since a call would pass some hundred words by value."""
    return cast(F, numba.njit(**POLICY, forceinline=True)(function))


class Owner:
    """Who owns an SM-cycle. Indices into the owner counters."""

    TENSOR = 0
    SMEM = 1
    DECODE = 2
    ISSUE = 3
    L2 = 4
    DRAM = 5
    BARRIER = 6
    PROLOGUE = 7
    EPILOGUE = 8
    IDLE = 9


OWNERS = ("tensor", "smem", "decode", "issue", "l2", "dram", "barrier", "prologue", "epilogue", "idle")

TENSOR, SMEM, DECODE, ISSUE, L2, DRAM, BARRIER, PROLOGUE, EPILOGUE, IDLE = range(10)

#: servers whose use over time can be recorded: columns of `Buffers.busy`; the first six are numbered as `Owner`s
RECORDED = ("tensor", "smem", "decode", "issue", "l2", "dram", "port")
PORT = 6


class Stat:
    """Indices into the counters."""

    END = 0
    STEPS = 1
    L2_READ_BYTES = 2
    L2_HIT_BYTES = 3
    DRAM_READ_BYTES = 4
    DRAM_WRITE_BYTES = 5
    L2_WRITE_BYTES = 6
    META_BYTES = 7
    TENSOR_BUSY = 8
    SMEM_BUSY = 9
    DECODE_BUSY = 10
    ISSUE_BUSY = 11
    L2_BUSY = 12
    DRAM_BUSY = 13
    PORT_BUSY = 14
    EVENTS = 15
    FILL_BYTES = 16
    PARTIAL_BYTES = 17
    COUNT = 18


class Launch(NamedTuple):
    """One launch, in numbers. Ticks are 1/`TICKS` SM cycles; bytes are bytes.

    The tables: ``ticks[operand, edge, resource]`` with operand 0 = A, 1 = B, 2 = D, 3 = split-K partial;
    edge 0 = whole tile, 1 = last (ragged) tile; resource 0 = SM port, 1 = L2 server, 2 = fabric, 3 = DRAM
    (of a partial: of what does not stay in L2, whose bytes are in ``size[3, edge, 2]``).
    ``size[operand, edge, what]`` with what 0 = bytes requested from L2 by one CTA, 1 = bytes of the block,
    2 = metadata bytes among those requested, 3 = bytes that arrive in shared memory.
    D's edge index is ``2 * last_m + last_n``.
    """

    tiles_m: int
    tiles_n: int
    batch: int
    splits: int
    k_steps: int
    steps_per_split: int
    raster_group: int
    raster_along_m: int
    ctas: int
    skip_from: int
    skip_by: int
    sms: int
    slots: int
    persistent: int
    epilogue_overlap: int
    stages: int
    tensor: int
    smem_read: int
    smem_fill: int
    decode: int
    issue: int
    barrier: int
    cta_start: int
    cta_interval: int
    epilogue: int
    latency_l2: int
    latency_dram: int
    l2_capacity: int
    write_queue: int
    warm: int


BLOCK = np.dtype([("ready", "i8"), ("size", "i4"), ("place", "i4")])
WORK = np.dtype([(name, "i8") for name in (
    "phase", "cta", "step", "steps", "slot", "load_cta", "load_step", "load_steps", "load_slot",
    "load_a", "load_b", "load_edge_m", "load_edge_n", "sm", "drained",
)])  # fmt: skip
UNITS = np.dtype([(name, "i8") for name in (
    "tensor_free", "smem_free", "decode_free", "issue_free", "port_free", "frontier",
)])  # fmt: skip
HEAP = np.dtype([("time", "i8"), ("seq", "i8"), ("worker", "i8")])


class Buffers(NamedTuple):
    """Arrays of one run; allocated by `allocate`, mutated by `run`.

    block : BLOCK[blocks]  operand slabs and output tiles: tick at which each is in L2 (negative = absent), bytes, place
        in `resident`
    resident : int32[blocks]  the blocks that are in L2, in any order
    work : WORK[workers]  what each CTA slot computes and loads: CTA, k-step, steps, ring slot of next stage
    units : UNITS[sms]  when each SM's servers are free again; frontier = tick up to which its time has owners
    ready, why : int64, int8 [workers, stages]  arrival of each stage's data, owner of a wait for it
    heap : HEAP[workers]  pending events
    timeline : int64[ctas, 5]  SM, start, main-loop start, main-loop end, end
    busy : int64[bins + 1, len(RECORDED)]  ticks that each server works in each bin of time, those of all SMs together;
        the last row is what lies behind the last bin. A bin has ``glob[G_BIN]`` ticks. None: nothing is recorded
    """

    block: np.ndarray
    resident: np.ndarray
    work: np.ndarray
    units: np.ndarray
    ready: np.ndarray
    why: np.ndarray
    heap: np.ndarray
    owners: np.ndarray
    stats: np.ndarray
    timeline: np.ndarray
    busy: np.ndarray | None
    glob: np.ndarray


# slots of Buffers.glob: device-wide scalars that the helpers share
G_L2, G_FABRIC, G_DRAM, G_WRITES, G_USED, G_RESIDENT, G_RANDOM, G_BIN, G_COUNT = range(9)

# phases of a worker
P_START, P_TRY, P_END, P_EPILOGUE = range(4)


def allocate(p: Launch, bins: int = 0, bin_ticks: int = 0) -> Buffers:
    """Fresh arrays for a run of `p`; with `bins` of `bin_ticks` each, the run records its servers' use."""
    workers = min(p.sms * p.slots, p.ctas)
    tiles = p.tiles_m * p.tiles_n * p.batch
    blocks = (p.tiles_m + p.tiles_n) * p.batch * p.k_steps + tiles

    block = np.zeros(blocks, dtype=BLOCK)
    block["ready"] = -1
    work = np.zeros(workers, dtype=WORK)
    work["sm"] = np.arange(workers) % p.sms
    glob = np.zeros(G_COUNT, dtype=np.int64)
    glob[G_BIN] = bin_ticks
    glob[G_RANDOM] = SEED
    return Buffers(
        block=block,
        resident=np.zeros(blocks, dtype=np.int32),
        work=work,
        units=np.zeros(p.sms, dtype=UNITS),
        ready=np.zeros((workers, p.stages), dtype=np.int64),
        why=np.zeros((workers, p.stages), dtype=np.int8),
        heap=np.zeros(workers, dtype=HEAP),
        owners=np.zeros(len(OWNERS), dtype=np.int64),
        stats=np.zeros(Stat.COUNT, dtype=np.int64),
        timeline=np.zeros((p.ctas, 5), dtype=np.int64),
        busy=np.zeros((bins + 1, len(RECORDED)), dtype=np.int64) if bins else None,
        glob=glob,
    )


@inlined
def _mark(busy, glob, server, start, ticks):  # type: ignore[no-untyped-def]
    """Record that `server` works for `ticks` from tick `start` on.

    Without a record `busy` is None, which is a type of its own: the loop is then compiled with nothing in this place.
    """
    if busy is None:
        return
    width = glob[G_BIN]
    last = busy.shape[0] - 1
    row = start // width
    while ticks > 0 and row < last:
        part = min(ticks, (row + 1) * width - start)
        busy[row, server] += part
        start += part
        ticks -= part
        row += 1
    busy[last, server] += ticks


@inlined
def _place(p, cta):  # type: ignore[no-untyped-def]
    """(batch, split, tile m, tile n) of the CTA at position `cta` of the launch order."""
    if cta >= p.skip_from:
        cta += p.skip_by
    tiles = p.tiles_m * p.tiles_n
    outer = cta // tiles
    r = cta - outer * tiles
    b = outer // p.splits
    split = outer - b * p.splits
    if p.raster_along_m == 1:
        band = p.raster_group * p.tiles_n
        g = r // band
        width = min(p.raster_group, p.tiles_m - g * p.raster_group)
        inside = r - g * band
        tn = inside // width
        tm = g * p.raster_group + (inside - tn * width)
    else:
        band = p.raster_group * p.tiles_m
        g = r // band
        width = min(p.raster_group, p.tiles_n - g * p.raster_group)
        inside = r - g * band
        tm = inside // width
        tn = g * p.raster_group + (inside - tm * width)
    return b, split, tm, tn


@inlined
def _steps(p, split):  # type: ignore[no-untyped-def]
    """k-steps of one split."""
    return min(p.steps_per_split, p.k_steps - split * p.steps_per_split)


@inlined
def _add(s, block, size, ready):  # type: ignore[no-untyped-def]
    """Note that a block is in L2 from tick `ready` on."""
    n = s.glob[G_RESIDENT]
    s.resident[n] = block
    s.block[block].place = n
    s.block[block].ready = ready
    s.block[block].size = size
    s.glob[G_RESIDENT] = n + 1
    s.glob[G_USED] += size


@inlined
def _random(s):  # type: ignore[no-untyped-def]
    """Next pseudo-random number below 2**31. The generator is that of C's rand (ISO C, 7.22.2)."""
    s.glob[G_RANDOM] = (s.glob[G_RANDOM] * 1103515245 + 12345) & 0x7FFFFFFF
    return s.glob[G_RANDOM]


@inlined
def _evict(s):  # type: ignore[no-untyped-def]
    """Remove a pseudo-random block from L2. Returns it."""
    g = s.glob
    place = (_random(s) >> 8) % g[G_RESIDENT]
    victim = s.resident[place]
    g[G_RESIDENT] -= 1
    last = s.resident[g[G_RESIDENT]]
    s.resident[place] = last
    s.block[last].place = place
    s.block[victim].ready = -1
    g[G_USED] -= s.block[victim].size
    return victim


@inlined
def _dram_read(s, t, cost):  # type: ignore[no-untyped-def]
    """Reserve DRAM for a read that comes at tick `t`. Returns its end. Queued writes drain while DRAM is idle."""
    g = s.glob
    if t > g[G_DRAM]:
        _mark(s.busy, s.glob, DRAM, g[G_DRAM], min(g[G_WRITES], t - g[G_DRAM]))
        g[G_WRITES] = max(g[G_WRITES] - (t - g[G_DRAM]), 0)
        g[G_DRAM] = t
    _mark(s.busy, s.glob, DRAM, g[G_DRAM], cost)
    g[G_DRAM] += cost
    s.stats[13] += cost
    return g[G_DRAM]


@inlined
def _dram_write(p, s, t, cost):  # type: ignore[no-untyped-def]
    """Queue a write at tick `t`; only what overflows the queue delays reads."""
    g = s.glob
    _dram_read(s, t, 0)
    g[G_WRITES] += cost
    s.stats[13] += cost
    if g[G_WRITES] > p.write_queue:
        _mark(s.busy, s.glob, DRAM, g[G_DRAM], g[G_WRITES] - p.write_queue)
        g[G_DRAM] += g[G_WRITES] - p.write_queue
        g[G_WRITES] = p.write_queue


@inlined
def _insert(p, s, ticks, block, size, ready, t):  # type: ignore[no-untyped-def]
    """Put a block into L2 at tick `t`; evict others until it fits."""
    d_first = s.block.shape[0] - p.tiles_m * p.tiles_n * p.batch
    while s.glob[G_USED] + size > p.l2_capacity and s.glob[G_RESIDENT] > 0:
        victim = _evict(s)
        if victim >= d_first:  # output is dirty: write it back
            cost = ticks[2, 0, 3] * s.block[victim].size // np.int64(max(ticks[2, 0, 4], 1))
            _dram_write(p, s, t, cost)
            s.stats[5] += s.block[victim].size
    _add(s, block, size, ready)


@inlined
def _fetch(p, s, ticks, size, t, operand, edge, block):  # type: ignore[no-untyped-def]
    """Read one block's share for one CTA. Returns (arrival tick, owner of a wait for it)."""
    g = s.glob
    cost = ticks[operand, edge, 1]
    start = max(t, g[G_L2])
    served = start + cost
    g[G_L2] = served
    _mark(s.busy, s.glob, L2, start, cost)
    s.stats[12] += cost
    fabric = ticks[operand, edge, 2]
    if fabric > 0:
        g[G_FABRIC] = max(t, g[G_FABRIC]) + fabric
        served = max(served, g[G_FABRIC])
    s.stats[2] += size[operand, edge, 0]
    s.stats[7] += size[operand, edge, 2]
    arrival = s.block[block].ready
    if arrival >= 0:
        s.stats[3] += size[operand, edge, 0]
    else:
        s.stats[4] += size[operand, edge, 1]
        arrival = _dram_read(s, start, ticks[operand, edge, 3]) + p.latency_dram
        _insert(p, s, ticks, block, size[operand, edge, 1], arrival, t)
    if arrival > served:
        # a wait is DRAM's if DRAM adds more to it than the queue at L2 does
        return arrival + p.latency_l2, DRAM if arrival - served > served - t else L2
    return served + p.latency_l2, L2


@inlined
def _begin_loads(p, s, w, cta):  # type: ignore[no-untyped-def]
    """Point the worker's loads at the first k-step of `cta`."""
    b, split, tm, tn = _place(p, cta)
    first = split * p.steps_per_split
    s.work[w].load_cta = cta
    s.work[w].load_step = 0
    s.work[w].load_steps = _steps(p, split)
    s.work[w].load_a = (b * p.tiles_m + tm) * p.k_steps + first
    s.work[w].load_b = (p.batch * p.tiles_m + b * p.tiles_n + tn) * p.k_steps + first
    s.work[w].load_edge_m = 1 if tm == p.tiles_m - 1 else 0
    s.work[w].load_edge_n = 1 if tn == p.tiles_n - 1 else 0


@inlined
def _load(p, s, ticks, size, w, t):  # type: ignore[no-untyped-def]
    """Issue the next load of worker `w` at tick `t`; nothing if it has none left."""
    cta = s.work[w].load_cta
    if cta < 0:
        return
    step = s.work[w].load_step
    sm = s.work[w].sm
    edge_m = s.work[w].load_edge_m
    edge_n = s.work[w].load_edge_n
    port = ticks[0, edge_m, 0] + ticks[1, edge_n, 0]
    in_sm = max(t, s.units[sm].port_free) + port
    s.units[sm].port_free = in_sm
    _mark(s.busy, s.glob, PORT, in_sm - port, port)
    s.stats[14] += port
    if p.smem_fill > 0:
        _mark(s.busy, s.glob, SMEM, max(t, s.units[sm].smem_free), p.smem_fill)
        s.units[sm].smem_free = max(t, s.units[sm].smem_free) + p.smem_fill
        s.stats[9] += p.smem_fill
    s.stats[16] += size[0, edge_m, 3] + size[1, edge_n, 3]
    a_ready, a_why = _fetch(p, s, ticks, size, t, 0, edge_m, s.work[w].load_a + step)
    b_ready, b_why = _fetch(p, s, ticks, size, t, 1, edge_n, s.work[w].load_b + step)
    ready = in_sm + p.latency_l2
    why = L2
    if a_ready > ready:
        ready = a_ready
        why = a_why
    if b_ready > ready:
        ready = b_ready
        why = b_why
    slot = s.work[w].load_slot
    s.ready[w, slot] = ready
    s.why[w, slot] = why
    s.work[w].load_slot = slot + 1 if slot + 1 < p.stages else 0
    step += 1
    if step < s.work[w].load_steps:
        s.work[w].load_step = step
        return
    s.work[w].load_cta = -1
    if p.persistent == 1:
        cta += min(p.sms * p.slots, p.ctas)
        if cta < p.ctas:
            _begin_loads(p, s, w, cta)


@inlined
def _own(s, sm, until, owner):  # type: ignore[no-untyped-def]
    """Give the SM's time from its frontier to `until` to `owner`."""
    if until > s.units[sm].frontier:
        s.owners[owner] += until - s.units[sm].frontier
        s.units[sm].frontier = until


@inlined
def _step(p, s, ticks, size, w, t):  # type: ignore[no-untyped-def]
    """Start the worker's k-step at tick `t`. Returns its end."""
    sm = s.work[w].sm
    if p.stages > 1:
        _load(p, s, ticks, size, w, t)
    start = t + p.barrier
    _own(s, sm, start, BARRIER)
    end = max(start, s.units[sm].tensor_free) + p.tensor
    s.units[sm].tensor_free = end
    _mark(s.busy, s.glob, TENSOR, end - p.tensor, p.tensor)
    owner = TENSOR
    _own(s, sm, end, TENSOR)
    if p.smem_read > 0:
        other = max(start, s.units[sm].smem_free) + p.smem_read
        s.units[sm].smem_free = other
        _mark(s.busy, s.glob, SMEM, other - p.smem_read, p.smem_read)
        if other > end:
            end = other
            owner = SMEM
    if p.decode > 0:
        other = max(start, s.units[sm].decode_free) + p.decode
        s.units[sm].decode_free = other
        _mark(s.busy, s.glob, DECODE, other - p.decode, p.decode)
        if other > end:
            end = other
            owner = DECODE
    if p.issue > 0:
        other = max(start, s.units[sm].issue_free) + p.issue
        s.units[sm].issue_free = other
        _mark(s.busy, s.glob, ISSUE, other - p.issue, p.issue)
        if other > end:
            end = other
            owner = ISSUE
    _own(s, sm, end, owner)
    s.stats[1] += 1
    s.stats[8] += p.tensor
    s.stats[9] += p.smem_read
    s.stats[10] += p.decode
    s.stats[11] += p.issue
    return end


@inlined
def _write(p, s, ticks, size, w, t):  # type: ignore[no-untyped-def]
    """Write the worker's output tile (or split-K partial) at tick `t`. Returns the end of its epilogue."""
    g = s.glob
    b, _, tm, tn = _place(p, s.work[w].cta)
    edge = (2 if tm == p.tiles_m - 1 else 0) + (1 if tn == p.tiles_n - 1 else 0)
    sm = s.work[w].sm
    tile = (b * p.tiles_m + tm) * p.tiles_n + tn
    end = t + p.epilogue
    if p.splits > 1:
        _mark(s.busy, s.glob, PORT, max(t, s.units[sm].port_free), ticks[3, edge, 0])
        s.units[sm].port_free = max(t, s.units[sm].port_free) + ticks[3, edge, 0]
        _mark(s.busy, s.glob, L2, max(t, g[G_L2]), ticks[3, edge, 1])
        g[G_L2] = max(t, g[G_L2]) + ticks[3, edge, 1]
        s.stats[17] += size[3, edge, 1]
        s.stats[12] += ticks[3, edge, 1]
        s.stats[14] += ticks[3, edge, 0]
        if ticks[3, edge, 3] > 0:
            _dram_write(p, s, t, ticks[3, edge, 3])
            s.stats[5] += size[3, edge, 2]
        return max(end, max(s.units[sm].port_free, g[G_L2]))
    _mark(s.busy, s.glob, PORT, max(t, s.units[sm].port_free), ticks[2, edge, 0])
    s.units[sm].port_free = max(t, s.units[sm].port_free) + ticks[2, edge, 0]
    _mark(s.busy, s.glob, L2, max(t, g[G_L2]), ticks[2, edge, 1])
    g[G_L2] = max(t, g[G_L2]) + ticks[2, edge, 1]
    s.stats[12] += ticks[2, edge, 1]
    s.stats[14] += ticks[2, edge, 0]
    s.stats[6] += size[2, edge, 1]
    block = (p.batch * (p.tiles_m + p.tiles_n)) * p.k_steps + tile
    if s.block[block].ready < 0:
        _insert(p, s, ticks, block, size[2, edge, 1], t, t)
    return max(end, max(s.units[sm].port_free, g[G_L2]))


@inlined
def _prefill(p, s, ticks, size):  # type: ignore[no-untyped-def]
    """L2 contents that the launch before this one, of the same buffers, left behind.

    Everything, if it fits. Else blocks in the reverse order of use, each of which has survived the random
    evictions since with probability exp(-x), x = bytes used since over capacity, in steps of 1/64.
    """
    footprint = p.batch * (
        p.k_steps * ((p.tiles_m - 1) * size[0, 0, 1] + size[0, 1, 1])
        + p.k_steps * ((p.tiles_n - 1) * size[1, 0, 1] + size[1, 1, 1])
        + p.tiles_m * p.tiles_n * size[2, 0, 1]
    )
    everything = footprint <= p.l2_capacity
    survival = np.int64(1) << 31
    since = np.int64(0)
    fading = p.l2_capacity // 64
    workers = min(p.sms * p.slots, p.ctas)
    d_base = (p.batch * (p.tiles_m + p.tiles_n)) * p.k_steps
    b_base = p.batch * p.tiles_m * p.k_steps
    unseen = d_base  # operand slabs not looked at yet: most are seen in the first waves, again and again after that
    last = p.ctas - 1
    while last >= 0:
        first = last // workers * workers
        for phase in range(p.steps_per_split + 1):
            if phase > 0 and unseen == 0:
                break
            for cta in range(last, first - 1, -1):
                b, split, tm, tn = _place(p, cta)
                edge_m = 1 if tm == p.tiles_m - 1 else 0
                edge_n = 1 if tn == p.tiles_n - 1 else 0
                if phase == 0:
                    tile = (b * p.tiles_m + tm) * p.tiles_n + tn
                    block = d_base + tile
                    bytes_ = size[2, 2 * edge_m + edge_n, 1]
                    other = block
                    other_bytes = bytes_
                else:
                    ks = split * p.steps_per_split + _steps(p, split) - phase
                    if ks < split * p.steps_per_split:
                        continue
                    block = b_base + (b * p.tiles_n + tn) * p.k_steps + ks  # a load reads A, then B
                    bytes_ = size[1, edge_n, 1]
                    other = (b * p.tiles_m + tm) * p.k_steps + ks
                    other_bytes = size[0, edge_m, 1]
                for which in range(2):
                    if which == 1:
                        block = other
                        bytes_ = other_bytes
                    if s.block[block].ready != -1:
                        continue
                    if phase > 0:
                        unseen -= 1
                    since += bytes_
                    while since > fading and survival > 0:
                        since -= fading
                        survival = survival * 63 // 64
                    if not everything and _random(s) >= survival:
                        s.block[block].ready = -2  # looked at, and gone
                        continue
                    if s.glob[G_USED] + bytes_ > p.l2_capacity or survival == 0:
                        return
                    _add(s, block, bytes_, 0)
        last = first - 1


@inlined
def _sift(s, n):  # type: ignore[no-untyped-def]
    """Restore the heap after its root changed.

    The new root is mostly a late event: it goes down to a leaf along the earlier children, then up. Which child is the
    earlier one no processor can predict, so that it is computed, not branched on.
    """
    heap = s.heap
    time = heap[0].time
    seq = heap[0].seq
    worker = heap[0].worker
    i = 0
    child = 1
    while child + 1 < n:
        later = heap[child].time - heap[child + 1].time
        tie = heap[child].seq - heap[child + 1].seq
        child += (later > 0) | ((later == 0) & (tie > 0))
        heap[i].time = heap[child].time
        heap[i].seq = heap[child].seq
        heap[i].worker = heap[child].worker
        i = child
        child = 2 * i + 1
    if child < n:
        heap[i].time = heap[child].time
        heap[i].seq = heap[child].seq
        heap[i].worker = heap[child].worker
        i = child
    while i > 0:
        parent = (i - 1) >> 1
        if heap[parent].time < time or (heap[parent].time == time and heap[parent].seq < seq):
            break
        heap[i].time = heap[parent].time
        heap[i].seq = heap[parent].seq
        heap[i].worker = heap[parent].worker
        i = parent
    heap[i].time = time
    heap[i].seq = seq
    heap[i].worker = worker


@jit
def _run(p, s, ticks, size):  # type: ignore[no-untyped-def]
    """Simulate one launch; results are in ``s.stats``, ``s.owners`` and ``s.timeline``.

    Parameters
    ----------
    p : Launch
    s : Buffers, fresh from `allocate`
    ticks : int64[4, 4, 5], size : int64[4, 4, 4]
        See `Launch`; ``ticks[2, 0, 4]`` holds the bytes of a whole D tile.

    Returns
    -------
    int
        End of the last CTA [ticks].
    """
    if p.warm == 1:
        _prefill(p, s, ticks, size)
    workers = min(p.sms * p.slots, p.ctas)
    for w in range(workers):
        s.heap[w].time = w * p.cta_interval + p.cta_start
        s.heap[w].seq = w
        s.heap[w].worker = w
        s.work[w].cta = w
        s.work[w].phase = P_START
    seq = workers
    n = workers
    following = workers  # next CTA of the queue
    finish = np.int64(0)
    events = 0
    while n > 0:
        t = s.heap[0].time
        w = s.heap[0].worker
        sm = s.work[w].sm
        events += 1
        phase = s.work[w].phase
        again = True
        until = t
        if phase == P_START:
            # the first CTA of a worker, or any CTA that is not persistent, begins to load
            _own(s, sm, t, PROLOGUE)
            s.timeline[s.work[w].cta, 0] = sm
            s.timeline[s.work[w].cta, 1] = t
            s.work[w].slot = 0
            s.work[w].load_slot = 0
            _begin_loads(p, s, w, s.work[w].cta)
            s.work[w].step = 0
            s.work[w].steps = s.work[w].load_steps
            for _ in range(max(p.stages - 1, 1)):
                _load(p, s, ticks, size, w, t)
            phase = P_TRY
        elif phase == P_END:
            s.work[w].step += 1
            s.work[w].slot = s.work[w].slot + 1 if s.work[w].slot + 1 < p.stages else 0
            if s.work[w].step < s.work[w].steps:
                if p.stages == 1:
                    _load(p, s, ticks, size, w, t)
                phase = P_TRY
            else:
                s.timeline[s.work[w].cta, 3] = t
                before = s.work[w].drained
                until = _write(p, s, ticks, size, w, max(t, before))
                s.work[w].drained = until
                finish = max(finish, until)
                s.timeline[s.work[w].cta, 4] = until
                if p.epilogue_overlap == 1 and p.persistent == 1 and s.work[w].cta + workers < p.ctas:
                    # two accumulators: the next tile needs the one that the tile before this has left
                    until = max(t, before)
                _own(s, sm, until, EPILOGUE)
                phase = P_EPILOGUE
                if until > t:
                    again = False
        if again and phase == P_EPILOGUE:
            if p.persistent == 1:
                cta = s.work[w].cta + workers
            else:
                cta = following
                following += 1
            if cta < p.ctas:
                s.work[w].cta = cta
                s.work[w].step = 0
                if p.persistent == 1:
                    s.work[w].steps = _steps(p, _place(p, cta)[1])
                    s.timeline[cta, 0] = sm
                    s.timeline[cta, 1] = t
                    phase = P_TRY
                    if p.stages == 1:
                        _load(p, s, ticks, size, w, t)
                else:
                    phase = P_START
                    until = t + p.cta_start
                    again = False
            else:
                n -= 1
                s.heap[0].time = s.heap[n].time
                s.heap[0].seq = s.heap[n].seq
                s.heap[0].worker = s.heap[n].worker
                _sift(s, n)
                continue
        if again:  # phase is P_TRY
            slot = s.work[w].slot
            at = s.ready[w, slot]
            if at > t:
                until = at
                phase = P_TRY
            else:
                first = s.work[w].step == 0
                if first:
                    s.timeline[s.work[w].cta, 2] = t
                if first and (p.persistent == 0 or s.work[w].cta < workers):
                    _own(s, sm, t, PROLOGUE)
                else:
                    _own(s, sm, t, s.why[w, slot])
                until = _step(p, s, ticks, size, w, t)
                phase = P_END
        s.work[w].phase = phase
        s.heap[0].time = until
        s.heap[0].seq = seq
        seq += 1
        _sift(s, n)
    for sm in range(p.sms):
        s.owners[IDLE] += finish - s.units[sm].frontier
    _mark(s.busy, s.glob, DRAM, s.glob[G_DRAM], s.glob[G_WRITES])  # what is still queued is written afterwards
    s.stats[0] = finish
    s.stats[15] = events
    return finish


def run(p: Launch, s: Buffers, ticks: np.ndarray, size: np.ndarray) -> int:
    """Simulate launch `p` in fresh buffers `s`; see `_run`."""
    return int(_run(p, s, ticks, size))
