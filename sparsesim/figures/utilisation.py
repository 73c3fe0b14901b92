"""How busy each server is over the time of a launch, the dense baseline above the sparse run."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sparsesim.device.engine import RECORDED
from sparsesim.device.simulate import LaunchResult
from sparsesim.figures.style import DENSE, OWNER_COLOURS, SPARSE, new_figure, styled

__all__ = ["draw_utilisation"]

#: server -> label, colour and line
SERVERS: dict[str, tuple[str, str, Any]] = {
    "tensor": ("tensor cores", OWNER_COLOURS["tensor"], "-"),
    "smem": ("shared-memory ports", OWNER_COLOURS["smem"], "-"),
    "decode": ("metadata decoders", "#B8A800", "--"),
    "l2": ("L2", OWNER_COLOURS["l2"], "-."),
    "dram": ("DRAM", OWNER_COLOURS["dram"], ":"),
}


@styled
def draw_utilisation(dense: LaunchResult, sparse: LaunchResult, title: str | None = None, context: str = "") -> Figure:
    """Draw two launches recorded with ``Device.launch(..., bins=…)`` on one time axis.

    Raises
    ------
    ValueError
        A launch has no record.
    """
    for name, launch in (("dense", dense), ("sparse", sparse)):
        if launch.utilisation is None:
            raise ValueError(f"{name}: expected a launch with its utilisation, found none")
    busy = [100.0 * launch.counters["tensor_busy"] for launch in (dense, sparse)]
    claim = title or f"Dense keeps the tensor cores {busy[0]:.0f} % busy, sparse {busy[1]:.0f} %"
    figure, axes = new_figure(claim, context or f"{dense.kernel.name} and {sparse.kernel.name}", 5.8, 2, 1, sharex=True)
    end = max(dense.seconds, sparse.seconds) * 1e6
    shown: set[str] = set()
    for ax, name, launch, colour in zip(axes, ("dense", "sparse"), (dense, sparse), (DENSE, SPARSE), strict=True):
        use = launch.utilisation
        assert use is not None
        edges = np.arange(len(use.share) + 1) * use.cycles / launch.clock_hz * 1e6
        for server, (_, line_colour, style) in SERVERS.items():
            share = 100.0 * use.share[:, RECORDED.index(server)]
            if share.any():
                shown.add(server)
                ax.plot(edges, np.append(share, share[-1]), drawstyle="steps-post", color=line_colour, linestyle=style,
                        linewidth=1.5)  # fmt: skip
        ax.axvline(launch.seconds * 1e6, color=colour, linewidth=1.2)
        ax.set_title(f"{name}: {launch.kernel.name}, {launch.seconds * 1e6:.1f} µs")
        ax.set_ylim(0.0, 104.0)
        ax.set_xlim(0.0, end * 1.02)
        ax.set_ylabel("busy, %")
        ax.grid(axis="y")
    axes[-1].set_xlabel("time since the launch's first CTA, µs")
    handles = [
        Line2D([], [], color=colour, linestyle=style, label=label)
        for label, colour, style in (SERVERS[server] for server in SERVERS if server in shown)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=5)
    return figure
