"""Run cases: decide, simulate, attribute, and hold the outcome against what the case says.

Nothing here looks at a case's id. ``kernel`` times the product on the device, ``op`` a framework call (a library's
own call for a raw library), ``training`` the three products of forward and backward, ``model`` all calls of a pass:
the slower of what the GPU takes and what the host takes to issue them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sparsesim.attribution.losses import losses_of
from sparsesim.errors import UserError, nearest
from sparsesim.hardware import GpuSpec, gpu_names, load_gpu
from sparsesim.lowering import NoKernelError
from sparsesim.protocol import Protocol
from sparsesim.replay.cases import Case, load_cases
from sparsesim.replay.circumstances import circumstances, stack_file
from sparsesim.replay.forward import Timed, forward
from sparsesim.replay.models import BUILDER_IMAGES, IMAGES, model_of
from sparsesim.simulator import Simulator
from sparsesim.stacks import Stack, stack_names
from sparsesim.stacks.conditions import WEIGHT_DTYPES
from sparsesim.workload import DTYPES, Gemm
from sparsesim.workload.ops import MAX_DIM

__all__ = ["Outcome", "find_gpu", "replay", "replay_file"]

#: shape of an op whose report gives none [elements]
REPRESENTATIVE = (4096, 4096, 4096)
#: spellings of types in reports
SPELT = {
    "fp16": "f16", "float16": "f16", "half": "f16", "bfloat16": "bf16", "f32": "tf32", "fp32": "tf32", "int8": "i8",
    "fp8": "e4m3", "e5m2": "e4m3", "fp4": "e2m1", "nvfp4": "e2m1", "int4": "w4a16",
}  # fmt: skip
#: bits of a stored weight
WEIGHT_BITS = {"w4a16": 4, "w8a16": 8}


@dataclass(frozen=True)
class Outcome:
    """What a case's run says.

    path : ``sparse``, ``dense`` or ``error``; "" where the case could not be run
    speedup : dense time over this time at the case's level; None for an error
    losses : by loss its share, largest first: ln share of the speedup of an op (`attribution.losses`), share of the
        time of a pass; computed where the case names losses
    ok, why : whether it is what the case expects; all that is not, or what was assumed
    """

    id: str
    path: str
    reason: str
    speedup: float | None
    losses: dict[str, float]
    ok: bool
    why: str
    notes: tuple[str, ...] = ()
    expected: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "id": self.id,
            "path": self.path,
            "reason": self.reason,
            "speedup": self.speedup,
            "losses": self.losses,
            "ok": self.ok,
            "why": self.why,
            "notes": list(self.notes),
            "expected": self.expected,
        }


def replay_file(
    path: str | Path, every_loss: bool = False, progress: Callable[[int, int], None] | None = None
) -> list[Outcome]:
    """Run all cases of a file; see `replay`. Raises UserError for a file that is not valid."""
    return replay(load_cases(path), every_loss, progress)


def replay(
    cases: Iterable[Case], every_loss: bool = False, progress: Callable[[int, int], None] | None = None
) -> list[Outcome]:
    """Run each of `cases`.

    Parameters
    ----------
    every_loss : compute losses also of cases that name none; slower
    progress : called as progress(done, total)

    A GPU without a hardware file, an unknown stack, version or type is an outcome that is not ok and says why.
    """
    listed = tuple(cases)
    outcomes = []
    for done, case in enumerate(listed, 1):
        outcomes.append(_outcome(case, every_loss))
        if progress is not None:
            progress(done, len(listed))
    return outcomes


def find_gpu(name: str) -> GpuSpec:
    """The GPU of a report: packaged, in any spelling of its name; raises UserError if there is no hardware file."""
    known = {_plain(item): item for item in gpu_names()}
    longer = [item for item in known if item.startswith(_plain(name))]
    if len(longer) == 1:  # a800, of which there is one
        return load_gpu(known[longer[0]])
    if _plain(name) not in known:
        raise UserError(f"gpu: expected one with a hardware file, found {name!r}{nearest(name, gpu_names())}")
    return load_gpu(known[_plain(name)])


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _outcome(case: Case, every_loss: bool) -> Outcome:
    try:
        run = _run(case, every_loss or bool(case.expect.losses))
    except (UserError, NoKernelError) as err:
        text = "; ".join(err.problems) if isinstance(err, UserError) else str(err)
        return Outcome(case.id, "", "", None, {}, False, f"not run: {text}", (), _expected(case))
    missed = _missed(case, run)
    return replace(run, ok=not missed, why="; ".join(missed or [run.why]), expected=_expected(case))


def _expected(case: Case) -> dict[str, Any]:
    return {**case.expect.model_dump(mode="json"), "confidence": case.confidence}


def _missed(case: Case, run: Outcome) -> list[str]:
    """What of `run` differs from what the case expects."""
    expect, out = case.expect, []
    if run.path != expect.path:
        out.append(f"path: expected {expect.path}, found {run.path} ({run.reason}: {run.why})")
    elif run.reason != expect.reason:
        out.append(f"reason: expected {expect.reason}, found {run.reason} ({run.why})")
    low, high = expect.speedup_min, expect.speedup_max
    if low is not None or high is not None:
        bounds = f"{low if low is not None else '-'} to {high if high is not None else '-'}"
        if run.speedup is None:
            out.append(f"speedup: expected {bounds}, found none")
        elif (low is not None and run.speedup < low) or (high is not None and run.speedup > high):
            out.append(f"speedup: expected {bounds}, found {run.speedup:.3f}")
    if run.path == expect.path == "sparse":
        absent = [name for name in expect.losses if run.losses.get(name, 0.0) <= 0.0]
        if absent:
            out.append(f"losses: expected a share of {', '.join(absent)}, found none")
    return out


def _run(case: Case, losses: bool) -> Outcome:
    """Run one case; `ok` is still open."""
    file = stack_file(case.stack)
    if file is None:
        raise UserError(
            f"stack: expected one with a rule file, found {case.stack!r}{nearest(case.stack, stack_names())}"
        )
    found = circumstances(case.model_copy(update={"dtype": SPELT.get(case.dtype, case.dtype)}), file)
    gpu = find_gpu(case.gpu)
    dtype = SPELT.get(case.dtype, case.dtype)
    if dtype not in (*DTYPES, *WEIGHT_DTYPES):
        raise UserError(f"dtype: expected one of {', '.join((*DTYPES, *WEIGHT_DTYPES))}, found {case.dtype!r}")
    simulator = Simulator(gpu, found.stack, weight_bits=WEIGHT_BITS.get(dtype))
    computed = "f16" if dtype in WEIGHT_DTYPES else dtype
    notes = [note for note in (found.note, case.gpu_note and f"gpu: {case.gpu_note}") if note]
    if case.level == "model" or (case.shape is None and case.model):
        images = BUILDER_IMAGES if found.stack.behaviour.builder else IMAGES
        model = model_of(case.model or "", computed, case.pattern, case.batch, images) if case.model else None
        if model is not None:
            notes.append(f"{model.name}: {model.note}")
            ops = model.ops
            if "mlp" in (case.model or "").lower():
                ops = tuple(op for op in ops if op.family.startswith("mlp")) or ops
            whole = case.level == "model"
            timed = forward(simulator, ops, model.others if whole else (), whole, losses)
            return _of(case, timed, notes)
        if case.model and case.shape is None and case.level == "model":
            notes.append(f"the model {case.model!r} is not known: a layer of {'×'.join(map(str, REPRESENTATIVE))}")
    op, note = _op(case, computed, "cnn" in found.stack.setting.flags)
    if note:
        notes.append(note)
    if case.level == "training":
        return _of(case, _training(simulator, op, losses), notes)
    return _single(case, simulator, op, losses, notes)


def _op(case: Case, dtype: str, is_convolution: bool) -> tuple[Gemm, str]:
    """The op of a case, and what was assumed about it."""
    shape, note = case.shape, ""
    if shape is None:
        shape, note = REPRESENTATIVE, f"no shape is given: {'×'.join(map(str, REPRESENTATIVE))}"
    m, n, k = shape
    while n > MAX_DIM:  # so many columns are level in all that counts per column
        n //= 2
        note = f"n = {n} instead of {shape[1]}, the largest that is simulated"
    kind = "conv" if is_convolution else "linear"
    return Gemm("op", m, n, k, case.batch, dtype, pattern=case.pattern, sparse_operand=case.operand, kind=kind), note


def _timing(case: Case, stack: Stack) -> str:
    if case.level == "kernel":
        return "kernel"
    return "event" if "library" in stack.setting.flags else "host"


def _single(case: Case, simulator: Simulator, op: Gemm, losses: bool, notes: list[str]) -> Outcome:
    """One op."""
    decision = simulator.stack.decide(op, simulator.gpu)
    if decision.outcome == "error":
        return Outcome(case.id, "error", decision.reason, None, {}, False, decision.text, tuple(notes))
    protocol = Protocol(_timing(case, simulator.stack), "warm")
    result = simulator.gemm(op, protocol)
    shares: dict[str, float] = {}
    if losses and result.path == "sparse":
        shares = _largest_first(losses_of(simulator, op, protocol))
    return Outcome(
        case.id, result.path, result.reason, result.speedup, shares, False, result.reason_text, tuple(notes)
    )  # fmt: skip


def _largest_first(shares: dict[str, float]) -> dict[str, float]:
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _of(case: Case, timed: Timed, notes: list[str]) -> Outcome:
    if timed.path == "error":
        return Outcome(case.id, "error", timed.reason, None, {}, False, timed.text, tuple(notes))
    shares = _largest_first({name: us / timed.time_us for name, us in timed.losses_us.items()})
    speedup = timed.dense_us / timed.time_us
    return Outcome(case.id, timed.path, timed.reason, speedup, shares, False, timed.text, tuple(notes))


def _training(simulator: Simulator, op: Gemm, losses: bool) -> Timed:
    """Forward and backward of one linear layer: D = A·B, the gradient of B (Aᵀ·dD) and that of A (dD·Bᵀ).

    With a sparse weight the first two run sparse, with sparse activations the first and the last; the operand is
    pruned and packed once, in both orders.
    """
    decision = simulator.stack.decide(op, simulator.gpu)
    if decision.outcome == "error" or decision.path == "dense":
        return forward(simulator, (op,), (), False, False)
    back = replace(op, name="dB", m=op.k, k=op.m)
    weight = replace(op, name="dA", n=op.k, k=op.n, pattern="dense", sparse_operand="A")
    if op.sparse_operand == "B":
        # dA = dD·Bᵀ with B packed; the gradient of B is dense
        weight = replace(op, name="dA", n=op.k, k=op.n)
        back = replace(back, pattern="dense", sparse_operand="A")
    # what one forward packs serves both: the launches that prune count once
    later = replace(simulator.stack, behaviour=replace(simulator.stack.behaviour, added=()))
    packed = Simulator(simulator.gpu, later)
    packed.device = simulator.device
    first = forward(simulator, (op,), (), True, losses)
    rest = forward(packed, (back, weight), (), True, losses)
    if rest.path == "error":
        return rest
    lost = {name: first.losses_us.get(name, 0.0) + rest.losses_us.get(name, 0.0) for name in
            dict.fromkeys((*first.losses_us, *rest.losses_us))}  # fmt: skip
    return replace(first, dense_us=first.dense_us + rest.dense_us, time_us=first.time_us + rest.time_us, losses_us=lost)
