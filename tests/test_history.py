"""The history of ``make bench``: lines are added, machines are kept apart."""

import json
from pathlib import Path

import pytest

BENCH = Path(__file__).parent.parent / "bench"


@pytest.fixture
def history(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    import history

    return history


def test_a_run_is_a_line_and_compares_with_the_last_on_this_machine(history, monkeypatch, tmp_path):
    path = tmp_path / "history.jsonl"
    assert history.append({"a": 2.0}, path) == {}
    assert history.append({"a": 3.0, "b": 1.0}, path) == {"a": 1.5}
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(history, "machine", lambda: {"cpu": "another"})
        assert history.append({"a": 9.0}, path) == {}
    assert history.append({"a": 3.0}, path) == {"a": 1.0}
    runs = [json.loads(line) for line in path.read_text().splitlines()]
    assert history.read(path) == runs
    assert [run["figures"]["a"] for run in runs] == [2.0, 3.0, 9.0, 3.0]
    assert {"date", "version", "commit", "load", "machine", "figures"} == set(runs[0])


def test_a_torn_line_is_named(history, tmp_path):
    path = tmp_path / "history.jsonl"
    history.append({"a": 2.0}, path)
    path.write_text(path.read_text() + '{"date": "20')
    with pytest.raises(SystemExit, match=r"history.jsonl: line 2: expected a run"):
        history.append({"a": 2.0}, path)


def test_the_committed_history_can_be_read(history):
    history.read()
