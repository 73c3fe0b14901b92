"""The Chrome trace: valid, balanced, sorted, and its totals are those of the results that it shows."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import sparsesim as ss
from sparsesim.__main__ import main
from sparsesim.chrometrace import SERVER_LABELS, chrome_trace, lanes
from sparsesim.errors import UserError
from sparsesim.runtime import run_workload

GPU = "h100_pcie"
OPS = (
    ss.Gemm("a", 1024, 1024, 1024, dtype="bf16", pattern="2:4", count=2),
    ss.Gemm("split", 256, 64, 8192, dtype="bf16", pattern="2:4"),
    ss.Gemm("b", 512, 512, 512, dtype="bf16"),
)
Trace = dict[str, Any]


def traced(streams: int = 1, timing: str = "stream", graph: bool = False, **options: Any) -> tuple[Trace, Any]:
    simulator = ss.Simulator(ss.load_gpu(GPU))
    result = run_workload(OPS, simulator, ss.Protocol(timing, "warm"), streams, graph)
    # what a viewer reads
    return json.loads(json.dumps(chrome_trace(result, simulator, **options))), result


@pytest.fixture(scope="module", params=[1, 2], ids=["one stream", "two streams"])
def case(request: pytest.FixtureRequest) -> tuple[Trace, Any]:
    return traced(request.param, bins=37, ctas="all")


def spans_of(trace: Trace, kind: str) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event.get("cat") == kind]


def test_events_are_well_formed_and_sorted(case: tuple[Trace, Any]) -> None:
    trace, _ = case
    assert set(trace) == {"traceEvents", "displayTimeUnit", "otherData"}
    last = -1.0
    for event in trace["traceEvents"]:
        assert event["ph"] in ("X", "C", "M")
        assert isinstance(event["name"], str)
        assert event["name"]
        assert type(event["pid"]) is int
        assert type(event["tid"]) is int
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
        if event["ph"] == "C":
            ((_, value),) = event["args"].items()
            assert value >= 0
        if event["ph"] != "M":
            assert event["ts"] >= last
            last = event["ts"]


def test_spans_of_a_thread_nest(case: tuple[Trace, Any]) -> None:
    """A viewer draws a thread as a stack: spans may lie in each other or beside each other, nothing else."""
    trace, _ = case
    stacks: dict[tuple[int, int], list[float]] = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] != "X":
            continue
        stack = stacks[event["pid"], event["tid"]]
        while stack and stack[-1] <= event["ts"] + 1e-7:
            stack.pop()
        end = event["ts"] + event["dur"]
        assert not stack or end <= stack[-1] + 1e-7, event
        stack.append(end)
    assert len(stacks) > 100


def test_processes_and_threads_have_names(case: tuple[Trace, Any]) -> None:
    trace, _ = case
    named = {(e["pid"], e["tid"]) for e in trace["traceEvents"] if e["ph"] == "M" and e["name"] == "thread_name"}
    processes = {e["pid"] for e in trace["traceEvents"] if e["ph"] == "M" and e["name"] == "process_name"}
    assert {(e["pid"], e["tid"]) for e in trace["traceEvents"] if e["ph"] == "X"} == named
    assert {e["pid"] for e in trace["traceEvents"]} == processes


def test_launches_are_those_of_the_run(case: tuple[Trace, Any]) -> None:
    trace, result = case
    for pid, run in ((10, result.sparse), (20, result.dense)):
        launches = [event for event in spans_of(trace, "launch") if event["pid"] == pid]
        shown = sorted((e["tid"], e["name"], e["ts"], e["dur"]) for e in launches)
        expected = sorted((i.stream, result.rows[i.row].name, i.start_us, i.end_us - i.start_us) for i in run.timeline)
        assert len(shown) == len(expected) == run.launches
        for found, wanted in zip(shown, expected, strict=True):
            assert found[:2] == wanted[:2]
            assert found[2:] == pytest.approx(wanted[2:], abs=1e-6)
        assert sum(event["dur"] for event in launches) == pytest.approx(run.kernel_us)


def test_ctas_are_all_there_and_inside_their_launches(case: tuple[Trace, Any]) -> None:
    trace, _ = case
    sizes = {(item["run"], item["op"]): item["ctas"] for item in trace["otherData"]["launches"]}
    for run, pid in (("sparse", 10), ("dense", 20)):
        launches = [event for event in spans_of(trace, "launch") if event["pid"] == pid]
        ctas = [event for event in spans_of(trace, "cta") if event["pid"] == pid + 2]
        assert len(ctas) == sum(sizes[run, launch["name"]] for launch in launches)
        ends = {launch["name"]: launch["ts"] + launch["dur"] for launch in launches}  # of the last one
        for cta in ctas:
            assert cta["ts"] + cta["dur"] <= ends[cta["name"].rpartition(" CTA ")[0]] + 1e-6


def integral(trace: Trace, pid: int, name: str) -> float:
    """Busy time [µs] under a counter track."""
    samples = [
        (e["ts"], e["args"]["busy"])
        for e in trace["traceEvents"]
        if e["ph"] == "C" and e["name"] == name and e["pid"] == pid
    ]
    assert samples[-1][1] == 0.0, "nothing works after the end"
    return sum((after[0] - at) * value / 100.0 for (at, value), after in itertools.pairwise(samples))


def test_counters_add_up_to_those_of_the_launches(case: tuple[Trace, Any]) -> None:
    trace, result = case
    for run, pid in (("sparse", 11), ("dense", 21)):
        launches = {item["op"]: item for item in trace["otherData"]["launches"] if item["run"] == run}
        for server, label in SERVER_LABELS.items():
            busy = sum(
                op.count * launches[op.name]["counters"][f"{server}_busy"] * launches[op.name]["recorded_us"]
                for op in OPS
            )
            # writes that wait in DRAM's queue at the end are in its counter, but not in the launch's time
            slack = 0.02 if server == "dram" else 1e-3
            assert integral(trace, pid, label) == pytest.approx(busy, rel=slack, abs=1e-3), (run, server)
        for op, row in zip(OPS, result.rows, strict=True):
            launch = row.result.launch if run == "sparse" else row.result.dense_launch
            assert launches[op.name]["recorded_us"] == pytest.approx(launch.seconds * 1e6, rel=5e-3)
            for name in ("tensor_busy", "smem_busy", "l2_busy"):
                assert launches[op.name]["counters"][name] == pytest.approx(launch.counters[name], rel=1e-2)


@pytest.mark.parametrize(("timing", "graph"), [("kernel", False), ("graph", True), ("event", False), ("host", False)])
def test_other_timings(timing: str, graph: bool) -> None:
    trace, result = traced(timing=timing, graph=graph, bins=3, ctas="none", runs=("sparse",))
    assert {event["pid"] for event in trace["traceEvents"]} == {10, 11}
    phases = [event for event in spans_of(trace, "phase") if event["pid"] == 10]
    assert sum(event["dur"] for event in phases) == pytest.approx(result.sparse.kernel_us)


def test_lanes_do_not_overlap() -> None:
    assert lanes([(0, 2), (1, 3), (2, 4), (2.5, 3)]) == [0, 1, 0, 2]


def test_api_and_command_write_the_same_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape = {"m": 512, "n": 256, "k": 512}
    path = tmp_path / "gemm.trace.json"
    words = ["timeline", "--gpu", GPU, "-m", "512", "-n", "256", "-k", "512", "--bins", "20", "--out", str(path)]
    assert main(words) == 0
    assert "ui.perfetto.dev" in capsys.readouterr().out
    assert json.loads(path.read_text()) == ss.timeline(GPU, bins=20, **shape)
    first = path.read_bytes()
    assert main([*words, "--json", "-"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["events"] == len(json.loads(first)["traceEvents"])
    assert path.read_bytes() == first
    assert [item.name for item in tmp_path.iterdir()] == [path.name]


def test_mistakes_are_one_line_each(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = {"m": 64, "n": 64, "k": 64}
    for options, message in (
        ({"bins": 0}, "bins: expected an integer from 1"),
        ({"ctas": "some"}, "ctas: expected one of first, all, none"),
        ({"runs": ("both",)}, "runs: expected of sparse, dense"),
    ):
        with pytest.raises(UserError, match=message):
            ss.timeline(GPU, **options, **shape)  # type: ignore[arg-type]
    monkeypatch.setattr("sparsesim.chrometrace.MAX_STEPS", 10)
    with pytest.raises(UserError, match="a launch of at most 10 CTA k-steps"):
        ss.timeline(GPU, m=2048, n=2048, k=512)
    assert main(["timeline", "--gpu", GPU, "--out", str(tmp_path / "no" / "x.json")]) == 2
    assert "--out: expected a file that can be written" in capsys.readouterr().err
