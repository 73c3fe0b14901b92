"""What users write: each reader of TOML takes a byte-order mark, and says one thing of what is no text or no TOML."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsesim.diagnose import read_run
from sparsesim.diagnose.owners import load_owners
from sparsesim.errors import UserError
from sparsesim.gates import load_policy
from sparsesim.hardware import load_gpu
from sparsesim.replay.cases import load_cases
from sparsesim.stacks.load import load_stack
from sparsesim.sweep.spec import read_spec
from sparsesim.textfiles import parse_toml, read_text

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
