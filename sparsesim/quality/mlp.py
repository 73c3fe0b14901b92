"""A multilayer perceptron in NumPy: training dense or by a pruning schedule, one-shot pruning, rounded types.

64 → w → w → classes with ReLU; the two hidden layers are pruned, the output layer stays dense. Weights are (m, k).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sparsesim.quality.pruners import prune_layer
from sparsesim.quality.rounding import round_to
from sparsesim.quality.schedule import DECAY, gradual_kept
from sparsesim.sparsity import Pattern, keep_mask

__all__ = ["Mlp", "MlpBudget", "oneshot", "train"]

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class MlpBudget:
    """What every model is given: passes over the data, samples in a step, peak rate of Adam (cosine to 0)."""

    epochs: int = 30
    batch: int = 64
    rate: float = 3e-3


@dataclass(frozen=True)
class Mlp:
    """Weights (m, k) and biases (m,) of the layers, first to last."""

    weights: tuple[Floats, ...]
    biases: tuple[Floats, ...]

    def inputs(self, x: Floats) -> list[Floats]:
        """Input of each layer, (samples, k), and last the logits."""
        values = [x]
        for i, (w, b) in enumerate(zip(self.weights, self.biases, strict=True)):
            out = values[-1] @ w.T + b
            values.append(np.maximum(out, 0.0) if i + 1 < len(self.weights) else out)
        return values

    def right(self, x: Floats, labels: NDArray[np.int64]) -> Floats:
        """1 where the largest logit is the label's, else 0; shape (samples,)."""
        return (self.inputs(x)[-1].argmax(axis=1) == labels).astype(np.float64)

    def rounded_right(self, x: Floats, labels: NDArray[np.int64], dtype: str) -> Floats:
        """As `right`, with weights and inputs of the hidden layers rounded to `dtype`."""
        for i, (w, b) in enumerate(zip(self.weights, self.biases, strict=True)):
            if i + 1 == len(self.weights):
                return ((x @ w.T + b).argmax(axis=1) == labels).astype(np.float64)
            x = np.maximum(round_to(x, dtype) @ round_to(w, dtype).T + b, 0.0)
        raise AssertionError("no layers")


def _top(weights: Floats, kept: int, m: int) -> Mask:
    return np.ones(weights.shape, dtype=np.bool_) if kept == m else keep_mask(weights, Pattern(kept, m))


def train(
    x: Floats,
    labels: NDArray[np.int64],
    width: int,
    budget: MlpBudget,
    seed: int,
    pattern: str = "dense",
    schedule: str = "",
    progress: Callable[[], None] | None = None,
) -> Mlp:
    """Train for the whole budget, dense or by a schedule ``gradual`` or ``sr-ste``.

    Parameters
    ----------
    x, labels : (samples, features), (samples,)
    seed : draws weights and batches; the batches do not depend on width or schedule
    """
    form = Pattern.parse(pattern)
    sizes = (x.shape[1], width, width, int(labels.max()) + 1)
    start = np.random.default_rng([seed, 0, width])
    params: list[Floats] = [start.normal(0.0, math.sqrt(2.0 / k), (m, k)) for k, m in itertools.pairwise(sizes)]
    params += [np.zeros(m) for m in sizes[1:]]
    layers, hidden = len(sizes) - 1, len(sizes) - 2
    first, second = [np.zeros_like(p) for p in params], [np.zeros_like(p) for p in params]
    order = np.random.default_rng([seed, 1])
    per_epoch = -(-len(x) // budget.batch)
    steps = budget.epochs * per_epoch
    masks: list[Mask] = [np.ones(p.shape, dtype=np.bool_) for p in params[:hidden]]
    kept = form.m
    for step in range(steps):
        if step % per_epoch == 0:
            shuffled = order.permutation(len(x))
        chosen = shuffled[step % per_epoch * budget.batch :][: budget.batch]
        if schedule == "sr-ste":
            masks = [_top(w, form.n, form.m) for w in params[:hidden]]
        elif schedule == "gradual" and (now := gradual_kept(step, steps, form)) != kept:
            kept = now
            masks = [_top(w, kept, form.m) for w in params[:hidden]]
        used = [np.where(mask, w, 0.0) for w, mask in zip(params, masks, strict=False)] + params[hidden:layers]
        values = Mlp(tuple(used), tuple(params[layers:])).inputs(x[chosen])
        shifted = np.exp(values[-1] - values[-1].max(axis=1, keepdims=True))
        delta = shifted / shifted.sum(axis=1, keepdims=True)
        delta[np.arange(len(chosen)), labels[chosen]] -= 1.0
        delta /= len(chosen)
        gradients = [np.zeros(0)] * len(params)
        for i in reversed(range(layers)):
            gradients[i], gradients[layers + i] = delta.T @ values[i], delta.sum(axis=0)
            if i:
                delta = (delta @ used[i]) * (values[i] > 0)
        for i, mask in enumerate(masks if schedule else []):
            if schedule == "sr-ste":
                gradients[i] = gradients[i] + DECAY * np.where(mask, 0.0, params[i])
            else:
                gradients[i] = np.where(mask, gradients[i], 0.0)
        rate = budget.rate * 0.5 * (1.0 + math.cos(math.pi * step / steps))
        correct = math.sqrt(1.0 - 0.999 ** (step + 1)) / (1.0 - 0.9 ** (step + 1))
        for p, g, a, b in zip(params, gradients, first, second, strict=True):
            a += 0.1 * (g - a)
            b += 0.001 * (g * g - b)
            p -= rate * correct * a / (np.sqrt(b) + 1e-8)
    if schedule == "sr-ste":
        masks = [_top(w, form.n, form.m) for w in params[:hidden]]
    final = [np.where(mask, w, 0.0) for w, mask in zip(params, masks, strict=False)] + params[hidden:layers]
    if progress is not None:
        progress()
    return Mlp(tuple(final), tuple(params[layers:]))


def oneshot(model: Mlp, x: Floats, pattern: str, method: str) -> Mlp:
    """The hidden layers pruned in order, each on the inputs that the pruned ones before it give; x calibrates."""
    weights = list(model.weights)
    for i in range(len(weights) - 1):
        inputs = Mlp(tuple(weights), model.biases).inputs(x)[i]
        weights[i] = prune_layer(weights[i], inputs.T @ inputs, pattern, method)
    return Mlp(tuple(weights), model.biases)
