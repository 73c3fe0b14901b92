"""The store of a sweep: damage is found and named, SQL and views answer, other libraries read it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import sparsesim as ss
from sparsesim.sweep import query
from sparsesim.sweep.query import best_within, pareto, pareto_mask, sql
from sparsesim.sweep.store import PART_ROWS, Column, Store, open_store

COLUMNS = [
    Column("point", "int64"),
    Column("m", "int64", "", "setting"),
    Column("proxy_area", "float64"),
    Column("speedup", "float64"),
    Column("status", "string"),
]
TOTAL = 2 * PART_ROWS + 10
IDENTITY = {"kind": "sweep", "model": "1", "name": "made", "sweep": {}}


def row(position: int) -> dict[str, object]:
    generator = np.random.default_rng(position)
    ok = position % 50 != 7
    return {
        "point": position,
        "m": position % 3,
        "proxy_area": float(generator.random()),
        "speedup": float(generator.random()) if ok else None,
        "status": "ok" if ok else "failed",
    }


def fill(folder: Path, order: list[int], batch: int = 7, finish: bool = True) -> None:
    with Store(folder, IDENTITY, COLUMNS, TOTAL) as store:
        for start in range(0, len(order), batch):
            store.add({position: row(position) for position in order[start : start + batch]})
        if finish:
            store.finish(TOTAL)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "store"
    fill(folder, list(range(TOTAL)))
    return folder


@pytest.fixture
def copy(made, tmp_path):
    return Path(shutil.copytree(made, tmp_path / "store"))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def complaint(folder: Path) -> str:
    with pytest.raises(ss.UserError) as caught:
        open_store(folder)
    return str(caught.value)


def test_the_bytes_do_not_depend_on_the_order_of_arrival(made, tmp_path):
    order = np.random.default_rng(1).permutation(TOTAL).tolist()
    fill(tmp_path / "other", order, batch=31)
    assert files(tmp_path / "other") == files(made)
    assert sorted(path.suffix for path in made.iterdir() if path.suffix) == [".json", *[".parquet"] * 3]


def test_an_unfinished_store_knows_what_is_done(tmp_path):
    fill(tmp_path / "store", [*range(PART_ROWS + 5), 400], finish=False)
    reader = open_store(tmp_path / "store")
    assert (reader.is_complete, len(reader.parts), len(reader.journal)) == (False, 1, 6)
    assert reader.table()["point"].to_pylist() == [*range(PART_ROWS + 5), 400]
    with Store(tmp_path / "store", IDENTITY, COLUMNS, TOTAL) as store:
        assert store.done == PART_ROWS + 6
        assert [p for p in range(TOTAL) if not store.is_done(p)][:2] == [PART_ROWS + 5, PART_ROWS + 6]
        assert store.failed == sum(p % 50 == 7 for p in range(PART_ROWS + 5))


def test_a_journal_that_repeats_a_part_counts_once(tmp_path):
    """A run killed between the renaming of a part and the shortening of the journal."""
    folder = tmp_path / "store"
    fill(folder, list(range(PART_ROWS - 1)), finish=False)
    journal = (folder / "journal.jsonl").read_bytes()
    fill(folder, [PART_ROWS - 1], finish=False)
    assert len(open_store(folder).parts) == 1
    (folder / "journal.jsonl").write_bytes(journal)
    assert open_store(folder).table().num_rows == PART_ROWS
    with Store(folder, IDENTITY, COLUMNS, TOTAL) as store:
        assert store.done == PART_ROWS


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_damaged_part_is_named(copy, damage):
    part = sorted(copy.glob("*.parquet"))[1]
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes({"flip": bytes(data), "cut": bytes(data[: len(data) // 2]), "empty": b""}[damage])
    text = complaint(copy)
    assert text.startswith(f"{part}: expected")
    assert "damaged or half-written" in text
    with pytest.raises(ss.UserError, match=part.name), Store(copy, IDENTITY, COLUMNS, TOTAL):
        pass


def test_a_missing_part_and_a_strange_one_are_named(copy):
    first, second, _ = sorted(copy.glob("*.parquet"))
    first.unlink()
    assert complaint(copy) == f"{copy}: expected part-000000-….parquet, found none"
    second.rename(copy / "part-1.parquet")
    assert "part-1.parquet: expected part-<number>" in complaint(copy)


def test_without_its_damaged_part_a_sweep_runs_those_points_again(copy, made):
    part = sorted(copy.glob("*.parquet"))[1]
    part.unlink()
    with Store(copy, IDENTITY, COLUMNS, TOTAL) as store:
        missing = [position for position in range(TOTAL) if not store.is_done(position)]
        assert missing == list(range(PART_ROWS, 2 * PART_ROWS))
        store.add({position: row(position) for position in missing})
        store.finish(TOTAL)
    assert files(copy) == files(made)


def test_failed_points_can_run_again(copy, made):
    with Store(copy, IDENTITY, COLUMNS, TOTAL) as store:
        failed = [position for position in range(TOTAL) if row(position)["status"] == "failed"]
        assert store.failed == store.drop_failed() == len(failed)
        assert [position for position in range(TOTAL) if not store.is_done(position)] == failed
        assert store.failed == 0
    assert not open_store(copy).is_complete
    with Store(copy, IDENTITY, COLUMNS, TOTAL) as store:  # as if it had been stopped here
        store.add({position: row(position) for position in failed})
        store.finish(TOTAL)
    assert files(copy) == files(made)
    with Store(copy, IDENTITY, COLUMNS, TOTAL) as store:
        parts = len(open_store(copy).parts)
    assert parts == 3


def test_what_a_killed_start_left_is_no_stranger(tmp_path):
    (tmp_path / ".sweep.json.123.tmp").write_bytes(b"{")
    (tmp_path / ".subproblems.sqlite").touch()
    fill(tmp_path, [0], finish=False)
    assert len(open_store(tmp_path).journal) == 1


def test_a_damaged_manifest_or_journal_is_named(copy, tmp_path):
    manifest = copy / "sweep.json"
    good = manifest.read_text()
    manifest.write_text(good.replace('"made"', '"mada"'))
    assert f"{manifest}: content_hash: expected" in complaint(copy)
    manifest.write_text(good[:40])
    assert f"{manifest}: expected valid JSON" in complaint(copy)
    manifest.write_text(good.replace("sparsesim-sweep/1", "sparsesim-sweep/9"))
    assert "schema: expected 'sparsesim-sweep/1', found 'sparsesim-sweep/9'" in complaint(copy)
    assert "found none" in complaint(tmp_path)
    fill(tmp_path / "open", list(range(5)), finish=False)
    journal = tmp_path / "open" / "journal.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b'"m":1', b'"m":2', 1))
    assert f"{journal}: line 2: expected a line with its checksum" in complaint(tmp_path / "open")


def test_results_of_another_sweep_or_model_are_not_mixed(copy, tmp_path):
    for key, value in (("model", "2"), ("sweep", {"axes": 1})):
        with pytest.raises(ss.UserError, match=f"sweep.json: {key}: expected .*choose another folder"):
            Store(copy, {**IDENTITY, key: value}, COLUMNS, TOTAL)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ss.UserError, match=r"expected an empty folder or a sweep's store, found notes\.txt"):
        Store(tmp_path, IDENTITY, COLUMNS, TOTAL)
    assert not (tmp_path / "sweep.json").exists()


def test_one_sweep_at_a_time_writes(tmp_path):
    with (
        Store(tmp_path / "store", IDENTITY, COLUMNS, TOTAL),
        pytest.raises(ss.UserError, match="found a sweep at work in it"),
    ):
        Store(tmp_path / "store", IDENTITY, COLUMNS, TOTAL)
    Store(tmp_path / "store", IDENTITY, COLUMNS, TOTAL).__exit__(None, None, None)


def test_pandas_polars_and_duckdb_read_the_same(made):
    import pandas
    import polars

    table = open_store(made).table()
    with_pandas = pandas.concat([pandas.read_parquet(path) for path in sorted(made.glob("*.parquet"))])
    with_polars = polars.read_parquet(made / "*.parquet")
    assert with_pandas["point"].tolist() == with_polars["point"].to_list() == table["point"].to_pylist()
    assert with_polars["speedup"].to_list() == table["speedup"].to_pylist()
    assert with_pandas["proxy_area"].tolist() == table["proxy_area"].to_pylist()
    assert sql(open_store(made), "SELECT * FROM results ORDER BY point").to_pylist() == table.to_pylist()


# --- questions ---


def test_the_pareto_mask_is_what_its_definition_says():
    generator = np.random.default_rng(0)
    for objectives in (1, 2, 3):
        costs = generator.integers(0, 8, (60, objectives)).astype(float)
        beaten = [any(np.all(b <= a) and np.any(b < a) for b in costs) for a in costs]
        assert pareto_mask(costs).tolist() == [not x for x in beaten]
    assert pareto_mask(np.array([[np.nan, 0.0], [1.0, 1.0]])).tolist() == [False, True]


def test_views_answer_from_the_rows(made):
    reader = open_store(made)
    rows = [r for r in reader.table().to_pylist() if r["status"] == "ok"]
    front = pareto(reader, ["speedup", "-proxy_area"]).to_pylist()
    assert front[0]["speedup"] == max(r["speedup"] for r in rows)
    for r in rows:
        beaten = any(f["speedup"] >= r["speedup"] and f["proxy_area"] <= r["proxy_area"] for f in front)
        assert beaten
    found = best_within(reader, "speedup", "proxy_area", [0.0, 0.3, 0.6]).to_pylist()
    assert [r["limit"] for r in found] == [0.3, 0.6]
    for r in found:
        assert r["speedup"] == max(x["speedup"] for x in rows if x["proxy_area"] <= r["limit"])
    assert len(best_within(reader, "-proxy_area", "speedup")) == query.QUANTILES


def test_bad_questions_get_one_line(made):
    reader = open_store(made)
    with pytest.raises(ss.UserError, match="SQL: expected a query over the table results, found: Binder Error"):
        sql(reader, "SELECT nothing FROM results")
    with pytest.raises(ss.UserError, match="did you mean 'speedup'"):
        pareto(reader, ["spedup"])
    with pytest.raises(ss.UserError, match="status: expected a column of numbers, found text"):
        best_within(reader, "status", "speedup")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "sparsesim", *arguments], capture_output=True, text=True)


@pytest.mark.parametrize(
    "text",
    [
        "COPY results TO '{folder}/copy.csv'",
        "ATTACH '{folder}/other.db' AS other",
        "CREATE TABLE t AS SELECT 1",
        "SELECT 1; SELECT 2",
        "SELECT 1; COPY results TO '{folder}/copy.csv'",
        "EXPLAIN ANALYZE COPY results TO '{folder}/copy.csv'",
        "INSTALL httpfs",
        "SET threads = 2",
        "",
        "-- nothing",
    ],
)
def test_a_question_that_is_no_single_query_is_refused(made, tmp_path, text):
    before = {path: path.read_bytes() for path in made.iterdir() if path.is_file()}
    with pytest.raises(ss.UserError, match="SQL: expected one query that returns rows and writes nothing, found "):
        sql(open_store(made), text.format(folder=tmp_path))
    assert list(tmp_path.iterdir()) == []
    assert {path: path.read_bytes() for path in made.iterdir() if path.is_file()} == before


def test_a_query_reads_the_store_and_no_other_file(made, tmp_path):
    secret = tmp_path / "secret.csv"
    secret.write_text("word\nsecret\n", encoding="utf-8")
    reader = open_store(made)
    for source in (f"read_csv('{secret}')", f"read_text('{secret}')", f"'{secret}'", f"glob('{tmp_path}/*')"):
        with pytest.raises(ss.UserError, match=r"Permission Error|does not exist"):
            sql(reader, f"SELECT * FROM {source}")
    with pytest.raises(ss.UserError, match="reader"):  # a variable of the program is no table either
        sql(reader, "SELECT * FROM reader")
    assert sql(reader, "WITH r AS (FROM results) SELECT count(*) FROM r").num_rows == 1


def test_a_question_loads_no_simulator(made):
    """Neither does the help: start-up stays short."""
    for arguments in (["--help"], ["query", str(made)]):
        code = f"import sys, sparsesim.__main__ as m; m.main({arguments!r}); sys.stderr.write(' '.join(sys.modules))"
        loaded = set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr.split())
        heavy = {"numba", "scipy", "matplotlib", "simpy", "distributed"}
        heavy |= {"numpy", "pyarrow", "duckdb", "pydantic"} if arguments == ["--help"] else set()
        assert not loaded & heavy, arguments
        assert "sparsesim.cli.sweep" in loaded


def test_the_query_command(made, copy):
    done = run("query", str(made), "--pareto", "speedup,-proxy_area", "--json", "-")
    data = json.loads(done.stdout)
    assert data["complete"] is True
    assert data["rows"] == pareto(open_store(made), ["speedup", "-proxy_area"]).to_pylist()
    assert done.stderr == ""
    done = run("query", str(made), "SELECT count(*) AS n FROM results WHERE status = 'failed'")
    assert done.stdout.split()[-1] == str(sum(p % 50 == 7 for p in range(TOTAL)))
    done = run("query", str(made), "SELECT 1", "--trace")
    assert (done.returncode, done.stderr) == (2, "error: query: expected one question, found SQL and --trace\n")
    part = sorted(copy.glob("*.parquet"))[0]
    part.write_bytes(part.read_bytes()[:-1])
    done = run("query", str(copy))
    assert (done.returncode, done.stdout) == (2, "")
    assert part.name in done.stderr
    assert "Traceback" not in done.stderr
