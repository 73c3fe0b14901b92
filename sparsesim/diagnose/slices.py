"""The reproducible slice: the smallest workload that still shows the effect, found by delta debugging.

Criterion: the effect (ln of the figure, candidate against base) of the slice has the sign of the whole's and at least
`KEEP` of its size; so has the effect of the first change alone. Searched are single ops, then pairs, and beyond that
subsets from which no op can be taken away any more (Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing
Input, 2002: ddmin), whole phases first. Each op then runs once instead of `count` times if the criterion still holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from sparsesim.diagnose.run import Evaluator, Run
from sparsesim.workload import Workload

__all__ = ["KEEP", "Slice", "find_slice"]

#: share of the effect's size that a slice must keep
KEEP = 0.8
#: ops up to which all pairs are tried
PAIRS = 16


@dataclass(frozen=True)
class Slice:
    """Both runs cut to the ops of the slice; `effect` and `whole` are ln differences."""

    base: Run
    candidate: Run
    ops: tuple[str, ...]
    of: int
    effect_id: str
    effect: float
    whole: float
    minimal: str
    tried: int

    @property
    def criterion(self) -> str:
        """What the slice was held to, in words."""
        return (
            f"same sign and at least {100 * KEEP:.0f} % of the change of {self.effect_id} ({self.whole:+.4f} ln), "
            "of the first change's, too"
        )


def find_slice(evaluator: Evaluator, base: Run, candidate: Run, effect: str, also: Run | None = None) -> Slice:
    """The smallest slice of two (aligned) runs that keeps their difference in `effect`.

    `also` is another run whose difference to `base` it has to keep, too: that of the first change alone.
    """
    names = list(dict.fromkeys(op.name for run in (base, candidate) for op in run.workload.ops))
    others = [candidate] if also is None else [candidate, also]
    tried: set[frozenset[str]] = set()

    def difference(chosen: frozenset[str], other: Run = candidate) -> float | None:
        """ln difference on the chosen ops; None where a run would be empty."""
        tried.add(chosen)
        if not all(any(op.name in chosen for op in run.workload.ops) for run in (base, other)):
            return None
        before, after = (evaluator.outcome(run.only(chosen)).ln[effect] for run in (base, other))
        return after - before

    wholes = [difference(frozenset(names), other) or 0.0 for other in others]
    whole = wholes[0]

    def keeps(found: float | None, of: float) -> bool:
        return found is not None and found * of > 0 and abs(found) >= KEEP * abs(of)

    def shows(chosen: Sequence[str]) -> bool:
        ops = frozenset(chosen)
        return all(keeps(difference(ops, other), of) for other, of in zip(others, wholes, strict=True))

    chosen, minimal = _search(names, shows, lambda name: -abs(difference(frozenset([name])) or 0.0))
    ops = frozenset(chosen)
    cut = [run.only(ops) for run in (base, candidate)]
    once = [_once(run) for run in cut]
    before, after = (evaluator.outcome(run).ln[effect] for run in once)
    size = difference(ops) or 0.0
    alone = None if also is None else evaluator.outcome(_once(also.only(ops))).ln[effect] - before
    if keeps(after - before, whole) and (also is None or keeps(alone, wholes[1])):
        cut, size = once, after - before
    return Slice(
        cut[0], cut[1], tuple(n for n in names if n in ops), len(names), effect, size, whole, minimal, len(tried)
    )


def _search(
    names: list[str], shows: Callable[[Sequence[str]], bool], order: Callable[[str], float]
) -> tuple[list[str], str]:
    """The subset, and in which sense it is the smallest."""
    if len(names) == 1:
        return names, "the only op"
    ranked = sorted(names, key=lambda name: (order(name), name))
    for name in ranked:
        if shows([name]):
            return [name], "one op"
    if len(names) <= PAIRS:
        for pair in combinations(ranked, 2):
            if shows(pair):
                return list(pair), "the fewest ops: no single one shows it"
    phases = list(dict.fromkeys(name.partition("/")[0] for name in names))
    kept = names
    if len(phases) > 1:
        wanted = _ddmin(phases, lambda part: shows([n for n in names if n.partition("/")[0] in part]))
        kept = [name for name in names if name.partition("/")[0] in wanted]
    return _ddmin(kept, shows), "no op can be taken away"


def _ddmin(items: list[str], shows: Callable[[Sequence[str]], bool]) -> list[str]:
    """A subset that shows the effect and loses it with any one item less; `items` must show it."""
    parts = 2
    while len(items) > 1:
        size = -(-len(items) // parts)
        chunks = [items[i : i + size] for i in range(0, len(items), size)]
        subset = next((chunk for chunk in chunks if shows(chunk)), None)
        if subset is not None:
            items, parts = subset, 2
            continue
        rest = next((r for chunk in chunks if shows(r := [x for x in items if x not in chunk])), None)
        if rest is not None:
            items, parts = rest, max(parts - 1, 2)
        elif parts >= len(items):
            break
        else:
            parts = min(2 * parts, len(items))
    return items


def _once(run: Run) -> Run:
    ops = tuple(replace(op, count=1) for op in run.workload.ops)
    return replace(run, workload=Workload(run.workload.name, run.workload.description, run.workload.source, ops))
