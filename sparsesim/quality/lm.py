"""A byte-level language model on the Wikipedia text that gensim ships: architecture, training, held-out bits per byte.

Needs torch and gensim (extra ``quality``). The decoder is that of `sparsesim.serving`: merged qkv, o, a gated MLP, so a
width has the same GEMMs as a served model of that shape. Every model sees the same batches in the same order.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sparsesim.quality.pruners import prune_layer
from sparsesim.quality.schedule import DECAY, gradual_kept
from sparsesim.sparsity import Pattern

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Budget", "Text", "Trained", "articles", "digest_of", "load_text", "oneshot", "train"]

Bytes = NDArray[np.uint8]
HEAD_DIM = 16
#: gensim's excerpt of a dump of the English Wikipedia
DUMP = "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"


@dataclass(frozen=True)
class Budget:
    """What every model is given.

    Parameters
    ----------
    steps, batch, context : optimiser steps, windows in a step, bytes in a window
    rate : peak of AdamW's learning rate; a linear warm-up of 5 %, then a cosine to 5 % of it
    layers : decoder blocks
    """

    steps: int = 1500
    batch: int = 12
    context: int = 64
    rate: float = 2e-3
    layers: int = 2


@dataclass(frozen=True)
class Text:
    """Articles of a text, some held out.

    `windows` (w, context + 1) are held-out windows, evenly placed in each held-out article; `slices` their articles.
    """

    train: Bytes
    windows: Bytes
    slices: tuple[str, ...]
    articles: int
    held_out: int
    sha256: str


@dataclass
class Trained:
    """A trained model: the module, and the inputs' Gram matrices (k, k) of its linear layers, by name."""

    module: Any
    grams: dict[str, NDArray[np.float64]] = field(default_factory=dict)


def articles() -> list[tuple[str, bytes]]:
    """(title, text without markup) of gensim's articles of more than 4 KiB; each third one is for held-out data."""
    from gensim.corpora.wikicorpus import extract_pages, filter_wiki
    from gensim.test.utils import datapath
    from gensim.utils import open as smart_open

    texts: list[tuple[str, bytes]] = []
    with smart_open(datapath(DUMP), "rb") as dump:
        for title, body, _ in extract_pages(dump, filter_namespaces=("0",)):
            plain = filter_wiki(body).encode()
            if len(plain) > 4096:
                texts.append((title, plain))
    return texts


def digest_of(texts: list[tuple[str, bytes]]) -> str:
    """SHA-256 of the articles' text."""
    return hashlib.sha256(b"\0".join(plain for _, plain in texts)).hexdigest()


def load_text(context: int = 64, most: int = 16, windows: int = 16) -> Text:
    """The articles; each third one is held out, and `windows` windows from at most `most` of those."""
    texts = articles()
    held = [pair for i, pair in enumerate(texts) if i % 3 == 2]
    train = b"\n".join(plain for i, (_, plain) in enumerate(texts) if i % 3 != 2)
    rows, names = [], []
    for title, plain in held[:most]:
        data = np.frombuffer(plain, dtype=np.uint8)
        for start in np.linspace(0, len(data) - context - 1, windows).astype(int):
            rows.append(data[start : start + context + 1])
            names.append(title)
    train_bytes = np.frombuffer(train, dtype=np.uint8)
    return Text(train_bytes, np.stack(rows), tuple(names), len(texts), len(held), digest_of(texts))


def _module(width: int, layers: int, context: int) -> Any:
    """The decoder as a torch module; `linears` of it are what is pruned."""
    import torch
    from torch import nn
    from torch.nn import functional

    heads, ffn = width // HEAD_DIM, 2 * width

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
            self.qkv = nn.Linear(width, 3 * width, bias=False)
            self.o = nn.Linear(width, width, bias=False)
            self.gate_up = nn.Linear(width, 2 * ffn, bias=False)
            self.down = nn.Linear(ffn, width, bias=False)

        def forward(self, x: Any) -> Any:
            rows, length, _ = x.shape
            q, k, v = self.qkv(self.norm1(x)).view(rows, length, 3, heads, HEAD_DIM).permute(2, 0, 3, 1, 4)
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.o(mixed.transpose(1, 2).reshape(rows, length, width))
            gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
            return x + self.down(functional.silu(gate) * up)

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.position = nn.Embedding(256, width), nn.Parameter(torch.zeros(context, width))
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, 256, bias=False)
            for parameter in self.parameters():
                if parameter.ndim == 2:
                    nn.init.normal_(parameter, std=0.02 if parameter.shape[0] in (256, context) else width**-0.5)

        def forward(self, x: Any) -> Any:
            x = self.embed(x) + self.position[: x.shape[1]]
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    return Decoder()


def linears(module: Any) -> dict[str, Any]:
    """The layers that are pruned: all of the blocks', not embedding and output layer."""
    return {name: layer for name, layer in module.named_modules() if name.rpartition(".")[2] in _PRUNED}


_PRUNED = ("qkv", "o", "gate_up", "down")


def train(
    text: Text,
    width: int,
    budget: Budget,
    seed: int,
    pattern: str = "dense",
    schedule: str = "",
    progress: Callable[[int, int], None] | None = None,
) -> Trained:
    """Train a model of `width` for the whole budget, dense or by a schedule ``gradual`` or ``sr-ste``.

    `seed` draws the weights and the batches; the batches do not depend on width or schedule.
    """
    import torch
    from torch.nn import functional
    from torch.nn.utils import parametrize

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    form = Pattern.parse(pattern)
    module = _module(width, budget.layers, budget.context)
    pruned = linears(module) if schedule else {}
    if schedule == "sr-ste":
        for layer in pruned.values():
            parametrize.register_parametrization(layer, "weight", _straight_through(form))
    optimiser = torch.optim.AdamW(module.parameters(), lr=budget.rate, betas=(0.9, 0.95), weight_decay=0.01)
    draws = np.random.default_rng([seed, 1])
    masks: dict[str, Any] = {}
    kept = form.m
    for step in range(budget.steps):
        scale = min(1.0, (step + 1) / (0.05 * budget.steps))
        scale *= 0.05 + 0.95 * 0.5 * (1.0 + math.cos(math.pi * step / budget.steps))
        for group in optimiser.param_groups:
            group["lr"] = budget.rate * scale
        if schedule == "gradual" and (now := gradual_kept(step, budget.steps, form)) != kept:
            kept = now
            masks = {name: _top(layer.weight, kept, form.m) for name, layer in pruned.items()}
            _apply(pruned, masks)
        starts = draws.integers(0, len(text.train) - budget.context - 1, budget.batch)
        batch = torch.from_numpy(np.stack([text.train[s : s + budget.context + 1] for s in starts]).astype(np.int64))
        loss = functional.cross_entropy(module(batch[:, :-1]).reshape(-1, 256), batch[:, 1:].reshape(-1))
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimiser.step()
        _apply(pruned, masks)
        if progress is not None and (step + 1) % 50 == 0:
            progress(step + 1, budget.steps)
    if schedule == "sr-ste":
        for layer in pruned.values():
            parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)
    return Trained(module)


def _top(weight: Any, kept: int, m: int) -> Any:
    """Boolean mask of the `kept` largest magnitudes in each group of m along the in features."""
    import torch

    groups = weight.detach().abs().view(weight.shape[0], -1, m)
    mask = torch.zeros_like(groups, dtype=torch.bool)
    return mask.scatter_(2, groups.topk(kept, dim=2).indices, True).view_as(weight)


def _apply(layers: dict[str, Any], masks: dict[str, Any]) -> None:
    import torch

    with torch.no_grad():
        for name, mask in masks.items():
            layers[name].weight.mul_(mask)


def _straight_through(form: Pattern) -> Any:
    """The SR-STE parametrisation of a weight: masked forward, gradient to all, decay of the masked."""
    import torch

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, weight: Any) -> Any:
            mask = _top(weight, form.n, form.m)
            ctx.save_for_backward(weight, mask)
            return weight * mask

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            weight, mask = ctx.saved_tensors
            return gradient + DECAY * weight.masked_fill(mask, 0.0)

    class Masked(torch.nn.Module):
        def forward(self, weight: Any) -> Any:
            return Function.apply(weight)

    return Masked()


def bits_per_byte(module: Any, windows: Bytes) -> NDArray[np.float64]:
    """Mean bits per predicted byte of each window, shape (windows,)."""
    import torch
    from torch.nn import functional

    rows = torch.from_numpy(windows.astype(np.int64))
    with torch.no_grad():
        logits = module(rows[:, :-1])
        loss = functional.cross_entropy(logits.transpose(1, 2), rows[:, 1:], reduction="none").mean(dim=1)
    return np.asarray(loss, dtype=np.float64) / math.log(2.0)


def oneshot(trained: Trained, text: Text, budget: Budget, pattern: str, method: str, windows: int = 128) -> Any:
    """A copy of a dense model, pruned after training.

    Layer by layer in order of execution; each layer's Gram matrix is taken with the layers before it already pruned,
    from `windows` training windows.
    """
    import copy

    import torch

    module = copy.deepcopy(trained.module)
    draws = np.random.default_rng(7)
    starts = draws.integers(0, len(text.train) - budget.context - 1, windows)
    rows = torch.from_numpy(np.stack([text.train[s : s + budget.context] for s in starts]).astype(np.int64))
    for layer in linears(module).values():
        gram = None
        if method != "magnitude":
            taken: list[Any] = []

            def take(_: Any, inputs: Any, taken: list[Any] = taken) -> None:
                # returns None: what a hook returns would replace the layer's input
                flat = inputs[0].reshape(-1, inputs[0].shape[-1]).double()
                taken.append((flat.T @ flat).numpy())

            hook = layer.register_forward_pre_hook(take)
            with torch.no_grad():
                module(rows)
            hook.remove()
            gram = taken[0]
        weights = layer.weight.detach().double().numpy()
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(prune_layer(weights, gram, pattern, method)))
    return module
