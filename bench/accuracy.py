"""Compare the model with all measured files.

Usage: python bench/accuracy.py MEASURED_FOLDER [--jobs N]

Writes docs/accuracy.md, its figures, docs/accuracy_levels.json (what the next run compares with),
sparsesim/residuals.toml, the rows and levels that `make test` holds (tests/data), and the README's table.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import sys
from pathlib import Path

from accuracy_carried import write_carried
from accuracy_figures import draw_change, draw_scatter
from accuracy_groups import (
    bucket,
    coverage,
    grouped,
    levels,
    path_of,
    quantiles,
    steps_right,
    summary,
    table,
    untouched_gpus,
    wave_steps,
)

from sparsesim._version import __version__
from sparsesim.hardware import load_gpu
from sparsesim.measured import read_measured
from sparsesim.uncertainty import RESIDUALS, held_out, interval_from
from sparsesim.validate import Prediction, predict_rows, speedup_groups

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "accuracy.md"
LEVELS = ROOT / "docs" / "accuracy_levels.json"
SCATTER = ROOT / "docs" / "figures" / "accuracy_scatter.png"
CHANGE = ROOT / "docs" / "figures" / "accuracy_change.png"
README = ROOT / "README.md"
CORE = re.compile(r"slidesparse_")
WORST = 20
#: how the `rows` of fitted values call the files of a GPU, where not by the GPU's name
FILES_OF = {"a100_pcie_80gb": "slidesparse_a100_pcie", "a100_sxm4_80gb": "a100_sxm"}
GAPS = """\
## What is not explained

- a100_pcie_80gb, n of 64 and 128, all types: 20 to 30 % too fast. Times are near the sum of reading and multiplying,
  where the model overlaps both; latencies, barriers and read rates within their measured ranges do not give that.
- a100_pcie_80gb, f16 sparse, m >= 16384: 25 % too fast. The i8 kernels do not fall with m at all, so it is an order of
  tiles; the one that is modelled (all rows of the weight, then the next columns) costs less than measured.
- a100_pcie_80gb, i8 of 100 us and more: dense 13 % too fast, sparse 6 % too slow. One energy per multiplication cannot
  give both: measured, a dense one costs more than a sparse one.
- h100_pcie, bf16 sparse, n <= 128, weights beyond L2: 0.4 to 0.6 too fast (ln); measured at half of the DRAM rate.
- h100_pcie, dense of 10 to 100 us: +0.05 to +0.1 for bf16, -0.1 for i8, whose small kernels are guessed.
- rtx4090, 8-bit sparse, n <= 512: measured times jump between 1 and 12 times those of a larger problem of the same
  file; the model follows the smooth part.
- rtx4090, f16 and bf16, m = 27648: measured 1.34x at any n, which is what DRAM allows if the weight is re-read for
  every column of tiles; the same kernels at m = 16384 show no such fall.
- b200 of 8 to 20 us: measured times are multiples of 2.05 us, which is up to 10 % of them. e2m1: 13 % too fast sparse.
- XLA rows (h100_sxm5 and b200, kernel timing, cold): 2 to 3 us too fast, tf32 on H100 more. Rows of the same timing and
  L2 state out of running models do not show it, so it is what an isolated kernel costs, which no column tells.
- a100 and l40s i8 dense in small launches (PyTorch rows): these carry quantisation kernels that the model does not add.
- t4, v100: nothing was fitted; i8 on t4 is off by a factor of 3.
"""


def readme_table(predictions: list[Prediction]) -> str:
    """The README's table: core rows of 10 us and more."""
    core = [p for p in predictions if CORE.search(p.row.file) and p.row.time_us >= 10.0]
    by_path = grouped(core, lambda row: (row.gpu, row.dtype, path_of(row)))
    speedups = {(g["gpu"], g["dtype"]): g for g in speedup_groups(core)}
    rows = []
    for gpu, dtype in dict.fromkeys(key[:2] for key in by_path):

        def cell(path: str, gpu: str = gpu, dtype: str = dtype) -> str:
            members = by_path.get((gpu, dtype, path), [])
            return f"{summary(members)['male']:.3f} ({len(members)})" if members else "–"

        pair = speedups.get((gpu, dtype))
        rows.append(
            (
                gpu,
                dtype,
                cell("sparse"),
                cell("dense"),
                f"{pair['male']:.3f}" if pair else "–",
                f"{pair['sign_accuracy']:.0%}" if pair else "–",
            )
        )
    return table(rows, ("GPU", "dtype", "sparse (rows)", "dense (rows)", "speedup", "right side of 1"))


def write_residuals(table_of: dict[str, dict[str, dict[str, tuple[float, float]]]]) -> None:
    """Write the quantiles of `accuracy_groups.quantiles` as TOML."""
    lines = [
        "# Written by bench/accuracy.py: 5 % and 95 % quantiles of ln(predicted / measured), over the shapes that",
        "# `sparsesim.uncertainty.held_out` does not hold out.",
        f'version = "{__version__}"',
    ]
    for name, paths in table_of.items():
        for path, cells in paths.items():
            lines += ["", f"[quantiles.{name}.{path}]"]
            lines += [f"{size} = [{low:.4f}, {high:.4f}]" for size, (low, high) in cells.items()]
    RESIDUALS.write_text("\n".join(lines) + "\n", encoding="utf-8")


def page(predictions: list[Prediction], skipped: list[dict[str, str]], inside: list) -> str:
    """docs/accuracy.md."""
    long = [p for p in predictions if p.row.time_us >= 10.0]
    protocol = grouped(
        long, lambda row: (row.gpu, row.dtype, path_of(row), row.timing, row.l2, row.clock.split(":")[0])
    )
    rows = []
    for key, members in protocol.items():
        s = summary(members)
        rows.append((*key, len(members), f"{s['male']:.3f}", f"{s['p90']:.3f}", f"{s['bias']:+.3f}"))
    sizes = []
    for (family, path), members in grouped(predictions, lambda row: (load_gpu(row.gpu).family, path_of(row))).items():
        for size in ("<10", "10-30", "30-100", "100-1000", ">1000"):
            chosen = [p for p in members if bucket(p.row.time_us) == size]
            if len(chosen) >= 10:
                s = summary(chosen)
                sizes.append((family, path, size, len(chosen), f"{s['male']:.3f}", f"{s['bias']:+.3f}"))
    names = sorted({p.row.gpu for p in long})
    clean = untouched_gpus(names, lambda name: FILES_OF.get(name, name))
    untouched = []
    for key, members in grouped(
        [p for p in long if p.row.gpu in clean], lambda row: (row.gpu, row.dtype, path_of(row), row.timing)
    ).items():
        s = summary(members)
        untouched.append((*key, len(members), f"{s['male']:.3f}", f"{s['p90']:.3f}", f"{s['bias']:+.3f}"))
    steps = wave_steps(predictions)
    right, there, near = steps_right(steps)
    worst = sorted(long, key=lambda p: -abs(p.log_error))[:WORST]
    reasons = collections.Counter(item["why"] for item in skipped)
    parts = [
        "# Accuracy",
        "Written by `make accuracy`; do not edit. male = mean |ln(predicted / measured)|, p90 its 90th percentile,\n"
        "bias = median ln(predicted / measured). Rows of 10 µs and more unless said; each under its own protocol.\n"
        "Some values were set by hand on part of these rows (`sparsesim check` lists them): not an error on unseen\n"
        "data.",
        f"{len(predictions)} rows simulated, {len(skipped)} skipped.",
        f"![Predicted over measured](figures/{SCATTER.name})",
        f"![Change against the last run](figures/{CHANGE.name})",
        "## GPUs that no fit used",
        "None of their timings set a value; their files hold datasheet values and those of their family.",
        table(untouched, ("GPU", "dtype", "path", "timing", "rows", "male", "p90", "bias")),
        "## Wave steps",
        f"Times at M + 1 tokens over those at M, all else equal: {len(steps)} measured pairs, {there} of them steps\n"
        f"(more than 10 %). Present or absent as measured: {right / max(len(steps), 1):.0%}. "
        f"Height within 15 %: {near} of {there}.",
        table(
            (
                (r.gpu, r.dtype, f"{r.m}×{r.k}", f"{r.n} to {r.n + 1}", f"{measured:.2f}", f"{predicted:.2f}")
                for r, measured, predicted in steps
                if measured > 1.1 or predicted > 1.1
            ),
            ("GPU", "dtype", "weight m×k", "tokens", "measured ratio", "predicted ratio"),
        ),
        "## Intervals",
        "Share of measured times inside the predicted 90 % interval, over the half of the shapes that the residuals\n"
        "do not come from.",
        table(((f, p, n, f"{share:.1%}") for f, p, n, share in inside), ("family", "path", "rows", "inside")),
        "## By GPU, dtype, path and protocol",
        table(rows, ("GPU", "dtype", "path", "timing", "L2", "clock", "rows", "male", "p90", "bias")),
        "## By measured time",
        table(sizes, ("family", "path", "measured, µs", "rows", "male", "bias")),
        f"## Worst {WORST} rows",
        table(
            (
                (
                    p.row.gpu, p.row.dtype, p.row.pattern, f"{p.row.m}×{p.row.n}×{p.row.k}", p.row.timing,
                    f"{p.row.time_us:.1f}", f"{p.predicted_us:.1f}", f"{p.log_error:+.2f}", p.row.library,
                )
                for p in worst
            ),
            ("GPU", "dtype", "pattern", "m×n×k", "timing", "measured µs", "predicted µs", "ln ratio", "library"),
        ),
        GAPS.strip(),
        "## Skipped rows",
        table(((count, why) for why, count in sorted(reasons.items())), ("rows", "why")),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Run the comparison and write its files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=None)
    options = parser.parse_args()
    files = sorted(options.folder.glob("*/*.csv"))
    if not files:
        sys.exit(f"{options.folder}: no measured files; nothing was written")
    rows = [row for file in files for row in read_measured(file)]

    def progress(done: int) -> None:
        print(f"\r{done} of {len(rows)} rows", end="", file=sys.stderr, flush=True)

    predictions, skipped = predict_rows(rows, progress=progress, jobs=options.jobs)
    print(file=sys.stderr)
    now = levels(predictions)
    before = json.loads(LEVELS.read_text(encoding="utf-8"))["groups"] if LEVELS.is_file() else {}
    learnt = quantiles([p for p in predictions if not held_out(p.row.m, p.row.n, p.row.k)])

    def interval(family: str, sparse: bool, predicted_us: float) -> tuple[float, float]:
        return interval_from(learnt, family, sparse, predicted_us)

    PAGE.write_text(page(predictions, skipped, coverage(predictions, interval)), encoding="utf-8")
    draw_scatter(predictions, SCATTER)
    draw_change(before, now, CHANGE)
    LEVELS.write_text(json.dumps({"version": __version__, "groups": now}, indent=1) + "\n", encoding="utf-8")
    write_residuals(learnt)
    write_carried(predictions)
    text = README.read_text(encoding="utf-8")
    pattern = re.compile(r"\| GPU \| dtype \|.*?(?=\n\n)", re.DOTALL)
    README.write_text(pattern.sub(lambda _: readme_table(predictions), text, count=1), encoding="utf-8")
    print(f"wrote {PAGE}, its figures, {LEVELS}, {RESIDUALS}, tests/data and the table in {README}")


if __name__ == "__main__":
    main()
