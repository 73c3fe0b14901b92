"""``sparsesim replay``: run practitioners' reports, and say which come out as reported."""

from __future__ import annotations

from typing import Annotated

import typer

from sparsesim.cli import options as opt
from sparsesim.cli.output import JsonTarget, add_row, check_files, progress, say, show_table, table

__all__ = ["register"]

EXAMPLE = "Example: sparsesim replay cases.yaml --json -"

File = Annotated[str, typer.Argument(metavar="FILE", help="Cases as .yaml or .toml; see docs/stacks.md.")]
Losses = Annotated[
    bool, typer.Option("--losses", help="Name the losses of every sparse case, not only where a case names some.")
]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with status 1 unless every case is ok.")]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("replay", epilog=EXAMPLE)(replay)


def replay(file: File, losses: Losses = False, strict: Strict = False, json: opt.Json = None) -> None:
    """Run cases: path, reason, speedup and losses of each, beside what its report says."""
    target = JsonTarget.parse(json)
    check_files({"--json": target.path}, file)
    from sparsesim.replay import load_cases
    from sparsesim.replay import replay as run

    cases = load_cases(file)
    with progress("replaying") as report:
        outcomes = run(cases, losses, progress=report)
    good = sum(outcome.ok for outcome in outcomes)
    data = {"cases": [outcome.to_dict() for outcome in outcomes], "ok": good, "total": len(outcomes)}
    if target.write(data):
        grid = table("", "case", "path", "reason", "speedup", "why", right=("speedup",))
        for outcome in outcomes:
            speedup = "-" if outcome.speedup is None else f"{outcome.speedup:.2f}"
            mark = "ok" if outcome.ok else "miss"
            add_row(grid, mark, outcome.id, outcome.path or "-", outcome.reason or "-", speedup, outcome.why)
        show_table(f"{file}: {good} of {len(outcomes)} as reported", grid)
        for outcome in outcomes:
            if outcome.losses:
                shares = ", ".join(f"{name} {share:.3f}" for name, share in outcome.losses.items())
                say(f"{outcome.id}: losses {shares}")
    if strict and good < len(outcomes):
        raise typer.Exit(1)
