"""Pruners, schedules, intervals, quality files, guardrails and the studies."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from sparsesim.__main__ import main
from sparsesim.errors import UserError
from sparsesim.gates import judge, load_policy
from sparsesim.quality.guardrail import FAIL, INCONCLUSIVE, PASS, Allowance, check, precisions
from sparsesim.quality.mlp import MlpBudget, oneshot, train
from sparsesim.quality.pruners import METHODS, PATTERNS, output_error, prune_layer
from sparsesim.quality.record import parse_quality, read_quality
from sparsesim.quality.rounding import round_to
from sparsesim.quality.schedule import gradual_kept
from sparsesim.quality.stats import paired, t_quantile
from sparsesim.quality.studies import file_text
from sparsesim.sparsity import Pattern
from sparsesim.sparsity import check as check_pattern


@pytest.fixture(scope="module")
def layer():
    """Weights (48, 64) and the Gram matrix of 512 inputs that share eight strong directions."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(512, 8)) @ rng.normal(size=(8, 64)) + 0.3 * rng.normal(size=(512, 64))
    return rng.normal(size=(48, 64)), x.T @ x


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("method", METHODS)
def test_pruned_weights_hold_n_of_each_m_along_k(layer, method, pattern):
    weights, gram = layer
    pruned, form = prune_layer(weights, gram, pattern, method), Pattern.parse(pattern)
    assert check_pattern(pruned, form).ok
    groups = (pruned != 0).reshape(48, -1, form.m).sum(axis=2)
    assert (groups == form.n).all()
    assert not check_pattern(pruned, form, axis=0).ok  # along m there is no such rule
    if method != "sparsegpt":
        assert np.array_equal(pruned[pruned != 0], weights[pruned != 0])


@pytest.mark.parametrize("pattern", PATTERNS)
def test_sparsegpt_loses_least_on_correlated_inputs(layer, pattern):
    weights, gram = layer
    lost = {method: output_error(weights, prune_layer(weights, gram, pattern, method), gram) for method in METHODS}
    assert lost["sparsegpt"] < 0.7 * lost["magnitude"]
    assert lost["sparsegpt"] < 0.7 * lost["wanda"]


def test_methods_agree_where_inputs_are_uncorrelated_and_alike(layer):
    weights, _ = layer
    expected = prune_layer(weights, None, "2:4", "magnitude")
    assert np.array_equal(prune_layer(weights, np.eye(64), "2:4", "wanda"), expected)
    assert np.allclose(prune_layer(weights, 5.0 * np.eye(64), "2:4", "sparsegpt"), expected)
    # without any input no direction is better than another
    assert np.allclose(prune_layer(weights, np.zeros((64, 64)), "2:4", "sparsegpt"), expected)


def test_wanda_weighs_by_the_norm_of_the_input():
    weights = np.array([[1.0, 2.0, 3.0, 4.0]])
    gram = np.diag([100.0**2, 10.0**2, 1.0, 1.0])
    assert prune_layer(weights, gram, "2:4", "wanda").tolist() == [[1.0, 2.0, 0.0, 0.0]]
    assert prune_layer(weights, gram, "2:4", "magnitude").tolist() == [[0.0, 0.0, 3.0, 4.0]]


def test_sparsegpt_puts_a_removed_weight_on_its_copy():
    # two inputs that are always equal: only the sum of their weights matters, and all of it can be kept
    x = np.random.default_rng(0).normal(size=(256, 3))
    x = np.stack([x[:, 0], x[:, 1], x[:, 2], x[:, 0]], axis=1)
    weights = np.array([[0.1, 2.0, 3.0, 1.0]])
    pruned = prune_layer(weights, x.T @ x, "3:4", "sparsegpt")
    assert pruned[0] == pytest.approx([0.0, 2.0, 3.0, 1.1], abs=0.02)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((np.ones((4, 8)), None, "2:4", "wanda"), "gram: expected the Gram matrix"),
        ((np.ones((4, 8)), np.eye(4), "2:4", "wanda"), r"gram.shape: expected \(8, 8\)"),
        ((np.ones((4, 6)), None, "2:4", "magnitude"), "k a multiple of 4"),
        ((np.ones((4, 8)), None, "64:2:8", "magnitude"), "pattern: expected N:M"),
        ((np.ones((4, 8)), None, "2:4", "magnitud"), "did you mean 'magnitude'"),
    ],
)
def test_impossible_prunings_are_refused(arguments, expected):
    with pytest.raises(UserError, match=expected):
        prune_layer(*arguments)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_gradual_schedule_removes_one_weight_at_a_time_and_then_freezes(pattern):
    form = Pattern.parse(pattern)
    kept = [gradual_kept(step, 1000, form) for step in range(1000)]
    assert set(kept[:400]) == {form.m}
    assert set(kept[700:]) == {form.n}
    assert sorted(set(kept)) == list(range(form.n, form.m + 1))
    assert all(0 <= a - b <= 1 for a, b in pairwise(kept))


def test_rounding_keeps_what_a_type_can_hold():
    fp4 = np.array([[6.0, 4.0, 3.0, 2.0, 1.5, 1.0, 0.5, 0.0, -6.0, -0.5, 2.4, 2.6, 5.1, 0.2, -0.3, 0.75]])
    expected = [6, 4, 3, 2, 1.5, 1, 0.5, 0, -6, -0.5, 2, 3, 6, 0, -0.5, 1]
    assert round_to(fp4, "e2m1").tolist() == [expected]
    ints = np.array([[127.0, -3.0, 0.4, 0.6]])
    assert round_to(ints, "i8").tolist() == [[127.0, -3.0, 0.0, 1.0]]
    values = np.random.default_rng(0).normal(size=(8, 64))
    errors = {t: np.abs(round_to(values, t) - values).max() for t in ("i8", "e4m3", "e2m1")}
    assert errors["i8"] < np.abs(values).max() / 254 * 1.001
    assert errors["i8"] < errors["e4m3"] < errors["e2m1"]
    assert round_to(np.zeros((2, 16)), "e2m1").tolist() == np.zeros((2, 16)).tolist()
    with pytest.raises(UserError, match="did you mean 'e4m3'"):
        round_to(values, "e4m4")


def test_t_quantiles_are_those_of_scipy():
    from scipy.stats import t

    for level in (0.975, 0.9995):
        for freedom in (1.0, 2.5, 9.0, 300.0):
            assert t_quantile(level, freedom) == pytest.approx(t.ppf(level, freedom), rel=1e-8)


def test_one_seed_gives_the_paired_t_interval():
    d = np.random.default_rng(1).normal(0.2, 1.0, 50)
    half = t_quantile(0.975, 49) * d.std(ddof=1) / np.sqrt(50)
    for found in (paired(d), paired(d[:, None])):
        assert (found.mean, found.low, found.high) == pytest.approx((d.mean(), d.mean() - half, d.mean() + half))
    assert paired([[0.3]]).low is None


@pytest.mark.parametrize(("seed_noise", "sample_noise"), [(0.0, 1.0), (0.3, 1.0), (1.0, 0.0)])
def test_intervals_hold_the_truth_as_often_as_they_say(seed_noise, sample_noise):
    rng = np.random.default_rng(5)
    hits = 0
    for _ in range(400):
        d = 0.1 + seed_noise * rng.normal(size=(4, 1)) + sample_noise * rng.normal(size=(1, 30))
        found = paired(d + 0.5 * rng.normal(size=(4, 30)))
        hits += found.low <= 0.1 <= found.high
    assert hits >= 0.93 * 400


def test_without_seeds_the_interval_would_be_too_narrow():
    rng = np.random.default_rng(6)
    d = 1.0 * rng.normal(size=(4, 1)) + 0.1 * rng.normal(size=(4, 200))
    assert paired(d).half > 5 * paired(d.mean(axis=0)).half


def document(drop=0.0, seeds=3, samples=400, where=slice(None), noise=0.0):
    """A quality file: a dense model right on 90 %, and a sparse one that loses `drop` of its right answers."""
    rng = np.random.default_rng(2)
    dense = (rng.random((seeds, samples)) < 0.9).astype(float)
    sparse = dense.copy()
    lose = rng.random((seeds, samples)) < drop
    sparse[:, where] *= 1.0 - lose[:, where]
    flip = rng.random((seeds, samples)) < noise
    sparse = np.where(flip, 1.0 - sparse, sparse)
    common = {"model": "net", "task": "t", "metric": "accuracy", "better": "higher"}
    return {
        "study": "made",
        "entries": [
            {**common, "samples": dense.tolist()},
            {**common, "pattern": "2:4", "method": "wanda", "samples": sparse.tolist()},
        ],
        "tasks": {"t": {"slices": [f"s{i % 4}" for i in range(samples)]}},
    }


@pytest.mark.parametrize(
    ("drop", "noise", "verdict"), [(0.0, 0.0, PASS), (0.2, 0.0, FAIL), (0.02, 0.0, INCONCLUSIVE), (0.0, 0.15, FAIL)]
)
def test_a_guardrail_passes_or_fails_by_its_whole_interval(drop, noise, verdict):
    (drift,) = check(parse_quality(document(drop, noise=noise), "q"), Allowance.parse("0.02"))
    assert drift.verdict == verdict
    assert drift.loss.mean == pytest.approx(0.9 * drop + 0.8 * noise, abs=0.02)


def test_a_drop_in_one_slice_is_found_and_named():
    file = parse_quality(document(0.5, where=slice(2, None, 4)), "q")
    (drift,) = check(file, Allowance.parse("20%"), Allowance.parse("10%"))
    assert drift.verdict == PASS
    assert drift.worst is not None
    assert (drift.worst[0], drift.worst_verdict, drift.state) == ("s2", FAIL, FAIL)
    assert drift.worst[1].level == pytest.approx(1 - 0.05 / 4)


def test_equal_models_fail_no_slice():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        made = document(samples=200)
        for entry in made["entries"]:
            entry["samples"] = (rng.random((3, 200)) < 0.9).astype(float).tolist()
        (drift,) = check(parse_quality(made, "q"), Allowance(0.0))
        assert drift.worst_verdict != FAIL


def test_an_allowance_in_per_cent_is_of_the_baseline():
    assert Allowance.parse("2%").of(-3.0) == pytest.approx(0.06)
    assert Allowance.parse("0.02").of(3.0) == 0.02
    for text in ("-1", "x", "nan", "inf%", ""):
        with pytest.raises(UserError, match="a number of at least 0, or one with %"):
            Allowance.parse(text)


def test_no_difference_in_few_samples_is_no_proof():
    made = document(samples=40)
    (drift,) = check(parse_quality(made, "q"), Allowance(0.02))
    assert drift.loss.mean == 0.0
    assert drift.loss.high == pytest.approx(1 - 0.025 ** (1 / 40))  # 8.8 %
    assert drift.verdict == INCONCLUSIVE
    assert drift.worst is not None
    assert drift.worst[1].high == pytest.approx(1 - (0.0125 / 2) ** (1 / 10))


def test_lower_is_better_turns_the_sign():
    made = document(0.2)
    for entry in made["entries"]:
        entry.update(better="lower", metric="errors", samples=(1 - np.array(entry["samples"])).tolist())
    (drift,) = check(parse_quality(made, "q"), Allowance.parse("0.02"))
    assert drift.verdict == FAIL
    assert drift.loss.mean == pytest.approx(0.18, abs=0.02)


def test_values_without_samples_are_compared_as_independent():
    common = {"model": "llm", "metric": "ppl", "better": "lower", "task": "text"}
    made = {
        "study": "elsewhere",
        "entries": [
            {**common, "value": 10.0, "low": 9.7, "high": 10.3},
            {**common, "pattern": "2:4", "method": "wanda", "value": 12.0, "low": 11.6, "high": 12.4},
            {**common, "pattern": "2:4", "method": "other", "value": 12.0},
        ],
    }
    wanda, other = check(parse_quality(made, "q"), Allowance.parse("1%"))
    assert (wanda.loss.mean, wanda.loss.half) == (2.0, pytest.approx(0.5))
    assert wanda.verdict == FAIL
    assert other.verdict == INCONCLUSIVE  # of a bare number nothing is known


def test_slices_that_were_drawn_widen_the_interval():
    # windows of one article are alike: four articles are four samples, not four hundred
    rng = np.random.default_rng(8)
    made = document(seeds=1)
    shift = rng.normal(0.0, 0.1, 4)[np.arange(400) % 4]
    made["entries"][0]["samples"] = [[0.0] * 400]
    made["entries"][1]["samples"] = [shift.tolist()]
    alone = check(parse_quality(made, "q"), Allowance(0.0))[0].loss
    made["tasks"]["t"]["unit"] = "slice"
    drawn = check(parse_quality(made, "q"), Allowance(0.0))[0].loss
    assert drawn.samples == 4
    assert drawn.half > 5 * alone.half


def bad(change):
    made = document(samples=8)
    change(made)
    return made


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda d: d["entries"][1].update(pattern="2-4"), r"entries\[1\].pattern: expected a pattern"),
        (lambda d: d["entries"][1].update(value=1.0), r"entries\[1\]: expected either a value or samples"),
        (lambda d: d["entries"][1].update(samples=[[1.0], [1.0, 2.0]]), r"entries\[1\]: expected samples of at least"),
        (lambda d: d["entries"][1].update(samples=[[1.0] * 7] * 3), "the same seeds and samples"),
        (lambda d: d["entries"].append(d["entries"][0]), "each model, pattern, method, type and task once"),
        (lambda d: d["entries"][1].update(metric="loss"), "one metric and direction"),
        (lambda d: d["tasks"]["t"].update(slices=["a"]), "a slice for each of the 8 samples"),
        (lambda d: d["tasks"]["t"].update(slices=["a"] * 7 + ["b"], unit="slice"), "equally many samples"),
        (lambda d: d.update(models={"net": {}}), r"models.net: expected exactly one of decoder"),
        (lambda d: d["entries"][0].update(qualty=1), r"entries\[0\].qualty: expected a known field, found"),
        (lambda d: d["entries"][0].pop("better"), r"entries\[0\].better: expected a value, found none"),
        (lambda d: d["entries"][1].update(samples=None, value=True), r"entries\[1\].value: .*, found True"),
        (lambda d: d["entries"][1].update(samples=None, value="1"), r"entries\[1\].value: .*, found '1'"),
        (lambda d: d["entries"][1]["samples"][0].__setitem__(0, "1"), r"entries\[1\].samples\[0\]\[0\]: .*, found '1'"),
        (lambda d: d.update(scale={"width": "8"}), "scale.width: expected an integer, found '8'"),
        (lambda d: d.update(provenance={"a": [{"b": math.nan}]}), r"provenance.a\[0\].b: expected a finite number"),
        (lambda d: d.update(provenance={"a": -math.inf}), "provenance.a: expected a finite number, found -inf"),
        (
            lambda d: d["entries"][1].update(better="lower"),
            "entries: expected one metric and direction for task t, found",
        ),
        (lambda d: d["entries"][1].update(samples=None, value=1.0, low=2.0, high=3.0), "found low 2.0, value 1.0"),
    ],
)
def test_a_wrong_file_says_where(change, expected):
    with pytest.raises(UserError, match=expected):
        parse_quality(bad(change), "q.json")


def test_a_file_reads_back_as_it_was_written(tmp_path):
    file = parse_quality(document(0.1), "q")
    path = tmp_path / "q.json"
    path.write_text(file_text(file))
    assert read_quality(path).to_dict() == file.to_dict()
    assert file_text(read_quality(path)) == path.read_text()


def test_unknown_candidates_are_answered_with_the_nearest():
    with pytest.raises(UserError, match="did you mean 'net/2:4/wanda'"):
        check(parse_quality(document(), "q"), Allowance(0.0), candidates=["net/2:4/wand"])


POLICY = """
[[gates]]
metric = "quality_drift"
max = 0.02
of = "net/2:4/wanda"
owner = "modelling"
rollback = "serve dense"

[[gates]]
metric = "quality_slice_drift"
max = 0.5
owner = "modelling"
rollback = "serve dense"
"""


@pytest.mark.parametrize(("drop", "state", "status"), [(0.0, "pass", 0), (0.2, "fail", 1), (0.02, "undecided", 3)])
def test_a_gate_takes_a_quality_file(tmp_path, capsys, drop, state, status):
    policy, quality = tmp_path / "policy.toml", tmp_path / "quality.json"
    policy.write_text(POLICY)
    quality.write_text(json.dumps(document(drop)))
    assert main(["gate", str(policy), str(quality)]) == status
    report = judge(load_policy(policy), [("q", document(drop))])
    assert [v.state for v in report.verdicts] == [state, "pass"]
    assert report.verdicts[0].value == check(parse_quality(document(drop), "q"), Allowance(0.0))[0].loss.mean


def test_a_gate_without_interval_does_not_pass(tmp_path):
    made = document()
    for entry in made["entries"]:
        entry.pop("samples")
        entry["value"] = 0.9
    made.pop("tasks")
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY)
    assert {v.state for v in judge(load_policy(policy), [("q", made)]).verdicts} == {"undecided"}


def test_of_several_drifts_a_gate_judges_the_widest_bound(tmp_path):
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY.partition('\n[[gates]]\nmetric = "quality_slice')[0])
    run = {"drifts": [{"value": 0.015, "low": 0.01, "high": 0.019}, {"value": 0.01, "low": -0.1, "high": 0.12}]}
    assert judge(load_policy(policy), [("q", run)]).state == "undecided"


@pytest.mark.parametrize(("pattern", "schedule"), [("2:4", "gradual"), ("2:8", "gradual"), ("1:4", "sr-ste")])
def test_schedules_end_legal_learn_and_repeat(pattern, schedule):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 16))
    labels = (x[:, 0] + x[:, 1] > 0).astype(np.int64) + 2 * (x[:, 2] > 0)
    budget = MlpBudget(epochs=30)
    models = [train(x[:400], labels[:400], 32, budget, 1, pattern, schedule) for _ in range(2)]
    for first, second in zip(models[0].weights, models[1].weights, strict=True):
        assert np.array_equal(first, second)
    form = Pattern.parse(pattern)
    assert all(check_pattern(w, form).ok for w in models[0].weights[:-1])
    assert not check_pattern(models[0].weights[-1], form).ok  # the output layer stays dense
    assert models[0].right(x[400:], labels[400:]).mean() > 0.5  # a guess is right in one of four


def test_oneshot_calibrates_on_what_pruned_layers_give():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 4)) @ rng.normal(size=(4, 16))
    labels = (x[:, 0] > 0).astype(np.int64)
    model = train(x, labels, 32, MlpBudget(epochs=3), 0)
    lost = {}
    for method in METHODS:
        pruned = oneshot(model, x, "2:4", method)
        assert all(check_pattern(w, Pattern(2, 4)).ok for w in pruned.weights[:-1])
        lost[method] = np.square(pruned.inputs(x)[-1] - model.inputs(x)[-1]).sum()
    assert lost["sparsegpt"] < 0.5 * lost["magnitude"]


@pytest.fixture(scope="module")
def digits():
    """A small run of the study: three widths, one pattern, six epochs, two seeds."""
    from sparsesim.quality.digits import run_digits

    return run_digits(2, (16, 64), ("2:4",), MlpBudget(epochs=6))


def test_the_digits_study_measures_a_ladder_and_pruned_models(digits):
    values = {entry.key: digits.own(entry).mean for entry in digits.entries}
    assert 0.5 < values["mlp-16/dense/dense"] < values["mlp-64/dense/dense"] < 1.0
    assert values["mlp-64/2:4/sparsegpt"] > values["mlp-64/dense/dense"] - 0.05
    assert {e.method for e in digits.entries} == {"dense", *METHODS, "gradual", "sr-ste"}
    assert {e.array.shape for e in digits.entries} == {(2, 599)}
    states = precisions(check(digits, Allowance.parse("50%")))
    assert set(states) == {"i8", "e4m3", "e2m1"}
    provenance = digits.provenance
    assert provenance["data_sha256"] == "5889d26819cf830d070975af3c711419825fa0a078137b3d80b8e7d06bd58da0"
    assert {"numpy", "scikit-learn"} == set(provenance["packages"])


def test_the_command_shows_a_file_and_writes_json(digits, tmp_path, capsys):
    path, out = tmp_path / "digits.json", tmp_path / "report.json"
    path.write_text(file_text(digits))
    assert main(["quality", str(path), "--allow", "2%", "--allow-slice", "20%", "--json", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "mlp-64/2:4/sr-ste" in shown
    assert "paired over held-out samples and 2 seeds" in shown
    report = json.loads(out.read_text())
    assert {drift["state"] for drift in report["drifts"]} <= {PASS, FAIL, INCONCLUSIVE}
    assert report["drifts"][0]["low"] <= report["drifts"][0]["mean"] <= report["drifts"][0]["high"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["digit"], "did you mean 'digits'"),
        (["missing.json"], "expected a quality file, found No such file"),
        (["digits", "--seeds", "0"], "seeds: expected an integer from 1"),
        (["digits", "--pattern", "3:4"], "pattern: expected one of 2:4, 4:8, 1:4, 2:8, found '3:4'"),
        (["digits", "--allow", "lots"], "--allow: expected a number of at least 0, or one with %, found 'lots'"),
    ],
)
def test_mistakes_are_one_line_each(arguments, expected, capsys):
    assert main(["quality", *arguments]) == 2
    assert expected in capsys.readouterr().err


def test_a_missing_package_names_the_extra(monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "sklearn.datasets", None)
    assert main(["quality", "digits", "--seeds", "1"]) == 2
    assert "sparsesim[quality-ci]" in capsys.readouterr().err


def test_the_language_model_trains_prunes_and_repeats():
    pytest.importorskip("torch")
    from sparsesim.quality import lm

    data = np.frombuffer((b"the quick brown fox jumps over the lazy dog. " * 200), dtype=np.uint8)
    windows = np.stack([data[i : i + 17] for i in range(0, 64, 8)])
    text = lm.Text(data, windows, ("a",) * 8, 1, 1, "")
    budget = lm.Budget(steps=80, batch=4, context=16, rate=1e-2, layers=1)
    dense = lm.train(text, 32, budget, 0)
    first = lm.bits_per_byte(dense.module, windows)
    assert first.mean() < 4.0  # 8 bits before training
    assert np.array_equal(first, lm.bits_per_byte(lm.train(text, 32, budget, 0).module, windows))
    made = {name: lm.train(text, 32, budget, 0, "2:4", name).module for name in ("gradual", "sr-ste")}
    made |= {m: lm.oneshot(dense, text, budget, "2:4", m, windows=16) for m in METHODS}
    for name, module in made.items():
        layers = lm.linears(module)
        assert set(layers) == {f"blocks.0.{part}" for part in ("qkv", "o", "gate_up", "down")}, name
        for layer in layers.values():
            assert check_pattern(layer.weight.detach().numpy(), Pattern(2, 4)).ok, name
    lost = {name: lm.bits_per_byte(module, windows).mean() for name, module in made.items()}
    assert lost["sparsegpt"] < lost["magnitude"]
    assert np.array_equal(first, lm.bits_per_byte(dense.module, windows))  # the dense model is left as it was


def test_the_language_model_study_makes_a_whole_file(monkeypatch):
    for package in ("torch", "gensim"):
        pytest.importorskip(package)
    from sparsesim.quality import lm, lm_study

    data = np.random.default_rng(0).integers(0, 256, 4000).astype(np.uint8)
    text = lm.Text(data, data[: 8 * 9].reshape(8, 9), ("a",) * 4 + ("b",) * 4, 3, 1, "0" * 64)
    monkeypatch.setattr(lm_study, "load_text", lambda context: text)
    done = []
    budget = lm.Budget(steps=3, batch=2, context=8, layers=1)
    file = lm_study.run_lm(2, (16, 32), ("2:4",), budget, lambda *x: done.append(x))
    assert done[-1] == (8, 8)
    assert [e.key for e in file.entries] == [
        "lm-16/dense/dense", "lm-32/dense/dense", "lm-32/2:4/magnitude", "lm-32/2:4/wanda", "lm-32/2:4/sparsegpt",
        "lm-32/2:4/gradual", "lm-32/2:4/sr-ste",
    ]  # fmt: skip
    assert parse_quality(json.loads(file_text(file)), "again").to_dict() == file.to_dict()
    assert file.own(file.entries[0]).samples == 2  # articles, not windows


def test_the_language_model_does_not_see_what_it_predicts():
    torch = pytest.importorskip("torch")
    from sparsesim.quality import lm

    torch.manual_seed(0)
    module = lm._module(32, 2, 16)
    rows = torch.randint(0, 256, (1, 16))
    changed = rows.clone()
    changed[0, 10] = (changed[0, 10] + 1) % 256
    with torch.no_grad():
        before, after = module(rows)[0], module(changed)[0]
    assert torch.allclose(before[:10], after[:10])
    assert not torch.allclose(before[10:], after[10:])


def test_kept_results_say_where_they_come_from():
    files = {path.stem: read_quality(path) for path in (Path(__file__).parent.parent / "docs/quality").glob("*.json")}
    assert {"byte_lm", "magika", "smollm2"} == set(files)
    for file in files.values():
        assert {"data", "date", "packages", "sparsesim"} <= set(file.provenance)
        assert all(e.samples is not None for e in file.entries)
        assert {e.model for e in file.entries} == set(file.models)
    lm = files["byte_lm"]
    assert len(lm.provenance["text_sha256"]) == 64
    assert {e.array.shape for e in lm.entries} == {(3, 256)}
    # the ladder separates: each rung is better than the next smaller one, beyond noise
    ladder = sorted((e for e in lm.entries if e.dense), key=lambda e: int(e.model.removeprefix("lm-")))
    assert len(ladder) >= 3
    for small, large in pairwise(ladder):
        assert lm.difference(large, [(1.0, small)]).low > 0, (small.key, large.key)


@pytest.mark.slow
def test_magika_is_pruned_along_channels(tmp_path):
    for package in ("onnx", "onnxruntime", "magika"):
        pytest.importorskip(package)
    from sparsesim.quality.magika_study import run_magika

    for i in range(6):
        (tmp_path / f"a{i}.py").write_text(f"import os\n\n\ndef f{i}(x):\n    return os.path.join(x, '{i}')\n" * 3)
        (tmp_path / f"b{i}.json").write_text(json.dumps({"name": i, "values": list(range(40 + i))}))
        (tmp_path / f"c{i}.html").write_text(f"<!DOCTYPE html><html><body><p>{i} text</p></body></html>" * 2)
    file = run_magika(("2:4",), 6, tmp_path)
    assert [e.key for e in file.entries] == [
        "magika/dense/dense", "magika/2:4/magnitude", "magika/2:4/wanda", "magika/2:4/sparsegpt",
    ]  # fmt: skip
    assert file.own(file.entries[0]).mean == 1.0
    assert file.provenance["files"] == 9
    assert tmp_path.name not in json.dumps(file.provenance)  # no paths of this machine


@pytest.mark.slow
def test_the_error_of_a_pruned_convolution_is_the_one_its_gram_matrix_says(tmp_path):
    """Columns of weights, Gram matrix and groups are in one order: taps, then channels."""
    onnx = pytest.importorskip("onnx")
    for package in ("onnxruntime", "magika"):
        pytest.importorskip(package)
    from importlib.resources import files

    from sparsesim.quality import magika_study as study

    path = tmp_path / "a.py"
    path.write_text("".join(f"def f{i}(x):\n    return x + {i}\n\n\n" for i in range(90)))
    x = study._features(path)[None]
    (at,) = (Path(str(files("magika"))) / "models").glob("*/model.onnx")
    dense, pruned = onnx.load(str(at)), onnx.load(str(at))
    layers = study._layers(dense)
    grams = study._grams(dense, layers, x)
    study._prune(pruned, layers, grams, "2:4", "sparsegpt")
    conv = next(node for node in dense.graph.node if node.op_type == "Conv")
    outputs, weights = [], []
    for model in (dense, pruned):
        w = next(onnx.numpy_helper.to_array(w) for w in model.graph.initializer if w.name == conv.input[1])
        weights.append(w[..., 0].transpose(0, 2, 1).reshape(len(w), -1))
        model.graph.output.append(onnx.helper.make_tensor_value_info(conv.output[0], onnx.TensorProto.FLOAT, None))
        outputs.append(study._run(model, x, [conv.output[0]])[0])
    assert check_pattern(weights[1], Pattern(2, 4)).ok
    measured = np.linalg.norm(outputs[1] - outputs[0]) / np.linalg.norm(outputs[0])
    assert measured == pytest.approx(output_error(*weights, grams[conv.input[1]]), rel=1e-3)


def test_the_kept_result_of_smollm2_is_what_the_page_says() -> None:
    root = Path(__file__).resolve().parent.parent / "docs"
    file = read_quality(root / "quality" / "smollm2.json")
    page = (root / "quality.md").read_text(encoding="utf-8")
    means = {entry.key.removeprefix("smollm2-135m/"): float(np.mean(entry.array)) for entry in file.entries}
    assert f"dense {np.exp(means['dense/dense']):.1f}" in page
    for pattern in ("2:4", "4:8"):
        found = [float(np.exp(means[f"{pattern}/{method}"])) for method in METHODS]
        row = " | ".join(f"{value:.0f}" if value > 99.95 else f"{value:.1f}" for value in found)
        assert f"| {pattern} | {row} |" in page
