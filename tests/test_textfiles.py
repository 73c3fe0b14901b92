"""What users write: a byte-order mark is no part of TOML or JSON, and all readers say one thing of what is neither."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsesim.diagnose import read_run
from sparsesim.diagnose.owners import load_owners
from sparsesim.errors import UserError
from sparsesim.gates import load_policy
from sparsesim.hardware import load_gpu
from sparsesim.importers import import_file
from sparsesim.live import read_provenance
from sparsesim.quality.record import read_quality
from sparsesim.replay.cases import load_cases
from sparsesim.results_workload import WorkloadResult
from sparsesim.stacks.load import load_stack
from sparsesim.sweep.spec import read_spec
from sparsesim.sweep.store import open_store
from sparsesim.textfiles import parse_json, parse_toml, read_json, read_text
from sparsesim.weights import open_weights

READERS = {
    "hardware": load_gpu,
    "policy": load_policy,
    "run": read_run,
    "cases": load_cases,
    "stack": load_stack,
    "sweep": read_spec,
}
BAD = {
    "no UTF-8": (b"name = 1 # \xff", "expected UTF-8 text, found byte 11 that is not"),
    "no TOML": (b"name = ", "expected valid TOML, found an error: "),
    "too deep": (b"x = " + b"[" * 100_000, "expected valid TOML, found an error: "),
    "too many digits": (b"x = " + b"9" * 5000, "expected valid TOML, found an error: "),
}


@pytest.mark.parametrize("fault", BAD)
@pytest.mark.parametrize("reader", READERS)
def test_every_reader_says_one_thing_of_a_bad_file(tmp_path: Path, reader: str, fault: str) -> None:
    raw, message = BAD[fault]
    path = tmp_path / "mine.toml"
    path.write_bytes(raw)
    with pytest.raises(UserError) as caught:
        READERS[reader](path)
    (line,) = caught.value.problems
    assert line.startswith(f"{path}: {message}")


@pytest.mark.parametrize("reader", READERS)
def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path, reader: str) -> None:
    said = []
    for mark in (b"", b"\xef\xbb\xbf"):
        path = tmp_path / "mine.toml"
        path.write_bytes(mark + b"unheard_of = 1\n")
        with pytest.raises(UserError) as caught:
            READERS[reader](path)
        said.append(caught.value.problems)
    assert said[0] == said[1]


def test_owners_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "OWNERS"
    path.write_bytes(b"* \xff\n")
    with pytest.raises(UserError, match="expected UTF-8 text, found byte 2 that is not"):
        load_owners(path)


def test_a_file_that_cannot_be_read_is_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected a policy file, found No such file"):
        read_text(tmp_path / "none", "a policy file")
    assert parse_toml("a = 1", tmp_path) == {"a": 1}


# --- JSON ---


def manifest(path: Path) -> object:
    """A store's manifest has a name of its own."""
    path.with_name("sweep.json").write_bytes(path.read_bytes())
    return open_store(path.parent)


JSON_READERS = {
    "config": lambda path: import_file(path, "hf-config"),
    "index": open_weights,
    "quality": read_quality,
    "result": WorkloadResult.load,
    "provenance": read_provenance,
    "store": manifest,
}
BAD_JSON = {
    "no UTF-8": (b'{"a": "\xff"}', "expected UTF-8 text, found byte 7 that is not"),
    "no JSON": (b"{", "expected valid JSON, found an error: "),
    "nothing": (b"", "expected valid JSON, found an error: "),
    "too deep": (b'{"a": ' + b"[" * 100_000, "expected valid JSON, found an error: "),
    "too many digits": (b'{"a": ' + b"9" * 5000 + b"}", "expected valid JSON, found an error: "),
    "a key twice": (b'{"a": {"b": 1, "b": 2}}', "expected valid JSON, found an error: the key 'b' occurs twice"),
    "no object": (b"[1]", "expected a JSON object, found a list"),
    "null": (b"null", "expected a JSON object, found null"),
}


@pytest.mark.parametrize("fault", BAD_JSON)
@pytest.mark.parametrize("reader", JSON_READERS)
def test_every_reader_of_json_says_one_thing_of_a_bad_file(tmp_path: Path, reader: str, fault: str) -> None:
    raw, message = BAD_JSON[fault]
    path = tmp_path / "mine.json"
    path.write_bytes(raw)
    with pytest.raises(UserError) as caught:
        JSON_READERS[reader](path)
    (line,) = caught.value.problems
    assert line.partition(": ")[2].startswith(message)


@pytest.mark.parametrize("reader", JSON_READERS)
def test_a_byte_order_mark_is_no_part_of_json(tmp_path: Path, reader: str) -> None:
    said = []
    for mark in (b"", b"\xef\xbb\xbf"):
        path = tmp_path / "mine.json"
        path.write_bytes(mark + b'{"unheard_of": 1}')
        with pytest.raises(UserError) as caught:
            JSON_READERS[reader](path)
        said.append(caught.value.problems)
    assert said[0] == said[1]


def test_json_within_limits(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"a": NaN, "b": -Infinity}')
    assert read_json(path, "a file")["b"] == float("-inf")
    with pytest.raises(UserError, match="expected valid JSON, found an error: NaN is no number"):
        read_json(path, "a file", constants=False)
    with pytest.raises(UserError, match="expected a file of at most 9 bytes, found a larger file"):
        read_json(path, "a file", most=9)
    with pytest.raises(UserError, match="there: expected UTF-8 text"):
        parse_json(b"\xff", "there")
    with pytest.raises(UserError, match="expected a file, found No such file"):
        read_json(tmp_path / "b.json", "a file")
