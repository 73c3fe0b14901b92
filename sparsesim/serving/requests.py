"""Requests and how they arrive: Poisson, bursty, closed loop, all at once, or from a trace file.

A `Load` is drawn once for a seed and given to every variant that is compared: common random numbers.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sparsesim.errors import ProblemList, UserError, nearest

__all__ = ["ARRIVALS", "Arrivals", "Lengths", "Load", "Request", "draw_load", "read_trace"]

ARRIVALS = ("poisson", "bursty", "closed", "batch", "trace")
TRACE_COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens")
#: most requests of one run, most tokens of one request
MAX_REQUESTS = 1_000_000
MAX_TOKENS = 1 << 20
MAX_SHOWN = 20


@dataclass(frozen=True)
class Request:
    """One request. In a closed loop `arrival_s` is the think time before it, from its client's last answer."""

    arrival_s: float
    prompt: int
    output: int


@dataclass(frozen=True)
class Lengths:
    """Tokens of prompts and outputs: a mean, and a coefficient of variation; 0 = all alike.

    Lengths are log-normal, rounded, at least 1. Distribution and spread are those of published chat traces in kind
    only: whoever has a trace should use it.
    """

    prompt: int = 512
    output: int = 128
    spread: float = 0.0

    def draw(self, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        """`count` prompt and output lengths."""
        return self._one(rng, self.prompt, count), self._one(rng, self.output, count)

    def _one(self, rng: np.random.Generator, mean: int, count: int) -> np.ndarray:
        if self.spread == 0.0:
            return np.full(count, mean)
        sigma2 = math.log1p(self.spread**2)
        drawn = rng.lognormal(math.log(mean) - sigma2 / 2, math.sqrt(sigma2), count)
        return np.clip(np.rint(drawn), 1, MAX_TOKENS).astype(int)


@dataclass(frozen=True)
class Arrivals:
    """How requests come.

    Parameters
    ----------
    kind : one of `ARRIVALS`
    rate : mean requests per second (poisson, bursty)
    burst : mean requests of a burst (bursty): bursts come as a Poisson process, their sizes are geometric, and the
        requests of a burst come together
    clients : requests in the system at most (closed)
    think_s : mean, exponential think time of a client (closed)
    trace : requests of a file, in order of arrival (trace)
    """

    kind: str = "poisson"
    rate: float = 1.0
    burst: float = 8.0
    clients: int = 16
    think_s: float = 0.0
    trace: tuple[Request, ...] = ()

    def check(self) -> None:
        """Raise `UserError` with every problem."""
        problems = ProblemList("arrivals")
        if self.kind not in ARRIVALS:
            line = f"arrivals: kind: expected one of {', '.join(ARRIVALS)}, found {self.kind!r}"
            problems.add_line(line + nearest(self.kind, ARRIVALS))
        if not 0.0 < self.rate < math.inf:
            problems.add("rate", "a positive number of requests per second", self.rate)
        if not 1.0 <= self.burst < math.inf:
            problems.add("burst", "at least 1 request", self.burst)
        if self.clients < 1:
            problems.add("clients", "at least 1", self.clients)
        if not 0.0 <= self.think_s < math.inf:
            problems.add("think", "a time of at least 0 [s]", self.think_s)
        if self.kind == "trace" and not self.trace:
            problems.add("trace", "a trace file", "none")
        problems.raise_if_any()


@dataclass(frozen=True)
class Load:
    """Requests of one replication. `clients`: 0 = open; else so many clients share the requests in turn."""

    requests: tuple[Request, ...]
    clients: int
    seed: int


def draw_load(arrivals: Arrivals, lengths: Lengths, count: int, seed: int) -> Load:
    """Draw `count` requests; equal arguments give equal requests.

    Arrivals, prompts and outputs have random streams of their own, so that one can change without the others.
    """
    arrivals.check()
    if not 1 <= count <= MAX_REQUESTS:
        raise UserError(f"requests: expected 1 to {MAX_REQUESTS}, found {count}")
    if arrivals.kind == "trace":
        return Load(arrivals.trace[:count], 0, seed)
    when, sizes = (np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(2))
    prompts, outputs = lengths.draw(sizes, count)
    clients = 0
    if arrivals.kind == "poisson":
        times = np.cumsum(when.exponential(1.0 / arrivals.rate, count))
    elif arrivals.kind == "bursty":
        bursts = when.geometric(1.0 / arrivals.burst, count)
        starts = np.cumsum(when.exponential(arrivals.burst / arrivals.rate, count))
        times = np.repeat(starts, bursts)[:count]
    elif arrivals.kind == "closed":
        clients = arrivals.clients
        times = when.exponential(1.0, count) * arrivals.think_s
    else:
        times = np.zeros(count)
    rows = zip(times.tolist(), prompts.tolist(), outputs.tolist(), strict=True)
    return Load(tuple(Request(*row) for row in rows), clients, seed)


def read_trace(path: str | Path) -> tuple[Request, ...]:
    """Requests of a CSV file with the columns arrival_s, prompt_tokens, output_tokens, sorted by arrival.

    Raises
    ------
    UserError
        Missing file or columns, numbers that are none or out of range: every problem (at most 20 shown).
    """
    path = Path(path)
    problems = ProblemList(str(path))
    requests: list[Request] = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as handle:
            reader = csv.DictReader(handle, strict=True)
            header = reader.fieldnames or []
            for column in TRACE_COLUMNS:
                if column not in header:
                    problems.add("header", f"a column {column!r}{nearest(column, header)}", ",".join(header))
            problems.raise_if_any()
            for row in reader:
                request = _row(row, reader.line_num, problems)
                if request is not None:
                    requests.append(request)
    except OSError as error:
        raise UserError(f"{path}: expected a trace file, found {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: expected UTF-8 text, found byte {error.start} that is not") from None
    except csv.Error as error:
        raise UserError(f"{path}: expected CSV, found an error: {error}") from None
    if len(problems.lines) > MAX_SHOWN:
        problems.lines[MAX_SHOWN:] = [f"{path}: and {len(problems.lines) - MAX_SHOWN} further problems"]
    problems.raise_if_any()
    if not requests:
        raise UserError(f"{path}: expected at least one request, found none")
    return tuple(sorted(requests, key=lambda request: request.arrival_s))


def _row(row: dict[str, str], line: int, problems: ProblemList) -> Request | None:
    before = len(problems.lines)
    try:
        arrival = float(row["arrival_s"])
    except (TypeError, ValueError):
        arrival = math.nan
    if not 0.0 <= arrival < math.inf:
        problems.add(f"line {line}: arrival_s", "a time of at least 0 [s]", row["arrival_s"])
    tokens = []
    for column in TRACE_COLUMNS[1:]:
        try:
            count = int(row[column])
        except (TypeError, ValueError):
            count = 0
        if not 1 <= count <= MAX_TOKENS:
            problems.add(f"line {line}: {column}", f"an integer from 1 to {MAX_TOKENS}", row[column])
        tokens.append(count)
    return Request(arrival, *tokens) if len(problems.lines) == before else None
