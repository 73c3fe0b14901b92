"""Kernels that are no weight GEMM: element-wise ops, attention, sampling, all-reduce; bound by memory or tensor rate.

A kernel takes its launch costs, the latency of the loads that depend on each other, and then the slower of its
traffic and its arithmetic. What a kernel reads was written by the one before it, so part of it is still in L2:
under random replacement, exp(-bytes / capacity) of it.
"""

from __future__ import annotations

from sparsesim.device.elementwise import latency_s, launch_s, stream_s
from sparsesim.hardware import GpuSpec

__all__ = ["allreduce_s", "decode_attention_s", "launch_s", "prefill_attention_s", "stream_s", "tensor_rate"]

#: NVLink and PCIe: bytes per second and direction between GPUs of one server that a ring reaches, by GPU family;
#: recalled from data sheets: NVLink 3 300 GB/s, 4 450, 5 900; PCIe 4.0 x16 32, 5.0 64; times 0.8 for protocol (assumed)
LINKS = {
    "ampere_dc": 240e9,
    "hopper": 360e9,
    "blackwell_dc": 720e9,
    "blackwell_geforce": 51e9,
}
PCIE = 25.6e9
#: boards of these families that have a PCIe bus only
PCIE_BOARDS = {"a100_pcie_80gb": 25.6e9, "h100_pcie": 51e9}
#: start of one step of a ring (NCCL, LL protocol: a few µs a hop; assumed)
HOP_S = 3e-6


def tensor_rate(gpu: GpuSpec) -> float:
    """Dense 16-bit operations per second with f32 accumulation; two per MAC."""
    rates = gpu.tensor.macs_per_clk
    macs = rates.get("f16_f32", rates.get("f16_f16", 0.0))
    return 2.0 * macs * gpu.sm.count * gpu.clock.boost


def prefill_attention_s(
    gpu: GpuSpec, pairs: float, tokens: float, heads: int, kv_heads: int, head_dim: int, efficiency: float, graph: bool
) -> float:
    """Attention of one layer over prompts [s].

    `pairs` counts (query, key) pairs under the causal mask, over all sequences; two products of 2·`head_dim`
    operations each for each pair and head. `tokens` are read and written once.
    """
    work = 4.0 * pairs * heads * head_dim / (tensor_rate(gpu) * efficiency)
    traffic = tokens * 2.0 * (2 * heads + 2 * kv_heads) * head_dim
    memory = traffic / (gpu.dram.bytes_per_s * gpu.dram.achieved_fraction)
    return launch_s(gpu, graph) + latency_s(gpu) + max(work, memory)


def decode_attention_s(
    gpu: GpuSpec, context: float, kv_heads: int, head_dim: int, efficiency: float, graph: bool
) -> float:
    """Attention of one layer for sequences that add one token each [s]; `context` = cached tokens of all of them."""
    traffic = context * 2.0 * kv_heads * head_dim * 2.0
    memory = traffic / (gpu.dram.bytes_per_s * gpu.dram.achieved_fraction * efficiency)
    return launch_s(gpu, graph) + 2 * latency_s(gpu) + memory


def allreduce_s(gpu: GpuSpec, size: float, tp: int) -> float:
    """Ring all-reduce of `size` bytes among `tp` GPUs [s]: 2 (tp - 1) steps of size / tp each."""
    if tp == 1:
        return 0.0
    rate = PCIE_BOARDS.get(gpu.name) or LINKS.get(gpu.family, PCIE)
    return 2 * (tp - 1) * (size / tp / rate + HOP_S)
