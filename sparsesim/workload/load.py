"""Finding and loading workloads: by the name of a packaged file or by path, in any of three formats.

Called by the CLI and by user code; the formats themselves are in `model` (TOML) and `trace` (CSV, JSONL).
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from sparsesim.datafiles import data_dir
from sparsesim.errors import Problem, UserError, nearest, show
from sparsesim.workload.expand import Overrides, Selection, select_gemms
from sparsesim.workload.model import load_model
from sparsesim.workload.ops import DTYPES, Workload, canonical_pattern, size_issue
from sparsesim.workload.trace import TRACE_SUFFIXES, iter_trace, load_trace

__all__ = ["iter_trace", "load_trace", "load_workload", "workload_names"]

_SUFFIXES = (".toml", *TRACE_SUFFIXES)


def workload_names() -> tuple[str, ...]:
    """Names of the packaged workloads, sorted."""
    return tuple(sorted(_packaged()))


def load_workload(
    name_or_path: str | Path,
    tokens: int | None = None,
    dtype: str | None = None,
    pattern: str | None = None,
    phase: str | None = None,
) -> Workload:
    """Load a packaged workload by name, or a TOML, CSV or JSONL file by path.

    Parameters
    ----------
    name_or_path
        One of `workload_names`, or a path.
    tokens
        Only this token count (images where the file says so): the phases that list it, or `phase` (or the
        only phase) at this count even if it is not listed. In a list of GEMMs: the ops with this n.
    dtype, pattern
        Instead of those of the file, as `Overrides` says.
    phase
        Only this phase of a file of layers, e.g. ``"decode"``.

    Raises
    ------
    UserError
        With all problems of the arguments or, if there are none, of the file.
    """
    _check_arguments(tokens, dtype, pattern)
    path = _find(name_or_path)
    try:
        return _load(path, Selection(phase, tokens), Overrides(dtype, pattern))
    except UserError as error:
        if path.stem != str(name_or_path):
            raise
        # of a packaged file a message has the name alone: where it is installed is nothing that the user gave
        place = f"{path.parent}{os.sep}"
        raise UserError(line.removeprefix(place) for line in error.problems) from None


def _load(path: Path, selection: Selection, overrides: Overrides) -> Workload:
    """The part of a file that was selected; raises UserError with every problem."""
    if path.is_dir():
        raise UserError(f"{path}: expected a file, found a directory")
    suffix = path.suffix.lower()
    if suffix == ".toml":
        return load_model(path, selection, overrides)
    if suffix not in _SUFFIXES:
        expected = "a file ending in " + ", ".join(_SUFFIXES)
        raise UserError(Problem.line(str(path), "", expected, path.suffix) + nearest(suffix, _SUFFIXES))
    workload = load_trace(path)
    ops = select_gemms(str(path), workload.ops, selection)
    return replace(workload, ops=tuple(overrides.apply(op) for op in ops))


def _packaged() -> dict[str, Path]:
    """Packaged workload files by name."""
    return {path.stem: path for path in data_dir("workloads").iterdir() if path.suffix in _SUFFIXES}


def _check_arguments(tokens: int | None, dtype: str | None, pattern: str | None) -> None:
    """Raise all problems of the arguments of `load_workload` at once."""
    lines: list[str] = []
    if tokens is not None and (issue := size_issue("tokens", tokens)):
        lines.append(Problem.line(*issue[:1], "", *issue[1:]))
    if dtype is not None and dtype not in DTYPES:
        lines.append(Problem.line("dtype", "", "one of " + ", ".join(DTYPES), dtype) + nearest(dtype, DTYPES))
    if pattern is not None:
        try:
            canonical_pattern(pattern)
        except UserError as error:
            lines.extend(error.problems)
    if lines:
        raise UserError(lines)


def _find(name_or_path: str | Path) -> Path:
    """The file meant: a packaged name first, then a path; raises `UserError` with the valid names."""
    packaged = _packaged()
    text = str(name_or_path)
    if isinstance(name_or_path, str) and text in packaged:
        return packaged[text]
    if "\0" not in text and os.path.lexists(text):
        return Path(text)
    by_file = {path.name: path for path in packaged.values()}
    if text in by_file:
        return by_file[text]
    names = sorted(packaged)
    stem = os.path.basename(text)
    for suffix in _SUFFIXES:
        stem = stem.removesuffix(suffix)
    expected = "an existing file or one of " + ", ".join(names)
    raise UserError(f"{show(text)}: expected {expected}, found neither{nearest(stem, names)}")
