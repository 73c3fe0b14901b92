"""Quality at an equal latency: comparisons and break-even on planted curves, then small simulated ones."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from sparsesim.__main__ import main
from sparsesim.errors import UserError
from sparsesim.figures import draw_frontier
from sparsesim.hardware import load_gpu
from sparsesim.quality.frontier import Point, frontier, join
from sparsesim.quality.latency import Latency, Sla, scaled_decoder
from sparsesim.quality.record import DecoderShape, Scale, parse_quality
from sparsesim.quality.stats import Interval

WIDTHS = (16, 32, 64)
COMMON = {"task": "t", "metric": "bits", "better": "lower"}


def made(loss, noise=0.0, seeds=3, samples=60, better="lower"):
    """Dense models whose bits fall by 0.1 each time the latency doubles; a sparse one of 64 that loses `loss`."""
    rng = np.random.default_rng(4)
    sign = 1.0 if better == "lower" else -1.0
    hard = rng.normal(3.0, 1.0, samples)  # what all models share is paired away
    entries = []

    def add(bits, **names):
        values = sign * (bits + hard + noise * rng.normal(size=(seeds, samples)))
        entries.append({**COMMON, "better": better, **names, "samples": values.tolist()})

    for i, width in enumerate(WIDTHS):
        add(-0.1 * i, model=f"d{width}")
    add(-0.2 + loss, model="d64", pattern="2:4", method="made")
    return parse_quality({"study": "made", "entries": entries}, "made")


def compared(file, latency, budget=None):
    """The only sparse model at a latency; dense ones at 1, 2 and 4 s."""
    seconds = {"d16": 1.0, "d32": 2.0, "d64": 4.0}
    points = []
    for entry in file.entries:
        s = seconds[entry.model] if entry.dense else latency
        points.append(Point(entry, "bf16", file.own(entry), Latency(Interval(s, s, s), {})))
    result = join(file, points, "gpu", Sla(), Scale(), budget_s=budget)
    return result, result.comparisons[0]


@pytest.mark.parametrize("better", ["lower", "higher"])
@pytest.mark.parametrize(("loss", "speedup"), [(0.05, math.sqrt(2.0)), (0.1, 2.0), (0.15, 2.0**1.5), (0.2, 4.0)])
def test_break_even_is_where_the_ladder_is_as_good(better, loss, speedup):
    _, c = compared(made(loss, better=better), 3.0)
    assert c.break_even.speedup == pytest.approx(speedup)


def test_break_even_beyond_the_ladder_says_so():
    assert compared(made(0.3), 3.0)[1].break_even.why.startswith("worse than the smallest rung: needs more than 4.00")
    better = compared(made(-0.1), 3.0)[1].break_even
    assert better.speedup is None
    assert better.why.startswith("better than the whole ladder")


@pytest.mark.parametrize(
    ("latency", "verdict"),
    [(1.2, "better"), (2.83, "level"), (3.9, "worse")],  # a loss of 0.05 is worth a speedup of 1.41, or 2.83 s
)
@pytest.mark.parametrize("better", ["lower", "higher"])
def test_more_speedup_than_break_even_is_better_and_less_is_worse(latency, verdict, better):
    _, c = compared(made(0.05, noise=0.02, better=better), latency)
    found = c.against_ladder
    assert found is not None
    assert {"better": found.low > 0, "worse": found.high < 0, "level": found.low < 0 < found.high}[verdict]
    assert c.break_even.low < math.sqrt(2.0) < c.break_even.high
    assert (c.break_even.low <= c.speedup <= c.break_even.high) == (verdict == "level")


def test_break_even_intervals_hold_the_truth():
    """The mean of planted samples moves with the noise; the interval must hold what was planted."""
    hits = 0
    for seed in range(40):
        file = made(0.1)
        rng = np.random.default_rng(seed)
        entries = [
            {**e.model_dump(), "samples": (e.array + 0.1 * rng.normal(size=e.array.shape)).tolist()}
            for e in file.entries
        ]
        c = compared(parse_quality({"study": "made", "entries": entries}, "made"), 3.0)[1]
        low, high = c.break_even.low or 0.0, c.break_even.high or math.inf
        hits += low <= 2.0 <= high
    assert hits >= 36


def test_the_budget_decides_who_is_compared():
    file = made(0.05)
    _, free = compared(file, 3.0)
    assert free.meets
    assert free.best.entry.model == "d64"  # the baseline's own budget
    assert free.at_budget.mean == pytest.approx(-0.05)
    _, tight = compared(file, 3.0, budget=3.0)
    assert tight.best.entry.model == "d32"
    assert tight.at_budget.mean == pytest.approx(0.05)
    _, late = compared(file, 3.0, budget=2.5)
    assert not late.meets
    assert late.at_budget is None
    assert tight.rival.entry.model == "d32"
    _, none = compared(file, 0.5, budget=0.7)
    assert none.best is None
    assert none.rival is None
    assert none.against_ladder is None
    assert none.verdicts == ("unknown",) * 3


def test_a_wrong_latency_is_carried_into_the_verdict():
    _, c = compared(made(0.05, noise=0.01), 2.83)
    assert c.verdicts == ("worse", "level", "better")


def test_rungs_that_a_faster_one_equals_are_no_rungs_and_the_front_is_undominated():
    file = made(0.05)
    result, _ = compared(file, 3.0)
    assert [p.entry.key for p in result.ladder] == [f"d{w}/dense/dense" for w in WIDTHS]
    assert all(p.front for p in result.points)  # each is better or faster than each other
    result, _ = compared(file, 4.5)
    assert [p.entry.key for p in result.points if not p.front] == ["d64/2:4/made"]
    entries = [e.model_dump() for e in file.entries]
    entries[1]["samples"] = (np.array(entries[1]["samples"]) + 1.0).tolist()
    result, _ = compared(parse_quality({"study": "made", "entries": entries}, "made"), 3.0)
    assert [p.entry.model for p in result.ladder] == ["d16", "d64"]


def test_a_scaled_decoder_keeps_its_proportions():
    shape = DecoderShape(layers=2, hidden=96, heads=6, kv_heads=6, head_dim=16, ffn=192, vocab=256)
    model = scaled_decoder("lm", shape, Scale(width=32, depth=14, vocab=128256))
    assert (model.hidden, model.ffn, model.layers, model.vocab) == (3072, 6144, 28, 128256)
    assert (model.heads, model.head_dim, model.kv_heads) == (24, 128, 24)
    small = {x.name: (x.m, x.k) for x in scaled_decoder("lm", shape, Scale()).linears()}
    assert {x.name: (x.m, x.k) for x in model.linears()} == {n: (32 * m, 32 * k) for n, (m, k) in small.items()}


@pytest.fixture
def gemms(tmp_path):
    """A file of two dense sizes and a sparse model, as lists of GEMMs."""
    document = json.loads(made(0.02).model_dump_json(exclude_none=True))
    document["entries"] = [e for e in document["entries"] if e["model"] != "d16"]
    document["entries"].append(
        {**document["entries"][-1], "pattern": "4:8", "method": "made"}  # which no A100 runs sparse
    )
    document["models"] = {
        f"d{w}": {"gemms": [{"name": "up", "m": w, "k": w}, {"name": "out", "m": 16, "k": w, "pruned": False}]}
        for w in (32, 64)
    }
    document["scale"] = {"width": 32}
    path = tmp_path / "q.json"
    path.write_text(json.dumps(document))
    return path


def test_the_command_joins_simulated_latency_with_quality(gemms, tmp_path, capsys):
    out, picture = tmp_path / "f.json", tmp_path / "f.png"
    common = ["--gpu", "a100_pcie_80gb", "--tokens", "1024"]
    assert main(["frontier", str(gemms), *common, "--json", str(out), "--plot", str(picture)]) == 0
    shown = capsys.readouterr().out
    assert "break-even" in shown
    result = json.loads(out.read_text())
    by_key = {p["model"]: p for p in result["points"]}
    dense, sparse = by_key["d64/dense/dense"], by_key["d64/2:4/made"]
    assert by_key["d32/dense/dense"]["latency_s"]["mean"] < sparse["latency_s"]["mean"] < dense["latency_s"]["mean"]
    assert sparse["paths"] == {"up": "sparse"}
    # a pattern that falls back to the dense path gains nothing
    fallen = by_key["d64/4:8/made"]
    assert fallen["paths"] == {"up": "pattern-unsupported"}
    assert fallen["latency_s"]["mean"] == pytest.approx(dense["latency_s"]["mean"])
    assert result["budget_s"] == dense["latency_s"]["mean"]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_served_decoder_is_simulated_under_its_load():
    document = json.loads(made(0.05).model_dump_json(exclude_none=True))
    document["entries"] = [e for e in document["entries"] if e["model"] == "d64"]
    document["models"] = {
        "d64": {
            "decoder": {
                "layers": 2, "hidden": 64, "heads": 4, "kv_heads": 4, "head_dim": 16, "ffn": 128, "vocab": 256
            }
        }
    }  # fmt: skip
    document["scale"] = {"width": 16}
    sla = Sla("tpot_mean", rate=20.0, prompt=64, output=8, requests=12, replications=2, dtype="i8")
    done = []
    result = frontier(
        parse_quality(document, "made"), load_gpu("a100_pcie_80gb"), sla, progress=lambda *x: done.append(x)
    )
    assert done == [(1, 2), (2, 2)]
    c = result.comparisons[0]
    assert c.point.latency.seconds.samples == 2
    assert set(c.point.latency.paths.values()) == {"sparse"}
    assert len(result.ladder) == 1
    assert c.break_even.speedup is None
    assert 0.5 < c.speedup < 2.0
    figure = draw_frontier(result)
    assert "tpot_mean" in figure.texts[1].get_text()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--metric", "p95"], "metric: expected one of ttft_mean"),
        (["--baseline", "d64"], "baseline: expected one of d32/dense/dense"),
        (["--only", "d64/2:4/mad"], "did you mean 'd64/2:4/made'"),
        (["--task", "x"], "task: expected one of t, found 'x'"),
        (["--budget", "-1"], "budget: expected a positive number of ms"),
        (["--width-scale", "0"], "width-scale: expected an integer from 1"),
    ],
)
def test_mistakes_are_one_line_each(gemms, arguments, expected, capsys):
    assert main(["frontier", str(gemms), "--gpu", "a100_pcie_80gb", "--tokens", "256", *arguments]) == 2
    assert expected in capsys.readouterr().err


def test_a_model_without_shape_cannot_be_simulated():
    with pytest.raises(UserError, match=r"models\.d16: expected the shape to simulate"):
        frontier(made(0.1), load_gpu("a100_pcie_80gb"), Sla())


def test_messages_name_the_file_and_all_shapes_that_cannot_be_simulated(tmp_path, capsys):
    entry = {"metric": "ppl", "better": "lower", "value": 10.0}
    entries = [{"model": model, **entry} for model in ("a", "b", "c")]
    models = {"a": {"served": "llama-3.2-33b"}, "b": {"served": "none.json"}}
    path = tmp_path / "q.json"
    path.write_text(json.dumps({"study": "ours", "entries": entries, "models": models}))
    assert main(["frontier", str(path), "--gpu", "a100_pcie_80gb"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(": expected")[0] for line in lines] == [
        f"error: {path}: models.a.served", f"error: {path}: models.b.served: none.json", f"error: {path}: models.c"
    ]  # fmt: skip
    assert "did you mean 'llama-3.2-3b'" in lines[0]
    assert main(["frontier", str(path), "--gpu", "a100_pcie_80gb", "--task", "x"]) == 2
    assert f"{path}: task: expected one of task, found 'x'" in capsys.readouterr().err
