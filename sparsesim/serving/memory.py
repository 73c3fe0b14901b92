"""How many tokens fit into the KV cache: what the device has, less weights, activations and what is reserved.

As vLLM sizes it: a share of the device's memory, less the peak of a profiling run of the largest step.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparsesim.errors import UserError
from sparsesim.serving.models import HALF
from sparsesim.serving.stack import QUANTISED
from sparsesim.serving.steps import StepModel
from sparsesim.sparsity import Pattern
from sparsesim.stacks import get_stack

__all__ = ["Memory", "memory_of"]

#: bits of a stored weight element
BITS = {"f16": 16, "bf16": 16, "i8": 8, "e4m3": 8, "e2m1": 4}
#: bytes of the f32 logits and of their softmax, beside the 16-bit ones
LOGITS = 2 + 4 + 4
#: a data sheet's "24 GB" are 24 GiB less what the driver keeps: nvidia-smi shows 24564 MiB (RTX 4090), 81920 (A100
#: 80 GB), 81559 (H100 PCIe), 183359 (B200, "180 GB")
GB_IS = 1024**3 / 1e9 * 0.995


@dataclass(frozen=True)
class Memory:
    """Memory of one GPU [B], and the blocks that are left for the KV cache."""

    budget: float
    weights: float
    activations: float
    reserved: float
    kv_bytes_per_token: int
    block: int

    @property
    def kv_bytes(self) -> float:
        """What is left for the KV cache."""
        return self.budget - self.weights - self.activations - self.reserved

    @property
    def blocks(self) -> int:
        """Whole blocks of the KV cache."""
        return int(self.kv_bytes // (self.block * self.kv_bytes_per_token))

    @property
    def tokens(self) -> int:
        """Tokens that the KV cache holds."""
        return self.blocks * self.block


def weight_bytes(model: StepModel) -> float:
    """Weights of one GPU [B]; a sparse one takes its kept values and their metadata, if it runs sparse."""
    bits = BITS[model.dtype]
    pattern = Pattern.parse(model.pattern)
    total = 0.0
    paths = model.paths()
    for shard in model.model.shards(model.tp):
        stored = float(bits)
        if paths[shard.name] == "sparse":  # what falls back is kept dense
            stored = pattern.kept_fraction * (bits + pattern.metadata_bits_per_kept)
        total += shard.m * shard.k * stored / 8.0
    return model.model.layers * total + model.model.unpruned_parameters * HALF / model.tp


def memory_of(model: StepModel, max_tokens: int, max_seqs: int, memory_fraction: float | None = None) -> Memory:
    """Memory under `model` where a step computes at most `max_tokens` and samples for `max_seqs` sequences.

    Raises
    ------
    UserError
        The weights and activations leave no block of the KV cache.
    """
    stack, served = model.stack, model.model
    fraction = stack.memory_fraction if memory_fraction is None else memory_fraction
    widest = max(shard.m for shard in model.model.shards(model.tp))
    product = get_stack(model.simulator.stack.dense_stack).output(model.dtype) if model.dtype in QUANTISED else 0.0
    # the widest product before and after it is scaled back, the residual stream and the input of the layer
    layer = max_tokens * (widest * (product + HALF) + 2 * HALF * served.hidden)
    logits = max_seqs * served.vocab / model.tp * LOGITS
    memory = Memory(
        budget=fraction * model.gpu.dram.bytes * GB_IS,
        weights=weight_bytes(model),
        activations=max(layer, logits),
        reserved=stack.reserved,
        kv_bytes_per_token=served.kv_bytes_per_token(model.tp),
        block=stack.block,
    )
    if memory.blocks < 1:
        raise UserError(
            f"memory: expected room for a KV cache, found {memory.budget / 1e9:.1f} GB of {model.gpu.name} against "
            f"{memory.weights / 1e9:.1f} GB of weights, {memory.activations / 1e9:.1f} GB of activations and "
            f"{memory.reserved / 1e9:.1f} GB reserved"
        )
    return memory
