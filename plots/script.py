"""What every script of this folder does when it is run: draw its figure and write it as PNG."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from measured_points import DTYPE, L2, PATTERN, SOURCE, TIMING

from sparsesim.figures import save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OUT = Path("out/figures")


def out_folder(text: str | None) -> Path:
    """Folder that ``--out`` of the command line names."""
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("--out", type=Path, default=OUT, help="folder for the PNG files (default: %(default)s)")
    folder: Path = parser.parse_args().out
    return folder


def measured_context(what: str) -> str:
    """Second line of a figure that shows measured points: what was run, and where the points come from."""
    source = SOURCE.partition(", cuSPARSELt")[0]
    return f"{what}; {DTYPE}, {PATTERN}, {TIMING} timing, {L2} L2\nmeasured: {source}"


def run(name: str, draw: Callable[[], Figure], text: str | None) -> None:
    """Write the figure of `draw` as ``<name>.png`` and say where."""
    print(save(draw(), out_folder(text) / f"{name}.png"))
