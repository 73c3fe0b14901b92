"""The engine against queues whose answers are known, and its schedulers against a slow one that does every step."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsesim.errors import UserError
from sparsesim.serving.engine import FrontEnd, run_engine
from sparsesim.serving.requests import Arrivals, Lengths, Load, Request, draw_load
from sparsesim.serving.results import measure
from sparsesim.serving.scheduler import Continuous, Static
from sparsesim.serving.stats import estimate


@dataclass(frozen=True)
class Cost:
    """A step of known time."""

    seconds: float


def single_server() -> Static:
    """One request at a time, first come, first served; one token, hence one step, each."""
    return Static(blocks=1, block=16, max_seqs=1)


def replicate(arrivals, step_of, count=6000, seeds=range(6), warmup=0.1):
    """Metrics of independent replications; `step_of(rng)` makes the step times."""
    rows = []
    for seed in seeds:
        load = draw_load(arrivals, Lengths(prompt=1, output=1), count, seed)
        trace = run_engine(load, single_server(), step_of(np.random.default_rng(1000 + seed)), FrontEnd())
        rows.append((measure(trace, warmup, open_load=arrivals.kind != "closed"), trace))
    return rows


def covers(values, truth):
    """The 95 % interval of the replications, widened by half, holds the truth; and it is tight enough to mean it."""
    got = estimate(values)
    half = got.high - got.mean
    assert half < 0.12 * truth, "too few replications to say anything"
    return abs(got.mean - truth) <= 1.5 * half


@pytest.mark.parametrize("load", [0.3, 0.7])
def test_m_d_1_waits_as_pollaczek_and_khinchine_say(load):
    service = 2e-3
    rows = replicate(Arrivals("poisson", rate=load / service), lambda rng: lambda batch: Cost(service))
    waits = [row["e2e_mean_s"] - service for row, _ in rows]
    assert covers(waits, load * service / (2 * (1 - load)))
    # Little's law: the queue's mean length is rate x wait
    assert covers([row["queue_mean"] for row, _ in rows], load**2 / (2 * (1 - load)))
    assert covers([row["gpu_busy"] for row, _ in rows], load)


@pytest.mark.parametrize("load", [0.3, 0.6])
def test_m_m_1_sojourns_are_exponential(load):
    service = 1e-3
    rows = replicate(
        Arrivals("poisson", rate=load / service), lambda rng: lambda batch: Cost(float(rng.exponential(service)))
    )
    mean = service / (1 - load)
    assert covers([row["e2e_mean_s"] for row, _ in rows], mean)
    assert covers([row["e2e_p50_s"] for row, _ in rows], mean * math.log(2))
    assert covers([row["e2e_p95_s"] for row, _ in rows], mean * math.log(20))


@pytest.mark.parametrize(("clients", "think"), [(1, 2e-3), (4, 3e-3), (10, 5e-3)])
def test_machine_repairman_in_a_closed_loop(clients, think):
    service = 1e-3
    rows = replicate(
        Arrivals("closed", clients=clients, think_s=think),
        lambda rng: lambda batch: Cost(float(rng.exponential(service))),
    )
    # the number of broken machines is a birth-death chain: p(k) ~ N!/(N-k)! (service/think)^k
    weights = [math.perm(clients, k) * (service / think) ** k for k in range(clients + 1)]
    busy = 1 - weights[0] / sum(weights)
    throughput = busy / service
    assert covers([row["requests_per_s"] for row, _ in rows], throughput)
    assert covers([row["gpu_busy"] for row, _ in rows], busy)
    # response time law: R = N / X - Z
    assert covers([row["e2e_mean_s"] for row, _ in rows], clients / throughput - think)


def test_the_front_end_is_one_server_beside_the_engine():
    """A tandem of two: with the slower stage first, requests leave at its rate, and the engine's time adds once."""
    load = Load((Request(0.0, 10, 1),) * 50, 0, 0)
    trace = run_engine(load, single_server(), lambda batch: Cost(1e-3), FrontEnd(request=1e-3, prompt=1e-4))
    assert trace.end == pytest.approx(50 * 2e-3 + 1e-3)
    trace = run_engine(load, single_server(), lambda batch: Cost(3e-3), FrontEnd(request=1e-3, prompt=1e-4))
    assert trace.end == pytest.approx(2e-3 + 50 * 3e-3)


def test_static_batches_keep_finished_rows_and_admit_nobody():
    batches = []

    def step(batch):
        batches.append(batch)
        return Cost(1.0)

    requests = (Request(0.0, 8, 2), Request(0.0, 5, 4), Request(0.5, 3, 1))
    trace = run_engine(Load(requests, 0, 0), Static(100, 16, 2), step, FrontEnd())
    first, *rest = batches
    assert first.chunks == ((8, 8), (8, 8))  # padded to the longer prompt
    assert [(b.decodes, b.width, b.tokens) for b in rest[:3]] == [(2, 2, 2), (1, 2, 2), (1, 2, 2)]
    assert rest[3].chunks == ((3, 3),)
    assert [s.first_token for s in trace.sequences] == [1.0, 1.0, 5.0]
    assert [s.finish for s in trace.sequences] == [2.0, 4.0, 5.0]


def test_a_prompt_is_split_where_the_budget_ends_and_decodes_come_first():
    batches = []

    def step(batch):
        batches.append(batch)
        return Cost(1.0)

    load = Load((Request(0.0, 4, 5), Request(0.5, 20, 1)), 0, 0)
    run_engine(load, Continuous(100, 4, max_tokens=8, max_seqs=4), step, FrontEnd())
    assert batches[0].chunks == ((4, 4),)
    assert [(b.decodes, b.chunks) for b in batches[1:4]] == [(1, ((7, 7),)), (1, ((7, 14),)), (1, ((6, 20),))]
    assert batches[3].sampled == 2
    batches.clear()
    run_engine(load, Continuous(100, 4, max_tokens=8, max_seqs=4, chunked=False), step, FrontEnd())
    assert ((20, 20),) in [b.chunks for b in batches]


def test_a_request_larger_than_the_cache_is_an_error():
    load = Load((Request(0.0, 60, 10),), 0, 0)
    for scheduler in (Continuous(4, 16, 64, 4), Static(4, 16, 4)):
        with pytest.raises(UserError, match="expected at most 64 tokens"):
            run_engine(load, scheduler, lambda batch: Cost(1.0), FrontEnd())


class Plain:
    """`Continuous`, said again: every sequence is looked at in every step, every block is counted."""

    def __init__(self, blocks, block, max_tokens, max_seqs):
        self.free, self.block, self.max_tokens, self.max_seqs = blocks, block, max_tokens, max_seqs
        self.queue, self.active = [], []

    def add(self, index, prompt, output):
        self.queue.append({"i": index, "known": prompt, "computed": 0, "blocks": 0, "end": prompt + output})

    def grow(self, sequence, tokens):
        """Take blocks for `tokens` cached tokens; preempt from the end; False if it was this one's turn to go."""
        while -(-tokens // self.block) - sequence["blocks"] > self.free:
            last = self.active.pop()
            self.free += last["blocks"]
            last.update(computed=0, blocks=0)
            self.queue.insert(0, last)
            self.preempted = True
            if last is sequence:
                return False
        need = -(-tokens // self.block) - sequence["blocks"]
        self.free -= need
        sequence["blocks"] += need
        return True

    def step(self):
        """(decodes, context, chunks) of the next step, None if there is nothing to do; and it is done."""
        self.preempted = False
        decoding = [s for s in self.active if s["known"] - s["computed"] == 1 and s.get("decoding")]
        for s in decoding:
            if s in self.active:
                self.grow(s, s["computed"] + 1)
        budget = self.max_tokens - sum(s in self.active for s in decoding)
        chunks = []
        for s in [s for s in self.active if not s.get("decoding")]:
            if budget > 0 and s in self.active:
                new = min(s["known"] - s["computed"], budget)
                if self.grow(s, s["computed"] + new):
                    chunks.append((s, new))
                    budget -= new
        while not self.preempted and self.queue and budget > 0 and len(self.active) < self.max_seqs:
            s = self.queue[0]
            new = min(s["known"], budget)
            if -(-new // self.block) > self.free:
                break
            s["decoding"] = False
            self.active.append(self.queue.pop(0))
            self.grow(s, new)
            chunks.append((s, new))
            budget -= new
        decoding = [s for s in decoding if s in self.active]
        chunks = [(s, new) for s, new in chunks if s in self.active]
        if not decoding and not chunks:
            return None
        plan = (
            len(decoding), sum(s["computed"] + 1 for s in decoding),
            tuple((new, s["computed"] + new) for s, new in chunks),
        )  # fmt: skip
        for s, new in [*chunks, *((s, 1) for s in decoding)]:
            s["computed"] += new
            if s["computed"] == s["known"]:
                s["known"] += 1
                s["decoding"] = True
            if s["known"] == s["end"]:
                self.active.remove(s)
                self.free += s["blocks"]
        return plan


REQUESTS = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 12), st.integers(0, 12)), min_size=1, max_size=12)


@settings(max_examples=150, deadline=None)
@given(requests=REQUESTS, blocks=st.integers(8, 20), max_seqs=st.integers(1, 6), extra=st.integers(0, 10))
def test_the_scheduler_does_what_the_plain_one_does(requests, blocks, max_seqs, extra):
    block = 4
    fast = Continuous(blocks, block, max_seqs + extra, max_seqs)
    plain = Plain(blocks, block, max_seqs + extra, max_seqs)
    arrivals = sorted((when, i, prompt, output) for i, (prompt, output, when) in enumerate(requests))
    generated = finished = 0
    for now in itertools.count():
        while arrivals and arrivals[0][0] <= now:
            _, i, prompt, output = arrivals.pop(0)
            from sparsesim.serving.scheduler import Sequence

            fast.add(Sequence(Request(0.0, prompt, output), i, 0.0))
            plain.add(i, prompt, output)
        batch, expected = fast.plan(), plain.step()
        if batch is None:
            assert expected is None
            if not arrivals:
                break
            continue
        assert (batch.decodes, batch.context, batch.chunks) == expected
        assert fast.pool.used <= fast.pool.total
        assert batch.tokens <= max_seqs + extra
        made, _, done = fast.commit()
        assert fast.pool.free == plain.free
        generated += made
        finished += len(done)
        assert now < 10_000
    assert finished == len(requests)
    assert generated == sum(output for _, output, _ in requests)
    assert fast.pool.used == 0


def test_too_small_a_cache_costs_preemptions_and_time():
    load = Load((Request(0.0, 16, 64),) * 8, 0, 0)
    ends, preemptions = [], []
    for blocks in (8 * 5, 12):
        scheduler = Continuous(blocks, 16, 512, 8)
        ends.append(run_engine(load, scheduler, lambda batch: Cost(1.0), FrontEnd()).end)
        preemptions.append(scheduler.preemptions)
    assert preemptions[0] == 0
    assert preemptions[1] > 0
    assert ends[0] == 64
    assert ends[1] > 1.5 * ends[0]
