"""The runtime against closed forms: streams, graphs, the host, co-running kernels; results as files."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparsesim import runtime
from sparsesim.errors import UserError
from sparsesim.hardware import load_gpu, override
from sparsesim.protocol import TIMINGS, Protocol, interval_s
from sparsesim.results_workload import RunRecord, WorkloadResult, _content_hash
from sparsesim.runtime import SHARED, run_workload
from sparsesim.simulator import Simulator
from sparsesim.workload import Gemm, Workload, load_workload

US = 1e6
N = 7
STREAM = Protocol("stream", "warm")
GRAPH = Protocol("graph", "warm")
KERNEL = Protocol("kernel", "warm")
#: a few CTAs, all CTA slots, and between the two
SMALL = Gemm("small", m=64, n=64, k=256)
FULL = Gemm("full", m=4096, n=4096, k=512)
THIN = Gemm("thin", m=2048, n=16, k=2048)


def simulator(host_us: float = 9.0) -> Simulator:
    """RTX 4090 behind a host that needs `host_us` for a call."""
    return Simulator(override(load_gpu("rtx4090"), {"launch.host_call": host_us / US}))


FAST, SLOW = simulator(0.01), simulator(500.0)


def times(op: Gemm, count: int) -> Gemm:
    """`op`, `count` times."""
    return renamed(op, op.name, count)


def renamed(op: Gemm, name: str, count: int = 1) -> Gemm:
    """`op` under another name, `count` times."""
    return Gemm(name, m=op.m, n=op.n, k=op.k, pattern=op.pattern, count=count)


def run(*ops: Gemm, on: Simulator = FAST, protocol: Protocol = STREAM, **options: Any) -> RunRecord:
    """The run of `ops`, and not their baseline."""
    return run_workload(ops, on, protocol, **options).sparse


def close(value: float) -> Any:
    """Equal but for the order of summation."""
    return pytest.approx(value, rel=1e-10)


# --- one stream, one graph ---


@pytest.mark.parametrize("timing", TIMINGS)
@pytest.mark.parametrize("op", [SMALL, THIN, FULL], ids=lambda op: op.name)
def test_steady_interval_is_that_of_the_protocol(op: Gemm, timing: str) -> None:
    protocol = Protocol(timing, "warm")
    for on in (FAST, SLOW):
        launch = on.gemm(op, protocol).launch
        interval = US * interval_s(on.gpu, timing, launch.seconds, launch.launches)[0]
        few = run(times(op, 3), on=on, protocol=protocol)
        many = run(times(op, 3 + N), on=on, protocol=protocol)
        assert (many.makespan_us - few.makespan_us) / N == close(interval)
        assert interval == close(on.gemm(op, protocol).time_us)


def test_dependent_launches_when_the_device_is_the_bound() -> None:
    launch = FAST.gpu.launch
    interval = FAST.gemm(FULL, STREAM).time_us
    record = run(times(FULL, N))
    assert record.makespan_us == close(US * (launch.host_call - launch.stream_gap) + N * interval)
    assert record.gap_us == close(US * launch.stream_gap * (N - 1))
    assert record.host_us == close(US * launch.host_call)
    assert record.kernel_us == close(record.busy_us)


def test_dependent_launches_when_the_host_is_the_bound() -> None:
    kernel = SLOW.gemm(SMALL, KERNEL).time_us
    record = run(times(SMALL, N), on=SLOW)
    assert record.makespan_us == close(N * 500.0 + kernel)
    assert record.host_bound > 0.9
    assert record.busy_us == close(N * kernel)
    # between two calls the gap comes first, then the wait
    assert record.host_us == close(N * 500.0 - (N - 1) * (kernel + US * SLOW.gpu.launch.stream_gap))


def test_host_timing_pays_the_framework() -> None:
    on = Simulator(override(FAST.gpu, {"launch.framework_call": 500e-6}))
    kernel = on.gemm(SMALL, KERNEL).time_us
    assert run(times(SMALL, N), on=on, protocol=Protocol("host", "warm")).makespan_us == close(N * 500.0 + kernel)


def test_graph_is_one_host_call() -> None:
    launch = SLOW.gpu.launch
    interval = SLOW.gemm(SMALL, GRAPH).time_us
    expected = US * (launch.host_call - launch.graph_gap) + N * interval
    record = run(times(SMALL, N), on=SLOW, protocol=GRAPH)
    assert record.makespan_us == close(expected)
    assert record.host_us == close(US * launch.host_call)
    assert record == run(times(SMALL, N), on=SLOW, graph=True)
    assert record.makespan_us < run(times(SMALL, N), on=SLOW).makespan_us
    on_fast = run(times(SMALL, N), graph=True)
    assert on_fast.makespan_us < run(times(SMALL, N)).makespan_us


def test_passes_over_a_graph() -> None:
    launch = FAST.gpu.launch
    one = run(times(SMALL, N), graph=True)
    three = run(times(SMALL, N), graph=True, repeats=3)
    period = one.makespan_us - US * launch.host_call + US * launch.stream_gap
    assert three.pass_us == close(period)
    assert three.passes_us == tuple(close(one.makespan_us + i * period) for i in range(3))
    host_bound = run(SMALL, on=SLOW, graph=True, repeats=3)
    assert host_bound.pass_us == close(500.0)


def test_passes_over_a_stream_are_more_launches() -> None:
    a, b = run(times(SMALL, 2), times(FULL, 2), repeats=3), run(times(SMALL, 6), times(FULL, 6))
    assert a.makespan_us == close(b.makespan_us)
    assert a.timeline == b.timeline


@pytest.mark.parametrize("graph", [False, True])
def test_passes_do_not_mix(graph: bool) -> None:
    # stream 0 has less to do, and waits at the end of each pass
    ops = renamed(SMALL, "short", 2), times(THIN, 5)
    record = run(*ops, streams=2, graph=graph, repeats=4)
    starts = [interval.start_us for interval in record.timeline if interval.row == 0][::2]
    gap = US * FAST.gpu.launch.stream_gap
    assert all(start >= end + gap - 1e-6 for start, end in zip(starts[1:], record.passes_us, strict=False))
    periods = [b - a for a, b in zip(record.passes_us, record.passes_us[1:], strict=False)]
    assert periods == [close(record.pass_us)] * 3


def test_ops_are_issued_in_rounds() -> None:
    rows = [interval.row for interval in run(times(SMALL, 2), times(FULL, 3), THIN).timeline]
    assert rows == [0, 1, 2, 0, 1, 1]


# --- several streams ---


def test_small_kernels_of_two_streams_overlap() -> None:
    a, b = renamed(SMALL, "a", N), renamed(SMALL, "b", N)
    kernel = FAST.gemm(SMALL, KERNEL).time_us
    launch = FAST.gemm(SMALL, KERNEL).launch
    assert 2 * launch.ctas <= launch.sms * launch.slots
    one = run(a, b, protocol=KERNEL)
    two = run(a, b, protocol=KERNEL, streams=2)
    assert one.makespan_us == close(2 * N * kernel)
    assert two.makespan_us == close(N * kernel)
    assert (two.concurrency, two.tensor_busy) == (close(2.0), close(2 * one.tensor_busy))
    # in streams with gaps too: the host is the only thing they share
    streams = run(a, b, streams=2)
    interval = FAST.gemm(SMALL, STREAM).time_us
    host, gap = US * FAST.gpu.launch.host_call, US * FAST.gpu.launch.stream_gap
    assert streams.makespan_us == close(2 * host - gap + N * interval)


def test_full_kernels_of_two_streams_serialise() -> None:
    a, b = renamed(FULL, "a", N), renamed(FULL, "b", N)
    record = run(a, b, protocol=KERNEL, streams=2)
    assert record.makespan_us == close(2 * N * FAST.gemm(FULL, KERNEL).time_us)
    assert record.concurrency == close(1.0)
    # one stream's gap hides behind the other's kernel
    with_gaps = run(a, b, streams=2)
    assert with_gaps.gap_us == 0.0
    assert with_gaps.makespan_us < run(a, b).makespan_us


def test_overlap_is_limited_by_what_kernels_share() -> None:
    # two of them want more of this DRAM than it has
    on = Simulator(override(FAST.gpu, {"dram.bytes_per_s": 5e9}))
    protocol = Protocol("kernel", "rotating")
    launch = on.gemm(SMALL, protocol).launch
    wanted = max(launch.counters[name] for name in SHARED)
    assert wanted == launch.counters["dram_busy"] > 0.5
    record = run(renamed(SMALL, "a"), renamed(SMALL, "b"), on=on, protocol=protocol, streams=2)
    alone = on.gemm(SMALL, protocol).time_us
    assert record.makespan_us == close(alone + US * launch.seconds * (2 * wanted - 1.0))
    assert record.concurrency == close(2.0)


def test_more_streams_than_room() -> None:
    launch = FAST.gemm(SMALL, KERNEL).launch
    room = launch.sms * launch.slots // launch.ctas
    ops = [renamed(SMALL, f"op{i}") for i in range(room + 1)]
    at_once, later = (
        run(*ops[:-1], protocol=KERNEL, streams=room),
        run(*ops, protocol=KERNEL, streams=room + 1),
    )
    assert at_once.concurrency == close(room)
    assert later.makespan_us > at_once.makespan_us
    assert [interval.stream for interval in later.timeline if interval.start_us > 0.0] == [room]


def test_queue_depth_holds_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    quick, long = renamed(SMALL, "quick", 10), Gemm("long", m=16, n=16, k=16384, count=10)

    def last_quick() -> float:
        record = run(quick, long, streams=2)
        return max(interval.end_us for interval in record.timeline if interval.row == 0)

    deep = last_quick()
    monkeypatch.setattr(runtime, "QUEUE_DEPTH", 1)
    assert last_quick() > 1.5 * deep


def test_idle_streams_change_nothing() -> None:
    assert run(SMALL, FULL, streams=2) == run(SMALL, FULL, streams=5)


# --- results ---


@pytest.fixture(scope="module")
def decode() -> WorkloadResult:
    """Llama 3.2 1B, 64 sequences, in one stream."""
    workload = load_workload("llama-3.2-1b", tokens=64, phase="decode")
    return run_workload(workload, simulator(), Protocol("stream", "rotating"))


@pytest.fixture(scope="module")
def mixed() -> WorkloadResult:
    """Sparse, dense and refused ops, passes in a graph of two branches."""
    ops = (
        Gemm("good", m=1024, n=512, k=1024, pattern="2:4", count=3),
        Gemm("odd", m=1000, n=512, k=1024, pattern="2:4", count=2),
        Gemm("side", m=1024, n=512, k=1024, pattern="2:4", sparse_operand="B"),
        Gemm("dense", m=1024, n=512, k=1024, count=4),
    )
    return run_workload(Workload("mixed", "", "", ops), simulator(), GRAPH, streams=2, repeats=2)


def test_decode(decode: WorkloadResult) -> None:
    assert decode.launches == 16 * 4 + 1
    assert decode.speedup > 1.1
    assert 1.0 < decode.nominal_speedup < 2.0
    head = decode.rows[-1]
    assert (head.name, head.is_fallback) == ("decode-64/lm_head", False)
    assert head.speedup == pytest.approx(1.0, rel=1e-12)
    assert not decode.fallbacks
    # two bits for each kept weight, at least once in each launch
    kept = sum(row.launches * row.gemm["m"] * row.gemm["k"] / 2 for row in decode.rows[:-1])
    assert decode.metadata_bytes >= kept * 2 / 8
    for run_ in (decode.sparse, decode.dense):
        assert 0.0 < run_.tensor_busy < 1.0
        assert run_.host_us + run_.gap_us + run_.busy_us == close(run_.makespan_us)


def test_packaged_graph_of_images() -> None:
    workload = load_workload("vit-l-16", tokens=1)
    seen: list[tuple[int, int, str]] = []
    result = run_workload(workload, simulator(), Protocol("stream"), graph=True, progress=lambda *now: seen.append(now))
    assert seen == [(i, 6, op.name) for i, op in enumerate(workload.ops, 1)]
    # 197 tokens are no multiple of 8
    (refused,) = result.fallbacks
    assert (refused.reason, refused.launches, refused.ops) == ("shape-alignment", 96, 4)
    assert (result.speedup, result.metadata_bytes) == (1.0, 0.0)
    assert result.sparse == result.dense


def test_path_accounting(mixed: WorkloadResult) -> None:
    assert {share.reason: share.launches for share in mixed.paths} == {
        "eligible": 6,
        "shape-alignment": 4,
        "operand-side": 2,
        "dense-weight": 8,
    }
    assert {share.reason for share in mixed.fallbacks} == {"shape-alignment", "operand-side"}
    for share in ("launch_share", "flop_share", "time_share"):
        assert math.fsum(getattr(path, share) for path in mixed.paths) == close(1.0)
    assert sum(path.launches for path in mixed.paths) == mixed.launches == 20
    assert sum(path.flops for path in mixed.paths) == mixed.flops
    assert math.fsum(path.time_us for path in mixed.paths) == close(mixed.sparse.kernel_us)
    macs = {row.name: row.gemm["m"] * row.gemm["n"] * row.gemm["k"] for row in mixed.rows}
    assert {row.name: row.flops for row in mixed.rows} == {
        "good": 12 * macs["good"],
        "odd": 8 * macs["odd"],
        "side": 4 * macs["side"],
        "dense": 16 * macs["dense"],
    }
    assert [row.stream for row in mixed.rows] == [0, 1, 0, 1]


def test_equal_runs_give_equal_bytes(decode: WorkloadResult) -> None:
    workload = load_workload("llama-3.2-1b", tokens=64, phase="decode")
    again = run_workload(workload, simulator(), Protocol("stream", "rotating"))
    assert json.dumps(again.to_dict()) == json.dumps(decode.to_dict())


def test_timeline_is_kept_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(times(SMALL, 5))
    monkeypatch.setattr(runtime, "TIMELINE_LIMIT", 3)
    part = run(times(SMALL, 5))
    assert (part.launches, part.timeline) == (5, whole.timeline[:3])


# --- files ---


def test_saved_and_loaded(mixed: WorkloadResult, decode: WorkloadResult, tmp_path: Path) -> None:
    for result in (mixed, decode):
        path = tmp_path / "result.json"
        result.save(path)
        loaded = WorkloadResult.load(path)
        assert loaded == result
        assert loaded.to_dict() == result.to_dict()
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]
    assert decode.to_dict()["provenance"] == {
        "version": decode.version,
        "gpu_hash": decode.gpu_hash,
        "workload_digest": load_workload("llama-3.2-1b", tokens=64, phase="decode").digest(),
        "stack": "cusparselt",
        "protocol": {"timing": "stream", "l2": "rotating", "locked_hz": None},
        "seed": 0,
    }


def broken(path: Path) -> str:
    """The one-line error of loading `path`, without the folder."""
    with pytest.raises(UserError) as caught:
        WorkloadResult.load(path)
    assert all("\n" not in line for line in caught.value.problems)
    return str(caught.value).replace(f"{path.parent}/", "")


def test_half_written_files(mixed: WorkloadResult, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    mixed.save(path)
    data = path.read_bytes()
    for size in (0, 1, len(data) // 2, len(data) - 3):
        path.write_bytes(data[:size])
        assert "expected valid JSON" in broken(path)
    for text, expected in (
        (b"\xff\xfe", "expected UTF-8 text"),
        (b'{"a": NaN}', "expected valid JSON, found an error: NaN is no number"),
        (b"[" * 100_000, "expected valid JSON"),
        (b"[]", "a JSON object"),
        (b"{}", "schema: expected"),
    ):
        path.write_bytes(text)
        assert expected in broken(path)
    assert "expected a result file" in broken(tmp_path / "none.json")
    assert "expected a result file" in broken(tmp_path)


def set_speedup(document: dict[str, Any]) -> None:
    document["speedup"] = 3.0


def set_count(document: dict[str, Any]) -> None:
    document["rows"][0]["count"] = 4


def set_busy(document: dict[str, Any]) -> None:
    document["sparse"]["busy_us"] += 1.0


def drop_row(document: dict[str, Any]) -> None:
    del document["rows"][1]


def drop_field(document: dict[str, Any]) -> None:
    del document["rows"][0]["share"]


def set_path(document: dict[str, Any]) -> None:
    document["rows"][1]["gemm"]["path"] = "sparse"


def set_type(document: dict[str, Any]) -> None:
    document["dense"]["timeline"] = [["0"]]


def set_counters(document: dict[str, Any]) -> None:
    document["rows"][1]["gemm"]["counters"] = None


@pytest.mark.parametrize(
    "change", [set_speedup, set_count, set_busy, drop_row, drop_field, set_path, set_type, set_counters]
)
def test_changed_files(mixed: WorkloadResult, tmp_path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = tmp_path / "result.json"
    mixed.save(path)
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    assert "content_hash: expected" in broken(path)
    # even a fitting hash does not make wrong numbers a result
    del document["content_hash"]
    document["content_hash"] = _content_hash(document)
    path.write_text(json.dumps(document))
    assert "fit together" in broken(path) or "follows from the others" in broken(path)


def test_failed_save_leaves_the_old_file(
    mixed: WorkloadResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "result.json"
    path.write_text("old")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(UserError, match="No space left"):
            mixed.save(path)
    assert [(item.name, item.read_text()) for item in tmp_path.iterdir()] == [("result.json", "old")]
    with pytest.raises(UserError, match="a file that can be written"):
        mixed.save(tmp_path / "no" / "folder.json")


# --- arguments ---


def test_wrong_arguments_are_named_at_once() -> None:
    with pytest.raises(UserError) as caught:
        run_workload((SMALL,), FAST, Protocol("steam", "wram"), streams=0, repeats=True)  # type: ignore[arg-type]
    assert [line.split(": expected")[0] for line in caught.value.problems] == [
        "run: streams",
        "run: repeats",
        "timing",
        "l2",
    ]
    assert "did you mean 'stream'" in str(caught.value)
    with pytest.raises(UserError, match="at most 1000000 launches"):
        run_workload((times(SMALL, 1000),), FAST, STREAM, repeats=1001)
    with pytest.raises(UserError, match="at least one op"):
        run_workload((), FAST, STREAM)
    with pytest.raises(UserError, match="unique names"):
        run_workload((SMALL, SMALL), FAST, STREAM)


def test_records_reject_broken_identities() -> None:
    good = {"passes_us": (3.0,), "launches": 1, "tensor_busy": 0.5, "timeline": ()}
    RunRecord(makespan_us=3.0, busy_us=1.0, gap_us=1.0, host_us=1.0, kernel_us=1.0, **good)  # type: ignore[arg-type]
    for times_, wrong in (
        ((3.0, 1.0, 1.0, 2.0, 1.0), {}),
        ((3.0, 1.0, 1.0, 1.0, 0.5), {}),
        ((3.0, 1.0, 1.0, 1.0, 1.0), {"passes_us": (2.0,)}),
        ((3.0, 1.0, 1.0, 1.0, 1.0), {"tensor_busy": 1.5}),
        ((3.0, 1.0, 1.0, 1.0, 1.0), {"timeline": ((0, 0, 2.0, 1.0),)}),
        ((3.0, 1.0, 1.0, 1.0, 1.0), {"timeline": ((0, 0, 0.0, 1.0), (0, 0, 1.0, 2.0))}),
    ):
        names = ("makespan_us", "busy_us", "gap_us", "host_us", "kernel_us")
        with pytest.raises(AssertionError):
            RunRecord(**dict(zip(names, times_, strict=True)), **{**good, **wrong})  # type: ignore[arg-type]
