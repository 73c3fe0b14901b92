"""Break-even map: over tokens n and weight size m·k, where the sparse path beats dense, beside measured pairs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sparsesim.errors import Problem, UserError
from sparsesim.measured import MeasuredRow, read_measured
from sparsesim.scenarios.scenario import Outcome, Progress, Scenario, run_scenarios
from sparsesim.scenarios.sweep import MAX_POINTS, describe_scenario
from sparsesim.validate import SIGN_BAND, predict_rows
from sparsesim.workload import Workload
from sparsesim.workload.ops import MAX_DIM

__all__ = ["SIDES", "TOKENS", "BreakEven", "MeasuredPair", "break_even", "crossings"]

#: tokens, and sides m = k of the weight, of the map
TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
SIDES = (512, 1024, 1536, 2048, 3072, 4096, 6144, 8192)


@dataclass(frozen=True)
class MeasuredPair:
    """A dense and a sparse timing of one shape from one source, and the model's speedup for that very shape."""

    m: int
    n: int
    k: int
    measured: float
    predicted: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"m": self.m, "n": self.n, "k": self.k, "measured": self.measured, "predicted": self.predicted}


@dataclass(frozen=True)
class BreakEven:
    """The map of one GPU, type and pattern.

    tokens, sides : n, and m = k of the square weights
    outcomes : by [side][token]
    pairs : measured pairs under the map's own protocol; `left_out` says how many others there were, and why
    """

    scenario: Scenario
    tokens: tuple[int, ...]
    sides: tuple[int, ...]
    outcomes: tuple[tuple[Outcome, ...], ...]
    pairs: tuple[MeasuredPair, ...] = ()
    left_out: tuple[tuple[str, int], ...] = ()

    def speedups(self) -> list[list[float]]:
        """Effective speedups by [side][token]; NaN where there is no kernel."""
        return [[outcome.speedup for outcome in row] for row in self.outcomes]

    def crossings(self) -> list[list[float]]:
        """For each side, the n at which the speedup passes 1; see `crossings`."""
        return [crossings(self.tokens, row) for row in self.speedups()]

    @property
    def clear_pairs(self) -> tuple[MeasuredPair, ...]:
        """Measured pairs that are off 1 by more than `validate.SIGN_BAND` allows."""
        return tuple(pair for pair in self.pairs if not SIGN_BAND[0] <= pair.measured <= SIGN_BAND[1])

    @property
    def right_pairs(self) -> int:
        """Of `clear_pairs`, those for which the model is on the measured side of 1."""
        return sum((pair.measured > 1.0) == (pair.predicted > 1.0) for pair in self.clear_pairs)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        about = describe_scenario(self.scenario)
        for name in ("m", "n", "k"):
            about.pop(name)
        return {
            **about,
            "tokens": list(self.tokens),
            "sides": list(self.sides),
            "points": [
                {"m": side, "n": n, "k": side, **outcome.to_dict()}
                for side, row in zip(self.sides, self.outcomes, strict=True)
                for n, outcome in zip(self.tokens, row, strict=True)
            ],
            "crossings": [
                {"m": side, "k": side, "n": found} for side, found in zip(self.sides, self.crossings(), strict=True)
            ],
            "measured": [pair.to_dict() for pair in self.pairs],
            "measured_clear": len(self.clear_pairs),
            "measured_right": self.right_pairs,
            "left_out": [{"why": why, "rows": rows} for why, rows in self.left_out],
        }


def crossings(tokens: Sequence[float], speedups: Sequence[float]) -> list[float]:
    """The n at which ln(speedup) passes 0, interpolated in ln n between neighbouring points."""
    found = []
    logs = [math.log(value) for value in speedups]
    for i in range(len(tokens) - 1):
        low, high = logs[i], logs[i + 1]
        if math.isfinite(low) and math.isfinite(high) and (low > 0.0) != (high > 0.0):
            share = low / (low - high)
            found.append(tokens[i] * (tokens[i + 1] / tokens[i]) ** share)
    return found


def break_even(
    scenario: Scenario,
    tokens: Sequence[int] = TOKENS,
    sides: Sequence[int] = SIDES,
    measured: Sequence[str | Path] = (),
    progress: Progress | None = None,
    jobs: int | None = None,
) -> BreakEven:
    """Map the speedup of square weights of one type and pattern over tokens and size.

    Parameters
    ----------
    scenario : Scenario
        Of one GEMM; its m, n and k are replaced.
    tokens, sides : sequence of int
        n, and m = k; both rising.
    measured : sequence of paths
        Files in the schema of `sparsesim.measured`. Their pairs of this GPU, type, pattern and protocol, whatever
        the shape of their weight, are predicted one by one.
    progress, jobs
        As for `run_scenarios`; measured rows are predicted after the map.

    Raises
    ------
    UserError
        Sizes that do not rise, a workload, a dense pattern, or files without a pair for this map.
    """
    lines = []
    if not scenario.single:
        lines.append("breakeven: expected one GEMM's type and pattern, found a workload")
    elif scenario.op.pattern == "dense":
        lines.append(Problem.line("pattern", "", "a sparse pattern to compare with dense", "dense"))
    for name, values in (("tokens", tokens), ("sides", sides)):
        rising = all(a < b for a, b in itertools.pairwise(values))
        if not values or not rising or not all(type(v) is int and 1 <= v <= MAX_DIM for v in values):
            lines.append(Problem.line(name, "", f"rising integers from 1 to {MAX_DIM}", list(values)))
    if len(tokens) * len(sides) > MAX_POINTS:
        lines.append(Problem.line("breakeven", "", f"at most {MAX_POINTS} points", len(tokens) * len(sides)))
    if lines:
        raise UserError(lines)
    pairs, left_out = _measured(scenario, measured, tokens, sides)
    points = [_at(scenario, side, n) for side in sides for n in tokens]
    outcomes = run_scenarios(points, progress, jobs)
    width = len(tokens)
    rows = tuple(tuple(outcomes[i * width : (i + 1) * width]) for i in range(len(sides)))
    predicted = _predicted(scenario, pairs, jobs)
    return BreakEven(scenario, tuple(tokens), tuple(sides), rows, predicted, left_out)


def _at(scenario: Scenario, side: int, n: int) -> Scenario:
    old = scenario.workload
    op = replace(scenario.op, m=side, n=n, k=side)
    return replace(scenario, workload=Workload(old.name, old.description, old.source, (op,)))


def _measured(
    scenario: Scenario, files: Sequence[str | Path], tokens: Sequence[int], sides: Sequence[int]
) -> tuple[list[tuple[MeasuredRow, MeasuredRow]], tuple[tuple[str, int], ...]]:
    """(dense, sparse) rows that belong on the map, and why the other sparse rows do not."""
    rows = [row for file in files for row in read_measured(file)]
    op, protocol = scenario.op, scenario.protocol
    dense = {row.pair_key: row for row in rows if not row.is_sparse}
    left_out: dict[str, int] = {}
    pairs = []
    for row in rows:
        if not row.is_sparse:
            continue
        why = ""
        if row.gpu != scenario.gpu.name:
            why = f"of another GPU ({row.gpu})"
        elif row.dtype != op.dtype:
            why = f"of another type ({row.dtype})"
        elif row.pattern != op.pattern:
            why = f"of another pattern ({row.pattern})"
        elif (row.timing, row.l2, row.clock) != (protocol.timing, protocol.l2, protocol.clock):
            why = f"taken otherwise (timing {row.timing}, L2 {row.l2}, clock {row.clock})"
        elif not (tokens[0] <= row.n <= tokens[-1] and sides[0] ** 2 <= row.m * row.k <= sides[-1] ** 2):
            why = "outside the map"
        elif row.pair_key not in dense:
            why = "without a dense partner"
        if why:
            left_out[why] = left_out.get(why, 0) + 1
        else:
            pairs.append((dense[row.pair_key], row))
    if files and not pairs:
        reasons = "; ".join(f"{count} sparse rows {why}" for why, count in left_out.items()) or "no sparse rows"
        raise UserError(f"measured: expected dense and sparse rows of this map, found {reasons}")
    return pairs, tuple(left_out.items())


def _predicted(
    scenario: Scenario, pairs: Sequence[tuple[MeasuredRow, MeasuredRow]], jobs: int | None
) -> tuple[MeasuredPair, ...]:
    """The pairs with the model's speedups, under each row's own library policy."""
    rows = [row for pair in pairs for row in pair]
    predictions, _ = predict_rows(rows, lambda _: scenario.gpu, jobs=jobs)
    times = {(p.row.file, p.row.line): p.predicted_us for p in predictions}
    found = []
    for dense, sparse in pairs:
        at, beside = (times.get((row.file, row.line)) for row in (dense, sparse))
        if at is not None and beside is not None:
            found.append(MeasuredPair(sparse.m, sparse.n, sparse.k, dense.time_us / sparse.time_us, at / beside))
    return tuple(found)
