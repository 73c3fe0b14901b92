"""CSV exports of Nsight Systems and Nsight Compute as workloads.

A kernel's name and grid do not tell k, so shapes come from NVTX ranges as PyTorch writes them
(``torch.autograd.profiler.emit_nvtx(record_shapes=True)``): ``aten::addmm, sizes = [[768], [8, 768], [768, 768]]``.
Read are ``nsys stats --format csv`` reports that have such ranges (``nvtx_kern_sum``, ``nvtx_gpu_proj_trace``) and
``ncu --csv --nvtx``. Kernels outside a product's range are named. Type and 2:4 come from the kernel's name.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sparsesim.errors import Problem, UserError
from sparsesim.importers.aten_ops import PRODUCTS, Shape, UnknownSize, aten_name, aten_products
from sparsesim.importers.imported import Draft, Imported, clean
from sparsesim.units import natural
from sparsesim.workload.files import BadText, open_bytes, text_lines

__all__ = ["import_nsight"]

Progress = Callable[[int, int], None]

_RANGE = re.compile(r"(aten::\w+)(?:, seq = -?\d+)?(?:, op_id = -?\d+)?, sizes = (\[[\[\], \d]*\])")
#: words of a kernel's name -> type of its product, tried in order
_DTYPES = (
    (re.compile(r"(?i)e4m3|e5m2|fp8|f8f8|qmma"), "e4m3"),
    (re.compile(r"(?i)bf16|bfloat16"), "bf16"),
    (re.compile(r"(?i)imma|s8s8|i8i8|int8|_s8_|i16832|i8816"), "i8"),
    (re.compile(r"(?i)tf32|s1688|s161616"), "tf32"),
    (re.compile(r"(?i)f16|fp16|half|h884|h1688|h16816|hmma|hgemm"), "f16"),
)
_SPARSE = re.compile(r"(?i)sparse|spgemm|sp_?gemm|spmma")
_PRODUCT = re.compile(r"(?i)gemm|xmma|cutlass|nvjet|cublas|wgmma|splitk|flash|fmha|conv")
DEFAULT_DTYPE = "f16"

#: what the columns are called in the reports of the tools' versions
_RANGE_COLUMNS = ("NVTX Range", "Range", "Name")
_KERNEL_COLUMNS = ("Kernel Name", "Kern Name")
_COUNT_COLUMNS = ("NVTX Inst", "NVTX Instances", "Range Instances")
_KERNEL_COUNTS = ("Kern Inst", "Instances", "Count")


@dataclass
class _Found:
    """One product's range: how often, and the kernels seen in it."""

    op: str
    shapes: tuple[Shape, ...]
    count: int
    kernels: list[str]


def import_nsight(path: Path, kind: str, pattern: str | None, dtype: str | None, progress: Progress | None) -> Imported:
    """Read the export at `path`; `kind` is ``nsys`` or ``ncu``.

    Raises
    ------
    UserError
        If columns are missing, rows are broken, or no range tells shapes.
    """
    draft = Draft(str(path), pattern or "dense", dtype, merge=True)
    rows = _rows(path, draft, kind, progress)
    found, kernels = (_compute if kind == "ncu" else _systems)(rows, draft)
    draft.problems.raise_if_any()
    for item in _outermost(found):
        _add(draft, item)
    for name, count in kernels.items():
        draft.other(name, "kernel", None, None, "a kernel outside a product's range of known shapes", count)
    tool = "Nsight Compute" if kind == "ncu" else "Nsight Systems"
    nothing = "NVTX ranges of products with their sizes (emit_nvtx(record_shapes=True))"
    workload = draft.finish(clean(path.stem), "; ".join(draft.notes), f"{tool} export {clean(path.name)}", nothing)
    return Imported(str(path), kind, workload, tuple(draft.notes))


def _rows(path: Path, draft: Draft, kind: str, progress: Progress | None) -> Iterator[tuple[int, dict[str, str]]]:
    """Line numbers and cells by column; the lines that the tools print before the header are passed over."""
    first = '"?ID"?,' if kind == "ncu" else r'.*"?(Name|NVTX Range|Range)"?(,|$)'
    with open_bytes(path) as file:
        size = file.seek(0, 2)
        file.seek(0)
        lines = _Header(text_lines(file), re.compile(first))
        reader = csv.reader(lines, strict=True)
        header: list[str] | None = None
        try:
            for row in reader:
                number = lines.skipped + reader.line_num
                if not row:
                    continue
                if header is None:
                    header = [cell.strip() for cell in row]
                    continue
                if len(row) != len(header):
                    draft.problem(f"line {number}", f"{len(header)} columns", len(row))
                    if draft.full:
                        return
                    continue
                if progress is not None and number % 4096 == 0:
                    progress(file.tell(), size)
                yield number, dict(zip(header, (cell.strip() for cell in row), strict=True))
        except (csv.Error, BadText) as error:
            where = f"line {lines.skipped + reader.line_num}"
            raise UserError(Problem.line(str(path), where, "CSV text", str(error))) from None
        if header is None:
            raise UserError(Problem.line(str(path), "", "a header line of an Nsight export", "none"))


class _Header:
    """Lines from the header on."""

    def __init__(self, lines: Iterator[str], first: re.Pattern[str]) -> None:
        self.lines = lines
        self.first = first
        self.skipped = 0
        self.begun = False

    def __iter__(self) -> _Header:
        return self

    def __next__(self) -> str:
        line = next(self.lines)
        while not self.begun and not self.first.match(line):
            self.skipped += 1
            line = next(self.lines)
        self.begun = True
        return line


def _pick(row: dict[str, str], names: tuple[str, ...]) -> str:
    """The cell of the first of `names` that is a column, or an empty text."""
    return next((row[name] for name in names if name in row), "")


def _whole(draft: Draft, number: int, row: dict[str, str], names: tuple[str, ...]) -> int:
    """A count in a cell; 1 where there is no such column."""
    text = _pick(row, names)
    if not text:
        return 1
    count = natural(text.replace(",", ""))
    if not count:
        draft.problem(f"line {number}", f"a positive count as {' or '.join(names)}", text)
        return 1
    return count


def _ranges(text: str) -> list[tuple[str, tuple[Shape, ...]]]:
    """The products among the ranges that `text` names, outermost first, with the shapes of their operands."""
    found = []
    for name, sizes in _RANGE.findall(text):
        if aten_name(name) not in PRODUCTS:
            continue
        try:
            listed = json.loads(sizes)
        except (ValueError, RecursionError):
            continue
        if isinstance(listed, list) and all(isinstance(item, list) for item in listed):
            flat = all(type(side) is int for item in listed for side in item)
            if flat:
                found.append((name, tuple(tuple(item) for item in listed)))
    return found


def _systems(rows: Iterator[tuple[int, dict[str, str]]], draft: Draft) -> tuple[list[_Found], dict[str, int]]:
    """Products and other kernels of an Nsight Systems report."""
    found: dict[str, _Found] = {}
    kernels: dict[str, int] = {}
    inside: set[str] = set()
    products: set[str] = set()  # range ids of a projection trace
    for number, row in rows:
        text, kernel = _pick(row, _RANGE_COLUMNS), _pick(row, _KERNEL_COLUMNS)
        if "NVTX Range" not in row and "RangeId" not in row:
            text, kernel = "", _pick(row, (*_KERNEL_COLUMNS, "Name"))
        ranges = _ranges(text)
        if not ranges:
            if kernel:
                kernels[kernel] = max(kernels.get(kernel, 0), _whole(draft, number, row, _KERNEL_COUNTS))
            continue
        if "RangeId" in row:
            products.add(row["RangeId"])
            if row.get("ParentId") in products:
                continue
        name, shapes = ranges[0]
        count = _whole(draft, number, row, _COUNT_COLUMNS)
        if "RangeId" in row and text in found:
            found[text].count += 1
        known = found.setdefault(text, _Found(name, shapes, count, []))
        if kernel:
            inside.add(kernel)
            known.kernels.append(kernel)
    return list(found.values()), {name: count for name, count in kernels.items() if name not in inside}


def _compute(rows: Iterator[tuple[int, dict[str, str]]], draft: Draft) -> tuple[list[_Found], dict[str, int]]:
    """Products and other kernels of an Nsight Compute export: one row for each kernel, or for each of its metrics."""
    found: dict[tuple[str, tuple[Shape, ...], str], _Found] = {}
    kernels: dict[str, int] = {}
    seen: set[str] = set()
    for number, row in rows:
        name = row.get("Kernel Name", "")
        if not row.get("ID"):  # the line of units below the header of a raw page
            continue
        if not row["ID"].isdigit() or not name:
            draft.problem(f"line {number}", "an ID and a Kernel Name", f"{row['ID']!r}, {name!r}")
            continue
        if row["ID"] in seen:
            continue
        seen.add(row["ID"])
        ranges = [item for column, cell in row.items() if "Range" in column for item in _ranges(cell)]
        if not ranges or not _PRODUCT.search(name):
            kernels[name] = kernels.get(name, 0) + 1
            continue
        op, shapes = ranges[0]
        known = found.setdefault((op, shapes, name), _Found(op, shapes, 0, [name]))
        known.count += 1
    return list(found.values()), kernels


def _outermost(found: list[_Found]) -> Iterator[_Found]:
    """One of the ranges that are the same product seen at several levels: linear, and the addmm inside it.

    A report without nesting lists a kernel under every range around it. Ranges of the same sizes and the same
    kernels are one product, run as often as the most frequent of them.
    """
    best: dict[tuple[object, ...], _Found] = {}
    for item in found:
        try:
            sizes: object = tuple((p.m, p.n, p.k, p.batch) for p in aten_products(aten_name(item.op), item.shapes))
        except UnknownSize:
            sizes = item.shapes
        key = (sizes, frozenset(item.kernels))
        known = best.get(key)
        if known is None or item.count > known.count:
            best[key] = item
    yield from best.values()


def _add(draft: Draft, item: _Found) -> None:
    """The GEMMs of one range."""
    short = aten_name(item.op)
    kernels = [name for name in item.kernels if _PRODUCT.search(name)] or item.kernels
    kinds = [kind for name in kernels for words, kind in _DTYPES if words.search(name)]
    if not kinds:
        draft.note(f"types that no kernel name tells count as {DEFAULT_DTYPE}")
    sparse = any(_SPARSE.search(name) for name in kernels)
    try:
        products = aten_products(short, item.shapes)
    except UnknownSize as error:
        draft.other(item.op, item.op, None, None, f"a product of unknown size: {error}", item.count)
        return
    for p in products:
        draft.gemm(
            f"{short}{p.suffix}-{p.m}x{p.n}x{p.k}", p.m, p.n, p.k, kinds[0] if kinds else DEFAULT_DTYPE,
            place=f"range {item.op}", batch=p.batch, kind=p.kind, family=p.family, count=item.count,
            pattern=p.pattern or ("2:4" if sparse else None),
        )  # fmt: skip
