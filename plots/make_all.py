"""Draws every figure of this folder, two at a time, and writes the gallery: a page with all of them."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

import script

from sparsesim.figures import save

#: scripts, those that take longest first
SCRIPTS = (
    "quality_frontier",
    "speedup_vs_tokens",
    "breakeven_map",
    "speedup_vs_size",
    "k_expansion",
    "sensitivity_tornado",
    "loss_waterfall",
    "pattern_comparison",
    "whatif_metadata",
    "whatif_smem",
    "utilisation",
    "roofline",
    "cycle_accounting",
    "sm_timeline",
)


GALLERY_HEAD = """# Gallery

Every figure of the project, drawn by the model as it is; `make figures FIGURES=docs/figures` draws them again and
writes this page. Each comes from a script of `plots/`, and what it shows is there in one call.
"""


class Drawn(NamedTuple):
    """A figure that was drawn: its script, file, title (the claim), what was run, and the seconds it took."""

    name: str
    path: Path
    title: str
    context: str
    seconds: float


def make(name: str, folder: Path) -> Drawn:
    """Draw one script's figure."""
    start = time.perf_counter()
    figure = importlib.import_module(name).draw()
    title = " ".join(figure.texts[0].get_text().split())
    context = "; ".join(" ".join(line.split()) for line in figure.texts[1].get_text().split("\n"))
    path = save(figure, folder / f"{name}.png")
    return Drawn(name, path, title, context, time.perf_counter() - start)


def gallery(drawn: Iterable[Drawn], page: Path) -> str:
    """The page with all figures, in the order of their names."""
    parts = [GALLERY_HEAD]
    for item in sorted(drawn):
        text = " ".join((importlib.import_module(item.name).__doc__ or "").split())
        picture = Path(os.path.relpath(item.path, page.parent)).as_posix()
        parts.append(
            f"## {item.title}\n\n![{item.title}]({picture})\n\n{text} {item.context}. `plots/{item.name}.py`\n"
        )
    return "\n".join(parts)


def main() -> None:
    """Draw all, with a line for each as it is done; then write the gallery beside their folder."""
    folder = script.out_folder(__doc__)
    drawn = []
    with ProcessPoolExecutor(max_workers=2) as pool:
        jobs = [pool.submit(make, name, folder) for name in SCRIPTS]
        for done, job in enumerate(as_completed(jobs), start=1):
            drawn.append(job.result())
            print(f"[{done}/{len(jobs)}] {drawn[-1].path} ({drawn[-1].seconds:.1f} s)", flush=True)
    page = folder.parent / "gallery.md"
    part = page.with_name(page.name + ".part")
    part.write_text(gallery(drawn, page), encoding="utf-8")
    part.replace(page)
    print(page)


if __name__ == "__main__":
    main()
