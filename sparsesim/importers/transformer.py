"""A transformer tower as layers of a TOML workload: its GEMMs by phase, and what it does beside them.

Phases. ``prefill``: the tokens are one prompt; ``encode``: one sequence, without logits; ``decode``: each token is
another sequence's next one, with `context` tokens before it; ``image``: units are images of `seq` tokens.

Attention is two products per layer and key/value head: scores (keys × queries) and values. They are counted in
full, as separate products: without what a causal mask or a window hides from a prompt, and not fused.
FLOPs of the other ops are counted per element: 1 for an addition, 4 for an RMS norm, 7 for a layer norm, 5 for a
softmax, 3 for rotary positions, 1 for ReLU, 4 for SiLU and 8 for GELU (and 1 more for a gate).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sparsesim.workload import DTYPE_BYTES

__all__ = ["Experts", "Tower", "layers_of"]

#: FLOPs per element
NORM_FLOPS = {"rms": 4, "layer": 7}
ACTIVATION_FLOPS = {"relu": 1, "silu": 4, "gelu": 8}


@dataclass(frozen=True)
class Experts:
    """Routed feed-forward: `count` experts of width `ffn`, `per_token` of them for each token, in `layers` layers;
    `shared` is the width of the part that all tokens take (0: none)."""

    count: int
    per_token: int
    ffn: int
    layers: int
    shared: int = 0


@dataclass(frozen=True)
class Tower:
    """One stack of equal layers.

    Parameters
    ----------
    hidden, layers, heads, kv_heads, head_dim, ffn
        The usual sizes [elements]; `ffn` of the layers that are not routed.
    gated
        Whether the feed-forward has a gate beside its up projection.
    modes
        Phase name -> ``prefill``, ``encode``, ``decode`` or ``image``.
    prefix
        Put before the names of its layers where a model has several towers.
    activation, norm, norms, qk_norm, rope
        For the ops beside the GEMMs; `norms` per layer.
    vocab
        Rows of the output layer and of the embedding; 0 for neither.
    window
        (tokens, layers) of sliding-window attention.
    seq
        Tokens of an image.
    context, cross
        Tokens before a decoded one, and of the encoder it attends to (0: no cross-attention).
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    gated: bool
    modes: dict[str, str]
    prefix: str = ""
    activation: str = "gelu"
    norm: str = "layer"
    norms: int = 2
    qk_norm: bool = False
    rope: bool = False
    vocab: int = 0
    lm_head: bool = True
    window: tuple[int, int] | None = None
    seq: int = 0
    context: int = 0
    cross: int = 0
    encoder_phases: tuple[str, ...] = ()
    experts: Experts | None = None
    extra: tuple[dict[str, Any], ...] = field(default=())


def layers_of(tower: Tower, dtype: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The ``[[layers]]`` and the ``[[others]]`` of `tower`, computed in `dtype`."""
    gemms = [*_projections(tower), *_feed_forward(tower), *_attention(tower), *_outputs(tower)]
    for layer in gemms:
        layer["name"] = tower.prefix + layer["name"]
        layer.setdefault("phases", list(tower.modes))
    others = list(_beside(tower, DTYPE_BYTES[dtype]))
    for other in others:
        other["name"] = tower.prefix + other["name"]
        other.setdefault("phases", list(tower.modes))
        for key in ("bytes", "flops"):
            if isinstance(other[key], list):
                other[key] = [round(value) for value in other[key]]
    return gemms, others


def _per_unit(tower: Tower) -> dict[str, int]:
    """n of a layer that sees every token of a unit."""
    return {"n_per_unit": tower.seq} if tower.seq else {}


def _linear(tower: Tower, name: str, family: str, m: int, k: int, count: int | None = None) -> dict[str, Any]:
    return {"name": name, "family": family, "m": m, "k": k, "count": count or tower.layers, **_per_unit(tower)}


def _projections(t: Tower) -> Iterator[dict[str, Any]]:
    inner = t.heads * t.head_dim
    yield _linear(t, "qkv", "qkv", inner + 2 * t.kv_heads * t.head_dim, t.hidden)
    yield _linear(t, "o", "attn_out", t.hidden, inner)
    if t.cross:
        yield _linear(t, "cross.q", "qkv", inner, t.hidden)
        yield _linear(t, "cross.kv", "qkv", 2 * inner, t.hidden) | {"phases": list(t.encoder_phases)}
        yield _linear(t, "cross.o", "attn_out", t.hidden, inner)


def _feed_forward(t: Tower) -> Iterator[dict[str, Any]]:
    wide = 2 if t.gated else 1
    up = "gate_up" if t.gated else "up"
    plain = t.layers - (t.experts.layers if t.experts else 0)
    if plain:
        yield _linear(t, up, "mlp_up", wide * t.ffn, t.hidden, plain)
        yield _linear(t, "down", "mlp_down", t.hidden, t.ffn, plain)
    if t.experts:
        moe = t.experts
        routed = {"experts": moe.count, "experts_per_token": moe.per_token}
        dense = {"pattern": "dense", "quantize": False}
        yield _linear(t, "router", "router", moe.count, t.hidden, moe.layers) | dense
        yield _linear(t, f"experts.{up}", "moe_up", wide * moe.ffn, t.hidden, moe.layers) | routed
        yield _linear(t, "experts.down", "moe_down", t.hidden, moe.ffn, moe.layers) | routed
        if moe.shared:
            yield _linear(t, f"shared.{up}", "mlp_up", wide * moe.shared, t.hidden, moe.layers)
            yield _linear(t, "shared.down", "mlp_down", t.hidden, moe.shared, moe.layers)


def _attention(t: Tower) -> Iterator[dict[str, Any]]:
    """Scores and values of every phase; the queries of the heads that share a key are one operand."""
    group = t.heads // t.kv_heads
    common = {"kind": "matmul", "pattern": "dense", "quantize": False}
    whole = [phase for phase, mode in t.modes.items() if mode in ("prefill", "encode")]
    if whole:
        seen = {**common, "count": t.layers, "batch": t.kv_heads, "n_per_unit": group, "phases": whole}
        yield {"name": "attn_scores", "family": "attn_scores", "m": "tokens", "k": t.head_dim, **seen}
        yield {"name": "attn_values", "family": "attn_values", "m": t.head_dim, "k": "tokens", **seen}
    images = [phase for phase, mode in t.modes.items() if mode == "image"]
    if images:
        seen = {**common, "count": t.layers, "batch_per_unit": t.kv_heads, "n": t.seq * group, "phases": images}
        yield {"name": "attn_scores", "family": "attn_scores", "m": t.seq, "k": t.head_dim, **seen}
        yield {"name": "attn_values", "family": "attn_values", "m": t.head_dim, "k": t.seq, **seen}
    decoded = [phase for phase, mode in t.modes.items() if mode == "decode"]
    if decoded:
        for name, keys, count in _decoded(t):
            seen = {**common, "count": count, "batch_per_unit": t.kv_heads, "n": group, "phases": decoded}
            yield {"name": f"{name}attn_scores", "family": "attn_scores", "m": keys, "k": t.head_dim, **seen}
            yield {"name": f"{name}attn_values", "family": "attn_values", "m": t.head_dim, "k": keys, **seen}


def _decoded(t: Tower) -> Iterator[tuple[str, int, int]]:
    """(prefix, keys, layers) of each sort of attention that a decoded token does."""
    window, local = t.window or (0, 0)
    if t.layers > local:
        yield "", t.context, t.layers - local
    if local:
        yield "local.", min(window, t.context), local
    if t.cross:
        yield "cross.", t.cross, t.layers


def _outputs(t: Tower) -> Iterator[dict[str, Any]]:
    """The output layer, and what the family adds. A prompt needs the logits of its last token only."""
    if t.vocab and t.lm_head:
        head = {"name": "lm_head", "family": "lm_head", "m": t.vocab, "k": t.hidden}
        head |= {"pattern": "dense", "quantize": False}
        prompts = [phase for phase, mode in t.modes.items() if mode == "prefill"]
        decoded = [phase for phase, mode in t.modes.items() if mode == "decode"]
        if prompts:
            yield {**head, "n": 1, "phases": prompts}
        if decoded:
            yield {**head, "phases": decoded}
    yield from (dict(layer) for layer in t.extra)


def _beside(t: Tower, width: float) -> Iterator[dict[str, Any]]:
    """Everything that is no GEMM, by phase where it differs; [c0, c1, c2] of 1, units and units squared."""
    per = t.seq or 1

    def tokens(name: str, op: str, read: float, written: float, flops: float, count: int, fixed: float = 0) -> Any:
        """An op that reads, writes and computes so much for each token."""
        moved = [width * fixed, per * width * (read + written)]
        return {"name": name, "op": op, "bytes": moved, "flops": [0, per * flops], "count": count}

    if t.vocab:
        yield tokens("embedding", "embedding", t.hidden, t.hidden, 0, 1)
    flops = NORM_FLOPS[t.norm] * t.hidden
    yield tokens("norm", f"{t.norm}-norm", t.hidden, t.hidden, flops, t.norms * t.layers + 1, fixed=t.hidden)
    inner, kv = t.heads * t.head_dim, t.kv_heads * t.head_dim
    if t.qk_norm:
        yield tokens("qk_norm", f"{t.norm}-norm", inner + kv, inner + kv, NORM_FLOPS[t.norm] * (inner + kv), t.layers)
    if t.rope:
        yield tokens("rope", "rotary positions", inner + kv, inner + kv, 3 * (inner + kv), t.layers)
    decoded = [phase for phase, mode in t.modes.items() if mode == "decode"]
    cached = [phase for phase, mode in t.modes.items() if mode in ("prefill", "decode")]
    if decoded:
        yield tokens("kv_cache", "write to the key/value cache", 2 * kv, 2 * kv, 0, t.layers) | {"phases": cached}
    yield from _softmaxes(t, width, decoded)
    yield tokens("residual", "add", 2 * t.hidden, t.hidden, t.hidden, (3 if t.cross else 2) * t.layers)
    op = f"{t.activation}{' and gate' if t.gated else ''}"
    for name, ffn, count in _activations(t):
        per_element = ACTIVATION_FLOPS[t.activation] + t.gated
        yield tokens(name, op, (1 + t.gated) * ffn, ffn, per_element * ffn, count)
    if t.experts:
        moe = t.experts
        yield tokens("routing", "softmax, top-k and permutation", moe.count + 2 * t.hidden,
                     (1 + moe.per_token) * t.hidden, 5 * moe.count + moe.per_token * t.hidden, moe.layers)  # fmt: skip


def _activations(t: Tower) -> Iterator[tuple[str, int, int]]:
    """(name, width per token, layers) of each activation function."""
    moe = t.experts
    if t.layers > (moe.layers if moe else 0):
        yield "activation", t.ffn, t.layers - (moe.layers if moe else 0)
    if moe:
        yield "experts.activation", moe.per_token * moe.ffn, moe.layers
        if moe.shared:
            yield "shared.activation", moe.shared, moe.layers


def _softmaxes(t: Tower, width: float, decoded: list[str]) -> Iterator[dict[str, Any]]:
    """The softmax over the scores, which grows with the square of a sequence."""
    whole = [phase for phase, mode in t.modes.items() if mode in ("prefill", "encode")]
    if whole:
        yield {"name": "softmax", "op": "softmax", "bytes": [0, 0, 2 * width * t.heads], "flops": [0, 0, 5 * t.heads],
               "count": t.layers, "phases": whole}  # fmt: skip
    images = [phase for phase, mode in t.modes.items() if mode == "image"]
    if images:
        scores = t.heads * t.seq**2
        yield {"name": "softmax", "op": "softmax", "bytes": [0, 2 * width * scores], "flops": [0, 5 * scores],
               "count": t.layers, "phases": images}  # fmt: skip
    if decoded:
        for name, keys, count in _decoded(t):
            scores = t.heads * keys
            yield {"name": f"{name}softmax", "op": "softmax", "bytes": [0, 2 * width * scores],
                   "flops": [0, 5 * scores], "count": count, "phases": decoded}  # fmt: skip
