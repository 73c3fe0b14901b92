"""One pass of a model: every call in a stream, beside the host that issues them.

GEMMs are simulated, each once. Attention is timed as one fused kernel, what moves memory by its bytes. The pass takes
the slower of what the GPU needs for all of them and what the host needs to issue them, plus what the GPU waits for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from sparsesim.attribution.losses import STEP_BUDGET, WAVES, losses_of
from sparsesim.device.elementwise import stream_s
from sparsesim.device.simulate import Device
from sparsesim.overheads import host_s, plan_s
from sparsesim.protocol import Protocol, interval_s
from sparsesim.serving.kernels import prefill_attention_s
from sparsesim.simulator import Simulator
from sparsesim.workload import Gemm, OtherOp

__all__ = ["EAGER_CALL_S", "Timed", "forward"]

#: host time of a call inside eager modules [s]: Python of the modules, views and checks around one kernel. BERT-base at
#: 4 × 384 tokens takes 11.1 ms on an A100 whose kernels take a quarter of it (PyTorch's semi-structured tutorial), in
#: about 150 calls. That report is one of those replayed, and no independent figure was found: plausible are 20 to 80 µs
#: (the floor of a bare dense op is 18 µs, pytorch/pytorch#96147), and the case in question does not test this value
EAGER_CALL_S = 60e-6
#: share of the tensor rate that fused attention reaches (FlashAttention-2 on A100: 50 to 73 %), and of the DRAM rate
#: that element-wise kernels do
ATTENTION, STREAM = 0.55, 0.8
#: ops beside the GEMMs that a compiler fuses into their neighbours, or that fused attention contains
FUSED, IN_ATTENTION = ("residual", "activation"), ("softmax",)


@dataclass(frozen=True)
class Timed:
    """A pass: its path by the time of its prunable layers, dense and sparse time [µs], lost time by loss [µs]."""

    path: str
    reason: str
    text: str
    dense_us: float = 0.0
    time_us: float = 0.0
    losses_us: dict[str, float] = field(default_factory=dict)


@dataclass
class _Pass:
    """Device and host time of a pass, and what the GPU waits for [s]."""

    device: float = 0.0
    host: float = 0.0
    waits: float = 0.0

    @property
    def seconds(self) -> float:
        return max(self.device, self.host) + self.waits


def forward(
    simulator: Simulator, ops: Sequence[Gemm], others: Iterable[OtherOp], in_model: bool, losses: bool
) -> Timed:
    """Time a pass over `ops` and `others`, sparse and dense.

    Parameters
    ----------
    in_model : the calls are issued by eager modules, unless the model is compiled
    losses : attribute the sparse layers, too
    """
    gpu, flags = simulator.gpu, simulator.stack.setting.flags
    kind = "conv" if "cnn" in flags else None
    listed = _split([op if kind is None or op.kind == "matmul" else replace(op, kind="conv") for op in ops], flags)
    decisions = [simulator.stack.decide(op, gpu) for op in listed]
    for op, decision in zip(listed, decisions, strict=True):
        if decision.outcome == "error":
            return Timed("error", decision.reason, f"{op.name}: {decision.text}")
    eager = in_model and "eager" in flags and "training" not in flags
    each = EAGER_CALL_S if eager else gpu.launch.host_call
    protocol = Protocol("stream", "rotating")
    dense, sparse = _Pass(), _Pass()
    by_reason: dict[tuple[str, str], float] = {}
    texts: dict[tuple[str, str], str] = {}
    lost: dict[str, float] = {}
    device = Device(gpu, STEP_BUDGET, WAVES)
    for op in listed:
        if op.kind == "matmul":
            if op.family != "attn_values":
                seconds = _attention(simulator, op) * op.count
                for run in (dense, sparse):
                    run.device += seconds
                    run.host += each * op.count
            continue
        result = simulator.gemm(op, protocol)
        launch = result.dense_launch
        dense.device += op.count * _device(simulator, launch.seconds, launch.launches, False)
        dense.host += op.count * each
        launch = result.launch
        sparse.device += op.count * _device(simulator, launch.seconds, launch.launches, launch.kernel.sparse)
        sparse.host += op.count * each
        if result.path == "sparse":
            call = simulator.stack.call(op, gpu)
            timing = "host" if eager else "stream"
            beside = sum(us for name, us in result.overheads.items() if name != "host-plan") * 1e-6
            sparse.device += op.count * beside
            sparse.host += op.count * host_s(gpu, call, timing)
            sparse.waits += op.count * plan_s(call, timing)
            if losses:
                for name, share in losses_of(simulator, op, protocol, device).items():
                    lost[name] = lost.get(name, 0.0) + op.count * share * result.time_us
                lost["host-plan"] = lost.get("host-plan", 0.0) + 1e6 * op.count * (
                    host_s(gpu, call, timing) + plan_s(call, timing)
                )
        if result.reason != "dense-weight":
            key = result.path, result.reason
            by_reason[key] = by_reason.get(key, 0.0) + op.count * result.dense_time_us
            texts.setdefault(key, f"{op.name}: {result.reason_text}")
    for other in others:
        name = other.name.rpartition("/")[2].rpartition(".")[2]
        if name in IN_ATTENTION or (not eager and name in FUSED):
            continue
        seconds = stream_s(gpu, (other.bytes or 0) / 2, (other.bytes or 0) / 2, STREAM, False) * other.count
        for run in (dense, sparse):
            run.device += seconds
            run.host += each * other.count
    paths = {path: sum(us for key, us in by_reason.items() if key[0] == path) for path, _ in by_reason}
    if not paths:
        return Timed("dense", "dense-weight", "no prunable layer", 1e6 * dense.seconds, 1e6 * sparse.seconds)
    path = max(paths, key=lambda name: paths[name])
    most = max((key for key in by_reason if key[0] == path), key=lambda key: by_reason[key])
    shown = {name: us for name, us in lost.items() if us > 0.0}
    return Timed(path, most[1], texts[most], 1e6 * dense.seconds, 1e6 * sparse.seconds, shown)


def _split(ops: Sequence[Gemm], flags: frozenset[str]) -> list[Gemm]:
    """The ops as eager modules issue them: encoders project queries, keys and values by three layers."""
    if "bert" not in flags:
        return list(ops)
    return [replace(op, m=op.m // 3, count=op.count * 3) if op.family == "qkv" and op.m % 3 == 0 else op for op in ops]


def _device(simulator: Simulator, busy_s: float, launches: int, sparse: bool) -> float:
    """Time of a product in its stream, as long as the host is ahead [s]."""
    gpu = simulator.gpu
    gaps = interval_s(gpu, "event", 0.0, launches, sparse)[0] - gpu.launch.event_overhead
    return busy_s + gaps + gpu.launch.stream_gap


def _attention(simulator: Simulator, op: Gemm) -> float:
    """One layer's attention, fused [s]; `op` is its product of scores: keys × queries over the head's width."""
    pairs = float(op.m) * op.n
    gpu = simulator.gpu
    return prefill_attention_s(gpu, pairs, float(op.n), op.batch, op.batch, op.k, ATTENTION, graph=False)
