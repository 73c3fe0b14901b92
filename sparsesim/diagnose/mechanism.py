"""Through which mechanism a change acts: the losses of `sparsesim.attribution` before and after it, on the slice.

The attribution says what each cause costs a run. Its difference between the base and the base with the one change
made says which mechanism the change works through: half of the L2 shows as DRAM time, an odd k as fallback. What the
attributed causes leave over is the ideal datapath's own rate (``peak``), the promise of the patterns (``promise``),
conversions, or how launches are issued.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sparsesim.attribution import CAUSES, Attributor, cause, shapley
from sparsesim.attribution.causes import MACHINE
from sparsesim.attribution.launches import masks_of
from sparsesim.diagnose.run import Evaluator, Run
from sparsesim.protocol import Protocol

__all__ = ["OTHER_MECHANISMS", "Mechanism", "MechanismFinder", "class_of"]

#: mechanisms beside the attribution's causes: class and meaning
OTHER_MECHANISMS = {
    "peak": ("tensor", "the datapath's own rate: SMs × MACs per clk × clock"),
    "promise": ("software", "fewer or less sparse weights: the patterns promise another gain"),
    "conversion kernels": ("software", "kernels that rewrite operands before a call"),
    "occupancy": ("occupancy", "waves, tile padding, exposed latency and residency together"),
    "metadata and decode": ("metadata", "metadata bytes, and the decoder"),
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


#: players of the game: the attribution's causes, those of one class that are many as one
PLAYERS: dict[str, tuple[str, ...]] = {
    "occupancy": ("waves", "padding", "latency", "residency"),
    "metadata and decode": ("metadata", "decode"),
}
_MEMBERS = {name for group in PLAYERS.values() for name in group}
PLAYERS.update({item.id: (item.id,) for item in CAUSES if item.id not in _MEMBERS})
#: causes that choose what is launched; the others act on a given launch
_CHOOSING = ("pattern", "fallback", "tile", "conversion")


@dataclass(frozen=True)
class Mechanism:
    """One mechanism and what it adds to the effect [ln]; negative is a loss.

    `mainly` is the cause in it that loses most, where it stands for several and that has been looked for.
    """

    id: str
    change: float
    mainly: str = ""

    @property
    def name(self) -> str:
        """The one cause, where it is known."""
        return self.mainly or self.id

    @property
    def kind(self) -> str:
        """First-principles class."""
        return class_of(self.id)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "mechanism": self.id,
            "mainly": self.mainly or None,
            "class": self.kind,
            "change_ln": self.change,
            "meaning": meaning_of(self.id),
        }


class MechanismFinder:
    """Attributes runs, and keeps what it has attributed.

    step_budget : CTA k-steps of each counterfactual launch, as for `Attributor`
    """

    def __init__(self, evaluator: Evaluator, step_budget: int | None = None) -> None:
        self._evaluator = evaluator
        self._arguments = {} if step_budget is None else {"step_budget": step_budget}
        self._attributors: dict[tuple[int, str], Attributor] = {}

    def difference(self, before: Run, after: Run, effect: str) -> list[Mechanism]:
        """What each mechanism adds to `effect` between two runs, the largest loss first; they sum to its change.

        Raises
        ------
        NoKernelError
            An op's type has no dense kernel on its GPU.
        """
        parts = [self._parts(run, effect, PLAYERS) for run in (before, after)]
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
        kept.sort(key=lambda item: (item.change, item.id))
        if kept and len(PLAYERS.get(kept[0].id, ())) > 1 and kept[0].change < 0:
            kept[0] = replace(kept[0], mainly=self._within(before, after, effect, kept[0].id))
        return kept

    def _within(self, before: Run, after: Run, effect: str, group: str) -> str:
        """The cause of a group that loses most, by a game in which the group's causes play each for itself."""
        members = PLAYERS[group]
        players: dict[str, tuple[str, ...]] = {name: (name,) for name in (*members, *_CHOOSING)}
        players["rest"] = tuple(name for name in MACHINE if name not in members)
        old, new = (self._parts(run, effect, players) for run in (before, after))
        return min(members, key=lambda name: (new.get(name, 0.0) - old.get(name, 0.0), name))

    def _parts(self, run: Run, effect: str, players: Mapping[str, tuple[str, ...]]) -> dict[str, float]:
        """The effect's logarithm as a sum over mechanisms, conversions and the issue of launches left out."""
        timing = "graph" if run.graph else run.protocol.timing
        protocol = Protocol(timing, run.protocol.l2, run.protocol.locked_hz)
        simulator = self._evaluator.simulator(run)
        joint = tuple(group for group in players.values() if len(group) > 1)
        key = (id(simulator), repr(joint))
        if key not in self._attributors:
            self._attributors[key] = Attributor(simulator, joint=joint, **self._arguments)
        ops = [self._attributors[key].gemm(op, protocol) for op in run.runs_as.ops]
        dense, sparse = (
            np.sum([item.op.count * getattr(item, name) for item in ops], axis=0)
            for name in ("dense_times", "sparse_times")
        )
        masks = _coalitions(players)
        promise = math.log(float(dense[-1] / sparse[-1]))
        # speedup: ln S = ln S0 - losses; throughput, of the sparse run alone: ln(flops / time) = ln(flops / ideal time)
        # - what each cause adds to the time
        game = np.log(sparse[masks]) if effect == "throughput" else -np.log(dense[masks] / sparse[masks])
        parts = {name: float(share) for name, share in zip(players, shapley(game), strict=True) if share}
        if effect == "throughput":
            ideal = float(sparse[-1]) * run.repeats
            return {**parts, "promise": promise, "peak": math.log(run.flops / ideal / 1e12) - promise}
        return parts if effect == "delivered" else {**parts, "promise": promise}


def _coalitions(players: Mapping[str, tuple[str, ...]]) -> np.ndarray:
    """Bit mask of causes of every set of players, int[2**players]."""
    masks = np.zeros(1 << len(players), dtype=np.int64)
    index = np.arange(len(masks))
    for i, group in enumerate(players.values()):
        masks |= np.where(index >> i & 1, masks_of(group), 0)
    return masks
