"""Sweeps: points from files, each sub-problem once, kills survived, the same bytes from every executor."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from multiprocessing import active_children
from pathlib import Path

import numpy as np
import pytest

import sparsesim as ss
from sparsesim.sweep.design import Design
from sparsesim.sweep.driver import point_of, run_sweep
from sparsesim.sweep.evaluate import (
    Context,
    Planner,
    Task,
    decode,
    encode,
    evaluate,
    set_context,
)
from sparsesim.sweep.executors import open_executor
from sparsesim.sweep.optimise import optimise
from sparsesim.sweep.parameters import edited
from sparsesim.sweep.spec import read_spec
from sparsesim.sweep.store import open_store

#: 2 x 2 x 2 x 2 x 2 points on 4 boards; cuBLASLt has no sparse path, 2:8 runs as 2:4
GRID = """
name = "grid"
[fixed]
gpu = "a100_pcie_80gb"
n = 256
k = 256
[axes]
m = [256, 512]
pattern = ["2:4", "2:8"]
stack = ["cublaslt", "cusparselt"]
"sm.count" = [54, 108]
dram.bytes_per_s = { low = 1000, high = 2000, steps = 2, unit = "GB/s" }
[proxies]
area = { "sm.count" = 0.7, "l2.bytes" = 0.3 }
"""
#: on each of the 4 boards, for each m: one dense and one sparse launch
GRID_POINTS, GRID_LAUNCHES = 32, 16

#: 40 boards, slow enough to be stopped on the way
MANY = """
name = "many"
[design]
kind = "latin-hypercube"
points = 40
[fixed]
gpu = "a100_pcie_80gb"
m = 1024
n = 1024
k = 1024
[axes]
"sm.count" = { low = 54, high = 160 }
dram.bytes_per_s = { low = 0.5, high = 2, unit = "x", scale = "log" }
"""

SEARCH = """
name = "search"
[fixed]
gpu = "a100_pcie_80gb"
m = 512
n = 256
k = 256
[axes]
"sm.count" = { low = 54, high = 160 }
dram.bytes_per_s = { low = 0.5, high = 2, unit = "x" }
[optimise]
objective = "time_us"
generations = 2
population = 6
seed = 3
[[budgets]]
parameters = { "sm.count" = 0.6, dram.bytes_per_s = 0.4 }
limit = 1.0
"""


def write(folder: Path, text: str, name: str = "sweep.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def spec_of(folder: Path, text: str, search: bool = False):
    return read_spec(write(folder, text), search)


def content(folder: Path) -> dict[str, bytes]:
    """Every file of a store but its lock."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


def problems(folder: Path, text: str) -> str:
    with pytest.raises(ss.UserError) as caught:
        read_spec(write(folder, text))
    return str(caught.value)


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "sparsesim", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_lines(store: Path, count: int) -> None:
    """Until the journal has `count` finished points."""
    journal = store / "journal.jsonl"
    end = time.monotonic() + 120
    while time.monotonic() < end:
        if journal.is_file() and journal.read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.01)
    raise AssertionError("no points were finished")


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    """The grid, run in this process."""
    folder = tmp_path_factory.mktemp("grid")
    summary = run_sweep(spec_of(folder, GRID), folder / "store")
    return folder / "store", summary


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """The forty designs, run in this process without a stop."""
    folder = tmp_path_factory.mktemp("many")
    run_sweep(spec_of(folder, MANY), folder / "store")
    return folder / "store"


# --- points ---


def test_a_grid_has_every_combination_and_keeps_boards_together(tmp_path):
    design = Design(spec_of(tmp_path, GRID))
    found = [design.settings(i) for i in range(len(design))]
    assert len({json.dumps(s, sort_keys=True) for s in found}) == GRID_POINTS
    assert sorted(design.number(i) for i in range(len(design))) == list(range(GRID_POINTS))
    boards = [(s["sm.count"], s["dram.bytes_per_s"]) for s in found]
    assert len({*boards}) == 4
    assert [b for i, b in enumerate(boards) if i == 0 or b != boards[i - 1]] == list(dict.fromkeys(boards))
    assert {b[1] for b in boards} == {1e12, 2e12}


@pytest.mark.parametrize("kind", ["random", "latin-hypercube", "sobol"])
def test_samples_follow_from_the_seed_and_stay_in_bounds(tmp_path, kind):
    text = f"""
    [design]
    kind = "{kind}"
    points = 50
    seed = 7
    [fixed]
    gpu = "rtx4090"
    m = 256
    k = 256
    [axes]
    n = {{ low = 64, high = 512, step = 64 }}
    pattern = ["2:4", "dense"]
    l2.bytes = {{ low = 0.5, high = 2.0, unit = "x", scale = "log" }}
    """
    design = Design(spec_of(tmp_path, text))
    again = Design(spec_of(tmp_path, text))
    other = Design(spec_of(tmp_path, text.replace("seed = 7", "seed = 8")))
    points = [design.settings(i) for i in range(50)]
    assert points == [again.settings(i) for i in range(50)] != [other.settings(i) for i in range(50)]
    assert {p["n"] for p in points} <= set(range(64, 513, 64))
    assert all(type(p["n"]) is int for p in points)
    assert all(0.5 <= p["l2.bytes"] <= 2.0 for p in points)
    assert {p["pattern"] for p in points} == {"2:4", "dense"}
    if kind == "latin-hypercube":  # one point in each fiftieth of the range
        places = np.sort([np.log(p["l2.bytes"] / 0.5) / np.log(4.0) for p in points])
        assert np.all(np.floor(places * 50 - 1e-4).clip(0) <= np.arange(50))
        assert np.all(np.arange(50) <= np.floor(places * 50 + 1e-4))


def test_yaml_and_lists_say_the_same_as_toml(tmp_path):
    toml = spec_of(tmp_path, GRID)
    yaml = read_spec(
        write(
            tmp_path,
            """
            name: grid
            fixed: {gpu: a100_pcie_80gb, n: 256, k: 256}
            axes:
              m: [256, 512]
              pattern: ["2:4", "2:8"]
              stack: [cublaslt, cusparselt]
              sm: {count: [54, 108]}
              dram.bytes_per_s: {low: 1000, high: 2000, steps: 2, unit: GB/s}
            proxies: {area: {sm.count: 0.7, l2.bytes: 0.3}}
            """,
            "sweep.yaml",
        )
    )
    a, b = Design(toml), Design(yaml)
    assert [a.settings(i) for i in range(len(a))] == [b.settings(i) for i in range(len(b))]
    rows = "\n".join(f"[[points]]\nm = {m}\n'sm.count' = {sms}" for m, sms in ((64, 100), (32, 90), (64, 90)))
    listed = Design(spec_of(tmp_path, f"[fixed]\ngpu = 'a100_pcie_80gb'\nn = 64\nk = 64\n{rows}"))
    assert [(listed.number(i), listed.settings(i)["sm.count"]) for i in range(3)] == [(0, 100), (1, 90), (2, 90)]


def test_every_problem_of_a_file_is_named_at_once(tmp_path):
    text = """
    [desing]
    [fixed]
    gpu = "a100_pcie_80g"
    n = 64.5
    patern = "2:4"
    [axes]
    m = [64, 64]
    stack = ["cusparsel"]
    sm.cuont = [1]
    dram.bytes_per_s = { low = 2, high = 1 }
    l2.bytes = { values = [1], unit = "MHz" }
    """
    found = problems(tmp_path, text)
    expected = "desing|'a100_pcie_80gb'|fixed.n: expected an integer|'pattern'|axes.m.values|'cusparselt'|'sm.count'|"
    for part in (expected + "low < high|axes.l2.bytes.unit").split("|"):
        assert part in found, part
    assert all(line.startswith(str(tmp_path)) for line in found.splitlines())


GEMM_OF_K = "[fixed]\ngpu = 'rtx4090'\nm = 1\nn = 1\n[axes]\n"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.json", "{}", ".toml, .yaml or .yml"),
        ("a.toml", "x = [", "valid TOML"),
        ("a.yaml", "a: [", "valid YAML"),
        ("a.yaml", "- 1", "a table"),
        ("a.toml", "[fixed]\ngpu = 'rtx4090'\n[axes]\nm = [64]", "m, n and k"),
        ("a.toml", "[fixed]\nm = 1\nn = 1\n[axes]\nk = [64]", "a GPU"),
        ("a.toml", GEMM_OF_K + "k = {low = 1, high = 3000000, steps = 2000001}", "axes.k.steps"),
        ("a.toml", GEMM_OF_K + "k = [64]\nl2.bytes = [nan]", "axes.l2.bytes: expected a finite number, found nan"),
        ("a.yaml", "fixed: {gpu: rtx4090, m: 1, n: 1, k: 1}\naxes: {dram.latency: [.inf]}", "a finite number"),
        ("a.toml", GEMM_OF_K + f"k = [64]\nl2.bytes = [1{'0' * 400}]", "axes.l2.bytes: expected a finite number"),
        ("a.toml", GEMM_OF_K + "k = [1]\n'cluster.multicast' = {values = [2], unit = 'x'}", None),
    ],
)
def test_bad_files_get_one_clear_message(tmp_path, name, text, expected):
    path = write(tmp_path, text, name)
    if expected is None:  # a switch cannot be multiplied: that is the point's failure
        point = Design(read_spec(path)).settings(0)
        with pytest.raises(ss.UserError, match="a number to multiply"):
            point_of(read_spec(path), point)
        return
    with pytest.raises(ss.UserError, match=expected):
        read_spec(path)


# --- evaluation ---


def test_a_point_is_what_gemm_and_simulate_say(grid, tmp_path):
    table = open_store(grid[0]).table().to_pylist()
    row = next(r for r in table if r["m"] == 512 and r["stack"] == "cusparselt" and r["sm_count"] == 54)
    gpu = edited(ss.load_gpu("a100_pcie_80gb"), {"sm.count": 54, "dram.bytes_per_s": row["dram_bytes_per_s"]})
    result = ss.simulate_gemm(gpu, 512, 256, 256, pattern=row["pattern"])
    assert (row["time_us"], row["dense_time_us"]) == (result.time_us, result.dense_time_us)
    assert row["proxy_area"] == pytest.approx(0.7 * 54 / 108 + 0.3)
    text = "[fixed]\ngpu='rtx4090'\nworkload='llama-3.2-1b'\nphase='decode'\ntiming='stream'\n[axes]\ntokens=[8]"
    run_sweep(spec_of(tmp_path, text), tmp_path / "store")
    (row,) = open_store(tmp_path / "store").table().to_pylist()
    whole = ss.simulate_workload("rtx4090", "llama-3.2-1b", tokens=8, phase="decode", timing="stream")
    assert (row["time_us"], row["speedup"]) == (whole.sparse.makespan_us, whole.speedup)
    assert row["energy_j"] == pytest.approx(
        sum(r.kernel_us * r.result.launch.power_w for r in whole.rows if r.result) * 1e-6
    )


def test_each_sub_problem_runs_once_across_points(grid):
    summary = grid[1]
    assert (summary.done, summary.failed, summary.run) == (GRID_POINTS, 0, GRID_LAUNCHES)
    assert summary.needed == GRID_POINTS + GRID_POINTS // 2


def test_a_plan_names_what_an_evaluation_runs(tmp_path):
    spec = spec_of(tmp_path, GRID)
    context = Context(spec.bases, {})
    set_context(context)
    design = Design(spec)
    settings = next(s for i in range(len(design)) if (s := design.settings(i))["stack"] == "cusparselt")
    point = point_of(spec, settings)
    addresses = Planner().needs(edited(spec.bases[point.base], point.changes), point)
    outcome = evaluate(Task(0, point, {}, context.model))
    assert set(outcome.new) == addresses
    for text in outcome.new.values():
        assert encode(decode(text)) == text
    again = evaluate(Task(0, point, outcome.new, context.model))
    assert (again.new, again.outputs) == ({}, outcome.outputs)


def test_a_setting_equal_to_the_boards_own_is_no_change(tmp_path):
    text = "[fixed]\ngpu='a100_pcie_80gb'\nm=64\nn=64\nk=64\n[axes]\n'sm.count'=[108]\nl2.bytes={values=[1.0],unit='x'}"
    spec = spec_of(tmp_path, text)
    assert point_of(spec, Design(spec).settings(0)).changes == {}


def test_the_baseline_is_a_setting(tmp_path):
    text = GRID.replace('["2:4", "2:8"]', '["2:4"]').replace("[256, 512]", "[2048]")
    text = text.replace('stack = ["cublaslt", "cusparselt"]', 'baseline = ["heuristic", "search"]')
    assert run_sweep(spec_of(tmp_path, text), tmp_path / "store").failed == 0
    rows = open_store(tmp_path / "store").table().to_pylist()
    for row in rows:
        gpu = edited(
            ss.load_gpu(row["gpu"]), {"sm.count": row["sm_count"], "dram.bytes_per_s": row["dram_bytes_per_s"]}
        )
        result = ss.simulate_gemm(gpu, 2048, 256, 256, baseline=row["baseline"])
        assert (row["time_us"], row["dense_time_us"]) == (result.time_us, result.dense_time_us)


def test_factors_that_give_one_count_are_one_board(tmp_path):
    text = """
    [fixed]
    gpu = "a100_pcie_80gb"
    m = 128
    n = 128
    k = 128
    [axes]
    sm.count = { low = 0.985, high = 1.015, steps = 16, unit = "x" }
    """
    summary = run_sweep(spec_of(tmp_path, text), tmp_path / "store")
    boards = {r["gpu_digest"] for r in open_store(tmp_path / "store").table().to_pylist()}
    assert len(boards) == 5  # 106 to 110 SMs
    assert (summary.done, summary.run) == (16, 2 * 5)


def test_patterns_of_the_datapath_are_a_setting_too(tmp_path):
    text = """
    [fixed]
    gpu = "a100_pcie_80gb"
    m = 256
    n = 256
    k = 256
    pattern = "1:4"
    [axes]
    tensor.native_patterns.f16 = [["2:4"], ["1:4", "2:4"]]
    """
    assert run_sweep(spec_of(tmp_path, text), tmp_path / "store").failed == 0
    rows = open_store(tmp_path / "store").table().to_pylist()
    assert [r["tensor_native_patterns_f16"] for r in rows] == ["2:4", "1:4,2:4"]
    assert rows[0]["time_us"] != rows[1]["time_us"]


def test_a_number_that_is_none_fails_its_point(tmp_path, monkeypatch):
    monkeypatch.setattr("sparsesim.sweep.evaluate.proxy", lambda *_: float("nan"))
    assert run_sweep(spec_of(tmp_path, GRID), tmp_path / "store").failed == GRID_POINTS
    error = open_store(tmp_path / "store").table()["error"][0].as_py()
    assert error == "ArithmeticError: no finite number in proxy_area"


def test_a_failing_point_is_recorded_and_the_rest_goes_on(tmp_path):
    text = """
    [fixed]
    gpu = "a100_pcie_80gb"
    m = 256
    n = 256
    k = 256
    [axes]
    dtype = ["f16", "e4m3"]
    clock = ["free", "locked:9000"]
    "sm.count" = [54, 0]
    """
    summary = run_sweep(spec_of(tmp_path, text), tmp_path / "store")
    assert (summary.points, summary.done, summary.failed) == (8, 8, 7)
    rows = open_store(tmp_path / "store").table().to_pylist()
    assert [r["error"] for r in rows if r["status"] == "ok"] == [""]
    errors = {(r["dtype"], r["clock"], r["sm_count"]): r["error"] for r in rows if r["status"] == "failed"}
    assert "e4m3" in errors["e4m3", "free", 54]
    assert "locked:<MHz> between" in errors["f16", "locked:9000", 54]
    assert "sm.count" in errors["f16", "free", 0]
    assert all(r["time_us"] is None for r in rows if r["status"] == "failed")


# --- stopping, killing, going on ---


def test_a_killed_sweep_goes_on_and_ends_with_the_same_bytes(many, tmp_path):
    file, store = write(tmp_path, MANY), tmp_path / "store"
    process = start("sweep", str(file), "--out", str(store), "--jobs", "2")
    wait_for_lines(store, 8)
    process.kill()
    process.communicate()
    journal = store / "journal.jsonl"
    finished = journal.read_bytes().count(b"\n")
    assert 8 <= finished < 40
    assert not open_store(store).is_complete
    journal.write_bytes(journal.read_bytes() + b'0badcafe [39,{"poi')  # half-written when it was killed
    done = start("sweep", str(file), "--out", str(store), "--jobs", "2", "--json", "-")
    out, err = done.communicate()
    assert done.returncode == 0, err
    summary = json.loads(out)
    assert (summary["before"], summary["done"], summary["failed"]) == (finished, 40, 0)
    assert summary["run"] == 2 * (40 - finished)  # a dense and a sparse launch of each point that was left
    assert content(store) == content(many)


def test_an_interrupted_sweep_stops_cleanly_and_keeps_what_it_has(many, tmp_path):
    file, store = write(tmp_path, MANY), tmp_path / "store"
    process = start("sweep", str(file), "--out", str(store), "--jobs", "1")
    wait_for_lines(store, 3)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate()
    assert process.returncode == 130
    assert "To go on: sparsesim sweep" in err
    assert "Traceback" not in err
    before = len(open_store(store).journal)
    summary = run_sweep(spec_of(tmp_path, MANY), store)
    assert 3 <= before == summary.before < 40
    assert content(store) == content(many)
    assert run_sweep(spec_of(tmp_path, MANY), store).run == 0


def test_a_dead_worker_process_costs_no_point(many, tmp_path):
    killed = []

    def kill_one(done: int, total: int) -> None:
        if done >= 3 and not killed:
            victim = active_children()[0]
            killed.append(victim.pid)
            victim.kill()

    summary = run_sweep(spec_of(tmp_path, MANY), tmp_path / "store", jobs=2, progress=kill_one)
    assert killed
    assert summary.failed == 0
    assert content(tmp_path / "store") == content(many)


class Bomb:
    """A point that ends the process that receives it."""

    def __reduce__(self):
        return os._exit, (1,)


def test_a_point_that_kills_its_worker_is_a_failed_point(tmp_path):
    spec = spec_of(tmp_path, GRID)
    context, design = Context(spec.bases, {}), Design(spec)
    tasks = {i: Task(i, point_of(spec, design.settings(i)), {}, context.model) for i in range(4)}
    tasks[1] = Task(1, Bomb(), {}, context.model)  # type: ignore[arg-type]
    with open_executor(context, 2) as executor:
        for task in tasks.values():
            executor.submit(task)
        found = {}
        while len(found) < 4:
            found.update((o.position, o.outputs) for o in executor.wait())
    assert [found[i]["status"] for i in range(4)] == ["ok", "failed", "ok", "ok"]
    assert "worker process died" in found[1]["error"]


# --- Dask ---


def test_dask_loses_a_worker_and_gives_the_same_bytes(many, tmp_path):
    import distributed

    killed = []
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0", host="127.0.0.1", silence_logs=60
    ) as cluster:

        def kill_one(done: int, total: int) -> None:
            if done >= 3 and not killed:
                nanny = next(iter(cluster.workers.values()))
                killed.append(nanny.pid)
                os.kill(nanny.pid, signal.SIGKILL)

        summary = run_sweep(
            spec_of(tmp_path, MANY), tmp_path / "store", cluster=cluster.scheduler_address, progress=kill_one
        )
    assert killed
    assert (summary.done, summary.failed) == (40, 0)
    assert content(tmp_path / "store") == content(many)


def test_no_scheduler_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr("sparsesim.sweep.executors.CONNECT_S", 0.5)
    with pytest.raises(ss.UserError, match=r"--cluster: expected a Dask scheduler at tcp://127\.0\.0\.1:9"):
        run_sweep(spec_of(tmp_path, GRID), tmp_path / "store", cluster="tcp://127.0.0.1:9")
    for address in ("nonsense", "tcp://host", "http://host:1", "tcp://:8786"):
        with pytest.raises(ss.UserError, match="--cluster: expected local, or an address"):
            run_sweep(spec_of(tmp_path, GRID), tmp_path / "store", cluster=address)


def test_a_lost_scheduler_is_an_error_and_no_failed_point(many, tmp_path, monkeypatch):
    import distributed

    monkeypatch.setattr("sparsesim.sweep.executors.CHECK_S", 0.2)
    cluster = distributed.LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        dashboard_address="127.0.0.1:0",
        host="127.0.0.1",
        silence_logs=60,
    )

    def close(done: int, total: int) -> None:
        if done >= 3:
            cluster.close()

    with pytest.raises(ss.UserError, match=r"--cluster: expected the Dask scheduler at .* lost it; finished points"):
        run_sweep(spec_of(tmp_path, MANY), tmp_path / "store", cluster=cluster.scheduler_address, progress=close)
    rows = open_store(tmp_path / "store").table().to_pylist()
    assert len(rows) >= 3
    assert {row["status"] for row in rows} == {"ok"}
    assert run_sweep(spec_of(tmp_path, MANY), tmp_path / "store").failed == 0
    assert content(tmp_path / "store") == content(many)


def test_processes_give_the_same_bytes_and_share_what_is_run(grid, tmp_path):
    summary = run_sweep(spec_of(tmp_path, GRID), tmp_path / "store", jobs=2)
    assert summary.run == GRID_LAUNCHES
    assert content(tmp_path / "store") == content(grid[0])


# --- optimise ---


def test_optimise_stays_in_its_bounds_and_budget_and_keeps_its_trace(tmp_path):
    spec = spec_of(tmp_path, SEARCH, search=True)
    best = optimise(spec, tmp_path / "store")
    reader = open_store(tmp_path / "store")
    rows = reader.table().to_pylist()
    assert reader.is_complete
    assert len(rows) == best.evaluations
    assert [r["point"] for r in rows] == list(range(len(rows)))
    for row in rows:
        assert 54 <= row["sm_count"] <= 160
        assert 0.6 * row["sm_count"] / 108 + 0.4 * row["dram_bytes_per_s"] <= 1.0 + 1e-6
    assert best.row["time_us"] == min(r["time_us"] for r in rows)
    assert best.start is not None
    assert best.start["generation"] == 0
    assert best.row["time_us"] <= best.start["time_us"]


def test_a_stopped_search_goes_on_to_the_same_bytes(tmp_path):
    spec = spec_of(tmp_path, SEARCH, search=True)
    optimise(spec, tmp_path / "whole")
    counts = []

    def stop(done: int, total: int) -> None:
        counts.append(done)
        if len(counts) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        optimise(spec, tmp_path / "store", progress=stop)
    kept = len(open_store(tmp_path / "store").journal)
    assert kept == 5
    counts[:] = [0] * 5
    optimise(spec, tmp_path / "store", progress=stop)
    assert len(counts) - 5 == open_store(tmp_path / "store").manifest["complete"] - kept
    assert content(tmp_path / "store") == content(tmp_path / "whole")


def test_a_search_without_a_possible_design_says_so(tmp_path):
    text = SEARCH.replace("limit = 1.0", "limit = 0.1").replace("generations = 2", "generations = 1")
    with pytest.raises(ss.UserError, match="within the bounds and budgets, found none"):
        optimise(spec_of(tmp_path, text, search=True), tmp_path / "store")
