"""Through which mechanism a change acts: the losses of `sparsesim.attribution` before and after it, on the slice.

The attribution says what each cause costs a run. Its difference between the base and the base with the one change
made says which mechanism the change works through: half of the L2 shows as DRAM time, an odd k as fallback. What the
attributed causes leave over is the ideal datapath's own rate (``peak``), the promise of the patterns (``promise``),
conversions, or how launches are issued.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsesim.attribution import CAUSES, Attributor, cause, shapley
from sparsesim.attribution.workload import combine
from sparsesim.diagnose.run import Evaluator, Run
from sparsesim.protocol import Protocol

__all__ = ["OTHER_MECHANISMS", "Mechanism", "MechanismFinder", "class_of"]

#: mechanisms beside the attribution's causes: class and meaning
OTHER_MECHANISMS = {
    "peak": ("tensor", "the datapath's own rate: SMs × MACs per clk × clock"),
    "promise": ("software", "fewer or less sparse weights: the patterns promise another gain"),
    "conversion kernels": ("software", "kernels that rewrite operands before a call"),
    "issue of launches": ("launch", "how the host issues launches: streams, graphs, queueing"),
    "quality": ("quality", "the weights answer worse"),
    "not attributed": ("unknown", "only the first change is followed to its mechanism"),
    "not modelled": ("unknown", "measured, but not in the model"),
}


def class_of(mechanism: str) -> str:
    """First-principles class of a mechanism."""
    return OTHER_MECHANISMS[mechanism][0] if mechanism in OTHER_MECHANISMS else cause(mechanism).kind


def meaning_of(mechanism: str) -> str:
    """What a mechanism is, in words."""
    return OTHER_MECHANISMS[mechanism][1] if mechanism in OTHER_MECHANISMS else cause(mechanism).meaning


@dataclass(frozen=True)
class Mechanism:
    """One mechanism and what it adds to the effect [ln]; negative is a loss."""

    id: str
    change: float

    @property
    def kind(self) -> str:
        """First-principles class."""
        return class_of(self.id)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"mechanism": self.id, "class": self.kind, "change_ln": self.change, "meaning": meaning_of(self.id)}


class MechanismFinder:
    """Attributes runs, and keeps what it has attributed.

    step_budget : CTA k-steps of each counterfactual launch, as for `Attributor`
    """

    def __init__(self, evaluator: Evaluator, step_budget: int | None = None) -> None:
        self._evaluator = evaluator
        self._arguments = {} if step_budget is None else {"step_budget": step_budget}
        self._attributors: dict[int, Attributor] = {}

    def difference(self, before: Run, after: Run, effect: str) -> list[Mechanism]:
        """What each mechanism adds to `effect` between two runs, the largest loss first; they sum to its change.

        Raises
        ------
        NoKernelError
            An op's type has no dense kernel on its GPU.
        """
        parts = [self._parts(run, effect) for run in (before, after)]
        names = dict.fromkeys([*parts[0], *parts[1]])
        found = {name: parts[1].get(name, 0.0) - parts[0].get(name, 0.0) for name in names}
        outcomes = [self._evaluator.outcome(run) for run in (before, after)]
        whole = outcomes[1].ln[effect] - outcomes[0].ln[effect]
        rest = whole - math.fsum(found.values())
        if before.unusable != after.unusable:
            # the promise stands, but its weights are run dense: to the stack they are dense ones
            found["fallback"] = found.get("fallback", 0.0) + found.pop("promise", 0.0) + rest
        else:
            name = "conversion kernels" if before.conversions != after.conversions else "issue of launches"
            found[name] = found.get(name, 0.0) + rest
        kept = [Mechanism(name, value) for name, value in found.items() if abs(value) > 1e-9]
        return sorted(kept, key=lambda item: (item.change, item.id))

    def _parts(self, run: Run, effect: str) -> dict[str, float]:
        """The effect's logarithm as a sum over mechanisms, conversions and the issue of launches left out."""
        timing = "graph" if run.graph else run.protocol.timing
        protocol = Protocol(timing, run.protocol.l2, run.protocol.locked_hz)
        simulator = self._evaluator.simulator(run)
        if id(simulator) not in self._attributors:
            self._attributors[id(simulator)] = Attributor(simulator, **self._arguments)
        attributor = self._attributors[id(simulator)]
        ops = tuple(attributor.gemm(op, protocol) for op in run.runs_as.ops)
        whole = combine(ops, attributor.engine_runs)
        promise = math.log(whole.nominal_speedup)
        if effect != "throughput":
            parts = {name: -share for name, share in whole.shares.items() if share}
            return parts if effect == "delivered" else {**parts, "promise": promise}
        # the sparse run alone: ln(flops / time) = ln(flops / ideal time) - what each cause adds to the time
        times = np.sum([item.op.count * item.sparse_times for item in ops], axis=0)
        shares = shapley(np.log(times))
        parts = {item.id: float(share) for item, share in zip(CAUSES, shares, strict=True) if share}
        ideal = float(times[-1]) * run.repeats
        parts["promise"] = promise
        parts["peak"] = math.log(run.flops / ideal / 1e12) - promise
        return parts
