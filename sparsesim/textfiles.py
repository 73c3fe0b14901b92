"""Text and TOML that users write: UTF-8, with or without a byte-order mark; one message if it is neither."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from sparsesim.errors import UserError

__all__ = ["parse_toml", "read_text", "read_toml"]


def read_text(path: Path, expected: str) -> str:
    """The text of a file without its byte-order mark; raises `UserError`, where `expected` says what it should be."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as err:
        raise UserError(f"{path}: expected {expected}, found {err.strerror or err}") from None
    except UnicodeDecodeError as err:
        raise UserError(f"{path}: expected UTF-8 text, found byte {err.start} that is not") from None


def parse_toml(text: str, path: Path) -> dict[str, Any]:
    """The TOML document in `text`, which came from `path`; raises `UserError`."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as err:  # an integer of too many digits is a plain ValueError
        raise UserError(f"{path}: expected valid TOML, found an error: {err}") from None


def read_toml(path: Path, expected: str) -> dict[str, Any]:
    """The TOML document in a file; raises `UserError`, where `expected` says what the file should be."""
    return parse_toml(read_text(path, expected), path)
