"""The README and the pages are true: their commands are run, and what they show is what the commands print.

`UPDATE_README=1 pytest tests/test_docs.py` writes today's output into them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sparsesim.hardware import load_gpu
from sparsesim.hardware.audit import findings

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PAGES = (README, *sorted((ROOT / "docs").glob("*.md")))
#: a console block: a command line behind "$ ", then what it prints
BLOCK = re.compile(r"```console\n\$ (?P<command>[^\n]+)\n(?P<output>.*?)```", re.DOTALL)
WIDTH = "150"


#: a shell block: commands without their output
SHELL = re.compile(r"```sh\n(.*?)```", re.DOTALL)


@pytest.fixture(scope="module", autouse=True)
def models() -> None:
    """The models that `make models` makes, which some commands read."""
    subprocess.run([sys.executable, "tests/make_models.py", "out/models"], cwd=ROOT, check=True)


@pytest.fixture(scope="module", autouse=True)
def release(models: None) -> None:
    """What the release of the README starts from: the model and the base's run."""
    for command in release_commands()[:2]:
        run(command)


def release_commands() -> list[str]:
    """The way from a model to a release decision."""
    _, block = SHELL.findall(README.read_text(encoding="utf-8"))
    return block.splitlines()


def blocks(page: Path) -> list[re.Match[str]]:
    return list(BLOCK.finditer(page.read_text(encoding="utf-8")))


def run(command: str) -> str:
    """Standard output of a README command, as a terminal of fixed width shows it."""
    name, *arguments = command.split()
    assert name == "sparsesim", command
    env = {**os.environ, "COLUMNS": WIDTH, "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [sys.executable, "-m", "sparsesim", *arguments],
        capture_output=True,
        cwd=ROOT,
        env=env,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr
    return "".join(line.rstrip() + "\n" for line in done.stdout.splitlines())


@pytest.mark.parametrize(
    ("page", "command"), [(page.name, block["command"]) for page in PAGES for block in blocks(page)]
)
def test_a_page_shows_what_the_command_prints(page: str, command: str) -> None:
    (path,) = [path for path in PAGES if path.name == page]
    printed = run(command)
    if os.environ.get("UPDATE_README"):
        text = path.read_text(encoding="utf-8")
        for block in blocks(path):
            if block["command"] == command:
                text = text.replace(block[0], f"```console\n$ {command}\n{printed}```")
        path.write_text(text, encoding="utf-8")
    (shown,) = [block["output"] for block in blocks(path) if block["command"] == command]
    assert shown == printed


def test_the_way_from_three_real_models_runs_as_written():
    block, _ = SHELL.findall(README.read_text(encoding="utf-8"))
    first, *commands = block.splitlines()
    assert first == "make models"
    assert [command.split()[1] for command in commands].count("simulate") == 3
    for command in commands:
        assert run(command)


def test_five_commands_lead_from_a_model_to_a_release_decision():
    commands = release_commands()
    assert [command.split()[1] for command in commands] == ["import", "simulate", "gate", "diagnose", "diagnose"]
    printed = [run(command) for command in commands[2:]]  # the fixture has run the others
    assert "mechanism    fallback" in printed[1]
    assert printed[2].startswith("SHIP")


def test_readme_names_the_two_commands():
    text = README.read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("demo", "test", "bench", "figures"):
        assert f"make {target}" in text
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_readme_figures_exist():
    for path in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", README.read_text(encoding="utf-8")):
        assert (ROOT / path).is_file(), path


def test_readme_lists_the_core_dependencies():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = README.read_text(encoding="utf-8")
    for requirement in project["dependencies"]:
        assert re.split(r"[><=]", requirement)[0] in text


def test_ci_runs_make_test():
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_readme_hardware_file_loads_without_findings(tmp_path: Path) -> None:
    text = README.read_text(encoding="utf-8")
    [block] = [block for block in re.findall(r"```toml\n(.*?)```", text, re.DOTALL) if "extends" in block]
    file = tmp_path / "h100_meta2.toml"
    file.write_text(block, encoding="utf-8")
    gpu, base = load_gpu(file), load_gpu("h100_pcie")
    assert gpu.metadata.bits_factor == base.metadata.bits_factor / 2
    assert findings(gpu) == []
