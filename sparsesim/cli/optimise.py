"""``sparsesim optimise``: the best design within bounds and budgets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from sparsesim.cli import options as opt
from sparsesim.cli.output import JsonTarget, add_row, progress, say, show_table, table
from sparsesim.cli.sweep import Cluster, Jobs, Out, SweepFile, check_jobs, folder_of

if TYPE_CHECKING:
    from sparsesim.sweep.optimise import Optimum
    from sparsesim.sweep.spec import SweepSpec

__all__ = ["register"]

EXAMPLE = "Example: sparsesim optimise sweeps/a100_search.toml --out out/a100_search"
SHOWN = ("speedup", "time_us", "dense_time_us", "energy_j", "clock_mhz")


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("optimise", epilog=EXAMPLE)(optimise)


def optimise(
    file: SweepFile,
    out: Out = None,
    jobs: Jobs = None,
    cluster: Cluster = None,
    json: opt.Json = None,
) -> None:
    """Search the axes of FILE for the best speedup (or time) within its budgets; the trace stays in the store."""
    target = JsonTarget.parse(json)
    count = check_jobs(jobs)
    folder = folder_of(out, file)
    from sparsesim.sweep.optimise import optimise as search
    from sparsesim.sweep.spec import read_spec

    spec = read_spec(file, search=True)
    with progress("searching") as report:
        try:
            best = search(spec, folder, count, cluster, report)
        except KeyboardInterrupt:
            again = f"sparsesim optimise {file} --out {folder}"
            typer.echo(f"stopped; what was evaluated is in {folder}. To go on: {again}", err=True)
            raise
    if target.write({"store": str(folder), "name": spec.name, **best.to_dict()}):
        show(spec, best)
        say(f"store: {folder}; the trace: sparsesim query {folder} --trace")


def show(spec: SweepSpec, best: Optimum) -> None:
    """Print the best design beside the board as it is."""
    start = best.start
    grid = table("", "best design", "board as it is", right=("best design", "board as it is"))
    names = [axis.name for axis in spec.axes]
    rows = [(name, name.replace(".", "_")) for name in names]
    rows += [(f"proxy {name}", f"proxy_{name}") for name in spec.proxies]
    rows += [(name, name) for name in SHOWN]
    for label, column in rows:
        unit = next((f" [{axis.unit}]" for axis in spec.axes if axis.name == label and axis.unit not in ("", "-")), "")
        add_row(grid, label + unit, _text(best.row.get(column)), "" if start is None else _text(start.get(column)))
    show_table(f"{spec.name}: best {best.objective} of {best.evaluations} designs", grid)


def _text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)
