"""Files of one call are written as a set: all of them or none, whatever ends the writing, and never over an input."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from sparsesim.__main__ import main
from sparsesim.errors import UserError
from sparsesim.outfiles import OutFile, write_set
from sparsesim.sparsity import Pattern, prune

GPU = "a100_pcie_80gb"


def held(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text("latin-1") for path in folder.iterdir() if path.is_file()}


def files(folder: Path) -> list[OutFile]:
    return [OutFile(folder / name, iter(["new ", name]), f"--{name}") for name in "abc"]


def refuse(monkeypatch, name, error):
    """Renaming to `name` fails."""
    rename = Path.replace

    def replace(self, target):
        if Path(target).name == name and not self.name.endswith(".old.tmp"):
            raise error
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", replace)


def test_a_set_appears_whole(tmp_path):
    (tmp_path / "b").write_text("old")
    write_set(files(tmp_path))
    assert held(tmp_path) == {"a": "new a", "b": "new b", "c": "new c"}


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("last", ["a", "b", "c"])
def test_a_name_that_cannot_be_had_undoes_the_others(tmp_path, monkeypatch, last, links):
    (tmp_path / "a").write_text("old a")
    refuse(monkeypatch, last, PermissionError(1, "Operation not permitted"))
    if not links:
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError(95, "no links here")))
    with pytest.raises(UserError, match=f"^--{last}: expected a file that can be written, .*Operation not permitted"):
        write_set(files(tmp_path))
    assert held(tmp_path) == {"a": "old a"}


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_what_ends_before_all_are_whole_writes_none(tmp_path, error):
    def text():
        yield "half"
        raise error

    (tmp_path / "a").write_text("old a")
    with pytest.raises(error):
        write_set([*files(tmp_path), OutFile(tmp_path / "d", text())])
    assert held(tmp_path) == {"a": "old a"}


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_an_interrupt_between_two_names_waits_for_the_rest(tmp_path, monkeypatch):
    rename = Path.replace

    def replace(self, target):
        signal.raise_signal(signal.SIGINT)
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        write_set(files(tmp_path))
    assert held(tmp_path) == {"a": "new a", "b": "new b", "c": "new c"}
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_pipe_that_breaks_leaves_no_file(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

    def text():
        os.close(reader)
        yield "to nobody"

    with pytest.raises(BrokenPipeError):
        write_set([*files(tmp_path), OutFile(pipe, text())])
    assert held(tmp_path) == {}


# --- the commands that write several files, or read one ---


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    weights = prune(np.random.default_rng(1).standard_normal((64, 64)).astype(np.float16), Pattern(2, 4))
    np.save(tmp_path / "w.npy", weights)
    (tmp_path / "ops.jsonl").write_text('{"name": "a", "m": 64, "n": 64, "k": 64, "pattern": "2:4"}\n')
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps({**config, "intermediate_size": 128, "vocab_size": 256}))
    (tmp_path / "gpu.toml").write_text(f'extends = "{GPU}"\nname = "gpu"\n')
    (tmp_path / "cases.toml").write_text("")
    return tmp_path


SETS = {
    "audit": ["audit", "w.npy", "--gpu", GPU, "--out", "o.jsonl", "--json", "o.json"],
    "import": ["import", "config.json", "--out", "o.toml", "--json", "o.json"],
    "report": ["report", "ops.jsonl", "--gpu", GPU, "--html", "o.html", "--markdown", "o.md", "--json", "o.json"],
    "timeline": ["timeline", "ops.jsonl", "--gpu", GPU, "--out", "o.trace.json", "--json", "o.json"],
}


@pytest.mark.parametrize("command", SETS)
def test_a_full_disk_at_the_last_file_leaves_none(folder, monkeypatch, capsys, command):
    before, calls = held(folder), []
    wanted = sum(word.startswith("o.") for word in SETS[command])
    synced = os.fsync

    def full(number):
        calls.append(number)
        if len(calls) == wanted:
            raise OSError(28, "No space left on device")
        synced(number)

    monkeypatch.setattr(os, "fsync", full)
    assert main(SETS[command]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert len(calls) == wanted
    assert held(folder) == before
    monkeypatch.setattr(os, "fsync", synced)
    assert main(SETS[command]) == 0
    assert sum(name.startswith("o.") for name in os.listdir(folder)) == wanted


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["audit", "w.npy", "--gpu", GPU, "--json", "w.npy"],
            "--json: expected another file than the one that is read",
        ),
        (["audit", "w.npy", "--gpu", GPU, "--json", "../{}/w.npy"], "--json: expected another file than the one"),
        (["audit", "w.npy", "--gpu", GPU, "--json", "link"], "--json: expected another file than the one that is read"),
        (["audit", "w.npy", "--gpu", "gpu.toml", "--out", "gpu.toml"], "--out: expected another file than the one"),
        (["audit", "w.npy", "--gpu", GPU, "--out", "o.toml", "--json", "o.toml"], "than that of --out, found 'o.toml'"),
        (["import", "config.json", "--json", "config.json"], "--json: expected another file than the one that is read"),
        (["import", "config.json", "--out", "o.toml", "--json", "o.toml"], "--json: expected another file than that"),
        (["report", "ops.jsonl", "--gpu", GPU, "--html", "ops.jsonl"], "--html: expected another file than the one"),
        (["report", "ops.jsonl", "--gpu", GPU, "--html", "o", "--json", "./o"], "another file than that of --html"),
        (["simulate", "ops.jsonl", "--gpu", GPU, "--json", "ops.jsonl"], "--json: expected another file than the one"),
        (["timeline", "ops.jsonl", "--gpu", GPU, "--out", "ops.jsonl"], "--out: expected another file than the one"),
        (["replay", "cases.toml", "--json", "cases.toml"], "--json: expected another file than the one that is read"),
    ],
)
def test_no_file_is_written_over_another(folder, capsys, words, expected):
    (folder / "link").symlink_to("w.npy")
    before = held(folder)
    assert main([word.format(folder.name) for word in words]) == 2
    err = capsys.readouterr().err
    assert expected in err
    assert err.count("\n") == 1
    assert held(folder) == before


def test_two_forms_may_go_to_one_device(folder):
    assert main(["report", "ops.jsonl", "--gpu", GPU, "--html", os.devnull, "--json", os.devnull]) == 0
