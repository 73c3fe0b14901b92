"""Writing workload files: whole or not at all, and read back as the same ops.

JSONL holds any workload; TOML a list of GEMMs, or (from text that an importer has made) layers. Called by the
importers and by the audit of weights.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from sparsesim.errors import Problem, UserError, nearest
from sparsesim.outfiles import write_file
from sparsesim.workload.ops import Gemm, Workload
from sparsesim.workload.others import OtherOp

__all__ = ["WRITABLE", "check_target", "toml_table", "toml_value", "workload_lines", "write_lines", "write_workload"]

WRITABLE = (".toml", ".jsonl")


def write_workload(workload: Workload, path: str | Path) -> None:
    """Write `workload` to `path`, ``.jsonl`` or ``.toml``, under a temporary name that is then renamed.

    Raises
    ------
    UserError
        If the name ends in neither, or nothing can be written there.
    """
    path = check_target(path)
    write_lines(path, workload_lines(workload, path.suffix.lower()))


def check_target(path: str | Path) -> Path:
    """`path` if a workload can be written there; else `UserError`."""
    text = str(path)
    if not text.strip() or "\0" in text:
        raise UserError(Problem.line("out", "", "a file name", text))
    path = Path(path)
    if path.suffix.lower() not in WRITABLE:
        expected = "a file ending in " + " or ".join(WRITABLE)
        raise UserError(Problem.line(str(path), "", expected, path.suffix) + nearest(path.suffix, WRITABLE))
    if path.is_dir():
        raise UserError(Problem.line(str(path), "", "a file that can be written", "a folder"))
    folder = path.resolve().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UserError(Problem.line(str(path), "", "a file that can be written", f"no such folder {folder}"))
    return path


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write `lines` to `path` in one step: a reader sees the old file or the whole new one."""
    write_file(path, (line + "\n" for line in lines))


def workload_lines(workload: Workload, suffix: str) -> Iterator[str]:
    """The lines of `workload` as ``.jsonl`` or ``.toml``; fields at their default are left out."""
    about = {"description": workload.description, "source": workload.source}
    if suffix == ".jsonl":
        yield json.dumps({"workload": about}, ensure_ascii=False)
        for op in workload.ops:
            yield json.dumps(_set_fields(op), ensure_ascii=False)
        for other in workload.others:
            yield json.dumps({"other": _set_fields(other)}, ensure_ascii=False)
        return
    yield from (f"{key} = {toml_value(value)}" for key, value in {"name": workload.name, **about}.items())
    for op in workload.ops:
        yield from toml_table("gemms", _set_fields(op))
    for other in workload.others:
        yield from toml_table("others", _set_fields(other))


def _set_fields(op: Gemm | OtherOp) -> dict[str, Any]:
    """The fields of `op` that differ from their defaults."""
    return {f.name: value for f in fields(op) if (value := getattr(op, f.name)) != f.default}


def toml_table(name: str, values: dict[str, Any]) -> Iterator[str]:
    """The lines of one ``[[name]]``, after an empty one."""
    yield ""
    yield f"[[{name}]]"
    yield from (f"{key} = {toml_value(value)}" for key, value in values.items())


def toml_value(value: Any) -> str:
    """`value` (text, integer, truth value or a list of them) as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    # A JSON string is a TOML basic string but for DEL, and but for surrogates, which no name may hold.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
