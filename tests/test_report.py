"""The report: its numbers, its three forms, and the page in a real browser."""

from __future__ import annotations

import gzip
import json
import math
import re
import shlex
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from browser import visit
from onnx_models import save, vit
from safetensors.numpy import save_file
from test_malformed_weights import packed, peak_mb, sparse_checkpoint, tensor

from sparsesim.__main__ import main
from sparsesim.api import report_workload, simulate_gemm, simulate_workload
from sparsesim.confidence import speedup_interval
from sparsesim.hardware import load_gpu
from sparsesim.report import build, html, markdown
from sparsesim.report.foreign import load_any
from sparsesim.report.render import cell, fence
from sparsesim.workload import Gemm, OtherOp, Workload

GPU = "a100_pcie_80gb"
EVIL = "<script>alert(1)</script>"
OPS = (
    Gemm("block/qkv", 1536, 256, 1024, dtype="bf16", pattern="2:4", count=4),
    Gemm(EVIL, 1000, 256, 1020, dtype="bf16", pattern="2:4", count=2),
    Gemm("four|of*eight", 1024, 256, 1024, dtype="bf16", pattern="4:8"),
    Gemm("head", 2048, 256, 1024, dtype="bf16"),
    Gemm("again/qkv", 1536, 256, 1024, dtype="bf16", pattern="2:4"),
)
WORKLOAD = Workload("toy & <b>", "", "", OPS, (OtherOp("norm", "<i>Norm", 100, 10, 3), OtherOp("x", "Mystery")))


@pytest.fixture(scope="module")
def report():
    return report_workload(GPU, WORKLOAD)


@pytest.fixture(scope="module")
def page(report, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(html(report), encoding="utf-8")
    return path


# --- what it says ---


def test_the_numbers_are_those_of_the_simulation(report):
    run = simulate_workload(GPU, WORKLOAD)
    answer = report.answer
    assert (answer.speedup, answer.nominal) == (run.speedup, run.nominal_speedup)
    assert answer.low < answer.speedup < answer.high
    assert math.fsum(layer.share for layer in report.layers) == pytest.approx(1.0)
    assert sum(layer.launches for layer in report.layers) == run.launches
    # two ops of one shape are one row
    assert [(layer.name, layer.more) for layer in report.layers if layer.state == "sparse"] == [("block/qkv", 1)]


def test_the_waterfall_goes_from_the_promise_to_what_is_delivered(report):
    steps = report.causes
    assert steps[0].before == report.losses["promised"]
    assert steps[-1].after == pytest.approx(report.losses["delivered"])
    assert all(a.after == b.before for a, b in pairwise(steps))
    assert math.fsum(step.lost_us for step in steps) == pytest.approx(report.losses["lost_us"])
    assert report.losses["coverage"] == pytest.approx(1.0)
    assert report.losses["delivered"] == pytest.approx(report.answer.speedup)


def test_mending_a_fallback_is_a_run_of_the_changed_layer(report):
    reasons = {reason["reason"]: reason for reason in report.impact["reasons"]}
    assert set(reasons) == {"shape-alignment", "pattern-unsupported"}
    (odd,) = reasons["shape-alignment"]["layers"]
    assert (odd["how"], odd["m"], odd["n"], odd["k"]) == ("pad m 1000 → 1008, k 1020 → 1024", 1008, 256, 1024)
    padded = simulate_gemm(GPU, 1008, 256, 1024, "bf16")
    assert odd["mended_us"] == pytest.approx(2 * padded.time_us)
    (pruned,) = reasons["pattern-unsupported"]["layers"]
    assert pruned["how"] == "prune to 2:4 instead of 4:8"
    # kernels back to back: what the layers save, the run saves, over a baseline that stays
    for reason in reasons.values():
        assert reason["saved_us"] == pytest.approx(reason["now_us"] - reason["mended_us"])
        assert reason["speedup"] == pytest.approx(
            report.answer.dense_time_us / (report.answer.time_us - reason["saved_us"])
        )
    gained = sum(max(reason["saved_us"], 0.0) for reason in reasons.values())
    assert report.answer.mended == pytest.approx(report.answer.dense_time_us / (report.answer.time_us - gained))


def test_where_no_change_helps_it_says_so():
    made = report_workload("v100_sxm2", [Gemm("a", 1024, 64, 1024, pattern="2:4")])
    (reason,) = made.impact["reasons"]
    assert (reason["reason"], reason["mendable"], reason["saved_us"]) == ("arch-unsupported", 0, 0.0)
    assert made.answer.mended == made.answer.speedup == 1.0
    # both runs are one kernel, so that its error cancels
    assert made.answer.low == made.answer.high == 1.0
    assert "no change of shape or pattern" in made.answer.second
    assert "no change helps" in html(made)
    assert "no change helps" in markdown(made)


def test_a_host_that_is_too_slow_is_named():
    ops = [Gemm("a", 256, 64, 256, pattern="2:4", count=20)]
    assert any("waits for the host" in note for note in report_workload(GPU, ops, timing="host").notes)
    assert not any("waits for the host" in note for note in report_workload(GPU, ops).notes)


def test_an_interval_grows_with_the_share_of_sparse_kernels():
    family = load_gpu(GPU).family
    big = Gemm("big", 4096, 4096, 4096, dtype="bf16", pattern="2:4")
    alone = simulate_workload(GPU, [big])
    beside = simulate_workload(GPU, [big, replace(big, name="dense", pattern="dense", count=50)])
    width = [math.log(high / low) for low, high in (speedup_interval(run, family) for run in (alone, beside))]
    assert width[0] > width[1] > 0


def test_a_sparse_weightless_workload_has_an_answer():
    made = report_workload(GPU, [Gemm("a", 512, 64, 512)])
    assert made.answer.speedup == made.answer.nominal == 1.0
    assert made.impact["reasons"] == []
    assert "No sparse weight falls back" in made.answer.second
    assert html(made)


def test_long_traces_are_explained_in_part_and_say_so(monkeypatch):
    monkeypatch.setattr(build, "MOST_SHAPES", 1)
    ops = [Gemm(f"op-{i}", 512, 64 + 8 * (i % 2), 512, pattern="2:4") for i in range(2500)]
    made = report_workload(GPU, ops)
    assert [(layer.name, layer.more) for layer in made.layers] in (
        [("op-0", 1249), ("op-1", 1249)],
        [("op-1", 1249), ("op-0", 1249)],
    )
    assert 0.4 < made.losses["coverage"] < 0.6
    assert any("explains the 1 shapes" in note for note in made.notes)
    assert len(html(made)) < 100_000


# --- its forms ---


def test_equal_runs_are_equal_bytes(report):
    again = report_workload(GPU, WORKLOAD)
    assert html(again) == html(report)
    assert markdown(again) == markdown(report)
    assert json.dumps(again.to_dict()) == json.dumps(report.to_dict())
    assert report.to_dict()["schema"] == "sparsesim-report/1"


def test_text_of_inputs_is_no_markup(report):
    text, lines = html(report), markdown(report)
    assert EVIL not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "toy &amp; &lt;b&gt;" in text
    assert text.count("<script>") == 1
    assert "<" not in re.sub(r"`[^`\n]*`", "", lines)
    # the bar in a name is no border of a cell: each row of a table has as many as its rule
    tables = re.findall(r"(?m)^(\|.*)\n(\|(?:---\|)+)\n((?:\|.*\n)+)", lines)
    assert len(tables) == 8
    assert "four\\|of" in lines
    for head, rule, rows in tables:
        for row in (head, *rows.splitlines()):
            assert len(re.findall(r"(?<!\\)\|", row)) == rule.count("|"), row


@pytest.mark.parametrize("text", ["a|b", "*x*", "`x`", "[a](b)", "a\nb", "# h", "a_b", "1<2>&"])
def test_markdown_cells_are_plain_text(text):
    escaped = cell(text)
    assert "\n" not in escaped
    plain = escaped.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    assert re.sub(r"\\(.)", r"\1", plain) == " ".join(text.split())


def test_a_command_is_fenced_whatever_is_in_it():
    assert fence("sparsesim report x") == "`sparsesim report x`"
    assert fence("a `b` ``c``") == "``` a `b` ``c`` ```"
    assert fence("`b`") == "`` `b` ``"


class Outline(HTMLParser):
    """Tags with their attributes in order."""

    def __init__(self, text):
        super().__init__()
        self.tags = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def of(self, *names):
        return [(tag, attrs) for tag, attrs in self.tags if tag in names]


def test_the_page_is_one_file_with_its_landmarks(report):
    text = html(report)
    outline = Outline(text)
    assert outline.of("html")[0][1]["lang"] == "en"
    for name in ("header", "main", "footer", "nav", "h1"):
        assert len(outline.of(name)) == 1, name
    levels = [int(tag[1]) for tag, _ in outline.of("h1", "h2", "h3", "h4")]
    assert levels[0] == 1
    assert all(b <= a + 1 for a, b in pairwise(levels))
    assert all(attrs.get("scope") in ("col", "row") for _, attrs in outline.of("th"))
    assert len(outline.of("caption")) == len(outline.of("table"))
    assert all(attrs.get("role") == "img" and attrs.get("aria-label") for _, attrs in outline.of("svg"))
    ids = [attrs["id"] for _, attrs in outline.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {attrs["href"][1:] for _, attrs in outline.of("a")} <= set(ids)
    # nothing is fetched
    for tag, attrs in outline.tags:
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            assert attrs.get(name, "#").startswith(("#", "data:")), (tag, name)
    assert not re.search(r"url\(|@import|https?:", text)


# --- in a browser ---


def column(page, place):
    return page.evaluate(
        "place => [...document.querySelectorAll('#layers-table tbody tr')].filter(r => !r.hidden)"
        ".map(r => r.cells[place].dataset.value ?? r.cells[place].textContent.trim())",
        place,
    )


def test_the_page_sorts_and_filters_with_the_keyboard_alone(browser, page, report):
    with visit(browser, page.as_uri()) as seen:
        tab = seen.page
        shares = [float(value) for value in column(tab, 7)]
        assert shares == sorted(shares, reverse=True)
        tab.locator("#layers-table th button", has_text="Layer").focus()
        tab.keyboard.press("Enter")
        names = column(tab, 0)
        assert names == sorted(names, key=str.lower)
        head = tab.locator("#layers-table th", has_text="Layer").first
        assert head.get_attribute("aria-sort") == "ascending"
        tab.keyboard.press("Space")
        assert head.get_attribute("aria-sort") == "descending"
        assert column(tab, 0) == names[::-1]
        tab.locator("#layers-table th button", has_text="Speedup").click()
        speedups = [float(value) for value in column(tab, 8)]
        assert speedups == sorted(speedups, reverse=True)
        assert tab.locator("#layers-table th[aria-sort=descending]").count() == 1

        tab.locator("#filter-state").select_option("fallback")
        assert len(column(tab, 0)) == 2
        status = tab.locator("#filter-status")
        fell = sum(layer.share for layer in report.layers if layer.state == "fallback")
        assert status.inner_text().startswith(f"2 of 4 rows, {100 * fell:.1f} % of the kernel time")
        tab.locator("#filter-text").focus()
        tab.keyboard.type("alert ALIGNMENT")
        assert column(tab, 0) == [EVIL]
        tab.locator("form button[type=reset]").press("Enter")
        tab.wait_for_function("document.getElementById('filter-status').textContent.startsWith('4 of 4')")
        assert len(column(tab, 0)) == 4
        tab.locator("#filter-reason").select_option("pattern-unsupported")
        assert column(tab, 0) == ["four|of*eight"]
        assert seen.errors == []
        assert seen.requests == [page.as_uri()]


def test_without_script_it_is_a_plain_table(browser, page, report):
    with visit(browser, page.as_uri(), java_script_enabled=False) as seen:
        rows = seen.page.locator("#layers-table tbody tr")
        assert rows.count() == len(report.layers)
        assert all(rows.nth(i).is_visible() for i in range(rows.count()))
        assert not seen.page.locator("#filter").is_visible()
        assert seen.page.locator("#layers-table th button").count() == 0
        assert seen.requests == [page.as_uri()]


#: text whose contrast with what is behind it is below 4.5 (WCAG 2.2, 1.4.3), by computed colours
FAINT = """() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = (c) => { const f = c.slice(0, 3).map((v) => linear(v / 255));
    return 0.2126 * f[0] + 0.7152 * f[1] + 0.0722 * f[2]; };
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const c = rgb(getComputedStyle(node).backgroundColor);
      if (c.length < 4 || c[3] === 1) return c;
    }
    return [255, 255, 255];
  };
  const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let count = 0;
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || ["SCRIPT", "STYLE", "title"].includes(node.tagName)) continue;
    const a = light(rgb(getComputedStyle(node).color)), b = light(behind(node));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    count += 1;
    if (ratio < 4.5) found.push([walker.currentNode.textContent, ratio]);
  }
  return [count, found];
}"""


@pytest.mark.parametrize("width", [1280, 360])
def test_it_passes_an_accessibility_check(browser, page, width):
    from axe_playwright_python.sync_playwright import Axe

    with visit(browser, page.as_uri(), width=width) as seen:
        count, faint = seen.page.evaluate(FAINT)
        assert count > 100
        assert faint == []
        # the page's policy allows its own script alone; axe comes in by the browser's own door
        checked = Axe().run(seen.page).response
        assert len(checked["passes"]) > 20
        violations = checked["violations"]
        assert [(item["id"], [node["html"][:120] for node in item["nodes"]][:3]) for item in violations] == []


def test_the_accessibility_check_finds_faults(browser, page):
    """A check that cannot fail is none."""
    from axe_playwright_python.sync_playwright import Axe

    with visit(browser, page.as_uri()) as seen:
        seen.page.evaluate("document.documentElement.style.setProperty('--muted', '#999')")
        assert seen.page.evaluate(FAINT)[1]
        seen.page.evaluate("document.documentElement.removeAttribute('lang')")
        seen.page.evaluate("document.querySelector('label').remove()")
        found = {item["id"] for item in Axe().run(seen.page).response["violations"]}
        assert {"html-has-lang", "color-contrast"} <= found


def test_it_fits_a_phone_and_paper(browser, page):
    with visit(browser, page.as_uri(), width=360, height=740) as seen:
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= 360
        wide = seen.page.evaluate(
            "[...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > 361)"
            ".map(e => e.outerHTML.slice(0, 80))"
        )
        assert wide == []
        assert seen.page.locator("#layers-table td[data-label=reason]").first.is_visible()
        small = seen.page.evaluate(
            "[...document.querySelectorAll('main p, main td, main th')]"
            ".filter(e => parseFloat(getComputedStyle(e).fontSize) < 12).length"
        )
        assert small == 0
    with visit(browser, page.as_uri()) as seen:
        seen.page.emulate_media(media="print")
        assert not seen.page.locator("nav").is_visible()
        assert not seen.page.locator("#filter").is_visible()
        # the commands are on paper though they are folded on the screen
        assert seen.page.locator("details pre").first.is_visible()
        assert seen.page.pdf().startswith(b"%PDF")
        assert seen.errors == []


# --- the command ---


def test_the_command_writes_all_forms(tmp_path, capsys):
    (tmp_path / "w.csv").write_text("name,m,n,k,dtype,pattern\na,512,64,512,f16,2:4\nb,500,64,500,f16,2:4\n")
    files = {flag: tmp_path / f"r.{flag[2:]}" for flag in ("--html", "--markdown", "--json")}
    arguments = [word for flag, path in files.items() for word in (flag, str(path))]
    assert main(["report", str(tmp_path / "w.csv"), "--gpu", GPU, *arguments]) == 0
    printed = capsys.readouterr().out
    assert "What fallbacks cost" in printed
    assert "pad m 500" in printed
    data = json.loads(files["--json"].read_text())
    assert data["answer"]["first"] in files["--html"].read_text()
    assert cell(data["answer"]["first"]) in files["--markdown"].read_text()
    assert main(["report", str(tmp_path / "w.csv"), "--gpu", GPU, "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == data
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.html", "r.json", "r.markdown", "w.csv"]


def test_its_commands_give_its_numbers_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("odd name.csv").write_text("name,m,n,k,dtype,pattern\na,512,64,512,f16,2:4\nb,500,64,500,f16,2:4\n")
    asked = ["report", "odd name.csv", "--gpu", GPU, "--dtype", "bf16", "--l2", "warm"]
    assert main([*asked, "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)

    def again(command):
        name, *words = shlex.split(command)
        assert name == "sparsesim"
        assert main([*words, *([] if "--json" in words else ["--json", "-"])]) == 0
        return json.loads(capsys.readouterr().out)

    assert again(data["commands"]["speedup"][0])["speedup"] == data["answer"]["speedup"]
    assert again(data["commands"]["losses"][0])["speedup"] == data["losses"]["delivered"]
    assert again(data["commands"]["counters"][0])["counters"] == data["counters"]
    (item,) = data["impact"]["reasons"][0]["layers"]
    assert again(data["commands"]["fallbacks"][-1])["time_us"] == pytest.approx(item["mended_us"])
    whole = data["commands"]["report"][0].replace("--html report.html", "")
    assert again(whole) == data


def test_foreign_files_are_imported_on_the_way(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    config = Path(__file__).parent / "workloads" / "llama-3.1-8b-config.json"
    small = {**json.loads(config.read_text()), "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4,
             "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 512, "head_dim": 64}  # fmt: skip
    Path("config.json").write_text(json.dumps(small))
    assert main(["report", "config.json", "--gpu", GPU, "--phase", "decode", "--tokens", "16", "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert all(layer["name"].startswith("decode-16/") for layer in data["layers"])
    assert data["others"]
    assert any("no GEMM" in note for note in data["notes"])
    for command in data["commands"]["speedup"]:
        assert main([*shlex.split(command)[1:], "--json", "-"]) == 0
        last = json.loads(capsys.readouterr().out)
    assert last["speedup"] == data["answer"]["speedup"]


def test_formats_have_the_options_they_have(tmp_path):
    save_file({"w.weight": np.ones((64, 64), np.float16)}, tmp_path / "m.safetensors")
    workload, form, _ = load_any(tmp_path / "m.safetensors", tokens=24)
    assert (form, {op.n for op in workload.ops}) == ("safetensors", {24})


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["lama-3.1-8b", "--gpu", GPU], "did you mean 'llama-3.1-8b'"),
        (["square", "--gpu", "a1000"], "a100"),
        (["square", "--gpu", GPU, "--html", "x", "--markdown", "x"], "--markdown: expected another file"),
        (["square", "--gpu", GPU, "--html", "no/x.html"], "--html: expected a file that can be written"),
        (["square", "--gpu", GPU, "--dim", "batch"], "--dim: expected NAME=VALUE"),
        (["square", "--gpu", GPU, "--dim", "batch=1"], "no dynamic dimension"),
        (["m.onnx", "--gpu", GPU, "--phase", "decode"], "phase: expected no such option for a ONNX model"),
        (["m.onnx", "--gpu", GPU, "--html", "r.html"], "m.onnx"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line_and_leave_nothing(arguments, expected, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if "--phase" in arguments:
        save(vit(layers=1, hidden=64, heads=2, ffn=128, image=32, patch=16, labels=10), Path("m.onnx"))
        arguments = [*arguments, "--dim", "batch=1"]
    elif arguments[0] == "m.onnx":
        Path("m.onnx").write_bytes(b"\x08\x0a broken")
    before = sorted(path.name for path in tmp_path.iterdir())
    assert main(["report", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert expected in line
    assert sorted(path.name for path in tmp_path.iterdir()) == before


BROKEN = {
    "truncated.safetensors": (packed({"w": tensor(0, 32)}, bytes(31)), "the file is truncated"),
    "lie.safetensors": (packed({}, length=1 << 40), "header length: expected 2 to"),
    "trace.json": (b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1}]}', "trace.json: "),
    "trace.json.gz": (gzip.compress(b'{"traceEvents": [')[:-9], "trace.json.gz: "),
    "config.json": (b'{"model_type": "llama"}', "hidden_size"),
    "w.jsonl": (b'{"name": "a", "m": 8}\n', "w.jsonl: "),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_an_error_and_no_page(name, tmp_path, capsys):
    path, page = tmp_path / name, tmp_path / "r.html"
    path.write_bytes(BROKEN[name][0])
    assert main(["report", str(path), "--gpu", GPU, "--html", str(page), "--json", str(tmp_path / "r.json")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines
    assert all(line.startswith(f"error: {path}") for line in lines)
    assert any(BROKEN[name][1] in line for line in lines)
    assert [item.name for item in tmp_path.iterdir()] == [name]


def test_a_page_of_a_10_gb_checkpoint_takes_little_memory(tmp_path):
    """Its header is all that a report reads; the data are a hole in the file."""
    path = sparse_checkpoint(tmp_path / "w.safetensors", 80, 8192, 8192)
    assert path.stat().st_size > 10e9
    assert peak_mb("report", path, "--gpu", GPU, "--tokens", "64", "--html", tmp_path / "r.html") < 1000
    assert "and 79 more" in (tmp_path / "r.html").read_text()


def test_an_interrupted_write_leaves_what_was_there(tmp_path, monkeypatch, capsys):
    page = tmp_path / "r.html"
    page.write_text("of last week")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    assert main(["report", "square", "--gpu", GPU, "--tokens", "1024", "--html", str(page)]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert page.read_text() == "of last week"
    assert [item.name for item in tmp_path.iterdir()] == ["r.html"]
