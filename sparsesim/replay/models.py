"""From the words of a report to a workload: ``bert-base, 4 x 384 tokens, eager``, ``llama2-7b``, ``sam vit-h``.

Sizes of the models are those of their published configurations, read by the importer of Hugging Face configs; a
network that is only called a CNN is the packaged ResNeXt. Where a report gives no tokens, `PROMPT` stand for a
decoder's prompt and `IMAGES` images for a vision model: one under a builder, whose trtexec takes 1 for a batch that is
left open, more under a framework.
"""

from __future__ import annotations

import json
import re
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sparsesim.errors import UserError
from sparsesim.importers import import_file
from sparsesim.workload import Gemm, OtherOp, load_workload

__all__ = ["Model", "model_of"]

#: images of a builder's batch unless one is named: trtexec sets a dynamic dimension to 1 where no shapes are given
#: (TensorRT, samples/common: default of --shapes), and exports have a batch of 1
BUILDER_IMAGES = 1
#: tokens of a prompt, tokens before a decoded one, tokens of an encoder's sequence, images of a batch
PROMPT, CONTEXT, SEQUENCE, IMAGES = 2048, 512, 384, 32


def _llama(hidden: int, layers: int, heads: int, kv: int, ffn: int, vocab: int, kind: str = "llama") -> dict[str, Any]:
    return {
        "model_type": kind, "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv, "intermediate_size": ffn, "vocab_size": vocab, "hidden_act": "silu",
    }  # fmt: skip


def _bert(hidden: int, layers: int, heads: int) -> dict[str, Any]:
    return {
        "model_type": "bert", "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "intermediate_size": 4 * hidden, "vocab_size": 30522, "hidden_act": "gelu",
    }  # fmt: skip


def _vit(hidden: int, layers: int, heads: int, image: int = 224, patch: int = 16) -> dict[str, Any]:
    return {
        "model_type": "vit", "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "intermediate_size": 4 * hidden, "image_size": image, "patch_size": patch, "hidden_act": "gelu",
    }  # fmt: skip


def _gpt2(hidden: int, layers: int, heads: int, vocab: int = 50257) -> dict[str, Any]:
    return {"model_type": "gpt2", "n_embd": hidden, "n_layer": layers, "n_head": heads, "vocab_size": vocab}


#: words of a description → configuration; the first that is found counts
CONFIGS: tuple[tuple[str, dict[str, Any]], ...] = (
    (r"llama-?3[.\d]*-?70b", _llama(8192, 80, 64, 8, 28672, 128256)),
    (r"llama-?3[.\d]*-?3b", _llama(3072, 28, 24, 8, 8192, 128256)),
    (r"llama-?3[.\d]*-?1b", _llama(2048, 16, 32, 8, 8192, 128256)),
    (r"llama-?3", _llama(4096, 32, 32, 8, 14336, 128256)),
    (r"llama.*70b", _llama(8192, 80, 64, 8, 28672, 32000)),
    (r"llama.*13b", _llama(5120, 40, 40, 40, 13824, 32000)),
    (r"llama|gpt-fast|\b7b\b(?!.*(?:qwen|mistral))", _llama(4096, 32, 32, 32, 11008, 32000)),
    (r"qwen-?3-?0\.6b", _llama(1024, 28, 16, 8, 3072, 151936, "qwen2")),
    (r"qwen-?3-?4b", _llama(2560, 36, 32, 8, 9728, 151936, "qwen2")),
    (r"qwen-?3-?8b", _llama(4096, 36, 32, 8, 12288, 151936, "qwen2")),
    (r"qwen.*72b", _llama(8192, 80, 64, 8, 29568, 152064, "qwen2")),
    (r"qwen.*32b", _llama(5120, 64, 40, 8, 27648, 152064, "qwen2")),
    (r"qwen.*14b", _llama(5120, 48, 40, 8, 13824, 152064, "qwen2")),
    (r"qwen.*\b0\.5b", _llama(896, 24, 14, 2, 4864, 151936, "qwen2")),
    (r"qwen.*\b1\.5b", _llama(1536, 28, 12, 2, 8960, 151936, "qwen2")),
    (r"qwen.*\b3b", _llama(2048, 36, 16, 2, 11008, 151936, "qwen2")),
    (r"qwen", _llama(3584, 28, 28, 4, 18944, 152064, "qwen2")),
    (r"mistral", _llama(4096, 32, 32, 8, 14336, 32000, "mistral")),
    (r"opt-?(?:125m)?\b", _gpt2(768, 12, 12)),
    (r"gpt3?-?843m", _gpt2(1024, 24, 16, 256000)),
    (r"gpt-?j|gpt.*6b", _gpt2(4096, 28, 16, 50400)),
    (r"gpt-?2-?xl|gpt.*1\.5b", _gpt2(1600, 48, 25)),
    (r"gpt", _gpt2(1024, 24, 16)),
    (r"(?:bert|roberta).*large", _bert(1024, 24, 16)),
    (r"bert|roberta", _bert(768, 12, 12)),
    (r"sam\b.*vit-?h|sam\b", _vit(1280, 32, 16, 1024)),
    (r"(?:vit|deit|dino\w*).*-?h\b|vit-huge", _vit(1280, 32, 16, 224, 14)),
    (r"(?:vit|dino\w*)-?(?:l\b|large)", _vit(1024, 24, 16)),
    (r"(?:vit|deit|dino\w*)-?(?:s\b|small)", _vit(384, 12, 6)),
    (r"vit|deit|dino", _vit(768, 12, 12)),
)
#: networks without a packaged description of their own
NETWORKS = r"resnext|resnet|\bcnn\b|network|convnet|vgg"


@dataclass(frozen=True)
class Model:
    """A model's forward pass: its GEMMs, what it does beside them, and what was assumed."""

    name: str
    ops: tuple[Gemm, ...]
    others: tuple[OtherOp, ...]
    note: str


def model_of(text: str, dtype: str, pattern: str, batch: int = 1, images_unless_named: int = IMAGES) -> Model | None:
    """The model that `text` describes; None if it names none that is known.

    `images_unless_named` is the batch of a vision model whose text names none. A tensor-core `dtype` and the pattern
    are those of its prunable weights.
    """
    words = text.lower()
    mlp = re.search(r"hidden (\d+), (?:inner|ffn|intermediate) (\d+)", words) or re.search(r"ffn (\d+)-(\d+)", words)
    sized = re.search(r"(\d+)\s*[x×]\s*(\d+)\s*tokens", words)
    single = re.search(r"(?<![x×\d])\s(\d+)\s*tokens", words)
    images = re.search(r"batch(?: size)?\s*(\d+)", words)
    if mlp:
        tokens = int(sized[1]) * int(sized[2]) if sized else int(single[1]) if single else PROMPT
        hidden, inner = int(mlp[1]), int(mlp[2])
        ops = tuple(
            Gemm(name, m, tokens, k, dtype=dtype, pattern=pattern) for name, m, k in
            (("up", inner, hidden), ("down", hidden, inner))
        )  # fmt: skip
        return Model(f"mlp {hidden}-{inner}", ops, (), f"{tokens} tokens")
    config = next((config for pattern_, config in CONFIGS if re.search(pattern_, words)), None)
    if config is None:
        if not re.search(NETWORKS, words):
            return None
        count = int(images[1]) if images else max(batch, images_unless_named)
        loaded = load_workload(
            "resnext101-32x8d", tokens=count if count in (1, 8, 16, 32, 64) else IMAGES, dtype=dtype, pattern=pattern
        )
        return Model("resnext101-32x8d", loaded.ops, loaded.others, f"the packaged ResNeXt-101 32x8d, {count} images")
    kind = config["model_type"]
    if kind == "bert":
        rows, tokens = (int(sized[1]), int(sized[2])) if sized else (batch, int(single[1]) if single else SEQUENCE)
        found = _imported(config, dtype, pattern, {"encode": (tokens,)})
        return _batched(found, rows, f"{rows} sequences of {tokens} tokens")
    if kind == "vit":
        count = int(images[1]) if images else max(batch, images_unless_named)
        found = _imported(config, dtype, pattern, {"inference": (count,)})
        return replace(found, note=f"{count} images")
    if "decode" in words:
        count = int(images[1]) if images else batch
        found = _imported(config, dtype, pattern, {"decode": (count,)}, CONTEXT)
        note = f"decode of {count} sequences behind {CONTEXT} tokens"
        return replace(found, ops=tuple(op for op in found.ops if op.name.startswith("decode")), note=note)
    tokens = int(sized[1]) * int(sized[2]) if sized else int(single[1]) if single else PROMPT
    found = _imported(config, dtype, pattern, {"prefill": (tokens,)})
    keep = tuple(op for op in found.ops if op.name.startswith("prefill"))
    return replace(found, ops=keep, note=f"a prompt of {tokens} tokens")


def _imported(
    config: dict[str, Any], dtype: str, pattern: str, phases: dict[str, tuple[int, ...]], context: int | None = None
) -> Model:
    """`config` through the importer of Hugging Face configs."""
    wide = "bfloat16" if dtype == "bf16" else "float16"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps({**config, "torch_dtype": wide}), encoding="utf-8")
        found = import_file(path, pattern=pattern, dtype=dtype, phases=phases, context=context)
    if len(found.workload.phases()) < 1:
        raise UserError(f"model {config['model_type']}: expected a phase, found none")
    prefixes = tuple(f"{phase}-" for phase in phases)
    others = tuple(op for op in found.workload.others if op.name.startswith(prefixes) or "/" not in op.name)
    ops = tuple(op for op in found.workload.ops if op.name.startswith(prefixes) or "/" not in op.name)
    return Model(config["model_type"], ops, others, "")


def _batched(model: Model, rows: int, note: str) -> Model:
    """`model` on `rows` sequences: more columns of every layer, more products of attention."""
    ops = tuple(
        replace(op, batch=op.batch * rows) if op.kind == "matmul" else replace(op, n=op.n * rows) for op in model.ops
    )
    others = tuple(replace(op, bytes=None if op.bytes is None else op.bytes * rows) for op in model.others)
    return replace(model, ops=ops, others=others, note=note)
