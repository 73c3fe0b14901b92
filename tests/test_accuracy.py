"""The reached accuracy, held on the measured rows that the project carries.

`tests/data/accuracy_rows.csv`: up to eight rows of each (GPU, dtype, path), published timings with their sources.
`tests/data/accuracy_levels.json`: the level that the model reached on them when `make accuracy` last ran. A change that
makes a group worse fails here, and so does one that makes it much better and leaves the level as it was.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from sparsesim.measured import read_measured
from sparsesim.uncertainty import held_out
from sparsesim.validate import Prediction, error_summary, predict_rows

DATA = Path(__file__).resolve().parent / "data"
LEVELS = json.loads((DATA / "accuracy_levels.json").read_text(encoding="utf-8"))
#: what rounding and the order of a search may move; what must be promoted
WORSE, BETTER = 0.005, 0.03
#: share of the rows of unseen shapes that 90 % intervals may hold, widened by two standard errors of their number
COVERAGE = (0.85, 0.95)


@pytest.fixture(scope="module")
def predictions() -> list[Prediction]:
    found, skipped = predict_rows(read_measured(DATA / "accuracy_rows.csv"), jobs=2)
    assert not skipped
    return found


def name_of(p: Prediction) -> str:
    return f"{p.row.gpu} {p.row.dtype} {'sparse' if p.row.is_sparse else 'dense'}"


@pytest.mark.parametrize("group", LEVELS)
def test_no_group_is_worse_than_the_level_it_reached(group: str, predictions: list[Prediction]) -> None:
    members = [p for p in predictions if name_of(p) == group]
    male = error_summary([p.predicted_us for p in members], [p.row.time_us for p in members])["male"]
    assert male <= LEVELS[group] + WORSE
    assert male >= LEVELS[group] - BETTER, "better than its level: run `make accuracy` to hold it"


def test_every_carried_row_has_a_level(predictions: list[Prediction]) -> None:
    assert {name_of(p) for p in predictions} == set(LEVELS)
    assert len(LEVELS) >= 20


def test_intervals_hold_nine_rows_in_ten(predictions: list[Prediction]) -> None:
    unseen = [p for p in predictions if held_out(p.row.m, p.row.n, p.row.k)]
    inside = sum(p.low_us <= p.row.time_us <= p.high_us for p in unseen) / len(unseen)
    spread = 2 * (0.9 * 0.1 / len(unseen)) ** 0.5
    assert COVERAGE[0] - spread <= inside <= COVERAGE[1] + spread


def test_wave_steps_are_pairs_of_neighbours() -> None:
    sys.path.insert(0, str(DATA.parent.parent / "bench"))
    try:
        from accuracy_groups import steps_right, wave_steps
    finally:
        sys.path.pop(0)
    rows = read_measured(DATA / "accuracy_rows.csv")
    from dataclasses import replace

    row = replace(rows[0], time_us=20.0)
    after = replace(row, n=row.n + 1, time_us=40.0)
    far = replace(row, n=row.n + 2, time_us=90.0)
    steps = wave_steps([Prediction(r, t, t, t, "") for r, t in ((row, 20.0), (after, 44.0), (far, 44.0))])
    assert [(round(m, 2), round(p, 2)) for _, m, p in steps] == [(2.0, 2.2), (2.25, 1.0)]
    assert steps_right(steps) == (1, 2, 1)
