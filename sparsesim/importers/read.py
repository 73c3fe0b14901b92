"""One entry for all foreign formats: what a file is, which options it takes, and the reader it goes to."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sparsesim.errors import Problem, UserError, nearest
from sparsesim.importers.imported import Imported
from sparsesim.workload import DTYPES
from sparsesim.workload.files import open_bytes
from sparsesim.workload.ops import canonical_pattern, size_issue

__all__ = ["FORMATS", "detect_format", "import_file"]

#: format -> (what it is, the options it takes)
FORMATS: dict[str, tuple[str, frozenset[str]]] = {
    "hf-config": ("Hugging Face config.json", frozenset({"phases", "context"})),
    "onnx": ("ONNX model", frozenset({"dims"})),
    "safetensors": ("safetensors checkpoint, its header alone", frozenset({"tokens"})),
    "torch-export": ("torch.export program (.pt2)", frozenset({"dims"})),
    "torch-trace": ("PyTorch profiler Chrome trace with shapes", frozenset()),
    "nsys": ("CSV export of Nsight Systems with NVTX ranges of shapes", frozenset()),
    "ncu": ("CSV export of Nsight Compute with NVTX ranges of shapes", frozenset()),
}

SNIFFED = 1 << 16
_SUFFIXES = {".onnx": "onnx", ".safetensors": "safetensors", ".pt2": "torch-export", ".gz": "torch-trace"}


def import_file(
    path: str | Path,
    format: str | None = None,
    pattern: str | None = None,
    dtype: str | None = None,
    phases: Mapping[str, Sequence[int]] | None = None,
    context: int | None = None,
    tokens: int | None = None,
    dims: Mapping[str, int] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Imported:
    """Read a foreign file as a workload.

    Parameters
    ----------
    path
        A file, or the folder of a Hugging Face model.
    format
        One of `FORMATS`; by default told from the file.
    pattern
        Of the weights. By default 2:4 for models and checkpoints (their shapes do not tell: `audit` does), and
        for traces what ran.
    dtype
        Instead of the file's, for products with a weight.
    phases
        Token counts by phase (``hf-config``), e.g. ``{"prefill": [2048], "decode": [64]}``.
    context
        Tokens before each decoded one (``hf-config``).
    tokens
        Columns of every GEMM (``safetensors``, whose header knows the weights alone); 2048 by default.
    dims
        Sizes of dynamic dimensions by name (``onnx``, ``torch-export``), e.g. ``{"batch": 1}``.
    progress
        Called as progress(bytes done, bytes in all) while a long trace is read.

    Returns
    -------
    Imported
        Nothing is written; `Imported.write` does that.

    Raises
    ------
    UserError
        Unknown format, options of another format, or a file that is broken: every problem, one line each.
    """
    if not str(path).strip() or "\0" in str(path):
        raise UserError(Problem.line("file", "", "a file name", str(path)))
    path = Path(path)
    if format is not None and format not in FORMATS:
        line = Problem.line("format", "", "one of " + ", ".join(FORMATS), format)
        raise UserError(line + nearest(str(format), FORMATS))
    lines = _argument_problems(pattern, dtype, phases, context, tokens, dims)
    if lines:
        raise UserError(lines)
    kind = format or detect_format(path)
    given = {"phases": phases, "context": context, "tokens": tokens, "dims": dims}
    wrong = [name for name, value in given.items() if value and name not in FORMATS[kind][1]]
    if wrong:
        raise UserError(
            Problem.line(name, "", f"no such option for a {FORMATS[kind][0]}", given[name]) for name in wrong
        )
    return _read(kind, path, pattern, dtype, phases, context, tokens, dict(dims or {}), progress)


def _read(
    kind: str,
    path: Path,
    pattern: str | None,
    dtype: str | None,
    phases: Mapping[str, Sequence[int]] | None,
    context: int | None,
    tokens: int | None,
    dims: dict[str, int],
    progress: Callable[[int, int], None] | None,
) -> Imported:
    """Hand `path` to its reader."""
    if kind == "hf-config":
        from sparsesim.importers.hf_config import import_hf_config

        return import_hf_config(path / "config.json" if path.is_dir() else path, pattern, dtype, phases, context)
    if kind == "onnx":
        from sparsesim.importers.onnx_graph import import_onnx

        return import_onnx(path, pattern, dtype, dims)
    if kind == "safetensors":
        from sparsesim.importers.checkpoint import import_checkpoint

        return import_checkpoint(path, pattern, dtype, tokens)
    if kind == "torch-export":
        from sparsesim.importers.torch_export import import_torch_export

        return import_torch_export(path, pattern, dtype, dims)
    if kind == "torch-trace":
        from sparsesim.importers.torch_trace import import_torch_trace

        return import_torch_trace(path, pattern, dtype, progress)
    from sparsesim.importers.nsight import import_nsight

    return import_nsight(path, kind, pattern, dtype, progress)


def _argument_problems(
    pattern: str | None,
    dtype: str | None,
    phases: Mapping[str, Sequence[int]] | None,
    context: int | None,
    tokens: int | None,
    dims: Mapping[str, int] | None,
) -> list[str]:
    """What is impossible about the arguments."""
    lines: list[str] = []
    if pattern is not None:
        try:
            canonical_pattern(pattern)
        except UserError as error:
            lines += error.problems
    if dtype is not None and dtype not in DTYPES:
        lines.append(Problem.line("dtype", "", "one of " + ", ".join(DTYPES), dtype) + nearest(str(dtype), DTYPES))
    sizes: dict[str, Any] = {"context": context, "tokens": tokens}
    sizes |= {f"dims.{name}": value for name, value in (dims or {}).items()}
    for phase, counts in (phases or {}).items():
        if not counts or len(set(counts)) < len(counts):
            lines.append(Problem.line(f"phases.{phase}", "", "token counts, each once", list(counts)))
        sizes |= {f"phases.{phase}[{i}]": value for i, value in enumerate(counts)}
    for name, value in sizes.items():
        if value is not None and (issue := size_issue(name, value)):
            lines.append(Problem.line(name, "", *issue[1:]))
    return lines


def detect_format(path: Path) -> str:
    """Which of `FORMATS` the file at `path` is, by its name and its beginning; raises `UserError`."""
    if path.is_dir():
        if (path / "config.json").is_file():
            return "hf-config"
        if any(path.glob("*.safetensors")):
            return "safetensors"
        raise UserError(Problem.line(str(path), "", "a folder with a config.json or *.safetensors", "neither"))
    suffix = path.suffix.lower()
    if suffix in _SUFFIXES:
        return _SUFFIXES[suffix]
    with open_bytes(path) as file:
        head = file.read(SNIFFED).decode("utf-8", errors="replace").removeprefix("\ufeff")
    if suffix == ".csv":
        return _csv_kind(head, path)
    if suffix == ".json":
        if '"weight_map"' in head and '"traceEvents"' not in head:
            return "safetensors"
        if head.lstrip().startswith("[") or re.search(r'"(traceEvents|schemaVersion|deviceProperties)"\s*:', head):
            return "torch-trace"
        return "hf-config"
    expected = "a file ending in .json, .onnx, .safetensors, .pt2, .json.gz or .csv, or --format"
    raise UserError(Problem.line(str(path), "", expected, suffix) + nearest(suffix, (".json", ".csv", *_SUFFIXES)))


def _csv_kind(head: str, path: Path) -> str:
    """Which Nsight tool wrote a CSV, by the columns it names."""
    if re.search(r'"?Kernel Name"?,', head) and re.search(r'"?(Grid Size|Metric Name|launch__grid_size)"?,', head):
        return "ncu"
    if re.search(r"(NVTX Range|Duration \(ns\)|Total Time \(ns\)|Kern(el)? Name|Range:|Dur(ation)? \(\w+\))", head):
        return "nsys"
    expected = "columns of an Nsight Systems or Nsight Compute export"
    raise UserError(Problem.line(str(path), "", expected, head.partition("\n")[0]))
