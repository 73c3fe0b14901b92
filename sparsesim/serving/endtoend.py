"""Measured serving throughputs against the runtime, each cell under the protocol of the table.

`prefill`: prompts of min(tokens, 1024) tokens, tokens / prompt sequences at once, one output token. `decode`:
`tokens` requests at once, prompt 16, 256 output tokens. Throughput counts prompt tokens in the one and output tokens
in the other, from the first request to the last answer. Dense and 2:4 see the same requests.

Errors are those of `sparsesim.validate`, of throughput (predicted / measured) and of model speedup. `within` is the
share of cells inside the target: 20 % for dense throughput, 8 % for the speedup.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import as_completed
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sparsesim.attribution.shapley import shapley
from sparsesim.errors import UserError
from sparsesim.hardware import GpuSpec, load_gpu
from sparsesim.lowering import NoKernelError
from sparsesim.processes import worker_processes
from sparsesim.serving.engine import FrontEnd, run_engine
from sparsesim.serving.kernel_rows import KernelRows
from sparsesim.serving.measured import Cell
from sparsesim.serving.memory import memory_of
from sparsesim.serving.models import get_served_model
from sparsesim.serving.requests import Load, Request
from sparsesim.serving.scheduler import Continuous
from sparsesim.serving.stack import ServingStack, get_serving_stack
from sparsesim.serving.steps import PARTS, Batch, StepModel, StepTime
from sparsesim.simulator import Simulator
from sparsesim.validate import SIGN_BAND, error_summary

__all__ = ["CAUSES", "TARGETS", "CellRun", "EndToEnd", "Prediction", "predict_cells"]

#: share of the cells that each target asks for, and how far a cell may be off
TARGETS = {"throughput": 0.20, "speedup": 0.08}
ASKED = 0.80
#: lists of at least so many cells are predicted by several processes
PARALLEL_CELLS = 24
#: steps of prefill that are run: enough for the steady state to outweigh the first
PREFILL_STEPS = 24
MAX_PROMPT = 1024
DECODE_PROMPT, DECODE_OUTPUT = 16, 256
#: what a model speedup loses or gains against the speedup of its linear layers' kernels
CAUSES = ("scale", "quantise", "elementwise", "attention", "head", "host")


@dataclass(frozen=True)
class CellRun:
    """One run of a cell's protocol: throughput [tokens/s] and the means of its steps [s]."""

    tokens_per_s: float
    steps: int
    step_s: float
    serial_s: float
    gpu_s: float
    linear_s: float
    typical: StepTime
    kv_tokens: int
    preemptions: int
    unlimited_tokens_per_s: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "tokens_per_s": self.tokens_per_s,
            "unlimited_kv_tokens_per_s": self.unlimited_tokens_per_s,
            "steps": self.steps,
            "step_us": 1e6 * self.step_s,
            "host_serial_us": 1e6 * self.serial_s,
            "gpu_us": 1e6 * self.gpu_s,
            "linear_us": 1e6 * self.linear_s,
            "parts_us": {name: 1e6 * value for name, value in zip(PARTS, self.typical.parts, strict=True)},
            "kv_tokens": self.kv_tokens,
            "preemptions": self.preemptions,
        }


@dataclass(frozen=True)
class Prediction:
    """One cell, its dense and its 2:4 run, and where the kernels' gain went.

    `shares` sum to ln(kernel speedup) - ln(model speedup): Shapley values of taking each cause out of the typical
    step of both runs (`CAUSES`), and `scheduling`, the rest: KV memory, front end, mixed steps.
    """

    cell: Cell
    dense: CellRun
    sparse: CellRun
    shares: dict[str, float]

    @property
    def speedup(self) -> float:
        """Throughput of the 2:4 model over that of the dense one."""
        return self.sparse.tokens_per_s / self.dense.tokens_per_s

    @property
    def kernel_speedup(self) -> float:
        """Of the linear layers' kernels alone, in the typical step."""
        return self.dense.typical.parts[0] / self.sparse.typical.parts[0]

    @property
    def memory_gain(self) -> float:
        """Factor on the speedup that the freed KV memory is worth."""
        unlimited = self.sparse.unlimited_tokens_per_s / self.dense.unlimited_tokens_per_s
        return self.speedup / unlimited

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        cell = self.cell
        return {
            "gpu": cell.gpu, "model": cell.model, "dtype": cell.dtype, "phase": cell.phase, "tokens": cell.tokens,
            "measured_dense_tokens_per_s": cell.dense_tokens_per_s,
            "predicted_dense_tokens_per_s": self.dense.tokens_per_s,
            "measured_speedup": cell.speedup, "predicted_speedup": self.speedup,
            "kernel_speedup": self.kernel_speedup, "memory_gain": self.memory_gain, "shares": self.shares,
            "dense": self.dense.to_dict(), "sparse": self.sparse.to_dict(),
        }  # fmt: skip


@dataclass(frozen=True)
class EndToEnd:
    """Groups by gpu, dtype and phase, one for all, the cells, and those that could not be simulated."""

    groups: list[dict[str, Any]]
    predictions: list[Prediction]
    skipped: list[dict[str, str]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain data in the form of the CLI's JSON contract."""
        return {
            "groups": self.groups,
            "rows": [prediction.to_dict() for prediction in self.predictions],
            "skipped": self.skipped,
        }


def predict_cells(
    cells: Iterable[Cell],
    stack: ServingStack | None = None,
    gpu_of: Callable[[str], GpuSpec] = load_gpu,
    progress: Callable[[int], None] | None = None,
    jobs: int | None = None,
    measured: Mapping[str, KernelRows] | None = None,
) -> EndToEnd:
    """Run every cell that can be simulated; name every one that cannot, with the reason.

    Cells are spread over `jobs` processes (None: one per core for long lists), those of one GPU, model and type
    together, so that each GEMM is simulated once; the result does not depend on `jobs`. `progress` is told the cells
    done so far. With `measured` (by GPU) the simulated kernels are corrected by measured ones, which splits an error
    into the kernel model's part and the runtime's.
    """
    cells = list(cells)
    stack = stack or get_serving_stack("vllm-slidesparse")
    gpus: dict[str, GpuSpec | str] = {}
    for name in dict.fromkeys(cell.gpu for cell in cells):
        try:
            gpus[name] = gpu_of(name)
        except UserError as error:
            gpus[name] = str(error)
    parts: dict[tuple[str, str, str], list[int]] = {}
    for index, cell in enumerate(cells):
        parts.setdefault((cell.gpu, cell.model, cell.dtype), []).append(index)
    jobs = jobs if jobs is not None else (os.cpu_count() or 1 if len(cells) >= PARALLEL_CELLS else 1)
    outcomes: list[Prediction | str] = [""] * len(cells)
    done = 0
    for indices, found in _run_parts(list(parts.values()), cells, stack, gpus, jobs, measured or {}):
        for index, outcome in zip(indices, found, strict=True):
            outcomes[index] = outcome
        done += len(indices)
        if progress is not None:
            progress(done)
    predictions = [outcome for outcome in outcomes if isinstance(outcome, Prediction)]
    skipped = [
        {"row": f"{cell.file}:{cell.line}", "why": outcome}
        for cell, outcome in zip(cells, outcomes, strict=True)
        if isinstance(outcome, str)
    ]
    return EndToEnd(_groups(predictions), predictions, skipped)


def _run_parts(
    parts: list[list[int]],
    cells: list[Cell],
    stack: ServingStack,
    gpus: dict[str, GpuSpec | str],
    jobs: int,
    measured: Mapping[str, KernelRows],
) -> Iterator[tuple[list[int], list[Prediction | str]]]:
    if jobs == 1:
        for part in parts:
            yield part, _predict_part([cells[i] for i in part], stack, gpus, measured)
        return
    with worker_processes([jobs]) as (pool,):
        waiting = {pool.submit(_predict_part, [cells[i] for i in part], stack, gpus, measured): part for part in parts}
        for future in as_completed(waiting):
            yield waiting[future], future.result()


def _predict_part(
    cells: list[Cell], stack: ServingStack, gpus: dict[str, GpuSpec | str], measured: Mapping[str, KernelRows]
) -> list[Prediction | str]:
    """Each cell of one GPU, model and type with its prediction, or the reason why there is none."""
    models: dict[str, StepModel] = {}
    outcomes: list[Prediction | str] = []
    for cell in cells:
        gpu = gpus[cell.gpu]
        if isinstance(gpu, str):
            outcomes.append(gpu.splitlines()[0])
            continue
        try:
            if not models:
                simulator = Simulator(gpu, stack.gemm_stack)
                for pattern in ("dense", "2:4"):
                    models[pattern] = StepModel(
                        gpu, get_served_model(cell.model), stack, cell.dtype, pattern, simulator=simulator,
                        measured=measured.get(cell.gpu),
                    )  # fmt: skip
            dense, sparse = (run_cell(model, cell) for model in models.values())
            outcomes.append(Prediction(cell, dense, sparse, _shares(dense, sparse)))
        except (UserError, NoKernelError) as error:
            outcomes.append(str(error).splitlines()[0])
    return outcomes


# --- one run ---


def run_cell(model: StepModel, cell: Cell) -> CellRun:
    """Run the protocol of `cell` with `model`."""
    stack, host = model.stack, model.host.step
    if cell.phase == "prefill":
        prompt, output = min(cell.tokens, MAX_PROMPT), 1
        seqs = max(1, cell.tokens // prompt)
        count, max_tokens = seqs * PREFILL_STEPS, cell.tokens
    else:
        prompt, output = DECODE_PROMPT, DECODE_OUTPUT
        seqs = min(cell.tokens, stack.max_seqs)
        count, max_tokens = cell.tokens, cell.tokens * prompt
    model = model.with_max_seqs(seqs)
    memory = memory_of(model, max_tokens, cell.tokens if cell.phase == "decode" else seqs)
    front = FrontEnd(host * stack.front_request, host * stack.front_prompt, host * stack.front_output)
    load = Load((Request(0.0, prompt, output),) * count, 0, 0)

    def run(blocks: int) -> tuple[float, Any, int]:
        scheduler = Continuous(blocks, stack.block, max_tokens, min(seqs, max_tokens))
        trace = run_engine(load, scheduler, model.time, front)
        tokens = count * (prompt if cell.phase == "prefill" else output)
        return tokens / trace.end, trace, scheduler.preemptions

    tokens_per_s, trace, preemptions = run(memory.blocks)
    unlimited = tokens_per_s
    if memory.tokens < seqs * (prompt + output):
        unlimited = run(seqs * (-(-(prompt + output) // stack.block)))[0]
    steps = trace.steps
    typical = (
        Batch(chunks=((prompt, prompt),) * seqs, sampled=seqs)
        if cell.phase == "prefill"
        else Batch(decodes=seqs, context=seqs * (prompt + output // 2), sampled=seqs)
    )
    return CellRun(
        tokens_per_s=tokens_per_s,
        steps=len(steps),
        step_s=math.fsum(step.end - step.start for step in steps) / len(steps),
        serial_s=math.fsum(step.cost.serial for step in steps) / len(steps),
        gpu_s=math.fsum(step.cost.gpu for step in steps) / len(steps),
        linear_s=math.fsum(step.cost.parts[0] for step in steps) / len(steps),
        typical=model.time(typical),
        kv_tokens=memory.tokens,
        preemptions=preemptions,
        unlimited_tokens_per_s=unlimited,
    )


def _shares(dense: CellRun, sparse: CellRun) -> dict[str, float]:
    """Shares of ln(kernel speedup) - ln(model speedup), by cause; see `Prediction`."""
    players = len(CAUSES)
    logs = np.empty(1 << players)
    for coalition in range(1 << players):
        gone = {CAUSES[i] for i in range(players) if coalition >> i & 1}
        logs[coalition] = math.log(_without(dense.typical, gone) / _without(sparse.typical, gone))
    shares = dict(zip(CAUSES, (float(value) for value in shapley(logs)), strict=True))
    shares["scheduling"] = float(logs[0]) - math.log(sparse.tokens_per_s / dense.tokens_per_s)
    return shares


def _without(step: StepTime, gone: set[str]) -> float:
    """Time of a step [s] from which some causes are taken out; with all of them, the linear layers' kernels."""
    parts = dict(zip(PARTS, step.parts, strict=True))
    kept = math.fsum(seconds for name, seconds in parts.items() if name not in gone)
    return kept if "host" in gone else kept + step.seconds - step.gpu


# --- errors ---


def _groups(predictions: list[Prediction]) -> list[dict[str, Any]]:
    keys: dict[tuple[str, str, str], list[Prediction]] = {}
    for p in predictions:
        keys.setdefault((p.cell.gpu, p.cell.dtype, p.cell.phase), []).append(p)
    groups = [_group(*key, kind, members) for key, members in sorted(keys.items()) for kind in TARGETS]
    if predictions:
        groups += [_group("all", "all", "all", kind, predictions) for kind in TARGETS]
    return groups


def _group(gpu: str, dtype: str, phase: str, kind: str, members: list[Prediction]) -> dict[str, Any]:
    if kind == "throughput":
        predicted = [p.dense.tokens_per_s for p in members]
        measured = [p.cell.dense_tokens_per_s for p in members]
    else:
        predicted, measured = [p.speedup for p in members], [p.cell.speedup for p in members]
    inside = sum(abs(p / q - 1.0) <= TARGETS[kind] for p, q in zip(predicted, measured, strict=True))
    group = {
        "gpu": gpu, "dtype": dtype, "phase": phase, "kind": kind, "rows": len(members),
        **error_summary(predicted, measured),
        "within": inside / len(members),
    }  # fmt: skip
    if kind == "speedup":
        clear = [(p, q) for p, q in zip(predicted, measured, strict=True) if q < SIGN_BAND[0] or q > SIGN_BAND[1]]
        group["sign_accuracy"] = sum((p > 1) == (q > 1) for p, q in clear) / len(clear) if clear else 1.0
    return group
