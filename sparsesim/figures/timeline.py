"""SM timeline of one launch: what each CTA on a few SMs does, the dense run above the sparse one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from sparsesim.chrometrace import lanes
from sparsesim.device.engine import TICKS
from sparsesim.device.simulate import LaunchResult
from sparsesim.figures.style import IDLE, INK, MUTED, OWNER_COLOURS, new_figure, styled

__all__ = ["draw_timeline"]

ROWS = 8
ROW_HEIGHT = 0.8
PHASES = ("prologue", "tensor", "epilogue")
PHASE_LABELS = {
    "prologue": "prologue: first loads",
    "tensor": "main loop",
    "epilogue": "epilogue: output",
}


@styled
def draw_timeline(
    dense: LaunchResult,
    sparse: LaunchResult,
    title: str | None = None,
    context: str = "",
    sms: Sequence[int] | None = None,
) -> Figure:
    """Draw both launches on one time axis.

    A row is an SM, with a lane for each CTA that it runs at the same time.

    Parameters
    ----------
    dense, sparse : LaunchResult
        With their timelines (``Device.launch(..., keep_timeline=True)``), simulated in full.
    title : str, optional
        Default: device time of both launches.
    context : str
        What was simulated.
    sms : sequence of int, optional
        SMs to show; default: eight, evenly spaced over the device.

    Raises
    ------
    ValueError
        A launch has no timeline, or was extrapolated and so has no complete one.
    """
    for name, launch in (("dense", dense), ("sparse", sparse)):
        if launch.timeline is None:
            raise ValueError(f"{name}: expected a launch with its timeline, found none")
        if launch.extrapolated:
            raise ValueError(f"{name}: expected a launch that was simulated in full, found an extrapolated one")
    shown = list(sms) if sms is not None else _spread(dense.sms)
    end_us = max(dense.seconds, sparse.seconds) * 1e6
    figure, axes = new_figure(
        title or f"Dense keeps the SMs for {dense.seconds * 1e6:.1f} µs, sparse for {sparse.seconds * 1e6:.1f} µs",
        context or f"{dense.kernel.name} and {sparse.kernel.name}",
        2.2 + 2 * 0.23 * len(shown),
        2,
        1,
        sharex=True,
    )
    for ax, name, launch in zip(axes, ("dense", "sparse"), (dense, sparse), strict=True):
        _panel(ax, launch, shown)
        ax.set_title(
            f"{name}: {launch.kernel.name}, {launch.ctas} CTAs on {launch.sms} SMs, up to {launch.slots} per SM"
        )
        ax.set_xlim(0.0, end_us * 1.02)
    axes[-1].set_xlabel("time since the launch's first CTA, µs")
    handles = [Patch(facecolor=OWNER_COLOURS[phase], edgecolor="white", label=PHASE_LABELS[phase]) for phase in PHASES]
    handles.append(Patch(facecolor=IDLE, label="no CTA"))
    figure.legend(handles=handles, loc="outside lower center", ncols=4)
    return figure


def _spread(count: int) -> list[int]:
    """At most `ROWS` SMs, evenly spaced, the first and the last among them."""
    return sorted({round(sm) for sm in np.linspace(0, count - 1, min(ROWS, count))})


def _panel(ax: Axes, launch: LaunchResult, shown: Sequence[int]) -> None:
    """Draw the rows of one launch."""
    assert launch.timeline is not None
    to_us = 1e6 / (TICKS * launch.clock_hz)
    end_us = launch.seconds * 1e6
    for row, sm in enumerate(shown):
        ax.broken_barh([(0.0, end_us)], (row - ROW_HEIGHT / 2, ROW_HEIGHT), facecolor=IDLE)
        ctas = launch.timeline[launch.timeline[:, 0] == sm]
        ctas = ctas[np.argsort(ctas[:, 1], kind="stable")]
        places = lanes(ctas[:, [1, 4]].tolist())
        height = ROW_HEIGHT / (max(places, default=0) + 1)
        for lane in sorted(set(places)):
            mine = ctas[[of == lane for of in places]] * to_us
            place = (row - ROW_HEIGHT / 2 + lane * height, height)
            for begin, phase in enumerate(PHASES, start=1):
                spans = list(zip(mine[:, begin], mine[:, begin + 1] - mine[:, begin], strict=True))
                ax.broken_barh(spans, place, facecolor=OWNER_COLOURS[phase])
            whole = list(zip(mine[:, 1], mine[:, 4] - mine[:, 1], strict=True))
            ax.broken_barh(whole, place, facecolor="none", edgecolor="white", linewidth=0.5)
    ax.axvline(end_us, color=INK, linewidth=1.2)
    ax.annotate(
        f"{end_us:.1f} µs", (end_us, -0.62), (-4, 0), textcoords="offset points", ha="right", va="bottom",
        fontsize=9.5, color=INK, annotation_clip=False,
    )  # fmt: skip
    ax.set_ylim(len(shown) - 0.45, -1.3)
    ax.set_yticks(range(len(shown)), [str(sm) for sm in shown])
    ax.tick_params(axis="y", length=0)
    ax.set_ylabel("SM, index")
    ax.spines["left"].set_visible(False)
    ax.grid(axis="x", color=MUTED, alpha=0.25)
