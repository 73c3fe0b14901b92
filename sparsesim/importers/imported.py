"""What an importer returns, and the draft it fills while it reads a foreign file.

A draft names everything: a GEMM that its file repeats is counted, an op that is no GEMM keeps its name, its bytes
and its FLOPs, and one whose sizes are unknown says so. Problems are collected and raised once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sparsesim.errors import ProblemList, UserError
from sparsesim.workload import DTYPES, Gemm, GemmError, OtherOp, Workload
from sparsesim.workload.ops import MAX_NAME, issue_line
from sparsesim.workload.write import check_target, workload_lines, write_lines

__all__ = ["MAX_PROBLEMS", "Draft", "Imported", "clean", "distinct", "op_name", "tensor_core_dtype"]

#: problems worded per file; further ones are counted
MAX_PROBLEMS = 20

#: type names of the foreign formats -> the type a tensor core multiplies them in; f32 runs as tf32
_TENSOR_CORE = {
    "f16": "f16", "float16": "f16", "half": "f16", "c10::half": "f16",
    "bf16": "bf16", "bfloat16": "bf16", "c10::bfloat16": "bf16",
    "f32": "tf32", "float32": "tf32", "float": "tf32", "tf32": "tf32",
    "i8": "i8", "int8": "i8", "uint8": "i8", "u8": "i8", "signed char": "i8", "unsigned char": "i8",
    "f8_e4m3": "e4m3", "e4m3": "e4m3", "float8_e4m3fn": "e4m3", "float8e4m3fn": "e4m3", "fp8": "e4m3",
    "c10::float8_e4m3fn": "e4m3", "f8_e4m3fnuz": "e4m3", "float8_e4m3fnuz": "e4m3", "c10::float8_e4m3fnuz": "e4m3",
    "f4": "e2m1", "e2m1": "e2m1", "float4e2m1": "e2m1", "float4_e2m1fn_x2": "e2m1",
}  # fmt: skip


def tensor_core_dtype(name: str) -> str | None:
    """The type of `DTYPES` in which a tensor core multiplies values stored as `name`, or None."""
    return _TENSOR_CORE.get(name.lower().removeprefix("torch."))


def clean(text: str, fallback: str = "unnamed") -> str:
    """`text` as a name a workload accepts: printable and not too long."""
    kept = "".join(letter if letter.isprintable() else "?" for letter in text).strip()
    return (kept if len(kept) <= MAX_NAME - 20 else kept[: MAX_NAME - 21] + "…") or fallback


def op_name(text: str) -> str:
    """`text` as the name of an op: without slashes, before which a workload expects a phase."""
    return clean(text.replace("/", ".").strip("."))


def distinct(names: Iterable[str]) -> list[str]:
    """`names`, with a number behind each that was there before: a workload has each name once."""
    seen: dict[str, int] = {}
    made: list[str] = []
    for name in names:
        free = name
        while free in seen:
            seen[name] += 1
            free = f"{name}#{seen[name]}"
        seen[free] = 1
        made.append(free)
    return made


@dataclass(frozen=True)
class Imported:
    """A foreign file as a workload.

    Parameters
    ----------
    path, format
        The file, and which reader took it: ``"onnx"``, ``"hf-config"``, …
    workload
        Its GEMMs, and by name, bytes and FLOPs everything else (`Workload.others`).
    notes
        What the reader assumed.
    layers
        The lines of a TOML file of layers and phases, where the format has no fixed token count.
    """

    path: str
    format: str
    workload: Workload
    notes: tuple[str, ...] = ()
    layers: tuple[str, ...] | None = None

    def write(self, out: str | Path) -> None:
        """Write the workload to `out` (.toml or .jsonl), whole or not at all; raises `UserError`."""
        out = check_target(out)
        write_lines(out, self.lines(out.suffix.lower()))

    def lines(self, suffix: str) -> Iterable[str]:
        """The lines of the file that `write` makes, by its suffix."""
        if self.layers is not None and suffix == ".toml":
            return self.layers
        return workload_lines(self.workload, suffix)

    def to_dict(self) -> dict[str, Any]:
        """Plain data: ops, others and totals; FLOPs are 2 per dense-equivalent MAC."""
        others = self.workload.others
        return {
            "file": self.path,
            "format": self.format,
            "workload": self.workload.name,
            "gemms": [
                {
                    "name": op.name, "m": op.m, "n": op.n, "k": op.k, "batch": op.batch, "dtype": op.dtype,
                    "pattern": op.pattern, "kind": op.kind, "family": op.family, "count": op.count,
                    "flops": 2 * op.macs, "bytes": op.bytes,
                }
                for op in self.workload.ops
            ],
            "others": [
                {
                    "name": op.name, "op": op.op, "count": op.count,
                    "flops": op.flops, "bytes": op.bytes, "note": op.note,
                }
                for op in others
            ],
            "totals": {
                "gemms": sum(op.count for op in self.workload.ops),
                "gemm_flops": 2 * self.workload.macs,
                "gemm_bytes": self.workload.bytes,
                "others": sum(op.count for op in others),
                "other_flops": sum((op.flops or 0) * op.count for op in others),
                "other_bytes": sum((op.bytes or 0) * op.count for op in others),
                "others_of_unknown_size": sum(op.count for op in others if op.bytes is None or op.flops is None),
            },
            "notes": list(self.notes),
        }  # fmt: skip


class Draft:
    """The ops of one file while it is read.

    Parameters
    ----------
    where
        The file, for messages.
    pattern
        Of the weights, where the file does not say which they have.
    dtype
        Instead of the file's; None keeps it. Products of two computed operands keep 16 bits at least.
    merge
        Whether equal GEMMs (and other ops) are one op with a count, as in a trace; else each keeps its name.
    """

    def __init__(self, where: str, pattern: str = "dense", dtype: str | None = None, merge: bool = False) -> None:
        self.problems = ProblemList(where)
        self.pattern = pattern
        self.dtype = dtype
        self.merge = merge
        self.notes: dict[str, None] = {}
        self._gemms: dict[Any, Gemm] = {}
        self._others: dict[Any, OtherOp] = {}
        self._names: dict[str, int] = {}
        self._dropped = 0

    @property
    def gemms(self) -> tuple[Gemm, ...]:
        """The GEMMs so far."""
        return tuple(self._gemms.values())

    @property
    def full(self) -> bool:
        """Whether so many problems were found that reading on tells nothing new."""
        return len(self.problems.lines) >= MAX_PROBLEMS

    def note(self, text: str) -> None:
        """Remember an assumption, once."""
        self.notes[text] = None

    def gemm(self, name: str, m: int, n: int, k: int, dtype: str, place: str = "", **more: Any) -> None:
        """Add one GEMM; what is impossible about it is recorded under `place` (or its name)."""
        weight = more.get("kind", "linear") != "matmul"
        wanted = (
            dtype if self.dtype is None or (not weight and self.dtype not in ("f16", "bf16", "tf32")) else self.dtype
        )
        pattern = more.pop("pattern", None) or (self.pattern if weight else "dense")
        try:
            op = Gemm(op_name(name), m, n, k, dtype=wanted, pattern=pattern, **more)
        except GemmError as error:
            for issue in error.issues:
                self._problem(issue_line(self.problems.where, f"{place or clean(name)}.", issue))
            return
        key = replace(op, count=1) if self.merge else len(self._gemms)
        known = self._gemms.get(key)
        if known is not None:
            self._gemms[key] = replace(known, count=known.count + op.count)
        else:
            self._gemms[key] = replace(op, name=self._unique("gemm", op.name))

    def other(self, name: str, op: str, bytes: int | None, flops: int | None, note: str = "", count: int = 1) -> None:
        """Add one op that is no GEMM."""
        try:
            made = OtherOp(op_name(name), clean(op), bytes, flops, count, clean(note, ""))
        except UserError as error:
            for line in error.problems:
                self._problem(f"{self.problems.where}: {line}")
            return
        key = replace(made, count=1) if self.merge else len(self._others)
        known = self._others.get(key)
        if known is not None:
            self._others[key] = replace(known, count=known.count + count)
        else:
            self._others[key] = replace(made, name=self._unique("other", made.name))

    def problem(self, path: str, expected: str, found: Any) -> None:
        """Record one problem of the file."""
        before = len(self.problems.lines)
        self.problems.add(path, expected, found)
        self._problem(self.problems.lines.pop() if len(self.problems.lines) > before else "")

    def _problem(self, line: str) -> None:
        if self.full:
            self._dropped += 1
        else:
            self.problems.add_line(line)

    def _unique(self, kind: str, name: str) -> str:
        """`name`, or with a number where another op has it already."""
        key = f"{kind} {name}"
        self._names[key] = self._names.get(key, 0) + 1
        if self._names[key] == 1:
            return name
        return self._unique(kind, f"{name}#{self._names[key]}")

    def finish(self, name: str, description: str, source: str, nothing: str) -> Workload:
        """The workload; raises all problems, or one that says `nothing` if there is no GEMM."""
        if self._dropped:
            self.problems.add_line(f"{self.problems.where}: and {self._dropped} further problems")
        self.problems.raise_if_any()
        if not self._gemms:
            rest = _listed(op.op for op in self._others.values())
            self.problems.add("", nothing, f"none among {len(self._others)} ops" + (f" ({rest})" if rest else ""))
            self.problems.raise_if_any()
        return Workload(name, description, source, tuple(self._gemms.values()), tuple(self._others.values()))


def _listed(names: Iterable[str], most: int = 5) -> str:
    """The first distinct names."""
    distinct = list(dict.fromkeys(names))
    return ", ".join(distinct[:most]) + (", …" if len(distinct) > most else "")


assert set(_TENSOR_CORE.values()) == set(DTYPES)
