"""Which of the changes between two runs moved a figure, and by how much: exact Shapley values of counterfactual runs.

Value of a set U of changes: ln of the figure of the base with U made. v(empty) is the base, v(all) the candidate; the
share of a change is its Shapley value, so that shares sum to ln(candidate / base) whatever the order. Every set is
simulated, 2^n runs for n changes; a change that moves nothing, neither alone on the base nor alone taken back from the
candidate, is left out and listed as without effect.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from sparsesim.attribution import shapley
from sparsesim.diagnose.changes import Change, apply, coarser, levels
from sparsesim.diagnose.run import EFFECTS, Evaluator, Outcome, Run
from sparsesim.errors import UserError
from sparsesim.lowering import NoKernelError

__all__ = ["MATERIAL", "MAX_CHANGES", "Attributed", "attribute_changes"]

#: changes that are attributed exactly: 2^8 counterfactual runs
MAX_CHANGES = 8
#: |ln| below which a figure counts as unmoved by a change: above what extrapolated launches differ by, far below noise
NOTHING = 1e-9
#: |ln| of a figure from which on a loss is worth a word
MATERIAL = 0.005

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Attributed:
    """The changes that were attributed, what was inert, and effect → change → share of the ln difference.

    alone : effect → change → ln difference of that change made alone on the base
    """

    changes: tuple[Change, ...]
    inert: tuple[Change, ...]
    shares: dict[str, dict[str, float]]
    alone: dict[str, dict[str, float]]
    runs: int
    grouped: bool
    within: dict[str, dict[str, float]] = field(default_factory=dict)

    def ranked(self, effect: str) -> list[tuple[Change, float]]:
        """Changes with their share, the largest loss first."""
        shares = self.shares[effect]
        return sorted(((c, shares[c.id]) for c in self.changes), key=lambda item: (item[1], item[0].id))


def attribute_changes(
    evaluator: Evaluator, base: Run, candidate: Run, changes: Sequence[Change], progress: Progress | None = None
) -> Attributed:
    """Attribute the difference of the two runs to `changes`, exactly.

    Changes are put together (see `changes.coarser`) where more than `MAX_CHANGES` have an effect, or where a set of
    them makes no possible run.

    Raises
    ------
    UserError, NoKernelError
        Even all of them together are impossible: the candidate itself cannot run.
    """
    last: Exception | None = None
    for level in levels():
        groups = coarser(changes, level)
        try:
            inert = [change for change in groups if _inert(evaluator, base, candidate, groups, change)]
            active = [change for change in groups if change not in inert]
            if len(active) > MAX_CHANGES:
                continue
            return _exact(evaluator, base, candidate, active, inert, level > 0 and len(groups) < len(changes), progress)
        except (UserError, NoKernelError) as error:
            last = error
    assert last is not None
    raise last


def _ln(outcome: Outcome) -> np.ndarray:
    return np.array([outcome.ln[effect.id] for effect in EFFECTS])


def _inert(evaluator: Evaluator, base: Run, candidate: Run, groups: Sequence[Change], change: Change) -> bool:
    others = [other for other in groups if other is not change]
    ends = [([], [change]), (others, groups)]
    return all(
        bool(
            np.all(
                np.abs(
                    _ln(evaluator.outcome(apply(base, candidate, after)))
                    - _ln(evaluator.outcome(apply(base, candidate, before)))
                )
                <= NOTHING
            )
        )
        for before, after in ends
    )


def _exact(
    evaluator: Evaluator,
    base: Run,
    candidate: Run,
    active: Sequence[Change],
    inert: Sequence[Change],
    grouped: bool,
    progress: Progress | None,
) -> Attributed:
    count = len(active)
    values = np.zeros((1 << count, len(EFFECTS)))
    for mask in range(1 << count):
        chosen = [change for i, change in enumerate(active) if mask >> i & 1]
        values[mask] = _ln(evaluator.outcome(apply(base, candidate, [*chosen])))
        if progress is not None:
            progress(mask + 1, 1 << count)
    whole = _ln(evaluator.outcome(candidate))
    if not np.allclose(values[-1], whole, rtol=0.0, atol=1e-6):
        raise AssertionError(f"all changes together give {values[-1]}, the candidate {whole}")
    shares: dict[str, dict[str, float]] = {}
    alone: dict[str, dict[str, float]] = {}
    for column, effect in enumerate(EFFECTS):
        game = values[:, column]
        shares[effect.id] = dict(zip((c.id for c in active), shapley(game).tolist() if count else [], strict=True))
        alone[effect.id] = {c.id: float(game[1 << i] - game[0]) for i, c in enumerate(active)}
        total = math.fsum(shares[effect.id].values())
        if not math.isclose(total, game[-1] - game[0], abs_tol=1e-9):
            raise AssertionError(f"shares of {effect.id} sum to {total}, expected {game[-1] - game[0]}")
    return Attributed(tuple(active), tuple(inert), shares, alone, 1 << count, grouped)
