"""Hardware files: schema, packaged boards against vendor tables, provenance, and bad input."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from sparsesim.datafiles import data_dir
from sparsesim.errors import UserError
from sparsesim.hardware import GpuSpec, gpu_names, load_gpu, load_sources, override
from sparsesim.hardware import audit as audit_module
from sparsesim.hardware.audit import assumed_or_fitted, audit, findings

CONFIGS = data_dir("hw_configs")

# board: SMs, boost MHz, TDP W, L2 MiB, DRAM GB/s. Vendor whitepapers and datasheets, TechPowerUp where
# those are silent (the sources are named in the hardware files).
BOARDS = {
    "a100_sxm4_80gb": (108, 1410, 400, 40, 2039),
    "a800_sxm4_80gb": (108, 1410, 400, 40, 2039),
    "l20": (92, 2520, 275, 96, 864),
    "agx_orin": (16, 1300, 60, 4, 204.8),
    "orin_nano": (8, 625, 15, 2, 68),
    "mi300x": (304, 2100, 750, 32, 5300),
    "mi350x": (256, 2200, 1000, 32, 8000),
    "a100_pcie_80gb": (108, 1410, 300, 40, 1935),
    "rtx3060": (28, 1777, 170, 3, 360),
    "rtx3090": (82, 1695, 350, 6, 936),
    "rtx_a6000": (84, 1800, 300, 6, 768),
    "a40": (84, 1740, 300, 6, 696),
    "a10": (72, 1695, 150, 6, 600),
    "rtx4070": (46, 2475, 200, 36, 504),
    "rtx4070_super": (56, 2475, 220, 48, 504),
    "rtx4070ti_super": (66, 2610, 285, 48, 672.3),
    "rtx4090": (128, 2520, 450, 72, 1008),
    "l4": (58, 2040, 72, 48, 300),
    "l40s": (142, 2520, 350, 96, 864),
    "h100_sxm5": (132, 1980, 700, 50, 3352),
    "h100_pcie": (114, 1755, 350, 50, 2000),
    "h200_sxm": (132, 1980, 700, 50, 4800),
    "h800_sxm": (132, 1755, 700, 50, 3360),
    "b200": (148, 1965, 1000, 126, 7700),
    "b300": (148, 2032, 1400, 126, 8000),
    "gb200": (148, 1965, 1200, 126, 8000),
    "rtx5080": (84, 2617, 360, 64, 960),
    "rtx5090": (170, 2407, 575, 96, 1792),
    "rtx_pro_6000": (188, 2617, 600, 128, 1790),
    "gb10": (48, 2418, 140, 24, 273),
    "v100_sxm2": (80, 1530, 300, 6, 898),
    "t4": (40, 1590, 70, 4, 320),
}

# (board, rate, dense peak in TFLOP/s or TOP/s, MHz that the vendor quotes it at where not the boost clock).
# A100, H100, H200, Blackwell, GA102, Ada, RTX Blackwell whitepapers; A40, A10, L4, L40S, V100, T4 datasheets.
PEAKS = [
    ("a100_sxm4_80gb", "f16_f32", 312, None),
    ("a100_sxm4_80gb", "f16_f16", 312, None),
    ("a100_sxm4_80gb", "tf32", 156, None),
    ("a100_sxm4_80gb", "i8", 624, None),
    ("a100_pcie_80gb", "f16_f32", 312, None),
    ("rtx3090", "f16_f32", 71, None),
    ("rtx3090", "f16_f16", 142, None),
    ("rtx3090", "tf32", 35.5, None),
    ("rtx3090", "i8", 284, None),
    ("a10", "f16_f32", 125, None),
    ("a10", "i8", 250, None),
    ("a40", "f16_f32", 149.7, None),
    ("a40", "tf32", 74.8, None),
    ("a40", "i8", 299.3, None),
    ("rtx_a6000", "f16_f32", 154.8, None),
    ("rtx_a6000", "i8", 309.7, None),
    ("rtx4090", "f16_f32", 165.2, None),
    ("rtx4090", "f16_f16", 330.3, None),
    ("rtx4090", "tf32", 82.6, None),
    ("rtx4090", "e4m3_f32", 330.3, None),
    ("rtx4090", "e4m3_f16", 660.6, None),
    ("rtx4090", "i8", 660.6, None),
    ("rtx4070ti_super", "f16_f32", 88, None),
    ("rtx4070ti_super", "f16_f16", 176, None),
    ("rtx4070ti_super", "i8", 353, None),
    ("l4", "f16_f32", 121, None),
    ("l4", "tf32", 60, None),
    ("l4", "e4m3_f32", 242, None),
    ("l4", "i8", 242, None),
    ("l40s", "f16_f32", 362.05, None),
    ("l40s", "tf32", 183, None),
    ("l40s", "e4m3_f32", 733, None),
    ("l40s", "i8", 733, None),
    ("h100_sxm5", "f16_f32", 989.4, 1830),
    ("h100_sxm5", "tf32", 494.7, 1830),
    ("h100_sxm5", "e4m3_f32", 1978.9, 1830),
    ("h100_sxm5", "i8", 1978.9, 1830),
    ("h100_pcie", "f16_f32", 756, 1620),
    ("h100_pcie", "tf32", 378, 1620),
    ("h100_pcie", "e4m3_f32", 1513, 1620),
    ("h200_sxm", "f16_f32", 989.4, 1830),
    ("b200", "f16_f32", 2250, 1856),
    ("b200", "tf32", 1100, 1856),
    ("b200", "e4m3_f32", 4500, 1856),
    ("b200", "i8", 4500, 1856),
    ("b200", "e2m1", 9000, 1856),
    ("b300", "i8", 153.5, None),
    ("rtx5090", "f16_f32", 209.5, None),
    ("rtx5090", "f16_f16", 419, None),
    ("rtx5090", "tf32", 104.8, None),
    ("rtx5090", "e4m3_f32", 419, None),
    ("rtx5090", "e4m3_f16", 838, None),
    ("rtx5090", "e2m1", 1676, None),
    ("v100_sxm2", "f16_f32", 125, None),
    ("t4", "f16_f32", 65, None),
    ("t4", "i8", 130, None),
]


@pytest.fixture(scope="module")
def gpus() -> dict[str, GpuSpec]:
    return {name: load_gpu(name) for name in gpu_names()}


def leaf_paths(gpu: GpuSpec) -> set[str]:
    """Every parameter path of a loaded description, read off the data and not off the audit."""
    paths = set()
    for section, fields in gpu.model_dump().items():
        if not isinstance(fields, dict):
            continue
        for field, value in fields.items():
            keys = [f".{key}" for key in value] if isinstance(value, dict) else [""]
            paths |= {f"{section}.{field}{key}" for key in keys}
    return paths


# ---------------------------------------------------------------- packaged files


def test_names_are_the_boards_without_families() -> None:
    names = gpu_names()
    assert set(names) == {*BOARDS, "hypothetical_nm"}
    families = {p.stem for p in (CONFIGS / "families").glob("*.toml")}
    assert len(families) == 9
    assert not families & set(names)
    assert "sources" not in names


def test_each_file_has_its_own_name(gpus: dict[str, GpuSpec]) -> None:
    for name, gpu in gpus.items():
        assert gpu.name == name
    assert len({gpu.title for gpu in gpus.values()}) == len(gpus)
    assert [name for name, gpu in gpus.items() if gpu.hypothetical] == ["hypothetical_nm"]


@pytest.mark.parametrize("name", BOARDS)
def test_board_table(gpus: dict[str, GpuSpec], name: str) -> None:
    gpu = gpus[name]
    found = (
        gpu.sm.count,
        gpu.clock.boost / 1e6,
        gpu.power.limit,
        gpu.l2.bytes / 2**20,
        gpu.dram.bytes_per_s / 1e9,
    )
    assert found == pytest.approx(BOARDS[name])


@pytest.mark.parametrize(("name", "rate", "peak", "mhz"), PEAKS)
def test_peak_rates(gpus: dict[str, GpuSpec], name: str, rate: str, peak: float, mhz: float | None) -> None:
    gpu = gpus[name]
    hz = gpu.clock.boost if mhz is None else mhz * 1e6
    assert 2 * gpu.tensor.macs_per_clk[rate] * gpu.sm.count * hz == pytest.approx(peak * 1e12, rel=0.03)


def test_generations_and_patterns(gpus: dict[str, GpuSpec]) -> None:
    for gpu in gpus.values():
        operands = {rate.split("_")[0] for rate in gpu.tensor.macs_per_clk}
        assert set(gpu.tensor.native_patterns) == operands, gpu.name
        assert set(gpu.power.mac) == operands, gpu.name
        assert gpu.has_sparse is (gpu.name not in ("v100_sxm2", "t4"))
        # mma parts have no second, slower path; the others do
        assert bool(gpu.tensor.legacy_macs_per_clk) is (gpu.tensor.generation != "mma")
        for rate, macs in gpu.tensor.legacy_macs_per_clk.items():
            assert macs <= gpu.tensor.macs_per_clk[rate]
    assert "e4m3" not in gpus["a100_pcie_80gb"].tensor.native_patterns
    assert "e2m1" in gpus["rtx5090"].tensor.native_patterns
    assert gpus["hypothetical_nm"].tensor.native_patterns["f16"] == ("1:4", "2:8", "4:8", "1:2", "2:4")
    assert gpus["hypothetical_nm"].metadata.groups_per_clk > 0


def test_extends_changes_only_what_it_names(gpus: dict[str, GpuSpec]) -> None:
    sxm, pcie = gpus["a100_sxm4_80gb"], gpus["a100_pcie_80gb"]
    assert pcie.power.limit == 300
    assert pcie.tensor == sxm.tensor
    assert pcie.l2 == sxm.l2
    assert pcie.provenance["power.limit"].file == "a100_pcie_80gb.toml"
    assert pcie.provenance["clock.boost"].file == "a100_sxm4_80gb.toml"
    assert pcie.provenance["tensor.latency"].file == "ampere_dc.toml"


def test_a_description_is_immutable(gpus: dict[str, GpuSpec]) -> None:
    with pytest.raises(ValueError, match="frozen"):
        gpus["l4"].clock.boost = 1.0  # type: ignore[misc]


# ---------------------------------------------------------------- provenance


def test_every_leaf_has_provenance(gpus: dict[str, GpuSpec]) -> None:
    for name, gpu in gpus.items():
        assert leaf_paths(gpu) == set(gpu.provenance), name
        assert {row.path for row in audit(gpu)} == set(gpu.provenance), name
        assert findings(gpu) == [], name


def test_every_source_code_is_used_and_none_is_local() -> None:
    text = "\n".join(p.read_text() for p in CONFIGS.rglob("*.toml") if p.stem != "sources")
    for code, citation in load_sources().items():
        assert code in text, code
        assert "stored file" not in citation
        assert "/work" not in citation
    assert "/work" not in text


def test_audit_shows_the_units_of_the_file(gpus: dict[str, GpuSpec]) -> None:
    rows = {row.path: row for row in audit(gpus["h100_pcie"])}
    clock = rows["clock.boost"]
    assert (clock.value, clock.unit, clock.status) == (1755, "MHz", "datasheet")
    assert "H100 PCIe product brief" in clock.citation
    mac = rows["power.mac.f16"]
    assert mac.unit == "pJ"
    assert mac.range is not None
    assert mac.range[0] < mac.value < mac.range[1]
    assert rows["l2.bytes"].value == 50
    soft = assumed_or_fitted(gpus["h100_pcie"])
    assert {row.status for row in soft} <= {"assumed", "fitted"}
    assert 0 < len(soft) < len(rows)
    assert len(assumed_or_fitted(gpus["hypothetical_nm"])) == len(audit(gpus["hypothetical_nm"]))


VARIANT = """
extends = "rtx4090"
name = "mine"
title = "Mine"
"""


def write(tmp_path: Path, text: str, name: str = "mine.toml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(
        tmp_path,
        VARIANT
        + """
[clock]
base = { value = 2235, unit = "MHz", source = "NO-SUCH", status = "datasheet" }
boost = { value = 2520, unit = "MHz", source = "my own bench", status = "measured" }
[launch]
ramp = { value = 0.4, unit = "us", source = "ASSUMED", status = "assumed" }
drain = { value = 0.4, unit = "us", source = "DERIVED", status = "fitted", rows = "x.csv" }
stream_gap = { value = 1, unit = "us", source = "DERIVED", status = "fitted", range = [0, 2] }
graph_gap = { value = 1, unit = "us", source = "DERIVED", status = "fitted", rows = "x.csv", range = [0, 2] }
""",
    )
    gpu = load_gpu(path)
    lines = findings(gpu)
    assert len(lines) == 4
    for line, words in zip(
        lines,
        (["clock.base", "'NO-SUCH'"], ["launch.stream_gap"], ["launch.ramp", "note"], ["launch.drain"]),
        strict=True,
    ):
        assert line.startswith("mine.toml: ")
        assert all(word in line for word in words)
    assert [r.citation for r in audit(gpu) if r.path == "clock.boost"] == ["my own bench"]
    assert {r.path for r in assumed_or_fitted(gpu)} >= {"launch.ramp", "launch.drain"}

    no_origin = GpuSpec(**gpu.model_dump())
    assert len(findings(no_origin)) == len(audit(no_origin))
    monkeypatch.setattr(audit_module, "_leaves", lambda _: [("clock.boost", None, "Hz")])
    assert findings(no_origin)[0] == "mine: clock.boost: expected a value, found none"


def test_a_rated_clock_above_the_highest_is_a_finding(tmp_path: Path) -> None:
    clock = 'max = { value = 1.3, unit = "GHz", source = "my bench", status = "measured" }'
    path = write(tmp_path, f'extends = "a100_pcie_80gb"\nname = "mine"\n[clock]\n{clock}\n')
    (line,) = findings(load_gpu(path))
    assert line == (
        "a100_sxm4_80gb.toml: clock.boost: expected at most clock.max (1.3 GHz in mine.toml), found 1410 MHz"
    )
    clock = 'boost = { value = 2, unit = "GHz", source = "my bench", status = "measured" }\n' + clock
    path = write(tmp_path, f'extends = "a100_pcie_80gb"\nname = "mine"\n[clock]\n{clock}\n')
    assert findings(load_gpu(path)) == ["mine.toml: clock.boost: expected at most clock.max (1.3 GHz), found 2 GHz"]


def test_a_file_that_lacks_most_fields_is_told_of_extends(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        load_gpu(write(tmp_path, 'name = "mine"\n'))
    assert "extends: expected for a variant" in caught.value.problems[-1]
    with pytest.raises(UserError) as caught:  # a variant that lacks a field has nothing to be told of it
        load_gpu(write(tmp_path, VARIANT + "[clock]\nnonsense = 1\n"))
    assert not any("expected for a variant" in line for line in caught.value.problems)


# ---------------------------------------------------------------- files of the user


def problems(path: Path | str) -> list[str]:
    """The lines that loading `path` raises."""
    with pytest.raises(UserError) as caught:
        load_gpu(path)
    assert all("\n" not in line for line in caught.value.problems)
    return list(caught.value.problems)


def leaf(value: str, unit: str = "MHz", rest: str = "") -> str:
    return f'{{ value = {value}, unit = "{unit}", source = "x y", status = "assumed", note = "n"{rest} }}'


def test_variant_converts_units(tmp_path: Path) -> None:
    gpu = load_gpu(write(tmp_path, VARIANT + f"[clock]\nmax = {leaf('2.8', 'GHz')}\n"))
    assert gpu.clock.max == pytest.approx(2.8e9)
    assert gpu.sm == load_gpu("rtx4090").sm
    assert gpu.name == "mine"


@pytest.mark.parametrize(
    ("section", "line", "words"),
    [
        ("clock", f"bost = {leaf('2000')}", ["clock.bost", "did you mean 'boost'?"]),
        ("clok", f"boost = {leaf('2000')}", ["clok", "did you mean 'clock'?"]),
        ("clock", 'boost = { value = 2520, source = "x", status = "assumed" }', ["clock.boost.unit"]),
        ("clock", f"boost = {leaf('2520', 'W')}", ["clock.boost.unit", "MHz", "'W'"]),
        ("clock", 'boost = { value = 2520, unit = "MHz", status = "assumed" }', ["clock.boost.source"]),
        ("clock", 'boost = { value = 2520, unit = "MHz", source = "x" }', ["clock.boost.status"]),
        (
            "clock",
            'boost = { value = 2520, unit = "MHz", source = "x", status = "measure" }',
            ["clock.boost.status", "did you mean 'measured'?"],
        ),
        ("clock", f"boost = {leaf('2520', rest=', nte = 1')}", ["clock.boost.nte", "did you mean 'note'?"]),
        ("clock", "boost = 2520", ["clock.boost", "a table", "2520"]),
        ("clock", f"boost = {leaf('-1')}", ["clock.boost", "greater than 0", "found -1 MHz"]),
        ("clock", f"boost = {leaf('0')}", ["clock.boost", "greater than 0"]),
        ("clock", f"boost = {leaf('nan')}", ["clock.boost", "finite"]),
        ("clock", f"boost = {leaf('inf')}", ["clock.boost", "finite"]),
        ("clock", f"boost = {leaf('2520', rest=', range = [0, 1]')}", ["clock.boost.value", "[0, 1]"]),
        ("clock", f"boost = {leaf('2520', rest=', range = [2, 1]')}", ["clock.boost.range", "low <= high"]),
        ("clock", f"boost = {leaf('2520', rest=', range = [0, nan]')}", ["clock.boost.range"]),
        ("clock", f"boost = {leaf(chr(34) + '2520' + chr(34))}", ["clock.boost", "number"]),
        ("clock", f"min = {leaf('2500')}", ["min <= base <= max"]),
        ("sm", f"count = {leaf('true', '-')}", ["sm.count", "number"]),
        ("sm", f"count = {leaf('1.5', '-')}", ["sm.count", "integer"]),
        ("sm", f"count = {leaf('[1]', '-')}", ["sm.count"]),
        ("sm", f"count = {leaf('{a = 1}', '-')}", ["sm.count.value"]),
        ("l2", f"bytes = {leaf('-1', 'MiB')}", ["l2.bytes", "greater than 0"]),
        (
            "dram",
            f"achieved_fraction = {leaf('1.2', '-')}",
            ["dram.achieved_fraction", "less than or equal to 1"],
        ),
        ("tensor", f"dense_issue_ratio = {leaf('0.9', '-')}", ["tensor.dense_issue_ratio"]),
        ("tensor", f"generation = {leaf(chr(34) + 'wmma' + chr(34), '-')}", ["tensor.generation", "'wgmma'"]),
        ("tensor.macs_per_clk", f"f16_f23 = {leaf('1', 'MAC/clk')}", ["f16_f23", "did you mean 'f16_f32'?"]),
        ("tensor", f"macs_per_clk = {leaf('1', 'MAC/clk')}", ["tensor.macs_per_clk"]),
        ("cluster", f"multicast = {leaf('3', '-')}", ["cluster.multicast"]),
        ("smem", f"max_per_cta = {leaf('200', 'KiB')}", ["smem.max_per_cta"]),
    ],
)
def test_bad_parameter(tmp_path: Path, section: str, line: str, words: list[str]) -> None:
    (found,) = problems(write(tmp_path, VARIANT + f"[{section}]\n{line}\n"))
    assert "mine.toml" in found
    assert all(word in found for word in words), found
    assert "expected" in found


def test_all_problems_at_once(tmp_path: Path) -> None:
    text = f"""
extends = "rtx4090"
name = 5
title = "Mine"
vendr = "NVIDIA"
[clock]
boost = {leaf("-3")}
base = {leaf("1", "W")}
[sm]
count = {leaf("nan", "-")}
cuont = {leaf("1", "-")}
"""
    lines = problems(write(tmp_path, text))
    for word in ("name", "vendr", "clock.boost", "clock.base.unit", "sm.count.value", "sm.cuont"):
        assert sum(f": {word}:" in line for line in lines) == 1, (word, lines)
    assert len(lines) == 6


def test_missing_parameters_are_all_named(tmp_path: Path) -> None:
    lines = problems(write(tmp_path, 'name = "mine"\ntitle = "Mine"\nextends = "families/hopper"\n'))
    assert any("sm.count: expected a value, found none" in line for line in lines)
    assert any("clock: expected a value, found none" in line for line in lines)
    assert len(lines) > 5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "an empty file"),
        ("\n  \n", "an empty file"),
        (VARIANT + "[clock]\nboost = { value = 25", "valid TOML"),
        (VARIANT + "[clock]\n[clock]\n", "valid TOML"),
        ('extends = "nowhere"\n', "nowhere"),
        ('extends = "rtx409"\n', "did you mean 'rtx4090'?"),
        ("extends = 3\n", "extends"),
        ('extends = "mine"\n', "no circle"),
        (VARIANT + "hypothetical = 1\n", "true or false"),
        (VARIANT + "clock = 3\n", "a table"),
    ],
)
def test_bad_file(tmp_path: Path, text: str, words: str) -> None:
    (found,) = problems(write(tmp_path, text))
    assert "mine.toml" in found
    assert words in found
    assert "expected" in found


def test_circle_of_two(tmp_path: Path) -> None:
    write(tmp_path, 'extends = "b.toml"\n', "a.toml")
    write(tmp_path, 'extends = "a"\n', "b.toml")
    (found,) = problems(tmp_path / "a.toml")
    assert "a -> b -> a" in found


def test_too_many_levels(tmp_path: Path) -> None:
    for level in range(12):
        write(tmp_path, f'extends = "v{level + 1}"\n', f"v{level}.toml")
    (found,) = problems(tmp_path / "v0.toml")
    assert "levels" in found


def test_not_text(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(b"name = '\xff'\n")
    assert "UTF-8" in problems(path)[0]


def test_no_such_gpu(tmp_path: Path) -> None:
    assert "did you mean 'rtx4090'?" in problems("rtx4900")[0]
    assert "no such file" in problems(tmp_path / "none.toml")[0]
    (tmp_path / "folder.toml").mkdir()
    assert "no such file" in problems(tmp_path / "folder.toml")[0]
    for name in ("", ".", "x" * 400, "sources ", "../hw_configs"):
        assert len(problems(name)) == 1


# ---------------------------------------------------------------- override


def test_override(gpus: dict[str, GpuSpec]) -> None:
    before = gpus["h100_pcie"]
    after = override(before, {"clock.max": 1.5e9, "tensor.macs_per_clk.f16_f32": 4096, "power.limit": 700})
    assert after.clock.max == 1.5e9
    assert after.tensor.macs_per_clk["f16_f32"] == 4096
    assert after.tensor.macs_per_clk["i8"] == before.tensor.macs_per_clk["i8"]
    assert before.power.limit == 350
    assert override(before, {}) == before
    assert after.provenance == before.provenance


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clock.bost": 1e9}, ["clock.bost", "did you mean 'clock.boost'?"]),
        ({"tensor.macs_per_clk.e2m1": 1}, ["tensor.macs_per_clk.e2m1"]),
        ({"clock.boost.x": 1}, ["clock.boost.x"]),
        ({"": 1}, ["a parameter path"]),
        ({"clock.boost": -1}, ["clock.boost", "greater than 0"]),
        ({"clock.boost": math.nan}, ["clock.boost"]),
        ({"clock.boost": math.inf}, ["clock.boost"]),
        ({"tensor.dense_issue_ratio": math.inf}, ["tensor.dense_issue_ratio"]),
        ({"clock.boost": "fast"}, ["clock.boost", "number"]),
        ({"sm.count": True}, ["sm.count", "number"]),
    ],
)
def test_bad_override(gpus: dict[str, GpuSpec], changes: dict[str, object], words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        override(gpus["h100_pcie"], changes)
    (line,) = caught.value.problems
    assert line.startswith("h100_pcie: ")
    assert all(word in line for word in words), line


def test_bad_overrides_are_collected(gpus: dict[str, GpuSpec]) -> None:
    with pytest.raises(UserError) as caught:
        override(gpus["l4"], {"no.such": 1, "clock.bost": 2})
    assert len(caught.value.problems) == 2
