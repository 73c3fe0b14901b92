"""What serving runs return: latencies, throughput, utilisation of one variant; gains between variants."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sparsesim.serving.engine import Trace
from sparsesim.serving.inputs import serve_command
from sparsesim.serving.memory import Memory
from sparsesim.serving.stats import Estimate, estimate
from sparsesim.serving.steps import PARTS

__all__ = ["LATENCIES", "METRICS", "ServingResult", "VariantResult", "measure"]

QUANTILES = (50, 95, 99)
LATENCIES = ("ttft", "tpot", "e2e")
#: metrics of one replication, in the order of the JSON
METRICS = (
    *(f"{name}_{what}_s" for name in LATENCIES for what in ("mean", *(f"p{q}" for q in QUANTILES))),
    "output_tokens_per_s",
    "tokens_per_s",
    "requests_per_s",
    "queue_mean",
    "queue_max",
    "batch_mean",
    "gpu_busy",
    "tensor_busy",
    "host_bound",
    "graph_share",
    "fallback_rate",
    "preemptions",
)


def measure(trace: Trace, warmup: float, open_load: bool) -> dict[str, float]:
    """Metrics of one replication, without the first `warmup` of the requests.

    Latencies are those of the requests that arrive after the cut. Rates and shares cover the time from the first
    kept arrival to the last arrival of an open load (what comes later is only the queue that drains), else to the end.
    TTFT = arrival to first token; TPOT = (finish - first token) / (output - 1), of outputs of at least two tokens.
    """
    sequences = trace.sequences
    cut = min(int(warmup * len(sequences)), len(sequences) - 1)
    kept = sequences[cut:]
    begin, end = kept[0].arrival, trace.end
    if open_load and kept[-1].arrival > begin:
        end = kept[-1].arrival
    found: dict[str, float] = {}
    times = {
        "ttft": [s.first_token - s.arrival for s in kept if s.first_token is not None],
        "tpot": [
            (s.finish - s.first_token) / (s.request.output - 1)
            for s in kept
            if s.finish is not None and s.first_token is not None and s.request.output > 1
        ],
        "e2e": [s.finish - s.arrival for s in kept if s.finish is not None],
    }
    for name, values in times.items():
        found[f"{name}_mean_s"] = float(np.mean(values)) if values else 0.0
        for q in QUANTILES:
            found[f"{name}_p{q}_s"] = float(np.quantile(values, q / 100)) if values else 0.0
    span = end - begin
    inside = [step for step in trace.steps if step.end > begin and step.start < end]
    # a step that the window cuts counts with its part inside
    part = np.array([(min(s.end, end) - max(s.start, begin)) / (s.end - s.start) for s in inside])

    def total(values: list[float]) -> float:
        return float(part @ np.array(values)) if values else 0.0

    prompts = total([float(sum(new for new, _ in s.batch.chunks)) for s in inside])
    output = total([float(s.generated) for s in inside])
    found["output_tokens_per_s"] = output / span
    found["tokens_per_s"] = (output + prompts) / span
    found["requests_per_s"] = sum(s.finish is not None and begin < s.finish <= end for s in sequences) / span
    waits = _time_average(trace.queue, begin, end)
    found["queue_mean"], found["queue_max"] = waits
    busy = total([s.end - s.start for s in inside])
    found["batch_mean"] = total([s.batch.sequences * (s.end - s.start) for s in inside]) / busy if busy else 0.0
    gpu = total([getattr(s.cost, "gpu", s.cost.seconds) for s in inside])
    found["gpu_busy"] = gpu / span
    found["tensor_busy"] = total([getattr(s.cost, "tensor", 0.0) for s in inside]) / span
    found["host_bound"] = max(0.0, 1.0 - gpu / busy) if busy else 0.0
    found["graph_share"] = (
        total([(s.end - s.start) * (getattr(s.cost, "mode", "") != "eager") for s in inside]) / busy if busy else 0.0
    )
    pruned = total([getattr(s.cost, "pruned", 0.0) for s in inside])
    found["fallback_rate"] = total([getattr(s.cost, "fallback", 0.0) for s in inside]) / pruned if pruned else 0.0
    found["preemptions"] = float(sum(s.preemptions for s in kept))
    return {name: found[name] for name in METRICS}


def _time_average(changes: list[tuple[float, int]], begin: float, end: float) -> tuple[float, float]:
    """(mean over time, maximum) of a step function between two times."""
    area, most, level, since = 0.0, 0, 0, begin
    for when, value in changes:
        if when > end:
            break
        if when > begin:
            area += level * (when - since)
            since = when
        level = value
        if when >= begin:
            most = max(most, value)
    area += level * (end - since)
    return area / (end - begin), float(most)


@dataclass(frozen=True)
class VariantResult:
    """One variant over all replications.

    `metrics` maps each of `METRICS` to its mean and 95 % interval; `replications` has the single values in the order
    of the seeds; `parts` the shares of the GPU's time.
    """

    name: str
    pattern: str
    memory: Memory
    metrics: dict[str, Estimate]
    replications: tuple[dict[str, float], ...]
    parts: dict[str, float]
    paths: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "name": self.name,
            "pattern": self.pattern,
            "kv_tokens": self.memory.tokens,
            "weight_bytes": self.memory.weights,
            "kv_bytes": self.memory.kv_bytes,
            "metrics": {name: value.to_dict() for name, value in self.metrics.items()},
            "gpu_time_shares": self.parts,
            "paths": self.paths,
            "replications": list(self.replications),
        }


@dataclass(frozen=True)
class Gain:
    """Gain of the sparse variant in one metric, as ln of a factor above 1 where it is better.

    `kernels` + `memory` = `total` in each replication: Shapley values of exchanging the step times and the size of
    the KV cache, from the runs with one of them exchanged. Intervals are of paired differences (same requests).
    """

    metric: str
    total: Estimate
    kernels: Estimate
    memory: Estimate

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "metric": self.metric,
            **{name: getattr(self, name).to_dict() for name in ("total", "kernels", "memory")},
        }


@dataclass(frozen=True)
class ServingResult:
    """Variants that served the same requests, and the gains of the sparse one.

    `inputs` are the arguments of `simulate_serving` that give all of it again; empty for a run built of parts.
    """

    gpu: str
    model: str
    stack: str
    dtype: str
    tp: int
    host: dict[str, float]
    scheduler: dict[str, Any]
    load: dict[str, Any]
    seeds: tuple[int, ...]
    warmup: float
    variants: tuple[VariantResult, ...]
    gains: tuple[Gain, ...]
    interpolation: float
    provenance: dict[str, str] = field(default_factory=dict)
    inputs: dict[str, Any] = field(default_factory=dict)

    def variant(self, name: str) -> VariantResult:
        """The variant called `name`; KeyError if there is none."""
        for found in self.variants:
            if found.name == name:
                return found
        raise KeyError(name)

    def to_dict(self) -> dict[str, Any]:
        """Plain data in the form of the CLI's JSON."""
        return {
            "gpu": self.gpu, "model": self.model, "serving_stack": self.stack, "dtype": self.dtype, "tp": self.tp,
            "host": self.host, "scheduler": self.scheduler, "load": self.load, "seeds": list(self.seeds),
            "warmup": self.warmup,
            "variants": [variant.to_dict() for variant in self.variants],
            "gains": [gain.to_dict() for gain in self.gains],
            "interpolation_error": self.interpolation,
            "inputs": self.inputs,
            "command": serve_command(self.inputs) if self.inputs else None,
            "provenance": self.provenance,
        }  # fmt: skip


def gain(metric: str, dense: list[float], kernels: list[float], memory: list[float], sparse: list[float]) -> Gain:
    """Book a gain: values of a metric, replication by replication, of the four combinations.

    `kernels` = sparse step times with the dense KV cache, `memory` = dense step times with the sparse KV cache.
    """
    sign = 1.0 if metric.endswith("per_s") else -1.0
    rows = [tuple(sign * math.log(value) for value in row) for row in zip(dense, kernels, memory, sparse, strict=True)]
    return Gain(
        metric,
        estimate([s - d for d, _, _, s in rows]),
        estimate([((k - d) + (s - m)) / 2 for d, k, m, s in rows]),
        estimate([((m - d) + (s - k)) / 2 for d, k, m, s in rows]),
    )


def shares(trace: Trace) -> dict[str, float]:
    """Shares of the GPU's time over all steps, by part."""
    sums = [math.fsum(step.cost.parts[i] for step in trace.steps) for i in range(len(PARTS))]
    whole = math.fsum(sums)
    return {name: value / whole for name, value in zip(PARTS, sums, strict=True)}
