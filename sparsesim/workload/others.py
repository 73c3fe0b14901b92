"""Ops of a model that are no GEMM: named and counted, so that nothing of a model is dropped in silence.

Sparse tensor cores cannot help them; nothing simulates them. Their bytes and FLOPs say how much of a model
lies outside the simulated part. Built by the importers and by the readers of this package.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from sparsesim.errors import Problem, UserError

__all__ = ["MAX_OTHER", "OTHER_FIELDS", "OtherOp", "polynomial", "polynomial_issue"]

MAX_OTHER = 2**63 - 1
"""Largest count of bytes or FLOPs."""

MAX_TEXT = 200


@dataclass(frozen=True, slots=True)
class OtherOp:
    """One op that is no GEMM, `count` times a forward pass.

    Parameters
    ----------
    name
        Unique among the other ops of a workload.
    op
        What it is, in the words of the file it came from: ``"Softmax"``, ``"aten::layer_norm"``.
    bytes
        Of all inputs and outputs of one execution, each touched once; None where a shape is unknown.
    flops
        Floating-point operations of one execution by the importer's table; None where the op is unknown.
    count
        Times per forward pass.
    note
        Why it is not a GEMM or what is unknown about it; may be empty.

    Raises
    ------
    UserError
        With every impossible field.
    """

    name: str
    op: str
    bytes: int | None = None
    flops: int | None = None
    count: int = 1
    note: str = ""

    def __post_init__(self) -> None:
        lines = []
        for field, least in (("name", 1), ("op", 1), ("note", 0)):
            text = getattr(self, field)
            if not isinstance(text, str) or not least <= len(text) <= MAX_TEXT or not text.isprintable():
                lines.append(self._line(field, f"printable text of {least} to {MAX_TEXT} characters", text))
        for field in ("bytes", "flops"):
            number = getattr(self, field)
            if number is not None and (type(number) is not int or not 0 <= number <= MAX_OTHER):
                lines.append(self._line(field, f"an integer from 0 to {MAX_OTHER}, or nothing", number))
        if type(self.count) is not int or not 1 <= self.count <= MAX_OTHER:
            lines.append(self._line("count", "a positive integer", self.count))
        if lines:
            raise UserError(lines)

    def _line(self, field: str, expected: str, found: Any) -> str:
        name = self.name if isinstance(self.name, str) and self.name.isprintable() else "?"
        return Problem.line(f"other op {name[:MAX_TEXT]}", field, expected, found)


OTHER_FIELDS = tuple(field.name for field in fields(OtherOp))


def polynomial(value: int | list[int] | None, units: int) -> int | None:
    """`value` at `units` tokens: a number, or coefficients of 1, units and units squared."""
    if value is None or isinstance(value, int):
        return value
    return sum(int(coefficient) * units**power for power, coefficient in enumerate(value))


def polynomial_issue(value: Any) -> tuple[str, Any] | None:
    """(expected, found) if `value` is no count and no list of up to three coefficients."""
    values = value if isinstance(value, list) else [value]
    good = all(type(number) is int and 0 <= number <= MAX_OTHER for number in values)
    if good and 1 <= len(values) <= 3:
        return None
    return "a count, or a list of coefficients of 1, units and units squared", value
