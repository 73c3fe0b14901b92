"""``sparsesim validate``: measured rows against the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparsesim.cli import options as opt
from sparsesim.cli.output import JsonTarget, add_row, percent, progress, say, show_table, table
from sparsesim.errors import UserError

if TYPE_CHECKING:
    from sparsesim.validate import Validation

__all__ = ["register"]

EXAMPLE = "Example: sparsesim validate measured/sparse/slidesparse_*.csv --json validation.json"
#: rows named for each reason to skip
NAMED = 3

Files = Annotated[
    list[str] | None,
    typer.Argument(metavar="[FILES...]", help="CSV files of kernel timings, or of served models; profiles."),
]
Live = Annotated[
    bool,
    typer.Option("--live", help="Measure on this machine's GPU first (see `measure`); FILES are shapes to measure."),
]
Out = Annotated[
    str,
    typer.Option("--out", metavar="FILE", help="With --live: CSV of the rows; the page stands beside it as .md."),
]
ProfileGpu = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        metavar="GPU",
        help="Of profiles that do not name theirs; a .toml file also stands for rows of its GPU.",
    ),
]
Shapes = Annotated[
    str | None,
    typer.Option(
        "--shapes",
        metavar="FILE",
        help="Workload with the shapes of a profile's GEMM kernels in order of launch, where it records none.",
    ),
]
LiveTiming = Annotated[str, typer.Option("--timing", metavar="WORD", help="With --live: stream, graph, event or host.")]
LiveL2 = Annotated[str, typer.Option("--l2", metavar="WORD", help="With --live: warm, rotating or cold.")]
MinUs = Annotated[
    float,
    typer.Option("--min-us", metavar="US", help="Rows measured below this time enter no group.", parser=opt.number),
]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("validate", epilog=EXAMPLE)(validate)


def validate(
    files: Files = None,
    min_us: MinUs = 10.0,
    live: Live = False,
    out: Out = "live.csv",
    timing: LiveTiming = "stream",
    l2: LiveL2 = "warm",
    gpu: ProfileGpu = None,
    shapes: Shapes = None,
    json: opt.Json = None,
) -> None:
    """Compare the model with measured timings of kernels, or of served models: errors by GPU, type and kind.

    Profiles (ncu --csv, nsys stats and SQLite, PyTorch traces, CUTLASS profiler, cuBLASLt logs) are timings, too, and
    show the kernel that the library picked, and its hardware counters, beside the model's.

    With --live the timings are taken first, on this machine's GPU (by default of square f16 and bf16 shapes), and the
    comparison is also written as a page.
    """
    target = JsonTarget.parse(json)
    from sparsesim.serving.measured import is_serving_file

    if files and not live and is_serving_file(files[0]):
        from sparsesim.cli.validate_serving import run

        run(files, target)
        return
    from sparsesim.api import validate_files

    if live:
        from sparsesim.cli.live import validate_live

        result, page = validate_live(files or [], min_us, out, timing, l2, gpu)
    else:
        if not files:
            raise UserError("FILES: expected at least one CSV file of measured timings (or --live), found none")
        with progress("predicting") as report:
            result, page = validate_files(files, min_us, report, gpu, shapes), None
        if not result.predictions and result.kernels is None:
            why = "; ".join(sorted({item["why"] for item in result.skipped})) or "the files hold none"
            raise UserError(f"{files[0]}: expected a row that the model can predict, found none: {why}")
    if target.write(result.to_dict()):
        show(result, min_us)
        if page is not None:
            say(f"wrote {page}")


def show(result: Validation, min_us: float) -> None:
    """Print the groups, and what was skipped."""
    numbers = ("rows", "male", "p90", "bias", "rank corr.", "sign acc.")
    title = f"Predicted against measured, rows of at least {min_us:g} µs; male = mean |ln(predicted / measured)|"
    grid = table("gpu", "dtype", "kind", *numbers, right=numbers)
    for group in result.groups:
        sign = group.get("sign_accuracy")
        add_row(
            grid,
            group["gpu"],
            group["dtype"],
            group["kind"],
            str(group["rows"]),
            f"{group['male']:.3f}",
            f"{group['p90']:.3f}",
            f"{group['bias']:+.3f}",
            f"{group['rank_correlation']:.3f}",
            "" if sign is None else f"{sign:.3f}",
        )
    show_table(title, grid)
    if result.kernels is not None:
        show_kernels(result.kernels)
    say(f"\n{len(result.predictions)} rows predicted, {len(result.skipped)} skipped")
    reasons: dict[str, list[str]] = {}
    for item in result.skipped:
        reasons.setdefault(item["why"], []).append(item["row"])
    for why, rows in sorted(reasons.items(), key=lambda entry: -len(entry[1])):
        named = ", ".join(rows[:NAMED]) + (", …" if len(rows) > NAMED else "")
        say(f"  {len(rows)} skipped: {why} ({named})")


def show_kernels(kernels: dict[str, Any]) -> None:
    """Print the library's kernels beside the model's, and the counters that both have."""
    grid = table(
        "shape", "library", "tile", "model's tile", "measured µs", "predicted", right=("measured µs", "predicted")
    )
    for check in kernels["checks"]:
        took = check["measured_us"]
        add_row(
            grid,
            f"{check['m']}×{check['n']}×{check['k']} {check['dtype']} {check['pattern']}",
            check["library"]
            + ("" if check["path"] == check["model_path"] else f" {check['path']}, model {check['model_path']}"),
            _tile(check["tile"], check["stages"]),
            _tile(check["model_tile"], check["model_stages"]) + ("" if check["same_tile"] is not False else " ≠"),
            "" if took is None else f"{took:.1f}",
            f"{check['predicted_us']:.1f}",
        )
    show_table("Kernels that the library picked, and the model", grid)
    counted = [check for check in kernels["checks"] if check["counters"]]
    if counted:
        grid = table("shape", "counter", "hardware", "model", right=("hardware", "model"))
        for check in counted:
            for name, pair in check["counters"].items():
                cells = (
                    (f"{pair[side] / 1e6:.1f} MB" if name == "dram_bytes" else percent(pair[side]))
                    for side in ("hardware", "model")
                )
                add_row(
                    grid,
                    f"{check['m']}×{check['n']}×{check['k']} {check['dtype']} {check['pattern']}",
                    name.replace("_", " "),
                    *cells,
                )
        show_table("Hardware counters", grid)
    say(f"\n{kernels['same_tile']} of {kernels['tiles_named']} kernels whose tile is named have the model's")


def _tile(tile: list[int | None] | None, stages: int | None) -> str:
    if tile is None:
        return "not named"
    sides = "×".join(str(side) for side in tile if side)
    return f"{sides}, {stages} stages" if stages else sides
