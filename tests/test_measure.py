"""Measuring, on a device whose clock, noise, throttling and failures the tests set."""

from __future__ import annotations

import json
import math
import random

import pytest
from fake_gpu import A100, FakeGpu

from sparsesim.errors import UserError
from sparsesim.measure import (
    Budget,
    Case,
    cases_from_grid,
    cases_from_measured,
    cases_from_ops,
    run_session,
    time_kernel,
)
from sparsesim.measure.device import DeviceInfo, KernelError, Telemetry
from sparsesim.measure.files import HEADER
from sparsesim.measure.identify import identify, matches
from sparsesim.measure.session import Settings
from sparsesim.measure.statistics import median, median_interval, summarize
from sparsesim.measure.telemetry import board_state
from sparsesim.measure.timing import LIVE_TIMINGS, copies_needed
from sparsesim.measured import COLUMNS, read_measured
from sparsesim.protocol import Protocol
from sparsesim.workload import Gemm

DENSE = Case(1024, 512, 2048)
SPARSE = Case(1024, 512, 2048, pattern="2:4")
QUICK = Budget(warmup_s=0.01, least_s=0.0, most_s=0.5)
STREAM = Protocol("stream", "warm")


def kernel_of(gpu: FakeGpu, case: Case = DENSE, copies: int = 1):
    return gpu.prepare(case, "cublaslt", "random", copies, 0)


def session(gpu: FakeGpu, tmp_path, cases=(DENSE, SPARSE), **settings):
    chosen = Settings(settings.pop("protocol", STREAM), budget=QUICK, **settings)
    return run_session(
        gpu, list(cases), chosen, tmp_path / "out.csv", "a100_pcie_80gb", "sparsesim measure", lambda: "t"
    )


# --- statistics ---


def test_the_median_interval_is_that_of_the_binomial():
    # n = 10: ranks 2 and 9 cover 97.9 %, ranks 3 and 8 only 89.1 % (David and Nagaraja, table of exact intervals)
    assert median_interval([float(i) for i in range(1, 11)]) == (2.0, 9.0)
    assert median_interval([1.0] * 5) == (0.0, math.inf)
    assert median_interval([float(i) for i in range(1, 7)]) == (1.0, 6.0)


def test_the_interval_covers_the_true_median_as_often_as_it_says():
    draw = random.Random(3)
    hits = 0
    for _ in range(2000):
        low, high = median_interval([draw.expovariate(1.0) for _ in range(25)])
        hits += low <= math.log(2) <= high
    assert 0.94 <= hits / 2000 <= 0.975


def test_outliers_are_named_and_do_not_move_the_median():
    summary = summarize([1.0, 1.001, 0.999, 1.002, 0.998, 1.0, 9.0])
    assert summary.outliers == (9.0,)
    assert summary.median_s == 1.0
    assert summarize([1.0] * 9 + [1.001]).outliers == ()  # the timer's resolution is none
    assert median([3.0, 1.0]) == 2.0


# --- protocols ---


@pytest.mark.parametrize(
    ("timing", "expected"),
    [("stream", 101e-6), ("graph", 100.2e-6), ("event", 100e-6), ("host", 102e-6)],
)
def test_each_protocol_includes_what_it_says(timing, expected):
    gpu = FakeGpu(gap_s=1e-6)
    timed = time_kernel(gpu, kernel_of(gpu), Protocol(timing, "warm"), QUICK)
    slack = {"stream": 1e-6, "event": 2e-6}.get(timing, 5e-7)
    assert timed.summary.median_s == pytest.approx(expected, abs=slack)
    assert timed.converged


def test_a_short_kernel_is_bound_by_the_host_in_a_stream_and_not_in_a_graph():
    gpu = FakeGpu(seconds=lambda case, library: 1e-6, host_s=5e-6)
    stream = time_kernel(gpu, kernel_of(gpu), STREAM, QUICK).summary.median_s
    graph = time_kernel(gpu, kernel_of(gpu), Protocol("graph", "warm"), QUICK).summary.median_s
    assert stream == pytest.approx(5e-6, rel=0.05)
    assert graph == pytest.approx(1.2e-6, rel=0.2)


@pytest.mark.parametrize("timing", ["event", "host"])
def test_cold_flushes_before_each_call_and_does_not_time_the_flush(timing):
    gpu = FakeGpu(cold_s=4e-5)
    timed = time_kernel(gpu, kernel_of(gpu), Protocol(timing, "cold"), QUICK)
    assert timed.summary.median_s == pytest.approx(140e-6, abs=3e-6)
    assert gpu.flushes >= timed.summary.samples


@pytest.mark.parametrize("timing", LIVE_TIMINGS)
def test_rotating_launches_on_every_operand_set_equally_often(timing):
    gpu = FakeGpu()
    time_kernel(gpu, kernel_of(gpu, copies=7), Protocol(timing, "rotating"), QUICK)
    assert sorted(gpu.by_copy) == list(range(7))
    assert max(gpu.by_copy.values()) - min(gpu.by_copy.values()) <= 5  # a warm-up that ends inside a turn


def test_rotating_sets_exceed_l2():
    l2 = A100.l2_bytes
    assert copies_needed("warm", 1000, l2) == 1
    assert copies_needed("rotating", 10 * l2, l2) == 2
    assert copies_needed("rotating", 1000, l2) == 64
    count = copies_needed("rotating", DENSE.operand_bytes, l2)
    assert count * DENSE.operand_bytes > 2.5 * l2


@pytest.mark.parametrize(
    ("timing", "l2", "word"), [("kernel", "warm", "tracer"), ("stream", "cold", "flush"), ("graph", "cold", "flush")]
)
def test_what_cannot_be_measured_live_is_refused(timing, l2, word):
    gpu = FakeGpu()
    with pytest.raises(UserError, match=word):
        time_kernel(gpu, kernel_of(gpu), Protocol(timing, l2))
    assert gpu.launches == 0


def test_repeats_go_on_until_the_median_is_known():
    quiet, noisy = FakeGpu(noise=0.001), FakeGpu(noise=0.1)
    few = time_kernel(quiet, kernel_of(quiet), Protocol("event", "warm"), Budget(batch_s=1e-3, least_s=0.0))
    many = time_kernel(noisy, kernel_of(noisy), Protocol("event", "warm"), Budget(batch_s=1e-3, least_s=0.0))
    assert few.converged
    assert many.converged
    assert many.summary.half_width < 0.01
    assert many.summary.samples > 10 * few.summary.samples
    assert many.summary.median_s == pytest.approx(1e-4, rel=0.02)


def test_sampling_lasts_long_enough_for_the_sensors():
    gpu = FakeGpu(noise=0.001)
    timed = time_kernel(gpu, kernel_of(gpu), STREAM, Budget(least_s=0.3))
    assert timed.converged
    assert timed.summary.samples * timed.calls * 1e-4 >= 0.3
    assert len(timed.readings) >= 10


def test_a_cap_ends_the_repeats_and_says_so():
    gpu = FakeGpu(noise=0.5)
    timed = time_kernel(
        gpu, kernel_of(gpu), Protocol("event", "warm"), Budget(most_samples=40, batch_s=1e-3, least_s=0.0)
    )
    assert not timed.converged
    assert timed.summary.samples >= 40
    gpu = FakeGpu(noise=0.5)
    timed = time_kernel(gpu, kernel_of(gpu), Protocol("event", "warm"), Budget(most_s=0.02, batch_s=1e-3, least_s=0.0))
    assert not timed.converged
    assert gpu.host < 0.5


def test_spikes_are_reported_as_outliers():
    gpu = FakeGpu(noise=0.002, spike_every=50, spike=20.0)
    summary = time_kernel(gpu, kernel_of(gpu), Protocol("event", "warm"), Budget(least_samples=200)).summary
    assert sum(outlier > 1e-3 for outlier in summary.outliers) == pytest.approx(summary.samples / 50, abs=1)
    assert summary.median_s == pytest.approx(1e-4, rel=0.02)


def test_sensors_are_read_while_the_device_works():
    gpu = FakeGpu(seconds=lambda case, library: 1e-3)
    timed = time_kernel(gpu, kernel_of(gpu), STREAM, Budget(batch_s=0.05, telemetry_s=0.01))
    assert len(timed.readings) >= 3
    assert all(gpu.reads)


def test_a_timer_that_runs_backwards_is_no_time():
    gpu = FakeGpu(backwards=True)
    with pytest.raises(KernelError, match="timer"):
        time_kernel(gpu, kernel_of(gpu), STREAM, QUICK)


# --- the board ---


def test_what_makes_a_row_throttled():
    def state(*reasons: str, mhz: float = 1410.0, locked: float | None = None):
        return board_state([Telemetry(mhz, 1593.0, 250.0, 60.0, frozenset(reasons))] * 3, locked)

    assert state().throttled == ()
    assert state("power-cap").reasons == ("power-cap",)
    assert state("power-cap").throttled == ()
    assert state("thermal").throttled == ("thermal",)
    assert state(mhz=1200.0, locked=1410.0).throttled == ("clock-not-locked",)
    assert state(locked=1410.0).throttled == ()
    assert board_state([]).sm_mhz is None


def test_the_board_is_recognised():
    assert identify(A100) == "a100_pcie_80gb"
    assert matches(A100)[0] == "a100_pcie_80gb"
    h200 = DeviceInfo("NVIDIA H200", "", "9.0", 132, 150_000_000_000, 60 << 20, "", "")
    assert identify(h200) == "h200_sxm"
    rtx = DeviceInfo("NVIDIA GeForce RTX 4090", "", "8.9", 128, 25_250_000_000, 72 << 20, "", "")
    assert identify(rtx) == "rtx4090"
    with pytest.raises(UserError, match="none packaged"):
        identify(DeviceInfo("NVIDIA X", "", "12.3", 7, 1, 1, "", ""))
    with pytest.raises(UserError, match="108 SMs"):
        identify(A100, "rtx4090")


# --- cases ---


def test_cases_come_in_pairs_and_once():
    op = Gemm("a", 64, 64, 64, pattern="2:4")
    assert [c.pattern for c in cases_from_ops([op, op], "w")] == ["dense", "2:4"]
    grid = cases_from_grid([256, 512], [], [], ["f16", "bf16"])
    assert len(grid) == 8
    assert (grid[0].m, grid[0].n, grid[0].k) == (256, 256, 256)
    with pytest.raises(UserError, match="all three"):
        cases_from_grid([1], [2], [], ["f16"])
    with pytest.raises(UserError, match="m"):
        cases_from_grid([0], [64], [64], ["f16"])


# --- sessions ---


def test_a_session_writes_rows_of_the_schema(tmp_path):
    gpu = FakeGpu(seconds=lambda case, library: 5e-5 if case.is_sparse else 1e-4, noise=0.002)
    report = session(gpu, tmp_path)
    assert report.complete
    assert report.count("measured") == 2
    rows = read_measured(tmp_path / "out.csv")
    assert [row.pattern for row in rows] == ["dense", "2:4"]
    assert rows[0].pair_key == rows[1].pair_key
    assert rows[0].time_us == pytest.approx(101, rel=0.02)
    assert (tmp_path / "out.csv").read_text().splitlines()[0] == ",".join(HEADER)
    assert HEADER[: len(COLUMNS)] == COLUMNS
    assert cases_from_measured(rows)[0].m == 1024
    provenance = json.loads((tmp_path / "out.provenance.json").read_text())
    assert provenance["facts"]["device"]["driver"] == "580.65"
    assert provenance["facts"]["device"]["power_limit_w"] == 300.0
    assert provenance["sessions"][0]["command"] == "sparsesim measure"
    assert provenance["sessions"][0]["how"] == "complete"
    assert gpu.prepared == gpu.released
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.csv", "out.provenance.json"]


def test_two_sessions_write_the_same_bytes(tmp_path):
    texts = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        session(FakeGpu(noise=0.05, spike_every=30), tmp_path / name)
        texts.append([path.read_bytes() for path in sorted((tmp_path / name).iterdir())])
    assert texts[0] == texts[1]


CASES = [Case(size, 512, 1024, pattern=p) for size in (256, 512, 1024) for p in ("dense", "2:4")]


@pytest.mark.parametrize(
    ("faults", "kind", "final"),
    [
        ({"unsupported": frozenset({f"cusparselt: {CASES[3]}"})}, "unsupported", True),
        ({"broken": frozenset({f"cusparselt: {CASES[3]}"})}, "kernel error", False),
        ({"wrong": {f"cusparselt: {CASES[3]}": 0.7}}, "wrong result", True),
        ({"wrong": {f"cusparselt: {CASES[3]}": math.nan}}, "wrong result", True),
    ],
)
def test_a_kernel_that_fails_is_named_and_the_others_are_measured(tmp_path, faults, kind, final):
    gpu = FakeGpu(**faults)
    report = session(gpu, tmp_path, CASES)
    assert report.complete
    assert [o.kind for o in report.outcomes] == ["measured"] * 3 + [kind] + ["measured"] * 2
    assert len(read_measured(tmp_path / "out.csv")) == 5
    (failure,) = json.loads((tmp_path / "out.provenance.json").read_text())["failures"]
    assert (failure["kind"], failure["final"], failure["case"]) == (kind, final, str(CASES[3]))
    assert gpu.prepared == gpu.released


def test_operands_that_do_not_fit(tmp_path):
    gpu = FakeGpu(memory=3e6)
    report = session(gpu, tmp_path, CASES)
    kinds = [o.kind for o in report.outcomes]
    assert kinds[0] == "measured"
    assert kinds[-2] == "out of memory"


@pytest.mark.parametrize("case", [Case(64, 64, 64, "e2m1"), Case(64, 64, 64, pattern="1:4"), Case(64, 64, 64, batch=2)])
def test_what_no_library_multiplies_live(tmp_path, case):
    report = session(FakeGpu(), tmp_path, [DENSE, case])
    assert [o.kind for o in report.outcomes] == ["measured", "unsupported"]


def test_a_lost_device_ends_the_session_and_loses_no_row(tmp_path):
    whole = tmp_path / "whole"
    whole.mkdir()
    session(FakeGpu(), whole, CASES)
    launches = 0
    probe = FakeGpu()
    session(probe, _folder(tmp_path, "probe"), CASES[:3])
    launches = probe.launches
    report = session(FakeGpu(lost_after=launches + 10), tmp_path, CASES)
    assert not report.complete
    assert report.stopped == "unspecified launch failure"
    assert [o.kind for o in report.outcomes] == ["measured"] * 3 + ["device lost"]
    assert not (tmp_path / "out.csv").exists()
    assert len((tmp_path / "out.csv.part").read_text().splitlines()) == 4
    again = session(FakeGpu(), tmp_path, CASES)
    assert [o.kind for o in again.outcomes] == ["kept"] * 3 + ["measured"] * 3
    assert (tmp_path / "out.csv").read_bytes() == (whole / "out.csv").read_bytes()
    assert not (tmp_path / "out.csv.part").exists()


def _folder(tmp_path, name):
    (tmp_path / name).mkdir()
    return tmp_path / name


@pytest.mark.parametrize("cut", [1, 20, 200])
def test_a_row_that_was_cut_off_is_measured_again(tmp_path, cut):
    session(FakeGpu(), _folder(tmp_path, "whole"), CASES)
    expected = (tmp_path / "whole" / "out.csv").read_bytes()
    interrupted = FakeGpu()
    with pytest.raises(KeyboardInterrupt):
        run_session(
            interrupted, CASES, Settings(STREAM, budget=QUICK), tmp_path / "out.csv", "a100_pcie_80gb",
            date=lambda: "t", progress=_interrupt_at(4),
        )  # fmt: skip
    part = tmp_path / "out.csv.part"
    part.write_bytes(part.read_bytes()[:-cut])
    report = session(FakeGpu(), tmp_path, CASES)
    assert report.complete
    assert (tmp_path / "out.csv").read_bytes() == expected


def test_a_row_whose_provenance_is_missing_is_measured_again(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run_session(
            FakeGpu(), CASES, Settings(STREAM, budget=QUICK), tmp_path / "out.csv", "a100_pcie_80gb",
            progress=_interrupt_at(4),
        )  # fmt: skip
    path = tmp_path / "out.provenance.json"
    record = json.loads(path.read_text())
    record["rows"].pop()
    path.write_text(json.dumps(record))
    assert [o.kind for o in session(FakeGpu(), tmp_path, CASES).outcomes] == ["kept"] * 3 + ["measured"] * 3
    assert len(read_measured(tmp_path / "out.csv")) == 6


def _interrupt_at(count):
    def progress(done, total):
        if done == count:
            raise KeyboardInterrupt

    return progress


@pytest.mark.parametrize(
    ("change", "word"),
    [({"data": "zeros"}, "data"), ({"protocol": Protocol("graph", "warm")}, "timing"), ({"seed": 2}, "seed")],
)
def test_rows_of_other_facts_are_not_mixed(tmp_path, change, word):
    session(FakeGpu(lost_after=30), tmp_path, CASES)
    before = (tmp_path / "out.csv.part").read_bytes()
    with pytest.raises(UserError, match=word):
        session(FakeGpu(), tmp_path, CASES, **change)
    assert (tmp_path / "out.csv.part").read_bytes() == before


def test_a_finished_file_is_never_overwritten(tmp_path):
    session(FakeGpu(), tmp_path)
    before = (tmp_path / "out.csv").read_bytes()
    with pytest.raises(UserError, match="finished"):
        session(FakeGpu(), tmp_path)
    assert (tmp_path / "out.csv").read_bytes() == before


def test_nothing_measured_is_no_result(tmp_path):
    report = session(FakeGpu(memory=1.0), tmp_path)
    assert not report.complete
    assert not (tmp_path / "out.csv").exists()


def test_a_throttled_row_says_so(tmp_path):
    hot = FakeGpu(reasons=lambda now: frozenset({"thermal", "power-cap"}), sm_mhz=lambda now: 1005.0)
    report = session(hot, tmp_path)
    assert all(o.throttled == ("thermal",) for o in report.outcomes)
    lines = (tmp_path / "out.csv").read_text().splitlines()
    cells = dict(zip(HEADER, lines[1].split(","), strict=False))
    assert "power-cap thermal,thermal" in lines[1]
    assert cells["gpu"] == "a100_pcie_80gb"
    assert ",1005," in lines[1]


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"libraries": ("cublast",)}, "cublaslt"),
        ({"data": "ones"}, "random or zeros"),
        ({"protocol": Protocol("stream", "cold")}, "--l2"),
        ({"libraries": ("cusparselt",)}, "found none"),
    ],
)
def test_wrong_settings_are_one_line_and_touch_nothing(tmp_path, settings, word):
    with pytest.raises(UserError, match=word):
        session(FakeGpu(), tmp_path, [DENSE], **settings)
    assert not list(tmp_path.iterdir())
