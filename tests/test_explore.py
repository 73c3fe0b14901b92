"""The explorer: what its address may say, what its server answers, and the page in a real browser."""

from __future__ import annotations

import http.client
import json
import math
import os
import shlex
import threading
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import pytest
from browser import SLOW, answered

from sparsesim import api
from sparsesim.__main__ import main
from sparsesim.attribution.causes import bit
from sparsesim.errors import UserError
from sparsesim.explore import Explorer, parse_state
from sparsesim.explore.answers import CURVE
from sparsesim.explore.hardware_file import hardware_file
from sparsesim.explore.server import make_app, open_socket
from sparsesim.explore.state import load_board, slider_of, sliders
from sparsesim.hardware import load_gpu
from sparsesim.measured import COLUMNS, read_measured
from sparsesim.scenarios.breakeven import SIDES, TOKENS

#: a small op, so that every answer takes milliseconds
SMALL = {"m": "1024", "n": "256", "k": "1024"}
#: the measured rows that the project carries
ROWS = Path(__file__).parent / "data" / "accuracy_rows.csv"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dense and a sparse row of one shape; made up, for what is drawn is what the file says."""
    path = tmp_path_factory.mktemp("measured") / "rows.csv"
    same = "a100_pcie_80gb,library,1024,256,1024,1,f16,f32"
    lines = [f"{same},dense,A,9.0,kernel,rotating,free,s,made up", f"{same},2:4,A,6.0,kernel,rotating,free,s,made up"]
    path.write_text("\n".join([",".join(COLUMNS), *lines]) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def port(measured: Path) -> Iterator[int]:
    """A server in a thread of this process; its port."""
    import uvicorn

    listening = open_socket("127.0.0.1", 0)
    config = uvicorn.Config(
        make_app(Explorer([*read_measured(measured), *read_measured(ROWS)])),
        log_level="error",
        lifespan="off",
        ws="none",
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield listening.getsockname()[1]
    server.should_exit = True
    thread.join()
    listening.close()


def get(port: int, target: str, host: str | None = None, method: str = "GET") -> tuple[int, bytes, dict[str, str]]:
    """Status, body and headers of one request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, target, headers={} if host is None else {"Host": host})
        reply = connection.getresponse()
        return reply.status, reply.read(), dict(reply.getheaders())
    finally:
        connection.close()


def ask(port: int, what: str, **fields: Any) -> dict[str, Any]:
    """The JSON of an answer that has to be given."""
    status, body, _ = get(port, f"/api/{what}?{urlencode(fields, doseq=True)}")
    assert status == 200, body
    return json.loads(body)


# --- answers ---


def test_the_answer_is_that_of_the_command(port, capsys):
    answer = ask(port, "answer", **SMALL, gpu="rtx4090", set=["l2.bytes=36MiB", "sm.count=100"])
    assert answer["exact"]
    words = shlex.split(answer["command"])
    assert words[:2] == ["sparsesim", "whatif"]
    assert main([*words[1:], "--json", "-"]) == 0
    after = json.loads(capsys.readouterr().out)["after"]
    assert after["time_us"] == answer["result"]["time_us"]
    assert after["speedup"] == answer["result"]["speedup"]
    plain = ask(port, "answer", **SMALL)
    words = shlex.split(plain["command"])
    assert words[1] == "gemm"
    assert main([*words[1:], "--json", "-"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert {name: result[name] for name in plain["result"]} == plain["result"]


def test_answers_are_the_same_bytes_whatever_was_asked_before():
    state = parse_state({**SMALL, "set": "smem.bytes_per_clk=200B/clk"}.items())
    fresh, used = Explorer(), Explorer()
    used.point(parse_state(SMALL.items()), 512, 64, 512)
    used.losses(state)
    for name in ("losses", "alone", "estimate", "answer"):
        assert json.dumps(getattr(fresh, name)(state)) == json.dumps(getattr(used, name)(state))


def test_what_is_no_event_loop_result_is_labelled(port):
    estimate = ask(port, "estimate", **SMALL)
    assert not estimate["exact"]
    assert "estimate" in estimate["label"]
    assert [point["n"] for point in estimate["curve"]] == list(CURVE)
    assert (len(estimate["map"]), len(estimate["map"][0])) == (len(SIDES), len(TOKENS))
    alone = ask(port, "alone", **SMALL)
    assert not alone["exact"]
    assert "not to be added" in alone["label"]
    exact = ask(port, "point", **SMALL, at_m=1024, at_n=256, at_k=1024)
    assert exact["exact"]
    assert exact["speedup"] == ask(port, "answer", **SMALL)["result"]["speedup"]
    losses = ask(port, "losses", **SMALL)
    gap = math.log(losses["nominal"] / losses["speedup"])
    assert sum(row["ln"] for row in losses["causes"]) == pytest.approx(gap, abs=1e-9)


def test_alone_is_the_first_rung_of_the_attribution(port):
    """Each cause by itself is a set of one, which the full attribution runs as well."""
    found = api.explain_gemm("a100_pcie_80gb", 1024, 256, 1024)
    for row in ask(port, "alone", **SMALL)["causes"]:
        ideal = found.dense_times[bit(row["id"])] / found.sparse_times[bit(row["id"])]
        assert found.speedup * math.exp(row["ln"]) == pytest.approx(ideal, rel=1e-9)


def test_a_workload_is_answered_op_by_op(port):
    about = {"workload": "square", "op": "0"}
    answer = ask(port, "answer", **about)
    assert answer["ops"]
    row = ask(port, "row", **about, index=0)
    assert row["time_us"] == answer["result"]["time_us"]
    assert get(port, f"/api/row?{urlencode(about)}&index=900")[0] == 400


def test_measured_points_are_of_this_gpu_type_and_protocol_alone(port):
    found = ask(port, "answer", **SMALL)["measured"]
    assert [point["speedup"] for point in found["curve"]] == [1.5]
    assert ask(port, "answer", **SMALL, dtype="bf16")["measured"] == {"curve": [], "map": []}
    other = ask(port, "answer", **{**SMALL, "m": "512"})["measured"]
    assert (len(other["curve"]), len(other["map"])) == (0, 1)


# --- bounds ---


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("m=0", "m: expected an integer from 1 to 65536"),
        ("n=1e3", "n: expected an integer"),
        ("k=99999999999999999999", "k: expected an integer"),
        ("m=１２", "m: expected an integer"),
        ("gpu=rtx409", "did you mean 'rtx4090'?"),
        ("gpu=/etc/passwd", "gpu: expected a packaged name"),
        ("gpu=../hw_configs/rtx4090.toml", "gpu: expected a packaged name"),
        ("workload=/etc/passwd", "workload: expected a packaged name"),
        ("workload=square&op=9999", "op: expected"),
        ("workload=llama-3.1-8b&tokens=70000", "tokens: expected an integer"),
        ("workload=llama-3.1-8b&phase=nope", "nope"),
        ("dtype=f8", "dtype"),
        ("pattern=3:2", "pattern"),
        ("stack=cusparse", "did you mean 'cusparselt'?"),
        ("stack=/tmp/cusparselt.toml", "stack: expected a packaged stack"),
        ("stack=cusparselt@99", "version"),
        ("timing=wall", "timing"),
        ("l2=hot", "l2"),
        ("colour=red", "'colour': expected one of"),
        ("m=1&m=2", "m: expected once"),
        ("set=l2.bytes", "path=value"),
        ("set=l2.byts=1MiB", "did you mean"),
        ("set=l2.bytes=900GiB", "set: l2.bytes: expected 10 to 160 MiB"),
        ("set=l2.bytes=80", "a number with a unit"),
        ("set=l2.bytes=nan", "l2.bytes"),
        ("set=l2.bytes*=2", "path=value"),
        ("set=sm.count=1e9", "sm.count"),
        ("set=sm.count=100.5", "sm.count"),
        ("set=clock.max=500MHz", "clock.max: expected 1065 to 5640 MHz"),
        ("set=tensor.native_patterns.f16=2:4", "expected a number"),
        ("set=dram.bytes_per_s=2TB/s&set=dram.bytes_per_s=3TB/s", "expected once"),
        ("&".join("set=sm.count=100" for _ in range(30)), "at most 24"),
        ("phase=" + "x" * 4100, "at most 4000 characters"),
    ],
)  # fmt: skip
def test_an_address_out_of_bounds_gets_one_clear_message(query, expected):
    with pytest.raises(UserError) as caught:
        parse_state(parse_qsl(query, keep_blank_values=True))
    assert any(expected in line for line in caught.value.problems), caught.value.problems
    assert all("\n" not in line and len(line) < 400 for line in caught.value.problems)


def test_the_server_says_every_problem_and_no_traceback(port):
    status, body, headers = get(port, "/api/answer?m=0&gpu=rtx409")
    assert status == 400
    assert len(json.loads(body)["errors"]) == 2
    assert headers["content-type"] == "application/json"
    for target in ("/api/point?at_m=1", "/api/point?at_m=0&at_n=1&at_k=1", "/api/point?at_m=1&at_m=1&at_n=1&at_k=1"):
        assert get(port, target)[0] == 400
    assert get(port, "/api/answer?gpu=t4&dtype=e4m3")[0] == 400
    assert get(port, "/hardware.toml?set=l2.bytes=1TiB")[0] == 400
    assert get(port, "/api/answer?" + "x" * 9000)[0] == 414
    assert get(port, "/nothing")[0] == 404
    assert get(port, "/api/answer", method="POST")[0] == 405


@pytest.mark.parametrize("host", ["example.org", "127.0.0.1.example.org", "", "localhost.example.org:80"])
def test_a_foreign_host_is_refused(port, host):
    status, body, _ = get(port, "/api/choices", host)
    assert status == 403
    assert b"sparsesim" not in body


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:9", "[::1]:8765", "LOCALHOST"])
def test_loopback_is_answered(port, host):
    status, _, headers = get(port, "/api/choices", host)
    assert status == 200
    assert "default-src 'none'" in headers["content-security-policy"]


def test_every_slider_of_every_gpu_can_go_to_both_ends():
    for name in ("a100_pcie_80gb", "h100_pcie", "rtx4090", "v100_sxm2", "hypothetical_nm"):
        for slider in sliders(parse_state({"gpu": name, "pattern": "dense"}.items())):
            for value in (slider.low, slider.high):
                number = f"{int(value)}" if slider.whole else f"{value:.9g}"
                text = f"{slider.path}={number}{'' if slider.unit == '-' else slider.unit}"
                state = parse_state([("gpu", name), ("set", text)])
                assert slider_of(state.gpu, slider.path, slider.unit).base == pytest.approx(value, rel=1e-6)


# --- hardware file ---


def test_the_hardware_file_is_the_gpu_that_was_explored(port, tmp_path, capsys):
    sets = ["l2.bytes=51.87MiB", "sm.count=117", "tensor.macs_per_clk.f16_f32=1448MAC/clk", "launch.ramp=1.1us"]
    fields = {**SMALL, "set": sets}
    status, body, headers = get(port, "/hardware.toml?" + urlencode(fields, doseq=True))
    assert status == 200
    assert headers["content-disposition"] == 'attachment; filename="a100_pcie_80gb_explored.toml"'
    path = tmp_path / "file.toml"
    path.write_bytes(body)
    gpu, state = load_gpu(path), parse_state([*SMALL.items(), *(("set", text) for text in sets)])
    same = ("name", "title", "hypothetical")
    assert gpu.model_dump(exclude=set(same)) == state.gpu.model_dump(exclude=set(same))
    answer = ask(port, "answer", **fields)["result"]
    assert main(["gemm", "--gpu", str(path), "-m", "1024", "-n", "256", "-k", "1024", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["time_us"] == answer["time_us"]
    assert main(["check", str(path)]) in (0, 1)
    assert "EXPLORED" in hardware_file(state)
    assert tomllib.loads(hardware_file(parse_state([])))["extends"] == "a100_pcie_80gb"


def test_a_board_of_a_file_is_offered_and_its_file_is_what_the_command_names(tmp_path, capsys):
    """Only what the server was started with: an address names no file."""
    path = tmp_path / "half dram.toml"
    path.write_text(
        'extends = "a100_pcie_80gb"\nname = "half_dram"\ntitle = "Half"\nhypothetical = true\n[dram]\nbytes_per_s = '
        '{ value = 968, unit = "GB/s", source = "study", status = "assumed", note = "half" }\n'
    )
    explorer = Explorer(boards=[load_board(str(path))])
    assert {"value": "half_dram", "text": "Half"} in explorer.choices()["gpu"]
    pairs = [*SMALL.items(), ("gpu", "half_dram"), ("set", "l2.bytes=20MiB")]
    state = parse_state(pairs, explorer.boards)
    answer = explorer.answer(state)
    program, *words = shlex.split(answer["command"])
    assert (program, words[words.index("--gpu") + 1]) == ("sparsesim", str(path))
    assert main([*words, "--json", "-"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["after"]["time_us"] == pytest.approx(answer["result"]["time_us"], rel=1e-12)
    (tmp_path / "elsewhere").mkdir()
    download = tmp_path / "elsewhere" / "down.toml"
    download.write_text(hardware_file(state))
    assert load_gpu(download).dram == load_gpu(path).dram
    assert load_gpu(download).l2 == state.gpu.l2
    for given, expected in (("half_dram", {}), (str(path), explorer.boards)):
        with pytest.raises(UserError, match="gpu: expected a packaged name"):
            parse_state([("gpu", given)], expected)


# --- command ---


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--port", "70000"], "--port: expected a port from 0 to 65535"),
        (["--port", "x"], "integer"),
        (["--gpu", "rtx409"], "did you mean 'rtx4090'?"),
        (["--gpu", "nowhere.toml"], "nowhere.toml: expected a hardware file (TOML), found no such file"),
        (["--gpu", "BOARD:rtx4090"], "name: expected one that no packaged GPU has, found 'rtx4090'"),
        (["--gpu", "BOARD:a\\nb"], "name: expected letters, digits, _, . and -, at most 64, found"),
        (["--measured", "nowhere.csv"], "nowhere.csv: expected a CSV file"),
        (["--host", "256.0.0.1"], "--host, --port"),
    ],
)
def test_the_command_names_a_mistake(arguments, expected, tmp_path, capsys):
    for word in arguments:
        if word.startswith("BOARD:"):
            text = f'extends = "a100_pcie_80gb"\nname = "{word.removeprefix("BOARD:")}"\n'
            (tmp_path / "board.toml").write_text(text)
            arguments = ["--gpu", str(tmp_path / "board.toml")]
    assert main(["explore", *arguments]) == 2
    assert expected in capsys.readouterr().err


def test_a_port_in_use_is_named(port, capsys):
    assert main(["explore", "--port", str(port)]) == 2
    assert f"127.0.0.1:{port}" in capsys.readouterr().err


# --- in a browser ---


def page_of(port: int, **fields: Any) -> str:
    return f"http://127.0.0.1:{port}/?{urlencode(fields, doseq=True)}"


def exact(page: Any) -> None:
    """Wait until every panel is exact."""
    page.wait_for_selector("html[data-done]", state="attached", timeout=SLOW)


def faults(seen: Any) -> list[str]:
    """What went wrong in the page; a request that it gave up itself did not."""
    return [text for text in seen.errors if not (text.startswith("failed: http://127.0.0.1:") and "/api/" in text)]


def test_the_page_answers_then_refines_and_asks_nobody_else(browser, port):
    from browser import visit

    with visit(browser, page_of(port, **SMALL)) as seen:
        page = seen.page
        answered(page)
        assert "~" in page.inner_text("#map") or page.inner_text("#map-label").startswith("exact")
        assert page.locator("#curve circle").count() == len(CURVE)
        exact(page)
        assert page.locator("#curve circle.exact").count() == len(CURVE)
        assert page.locator("#curve .measured").count() == 1
        assert page.locator("#map .measured").count() == 1
        assert page.locator(".label.estimate").count() == 0
        shown = ask(port, "answer", **SMALL)["result"]
        assert page.inner_text("#headline strong") == f"{shown['speedup']:.2f}×"
        assert "sum to the gap" in page.inner_text("#losses-label")
        assert page.locator("#counters tr").count() > 10
        assert not faults(seen)
        assert {urlsplit(request).netloc for request in seen.requests} == {f"127.0.0.1:{port}"}


def test_the_keyboard_is_enough(browser, port, tmp_path):
    from browser import visit

    with visit(browser, page_of(port, **SMALL), accept_downloads=True) as seen:
        page = seen.page
        answered(page)
        focused = "document.activeElement.id"

        def tab_to(name: str) -> None:
            for _ in range(60):
                if page.evaluate(focused) == name:
                    return
                page.keyboard.press("Tab")
            raise AssertionError(f"{name} is not reached by Tab")

        tab_to("n")
        page.keyboard.press("Control+A")
        page.keyboard.type("512")
        tab_to("dtype")
        page.keyboard.press("b")  # bf16
        tab_to("s-l2.bytes")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        answered(page)
        query = dict(parse_qsl(urlsplit(page.url).query))
        assert (query["n"], query["dtype"]) == ("512", "bf16")
        path, _, value = query["set"].partition("=")
        assert path == "l2.bytes"
        assert float(value.removesuffix("MiB")) == pytest.approx(40 * 2**0.25, rel=1e-3)
        assert page.evaluate(focused) == "s-l2.bytes"
        tab_to("copy")
        page.keyboard.press("Enter")
        page.wait_for_selector("#copy:text-matches('Copied|Selected')")
        assert f"--set l2.bytes={value}" in page.inner_text("#command")
        tab_to("download")
        with page.expect_download() as waiting:
            page.keyboard.press("Enter")
        file = tmp_path / "explored.toml"
        waiting.value.save_as(file)
        assert load_gpu(file).l2.bytes == pytest.approx(40 * 2**20 * 2**0.25, rel=1e-3)
        page.keyboard.press("Shift+Tab")
        page.keyboard.press("Shift+Tab")
        assert page.evaluate(focused) == "reset"
        page.keyboard.press("Space")
        answered(page)
        assert "set=" not in page.url
        assert not faults(seen)


def test_the_address_is_the_state(browser, port):
    from browser import visit

    address = page_of(port, **{**SMALL, "gpu": "rtx4090", "set": "l2.bytes=36MiB"})
    with visit(browser, address) as seen:
        page = seen.page
        answered(page)
        assert page.input_value("#gpu") == "rtx4090"
        assert page.input_value("#m") == "1024"
        assert page.input_value('[id="s-l2.bytes"]') == "-8"
        assert page.locator(".slider.changed").count() == 1
        page.select_option("#gpu", "a100_pcie_80gb")
        answered(page)
        assert "set=" not in page.url
        page.go_back()
        page.wait_for_selector(".slider.changed", timeout=SLOW)
        assert page.input_value("#gpu") == "rtx4090"
        assert not faults(seen)


def test_a_mistake_is_shown_as_text(browser, port):
    from browser import visit

    with visit(browser, f"http://127.0.0.1:{port}/?gpu={quote('<img src=x onerror=alert(1)>')}&m=0") as seen:
        page = seen.page
        exact(page)
        assert "<img src=x" in page.inner_text("#errors")
        assert page.locator("#errors img").count() == 0
        assert page.locator("#errors li").count() == 2
        page.fill("#m", "1024")
        page.press("#m", "Enter")
        page.select_option("#gpu", "rtx4090")
        answered(page)
        assert page.locator("#errors").is_hidden()


def test_labels_contrast_and_width(browser, port):
    from axe_playwright_python.sync_playwright import Axe
    from browser import visit

    with visit(browser, page_of(port, **SMALL, set="l2.bytes=36MiB"), 360, 740) as seen:
        page = seen.page
        answered(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        found = Axe().run(page).response
        assert [(item["id"], item["nodes"][0]["html"]) for item in found["violations"]] == []
        assert found["passes"]


@pytest.mark.parametrize(("name", "width", "height"), [("explore", 1280, 1000), ("explore_narrow", 360, 740)])
def test_screenshot(browser, port, name, width, height, tmp_path):
    """The pictures of the README: ``make screenshots`` has them written to docs/figures."""
    from browser import visit

    wanted = os.environ.get("SCREENSHOTS")
    fields = {"timing": "stream", "l2": "warm", "m": "3072", "n": "1024", "k": "3072"}
    with visit(browser, page_of(port, **fields), width, height) as seen:
        page = seen.page
        wait = exact if wanted else answered
        wait(page)
        assert page.locator("#curve .measured").count() > 1
        page.focus('[id="s-l2.bytes"]')
        page.keyboard.press("ArrowRight")
        wait(page)
        page.screenshot(path=Path(wanted or tmp_path) / f"{name}.png", full_page=width > 1000)
    assert (Path(wanted or tmp_path) / f"{name}.png").stat().st_size > 10_000
