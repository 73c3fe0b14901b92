"""Figures: what every one of them must have, equal bytes, and the scripts of ``plots/`` on tiny cases."""

from __future__ import annotations

import importlib
import math
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

import sparsesim as ss
from sparsesim.attribution import CAUSES, CLASSES, Attribution
from sparsesim.chrometrace import lanes
from sparsesim.device.engine import OWNERS
from sparsesim.device.simulate import LaunchResult
from sparsesim.figures import (
    DesignPanel,
    SpeedupCurve,
    draw_accounting,
    draw_designs,
    draw_roofline,
    draw_speedup,
    draw_timeline,
    draw_waterfall,
    save,
)
from sparsesim.figures.style import CAUSE_COLOURS, CLASS_COLOURS, OWNER_COLOURS, OWNER_LABELS
from sparsesim.quality.latency import Sla
from sparsesim.quality.record import Scale
from sparsesim.results import GemmResult

PLOTS = Path(__file__).parent.parent / "plots"
GPU = "a100_pcie_80gb"
UNITS = re.compile(
    r"×|µs|%|FLOP|elements|tokens|index|ln\(|kernel path|/clk|, B$|number|by name|\[m?s\]|bits/byte|kept : group"
)


@pytest.fixture(scope="module")
def results() -> list[GemmResult]:
    """Two small results with DRAM traffic."""
    simulator = ss.Simulator(ss.load_gpu(GPU))
    return [simulator.gemm(ss.Gemm(f"n = {n}", 512, n, 512, pattern="2:4")) for n in (64, 512)]


@pytest.fixture(scope="module")
def attribution() -> Attribution:
    return ss.explain_gemm(GPU, 256, 256, 256)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Imports a module of ``plots/``."""
    monkeypatch.syspath_prepend(str(PLOTS))
    return importlib.import_module


@pytest.fixture(scope="module")
def launches() -> tuple[LaunchResult, LaunchResult]:
    """Launches with timelines, as ``plots/sm_timeline.py`` makes them."""
    kept: list[LaunchResult] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PLOTS))
        module = importlib.import_module("sm_timeline")
        patch.setattr(module, "draw_timeline", lambda dense, sparse, *_, **__: kept.extend((dense, sparse)))
        module.draw(GPU, 512, 512, 512)
    return kept[0], kept[1]


def checked(figure: Figure) -> tuple[list[str], list[str]]:
    """Checks what every figure needs; returns its texts and its legend's labels."""
    texts = [text.get_text() for text in figure.texts]
    assert len(texts[0]) > 10, "a title"
    assert texts[1], "what was simulated"
    axes = [ax for ax in figure.axes if ax.get_visible()]
    assert axes
    labelled = [ax for ax in axes if ax.get_ylabel()]
    assert labelled
    for label in [ax.get_ylabel() for ax in labelled] + [ax.get_xlabel() for ax in axes if ax.get_xlabel()]:
        assert UNITS.search(label), f"no unit in {label!r}"
    assert any(ax.get_xlabel() for ax in axes)
    assert len(figure.legends) == 1, "one legend, outside the axes"
    assert all(ax.get_legend() is None for ax in axes)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels
    assert len(set(labels)) == len(labels)
    figure.canvas.draw()
    box, renderer = figure.bbox, figure.canvas.get_renderer()  # type: ignore[attr-defined]
    for text in figure.texts:
        extent = text.get_window_extent(renderer)
        assert extent.x1 <= box.x1
        assert extent.y1 <= box.y1
    legend = figure.legends[0].get_window_extent(renderer)
    assert legend.x0 >= box.x0
    assert legend.x1 <= box.x1
    for ax in axes:
        assert not ax.get_window_extent(renderer).overlaps(legend), "the legend lies over data"
        assert ax.get_window_extent(renderer).height > 60
    return texts, labels


def numbers_of(figure: Figure) -> list[str]:
    """Texts inside the axes."""
    return [text.get_text() for ax in figure.axes for text in ax.texts]


def test_every_class_cause_and_owner_has_its_colour() -> None:
    assert set(CLASS_COLOURS) == set(CLASSES)
    assert len(set(CLASS_COLOURS.values())) == len(CLASSES)
    assert set(CAUSE_COLOURS) == {cause.id for cause in CAUSES}
    assert set(OWNER_COLOURS) == set(OWNERS) == set(OWNER_LABELS)
    assert len(set(OWNER_COLOURS.values())) == len(OWNERS)


def parameters() -> dict[str, Any]:
    """matplotlib's parameters but the backend: reading that one chooses it."""
    return {name: matplotlib.rcParams[name] for name in matplotlib.rcParams if name != "backend"}


def test_import_leaves_matplotlib_alone() -> None:
    code = (
        "import matplotlib, sys; before = matplotlib.rcParams.copy(); import sparsesim.figures; "
        "assert all(matplotlib.rcParams[name] == before[name] for name in before if name != 'backend'); "
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_drawing_restores_parameters(attribution: Attribution) -> None:
    before = parameters()
    draw_waterfall(attribution)
    assert parameters() == before


def test_waterfall(attribution: Attribution) -> None:
    figure = draw_waterfall(attribution)
    texts, labels = checked(figure)
    assert texts[0].startswith(f"2× promised, {attribution.speedup:.2f}× delivered")
    (ax,) = figure.axes
    assert ax.get_yscale() == "log"
    assert len(ax.patches) == len(attribution.ranked()) + 2
    assert set(labels) - {"▲ dense loses more"} <= set(CLASSES)
    bars = [bar.get_window_extent() for bar in ax.patches]
    assert bars[0].height > 0.0
    levels = [bar.get_y() + bar.get_height() for bar in ax.patches]  # type: ignore[attr-defined]
    assert levels[-2] == pytest.approx(attribution.speedup)
    assert levels[-1] == pytest.approx(attribution.speedup)


def test_waterfall_names_negative_shares_and_goes_up(attribution: Attribution) -> None:
    shares = dict.fromkeys(attribution.shares, 0.0)
    shares["power"] = -0.2
    shares["dram"] = attribution.gap + 0.2
    figure = draw_waterfall(replace(attribution, shares=shares))
    _, labels = checked(figure)
    assert "▲ dense loses more" in labels
    assert f"▲\n×{math.exp(0.2):.3f}" in numbers_of(figure)
    (ax,) = figure.axes
    up = ax.patches[2]
    assert up.get_height() > 0.0  # type: ignore[attr-defined]
    assert up.get_hatch()
    assert "fallback" in ax.get_xlabel()


def test_waterfall_with_every_cause_and_with_none(attribution: Attribution) -> None:
    count = len(attribution.shares)
    everything = dict.fromkeys(attribution.shares, attribution.gap / count)
    everything["dram"] += attribution.gap - math.fsum(everything.values())
    checked(draw_waterfall(replace(attribution, shares=everything)))
    none = replace(
        attribution,
        shares=dict.fromkeys(attribution.shares, 0.0),
        time_us=attribution.dense_time_us / attribution.nominal_speedup,
    )
    assert len(draw_waterfall(none).axes[0].patches) == 2


@pytest.mark.parametrize("curves", [1, 2, 3])
def test_speedup(results: list[GemmResult], curves: int) -> None:
    points = [(64.0, 0.9), (512.0, 1.3)]
    figure = draw_speedup([SpeedupCurve(f"GPU {i}", results, points) for i in range(curves)], "n")
    _, labels = checked(figure)
    assert labels == ["model", "measured", "promised, 2×", "as fast as dense"]
    shown = [ax for ax in figure.axes if ax.get_visible()]
    assert len(shown) == curves
    for ax in shown:
        lines = [line.get_xydata().tolist() for line in ax.lines]  # type: ignore[union-attr]
        assert [list(point) for point in points] in lines
        assert [[float(r.op.n), r.speedup] for r in results] in lines
    assert "tokens" in shown[-1].get_xlabel()


def test_speedup_without_measured_points(results: list[GemmResult]) -> None:
    figure = draw_speedup([SpeedupCurve("GPU", results)])
    assert "measured" not in checked(figure)[1]
    with pytest.raises(ValueError, match="curves: expected at least one"):
        draw_speedup([])
    with pytest.raises(ValueError, match="against: expected one of"):
        draw_speedup([SpeedupCurve("GPU", results)], "k")


def test_roofline(results: list[GemmResult]) -> None:
    gpu = ss.load_gpu(GPU)
    figure = draw_roofline(gpu, results)
    _, labels = checked(figure)
    assert sum("peak" in label for label in labels) == 4
    assert any("DRAM" in label for label in labels)
    (ax,) = figure.axes
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert {"n = 64", "n = 512"} <= set(numbers_of(figure))
    peak = 2 * gpu.tensor.macs_per_clk["f16_f32"] * gpu.sm.count * gpu.clock.boost / 1e12
    assert any(f"dense peak {peak:.0f} TFLOP/s" in label for label in labels)
    flop = 2 * results[0].op.macs
    heights = [line.get_ydata()[0] for line in ax.lines]  # type: ignore[index]
    assert any(height == pytest.approx(flop / results[0].time_us / 1e6) for height in heights)


def test_no_op_lies_above_its_slope() -> None:
    gpu = ss.load_gpu("h100_pcie")
    simulator = ss.Simulator(gpu)
    ops = [simulator.gemm(ss.Gemm(f"n = {n}", 4096, n, 4096, pattern="2:4")) for n in (16, 128, 1024)]
    (ax,) = draw_roofline(gpu, ops).axes
    slopes = {"None": ax.lines[0], "|": ax.lines[1]}
    marks = [line for line in ax.lines if len(line.get_xdata()) == 1]
    assert len(marks) == 2 * 2 * len(ops)
    for mark in marks:
        x, y = slopes.get(str(mark.get_marker()), slopes["None"]).get_data()
        (at,), (height,) = mark.get_data()
        assert height <= np.interp(at, x, y) * 1.02


def test_roofline_shows_a_fallback_as_one_point_and_refuses_what_it_cannot_show(
    results: list[GemmResult],
) -> None:
    gpu = ss.load_gpu(GPU)
    simulator = ss.Simulator(gpu)
    fallback = simulator.gemm(ss.Gemm("odd", 512, 1, 512, pattern="2:4"))
    assert fallback.path == "dense"
    assert "odd, fallback" in numbers_of(draw_roofline(gpu, [fallback]))
    with pytest.raises(ValueError, match="at least one"):
        draw_roofline(gpu, [])
    other = simulator.gemm(ss.Gemm("i8", 512, 512, 512, dtype="i8", pattern="2:4"))
    with pytest.raises(ValueError, match="one dtype"):
        draw_roofline(gpu, [results[0], other])
    warm = simulator.gemm(ss.Gemm("warm", 512, 512, 512, pattern="2:4"), ss.Protocol(l2="warm"))
    with pytest.raises(ValueError, match="rotating or cold"):
        draw_roofline(gpu, [warm])


def test_timeline(launches: tuple[LaunchResult, LaunchResult]) -> None:
    figure = draw_timeline(*launches, context="a GEMM", sms=[0, 1, 107])
    _, labels = checked(figure)
    assert len(labels) == 4
    for ax, launch in zip(figure.axes, launches, strict=True):
        assert launch.kernel.name in ax.get_title(loc="left")
        assert [tick.get_text() for tick in ax.get_yticklabels()] == ["0", "1", "107"]
        assert ax.get_xlim()[1] >= max(each.seconds for each in launches) * 1e6
    assert "µs" in figure.axes[-1].get_xlabel()


def test_timeline_lanes_do_not_overlap(launches: tuple[LaunchResult, LaunchResult]) -> None:
    ctas = np.array([[0, 0, 1, 8, 10], [0, 2, 3, 8, 12], [0, 10, 11, 12, 14], [0, 11, 12, 13, 15]])
    assert lanes(ctas[:, [1, 4]].tolist()) == [0, 1, 0, 2]
    with pytest.raises(ValueError, match="dense: expected a launch with its timeline"):
        draw_timeline(replace(launches[0], timeline=None), launches[1])
    with pytest.raises(ValueError, match="sparse: expected a launch that was simulated in full"):
        draw_timeline(launches[0], replace(launches[1], extrapolated=True))


def test_accounting(results: list[GemmResult]) -> None:
    figure = draw_accounting(results)
    _, labels = checked(figure)
    (ax,) = figure.axes
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["dense", "sparse"] * 2
    for row, launch in enumerate((results[0].dense_launch, results[0].launch)):
        widths = sum(p.get_width() for p in ax.patches if p.get_y() == pytest.approx(row - 0.4))  # type: ignore[attr-defined]
        assert widths == pytest.approx(100 * launch.cycles / results[0].dense_launch.cycles)
    assert set(labels) <= set(OWNER_LABELS.values())
    with pytest.raises(ValueError, match="at least one"):
        draw_accounting([])


def test_equal_figures_are_equal_bytes_and_appear_whole(attribution: Attribution, tmp_path: Path) -> None:
    files = [save(draw_waterfall(attribution), tmp_path / name / "figure.png") for name in "ab"]
    first, second = (file.read_bytes() for file in files)
    assert first == second
    assert first.startswith(b"\x89PNG")
    for word in (b"tEXt", b"iTXt", b"tIME", b"atplotlib"):
        assert word not in first
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["figure.png"]


def test_failed_save_leaves_nothing(tmp_path: Path) -> None:
    class Broken(Figure):
        def savefig(self, fname: Any, **_: Any) -> None:
            Path(fname).write_bytes(b"half")
            raise RuntimeError("full disk")

    with pytest.raises(RuntimeError, match="full disk"):
        save(Broken(), tmp_path / "figure.png")
    assert list(tmp_path.iterdir()) == []


TINY: dict[str, dict[str, Any]] = {
    "loss_waterfall": {"gpu": GPU, "m": 128, "n": 128, "k": 128},
    "speedup_vs_size": {"gpus": (GPU, "b200"), "sizes": (64, 256)},
    "speedup_vs_tokens": {"gpus": ("h100_pcie",), "tokens": (64,)},
    "roofline": {"name": GPU, "tokens": (1, 16)},
    "sm_timeline": {"m": 256, "n": 256, "k": 256},
    "cycle_accounting": {"sizes": (256,)},
    "whatif_smem": {"size": 256, "vary": ("smem.bytes_per_clk=64,128",)},
    "whatif_metadata": {"size": 256, "vary": ("metadata.groups_per_clk=0.5,32", "metadata.bits_factor=1,8")},
    "sensitivity_tornado": {"size": 256, "only": ("launch", "sm.count")},
    "breakeven_map": {"tokens": (64, 256), "sides": (256, 512)},
    "pattern_comparison": {"size": 960, "patterns": ("dense", "2:4", "1:4"), "expanded": ("6:8",)},
    "utilisation": {"size": 512, "bins": 20},
    "k_expansion": {},
    "quality_frontier": {
        "sla": Sla("e2e_p95", prompt=32, output=4, requests=6, replications=2, dtype="i8"),
        "scale": Scale(),
    },
}


@pytest.mark.parametrize("name", TINY)
def test_script(name: str, script: Callable[[str], ModuleType]) -> None:
    module = script(name)
    assert name == module.NAME
    assert module.__doc__
    arguments = dict(TINY[name])
    if name == "k_expansion":  # one pair is enough
        arguments["points"] = module.EXPANDED[:1]
    checked(module.draw(**arguments))


def test_gallery_shows_every_figure_with_its_claim(script: Callable[[str], ModuleType], tmp_path: Path) -> None:
    make_all = script("make_all")
    folder = tmp_path / "figures"
    drawn = [make_all.Drawn(name, folder / f"{name}.png", f"claim of {name}", "a GPU", 1.0) for name in TINY]
    page = make_all.gallery(drawn, tmp_path / "gallery.md")
    for name in TINY:
        assert f"![claim of {name}](figures/{name}.png)" in page
        assert f"`plots/{name}.py`" in page
    assert page == make_all.gallery(reversed(drawn), tmp_path / "gallery.md")


def test_the_gallery_of_the_project_shows_every_script() -> None:
    docs = PLOTS.parent / "docs"
    shown = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", (docs / "gallery.md").read_text(encoding="utf-8"))
    assert {Path(path).stem for path in shown} == set(TINY)
    assert all((docs / path).is_file() for path in shown)


def test_script_writes_where_it_is_told(
    script: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    attribution: Attribution,
) -> None:
    monkeypatch.setattr(sys, "argv", ["loss_waterfall.py", "--out", str(tmp_path / "deep")])
    script("script").run("loss_waterfall", lambda: draw_waterfall(attribution), "text")
    path = tmp_path / "deep" / "loss_waterfall.png"
    assert path.is_file()
    assert capsys.readouterr().out.strip() == str(path)


def test_make_all_knows_every_script(script: Callable[[str], ModuleType]) -> None:
    # the last draws a store
    modules = {"make_all", "measured_points", "expanded_points", "script", "design_sweep"}
    assert set(script("make_all").SCRIPTS) == {path.stem for path in PLOTS.glob("*.py")} - modules == set(TINY)


def test_designs_show_the_front_and_the_board_as_it_is() -> None:
    cost, values = [0.8, 1.0, 1.2], [1.2, 1.1, 1.5]
    panel = DesignPanel("over dense", "speedup, ×", values, [True, False, True], 1.3)
    figure = draw_designs(cost, "area, ×", [0.5, 1.0, 2.0], "bandwidth, ×", [panel, panel], "Three designs", "made up")
    _, labels = checked(figure)
    assert labels == ["front", "board as it is"]
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    assert list(np.asarray(lines["front"].get_xdata())) == [0.8, 1.2]
    assert list(np.asarray(lines["board as it is"].get_ydata())) == [1.3]
    offsets = np.asarray(figure.axes[0].collections[0].get_offsets())
    assert np.allclose(offsets, np.column_stack([cost, values]))
    with pytest.raises(ValueError, match="a value for every point"):
        draw_designs([1.0], "x", [1.0], "y", [panel], "title", "context")


def test_design_sweep_draws_a_store(script: Callable[[str], ModuleType], tmp_path: Path) -> None:
    from sparsesim.sweep.driver import run_sweep
    from sparsesim.sweep.spec import read_spec

    text = (PLOTS.parent / "sweeps" / "a100_designs.toml").read_text().replace("points = 1000", "points = 3")
    file = tmp_path / "designs.toml"
    file.write_text(text.replace("llama-3.1-8b", "llama-3.2-1b").replace("prefill", "decode").replace("512", "8"))
    run_sweep(read_spec(file), tmp_path / "store")
    checked(script("design_sweep").draw(tmp_path / "store"))


def test_measured_points(script: Callable[[str], ModuleType]) -> None:
    measured = script("measured_points")
    assert 0 < len(measured.MEASURED) <= 60
    assert len({row[:4] for row in measured.MEASURED}) == len(measured.MEASURED)
    assert {row.gpu for row in measured.MEASURED} <= set(ss.gpu_names())
    assert measured.SOURCE.startswith("SlideSparse kernel benchmark, bcacdwk/vllmbench (arXiv 2603.05232)")
    for gpu in {row.gpu for row in measured.MEASURED}:
        square, weight = measured.of_square(gpu), measured.of_weight(gpu, 27648, 5120)
        assert len(square) + len(weight) == sum(row.gpu == gpu for row in measured.MEASURED)
        assert all(0.3 < speedup < 2.2 for _, speedup in square + weight)


def test_only_figures_imports_matplotlib() -> None:
    package = Path(ss.__file__).parent
    users = {
        path.relative_to(package).parts[0]
        for path in package.rglob("*.py")
        if re.search(r"^\s*(import|from) matplotlib", path.read_text(), re.MULTILINE)
    }
    assert users == {"figures"}
