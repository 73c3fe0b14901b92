"""Study of the byte-level language model: which models are trained, and their quality file. Extra ``quality``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from sparsesim._version import __version__
from sparsesim.quality.lm import HEAD_DIM, Budget, Text, bits_per_byte, load_text, oneshot, train
from sparsesim.quality.pruners import METHODS, PATTERNS
from sparsesim.quality.record import DecoderShape, Entry, ModelShape, QualityFile, Scale, Task
from sparsesim.quality.schedule import SCHEDULES

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["SCALE", "SCHEDULED", "WIDTHS", "lm_file", "run_lm"]

WIDTHS = (96, 80, 64, 48, 32)
TASK = "wikipedia"
#: (pattern, schedule) that are trained at the largest width
SCHEDULED = tuple((pattern, schedule) for pattern in PATTERNS for schedule in SCHEDULES)
#: width 96 with 2 layers becomes 3072 with 28, the size of Llama-3.2-3B, and so its vocabulary
SCALE = Scale(width=32, depth=14, vocab=128256)

Key = tuple[str, str, str]


def run_lm(
    seeds: int = 3,
    widths: tuple[int, ...] = WIDTHS,
    patterns: Sequence[str] = PATTERNS,
    budget: Budget | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> QualityFile:
    """Train and measure everything; the widest model is pruned.

    Returns
    -------
    QualityFile
        Bits per byte for each seed and held-out window, 4 decimals; slices are articles, and intervals are over them.
    """
    budget = budget or Budget()
    text = load_text(budget.context)
    rows: dict[Key, list[list[float]]] = {}
    total, done = seeds * (len(widths) + sum(pattern in patterns for pattern, _ in SCHEDULED)), 0
    for seed in range(seeds):
        for key, module in _models(text, widths, patterns, budget, seed):
            rows.setdefault(key, []).append(rounded(bits_per_byte(module, text.windows)))
            done += key[2] not in METHODS
            if progress is not None:
                progress(done, total)
    return lm_file(text, budget, seeds, rows)


def rounded(values: NDArray[Any]) -> list[float]:
    """As the file holds them: a ten-thousandth of a bit, far below what a window tells."""
    return [round(float(value), 4) for value in values]


def _models(
    text: Text, widths: tuple[int, ...], patterns: Sequence[str], budget: Budget, seed: int
) -> Iterator[tuple[Key, Any]]:
    """((model, pattern, method), module) of one seed."""
    wide = max(widths)
    for width in widths:
        trained = train(text, width, budget, seed)
        yield (name(width), "dense", "dense"), trained.module
        for pattern in patterns if width == wide else ():
            for method in METHODS:
                yield (name(wide), pattern, method), oneshot(trained, text, budget, pattern, method)
    for pattern, schedule in SCHEDULED:
        if pattern in patterns:
            yield (name(wide), pattern, schedule), train(text, wide, budget, seed, pattern, schedule).module


def name(width: int) -> str:
    """Of the model of a width."""
    return f"lm-{width}"


def lm_file(text: Text, budget: Budget, seeds: int, rows: Mapping[Key, Sequence[Sequence[float]]]) -> QualityFile:
    """The quality file of measured rows, (model, pattern, method) → bits per byte by seed and window."""
    models = dict.fromkeys(key[0] for key in rows)
    return QualityFile(
        study="byte-lm",
        entries=tuple(
            Entry(
                model=model, pattern=pattern, method=method, task=TASK, metric="bits/byte", better="lower",
                samples=tuple(tuple(row) for row in found),
            )
            for (model, pattern, method), found in rows.items()
        ),
        tasks={TASK: Task(slices=text.slices, unit="slice")},
        models={model: ModelShape(decoder=_shape(int(model.removeprefix("lm-")), budget)) for model in models},
        scale=SCALE,
        provenance={
            "data": "Wikipedia articles inside gensim (CC BY-SA, not kept here); each third article held out",
            "articles": text.articles, "held_out_articles": text.held_out, "train_bytes": len(text.train),
            "windows": len(text.windows), "text_sha256": text.sha256, "seeds": list(range(seeds)),
            "budget": asdict(budget), "sparsesim": __version__,
            "packages": {package: version(package) for package in ("numpy", "torch", "gensim")},
        },
    )  # fmt: skip


def _shape(width: int, budget: Budget) -> DecoderShape:
    heads = width // HEAD_DIM
    return DecoderShape(
        layers=budget.layers, hidden=width, heads=heads, kv_heads=heads, head_dim=HEAD_DIM, ffn=2 * width, vocab=256
    )
