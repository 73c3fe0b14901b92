"""What all figures share: colours, fonts, sizes, the header, ticks, and how a figure becomes a file.

Nothing here touches matplotlib's global state: `styled` sets the parameters while a figure is drawn and
restores them, and figures are made without pyplot. Colours are those of Okabe and Ito, which stay apart under
the common forms of colour blindness; within a class, tint and hatching tell members apart, so that no reading
hangs on hue alone.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from sparsesim.attribution.causes import CAUSES
from sparsesim.protocol import Protocol
from sparsesim.workload import Gemm

__all__ = [
    "BLUE",
    "CAUSE_COLOURS",
    "CAUSE_LABELS",
    "CLASS_COLOURS",
    "DENSE",
    "DPI",
    "GREEN",
    "GRID",
    "IDLE",
    "INK",
    "MUTED",
    "OWNER_COLOURS",
    "OWNER_HATCHES",
    "OWNER_LABELS",
    "SERIES_COLOURS",
    "SERIES_MARKERS",
    "SPARSE",
    "VERMILLION",
    "WIDTH",
    "conditions",
    "describe",
    "log_ticks",
    "names",
    "new_figure",
    "save",
    "size_label",
    "styled",
]

P = ParamSpec("P")

#: width of every figure [inch]; at 160 dots per inch 1280 pixels
WIDTH = 8.0
DPI = 160

INK = "#222222"
MUTED = "#5c5c5c"
GRID = "#dddddd"
IDLE = "#e3e3e3"

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILLION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"

#: the two runs that every comparison is about
DENSE, SPARSE = ORANGE, BLUE

#: first-principles class -> colour
CLASS_COLOURS = {
    "software": PURPLE,
    "tensor": BLUE,
    "metadata": YELLOW,
    "smem": VERMILLION,
    "l2": "#EE9A66",
    "dram": "#8F3F00",
    "occupancy": ORANGE,
    "launch": SKY,
    "power": GREEN,
}

#: cause -> colour of its class
CAUSE_COLOURS = {cause.id: CLASS_COLOURS[cause.kind] for cause in CAUSES}

#: cause -> name on an axis; causes without an entry go by their id
CAUSE_LABELS = {
    "pattern": "pattern\nsupport",
    "operand": "operand\nport",
    "decode": "metadata\ndecode",
    "metadata": "metadata\nbytes",
    "waves": "waves,\ntail",
    "padding": "tile\npadding",
    "latency": "exposed\nlatency",
    "residency": "CTAs\nper SM",
    "tile": "tile\nchoice",
    "l2": "L2",
    "dram": "DRAM",
    "launch": "launch\ncost",
    "conversion": "added\npadding",
    "power": "power\nlimit",
    "issue": "issue\nrate",
}

#: owner of SM-cycles -> colour: a tint of the class's colour, grey where nothing runs
OWNER_COLOURS = {
    "tensor": BLUE,
    "issue": "#7FB8D8",
    "decode": YELLOW,
    "smem": VERMILLION,
    "l2": "#EE9A66",
    "dram": "#8F3F00",
    "barrier": "#F7D999",
    "prologue": ORANGE,
    "epilogue": "#A87400",
    "idle": IDLE,
}

#: owner -> hatching, for those whose neighbours are of the same class
OWNER_HATCHES = {"issue": "//", "l2": "..", "barrier": "\\\\", "epilogue": "xx"}

#: owner -> name in a legend
OWNER_LABELS = {
    "tensor": "tensor cores",
    "issue": "instruction issue",
    "decode": "metadata decode",
    "smem": "shared-memory port",
    "l2": "wait for L2",
    "dram": "wait for DRAM",
    "barrier": "stage barriers",
    "prologue": "prologue",
    "epilogue": "epilogue",
    "idle": "idle SM",
}

SERIES_COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY)
SERIES_MARKERS = ("o", "s", "^", "D", "v", "P")

#: parameters of matplotlib while a figure is drawn; `Any`, for the type of a key differs between versions
RC: Any = {
    "font.family": ["DejaVu Sans"],
    "font.size": 11.0,
    "axes.labelsize": 11.0,
    "axes.titlesize": 11.0,
    "axes.titlelocation": "left",
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.8,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.labelsize": 10.0,
    "ytick.labelsize": 10.0,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "legend.fontsize": 10.0,
    "legend.frameon": False,
    "text.color": INK,
    "hatch.linewidth": 0.6,
    "lines.linewidth": 2.0,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}

TITLE_SIZE, CONTEXT_SIZE = 13.0, 10.0
TITLE_COLUMNS, CONTEXT_COLUMNS = 70, 100
LINE = 1.3 / 72.0  # height of a line of text [inch] per point of its size
MARGIN = 0.12


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Decorate a drawing function: it runs under the parameters of this module, which are then restored."""

    @wraps(draw)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with matplotlib.rc_context(RC):
            return draw(*args, **kwargs)

    return wrapper


def new_figure(
    title: str,
    context: str,
    height: float,
    rows: int = 1,
    columns: int = 1,
    **subplots: Any,
) -> tuple[Figure, list[Axes]]:
    """An empty figure with its header and `rows` × `columns` axes in reading order.

    Parameters
    ----------
    title : str
        What the figure shows, as a statement.
    context : str
        What was simulated, and under which conditions.
    height : float
        Of the whole figure [inch].
    rows, columns : int
    subplots
        Passed on to `Figure.subplots`, such as ``sharex``.
    """
    head = textwrap.fill(title, TITLE_COLUMNS)
    below = "\n".join(textwrap.fill(line, CONTEXT_COLUMNS) for line in context.splitlines())
    title_height = LINE * TITLE_SIZE * (head.count("\n") + 1)
    header = MARGIN + title_height + LINE * CONTEXT_SIZE * (below.count("\n") + 1) + MARGIN
    layout = ConstrainedLayoutEngine(rect=(0.0, 0.0, 1.0, 1.0 - header / height), h_pad=0.06, w_pad=0.08)
    figure = Figure(figsize=(WIDTH, height), layout=layout)
    FigureCanvasAgg(figure)
    left = MARGIN / WIDTH
    figure.text(left, 1.0 - MARGIN / height, head, fontsize=TITLE_SIZE, fontweight="bold", va="top")
    top = 1.0 - (MARGIN + title_height + 0.03) / height
    figure.text(left, top, below, fontsize=CONTEXT_SIZE, color=MUTED, va="top")
    axes = figure.subplots(rows, columns, squeeze=False, **subplots)
    return figure, list(np.asarray(axes).flat)


def save(figure: Figure, path: str | Path) -> Path:
    """Write a figure as PNG; equal figures give equal bytes. The file appears whole or not at all."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    try:
        with matplotlib.rc_context(RC):
            figure.savefig(part, format="png", dpi=DPI, metadata={"Software": None})
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return path


def log_ticks(ax: Axes, axis: str, low: float, high: float, most: int = 9) -> None:
    """Label a logarithmic axis that spans a small range: at most `most` round factors, and 1."""
    for step in (0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 5.0):
        multiples = np.arange(np.ceil(low / step - 1e-9), np.floor(high / step + 1e-9) + 1) * step
        ticks = [float(tick) for tick in multiples if tick > 0.0]
        if len(ticks) <= most:
            break
    if low <= 1.0 <= high and 1.0 not in ticks:
        ticks = sorted([*ticks, 1.0])
    side = ax.xaxis if axis == "x" else ax.yaxis
    side.set_major_locator(FixedLocator(ticks))
    side.set_major_formatter(FixedFormatter([f"{tick:g}" for tick in np.round(ticks, 3)]))
    side.set_minor_locator(NullLocator())


def size_label(value: float) -> str:
    """A number of elements or tokens, with Ki written as k: 64, 1k, 16k."""
    return f"{value / 1024:g}k" if value >= 1024 and value % 1024 == 0 else f"{value:g}"


def describe(op: Gemm) -> str:
    """The shape, type and pattern of an op in words."""
    shape = f"m = n = k = {op.m}" if op.m == op.n == op.k else f"m = {op.m}, n = {op.n}, k = {op.k}"
    batch = f", batch {op.batch}" if op.batch > 1 else ""
    return f"{shape}{batch}, {op.dtype}, {op.pattern}"


def conditions(protocol: Protocol) -> str:
    """How the times were taken, in words."""
    clock = "" if protocol.locked_hz is None else f", clock {protocol.clock}"
    return f"{protocol.timing} timing, {protocol.l2} L2{clock}"


def names(items: Sequence[str]) -> str:
    """Words joined by commas; a line break within one becomes a space."""
    return ", ".join(" ".join(item.split()) for item in items)
