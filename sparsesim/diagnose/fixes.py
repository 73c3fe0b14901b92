"""Bounded fixes: things that one team can do in days, each simulated on the candidate, ranked by what it brings.

Tried are: taking back each change that costs something; padding the sides that the stack refuses; cuSPARSELt;
serving those layers dense that sparse slows down; CUDA graphs. A fix that takes a change back is judged by the figure
itself; any other one does the same work, and is judged by the time that it saves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sparsesim.diagnose.attribute import MATERIAL, Attributed
from sparsesim.diagnose.changes import Change, apply
from sparsesim.diagnose.owners import Owners
from sparsesim.diagnose.run import Evaluator, Outcome, Run
from sparsesim.errors import UserError
from sparsesim.hardware import GpuSpec
from sparsesim.lowering import NoKernelError
from sparsesim.stacks import Stack, get_stack
from sparsesim.workload import Gemm, Workload
from sparsesim.workload.ops import GemmError

__all__ = ["MOST_FIXES", "Fix", "find_fixes", "padded", "restore_quality"]

MOST_FIXES = 5
#: stack whose sparse kernels a candidate on another one is tried with
SPARSE_STACK = "cusparselt"
#: multiples that a refused side is padded to, the smallest that helps
MULTIPLES = (8, 16, 32, 64, 128)
#: a layer that sparse slows down by less than this is left alone
SLOWER = 1.005
#: what owners of fixes against fallback may be found by
FALLBACK = ("mechanism:fallback", "class:software")
#: kind of a change → (risk of taking it back, how it is rolled back)
TAKING_BACK = {
    "hardware": ("needs the base's board or setting back; the model stays as it is", "set the candidate's value again"),
    "software": ("the base's software comes back with its own defects", "install the candidate's version again"),
    "shape": ("the weights have to be cut or exported anew", "deploy the candidate's export again"),
    "pattern": ("the weights change, and with them quality", "deploy the candidate's checkpoint again"),
    "precision": ("numerics change: quality has to be measured again", "deploy the candidate's precision again"),
    "protocol": ("power and heat rise with the clock", "lock the candidate's clock again"),
    "launch": ("none for results; host memory for graphs", "switch back to the candidate's way of launching"),
    "conversion": ("whoever writes the operand has to write the other layout", "put the conversion back"),
}


@dataclass(frozen=True)
class Fix:
    """One fix, as simulated on the whole candidate.

    Parameters
    ----------
    gain : ln of the leading figure, fixed against candidate
    speedup : effective speedup with the fix
    recovers : share of the regression that it takes back; None where nothing regressed
    takes_back : id of the change that it takes back, or None for a fix that goes forward
    quality_gain : loss of quality that it takes back, where it is known
    """

    id: str
    title: str
    gain: float
    speedup: float
    recovers: float | None
    owner: str
    risk: str
    rollback: str
    run: Run
    subjects: tuple[str, ...]
    takes_back: str | None = None
    quality_gain: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, without the run."""
        names = (
            "id", "title", "gain", "speedup", "recovers", "owner", "risk", "rollback", "takes_back", "quality_gain",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class _Setting:
    evaluator: Evaluator
    candidate: Run
    outcome: Outcome
    effect: str
    loss: float
    owners: Owners


def find_fixes(
    evaluator: Evaluator,
    base: Run,
    candidate: Run,
    found: Attributed,
    effect: str,
    owners: Owners,
    mechanisms: Mapping[str, tuple[str, ...]] | None = None,
    quality: dict[str, float] | None = None,
) -> list[Fix]:
    """At most `MOST_FIXES` fixes of the candidate, the one that brings most first.

    Parameters
    ----------
    effect : the figure to mend
    mechanisms : change → subjects (``mechanism:…``, ``class:…``) that the owners of taking it back may be found by
    quality : change → loss of quality that taking it back mends; such fixes come first
    """
    outcome = evaluator.outcome(candidate)
    loss = evaluator.outcome(base).ln[effect] - outcome.ln[effect]
    setting = _Setting(evaluator, candidate, outcome, effect, loss, owners)
    changes = found.changes
    quality = quality or {}
    fixes: list[Fix] = []
    for change in (*changes, *found.inert):
        rest = [other for other in changes if other is not change]
        if found.shares[effect].get(change.id, 0.0) > -MATERIAL and change.id not in quality:
            continue
        subjects = (mechanisms or {}).get(change.id, ())
        mended = _take_back(setting, base, change, rest, subjects, quality.get(change.id))
        if mended is not None:
            fixes.append(mended)
    for make in (_pad, _sparse_stack, _serve_dense, _graph):
        fixes += make(setting)
    kept = [fix for fix in fixes if fix.gain >= MATERIAL or fix.quality_gain]
    # a stack that is the base's is the change taken back
    back = {fix.title for fix in kept if fix.takes_back == "stack"}
    kept = [fix for fix in kept if not (back and fix.id == f"stack {base.stack.name}")]
    kept.sort(key=lambda fix: (-(fix.quality_gain or 0.0), -fix.gain, fix.takes_back is not None, fix.id))
    return kept[:MOST_FIXES]


def _take_back(
    setting: _Setting,
    base: Run,
    change: Change,
    rest: Sequence[Change],
    subjects: tuple[str, ...],
    quality: float | None,
) -> Fix | None:
    try:
        run = apply(base, setting.candidate, rest)
        after = setting.evaluator.outcome(run)
    except (UserError, NoKernelError):
        return None
    risk, rollback = TAKING_BACK[change.kind]
    return _fix(
        setting, f"take back {change.id}", f"Take back: {change.what}", after.ln[setting.effect]
        - setting.outcome.ln[setting.effect], after.speedup, risk, rollback, run,
        (*subjects, *subjects_of(change)), change.id, quality,
    )  # fmt: skip


def restore_quality(
    evaluator: Evaluator, candidate: Run, cause: str, what: str, loss: float, owner: str, subjects: tuple[str, ...]
) -> Fix:
    """The base's weights back, where what costs quality is nothing that a time depends on."""
    return Fix(
        id=f"take back {cause}",
        title=f"Take back: {what}",
        gain=0.0,
        speedup=evaluator.outcome(candidate).speedup,
        recovers=None,
        owner=owner,
        risk="the base's way of making the weights comes back; times stay as they are",
        rollback="deploy the candidate's weights again",
        run=replace(candidate, label=f"take back {cause}"),
        subjects=subjects,
        takes_back=cause,
        quality_gain=loss,
    )


def _forward(
    setting: _Setting, name: str, title: str, risk: str, rollback: str, run: Run, subjects: tuple[str, ...]
) -> list[Fix]:
    """A fix that does the same work in less time."""
    try:
        after = setting.evaluator.outcome(run, setting.outcome.flops)
    except (UserError, NoKernelError):
        return []
    gain = math.log(setting.outcome.time_us / after.time_us)
    speedup = setting.outcome.dense_time_us / after.time_us
    return [_fix(setting, name, title, gain, speedup, risk, rollback, run, subjects, None, None)]


def _fix(
    setting: _Setting, name: str, title: str, gain: float, speedup: float, risk: str, rollback: str, run: Run,
    subjects: tuple[str, ...], takes_back: str | None, quality: float | None,
) -> Fix:  # fmt: skip
    return Fix(
        id=name,
        title=title,
        gain=gain,
        speedup=speedup,
        recovers=gain / setting.loss if setting.loss > MATERIAL else None,
        owner=setting.owners.of(subjects),
        risk=risk,
        rollback=rollback,
        run=replace(run, label=name),
        subjects=subjects,
        takes_back=takes_back,
        quality_gain=quality,
    )


def subjects_of(change: Change) -> tuple[str, ...]:
    """What owners of a change may be found by."""
    return (f"kind:{change.kind}", f"change:{change.id}", *change.ops, *change.families)


def _with_ops(run: Run, ops: Sequence[Gemm]) -> Run:
    old = run.workload
    return replace(run, workload=Workload(old.name, old.description, old.source, tuple(ops)))


def _pad(setting: _Setting) -> list[Fix]:
    run = setting.candidate
    broken = dict(run.unusable)
    larger = {
        op.name: wide
        for op in run.workload.ops
        if op.name not in broken and (wide := padded(run.stack, op, run.gpu)) is not None
    }
    if not larger:
        return []
    texts = []
    for name, wide in larger.items():
        op = next(op for op in run.workload.ops if op.name == name)
        sides = [f"{s} {getattr(op, s)} → {getattr(wide, s)}" for s in "mnk" if getattr(op, s) != getattr(wide, s)]
        texts.append(f"{name}: {', '.join(sides)}")
    shown = "; ".join(texts[:3]) + (f"; and {len(texts) - 3} more" if len(texts) > 3 else "")
    return _forward(
        setting, "pad", f"Pad with zeros to what the stack runs sparse ({shown})",
        "some memory and work for zeros; the layer's neighbours must cut them off",
        "export without padding", _with_ops(run, [larger.get(op.name, op) for op in run.workload.ops]),
        (*FALLBACK, *larger),
    )  # fmt: skip


def padded(stack: Stack, op: Gemm, gpu: GpuSpec) -> Gemm | None:
    """`op` with its sides at the least multiples with which `stack` runs it sparse; None if it does, or none helps."""
    if op.pattern == "dense" or stack.decide(op, gpu).path == "sparse":
        return None
    sides = ("m", "k", "n")

    def at(units: dict[str, int]) -> Gemm | None:
        try:
            wide = replace(op, **{s: -(-getattr(op, s) // units[s]) * units[s] for s in sides})
        except GemmError:
            return None
        return wide if stack.decide(wide, gpu).path == "sparse" else None

    units = dict.fromkeys(sides, MULTIPLES[-1])
    best = at(units)
    if best is None:
        return None
    for side in sides:
        for unit in (1, *MULTIPLES):
            found = at({**units, side: unit})
            if found is not None:
                units[side], best = unit, found
                break
    return best


def _sparse_stack(setting: _Setting) -> list[Fix]:
    """The library with the most general sparse kernels, where the candidate is served by another one."""
    run = setting.candidate
    stack = get_stack(SPARSE_STACK)
    if stack == run.stack:
        return []
    return _forward(
        setting, f"stack {stack.name}", f"Serve with {stack.title}",
        "another library: numerics and memory layout of the weights differ", f"serve with {run.stack.name} again",
        replace(run, stack=stack, stack_source=""), (*FALLBACK, "change:stack", "kind:software"),
    )  # fmt: skip


def _serve_dense(setting: _Setting) -> list[Fix]:
    rows = setting.outcome.result.rows
    slow = [
        row.name
        for row in rows
        if row.gemm["path"] == "sparse" and row.gemm["time_us"] > SLOWER * row.gemm["dense_time_us"]
    ]
    if not slow:
        return []
    run = setting.candidate
    why = "served dense: sparse is slower"
    shown = ", ".join(slow[:4]) + (f" and {len(slow) - 4} more" if len(slow) > 4 else "")
    return _forward(
        setting, "serve dense", f"Serve the pruned weights of {shown} by dense kernels, which are faster there",
        "more memory for these weights; the same numbers come out", "serve them by sparse kernels again",
        replace(run, unusable=tuple(sorted({**dict(run.unusable), **dict.fromkeys(slow, why)}.items()))),
        tuple(slow),
    )  # fmt: skip


def _graph(setting: _Setting) -> list[Fix]:
    run = setting.candidate
    if run.graph or run.protocol.timing in ("kernel", "graph"):
        return []
    return _forward(
        setting, "graph", "Launch each pass as one CUDA graph", "shapes are frozen: one graph for each batch size",
        "launch call by call again", replace(run, graph=True),
        ("mechanism:launch", "class:launch", "change:graph", "kind:launch"),
    )  # fmt: skip
