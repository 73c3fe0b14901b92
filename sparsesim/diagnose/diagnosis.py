"""The diagnosis of a candidate run against a base: what changed, what it costs, what mends it, and whether it ships."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sparsesim._version import __version__
from sparsesim.diagnose.attribute import MATERIAL, Attributed, attribute_changes
from sparsesim.diagnose.cause import QualityCause, quality_causes, where_it_is
from sparsesim.diagnose.changes import Change, aligned, apply, find_changes
from sparsesim.diagnose.decision import Decision, Figure, buys_nothing, decide
from sparsesim.diagnose.fixes import MOST_FIXES, Fix, find_fixes, restore_quality, subjects_of
from sparsesim.diagnose.mechanism import Mechanism, MechanismFinder, class_of, meaning_of
from sparsesim.diagnose.owners import Owners
from sparsesim.diagnose.quality import QualityDrift, compare_quality
from sparsesim.diagnose.run import EFFECTS, Evaluator, Outcome, Run
from sparsesim.diagnose.slices import Slice, find_slice
from sparsesim.errors import UserError

__all__ = ["Diagnosis", "FirstCause", "Settings", "diagnose"]

#: relative error of a change of speedup: 90th percentile (median 6 %) of 771 pairs of neighbouring token counts, other
#: sizes equal, of published kernel timings of 10 µs and more on A100 and H100 PCIe, RTX 4090 and B200
#: (bench/differences.py)
MODEL_ERROR = 0.28
#: relative difference of two simulations of the same inputs
SAME = 1e-6
NOT_MODELLED, NOT_ATTRIBUTED = "not modelled", "not attributed"
#: throughput leads where it lost so many times what speedup lost: of like losses, speedup is what was promised
MORE = 1.1

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Settings:
    """What a diagnosis is held to.

    tolerance : loss of a figure that is let pass, as a share
    model_error : relative error of a simulated change, see `MODEL_ERROR`
    allowance : loss of quality that is let pass, as a share of the base's figure
    """

    tolerance: float = 0.02
    model_error: float = MODEL_ERROR
    allowance: float = 0.01
    mechanisms: bool = True

    def __post_init__(self) -> None:
        lines = [
            f"{name}: expected a share from 0 to 1, found {getattr(self, name)}"
            for name in ("tolerance", "model_error", "allowance")
            if not 0.0 <= getattr(self, name) < 1.0
        ]
        if lines:
            raise UserError(lines)


@dataclass(frozen=True)
class FirstCause:
    """What is named first: the change, the figure it moves, and the mechanism through which.

    `share` is its part of the figure's change [ln], or of the loss of quality.
    """

    id: str
    what: str
    kind: str
    effect: str
    share: float
    mechanism: str
    owner: str

    @property
    def mechanism_class(self) -> str:
        """First-principles class of the mechanism."""
        return class_of(self.mechanism)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "id": self.id, "what": self.what, "kind": self.kind, "figure": self.effect, "share": self.share,
            "mechanism": self.mechanism, "class": self.mechanism_class, "meaning": meaning_of(self.mechanism),
            "owner": self.owner,
        }  # fmt: skip


@dataclass(frozen=True)
class OpPair:
    """One op of the slice in both runs, with what it ran on: plain data of `GemmResult` and the profile's kernels."""

    name: str
    base: dict[str, Any]
    candidate: dict[str, Any]


@dataclass(frozen=True)
class Diagnosis:
    """Everything that is said about a pair of runs."""

    base: Run
    candidate: Run
    outcomes: tuple[Outcome, Outcome]
    figures: tuple[Figure, ...]
    effect: str
    found: Attributed
    unexplained: float
    first: FirstCause | None
    causes: tuple[FirstCause, ...]
    mechanisms: tuple[Mechanism, ...]
    drifts: tuple[QualityDrift, ...]
    quality_causes: tuple[QualityCause, ...]
    quality_where: str
    slice: Slice | None
    ops: tuple[OpPair, ...]
    fixes: tuple[Fix, ...]
    decision: Decision
    settings: Settings
    notes: tuple[str, ...]

    def figure(self, name: str) -> Figure:
        """The figure called `name`."""
        return next(figure for figure in self.figures if figure.id == name)

    @property
    def changes(self) -> list[dict[str, Any]]:
        """Every change with its share of each figure, as plain data; what moves the leading figure down comes first."""
        rows = [
            {**_change(change), "shares_ln": {effect.id: self.found.shares[effect.id][change.id] for effect in EFFECTS},
             "alone_ln": {effect.id: self.found.alone[effect.id][change.id] for effect in EFFECTS}}
            for change, _ in self.found.ranked(self.effect)
        ]  # fmt: skip
        return rows + [{**_change(change), "shares_ln": None, "alone_ln": None} for change in self.found.inert]

    def to_dict(self, files: dict[str, str] | None = None) -> dict[str, Any]:
        """Plain data in the form of the CLI's JSON; `files` are names of what was written beside it."""
        cut = self.slice
        return {
            "base": {"label": self.base.label, "gpu": self.base.gpu.name, "stack": self.base.stack.name,
                     "measured": bool(self.base.measured), **self.outcomes[0].to_dict()},
            "candidate": {"label": self.candidate.label, "gpu": self.candidate.gpu.name,
                          "stack": self.candidate.stack.name, "measured": bool(self.candidate.measured),
                          **self.outcomes[1].to_dict()},
            "decision": self.decision.to_dict(),
            "first_cause": None if self.first is None else self.first.to_dict(),
            "causes": [cause.to_dict() for cause in self.causes],
            "figures": [figure.to_dict() for figure in self.figures],
            "leading_figure": self.effect,
            "changes": self.changes,
            "grouped": self.found.grouped,
            "not_modelled_ln": self.unexplained,
            "mechanisms": [mechanism.to_dict() for mechanism in self.mechanisms],
            "quality": {"where": self.quality_where, "drifts": [drift.to_dict() for drift in self.drifts],
                        "causes": [item.to_dict() for item in self.quality_causes]},
            "slice": None if cut is None else {
                "ops": list(cut.ops), "of": cut.of, "criterion": cut.criterion, "minimal": cut.minimal,
                "change_ln": cut.effect, "whole_ln": cut.whole, "tried": cut.tried,
            },
            "fixes": [{**fix.to_dict(), **validation(self, fix, number)} for number, fix in enumerate(self.fixes, 1)],
            "settings": {"tolerance": self.settings.tolerance, "model_error": self.settings.model_error,
                         "allowance": self.settings.allowance},
            "counterfactual_runs": self.found.runs,
            "files": files or {},
            "notes": list(self.notes),
            "provenance": {"version": __version__, "workload_digest": self.candidate.workload.digest()},
        }  # fmt: skip


def _change(change: Change) -> dict[str, Any]:
    return {
        "id": change.id, "kind": change.kind, "what": change.what, "before": change.before, "after": change.after,
        "ops": list(change.ops), "members": [member.what for member in change.members],
    }  # fmt: skip


def validation(diagnosis: Diagnosis, fix: Fix, number: int, folder: str = "") -> dict[str, str]:
    """The commands that would prove a fix: in the model, and on the board. File names are those that `--out` writes."""
    at = f"{folder.rstrip('/')}/" if folder else ""
    run = fix.run
    words = ["sparsesim", "measure", f"{at}fix-{number}.jsonl", "--timing", _timing(run), "--l2", run.protocol.l2]
    if run.protocol.locked_hz is not None:
        words += ["--clock", run.protocol.clock]
    words += ["--out", f"{at}fix-{number}.csv"]
    proof = ["sparsesim", "diagnose", f"{at}fix-{number}.toml"]
    if fix.quality_gain and diagnosis.base.quality is not None:  # the mended weights have to be measured
        proof += ["--base-quality", diagnosis.base.quality.file, "--quality", f"{at}fix-{number}.quality.json"]
    return {
        "validation": shlex.join(proof),
        "measurement": shlex.join(words),
    }


def _timing(run: Run) -> str:
    """The nearest way of timing that `measure` has."""
    return {"kernel": "graph"}.get(run.protocol.timing, run.protocol.timing)


def diagnose(
    base: Run,
    candidate: Run,
    owners: Owners | None = None,
    settings: Settings | None = None,
    evaluator: Evaluator | None = None,
    finder: MechanismFinder | None = None,
    progress: Progress | None = None,
) -> Diagnosis:
    """Diagnose `candidate` against `base`.

    Parameters
    ----------
    owners : of mechanisms, changes and layers
    evaluator, finder : to share what was simulated with other diagnoses
    progress : called as progress(done, total) in counterfactual runs

    Raises
    ------
    UserError
        One run is measured and the other is not; figures of quality that point in different directions.
    NoKernelError
        A run has no kernel on its GPU.
    """
    owners, settings = owners or Owners(), settings or Settings()
    evaluator = evaluator or Evaluator()
    if bool(base.measured) != bool(candidate.measured):
        raise UserError("candidate: expected both runs measured or both simulated, found one of each")
    candidate = aligned(base, candidate)
    notes = [*base.notes, *candidate.notes]
    outcomes = evaluator.outcome(base), evaluator.outcome(candidate)
    for run, outcome in zip((base, candidate), outcomes, strict=True):
        notes += _recorded_note(run, outcome)
    changes = find_changes(base, candidate)
    found = attribute_changes(evaluator, base, candidate, changes, progress)
    unexplained = _unexplained(base, candidate, outcomes)
    figures = _figures(outcomes, unexplained, bool(base.measured), bool(found.changes), settings)
    effect = _leading(figures)
    drifts, quality_notes = compare_quality(base.quality, candidate.quality, settings.allowance)
    notes += quality_notes
    lost = figures[[e.id for e in EFFECTS].index(effect)].change
    cut = None
    mechanisms: list[Mechanism] = []
    worst = _worst(found, effect)
    if abs(lost - unexplained) >= MATERIAL and found.changes:
        alone = apply(base, candidate, [worst]) if worst is not None else None
        one = len(found.changes) == 1 or alone is None or found.alone[effect][worst.id if worst else ""] >= 0
        cut = find_slice(evaluator, base, candidate, effect, None if one else alone)
        if alone is not None and settings.mechanisms:
            own = cut if one else find_slice(evaluator, base, alone, effect)
            after = own.candidate if own is not cut else apply(own.base, own.candidate, [_within(worst, own)])
            mechanisms = (finder or MechanismFinder(evaluator)).difference(own.base, after, effect)
    # two profiles of one thing differ, too: what is let pass of a measured loss needs no change that explains it
    beyond = unexplained if unexplained <= -max(MATERIAL, -math.log1p(-settings.tolerance)) else 0.0
    causes = _causes(found, effect, lost, beyond, mechanisms, owners)
    of_quality: list[QualityCause] = []
    bad = [drift for drift in drifts if drift.worse]
    if bad and base.quality is not None and candidate.quality is not None:
        of_quality = quality_causes(base.quality, candidate.quality, bad[0], changes)
        named = _quality_first(of_quality[0], bad[0], drifts, owners, changes)
        # the figure that is further beyond what is let pass is named first
        times = -lost / max(-math.log1p(-settings.tolerance), 1e-9)
        causes = [named, *causes] if bad[0].severity > times or not causes else [causes[0], named, *causes[1:]]
    fixes: list[Fix] = []
    if causes:
        subjects = (f"mechanism:{causes[0].mechanism}", f"class:{causes[0].mechanism_class}")
        mends = {item.change: item.loss for item in of_quality if item.change is not None and item.loss > 0}
        fixes = find_fixes(evaluator, base, candidate, found, effect, owners, {causes[0].id: subjects}, mends)
        for item in of_quality:
            if item.change is None and item.loss > 0:
                owned = ("mechanism:quality", "class:quality", f"change:{item.id}")
                fixes.append(
                    restore_quality(evaluator, candidate, item.id, item.what, item.loss, owners.of(owned), owned)
                )
        fixes.sort(key=lambda fix: -(fix.quality_gain or 0.0))
        fixes = fixes[:MOST_FIXES]
    decision = decide(figures, drifts, fixes)
    notes += [*_hidden(found, effect, lost), *_baseline(figures)]
    return Diagnosis(
        base=base, candidate=candidate, outcomes=outcomes, figures=figures, effect=effect, found=found,
        unexplained=unexplained, first=causes[0] if causes else None, causes=tuple(causes),
        mechanisms=tuple(mechanisms), drifts=tuple(drifts), quality_causes=tuple(of_quality),
        quality_where=where_it_is(bad[0], drifts) if bad else "", slice=cut, ops=_op_pairs(evaluator, cut),
        fixes=tuple(fixes), decision=decision, settings=settings, notes=tuple(dict.fromkeys(notes)),
    )  # fmt: skip


def _recorded_note(run: Run, outcome: Outcome) -> list[str]:
    """A result that this version does not give again."""
    if run.recorded is None:
        return []
    again = (outcome.time_us - outcome.conversion_us, outcome.dense_time_us)
    if all(math.isclose(a, b, rel_tol=SAME) for a, b in zip(run.recorded, again, strict=True)):
        return []
    return [
        f"{run.label}: the file says {run.recorded[0]:.6g} µs, dense {run.recorded[1]:.6g}; this version of the model "
        f"gives {again[0]:.6g} and {again[1]:.6g}, which are used"
    ]


def _unexplained(base: Run, candidate: Run, outcomes: tuple[Outcome, Outcome]) -> float:
    """ln of a measured pair's time ratio that the model does not give: negative = slower than the changes explain."""
    if not base.measured:
        return 0.0
    times = []
    for run in (base, candidate):
        measured = dict(run.measured)
        times.append(math.fsum(measured[op.name] * op.count for op in run.workload.ops))
    return math.log(outcomes[1].time_us / outcomes[0].time_us) - math.log(times[1] / times[0])


def _figures(
    outcomes: tuple[Outcome, Outcome], unexplained: float, measured: bool, changed: bool, settings: Settings
) -> tuple[Figure, ...]:
    values = {
        "speedup": [o.speedup for o in outcomes],
        "throughput": [o.throughput for o in outcomes],
        "delivered": [100 * o.speedup / o.nominal_speedup for o in outcomes],
    }
    # equal inputs give equal times: without a change with an effect there is nothing that the model could be wrong in
    error = math.log1p(settings.model_error) if changed and not measured else 0.0
    figures = []
    for effect in EFFECTS:
        before, after = values[effect.id]
        change = math.log(after / before) + unexplained
        after = after * math.exp(unexplained)
        figures.append(
            Figure(effect.id, effect.title, effect.unit, before, after, change, error, -math.log1p(-settings.tolerance))
        )
    return tuple(figures)


def _leading(figures: Sequence[Figure]) -> str:
    """The figure that lost most: speedup or throughput, the share of the promise only where neither lost anything."""
    speedup, throughput, delivered = figures
    if buys_nothing(figures):
        return delivered.id
    return throughput.id if throughput.change < MORE * min(speedup.change, 0.0) - 1e-9 else speedup.id


def _worst(found: Attributed, effect: str) -> Change | None:
    ranked = found.ranked(effect)
    return ranked[0][0] if ranked and ranked[0][1] <= -MATERIAL else None


def _within(change: Change | None, cut: Slice) -> Change:
    """The facets of a change that exist in the slice."""
    assert change is not None
    names = set(cut.ops)
    facets = tuple(
        facet for facet in change.facets if facet[0] not in ("op", "added", "removed", "conversion", "unusable")
        or facet[1] in names
    )  # fmt: skip
    return replace(change, facets=facets)


def _causes(
    found: Attributed, effect: str, lost: float, unexplained: float, mechanisms: Sequence[Mechanism], owners: Owners
) -> list[FirstCause]:
    """Changes that cost something of a figure that fell, the costliest first."""
    if lost > -MATERIAL:
        return []
    causes: list[FirstCause] = []
    for change, share in found.ranked(effect):
        if share > -MATERIAL:
            continue
        first = not causes and mechanisms and mechanisms[0].change < 0
        name = mechanisms[0].name if first else NOT_ATTRIBUTED
        subjects = (f"mechanism:{name}", f"class:{class_of(name)}", *subjects_of(change))
        causes.append(FirstCause(change.id, change.what, change.kind, effect, share, name, owners.of(subjects)))
    if unexplained:
        text = "measured, but none of the changes found explains it in the model"
        own = FirstCause(
            NOT_MODELLED, text, "unknown", effect, unexplained, NOT_MODELLED, owners.of([f"mechanism:{NOT_MODELLED}"])
        )
        causes.append(own)
        causes.sort(key=lambda cause: cause.share)
    return causes


def _quality_first(
    cause: QualityCause,
    worst: QualityDrift,
    drifts: Sequence[QualityDrift],
    owners: Owners,
    changes: Sequence[Change],
) -> FirstCause:
    same = [change for change in changes if change.id == cause.change]
    subjects = ["mechanism:quality", "class:quality", f"change:{cause.id}", *(s for c in same for s in subjects_of(c))]
    what = f"{cause.what} (in {where_it_is(worst, drifts)})"
    return FirstCause(cause.id, what, "quality", f"quality: {worst.metric}", cause.loss, "quality", owners.of(subjects))


def _hidden(found: Attributed, effect: str, lost: float) -> list[str]:
    """Losses that a gain hides."""
    if lost <= -MATERIAL:
        return []
    return [
        f"{change.id} costs {-100 * math.expm1(share):.1f} % of {effect}, which other changes make up for"
        for change, share in found.ranked(effect)
        if share <= -MATERIAL
    ]


def _baseline(figures: Sequence[Figure]) -> list[str]:
    """Speedup and throughput that move apart: the dense baseline moved, too."""
    speedup, throughput, _ = figures
    by, of = (f"{100 * math.expm1(f.change):+.1f} %" for f in (throughput, speedup))
    if speedup.change <= -MATERIAL and throughput.change >= MATERIAL:
        return [f"throughput {by}, effective speedup {of}: the run is faster, the dense baseline gains more"]
    if speedup.change >= MATERIAL and throughput.change <= -MATERIAL:
        return [f"throughput {by}, effective speedup {of}: the run is slower, the dense baseline loses more"]
    return []


def _op_pairs(evaluator: Evaluator, cut: Slice | None) -> tuple[OpPair, ...]:
    if cut is None:
        return ()
    rows = [{row.name: row.gemm for row in evaluator.outcome(run).result.rows} for run in (cut.base, cut.candidate)]
    keep = (
        "m", "n", "k", "dtype", "pattern", "path", "reason", "reason_text", "time_us", "dense_time_us", "speedup",
        "bound_by", "clock_mhz", "power_w",
    )  # fmt: skip
    pairs = []
    for name in cut.ops:
        sides = []
        for run, table in zip((cut.base, cut.candidate), rows, strict=True):
            gemm = table.get(name, {})
            data: dict[str, Any] = {key: gemm[key] for key in keep if key in gemm}
            if gemm:
                data["kernel"] = gemm["kernel"]["name"]
                data["dram_read_bytes"] = gemm["counters"]["dram_read_bytes"]
                data["l2_hit_rate"] = gemm["counters"]["l2_hit_rate"]
            why = dict(run.unusable).get(name)
            if why is not None:
                data.update(reason="weight unusable", reason_text=why)
            if name in dict(run.measured):
                data["measured_us"] = dict(run.measured)[name]
                data["measured_kernel"] = dict(run.kernels)[name]
            sides.append(data)
        pairs.append(OpPair(name, sides[0], sides[1]))
    return tuple(pairs)
