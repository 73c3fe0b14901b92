"""``sparsesim sweep``: every point of a sweep file, on all cores or a cluster, into a store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparsesim.cli import options as opt
from sparsesim.cli.output import JsonTarget, progress, say
from sparsesim.errors import Problem, UserError

if TYPE_CHECKING:
    from sparsesim.sweep.spec import SweepSpec

__all__ = ["Cluster", "Jobs", "Out", "SweepFile", "check_jobs", "folder_of", "register"]

EXAMPLE = "Example: sparsesim sweep sweeps/a100_designs.toml --out out/a100_designs"
MOST_JOBS = 1024

SweepFile = Annotated[Path, typer.Argument(metavar="FILE", help="Sweep file (.toml, .yaml); see docs/sweeps.md.")]
Out = Annotated[
    str | None,
    typer.Option("--out", metavar="DIR", help="The store; by default out/<name of FILE>. An unfinished one goes on."),
]
Jobs = Annotated[int | None, opt.integer("--jobs", "Processes; by default one per core.")]
Cluster = Annotated[
    str | None,
    typer.Option("--cluster", metavar="ADDRESS", help="Dask scheduler (tcp://…), or local: a Dask cluster here."),
]
Retry = Annotated[bool, typer.Option("--retry-failed", help="Run points again that failed before.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check the file and count its points; run nothing.")]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("sweep", epilog=EXAMPLE)(sweep)


def check_jobs(jobs: int | None) -> int:
    """The number of processes; raises `UserError`."""
    if jobs is None:
        return os.cpu_count() or 1
    if not 1 <= jobs <= MOST_JOBS:
        raise UserError(Problem.line("--jobs", "", f"an integer from 1 to {MOST_JOBS}", jobs))
    return jobs


def folder_of(out: str | None, file: Path) -> Path:
    """Where the store is."""
    if out is not None and not out.strip():
        raise UserError(Problem.line("--out", "", "a folder", out))
    return Path(out) if out is not None else Path("out") / file.stem


def sweep(
    file: SweepFile,
    out: Out = None,
    jobs: Jobs = None,
    cluster: Cluster = None,
    retry_failed: Retry = False,
    dry_run: DryRun = False,
    json: opt.Json = None,
) -> None:
    """Simulate every design point of FILE; stop and start again at will, no finished point is run twice."""
    target = JsonTarget.parse(json)
    count = check_jobs(jobs)
    folder = folder_of(out, file)
    from sparsesim.sweep.driver import run_sweep
    from sparsesim.sweep.spec import read_spec

    spec = read_spec(file)
    if dry_run:
        _count(spec, target)
        return
    with progress("sweeping") as report:
        try:
            summary = run_sweep(spec, folder, count, cluster, report, retry_failed)
        except KeyboardInterrupt:
            again = f"sparsesim sweep {file} --out {folder}"
            typer.echo(f"stopped; finished points are in {folder}. To go on: {again}", err=True)
            raise
    if target.write({"store": str(folder), "name": spec.name, "jobs": count, "cluster": cluster, **summary.to_dict()}):
        earlier = f", {summary.before} of them earlier" if summary.before else ""
        say(f"{spec.name}: {summary.done} points{earlier}, {summary.failed} failed; {summary.seconds:.1f} s")
        say(f"sub-problems: {summary.needed} in the points of this run, {summary.run} simulated")
        say(f"store: {folder}; ask it with: sparsesim query {folder}")


def _count(spec: SweepSpec, target: JsonTarget) -> None:
    from sparsesim.sweep.design import Design

    design = Design(spec)
    boards = int(design.group[-1]) + 1
    if target.write({"name": spec.name, "design": spec.kind, "points": len(design), "boards": boards}):
        say(f"{spec.name}: {len(design)} points ({spec.kind}) on {boards} boards")
