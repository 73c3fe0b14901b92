"""The workload of a report: what `load_workload` takes, or a foreign file, imported on the way."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sparsesim.errors import Problem, UserError
from sparsesim.importers import import_file
from sparsesim.importers.read import FORMATS, detect_format
from sparsesim.report.commands import OWN_PART
from sparsesim.workload import Workload, load_workload
from sparsesim.workload.expand import Overrides, Selection
from sparsesim.workload.load import workload_names
from sparsesim.workload.model import parse_model

__all__ = ["load_any"]

#: endings of the project's own files; a .csv may also be an export of a profiler
OWN = (".toml", ".jsonl")


def load_any(
    workload: str | Path,
    tokens: int | None = None,
    phase: str | None = None,
    dtype: str | None = None,
    pattern: str | None = None,
    dims: Mapping[str, int] | None = None,
) -> tuple[Workload, str, tuple[str, ...]]:
    """(workload, format of a foreign file or ``""``, what its importer assumed).

    Parameters
    ----------
    tokens, phase, dtype, pattern
        As for `load_workload`. A foreign file of layers (config.json) takes all of them, a checkpoint no phase, other
        formats neither tokens nor phase.
    dims
        Sizes of dynamic dimensions by name.

    Raises
    ------
    UserError
        Every problem of the arguments, or of the file.
    """
    path = Path(workload)
    form = _foreign(workload, path)
    if not form:
        if dims:
            raise UserError(Problem.line("dim", "", "no dynamic dimension in a workload", next(iter(dims))))
        return load_workload(workload, tokens=tokens, dtype=dtype, pattern=pattern, phase=phase), "", ()
    imported = import_file(path, form, pattern, dtype, tokens=tokens if form in OWN_PART else None, dims=dims or None)
    if imported.layers is not None:
        text = "\n".join(imported.layers) + "\n"
        loaded = parse_model(text, path, Selection(phase, tokens), Overrides())
        return loaded, form, imported.notes
    wrong = {"phase": phase, "tokens": None if form in OWN_PART else tokens}
    lines = [
        Problem.line(name, "", f"no such option for a {FORMATS[form][0]}", value)
        for name, value in wrong.items()
        if value is not None
    ]
    if lines:
        raise UserError(lines)
    return imported.workload, form, imported.notes


def _foreign(workload: str | Path, path: Path) -> str:
    """The format of a foreign file; empty for a workload of the project's own form, or nothing of that name."""
    if str(workload) in workload_names() or path.suffix.lower() in OWN or not path.exists():
        return ""
    try:
        return detect_format(path)
    except UserError:
        if path.suffix.lower() == ".csv":  # no profiler's
            return ""
        raise
