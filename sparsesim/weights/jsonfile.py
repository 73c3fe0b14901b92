"""Small JSON files: within a size limit, with one line of error for whatever is wrong with one.

Called by the readers of weight files and of foreign models.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sparsesim.errors import Problem, UserError
from sparsesim.workload.files import open_bytes

__all__ = ["MAX_JSON", "parse_json", "read_json"]

MAX_JSON = 64 * 2**20
"""Largest JSON document that is read as a whole [bytes]."""


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; raises `UserError`."""
    with open_bytes(path) as file:
        raw = file.read(MAX_JSON + 1)
    if len(raw) > MAX_JSON:
        raise UserError(Problem.line(str(path), "", f"a JSON file of at most {MAX_JSON} bytes", "a larger one"))
    return parse_json(raw, str(path))


def parse_json(raw: bytes, where: str) -> dict[str, Any]:
    """The JSON object in `raw`, which came from `where`; a repeated key is an error."""
    try:
        value = json.loads(raw.decode("utf-8"), object_pairs_hook=_once)
    except UnicodeDecodeError as error:
        raise UserError(
            Problem.line(where, "", "UTF-8 text", f"byte 0x{raw[error.start]:02x} at {error.start}")
        ) from None
    except (ValueError, RecursionError) as error:
        raise UserError(Problem.line(where, "", "one valid JSON object", str(error))) from None
    if not isinstance(value, dict):
        raise UserError(Problem.line(where, "", "a JSON object", type(value).__name__))
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A dict of pairs whose keys must differ."""
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} occurs twice")
    return values
