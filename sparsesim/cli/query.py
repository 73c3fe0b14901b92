"""``sparsesim query``: SQL and ready-made views over the store of a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparsesim.cli import options as opt
from sparsesim.cli.output import JsonTarget, add_row, say, show_table, table
from sparsesim.errors import Problem, UserError
from sparsesim.wording import counted

if TYPE_CHECKING:
    import pyarrow

    from sparsesim.sweep.store import StoreReader

__all__ = ["register"]

EXAMPLE = "Example: sparsesim query out/a100_designs --pareto speedup,-proxy_area,-energy_j"

Folder = Annotated[Path, typer.Argument(metavar="STORE", help="Folder that `sweep` or `optimise` wrote.")]
Sql = Annotated[str | None, typer.Argument(metavar="[SQL]", help="A query (DuckDB) over the table results.")]
Pareto = Annotated[
    str | None,
    typer.Option("--pareto", metavar="COLUMNS", help="Points that none beats in all COLUMNS; -COLUMN: less is better."),
]
Best = Annotated[
    str | None, typer.Option("--best", metavar="COLUMN", help="The best point within each budget of --within.")
]
Within = Annotated[str | None, typer.Option("--within", metavar="COLUMN", help="The budget's column, with --best.")]
Limits = Annotated[
    str | None, typer.Option("--limits", metavar="NUMBERS", help="Budgets, comma-separated; default: quantiles.")
]
Trace = Annotated[bool, typer.Option("--trace", help="Evaluations of `optimise` in order, with the best so far.")]
Columns = Annotated[str | None, typer.Option("--columns", metavar="NAMES", help="Columns to print, comma-separated.")]
Rows = Annotated[int, opt.integer("--rows", "Rows to print at most; --json has all.")]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("query", epilog=EXAMPLE)(query)


def query(
    store: Folder,
    sql: Sql = None,
    pareto: Pareto = None,
    best: Best = None,
    within: Within = None,
    limits: Limits = None,
    trace: Trace = False,
    columns: Columns = None,
    rows: Rows = 20,
    json: opt.Json = None,
) -> None:
    """Ask a store, after every file of it has been checked; without a question: what is in it."""
    target = JsonTarget.parse(json)
    questions = {"SQL": sql, "--pareto": pareto, "--best": best, "--trace": trace}
    asked = [name for name, given in questions.items() if given]
    if len(asked) > 1:
        raise UserError(f"query: expected one question, found {' and '.join(asked)}")
    if (best is None) != (within is None):
        raise UserError("--best, --within: expected both or neither, found one")
    if rows < 0:
        raise UserError(Problem.line("--rows", "", "an integer of at least 0", rows))
    numbers = _numbers(limits)
    from sparsesim.sweep import query as ask
    from sparsesim.sweep.store import open_store

    reader = open_store(store)
    lead: list[str] = []
    if sql is not None:
        found = ask.sql(reader, sql)
    elif pareto is not None:
        lead = [name.strip().removeprefix("-") for name in pareto.split(",")]
        found = ask.pareto(reader, [name.strip() for name in pareto.split(",")])
    elif best is not None and within is not None:
        lead = ["limit", best.removeprefix("-"), within]
        found = ask.best_within(reader, best, within, numbers)
    elif trace:
        objective = reader.manifest["sweep"].get("optimise", {}).get("objective", "speedup")
        lead = ["generation", objective, "best"]
        found = ask.trace(reader, "-time_us" if objective == "time_us" else objective)
    else:
        found = ask.sql(reader, "SELECT * FROM results ORDER BY point")
        lead = ["status", "time_us", "speedup"]
    data: dict[str, Any] = {
        "store": str(store),
        "complete": reader.is_complete,
        "model": reader.manifest["model"],
        "columns": list(found.column_names),
        "rows": ask.plain(found),
    }
    if target.write(data):
        names = found.column_names
        if columns is not None:
            names = [name.strip() for name in columns.split(",")]
            if missing := [name for name in names if name not in found.column_names]:
                raise UserError(Problem.line("--columns", "", "columns of the answer", ", ".join(missing)))
        elif sql is None:
            own = ["point"] if "point" in names else []
            chosen = dict.fromkeys([*own, *ask.varied(reader, found), *lead])
            names = [name for name in chosen if name in found.column_names]
        _show(reader, found, data["rows"], names, rows)


def _numbers(text: str | None) -> list[float]:
    try:
        return [float(part) for part in text.split(",")] if text is not None else []
    except ValueError:
        raise UserError(Problem.line("--limits", "", "numbers, comma-separated", text)) from None


def _show(reader: StoreReader, found: pyarrow.Table, data: list[dict[str, Any]], names: list[str], most: int) -> None:
    numeric = [name for name in names if data and isinstance(data[0][name], int | float)]
    grid = table(*names, right=numeric)
    for row in data[:most]:
        add_row(grid, *(_text(row[name]) for name in names))
    state = "" if reader.is_complete else ", unfinished"
    show_table(f"{reader.manifest['name']}: {counted(len(data), 'row')}{state}", grid)
    if len(data) > most:
        say(f"and {len(data) - most} more (--rows, --json)")


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
