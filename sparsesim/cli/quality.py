"""``sparsesim quality``: run a study, or read a quality file, and hold every model against its dense baseline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sparsesim.cli import options as opt
from sparsesim.cli.output import (
    JsonTarget,
    add_row,
    check_files,
    output_file,
    progress,
    say,
    show_table,
    table,
    write_file,
)

if TYPE_CHECKING:
    from sparsesim.quality.guardrail import Drift
    from sparsesim.quality.record import QualityFile
    from sparsesim.quality.stats import Interval

__all__ = ["interval_text", "register"]

EXAMPLE = "Example: sparsesim quality digits --seeds 1 --pattern 2:4 --allow 1%"
STYLES = {"pass": "green", "fail": "red", "inconclusive": "yellow"}

Source = Annotated[
    str,
    typer.Argument(metavar="STUDY|FILE", help="digits, lm, magika or smollm (needs extras), or a quality file (JSON)."),
]
Allow = Annotated[
    str, typer.Option("--allow", metavar="LOSS", help="Allowed loss of a task: in the metric's unit, or with %.")
]
AllowSlice = Annotated[
    str | None, typer.Option("--allow-slice", metavar="LOSS", help="Of each slice; by default that of the task.")
]
Only = Annotated[
    list[str] | None, typer.Option("--only", metavar="KEY", help="Only this model/pattern/method; repeat.")
]
Base = Annotated[
    str | None, typer.Option("--baseline", metavar="KEY", help="One baseline for all; by default each one's own.")
]
Patterns = Annotated[
    list[str] | None, typer.Option("--pattern", metavar="N:M", help="Patterns of a study; by default all four.")
]
Seeds = Annotated[int, opt.integer("--seeds", "Seeds of a study.")]
Steps = Annotated[int | None, opt.integer("--steps", "Training steps (lm) or epochs (digits), equal for all models.")]
Out = Annotated[str | None, typer.Option("--out", metavar="FILE", help="Write the study as a quality file.")]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("quality", epilog=EXAMPLE)(quality)


def quality(
    source: Source,
    allow: Allow = "1%",
    allow_slice: AllowSlice = None,
    only: Only = None,
    baseline: Base = None,
    pattern: Patterns = None,
    seeds: Seeds = 3,
    steps: Steps = None,
    out: Out = None,
    json: opt.Json = None,
) -> None:
    """Quality of sparse models beside dense ones of other sizes, and guardrails: drift against the dense baseline.

    Pass where the paired 95 % interval of the loss is wholly inside the allowance, fail where wholly outside.
    """
    target = JsonTarget.parse(json)
    saved = output_file(out, "--out")
    check_files({"--out": saved, "--json": target.path}, source)
    from sparsesim.quality.guardrail import Allowance, check, precisions
    from sparsesim.quality.studies import STUDIES, file_text, load_or_run

    allowed = Allowance.parse(allow, "--allow")
    in_slices = None if allow_slice is None else Allowance.parse(allow_slice, "--allow-slice")
    with progress("training" if source in STUDIES else "reading") as report:
        file = load_or_run(source, seeds, pattern, steps, report)
    if saved is not None:  # at once: what took hours to train outlives a mistake in what follows
        write_file(saved, file_text(file), "--out")
    drifts = check(file, allowed, in_slices, only or (), baseline)
    data = {
        "study": file.study,
        "provenance": file.provenance,
        "values": [{"model": e.key, "task": e.task, "metric": e.metric, **file.own(e).to_dict()} for e in file.entries],
        "drifts": [drift.to_dict() for drift in drifts],
        "precisions": precisions(drifts),
    }
    if target.write(data):
        _show(file, drifts, precisions(drifts), bool(only))


def _show(file: QualityFile, drifts: list[Drift], policy: dict[str, str], some: bool) -> None:
    for task in dict.fromkeys(e.task for e in file.entries):
        dense = [e for e in file.entries if e.task == task and e.dense and not e.dtype]
        if dense and not some:
            grid = table("dense model", dense[0].metric, right=(dense[0].metric,))
            for entry in dense:
                add_row(grid, entry.model, interval_text(file.own(entry)))
            show_table(f"{file.study}, {task}: dense models", grid)
    right = ("loss", "allowed", "slice loss")
    grid = table("model", "loss", "allowed", "verdict", "worst slice", "slice loss", "verdict ", right=right)
    for drift in drifts:
        worst = drift.worst
        slices = ("", "", "") if worst is None else (worst[0], interval_text(worst[1]), str(drift.worst_verdict))
        add_row(
            grid, drift.candidate.key, interval_text(drift.loss), f"{drift.allowed:.4f}", drift.verdict, *slices,
            style=STYLES[drift.verdict],
        )  # fmt: skip
    first = drifts[0]
    show_table(
        f"Loss of {first.candidate.metric} against the dense model of the same size, positive = worse", grid
    )  # fmt: skip
    for dtype, state in policy.items():
        say(f"precision  {dtype}: {state}")
    seeds = min(drift.loss.seeds for drift in drifts)
    paired = all(d.candidate.samples is not None and d.baseline.samples is not None for d in drifts)
    say(
        ("\npaired over held-out samples" if paired else "\nnot paired where a model has no samples")
        + (f" and {seeds} seeds" if seeds > 1 else "; one seed: the noise of training is not in the intervals")
        + "; slices judged together (Bonferroni)"
    )


def interval_text(value: Interval, digits: int = 4) -> str:
    """``0.0123 ± 0.0045``, or the bounds where they are not even; the mean alone where there are none."""
    mean = f"{round(value.mean, digits) + 0.0:.{digits}f}"  # adding 0 turns -0.0 into 0.0
    if value.low is None or value.high is None:
        return mean
    if abs((value.high - value.mean) - (value.mean - value.low)) > 0.02 * (value.high - value.low):
        return f"{mean} ({value.low:.{digits}f} to {value.high:.{digits}f})"
    return f"{mean} ± {(value.high - value.low) / 2:.{digits}f}"
