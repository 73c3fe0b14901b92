"""Simulated latency of the models of a quality file: served decoders under a load, or one pass over a list of GEMMs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparsesim.errors import Problem, UserError, nearest
from sparsesim.hardware import GpuSpec
from sparsesim.protocol import Protocol
from sparsesim.quality.record import DecoderShape, GemmShape, ModelShape, Scale
from sparsesim.quality.stats import Interval
from sparsesim.runtime import run_workload
from sparsesim.serving.models import ServedModel, get_served_model
from sparsesim.serving.requests import Arrivals, Lengths
from sparsesim.serving.results import LATENCIES
from sparsesim.serving.serve import serve
from sparsesim.serving.stack import get_serving_stack
from sparsesim.simulator import Simulator
from sparsesim.workload import Gemm

__all__ = ["SLA_METRICS", "Latency", "Sla", "scaled_decoder", "simulate_latency"]

SLA_METRICS = tuple(f"{name}_{what}" for name in LATENCIES for what in ("mean", "p50", "p95", "p99"))
#: size of an attention head in the served models that study models are scaled to
HEAD = 128


@dataclass(frozen=True)
class Sla:
    """What latency means, and under which load.

    Parameters
    ----------
    metric : of `SLA_METRICS`; ``e2e`` = whole request, ``ttft`` = to the first token, ``tpot`` = each further token
    rate, prompt, output, spread : Poisson arrivals [requests/s], mean tokens, their coefficient of variation
    requests, replications, seed : as for `serve`; the same draws for every variant
    tokens : columns of B in the pass of a list of GEMMs, which has one latency whatever `metric` says
    serving_stack, stack : for decoders, and for lists of GEMMs
    dtype : of models whose entry states no type that can be simulated
    """

    metric: str = "e2e_p95"
    rate: float = 4.0
    prompt: int = 512
    output: int = 128
    spread: float = 0.5
    requests: int = 200
    replications: int = 4
    seed: int = 0
    tokens: int = 2048
    serving_stack: str = "vllm-slidesparse"
    stack: str = "cusparselt"
    dtype: str = "bf16"

    def check(self) -> None:
        """Raise `UserError` for an unknown metric; everything else is checked by what uses it."""
        if self.metric not in SLA_METRICS:
            expected = f"one of {', '.join(SLA_METRICS)}"
            raise UserError(
                Problem.line("frontier", "metric", expected, self.metric) + nearest(self.metric, SLA_METRICS)
            )


@dataclass(frozen=True)
class Latency:
    """Latency [s] over replications; `paths` of the pruned layers; GEMM passes are deterministic, without interval."""

    seconds: Interval
    paths: dict[str, str]


def scaled_decoder(name: str, shape: DecoderShape, scale: Scale) -> ServedModel:
    """The decoder with sizes times ``scale.width`` and layers times ``scale.depth``; heads of 128 where they divide."""
    width = shape.heads * shape.head_dim * scale.width
    pair = shape.kv_heads * shape.head_dim * scale.width
    head = HEAD if width % HEAD == 0 and pair % HEAD == 0 else shape.head_dim
    return ServedModel(
        name=name,
        layers=shape.layers * scale.depth,
        hidden=shape.hidden * scale.width,
        heads=width // head,
        kv_heads=pair // head,
        head_dim=head,
        ffn=shape.ffn * scale.width,
        vocab=scale.vocab or shape.vocab,
        tied=shape.tied,
        source=f"study model, width x {scale.width}, layers x {scale.depth}",
    )


def simulate_latency(
    gpu: GpuSpec, name: str, shape: ModelShape, scale: Scale, pattern: str, dtype: str, sla: Sla
) -> Latency:
    """Latency of one variant.

    Raises
    ------
    UserError
        A model that does not fit the GPU, or arguments out of range.
    NoKernelError
        The type has no dense kernel on this GPU.
    """
    if shape.gemms is not None:
        return _gemm_pass(gpu, shape.gemms, scale, pattern, dtype, sla)
    if shape.decoder is not None:
        model = scaled_decoder(name, shape.decoder, scale)
    else:
        model = get_served_model(shape.served or "")
    result = serve(
        gpu, model, get_serving_stack(sla.serving_stack), Arrivals("poisson", sla.rate),
        Lengths(sla.prompt, sla.output, sla.spread), dtype=dtype, pattern=pattern, requests=sla.requests,
        replications=sla.replications, seed=sla.seed,
    )  # fmt: skip
    wanted = "dense" if pattern == "dense" else "sparse"
    variant = next(variant for variant in result.variants if variant.name == wanted)
    found = variant.metrics[f"{sla.metric}_s"]
    return Latency(Interval(found.mean, found.low, found.high, 1, sla.replications), dict(variant.paths))


def _gemm_pass(gpu: GpuSpec, gemms: tuple[GemmShape, ...], scale: Scale, pattern: str, dtype: str, sla: Sla) -> Latency:
    """A pass over the layers as one CUDA graph, in the steady state of two passes."""
    ops = tuple(
        Gemm(
            g.name, g.m * scale.width, sla.tokens, g.k * scale.width, count=g.count * scale.depth, dtype=dtype,
            pattern=pattern if g.pruned else "dense",
        )
        for g in gemms
    )  # fmt: skip
    simulator = Simulator(gpu, sla.stack)
    result: Any = run_workload(ops, simulator, Protocol("graph", "rotating"), repeats=2)
    seconds = result.sparse.pass_us * 1e-6
    pruned = {g.name for g in gemms if g.pruned}
    paths = {row.name: row.gemm["path"] if row.gemm["path"] == "sparse" else row.reason for row in result.rows}
    return Latency(Interval(seconds, seconds, seconds), {name: path for name, path in paths.items() if name in pruned})
