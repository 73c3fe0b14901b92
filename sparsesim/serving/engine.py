"""The engine as SimPy processes: clients, the front end, and the loop that runs step after step.

The front end is a process of its own: it prepares requests and hands out tokens, one thing at a time, while the
engine goes on. Whatever times a step may be given: tests use constant and exponential ones to compare with queues
whose answers are known.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Protocol

import simpy

from sparsesim.serving.requests import Load, Request
from sparsesim.serving.scheduler import Scheduler, Sequence
from sparsesim.serving.steps import Batch

__all__ = ["FrontEnd", "StepCost", "StepLog", "Trace", "run_engine"]

Process = Generator[simpy.Event, Any, None]


class StepCost(Protocol):
    """What the engine needs to know of a step's time [s]."""

    @property
    def seconds(self) -> float:
        """The whole step."""
        ...


@dataclass(frozen=True)
class FrontEnd:
    """Time of the front end for each request, prompt token and output token [s]."""

    request: float = 0.0
    prompt: float = 0.0
    output: float = 0.0


@dataclass(frozen=True)
class StepLog:
    """One step: its times [s], what it computed, what was generated, and how many waited when it began."""

    start: float
    end: float
    batch: Batch
    cost: Any
    generated: int
    waiting: int


@dataclass
class Trace:
    """Everything that happened: sequences in the order of arrival, steps in order.

    `queue` = (time, sequences that wait for the engine) after each change.
    """

    sequences: list[Sequence] = field(default_factory=list)
    steps: list[StepLog] = field(default_factory=list)
    queue: list[tuple[float, int]] = field(default_factory=list)
    end: float = 0.0


def run_engine(load: Load, scheduler: Scheduler, step: Callable[[Batch], StepCost], front: FrontEnd) -> Trace:
    """Serve all requests of `load` to their end.

    Parameters
    ----------
    step : time of a batch
    front : times of the front end; its queue is unbounded

    Raises
    ------
    UserError
        A request that the KV cache can never hold.
    """
    return _Engine(load, scheduler, step, front).run()


class _Engine:
    def __init__(self, load: Load, scheduler: Scheduler, step: Callable[[Batch], StepCost], front: FrontEnd) -> None:
        self.env = simpy.Environment()
        self.load = load
        self.scheduler = scheduler
        self.step = step
        self.front = front
        self.desk = simpy.Resource(self.env, 1)
        self.wake = self.env.event()
        self.trace = Trace()
        self.left = len(load.requests)
        self.sources = iter(load.requests)

    def run(self) -> Trace:
        if self.load.clients:
            for client in range(min(self.load.clients, len(self.load.requests))):
                self.env.process(self._think(client))
        else:
            self.env.process(self._arrive())
        self.env.process(self._loop())
        self.env.run()
        return self.trace

    # --- requests ---

    def _arrive(self) -> Process:
        """Open arrivals at their own times."""
        for request in self.sources:
            if request.arrival_s > self.env.now:
                yield self.env.timeout(request.arrival_s - self.env.now)
            self._enter(request, 0)

    def _think(self, client: int) -> Process:
        """One client's next request, after its think time."""
        request = next(self.sources, None)
        if request is not None:
            yield self.env.timeout(request.arrival_s)
            self._enter(request, client)

    def _enter(self, request: Request, client: int) -> None:
        sequence = Sequence(request, len(self.trace.sequences), self.env.now, client=client)
        self.trace.sequences.append(sequence)
        cost = self.front.request + request.prompt * self.front.prompt
        if cost:
            self.env.process(self._prepare(sequence, cost))
        else:
            self._queue(sequence)

    def _prepare(self, sequence: Sequence, cost: float) -> Process:
        with self.desk.request() as turn:
            yield turn
            yield self.env.timeout(cost)
        self._queue(sequence)

    def _queue(self, sequence: Sequence) -> None:
        self.scheduler.add(sequence)
        self._note()
        if not self.wake.triggered:
            self.wake.succeed()

    def _note(self) -> None:
        self.trace.queue.append((self.env.now, self.scheduler.waiting))

    # --- steps ---

    def _loop(self) -> Process:
        while self.left:
            batch = self.scheduler.plan()
            if batch is None:
                self.wake = self.env.event()
                yield self.wake
                continue
            self._note()
            start, waiting = self.env.now, self.scheduler.waiting
            cost = self.step(batch)
            yield self.env.timeout(cost.seconds)
            generated, first, finished = self.scheduler.commit()
            self.trace.steps.append(StepLog(start, self.env.now, batch, cost, generated, waiting))
            self.left -= len(finished)
            cost_out = generated * self.front.output
            if cost_out:
                self.env.process(self._hand_out(cost_out, first, finished))
            else:
                self._deliver(first, finished)

    def _hand_out(self, cost: float, first: list[Sequence], finished: list[Sequence]) -> Process:
        with self.desk.request() as turn:
            yield turn
            yield self.env.timeout(cost)
        self._deliver(first, finished)

    def _deliver(self, first: list[Sequence], finished: list[Sequence]) -> None:
        now = self.env.now
        self.trace.end = max(self.trace.end, now)
        for sequence in first:
            sequence.first_token = now
        for sequence in finished:
            sequence.finish = now
            if self.load.clients:
                self.env.process(self._think(sequence.client))
