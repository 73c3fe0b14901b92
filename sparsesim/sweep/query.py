"""Questions to a store: SQL through DuckDB, the Pareto front, the best design per budget, the trace of a search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsesim.errors import UserError, nearest
from sparsesim.sweep.store import Column, StoreReader

if TYPE_CHECKING:
    import duckdb
    import pyarrow

__all__ = ["best_within", "connect", "pareto", "pareto_mask", "sql", "trace"]

#: budgets shown where none are given: so many quantiles of the column
QUANTILES = 5


def connect(reader: StoreReader) -> duckdb.DuckDBPyConnection:
    """A DuckDB connection with the view ``results``: every point of the store, finished parts and journal.

    It opens no file but the store's parts, loads no extension, and no statement can change that: a query may come from
    elsewhere.
    """
    import duckdb

    connection = duckdb.connect(config={"threads": 1, "python_enable_replacements": False})
    connection.register("journal", reader.journal_table())
    source = "SELECT * FROM journal"
    if reader.parts:
        files = ", ".join("'" + str(path).replace("'", "''") + "'" for path in reader.parts)
        source = f"SELECT * FROM read_parquet([{files}]) UNION ALL BY NAME {source}"
        connection.execute(f"SET allowed_paths = [{files}]")
    connection.execute(f"CREATE VIEW results AS {source}")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def sql(reader: StoreReader, text: str) -> pyarrow.Table:
    """Rows that the query `text` returns; the store is the table ``results``. Raises `UserError` if SQL refuses it."""
    import duckdb

    with connect(reader) as connection:
        try:
            kinds = [statement.type for statement in connection.extract_statements(text)]
            if kinds != [duckdb.StatementType.SELECT]:  # COPY, ATTACH and the like write, also over the store's parts
                found = " and ".join(kind.name for kind in kinds) or "none"
                raise UserError(f"SQL: expected one query that returns rows and writes nothing, found {found}")
            return connection.sql(text).to_arrow_table()
        except duckdb.Error as err:
            raise UserError(
                f"SQL: expected a query over the table results, found: {' '.join(str(err).split())}"
            ) from None


def pareto(reader: StoreReader, objectives: Sequence[str]) -> pyarrow.Table:
    """The points that no other beats in every objective, by the first objective, best first.

    objectives : columns; ``-`` before the name where smaller is better
    """
    names = [text.removeprefix("-") for text in objectives]
    _check_numeric(reader, names)
    table = sql(reader, "SELECT * FROM results WHERE status = 'ok' ORDER BY point")
    columns = [table[name].to_numpy(zero_copy_only=False).astype(float) for name in names]
    signs = [1.0 if text.startswith("-") else -1.0 for text in objectives]
    costs = np.stack([sign * column for sign, column in zip(signs, columns, strict=True)], axis=1)
    front = np.flatnonzero(pareto_mask(costs))
    return table.take(front[np.lexsort(costs[front].T[::-1])])


def pareto_mask(costs: np.ndarray) -> np.ndarray:
    """Which rows of `costs` (points, objectives; smaller is better) no other row beats; equal rows all stay."""
    mask = np.zeros(len(costs), bool)
    front = np.empty((0, costs.shape[1]))
    # in this order a point can be beaten by earlier ones only
    for index in np.lexsort(costs.T[::-1]):
        row = costs[index]
        if np.isnan(row).any():
            continue
        beaten = np.all(front <= row, axis=1) & np.any(front < row, axis=1)
        if not beaten.any():
            mask[index] = True
            front = np.vstack([front, row])
    return mask


def best_within(reader: StoreReader, objective: str, budget: str, limits: Sequence[float] = ()) -> pyarrow.Table:
    """For each limit of the column `budget` the point with the best `objective`, behind a column ``limit``.

    objective : a column; ``-`` before the name where smaller is better. Limits that no point meets have no row.
    """
    name = objective.removeprefix("-")
    _check_numeric(reader, [name, budget])
    if not limits:
        quantiles = ", ".join(f"quantile_cont({budget}, {(i + 1) / QUANTILES})" for i in range(QUANTILES))
        found = sql(reader, f"SELECT {quantiles} FROM results WHERE status = 'ok'")
        limits = sorted({value for column in found.columns for value in column.to_pylist() if value is not None})
    order = f"{name} {'ASC' if objective.startswith('-') else 'DESC'}, {budget}, point"
    values = ", ".join(f"({float(limit)!r}::DOUBLE)" for limit in limits) or "(NULL)"
    return sql(
        reader,
        f"""SELECT "limit", results.* FROM (VALUES {values}) AS limits("limit"), results
        WHERE status = 'ok' AND {budget} <= "limit"
        QUALIFY row_number() OVER (PARTITION BY "limit" ORDER BY {order}) = 1 ORDER BY "limit" """,
    )


def trace(reader: StoreReader, objective: str = "speedup") -> pyarrow.Table:
    """The evaluations of a search in order, with the best `objective` so far in a column ``best``."""
    name = objective.removeprefix("-")
    _check_numeric(reader, [name])
    function = "min" if objective.startswith("-") else "max"
    return sql(reader, f"SELECT *, {function}({name}) OVER (ORDER BY point) AS best FROM results ORDER BY point")


def varied(reader: StoreReader, table: pyarrow.Table) -> list[str]:
    """Columns of settings in which the store's points differ."""
    columns = [column.name for column in reader.columns if column.text.startswith(("setting", "hardware parameter"))]
    counts = sql(reader, "SELECT " + ", ".join(f"count(DISTINCT {name})" for name in columns) + " FROM results")
    numbers = [column[0].as_py() for column in counts.columns]
    return [name for name, count in zip(columns, numbers, strict=True) if count > 1 and name in table.column_names]


def _check_numeric(reader: StoreReader, names: Sequence[str]) -> None:
    columns: dict[str, Column] = {column.name: column for column in reader.columns}
    numeric = [name for name, column in columns.items() if column.type in ("int64", "float64")]
    problems = [
        f"{reader.folder}: {name or '(empty)'}: expected a column of numbers{nearest(name, numeric)}, found "
        + ("text" if name in columns else "no such column")
        for name in names
        if name not in numeric
    ]
    if problems:
        raise UserError(problems)


def plain(table: pyarrow.Table) -> list[dict[str, Any]]:
    """Rows as plain data; what is no finite number is None."""
    rows: list[dict[str, Any]] = table.to_pylist()
    for row in rows:
        for name, value in row.items():
            if isinstance(value, float) and not np.isfinite(value):
                row[name] = None
            elif not isinstance(value, int | float | str | bool | type(None)):
                row[name] = str(value)
    return rows
