"""Schedulers: which tokens the next step computes.

`Continuous` is vLLM's V1 policy: running sequences first, then waiting ones while token budget, sequence slots and
KV blocks last; prompts may be split into chunks; where a block is missing, the sequence admitted last is preempted,
loses its cache and is computed again. `Static` forms a batch when the engine is idle, and runs it to the end of its
longest output. Prefix caching is not modelled: a preempted sequence finds nothing of its cache again.

A sequence that decodes costs nothing per step: its block demand follows from the step in which it joined.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from sparsesim.errors import UserError
from sparsesim.serving.requests import Request
from sparsesim.serving.steps import Batch

__all__ = ["Continuous", "Scheduler", "Sequence", "Static"]


@dataclass(eq=False)
class Sequence:
    """One request inside the engine; times [s] are set by the engine.

    `known` = prompt and generated tokens; `computed` = those in the KV cache while it is not decoding; `blocks` held.
    """

    request: Request
    index: int
    arrival: float
    known: int = 0
    computed: int = 0
    blocks: int = 0
    joined: int = -1
    order: int = -1
    first_token: float | None = None
    finish: float | None = None
    preemptions: int = 0
    client: int = 0

    def __post_init__(self) -> None:
        self.known = self.request.prompt

    @property
    def length(self) -> int:
        """Tokens when it is finished."""
        return self.request.prompt + self.request.output


class Scheduler(Protocol):
    """What the engine asks of a scheduler."""

    @property
    def waiting(self) -> int:
        """Sequences that wait for their first or a repeated prefill."""
        ...

    @property
    def running(self) -> int:
        """Sequences that hold KV blocks."""
        ...

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence; raises UserError if it can never run."""
        ...

    def plan(self) -> Batch | None:
        """The next step, or None if there is nothing to do."""
        ...

    def commit(self) -> tuple[int, list[Sequence], list[Sequence]]:
        """Book the planned step as done: (tokens generated, sequences with their first token, finished ones)."""
        ...


@dataclass
class _Pool:
    """KV blocks."""

    total: int
    size: int
    used: int = 0

    @property
    def free(self) -> int:
        return self.total - self.used

    def of(self, tokens: int) -> int:
        """Blocks that so many tokens take."""
        return -(-tokens // self.size)


def _admissible(sequence: Sequence, pool: _Pool) -> None:
    # the last generated token is never written to the cache
    need = pool.of(sequence.length - 1)
    if need > pool.total:
        raise UserError(
            f"request {sequence.index}: expected at most {pool.total * pool.size} tokens, which is all that the KV "
            f"cache holds, found {sequence.length - 1}"
        )


@dataclass
class _Plan:
    chunks: list[tuple[Sequence, int]] = field(default_factory=list)
    decodes: bool = False


class Continuous:
    """Continuous batching with chunked prefill and preemption by recomputation.

    Parameters
    ----------
    blocks, block : KV blocks, and tokens in each
    max_tokens : token budget of a step; at least `max_seqs`
    max_seqs : sequences that run at once
    chunked : whether a prompt may be split; if not, one longer than the budget still runs, alone
    """

    def __init__(self, blocks: int, block: int, max_tokens: int, max_seqs: int, chunked: bool = True) -> None:
        if max_tokens < max_seqs:
            raise UserError(f"max tokens: expected at least max seqs = {max_seqs}, found {max_tokens}")
        self.pool = _Pool(blocks, block)
        self.max_tokens = max_tokens
        self.max_seqs = max_seqs
        self.chunked = chunked
        self.preemptions = 0
        self._queue: deque[Sequence] = deque()
        self._active: dict[int, Sequence] = {}  # by order of admission
        self._prefilling: list[Sequence] = []
        self._tick = 0
        self._admitted = 0
        self._decoding = 0
        self._context = 0
        self._phases = [0] * block
        self._taken = False  # whether the blocks that decoding needs in this step are taken
        self._finishing: list[tuple[int, int, Sequence]] = []
        self._plan = _Plan()

    @property
    def waiting(self) -> int:
        """Sequences in the queue."""
        return len(self._queue)

    @property
    def running(self) -> int:
        """Sequences that hold KV blocks."""
        return len(self._active)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence; raises UserError if the KV cache can never hold it."""
        _admissible(sequence, self.pool)
        self._queue.append(sequence)

    # --- a step ---

    def plan(self) -> Batch | None:
        """Choose the tokens of the next step and take the KV blocks for them."""
        preempted = self.preemptions
        self._take_decode_blocks()
        budget = self.max_tokens - self._decoding
        plan = _Plan(decodes=self._decoding > 0)
        for sequence in list(self._prefilling):
            if budget <= 0:
                break
            if sequence.order not in self._active:  # preempted meanwhile
                continue
            budget -= self._chunk(sequence, budget, plan, may_preempt=True)
        if self.preemptions == preempted:
            while self._queue and budget > 0 and len(self._active) < self.max_seqs:
                took = self._admit(budget, plan)
                if not took:
                    break
                budget -= took
        plan.chunks = [(sequence, new) for sequence, new in plan.chunks if sequence.order in self._active]
        plan.decodes = self._decoding > 0
        self._plan = plan
        if not plan.chunks and not self._decoding:
            return None
        done = sum(sequence.computed + new == sequence.known for sequence, new in plan.chunks)
        return Batch(
            chunks=tuple((new, sequence.computed + new) for sequence, new in plan.chunks),
            decodes=self._decoding,
            context=self._context + self._decoding,
            sampled=self._decoding + done,
        )

    def commit(self) -> tuple[int, list[Sequence], list[Sequence]]:
        """Book the step: every decoding sequence and every completed prompt has one more token."""
        generated = self._decoding
        self._context += self._decoding
        self._tick += 1
        self._taken = False
        first: list[Sequence] = []
        finished: list[Sequence] = []
        while self._finishing and self._finishing[0][0] <= self._tick:
            _, order, sequence = heapq.heappop(self._finishing)
            if sequence.order == order and sequence.joined >= 0:
                self._leave(sequence)
                finished.append(sequence)
        for sequence, new in self._plan.chunks:
            sequence.computed += new
            if sequence.computed < sequence.known:
                continue
            generated += 1
            self._prefilling.remove(sequence)
            if sequence.known == sequence.request.prompt:
                first.append(sequence)
            sequence.known += 1
            if sequence.known == sequence.length:
                self._release(sequence)
                finished.append(sequence)
            else:
                self._join(sequence)
        return generated, first, finished

    # --- decoding sequences ---

    def _join(self, sequence: Sequence) -> None:
        """From now on one token a step; its next block is due when the cached tokens fill the last one."""
        sequence.joined = self._tick
        self._decoding += 1
        self._context += sequence.computed
        self._phases[(self._tick - sequence.computed) % self.pool.size] += 1
        heapq.heappush(self._finishing, (self._tick + sequence.length - sequence.known, sequence.order, sequence))

    def _leave(self, sequence: Sequence) -> None:
        """No longer decoding: its token counts are what the passed steps made of them; its blocks are free."""
        steps = self._tick - sequence.joined
        self._phases[(sequence.joined - sequence.computed) % self.pool.size] -= 1
        sequence.known += steps
        sequence.computed += steps
        sequence.blocks = self.pool.of(sequence.computed)
        self._decoding -= 1
        self._context -= sequence.computed
        sequence.joined = -1
        self._release(sequence)

    def _take_decode_blocks(self) -> None:
        """A block for every decoding sequence whose last one is full; who came last gives way."""
        due = self._phases[self._tick % self.pool.size]
        while due > self.pool.free:
            self._preempt()
            due = self._phases[self._tick % self.pool.size]
        self.pool.used += due
        self._taken = True

    def _release(self, sequence: Sequence) -> None:
        self.pool.used -= sequence.blocks
        sequence.blocks = 0
        del self._active[sequence.order]

    def _preempt(self) -> Sequence:
        """Take the blocks of the sequence admitted last; it will be computed again."""
        order = next(reversed(self._active))
        sequence = self._active[order]
        if sequence.joined >= 0:
            due = self._taken and (sequence.joined - sequence.computed - self._tick) % self.pool.size == 0
            self.pool.used -= due
            self._leave(sequence)
        else:
            self._prefilling.remove(sequence)
            self._release(sequence)
        sequence.order = -1
        sequence.computed = 0
        sequence.preemptions += 1
        self.preemptions += 1
        self._queue.appendleft(sequence)
        return sequence

    # --- prompts ---

    def _admit(self, budget: int, plan: _Plan) -> int:
        """Admit the head of the queue; the tokens that it takes, 0 if it does not fit."""
        sequence = self._queue[0]
        if not self.chunked and sequence.known > budget and (plan.chunks or plan.decodes):
            return 0
        if self.pool.of(min(sequence.known, budget if self.chunked else sequence.known)) > self.pool.free:
            return 0
        self._queue.popleft()
        self._admitted += 1
        sequence.order = self._admitted
        self._active[sequence.order] = sequence
        self._prefilling.append(sequence)
        return self._chunk(sequence, budget, plan, may_preempt=False)

    def _chunk(self, sequence: Sequence, budget: int, plan: _Plan, may_preempt: bool) -> int:
        """The next chunk of a prompt, with its blocks; 0 if the sequence itself had to give way."""
        left = sequence.known - sequence.computed
        new = min(left, budget) if self.chunked else left
        need = self.pool.of(sequence.computed + new) - sequence.blocks
        while need > self.pool.free:
            if not may_preempt or self._preempt() is sequence:
                return 0
        self.pool.used += need
        sequence.blocks += need
        plan.chunks.append((sequence, new))
        return new


class Static:
    """Static batching: whoever waits when the engine is idle, at most `max_seqs`, with room for the longest output.

    Prompts are padded to the longest of the batch and computed in one step; sequences that are done keep their row
    until the last one is.
    """

    def __init__(self, blocks: int, block: int, max_seqs: int) -> None:
        self.pool = _Pool(blocks, block)
        self.max_seqs = max_seqs
        self.preemptions = 0
        self._queue: deque[Sequence] = deque()
        self._batch: list[Sequence] = []
        self._left: list[Sequence] = []
        self._done = 0  # tokens generated for each sequence of the batch

    @property
    def waiting(self) -> int:
        """Sequences in the queue."""
        return len(self._queue)

    @property
    def running(self) -> int:
        """Sequences of the batch that are not done."""
        return len(self._left)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence; raises UserError if the KV cache can never hold it."""
        _admissible(sequence, self.pool)
        self._queue.append(sequence)

    def plan(self) -> Batch | None:
        """The prefill of a new batch, or the next token of the present one."""
        if not self._left:
            self._form()
        if not self._left:
            return None
        rows = len(self._batch)
        longest = max(sequence.request.prompt for sequence in self._batch)
        if self._done == 0:
            return Batch(chunks=((longest, longest),) * rows, sampled=rows)
        return Batch(decodes=len(self._left), width=rows, context=rows * (longest + self._done), sampled=rows)

    def _form(self) -> None:
        self._batch, self._done, prompt, output = [], 0, 0, 0
        while self._queue and len(self._batch) < self.max_seqs:
            request = self._queue[0].request
            prompt, output = max(prompt, request.prompt), max(output, request.output)
            if self._batch and (len(self._batch) + 1) * self.pool.of(prompt + output - 1) > self.pool.total:
                break
            self._batch.append(self._queue.popleft())
        self._left = list(self._batch)

    def commit(self) -> tuple[int, list[Sequence], list[Sequence]]:
        """Every sequence that is not done has one more token."""
        self._done += 1
        generated = len(self._left)
        first = list(self._left) if self._done == 1 else []
        finished = [sequence for sequence in self._left if sequence.request.output <= self._done]
        self._left = [sequence for sequence in self._left if sequence.request.output > self._done]
        return generated, first, finished
