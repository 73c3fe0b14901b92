/* The event loop of sparsesim/device/engine.py written in C, line by line: the yardstick of `make bench` for how fast
 * such a loop can be. For measuring only; nothing in the package calls it. `engine_c.py` compiles it with -O3, runs it
 * on the same arrays and checks that it gives the same ticks, owners and counters. */
#include <stdint.h>

typedef int64_t i64;

typedef struct {
    i64 tiles_m, tiles_n, batch, splits, k_steps, steps_per_split, raster_group, raster_along_m, ctas, skip_from,
        skip_by, sms, slots, persistent, epilogue_overlap, stages, tensor, smem_read, smem_fill, decode, issue, barrier,
        cta_start, cta_interval, epilogue, latency_l2, latency_dram, l2_capacity, write_queue, warm;
} Launch;

typedef struct { i64 ready; int32_t size, place; } Block;
typedef struct {
    i64 phase, cta, step, steps, slot, load_cta, load_step, load_steps, load_slot, load_a, load_b, load_edge_m,
        load_edge_n, sm, drained;
} Work;
typedef struct { i64 tensor_free, smem_free, decode_free, issue_free, port_free, frontier; } Unit;
typedef struct { i64 time, seq, worker; } Event;

typedef struct {
    Block *block;
    int32_t *resident;
    Work *work;
    Unit *units;
    i64 *ready;
    int8_t *why;
    Event *heap;
    i64 *owners, *stats, *timeline, *glob;
    i64 blocks;
} Buffers;

typedef const Launch *restrict P;
typedef const Buffers *restrict S;
typedef const i64 *restrict Table;

enum { TENSOR, SMEM, DECODE, ISSUE, L2, DRAM, BARRIER, PROLOGUE, EPILOGUE, IDLE };
enum { G_L2, G_FABRIC, G_DRAM, G_WRITES, G_USED, G_RESIDENT, G_RANDOM };
enum { P_START, P_TRY, P_END, P_EPILOGUE };

/* ticks[operand, edge, resource], size[operand, edge, what] */
#define TICKS(o, e, r) ticks[((o) * 4 + (e)) * 5 + (r)]
#define SIZE(o, e, w) size[((o) * 4 + (e)) * 4 + (w)]
#define INLINE static inline __attribute__((always_inline))

INLINE i64 min(i64 a, i64 b) { return a < b ? a : b; }
INLINE i64 max(i64 a, i64 b) { return a > b ? a : b; }

typedef struct { i64 b, split, tm, tn; } Place;

INLINE Place place(P p, i64 cta) {
    if (cta >= p->skip_from) cta += p->skip_by;
    i64 tiles = p->tiles_m * p->tiles_n, outer = cta / tiles, r = cta - outer * tiles;
    Place at;
    at.b = outer / p->splits;
    at.split = outer - at.b * p->splits;
    i64 along = p->raster_along_m == 1, band = p->raster_group * (along ? p->tiles_n : p->tiles_m), g = r / band;
    i64 width = min(p->raster_group, (along ? p->tiles_m : p->tiles_n) - g * p->raster_group), inside = r - g * band;
    i64 slow = inside / width, fast = g * p->raster_group + (inside - slow * width);
    at.tm = along ? fast : slow;
    at.tn = along ? slow : fast;
    return at;
}

INLINE i64 steps(P p, i64 split) { return min(p->steps_per_split, p->k_steps - split * p->steps_per_split); }

INLINE void add(S s, i64 block, i64 size, i64 ready) {
    i64 n = s->glob[G_RESIDENT];
    s->resident[n] = (int32_t)block;
    s->block[block].place = (int32_t)n;
    s->block[block].ready = ready;
    s->block[block].size = (int32_t)size;
    s->glob[G_RESIDENT] = n + 1;
    s->glob[G_USED] += size;
}

INLINE i64 next_random(S s) { return s->glob[G_RANDOM] = (s->glob[G_RANDOM] * 1103515245 + 12345) & 0x7FFFFFFF; }

INLINE i64 evict(S s) {
    i64 *g = s->glob, at = (next_random(s) >> 8) % g[G_RESIDENT], victim = s->resident[at];
    g[G_RESIDENT] -= 1;
    i64 last = s->resident[g[G_RESIDENT]];
    s->resident[at] = (int32_t)last;
    s->block[last].place = (int32_t)at;
    s->block[victim].ready = -1;
    g[G_USED] -= s->block[victim].size;
    return victim;
}

INLINE i64 dram_read(S s, i64 t, i64 cost) {
    i64 *g = s->glob;
    if (t > g[G_DRAM]) {
        g[G_WRITES] = max(g[G_WRITES] - (t - g[G_DRAM]), 0);
        g[G_DRAM] = t;
    }
    g[G_DRAM] += cost;
    s->stats[13] += cost;
    return g[G_DRAM];
}

INLINE void dram_write(P p, S s, i64 t, i64 cost) {
    i64 *g = s->glob;
    dram_read(s, t, 0);
    g[G_WRITES] += cost;
    s->stats[13] += cost;
    if (g[G_WRITES] > p->write_queue) {
        g[G_DRAM] += g[G_WRITES] - p->write_queue;
        g[G_WRITES] = p->write_queue;
    }
}

INLINE void insert(P p, S s, Table ticks, i64 block, i64 size, i64 ready, i64 t) {
    i64 d_first = s->blocks - p->tiles_m * p->tiles_n * p->batch;
    while (s->glob[G_USED] + size > p->l2_capacity && s->glob[G_RESIDENT] > 0) {
        i64 victim = evict(s);
        if (victim >= d_first) {
            dram_write(p, s, t, TICKS(2, 0, 3) * s->block[victim].size / max(TICKS(2, 0, 4), 1));
            s->stats[5] += s->block[victim].size;
        }
    }
    add(s, block, size, ready);
}

typedef struct { i64 at, why; } Arrival;

INLINE Arrival fetch(P p, S s, Table ticks, Table size, i64 t, i64 operand, i64 edge, i64 block) {
    i64 *g = s->glob, cost = TICKS(operand, edge, 1), start = max(t, g[G_L2]), served = start + cost;
    g[G_L2] = served;
    s->stats[12] += cost;
    i64 fabric = TICKS(operand, edge, 2);
    if (fabric > 0) {
        g[G_FABRIC] = max(t, g[G_FABRIC]) + fabric;
        served = max(served, g[G_FABRIC]);
    }
    s->stats[2] += SIZE(operand, edge, 0);
    s->stats[7] += SIZE(operand, edge, 2);
    i64 arrival = s->block[block].ready;
    if (arrival >= 0) {
        s->stats[3] += SIZE(operand, edge, 0);
    } else {
        s->stats[4] += SIZE(operand, edge, 1);
        arrival = dram_read(s, start, TICKS(operand, edge, 3)) + p->latency_dram;
        insert(p, s, ticks, block, SIZE(operand, edge, 1), arrival, t);
    }
    if (arrival > served) return (Arrival){arrival + p->latency_l2, arrival - served > served - t ? DRAM : L2};
    return (Arrival){served + p->latency_l2, L2};
}

INLINE void begin_loads(P p, Work *w, i64 cta) {
    Place at = place(p, cta);
    i64 first = at.split * p->steps_per_split;
    w->load_cta = cta;
    w->load_step = 0;
    w->load_steps = steps(p, at.split);
    w->load_a = (at.b * p->tiles_m + at.tm) * p->k_steps + first;
    w->load_b = (p->batch * p->tiles_m + at.b * p->tiles_n + at.tn) * p->k_steps + first;
    w->load_edge_m = at.tm == p->tiles_m - 1;
    w->load_edge_n = at.tn == p->tiles_n - 1;
}

INLINE void load(P p, S s, Table ticks, Table size, i64 index, i64 t) {
    Work *w = &s->work[index];
    i64 cta = w->load_cta;
    if (cta < 0) return;
    i64 step = w->load_step, edge_m = w->load_edge_m, edge_n = w->load_edge_n;
    Unit *u = &s->units[w->sm];
    i64 port = TICKS(0, edge_m, 0) + TICKS(1, edge_n, 0), in_sm = max(t, u->port_free) + port;
    u->port_free = in_sm;
    s->stats[14] += port;
    if (p->smem_fill > 0) {
        u->smem_free = max(t, u->smem_free) + p->smem_fill;
        s->stats[9] += p->smem_fill;
    }
    s->stats[16] += SIZE(0, edge_m, 3) + SIZE(1, edge_n, 3);
    Arrival a = fetch(p, s, ticks, size, t, 0, edge_m, w->load_a + step);
    Arrival b = fetch(p, s, ticks, size, t, 1, edge_n, w->load_b + step);
    i64 ready = in_sm + p->latency_l2, why = L2;
    if (a.at > ready) ready = a.at, why = a.why;
    if (b.at > ready) ready = b.at, why = b.why;
    i64 slot = w->load_slot;
    s->ready[index * p->stages + slot] = ready;
    s->why[index * p->stages + slot] = (int8_t)why;
    w->load_slot = slot + 1 < p->stages ? slot + 1 : 0;
    step += 1;
    if (step < w->load_steps) {
        w->load_step = step;
        return;
    }
    w->load_cta = -1;
    if (p->persistent == 1) {
        cta += min(p->sms * p->slots, p->ctas);
        if (cta < p->ctas) begin_loads(p, w, cta);
    }
}

INLINE void own(S s, Unit *u, i64 until, i64 owner) {
    if (until > u->frontier) {
        s->owners[owner] += until - u->frontier;
        u->frontier = until;
    }
}

INLINE i64 step_once(P p, S s, Table ticks, Table size, i64 index, i64 t) {
    Unit *u = &s->units[s->work[index].sm];
    if (p->stages > 1) load(p, s, ticks, size, index, t);
    i64 start = t + p->barrier, owner = TENSOR, other;
    own(s, u, start, BARRIER);
    i64 end = max(start, u->tensor_free) + p->tensor;
    u->tensor_free = end;
    own(s, u, end, TENSOR);
    if (p->smem_read > 0) {
        other = u->smem_free = max(start, u->smem_free) + p->smem_read;
        if (other > end) end = other, owner = SMEM;
    }
    if (p->decode > 0) {
        other = u->decode_free = max(start, u->decode_free) + p->decode;
        if (other > end) end = other, owner = DECODE;
    }
    if (p->issue > 0) {
        other = u->issue_free = max(start, u->issue_free) + p->issue;
        if (other > end) end = other, owner = ISSUE;
    }
    own(s, u, end, owner);
    s->stats[1] += 1;
    s->stats[8] += p->tensor;
    s->stats[9] += p->smem_read;
    s->stats[10] += p->decode;
    s->stats[11] += p->issue;
    return end;
}

INLINE i64 write_tile(P p, S s, Table ticks, Table size, i64 index, i64 t) {
    i64 *g = s->glob;
    Place at = place(p, s->work[index].cta);
    i64 edge = (at.tm == p->tiles_m - 1 ? 2 : 0) + (at.tn == p->tiles_n - 1 ? 1 : 0);
    Unit *u = &s->units[s->work[index].sm];
    i64 tile = (at.b * p->tiles_m + at.tm) * p->tiles_n + at.tn, end = t + p->epilogue, o = p->splits > 1 ? 3 : 2;
    u->port_free = max(t, u->port_free) + TICKS(o, edge, 0);
    g[G_L2] = max(t, g[G_L2]) + TICKS(o, edge, 1);
    s->stats[12] += TICKS(o, edge, 1);
    s->stats[14] += TICKS(o, edge, 0);
    if (o == 3) {
        s->stats[17] += SIZE(3, edge, 1);
        if (TICKS(3, edge, 3) > 0) {
            dram_write(p, s, t, TICKS(3, edge, 3));
            s->stats[5] += SIZE(3, edge, 2);
        }
        return max(end, max(u->port_free, g[G_L2]));
    }
    s->stats[6] += SIZE(2, edge, 1);
    i64 block = p->batch * (p->tiles_m + p->tiles_n) * p->k_steps + tile;
    if (s->block[block].ready < 0) insert(p, s, ticks, block, SIZE(2, edge, 1), t, t);
    return max(end, max(u->port_free, g[G_L2]));
}

static void prefill(P p, S s, Table size) {
    i64 footprint = p->batch * (p->k_steps * ((p->tiles_m - 1) * SIZE(0, 0, 1) + SIZE(0, 1, 1)) +
                                p->k_steps * ((p->tiles_n - 1) * SIZE(1, 0, 1) + SIZE(1, 1, 1)) +
                                p->tiles_m * p->tiles_n * SIZE(2, 0, 1));
    i64 everything = footprint <= p->l2_capacity, survival = (i64)1 << 31, since = 0, fading = p->l2_capacity / 64;
    i64 workers = min(p->sms * p->slots, p->ctas), d_base = p->batch * (p->tiles_m + p->tiles_n) * p->k_steps;
    i64 b_base = p->batch * p->tiles_m * p->k_steps, unseen = d_base;
    for (i64 last = p->ctas - 1; last >= 0;) {
        i64 first = last / workers * workers;
        for (i64 phase = 0; phase <= p->steps_per_split && (phase == 0 || unseen > 0); phase++)
            for (i64 cta = last; cta >= first; cta--) {
                Place at = place(p, cta);
                i64 edge_m = at.tm == p->tiles_m - 1, edge_n = at.tn == p->tiles_n - 1, block[2], bytes[2];
                if (phase == 0) {
                    block[0] = block[1] = d_base + (at.b * p->tiles_m + at.tm) * p->tiles_n + at.tn;
                    bytes[0] = bytes[1] = SIZE(2, 2 * edge_m + edge_n, 1);
                } else {
                    i64 ks = at.split * p->steps_per_split + steps(p, at.split) - phase;
                    if (ks < at.split * p->steps_per_split) continue;
                    block[0] = b_base + (at.b * p->tiles_n + at.tn) * p->k_steps + ks;
                    bytes[0] = SIZE(1, edge_n, 1);
                    block[1] = (at.b * p->tiles_m + at.tm) * p->k_steps + ks;
                    bytes[1] = SIZE(0, edge_m, 1);
                }
                for (int which = 0; which < 2; which++) {
                    Block *now = &s->block[block[which]];
                    if (now->ready != -1) continue;
                    if (phase > 0) unseen -= 1;
                    since += bytes[which];
                    while (since > fading && survival > 0) {
                        since -= fading;
                        survival = survival * 63 / 64;
                    }
                    if (!everything && next_random(s) >= survival) {
                        now->ready = -2;
                        continue;
                    }
                    if (s->glob[G_USED] + bytes[which] > p->l2_capacity || survival == 0) return;
                    add(s, block[which], bytes[which], 0);
                }
            }
        last = first - 1;
    }
}

INLINE void sift(Event *heap, i64 n) {
    Event e = heap[0];
    i64 i = 0, child = 1;
    while (child + 1 < n) {
        i64 later = heap[child].time - heap[child + 1].time, tie = heap[child].seq - heap[child + 1].seq;
        child += (later > 0) | ((later == 0) & (tie > 0));
        heap[i] = heap[child];
        i = child;
        child = 2 * i + 1;
    }
    if (child < n) {
        heap[i] = heap[child];
        i = child;
    }
    while (i > 0) {
        i64 parent = (i - 1) >> 1;
        if (heap[parent].time < e.time || (heap[parent].time == e.time && heap[parent].seq < e.seq)) break;
        heap[i] = heap[parent];
        i = parent;
    }
    heap[i] = e;
}

i64 run(P p, S s, Table ticks, Table size) {
    if (p->warm == 1) prefill(p, s, size);
    i64 workers = min(p->sms * p->slots, p->ctas);
    for (i64 w = 0; w < workers; w++) {
        s->heap[w] = (Event){w * p->cta_interval + p->cta_start, w, w};
        s->work[w].cta = w;
        s->work[w].phase = P_START;
    }
    i64 seq = workers, n = workers, following = workers, finish = 0, events = 0;
    while (n > 0) {
        i64 t = s->heap[0].time, index = s->heap[0].worker, until = t, again = 1;
        Work *w = &s->work[index];
        Unit *u = &s->units[w->sm];
        i64 phase = w->phase;
        events += 1;
        if (phase == P_START) {
            own(s, u, t, PROLOGUE);
            s->timeline[w->cta * 5] = w->sm;
            s->timeline[w->cta * 5 + 1] = t;
            w->slot = w->load_slot = 0;
            begin_loads(p, w, w->cta);
            w->step = 0;
            w->steps = w->load_steps;
            for (i64 i = 0; i < max(p->stages - 1, 1); i++) load(p, s, ticks, size, index, t);
            phase = P_TRY;
        } else if (phase == P_END) {
            w->step += 1;
            w->slot = w->slot + 1 < p->stages ? w->slot + 1 : 0;
            if (w->step < w->steps) {
                if (p->stages == 1) load(p, s, ticks, size, index, t);
                phase = P_TRY;
            } else {
                s->timeline[w->cta * 5 + 3] = t;
                i64 before = w->drained;
                until = write_tile(p, s, ticks, size, index, max(t, before));
                w->drained = until;
                finish = max(finish, until);
                s->timeline[w->cta * 5 + 4] = until;
                if (p->epilogue_overlap == 1 && p->persistent == 1 && w->cta + workers < p->ctas)
                    until = max(t, before);
                own(s, u, until, EPILOGUE);
                phase = P_EPILOGUE;
                if (until > t) again = 0;
            }
        }
        if (again && phase == P_EPILOGUE) {
            i64 cta = p->persistent == 1 ? w->cta + workers : following++;
            if (cta < p->ctas) {
                w->cta = cta;
                w->step = 0;
                if (p->persistent == 1) {
                    w->steps = steps(p, place(p, cta).split);
                    s->timeline[cta * 5] = w->sm;
                    s->timeline[cta * 5 + 1] = t;
                    phase = P_TRY;
                    if (p->stages == 1) load(p, s, ticks, size, index, t);
                } else {
                    phase = P_START;
                    until = t + p->cta_start;
                    again = 0;
                }
            } else {
                n -= 1;
                s->heap[0] = s->heap[n];
                sift(s->heap, n);
                continue;
            }
        }
        if (again) {
            i64 at = s->ready[index * p->stages + w->slot];
            if (at > t) {
                until = at;
                phase = P_TRY;
            } else {
                int first = w->step == 0;
                if (first) s->timeline[w->cta * 5 + 2] = t;
                if (first && (p->persistent == 0 || w->cta < workers))
                    own(s, u, t, PROLOGUE);
                else
                    own(s, u, t, s->why[index * p->stages + w->slot]);
                until = step_once(p, s, ticks, size, index, t);
                phase = P_END;
            }
        }
        w->phase = phase;
        s->heap[0].time = until;
        s->heap[0].seq = seq++;
        sift(s->heap, n);
    }
    for (i64 sm = 0; sm < p->sms; sm++) s->owners[IDLE] += finish - s->units[sm].frontier;
    s->stats[0] = finish;
    s->stats[15] = events;
    return finish;
}
