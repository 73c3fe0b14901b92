"""Time of one step of a serving engine: host and GPU side by side, GEMMs from the simulator.

A step runs the whole model once over the tokens that the scheduler chose. Its time is host work while the GPU is
idle, then the pipeline of issues and kernels: a kernel begins when it is issued and the one before it is done.
That is the whole mechanism of host-bound steps. A step of decodes is one captured graph, hence one issue; one with
prompts that is not larger than the largest captured size is a graph piece and an attention call for each layer
(vLLM's FULL_AND_PIECEWISE); any other step is issued kernel by kernel.

Linear layers are simulated at the token counts of `grid`, and interpolated between them (`exact` simulates every
count). `interpolation_error` says how wrong that is.
"""

from __future__ import annotations

from bisect import bisect_left
from copy import copy
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from sparsesim.hardware import GpuSpec
from sparsesim.protocol import Protocol
from sparsesim.serving import kernels
from sparsesim.serving.kernel_rows import KernelRows
from sparsesim.serving.models import HALF, Linear, ServedModel
from sparsesim.serving.stack import QUANTISED, Host, ServingStack, host_of
from sparsesim.simulator import Simulator
from sparsesim.sparsity import Pattern
from sparsesim.stacks import get_stack
from sparsesim.workload import Gemm

__all__ = ["GRID", "PARTS", "Batch", "LinearTimes", "StepModel", "StepTime", "capture_sizes", "interpolation_error"]

#: token counts at which linear layers are simulated; the largest is the largest n of a GEMM
GRID = tuple(sorted({base << shift for shift in range(21) for base in (1, 3) if base << shift <= 1 << 20} - {3, 6, 12}))
#: how a step is launched: one captured graph, a graph piece and an attention call per layer, or kernel by kernel
FULL, PIECEWISE, EAGER = "full", "piecewise", "eager"
#: what the GPU time of a step is made of
PARTS = ("linear", "quantise", "scale", "elementwise", "attention", "head", "allreduce")


@dataclass(frozen=True)
class Batch:
    """What one step computes.

    Parameters
    ----------
    chunks : (new tokens, cached tokens after the step) of each sequence that computes more than one token, or its
        prompt
    decodes : sequences that add one token
    context : cached tokens of those, after the step
    sampled : sequences whose logits are needed
    width : rows of the decode part; more than `decodes` where a static batch keeps finished ones
    """

    chunks: tuple[tuple[int, int], ...] = ()
    decodes: int = 0
    context: int = 0
    sampled: int = 0
    width: int = 0

    @property
    def tokens(self) -> int:
        """Tokens that pass through the linear layers."""
        return sum(new for new, _ in self.chunks) + max(self.decodes, self.width)

    @property
    def sequences(self) -> int:
        """Sequences in the step."""
        return len(self.chunks) + self.decodes


@dataclass(frozen=True)
class LinearTimes:
    """Linear layers of the model at one token count, kernels only [s].

    `by_layer` are the times of one call of each; `total` covers all layers, `tensor` the time in which the tensor
    cores work, as if all did, `fallback` what sparse weights spend on the dense path, `pruned` all of what weights
    with a sparse pattern spend.
    """

    by_layer: tuple[float, ...]
    total: float
    tensor: float
    fallback: float
    pruned: float


class _Call(NamedTuple):
    """One kernel of a layer: its part, its time on the GPU and the host time to issue it [s]."""

    part: str
    seconds: float
    issue: float


@dataclass(frozen=True)
class StepTime:
    """One step [s]: `seconds` = `serial` + the pipeline of host and GPU.

    `gpu` is the sum of the kernels with their gaps, `parts` what it is made of (see `PARTS`); `issue` is what the
    host needs to launch them, and `mode` how. `tensor`, `fallback`, `pruned` as in `LinearTimes`.
    """

    seconds: float
    serial: float
    issue: float
    gpu: float
    parts: tuple[float, ...]
    tensor: float
    fallback: float
    pruned: float
    mode: str

    @property
    def host_bound(self) -> float:
        """Share of the step in which the GPU has no kernel."""
        return max(0.0, 1.0 - self.gpu / self.seconds)


def capture_sizes(most: int) -> tuple[int, ...]:
    """Batch sizes for which vLLM captures graphs: 1, 2, 4, multiples of 8 to 256 and of 16 beyond."""
    sizes = [1, 2, 4, *range(8, 257, 8), *range(272, most + 1, 16)]
    return tuple(size for size in sizes if size <= most)


class StepModel:
    """Step times of one model on one GPU under one serving stack.

    Parameters
    ----------
    gpu, model, stack
    dtype : of weights and quantised activations: ``bf16``, ``f16``, ``i8`` or ``e4m3``
    pattern : of the linear layers; the output layer stays dense
    tp : GPUs that share each layer
    host : times of its machine's host; a number for both kinds; None = the machine known for this GPU
    max_seqs : sequences at once, which bounds the captured graphs; None = the stack's
    exact : simulate every token count
    simulator : shared between variants of one GPU, so that dense kernels are simulated once
    measured : measured kernels of this GPU, by which simulated ones are corrected; only to split an error
    """

    def __init__(
        self,
        gpu: GpuSpec,
        model: ServedModel,
        stack: ServingStack,
        dtype: str = "bf16",
        pattern: str = "2:4",
        tp: int = 1,
        host: Host | float | None = None,
        max_seqs: int | None = None,
        exact: bool = False,
        simulator: Simulator | None = None,
        measured: KernelRows | None = None,
    ) -> None:
        self.gpu = gpu
        self.measured = measured
        self.model = model
        self.stack = stack
        self.dtype = dtype
        self.pattern = pattern
        self.tp = tp
        self.host = host_of(gpu.name) if host is None else host if isinstance(host, Host) else Host(host, host)
        self.exact = exact
        self.simulator = simulator or Simulator(gpu, stack.gemm_stack)
        self.protocol = Protocol("kernel", "rotating")
        self.quantised = dtype in QUANTISED
        self._shards = model.shards(tp)
        self._linear: dict[int, LinearTimes] = {}
        self._heads: dict[int, float] = {}
        self._layers: dict[tuple[int, bool], tuple[LinearTimes, list[_Call]]] = {}
        self._paths: dict[int, tuple[str, ...]] = {}
        self._sizes = capture_sizes(min(stack.graph_sizes, 2 * (max_seqs or stack.max_seqs)))

    # --- linear layers ---

    def with_max_seqs(self, max_seqs: int) -> StepModel:
        """The same model with graphs captured for another number of sequences; GEMM times are shared."""
        other = copy(self)
        other._sizes = capture_sizes(min(self.stack.graph_sizes, 2 * max_seqs))
        return other

    def with_values(self, stack: ServingStack, host: Host) -> StepModel:
        """The same model with other costs round the same GEMMs, whose times are shared."""
        other = copy(self)
        other.stack, other.host, other._layers = stack, host, {}
        return other

    def linear(self, tokens: int) -> LinearTimes:
        """Linear layers of one step at `tokens` columns, padded as the stack pads them."""
        tokens = self.padded(tokens)
        if self.exact or tokens in GRID:
            return self._simulated(tokens)
        above = bisect_left(GRID, tokens)
        low, high = GRID[above - 1], GRID[above]
        share = (tokens - low) / (high - low)
        a, b = self._simulated(low), self._simulated(high)
        mix = [x + share * (y - x) for x, y in zip(_flat(a), _flat(b), strict=True)]
        return LinearTimes(tuple(mix[4:]), *mix[:4])

    def padded(self, tokens: int) -> int:
        """Columns that the linear layers compute: quantised and sparse ones are padded to the stack's multiple."""
        if not self.quantised and self.pattern == "dense":
            return tokens
        return -(-tokens // self.stack.token_multiple) * self.stack.token_multiple

    def _simulated(self, tokens: int) -> LinearTimes:
        if tokens not in self._linear:
            self._linear[tokens] = self._simulate(tokens)
        return self._linear[tokens]

    def _simulate(self, tokens: int) -> LinearTimes:
        times, tensor, fallback, pruned = [], 0.0, 0.0, 0.0
        for shard in self._shards:
            seconds, busy, path = self.gemm(shard, tokens)
            times.append(seconds)
            tensor += busy
            if not Pattern.parse(self.pattern).is_dense:
                pruned += seconds
                fallback += seconds if path == "dense" else 0.0
        layers = self.model.layers
        return LinearTimes(tuple(times), layers * sum(times), layers * tensor, layers * fallback, layers * pruned)

    def gemm(self, shard: Linear, tokens: int) -> tuple[float, float, str]:
        """(seconds with launch, seconds in which the tensor cores work, path) of one linear layer's GEMM."""
        op = Gemm(shard.name, shard.m, tokens, shard.k, dtype=self.dtype, pattern=self.pattern)
        decision = self.simulator.stack.decide(op, self.gpu)
        if decision.native is not None:
            seconds, launch = self.simulator.time_sparse(op, decision.native, self.protocol)
            runs_as = self.dtype
        else:
            runs_as, least = self.stack.dense_as.get((self.gpu.family, self.dtype), (self.dtype, 1))
            runs_as = runs_as if tokens >= least else self.dtype
            seconds, launch = self.simulator.time_dense(replace(op, dtype=runs_as, pattern="dense"), self.protocol)
        if self.measured is not None:
            seconds *= self.measured.factor(shard.m, tokens, shard.k, runs_as, decision.native is not None)
        return seconds, launch.counters["tensor_busy"] * launch.seconds, decision.path

    def paths(self, tokens: int = 1024) -> dict[str, str]:
        """Linear layer → ``sparse``, or ``dense: `` and the rule that decided; the dispatch rules see the shard."""
        tokens = self.padded(tokens)
        if tokens not in self._paths:
            decisions = [
                self.simulator.stack.decide(
                    Gemm(shard.name, shard.m, tokens, shard.k, dtype=self.dtype, pattern=self.pattern), self.gpu
                )
                for shard in self._shards
            ]
            self._paths[tokens] = tuple(d.path if d.path == "sparse" else f"dense: {d.reason}" for d in decisions)
        return dict(zip((shard.name for shard in self._shards), self._paths[tokens], strict=True))

    def _head(self, sampled: int) -> float:
        """Output layer and sampling for `sampled` sequences [s]."""
        if not sampled:
            return 0.0
        rows = next((size for size in GRID if size >= sampled), GRID[-1])
        if rows not in self._heads:
            op = Gemm("lm_head", self.model.vocab // self.tp, rows, self.model.hidden, dtype="bf16", pattern="dense")
            self._heads[rows] = self.simulator.time_dense(op, self.protocol)[0]
        traffic = sampled * self.model.vocab * self.stack.sampling_bytes
        sampling = kernels.stream_s(self.gpu, traffic / 2, traffic / 2, self.stack.stream_efficiency, graph=False)
        return self._heads[rows] + sampling

    # --- a step ---

    def time(self, batch: Batch) -> StepTime:
        """Time of one step."""
        stack, host, layers = self.stack, self.host, self.model.layers
        rows, mode = self._padded(batch)
        graph = mode != EAGER
        linear, calls = self._layer(rows, graph)
        attention = self._attention(batch, graph)
        work = [attention if call.part == "attention" else call.seconds for call in calls]
        head = self._head(batch.sampled)
        parts = dict.fromkeys(PARTS, 0.0)
        for call, seconds in zip(calls, work, strict=True):
            parts[call.part] += layers * seconds
        parts["head"] = head
        gpu = sum(parts.values())
        serial = host.step * (stack.step_serial + batch.sequences * stack.seq_serial)
        if mode == FULL:
            issue = host.launch * stack.graph_launch
            pipeline = issue + gpu
        else:
            if mode == PIECEWISE:
                # a layer's kernels up to and behind its attention: two issues, the attention one between them
                issues = [stack.call_issue * (call.part == "attention" or i == 0) for i, call in enumerate(calls)]
            else:
                fixed = stack.step_issue + stack.sparse_step_issue * ("sparse" in self.paths(rows).values())
                issues = [call.issue + fixed / (layers * len(calls)) for call in calls]
            issue = host.launch * layers * sum(issues)
            pipeline = _pipeline([host.launch * each for each in issues], work, layers) + head
        return StepTime(
            serial + pipeline, serial, issue, gpu, tuple(parts.values()),
            linear.tensor, linear.fallback, linear.pruned, mode,
        )  # fmt: skip

    def _padded(self, batch: Batch) -> tuple[int, str]:
        """(rows that the linear layers compute, how the step is launched)."""
        tokens = batch.tokens
        if tokens > self._sizes[-1]:
            return tokens, EAGER
        return self._sizes[bisect_left(self._sizes, tokens)], PIECEWISE if batch.chunks else FULL

    def _layer(self, rows: int, graph: bool) -> tuple[LinearTimes, list[_Call]]:
        """The linear layers at `rows` tokens, and a layer's kernels in their order, without the time of attention."""
        if (rows, graph) not in self._layers:
            linear = self.linear(rows)
            self._layers[rows, graph] = linear, self._calls(rows, linear, graph)
        return self._layers[rows, graph]

    def _calls(self, rows: int, linear: LinearTimes, graph: bool) -> list[_Call]:
        gpu, model, stack = self.gpu, self.model, self.stack
        gap = gpu.launch.graph_gap if graph else gpu.launch.stream_gap
        found: list[_Call] = []

        def add(part: str, seconds: float, issue: float = 0.0) -> None:
            found.append(_Call(part, seconds, stack.call_issue + issue))

        def stream(read: float, write: float, trips: int = 1) -> float:
            return kernels.stream_s(gpu, rows * read, rows * write, stack.stream_efficiency, graph, trips)

        heads, kv = self._heads_here()
        query, pair = heads * model.head_dim, 2 * kv * model.head_dim
        paths = self.paths(rows)
        for shard, seconds in zip(self._shards, linear.by_layer, strict=True):
            sparse = paths[shard.name] == "sparse"
            if shard.name in ("qkv", "gate_up"):  # residual add and norm read and write two tensors
                add("elementwise", stream(2 * HALF * model.hidden, 2 * HALF * model.hidden, 2))
            if shard.name == "down":  # gate: SiLU(gate) * up
                add("elementwise", stream(HALF * 2 * shard.k, HALF * shard.k))
            if self.quantised:  # the largest magnitude of a row first, then the row
                add("quantise", stream(HALF * shard.k, shard.k, 2))
            add("linear", seconds + gap, stack.sparse_linear_issue if sparse else stack.dense_linear_issue)
            if self.quantised:
                product = self.simulator.stack if sparse else get_stack(self.simulator.stack.dense_stack)
                add("scale", stream(product.output(self.dtype) * shard.m, HALF * shard.m))
            if shard.row and self.tp > 1:
                add("allreduce", kernels.allreduce_s(gpu, rows * HALF * model.hidden, self.tp))
            if shard.name == "qkv":  # rotary embedding of queries and keys, cache write, attention
                add("elementwise", stream(HALF * (query + pair / 2), HALF * (query + pair / 2)))
                add("elementwise", stream(HALF * pair, HALF * pair))
                add("attention", 0.0)
        return found

    def _heads_here(self) -> tuple[int, int]:
        """Query and KV heads on one GPU."""
        return self.model.heads // self.tp, max(1, self.model.kv_heads // self.tp)

    def _attention(self, batch: Batch, graph: bool) -> float:
        """Attention of one layer [s]."""
        gpu, model, stack = self.gpu, self.model, self.stack
        heads, kv = self._heads_here()
        seconds = 0.0
        if batch.chunks:
            # a new token attends to what is cached before its chunk, and to its chunk up to itself
            pairs = sum(new * (end - new) + new * (new + 1) / 2 for new, end in batch.chunks)
            read = sum(end for _, end in batch.chunks)
            seconds += kernels.prefill_attention_s(
                gpu, pairs, read, heads, kv, model.head_dim, stack.prefill_attention, graph
            )
        if batch.decodes or batch.width:
            seconds += kernels.decode_attention_s(gpu, batch.context, kv, model.head_dim, stack.decode_attention, graph)
        return seconds


def _pipeline(issues: list[float], seconds: list[float], layers: int) -> float:
    """End of the last kernel: each begins when it is issued and the one before it has ended [s]."""
    issued = np.cumsum(np.tile(issues, layers))
    work = np.tile(seconds, layers)
    before = np.cumsum(work) - work
    return float(before[-1] + work[-1] + np.max(issued - before))


def _flat(times: LinearTimes) -> tuple[float, ...]:
    return (times.total, times.tensor, times.fallback, times.pruned, *times.by_layer)


def interpolation_error(model: StepModel, tokens: list[int]) -> list[float]:
    """ln(interpolated / simulated) of all linear layers at each of `tokens`."""
    exact = StepModel(
        model.gpu, model.model, model.stack, model.dtype, model.pattern, model.tp, model.host,
        exact=True, simulator=model.simulator,
    )  # fmt: skip
    return [float(np.log(model.linear(n).total / exact.linear(n).total)) for n in tokens]
