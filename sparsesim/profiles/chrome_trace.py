"""PyTorch profiler: Chrome traces of ``torch.profiler`` (``export_chrome_trace``), with ``record_shapes=True``.

A kernel event's ``External id`` is that of the operator that launched it; the operator's ``Input Dims`` and ``Input
type`` give the shape. Frameworks compute x·Wᵀ, so the second operand's columns are the weight's rows: m.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparsesim.errors import ProblemList, UserError
from sparsesim.profiles.kernel_names import parse_kernel_name
from sparsesim.profiles.record import KernelShape, Profile, ProfiledKernel
from sparsesim.profiles.tables import read_text
from sparsesim.units import is_number
from sparsesim.workload.files import Unpacked, open_bytes

__all__ = ["operator_shape", "read_chrome_trace"]

#: PyTorch's words for element types → the project's
TYPES = {
    "c10::half": "f16", "half": "f16", "c10::bfloat16": "bf16", "bfloat16": "bf16", "float": "f32", "signed char": "i8",
    "char": "i8", "c10::float8_e4m3fn": "e4m3", "float8_e4m3fn": "e4m3",
}  # fmt: skip
#: kernels without a field that are told; further ones are counted
MAX_PROBLEMS = 20
#: operator → positions of x (n×k) and of Wᵀ (k×m) among its inputs
DENSE = {
    "aten::mm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::_scaled_mm": (0, 1),
    "aten::_int_mm": (0, 1),
    "aten::bmm": (0, 1),
    "aten::baddbmm": (1, 2),
}
#: operator with the sparse operand (m×…) first → positions of it and of the dense operand (k×n)
SPARSE = {
    "aten::_cslt_sparse_mm": (0, 1),
    "aten::_sparse_semi_structured_mm": (0, 2),
    "aten::_sparse_semi_structured_addmm": (1, 3),
}


def read_chrome_trace(path: Path) -> Profile:
    """Kernels of a trace in the order of their start; raises UserError if it is none, or a kernel lacks a field."""
    events, device = _events(path)
    operators: dict[Any, Mapping[str, Any]] = {}
    launched: list[tuple[float, int, Mapping[str, Any]]] = []
    problems = ProblemList(str(path))
    for at, event in enumerate(events):
        if not isinstance(event, dict) or event.get("ph") != "X":
            continue
        category = str(event.get("cat", "")).lower()
        if category == "cpu_op":
            operators.setdefault(_link(event), event)
        elif category == "kernel" and _good(event, f"traceEvents[{at}]", problems):
            launched.append((float(event["ts"]), at, event))
    rest = len(problems.lines) - MAX_PROBLEMS
    if rest > 0:
        problems.lines[MAX_PROBLEMS:] = [f"{path}: and {rest} further problems"]
    problems.raise_if_any()
    if not launched:
        raise UserError(
            f"{path}: expected kernel events, found none (was the profile taken with ProfilerActivity.CUDA?)"
        )
    operators.pop(None, None)
    kernels = []
    for _, at, event in sorted(launched, key=lambda item: item[:2]):
        operator = operators.get(_link(event))
        occupancy = _arguments(event).get("est. achieved occupancy %")
        kernels.append(
            ProfiledKernel(
                name=event["name"],
                where=f"{path}:traceEvents[{at}]",
                parsed=parse_kernel_name(event["name"]),
                time_us=float(event["dur"]),
                shape=None if operator is None else operator_shape(operator),
                # PyTorch estimates it from the launch; 0 stands for "not known"
                counters={"occupancy": occupancy / 100.0} if is_number(occupancy) and occupancy > 0 else {},
            )
        )
    return Profile(str(path), "pytorch-trace", tuple(kernels), device)


def _good(event: Mapping[str, Any], place: str, problems: ProblemList) -> bool:
    """Whether a kernel has a name, a start and a duration; what it lacks goes to `problems`."""
    before = len(problems.lines)
    start, duration, name = event.get("ts"), event.get("dur"), event.get("name")
    if not is_number(start):
        problems.add(f"{place}.ts", "a time in microseconds", start)
    if not is_number(duration) or duration <= 0:
        problems.add(f"{place}.dur", "a duration above 0 [µs]", duration)
    if not isinstance(name, str):
        problems.add(f"{place}.name", "text", name)
    return len(problems.lines) == before


def _arguments(event: Mapping[str, Any]) -> Mapping[str, Any]:
    arguments = event.get("args")
    return arguments if isinstance(arguments, dict) else {}


def _link(event: Mapping[str, Any]) -> int | None:
    """The number that an operator shares with the kernels it launched."""
    link = _arguments(event).get("External id")
    return link if isinstance(link, int) else None


def _events(path: Path) -> tuple[Sequence[Any], dict[str, Any] | None]:
    document = _document(path)
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        raise UserError(f"{path}: traceEvents: expected a list, found {type(events).__name__}")
    boards = document.get("deviceProperties") if isinstance(document, dict) else None
    if not isinstance(boards, list) or not boards or not isinstance(boards[0], dict):
        return events, None
    names = {
        "name": "name",
        "sms": "numSms",
        "major": "computeMajor",
        "minor": "computeMinor",
        "memory": "totalGlobalMem",
    }
    return events, {name: boards[0][key] for name, key in names.items() if key in boards[0]}


def _document(path: Path) -> Any:
    """The JSON of a trace, plain or packed by gzip."""
    try:
        with open_bytes(path) as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            if packed:
                return json.loads(Unpacked(file, path.stat().st_size).read().decode("utf-8-sig"))
        return json.loads(read_text(path))
    except (ValueError, RecursionError, OSError, EOFError, zlib.error) as err:
        raise UserError(f"{path}: expected a Chrome trace (JSON), found an error: {err}") from None


def operator_shape(event: Mapping[str, Any]) -> KernelShape | None:
    """The product of an operator event with recorded shapes, or None if it is no product of two known matrices."""
    name = str(event.get("name", ""))
    arguments = _arguments(event)
    dims, types = arguments.get("Input Dims"), arguments.get("Input type")
    types = types if isinstance(types, list) else []
    if not isinstance(dims, list) or name not in {**DENSE, **SPARSE}:
        return None
    first, second = DENSE.get(name) or SPARSE[name]
    if len(dims) <= max(first, second):
        return None
    a, b = dims[first], dims[second]
    if not all(isinstance(side, list) and all(isinstance(x, int) and x > 0 for x in side) for side in (a, b)):
        return None
    dtype = TYPES.get(str(types[first]).lower()) if len(types) > first else None
    if name in SPARSE:
        # 2:4 weights: the compressed operand keeps its m rows; k comes from the dense one
        return KernelShape(a[0], b[1], b[0], 1, dtype, "2:4") if len(a) == len(b) == 2 else None
    if len(a) == len(b) == 2 and a[1] == b[0]:
        return KernelShape(b[1], a[0], a[1], 1, dtype, "dense")
    if len(a) == len(b) == 3 and a[0] == b[0] and a[2] == b[1]:
        return KernelShape(b[2], a[1], a[2], a[0], dtype, "dense")
    return None
