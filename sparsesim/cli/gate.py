"""``sparsesim gate``: a release policy against the results of runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sparsesim.cli import options as opt
from sparsesim.cli.output import JsonTarget, add_row, check_files, output_file, say, show_table, table
from sparsesim.outfiles import OutFile

if TYPE_CHECKING:
    from sparsesim.gates import GateReport

__all__ = ["register"]

EXAMPLE = "Example: sparsesim gate policy.toml serving.json quality.json --junit gates.xml"

PolicyFile = Annotated[str, typer.Argument(metavar="POLICY", help="TOML file of gates.")]
Runs = Annotated[list[str], typer.Argument(metavar="RUN...", help="JSON of simulate, gemm or serve, or of quality.")]
Junit = Annotated[str | None, typer.Option("--junit", metavar="FILE", help="Also write JUnit XML to FILE.")]

STYLES = {"pass": "green", "fail": "red", "undecided": "yellow"}


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("gate", epilog=EXAMPLE)(gate)


def gate(policy: PolicyFile, runs: Runs, junit: Junit = None, json: opt.Json = None) -> None:
    """Judge runs by a policy: each gate's value, interval, threshold and margin; who owns it, and the rollback.

    Exit status 0 if all gates pass, 1 if one fails, 3 if one is undecided, 2 if a file cannot be read.
    """
    target = JsonTarget.parse(json)
    xml = output_file(junit, "--junit")
    check_files({"--junit": xml, "--json": target.path}, policy, *runs)
    from sparsesim.errors import UserError
    from sparsesim.gates import judge, junit_xml, load_policy, read_run

    problems: list[str] = []
    documents = []
    loaded = None
    try:
        loaded = load_policy(policy)
    except UserError as error:
        problems += error.problems
    for path in runs:
        try:
            documents.append((path, read_run(path)))
        except UserError as error:
            problems += error.problems
    if problems or loaded is None:
        raise UserError(problems)
    report = judge(loaded, documents)
    beside = [] if xml is None else [OutFile(xml, junit_xml(report), "--junit")]
    if target.write(report.to_dict(), beside):
        show(report)
    if report.exit_status:
        raise typer.Exit(report.exit_status)


def show(report: GateReport) -> None:
    """Print the gates, then what to do about those that do not pass."""
    numbers = ("value", "interval", "threshold", "margin")
    grid = table("gate", "state", *numbers, "owner", "run", right=numbers)
    for verdict in report.verdicts:
        gate = verdict.gate
        values = ("", "", gate.bound, "")
        if verdict.value is not None:
            values = (
                f"{verdict.value:.4g}", f"{verdict.low:.4g} to {verdict.high:.4g}", gate.bound, f"{verdict.margin:+.4g}"
            )  # fmt: skip
        add_row(grid, gate.name, verdict.state, *values, gate.owner, verdict.run, style=STYLES[verdict.state])
    show_table(f"{report.policy.name}: {report.state}", grid)
    for verdict in report.verdicts:
        if verdict.state != "pass":
            say(f"{verdict.state:10} {verdict.gate.name}: {verdict.why}; rollback: {verdict.gate.rollback}")
