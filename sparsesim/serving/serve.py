"""Serve one load with a dense and a sparse model: replications, common random numbers, gains booked by cause."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sparsesim._version import __version__
from sparsesim.errors import ProblemList, UserError
from sparsesim.hardware import GpuSpec
from sparsesim.results import config_hash
from sparsesim.serving.engine import FrontEnd, Trace, run_engine
from sparsesim.serving.inputs import content_hash
from sparsesim.serving.memory import Memory, memory_of
from sparsesim.serving.models import ServedModel
from sparsesim.serving.requests import Arrivals, Lengths, Load, draw_load
from sparsesim.serving.results import Gain, ServingResult, VariantResult, gain, measure, shares
from sparsesim.serving.scheduler import Continuous, Scheduler, Static
from sparsesim.serving.stack import QUANTISED, ServingStack
from sparsesim.serving.stats import estimate
from sparsesim.serving.steps import StepModel, interpolation_error
from sparsesim.simulator import Simulator
from sparsesim.sparsity import Pattern

__all__ = ["GAIN_METRICS", "Policy", "check_arguments", "serve"]

POLICIES = ("continuous", "static")
DTYPES = ("bf16", "f16", *QUANTISED)
#: metrics whose gain is booked
GAIN_METRICS = ("output_tokens_per_s", "ttft_p95_s", "tpot_p95_s", "e2e_mean_s", "e2e_p95_s", "e2e_p99_s")
#: token counts between those of the grid at which the interpolation is checked
PROBES = (40, 80, 160, 320, 640, 1280, 2560)


@dataclass(frozen=True)
class Policy:
    """How the engine schedules.

    Parameters
    ----------
    name : ``continuous`` or ``static``
    max_seqs : sequences at once; None = the stack's
    max_tokens : token budget of a step (continuous); vLLM's default for online serving is 2048
    chunked : whether prompts may be split
    memory_fraction : share of the device's memory; None = the stack's
    kv_tokens : size of the KV cache instead of what the memory leaves
    """

    name: str = "continuous"
    max_seqs: int | None = None
    max_tokens: int = 2048
    chunked: bool = True
    memory_fraction: float | None = None
    kv_tokens: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True)
class _Variant:
    name: str
    pattern: str
    model: StepModel
    memory: Memory
    traces: list[Trace] = field(default_factory=list)


def serve(
    gpu: GpuSpec,
    model: ServedModel,
    stack: ServingStack,
    arrivals: Arrivals,
    lengths: Lengths,
    policy: Policy | None = None,
    dtype: str = "i8",
    pattern: str = "2:4",
    tp: int = 1,
    requests: int = 200,
    replications: int = 5,
    seed: int = 0,
    warmup: float = 0.1,
    host: float | None = None,
    exact: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> ServingResult:
    """Serve the same requests with the dense model and with one whose linear layers have `pattern`.

    Two more runs exchange only the step times or only the KV memory, so that the gain of freed memory is booked apart
    from the gain of faster steps. A `pattern` of ``dense`` runs the dense model alone.

    Parameters
    ----------
    dtype : of the linear layers: ``bf16``, ``f16``, ``i8`` or ``e4m3``; embedding, output layer and KV cache are bf16
    tp : GPUs that share each layer; dispatch rules apply to the shard
    requests, replications, seed : requests of each replication; replication r draws with seed + r
    warmup : share of the requests, the first ones, that enter no metric
    host : host times over those of the stack's reference host; None = the machine known for this GPU
    exact : simulate every token count instead of interpolating between those of the grid
    progress : called as progress(done, total) after each run

    Raises
    ------
    UserError
        Arguments out of range, a model that does not fit, a request that can never run: every problem it can name.
    NoKernelError
        The type has no dense kernel on this GPU.
    """
    policy = policy or Policy()
    check_arguments(policy, dtype, pattern, tp, requests, replications, seed, warmup, host)
    max_seqs = policy.max_seqs or stack.max_seqs
    simulator = Simulator(gpu, stack.gemm_stack)

    def steps(pattern: str) -> StepModel:
        return StepModel(gpu, model, stack, dtype, pattern, tp, host, max_seqs, exact, simulator)

    dense = steps("dense")
    size = memory_of(dense, policy.max_tokens, max_seqs, policy.memory_fraction)
    variants = [_Variant("dense", "dense", dense, size)]
    if not Pattern.parse(pattern).is_dense:
        sparse = steps(pattern)
        more = memory_of(sparse, policy.max_tokens, max_seqs, policy.memory_fraction)
        variants += [
            _Variant("sparse", pattern, sparse, more),
            _Variant("kernels only", pattern, sparse, size),
            _Variant("memory only", "dense", dense, more),
        ]
    loads = [draw_load(arrivals, lengths, requests, seed + r) for r in range(replications)]
    done = 0
    for load in loads:
        for variant in variants:
            variant.traces.append(_run(variant, load, stack, policy, max_seqs))
            done += 1
            if progress is not None:
                progress(done, replications * len(variants))
    open_load = arrivals.kind in ("poisson", "bursty", "trace")
    results = tuple(_result(variant, warmup, open_load) for variant in variants)
    grid_error = max(abs(e) for e in interpolation_error(variants[min(1, len(variants) - 1)].model, list(PROBES)))
    return ServingResult(
        gpu=gpu.name,
        model=model.name,
        stack=stack.name,
        dtype=dtype,
        tp=tp,
        host=dense.host._asdict(),
        scheduler={**policy.to_dict(), "max_seqs": max_seqs},
        load={
            "kind": arrivals.kind, "rate": arrivals.rate, "burst": arrivals.burst, "clients": arrivals.clients,
            "think_s": arrivals.think_s, "requests": len(loads[0].requests), "prompt": lengths.prompt,
            "output": lengths.output, "spread": lengths.spread,
        },
        seeds=tuple(load.seed for load in loads),
        warmup=warmup,
        variants=results,
        gains=_gains(results),
        interpolation=0.0 if exact else grid_error,
        provenance={
            "version": __version__, "gpu_hash": config_hash(gpu), "model_source": model.source,
            "model_hash": content_hash(model), "stack_hash": content_hash(stack),
            **({"trace_hash": content_hash(arrivals.trace)} if arrivals.trace else {}),
        },
    )  # fmt: skip


def _run(variant: _Variant, load: Load, stack: ServingStack, policy: Policy, max_seqs: int) -> Trace:
    blocks = variant.memory.blocks if policy.kv_tokens is None else policy.kv_tokens // stack.block
    scheduler: Scheduler
    if policy.name == "static":
        scheduler = Static(blocks, stack.block, max_seqs)
    else:
        scheduler = Continuous(blocks, stack.block, policy.max_tokens, max_seqs, policy.chunked)
    host = variant.model.host.step
    front = FrontEnd(host * stack.front_request, host * stack.front_prompt, host * stack.front_output)
    return run_engine(load, scheduler, variant.model.time, front)


def _result(variant: _Variant, warmup: float, open_load: bool) -> VariantResult:
    rows = tuple(measure(trace, warmup, open_load) for trace in variant.traces)
    parts = [shares(trace) for trace in variant.traces]
    return VariantResult(
        name=variant.name,
        pattern=variant.pattern,
        memory=variant.memory,
        metrics={name: estimate([row[name] for row in rows]) for name in rows[0]},
        replications=rows,
        parts={name: float(np.mean([part[name] for part in parts])) for name in parts[0]},
        paths=variant.model.paths(),
    )


def _gains(results: tuple[VariantResult, ...]) -> tuple[Gain, ...]:
    if len(results) == 1:
        return ()
    by_name = {result.name: result for result in results}
    found = []
    for metric in GAIN_METRICS:
        values = [
            [row[metric] for row in by_name[name].replications]
            for name in ("dense", "kernels only", "memory only", "sparse")
        ]
        if all(value > 0 for row in values for value in row):
            found.append(gain(metric, *values))
    return tuple(found)


def check_arguments(
    policy: Policy,
    dtype: str,
    pattern: str,
    tp: int,
    requests: int,
    replications: int,
    seed: int,
    warmup: float,
    host: float | None,
) -> None:
    """Raise `UserError` with all problems of the arguments."""
    problems = ProblemList("serve")
    if policy.name not in POLICIES:
        problems.add("scheduler", f"one of {', '.join(POLICIES)}", policy.name)
    if dtype not in DTYPES:
        problems.add("dtype", f"one of {', '.join(DTYPES)}", dtype)
    try:
        Pattern.parse(pattern)
    except UserError as error:
        problems.lines += error.problems
    for name, value, least, most in (
        ("tp", tp, 1, 64),
        ("requests", requests, 1, 1_000_000),
        ("replications", replications, 1, 1000),
        ("seed", seed, 0, 2**63 - 1),
        ("max-seqs", policy.max_seqs or 1, 1, 1 << 16),
        ("max-tokens", policy.max_tokens, 1, 1 << 20),
        ("kv-tokens", 16 if policy.kv_tokens is None else policy.kv_tokens, 16, 1 << 40),
    ):
        if not least <= value <= most:
            problems.add(name, f"an integer from {least} to {most}", value)
    if not 0.0 <= warmup < 1.0:
        problems.add("warmup", "a share of at least 0 and below 1", warmup)
    if host is not None and not 0.0 < host < 1e3:
        problems.add("host", "a positive factor", host)
    if policy.memory_fraction is not None and not 0.0 < policy.memory_fraction <= 1.0:
        problems.add("memory-fraction", "a share above 0 and at most 1", policy.memory_fraction)
    problems.raise_if_any()
