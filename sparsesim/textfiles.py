"""Text, TOML and JSON that users write: UTF-8, with or without a byte-order mark; one message if it is neither."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from sparsesim.errors import UserError

__all__ = ["parse_json", "parse_toml", "read_json", "read_text", "read_toml"]


def read_text(path: Path, expected: str, most: int | None = None) -> str:
    """The text of a file without its byte-order mark; raises `UserError`, where `expected` says what it should be.

    Of a file of more than `most` bytes no more than that is read.
    """
    try:
        with path.open("rb") as file:
            raw = file.read() if most is None else file.read(most + 1)
    except OSError as err:
        raise UserError(f"{path}: expected {expected}, found {err.strerror or err}") from None
    if most is not None and len(raw) > most:
        raise UserError(f"{path}: expected {expected} of at most {most} bytes, found a larger file")
    return _decoded(raw, path)


def _decoded(raw: bytes, where: object) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as err:
        raise UserError(f"{where}: expected UTF-8 text, found byte {err.start} that is not") from None


def parse_toml(text: str, path: Path) -> dict[str, Any]:
    """The TOML document in `text`, which came from `path`; raises `UserError`."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as err:  # an integer of too many digits is a plain ValueError
        raise UserError(f"{path}: expected valid TOML, found an error: {err}") from None


def read_toml(path: Path, expected: str) -> dict[str, Any]:
    """The TOML document in a file; raises `UserError`, where `expected` says what the file should be."""
    return parse_toml(read_text(path, expected), path)


def parse_json(text: str | bytes, where: object, constants: bool = True) -> dict[str, Any]:
    """The JSON object in `text`, which came from `where`.

    Parameters
    ----------
    constants
        Whether NaN and Infinity, which other programs write though JSON has none, are numbers.

    Raises
    ------
    UserError
        If it is no JSON, no object, or an object in it has a key twice: which of the two counts, readers disagree.
    """
    if isinstance(text, bytes):
        text = _decoded(text, where)
    refuse = None if constants else _no_constant
    try:
        document = json.loads(text, object_pairs_hook=_once, parse_constant=refuse)
    except (ValueError, RecursionError) as err:
        raise UserError(f"{where}: expected valid JSON, found an error: {err}") from None
    if not isinstance(document, dict):
        raise UserError(f"{where}: expected a JSON object, found {_KINDS.get(type(document), 'null')}")
    return document


def read_json(path: Path, expected: str, most: int | None = None, constants: bool = True) -> dict[str, Any]:
    """The JSON object in a file of at most `most` bytes (see `parse_json`); `expected` says what it should be."""
    return parse_json(read_text(path, expected, most), path, constants)


_KINDS = {list: "a list", str: "text", int: "a number", float: "a number", bool: "true or false"}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A dict of pairs whose keys must differ."""
    values = dict(pairs)
    if len(values) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice[:60]!r} occurs twice")
    return values


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")
