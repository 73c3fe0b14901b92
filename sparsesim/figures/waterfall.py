"""Loss waterfall: from the promised speedup down to what is delivered, cause by cause."""

from __future__ import annotations

import math

from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke

from sparsesim.attribution.causes import CLASSES
from sparsesim.attribution.gemm import Attribution
from sparsesim.figures.style import (
    CAUSE_COLOURS,
    CAUSE_LABELS,
    CLASS_COLOURS,
    INK,
    MUTED,
    conditions,
    describe,
    log_ticks,
    names,
    new_figure,
    styled,
)

__all__ = ["draw_waterfall"]

TOTAL = "#8a8a8a"
BAR = 0.68
#: keeps a number legible on a line
HALO = [withStroke(linewidth=3.0, foreground="white")]


@styled
def draw_waterfall(attribution: Attribution, title: str | None = None) -> Figure:
    """Draw the losses of one op.

    On the logarithmic axis, which starts at the dense baseline's 1×, lengths are ln-shares and add up.

    Parameters
    ----------
    attribution : Attribution
    title : str, optional
        Default: promised and delivered speedup and the largest cause.
    """
    ranked = attribution.ranked()
    nominal, speedup = attribution.nominal_speedup, attribution.speedup
    figure, (ax,) = new_figure(
        title or _claim(attribution),
        f"{attribution.gpu}, {describe(attribution.op)}, {attribution.stack}, " + conditions(attribution.protocol),
        5.2,
    )
    labels = ["promised"]
    level, lowest, highest = nominal, min(1.0, speedup), max(1.0, nominal, speedup)
    ax.bar(0, nominal - 1.0, BAR, bottom=1.0, color=TOTAL, edgecolor=INK, linewidth=0.7)
    ax.annotate(
        f"{nominal:.2f}×",
        (0, max(nominal, 1.0)),
        (0, 3),
        textcoords="offset points",
        ha="center",
        va="bottom",
    )
    for x, (cause, share) in enumerate(ranked, start=1):
        after = level * math.exp(-share)
        ax.plot([x - 1 + BAR / 2, x + BAR / 2], [level, level], color=MUTED, linewidth=0.8)
        ax.bar(
            x, after - level, BAR, bottom=level, color=CAUSE_COLOURS[cause], edgecolor=INK, linewidth=0.7,
            hatch="//" if share < 0.0 else None,
        )  # fmt: skip
        ax.annotate(
            ("▲\n" if share < 0.0 else "") + f"×{math.exp(-share):.3f}", (x, max(level, after)), (0, 3),
            textcoords="offset points", ha="center", va="bottom", fontsize=9.5, path_effects=HALO,
        )  # fmt: skip
        labels.append(CAUSE_LABELS.get(cause, cause))
        level = after
        lowest, highest = min(lowest, level), max(highest, level)
    end = len(ranked) + 1
    ax.plot([end - 1 + BAR / 2, end + BAR / 2], [level, level], color=MUTED, linewidth=0.8)
    ax.bar(end, speedup - 1.0, BAR, bottom=1.0, color=TOTAL, edgecolor=INK, linewidth=0.7)
    ax.annotate(
        f"{speedup:.2f}×", (end, max(speedup, 1.0)), (0, 3), textcoords="offset points", ha="center",
        va="bottom", fontweight="bold",
    )  # fmt: skip
    labels.append("delivered")

    span = math.log(highest / lowest) or 1.0
    bottom = lowest * math.exp(-0.06 * span) if lowest < 1.0 else 1.0
    ax.set_yscale("log")
    ax.set_ylim(bottom, highest * math.exp(0.09 * span))
    log_ticks(ax, "y", bottom, highest * 1.001)
    ax.axhline(1.0, color=INK, linewidth=1.0)
    ax.grid(axis="y")
    ax.set_ylabel("speedup over dense, ×")
    ax.set_xlim(-0.6, end + 0.6)
    crowded = len(labels) > 11
    ax.set_xticks(
        range(len(labels)), labels, rotation=40 if crowded else 0, ha="right" if crowded else "center",
        rotation_mode="anchor" if crowded else "default", fontsize=9.5 if len(labels) > 8 else None,
    )  # fmt: skip
    ax.tick_params(axis="x", length=0)
    unaffected = [CAUSE_LABELS.get(cause, cause) for cause, share in attribution.shares.items() if share == 0.0]
    ax.set_xlabel(
        "cause of loss, coloured by class; lengths are shares of ln(promised / delivered)"
        + (f"\nno share: {names(unaffected)}" if unaffected else "")
    )
    used = {CAUSE_COLOURS[cause] for cause, _ in ranked}
    handles = [
        Patch(facecolor=CLASS_COLOURS[kind], edgecolor=INK, linewidth=0.7, label=kind)
        for kind in CLASSES
        if CLASS_COLOURS[kind] in used
    ]
    if any(share < 0.0 for _, share in ranked):
        handles.append(Patch(facecolor="white", edgecolor=INK, linewidth=0.7, hatch="//", label="▲ dense loses more"))
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 5))
    return figure


def _claim(attribution: Attribution) -> str:
    """Promised and delivered speedup, and the cause with the largest share."""
    ranked = attribution.ranked()
    head = f"{attribution.nominal_speedup:g}× promised, {attribution.speedup:.2f}× delivered"
    if not ranked or ranked[0][1] <= 0.0:
        return head
    label = CAUSE_LABELS.get(ranked[0][0], ranked[0][0])
    return f"{head}; largest loss: {names([label])}"
