"""``sparsesim calibrate``: parameters of a GPU fitted to measured rows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparsesim.cli import options as opt
from sparsesim.cli.output import JsonTarget, add_row, progress, say, show_table, table
from sparsesim.errors import UserError
from sparsesim.wording import counted

if TYPE_CHECKING:
    from sparsesim.calibrate import Calibration
    from sparsesim.measured import MeasuredRow

__all__ = ["register"]

EXAMPLE = (
    "Example: sparsesim calibrate measured/sparse/slidesparse_a100_pcie.csv --gpu a100_pcie_80gb --out my_a100.toml"
)
#: contradicting and skipped rows that are named
NAMED = 5
#: rows shown as worst
WORST = 8
#: correlation from which on two parameters are shown as moving together
TIED = 0.5
MOST_JOBS = 8

Files = Annotated[list[str], typer.Argument(metavar="FILES...", help="CSV files of measured timings.")]
LeaveOut = Annotated[
    str | None,
    typer.Option(
        "--leave-out",
        metavar="GPU",
        help="Instead of --gpu: fit the family's values on its other GPUs in FILES, and predict this one.",
    ),
]
Out = Annotated[
    str | None,
    typer.Option("--out", metavar="FILE", help="Write a hardware file (.toml) that extends the GPU."),
]
Parameters = Annotated[
    list[str] | None,
    typer.Option(
        "--parameter",
        metavar="PATH",
        help="Fit this one, e.g. power.mac.f16 (repeatable); by default those that move the rows most.",
    ),
]
Rows = Annotated[int, opt.integer("--rows", "Rows to fit, and as many to hold out.")]
Rounds = Annotated[int, opt.integer("--rounds", "Times to pick kernels anew and fit on.")]
Jobs = Annotated[int | None, opt.integer("--jobs", "Processes; by default one per core, at most 8.")]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("calibrate", epilog=EXAMPLE)(calibrate)


def calibrate(
    files: Files,
    gpu: opt.OptionalGpu = None,
    leave_out: LeaveOut = None,
    out: Out = None,
    parameter: Parameters = None,
    rows: Rows = 120,
    rounds: Rounds = 3,
    jobs: Jobs = None,
    json: opt.Json = None,
) -> None:
    """Fit parameters of a GPU, within their ranges, to measured rows; report the error on rows not fitted.

    Half of the shapes are fitted, the others held out. Takes minutes. Nothing packaged is changed.
    """
    target = JsonTarget.parse(json)
    if (gpu is None) == (leave_out is None):
        found = "neither" if gpu is None else "both"
        raise UserError(f"--gpu, --leave-out: expected one of the two, found {found}")
    from sparsesim.calibrate import calibrate as fit
    from sparsesim.calibrate import check_target
    from sparsesim.hardware import gpu_names, load_gpu

    name = str(gpu or leave_out)
    spec = load_gpu(name)
    base = name
    if out is not None:
        check_target(Path(out), name)
        if name not in gpu_names():
            base = os.path.relpath(Path(name).absolute(), Path(out).absolute().parent)
    measured = _read(files)
    with progress("fitting") as report:
        result = fit(
            measured,
            spec,
            parameters=parameter or None,
            leave_out=leave_out is not None,
            count=rows,
            rounds=rounds,
            jobs=min(os.cpu_count() or 1, MOST_JOBS) if jobs is None else jobs,
            progress=report,
        )
    if out is not None:
        result.write(Path(out), base, spec.title)
    if target.write(result.to_dict()):
        show(result)
        if out is not None:
            say(f"\nwrote {out}")


def _read(files: list[str]) -> list[MeasuredRow]:
    """The rows of all files, or one error with the problems of all."""
    from sparsesim.measured import read_measured

    rows: list[MeasuredRow] = []
    lines: list[str] = []
    seen: set[Path] = set()
    for file in files:
        path = Path(file)
        try:
            if path.resolve() in seen:
                raise UserError(f"{file}: expected each file once, found it twice")
            seen.add(path.resolve())
            rows += read_measured(path)
        except UserError as err:
            lines += err.problems
    if lines:
        raise UserError(lines)
    return rows


def show(result: Calibration) -> None:
    """Print errors before and after, the parameters, and the rows that were left out."""
    errors = ("rows", "male before", "after", "p90 before", " after", "bias before", "after ")
    grid = table("part", "type", "kind", "size", *errors, right=errors)
    for group in result.groups:
        then, now = group["before"], group["after"]
        pairs = [f"{side[key]:{form}}" for key, form in (("male", ".3f"), ("p90", ".3f"), ("bias", "+.3f"))
                 for side in (then, now)]  # fmt: skip
        add_row(
            grid, group["part"].replace("_", "-"), group["dtype"], group["kind"], group["size"], str(group["rows"]),
            *pairs, style="bold" if (group["dtype"], group["kind"], group["size"]) == ("all",) * 3 else None,
        )  # fmt: skip
    on = ", ".join(result.fitted_on)
    show_table(f"{result.gpu}, fitted on {on}; male = mean |ln(predicted / measured)|, by measured size", grid)
    numbers = ("before", "after", "± std. error", "range", "sensitivity", "effect")
    grid = table("parameter", *numbers, "at bound", "moves with", right=numbers)
    for item in result.parameters:
        p = item.parameter
        unit = "" if p.unit == "-" else f" {p.unit}"
        tied = abs(item.correlation) >= TIED
        add_row(
            grid,
            p.path,
            f"{p.start:.4g}",
            f"{item.after:.4g}{unit}",
            f"{item.error:.2g}",
            f"{p.low:g} to {p.high:g}",
            f"{item.sensitivity:+.3f}",
            f"{item.effect:.3f}",
            item.at_bound,
            f"{item.partner} ({item.correlation:+.1f})" if tied else "",
        )
    show_table("Parameters; sensitivity = d mean ln(time) / d ln(value), effect = rms over the whole range", grid)
    grid = table("part", "type", "pattern", "m×n×k", "measured µs", "before", "after", "ln ratio", "kernel",
                 right=("measured µs", "before", "after", "ln ratio"))  # fmt: skip
    for worst in sorted(result.predictions, key=lambda item: -abs(item.log_error))[:WORST]:
        row = worst.row
        add_row(
            grid, worst.part.replace("_", "-"), row.dtype, row.pattern, f"{row.m}×{row.n}×{row.k}",
            f"{row.time_us:.4g}", f"{worst.before_us:.4g}", f"{worst.after_us:.4g}", f"{worst.log_error:+.2f}",
            worst.kernel,
        )  # fmt: skip
    show_table("Rows that the fit leaves worst", grid)
    if result.weak:
        say("\nnot fitted, too little effect: " + ", ".join(f"{path} ({effect:.3f})" for path, effect in result.weak))
    say("\nmale of the fitted rows, round by round: " + ", ".join(f"{value:.4f}" for value in result.history))
    count = len(result.contradictions)
    if count:
        say(f"{counted(count, 'row')} not fitted: slower than a larger shape of the same file")
        for text in (f"  {d['row']}: {d['time_us']:g} µs, {d['larger']}: {d['larger_us']:g} µs"
                     for d in (item.to_dict() for item in result.contradictions[:NAMED])):  # fmt: skip
            say(text)
        if count > NAMED:
            say(f"  and {count - NAMED} more (see --json)")
    for left, why in result.skipped[:NAMED]:
        say(f"skipped {Path(left.file).name}:{left.line}: {why}")
    if len(result.skipped) > NAMED:
        say(f"and {len(result.skipped) - NAMED} more skipped (see --json)")
