"""The figure of docs/serving.md: kernel speedup, and model speedup predicted and measured, by tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from sparsesim.serving.endtoend import Prediction

MODELS = ("Llama3.2-1B", "Llama3.2-3B", "Qwen2.5-14B")
COLOURS = {"measured": "#333333", "predicted": "#0072b2", "kernel": "#d55e00"}


def draw_speedups(predictions: Sequence[Prediction], path: Path) -> None:
    """One panel for each GPU and model, prefill cells of its first type; writes a PNG."""
    cells = [p for p in predictions if p.cell.phase == "prefill"]
    gpus = list(dict.fromkeys(p.cell.gpu for p in cells))
    models = [m for m in MODELS if any(p.cell.model == m for p in cells)]
    figure, axes = plt.subplots(
        len(gpus), len(models), figsize=(9, 2.2 * len(gpus)), sharex=True, sharey="row", squeeze=False
    )
    for row, gpu in zip(axes, gpus, strict=True):
        dtype = next(p.cell.dtype for p in cells if p.cell.gpu == gpu)
        for axis, model in zip(row, models, strict=True):
            found = sorted(
                (p for p in cells if (p.cell.gpu, p.cell.model, p.cell.dtype) == (gpu, model, dtype)),
                key=lambda p: p.cell.tokens,
            )
            tokens = [p.cell.tokens for p in found]
            axis.axhline(1.0, color="#bbbbbb", linewidth=0.8)
            axis.plot(
                tokens, [p.kernel_speedup for p in found], ":", color=COLOURS["kernel"], label="kernels, predicted"
            )
            axis.plot(tokens, [p.speedup for p in found], color=COLOURS["predicted"], label="model, predicted")
            axis.plot(
                tokens, [p.cell.speedup for p in found], "o", ms=4, color=COLOURS["measured"], label="model, measured"
            )
            axis.set_xscale("log", base=2)
            axis.set_title(f"{gpu} {dtype}, {model}", fontsize=8)
            axis.tick_params(labelsize=7)
        row[0].set_ylabel("speedup of 2:4", fontsize=8)
    for axis in axes[-1]:
        axis.set_xlabel("prompt tokens in a step", fontsize=8)
    axes[0][0].legend(fontsize=7, frameon=False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130, metadata={"Software": None})
    plt.close(figure)
