"""Policies, verdicts and their files."""

from __future__ import annotations

import json
import math
import re
from xml.etree import ElementTree as xml

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsesim.__main__ import main
from sparsesim.diagnose.owners import load_owners
from sparsesim.errors import UserError
from sparsesim.gates import judge, load_policy
from sparsesim.gates.metrics import METRICS, UnfitRun, find

POLICY = """
[policy]
name = "chat"
model_error = { speedup = 0.1, time = 0.2 }

[[gates]]
metric = "effective_speedup"
min = 1.2
owner = "perf"
rollback = "serve dense"

[[gates]]
metric = "fallback_rate"
max = 0.05
owner = "kernels"
rollback = "pad the layers"
"""


def policy_of(tmp_path, text=POLICY):
    path = tmp_path / "policy.toml"
    path.write_text(text)
    return load_policy(path)


def workload_run(speedup=1.5, fallback=0.0):
    return {"speedup": speedup, "fallbacks": [{"time_share": fallback}] if fallback else [], "tensor_busy": 0.5}


@pytest.mark.parametrize(
    ("speedup", "state"),
    [
        (1.33, "pass"),  # 1.33 / 1.1 = 1.209: even at the lower end
        (1.31, "undecided"),
        (1.10, "undecided"),
        (1.08, "fail"),  # 1.08 x 1.1 = 1.188: not even at the upper end
    ],
)
def test_a_gate_passes_or_fails_by_its_whole_interval(tmp_path, speedup, state):
    report = judge(policy_of(tmp_path), [("run", workload_run(speedup))])
    assert [v.state for v in report.verdicts] == [state, "pass"]
    verdict = report.verdicts[0]
    assert (verdict.low, verdict.high) == (pytest.approx(speedup / 1.1), pytest.approx(speedup * 1.1))
    assert verdict.margin == pytest.approx(speedup - 1.2)
    assert report.exit_status == {"pass": 0, "fail": 1, "undecided": 3}[state]


def test_counts_have_no_model_error_and_one_failure_fails_all(tmp_path):
    report = judge(policy_of(tmp_path), [("run", workload_run(1.2, fallback=0.051))])
    assert [v.state for v in report.verdicts] == ["undecided", "fail"]
    assert report.verdicts[1].low == report.verdicts[1].high == 0.051
    assert (report.state, report.exit_status) == ("fail", 1)


def test_model_error_never_narrows_an_interval(tmp_path):
    text = POLICY.replace('metric = "fallback_rate"', 'metric = "ttft_p95_s"')
    ttft = {"mean": 0.05, "low": -0.02, "high": 0.12}
    run = {"variants": [{"name": "dense", "metrics": {"ttft_p95_s": ttft}}]}
    verdict = judge(policy_of(tmp_path, text), [("run", run)]).verdicts[1]
    assert (verdict.low, verdict.high) == (pytest.approx(-0.024), pytest.approx(0.144))


def test_a_gate_that_no_run_knows_is_undecided(tmp_path):
    report = judge(policy_of(tmp_path), [("quality", {"drift": 0.1})])
    assert [v.why for v in report.verdicts] == ["no run has effective_speedup", "no run has fallback_rate"]
    assert report.exit_status == 3


@given(value=st.floats(0.01, 100), error=st.floats(0, 0.9), threshold=st.floats(0.01, 100), at_least=st.booleans())
def test_a_narrower_interval_never_turns_a_verdict_over(value, error, threshold, at_least):
    from sparsesim.gates.metrics import Kind
    from sparsesim.gates.policy import Gate, Policy

    gate = Gate("g", "effective_speedup", threshold, at_least, "o", "r")
    states = [
        judge(Policy("p", (gate,), {Kind.SPEEDUP: e}, ""), [("r", {"speedup": value})]).state for e in (error, 0.0)
    ]
    assert states[1] != "undecided"
    assert states[0] in (states[1], "undecided")


SERVING = {
    "variants": [
        {"name": "dense", "metrics": {}},
        {
            "name": "sparse",
            "metrics": {
                "ttft_p95_s": {"mean": 0.2, "low": 0.18, "high": 0.22},
                "fallback_rate": {"mean": 0.25, "low": 0.24, "high": 0.26},
                "tensor_busy": {"mean": 0.3, "low": 0.29, "high": 0.31},
            },
        },
    ],
    "gains": [
        {"metric": "output_tokens_per_s", "total": {"mean": 0.3, "low": 0.2, "high": 0.4}},
        {"metric": "e2e_p95_s", "total": {"mean": 0.1, "low": 0.05, "high": 0.15}},
    ],
}


def test_metrics_are_found_in_each_kind_of_run():
    speedup = find(SERVING, "effective_speedup")
    assert (speedup.value, speedup.low) == (pytest.approx(math.exp(0.3)), pytest.approx(math.exp(0.2)))
    assert find(SERVING, "effective_speedup", of="e2e_p95_s").value == pytest.approx(math.exp(0.1))
    assert find(SERVING, "ttft_p95_s").high == 0.22
    assert find(SERVING, "fallback_rate").low == 0.24
    assert find(SERVING, "tensor_occupancy").value == 0.3
    assert find(SERVING, "metadata_overhead") is None
    gemm = {
        "path": "dense", "pattern": "2:4", "speedup": 1.0,
        "counters": {"metadata_bytes": 5.0, "l2_read_bytes": 50.0, "tensor_busy": 0.9},
    }  # fmt: skip
    assert [find(gemm, name).value for name in ("effective_speedup", "fallback_rate", "metadata_overhead")] == [
        1,
        1,
        0.1,
    ]
    drifts = {"drifts": [{"value": 0.01, "low": 0.0, "high": 0.02}, {"value": 0.03, "low": 0.02, "high": 0.04}]}
    assert find(drifts, "quality_drift").value == 0.03
    nested = {"tasks": [{"loss": {"mean": 1.0, "low": 0.5, "high": 2.0}}]}
    assert find(nested, "loss", path="tasks.0.loss").high == 2.0
    for nowhere in ("tasks.1.loss", "tasks.x.loss", "tasks.-1.loss", "tasks.0.loss.mean.x", "tasks.0..", "tasks.²"):
        assert find(nested, "loss", path=nowhere) is None
    assert {"effective_speedup", "e2e_p99_s", "quality_drift"} <= set(METRICS)


def test_metrics_of_real_runs(tmp_path, capsys):
    run = tmp_path / "run.json"
    assert main(["gemm", "--gpu", "rtx4090", "-m", "512", "-n", "512", "-k", "512", "--json", str(run)]) == 0
    workload = tmp_path / "workload.json"
    arguments = ["simulate", "llama-3.2-1b", "--gpu", "rtx4090", "--phase", "decode", "--tokens", "64"]
    assert main([*arguments, "--json", str(workload)]) == 0
    for path in (run, workload):
        document = json.loads(path.read_text())
        for metric in ("effective_speedup", "fallback_rate", "metadata_overhead", "tensor_occupancy"):
            assert find(document, metric) is not None, (path, metric)
        assert 0.0 < find(document, "metadata_overhead").value < 0.3
    capsys.readouterr()


def test_the_command_prints_writes_and_exits(tmp_path, capsys):
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY)
    good, bad, vague = (tmp_path / f"{name}.json" for name in ("good", "bad", "vague"))
    good.write_text(json.dumps(workload_run(1.5)))
    bad.write_text(json.dumps(workload_run(1.5, fallback=0.5)))
    vague.write_text(json.dumps(workload_run(1.25)))
    junit, report = tmp_path / "gates.xml", tmp_path / "gates.json"
    status = [
        main(["gate", str(policy), str(run), "--junit", str(junit), "--json", str(report)])
        for run in (good, vague, bad)
    ]
    assert status == [0, 3, 1]
    shown = capsys.readouterr().out
    assert "fail       fallback_rate: the whole interval is on the bad side; rollback: pad the layers" in shown
    suite = xml.fromstring(junit.read_text())
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("2", "1", "0")
    assert suite.find("testcase/failure").get("message") == "the whole interval is on the bad side"
    document = json.loads(report.read_text())
    assert document["state"] == "fail"
    assert document["gates"][1]["owner"] == "kernels"
    assert [gate["rollback"] for gate in document["gates"]] == [None, "pad the layers"]


def test_faults_of_a_policy_are_named_together(tmp_path, capsys):
    text = """
    [policy]
    model_error = { speedup = 2.0 }
    [[gates]]
    metric = "effective_speadup"
    min = 1.0
    max = 2.0
    owner = ""
    colour = "red"
    [[gates]]
    metric = "fallback_rate"
    max = "few"
    owner = "o"
    rollback = "r"
    """
    with pytest.raises(UserError) as caught:
        policy_of(tmp_path, text)
    paths = [line.split(": ")[1] for line in caught.value.problems]
    assert paths == [
        "policy.model_error.speedup", "gates[0].colour", "gates[0].owner", "gates[0].rollback", "gates[0].metric",
        "gates[0]", "gates[1].max",
    ]  # fmt: skip
    assert "did you mean 'effective_speedup'" in str(caught.value)
    with pytest.raises(UserError, match="at least one"):
        policy_of(tmp_path, "")
    with pytest.raises(UserError, match="each name once"):
        policy_of(tmp_path, POLICY + POLICY.split("model_error")[1].split("\n", 1)[1])
    (tmp_path / "policy.toml").write_text(POLICY)
    assert main(["gate", str(tmp_path / "policy.toml"), str(tmp_path / "none.json")]) == 2
    assert "none.json: expected a run's JSON, found No such file or directory" in capsys.readouterr().err


HUGE = 10**400  # JSON and TOML have integers of any length


@pytest.mark.parametrize("value", [HUGE, -HUGE, True, "1.3", "nan", math.nan, math.inf, None, [1.3], {}, {"mean": "2"}])
def test_what_is_no_number_in_a_run_leaves_a_gate_undecided(tmp_path, value):
    (tmp_path / "policy.toml").write_text(POLICY)
    (tmp_path / "run.json").write_text(json.dumps({"speedup": value, "path": "sparse", "pattern": "2:4"}))
    assert main(["gate", str(tmp_path / "policy.toml"), str(tmp_path / "run.json"), "--json", str(tmp_path / "o")]) == 3
    states = [gate["state"] for gate in json.loads((tmp_path / "o").read_text())["gates"]]
    assert states == ["undecided", "pass"]
    with pytest.raises(UnfitRun):
        find({"a": value}, "any", path="a")
    # nor is it passed over where another run has the metric
    runs = [("good", {"speedup": 2.0}), ("bad", {"speedup": value})]
    verdicts = judge(policy_of(tmp_path), runs).verdicts
    assert [(v.state, v.run) for v in verdicts[:2]] == [("pass", "good"), ("undecided", "bad")]
    assert verdicts[1].why.startswith("expected a")


def test_a_count_that_no_float_holds_is_no_value():
    row = {"launches": HUGE, "gemm": {"counters": {"metadata_bytes": 1, "l2_read_bytes": 2}}}
    gain = {"metric": "output_tokens_per_s", "total": {"mean": 1e6, "low": 1e6, "high": 1e6}}
    for run, metric in (({"rows": [row]}, "metadata_overhead"), ({"gains": [gain]}, "effective_speedup")):
        with pytest.raises(UnfitRun):
            find(run, metric)


def test_a_value_whose_interval_nobody_knows_decides_nothing(tmp_path, capsys):
    """One replication, or a figure without samples, beside a trace, which has no other replication."""
    load = ["--requests", "6", "--prompt", "40", "--output", "4"]
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,20,3\n0.1,30,4\n")
    states = []
    text = POLICY.replace('"effective_speedup"\nmin = 1.2', '"e2e_p99_s"\nmax = 100')
    for options in (["--replications", "1"], ["--replications", "2"], ["--trace", str(trace)]):
        out = tmp_path / "run.json"
        assert main(["serve", "llama-3.2-1b", "--gpu", "rtx4090", *load, *options, "--json", str(out)]) == 0
        report = judge(policy_of(tmp_path, text), [("run", json.loads(out.read_text()))])
        states.append([verdict.state for verdict in report.verdicts])
    assert states == [["undecided"] * 2, ["pass"] * 2, ["pass"] * 2]
    value = {"metric": "ppl", "better": "lower", "value": 10.0}
    entries = [{"model": "a", **value}, {"model": "a", "pattern": "2:4", "method": "x", **value}]
    quality = {"study": "s", "entries": entries}
    (tmp_path / "q.json").write_text(json.dumps(quality))
    assert main(["quality", str(tmp_path / "q.json"), "--json", str(tmp_path / "drifts.json")]) == 0
    for file in ("q.json", "drifts.json"):  # as it is given, and as `quality` judged it
        with pytest.raises(UnfitRun, match="expected a value with a known interval"):
            find(json.loads((tmp_path / file).read_text()), "quality_drift")
    capsys.readouterr()


def test_what_of_names_is_sought_in_all_runs_and_a_typo_is_told(tmp_path):
    text = POLICY.replace('metric = "effective_speedup"', 'metric = "effective_speedup"\nof = "e2e_p95"')
    verdict = judge(policy_of(tmp_path, text), [("r.json", SERVING)]).verdicts[0]
    assert verdict.state == "undecided"
    assert verdict.why.startswith("no run has effective_speedup; r.json: of: expected one of output_tokens_per_s")
    assert verdict.why.endswith("found 'e2e_p95' (did you mean 'e2e_p95_s'?)")
    value = {"metric": "loss", "better": "lower", "value": 1.0, "low": 0.9, "high": 1.1}
    files = [
        (name, {"study": name, "entries": [{"model": name, **value}, {"model": name, "pattern": "2:4", "method": "x",
                                                                      **value}]})
        for name in ("a", "b")
    ]  # fmt: skip
    text = POLICY.replace('metric = "effective_speedup"', 'metric = "quality_drift"\nof = "b/2:4/x"')
    assert judge(policy_of(tmp_path, text), files).verdicts[0].run == "b"
    verdict = judge(policy_of(tmp_path, text.replace("b/2:4/x", "b/2:4/y")), files).verdicts[0]
    assert verdict.why.count("found 'b/2:4/y'") == 2
    # a file without slices has no drift of slices; a run of another kind has none either
    text = POLICY.replace('"effective_speedup"', '"quality_slice_drift"')
    assert (
        judge(policy_of(tmp_path, text), [*files, ("r", SERVING)]).verdicts[0].why == "no run has quality_slice_drift"
    )


def test_a_malformed_quality_file_is_no_undecided_gate(tmp_path, capsys):
    (tmp_path / "policy.toml").write_text(POLICY)
    entry = {"model": "a", "metric": "loss", "better": "down", "value": "1"}
    (tmp_path / "q.json").write_text(json.dumps({"study": "s", "entries": [entry]}))
    assert main(["gate", str(tmp_path / "policy.toml"), str(tmp_path / "q.json")]) == 2
    shown = capsys.readouterr().err
    assert "q.json: entries[0].better: expected 'higher' or 'lower', found 'down'" in shown
    assert "q.json: entries[0].value: expected a number, found '1'" in shown
    assert "at least 1 item" not in shown  # there is one, and it is named


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ('name = "chat"', "name = 3", "policy.name"),
        ('name = "chat"', 'name = " "', "policy.name"),
        ('metric = "effective_speedup"', 'metric = "mine"\npath = ""', "gates[0].path"),
        ('metric = "effective_speedup"', 'metric = "effective_speedup"\nof = ""', "gates[0].of"),
        ('metric = "effective_speedup"', 'metric = "effective_speedup"\nname = ""', "gates[0].name"),
    ],
)
def test_an_empty_text_says_nothing(tmp_path, old, new, field):
    assert old in POLICY
    with pytest.raises(UserError, match=rf"{re.escape(field)}: expected text, found"):
        policy_of(tmp_path, POLICY.replace(old, new))


@pytest.mark.parametrize("key", ["min = 1.2", "speedup = 0.1"])
def test_a_threshold_that_no_float_holds_is_refused(tmp_path, key):
    with pytest.raises(UserError, match=r"expected a (number|share)"):
        policy_of(tmp_path, POLICY.replace(key, f"{key.split('=')[0]}= {HUGE}"))


@pytest.mark.parametrize("odd", ["\\u0000", "\\u001b", "\\uFFFE", "\\u007f", "]]>&<", "é\\U0001F600"])
def test_junit_is_well_formed_whatever_the_names(tmp_path, odd):
    (tmp_path / "policy.toml").write_text(POLICY.replace('"chat"', f'"chat{odd}"').replace('"perf"', f'"perf{odd}"'))
    (tmp_path / "run.json").write_text(json.dumps({"speedup": 1.0, "path": "sparse", "pattern": "2:4"}))
    junit = tmp_path / "junit.xml"
    assert main(["gate", str(tmp_path / "policy.toml"), str(tmp_path / "run.json"), "--junit", str(junit)]) == 1
    suite = xml.fromstring(junit.read_text(encoding="utf-8"))
    assert suite.get("name").startswith("chat")
    assert "owner perf" in suite.find("testcase/failure").text


def test_a_byte_order_mark_is_no_part_of_what_users_write(tmp_path):
    assert policy_of(tmp_path, "\ufeff" + POLICY) == policy_of(tmp_path)
    owners = tmp_path / "OWNERS"
    owners.write_text("\ufeff* @all\n", encoding="utf-8")
    assert load_owners(owners).of(["mechanism:dram"]) == "@all"
