"""Pruning schedules: when during training which of the weights are kept.

========  =============================================================================================================
one-shot  dense training; pruned afterwards
gradual   dense to 40 % of the steps; then one weight of each group goes at equal intervals up to 70 %; the mask of the
          last 30 % is frozen
SR-STE    from the first step the forward pass uses the N largest magnitudes of each group; the gradient passes to all
          weights as if none were masked, and masked ones decay (Zhou et al., arXiv 2102.04010)
========  =============================================================================================================

All train for the same number of steps.
"""

from __future__ import annotations

from sparsesim.sparsity import Pattern

__all__ = ["DECAY", "SCHEDULES", "gradual_kept"]

SCHEDULES = ("gradual", "sr-ste")
#: SR-STE: decay of masked weights, added to their gradient (arXiv 2102.04010, section 4)
DECAY = 2e-4
BEGIN, END = 0.4, 0.7


def gradual_kept(step: int, steps: int, pattern: Pattern) -> int:
    """Weights of each group of M that the gradual schedule keeps in step `step` of `steps`, from 0."""
    removals = pattern.m - pattern.n
    begin, end = BEGIN * steps, END * steps
    if step < begin:
        return pattern.m
    # the first weight goes at `begin`, the last one an interval before the mask is frozen
    done = int((step - begin) * removals / (end - begin)) + 1
    return pattern.m - min(removals, done)
