"""What a schema finds wrong with a file, worded as everywhere: where, what was expected, what was found.

Takes the findings of pydantic as plain data (``ValidationError.errors()``) and does not import it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from sparsesim.errors import nearest, show

__all__ = ["finding_lines"]

#: kind of finding → what was expected, in the words of the file's writer and not of Python's types
_EXPECTED = {
    "string_type": "text", "int_type": "an integer", "int_from_float": "an integer", "int_parsing": "an integer",
    "float_type": "a number", "float_parsing": "a number", "finite_number": "a finite number",
    "bool_type": "true or false", "bool_parsing": "true or false",
    "tuple_type": "a list", "list_type": "a list", "dict_type": "a table", "model_type": "a table",
}  # fmt: skip
_OWN_PLACE = re.compile(r"([a-z_]+(?:\.\S+|\[\d+\])*): (.*)", re.DOTALL)
#: how pydantic begins what an input should be
_OPENINGS = ("Value error, ", "Assertion failed, ", "expected ", "Input should be ", "String should have ")


def finding_lines(where: str, findings: Iterable[Mapping[str, Any]], model: Any) -> list[str]:
    """One line ``where: place: expected …, found …`` for each of `findings` on a file that `model` describes."""
    return [_line(where, finding, model) for finding in findings if not _follows(finding)]


def _follows(finding: Mapping[str, Any]) -> bool:
    """Whether a list is "too short" only because its items, each named in a finding of its own, were left out."""
    return finding["type"] == "too_short" and len(finding["input"]) >= finding["ctx"]["min_length"]


def _line(where: str, finding: Mapping[str, Any], model: Any) -> str:
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in finding["loc"]).lstrip(".")
    head = f"{where}: {place}: expected" if place else f"{where}: expected"
    kind = finding["type"]
    if kind == "missing":
        return f"{head} a value, found none"
    if kind == "extra_forbidden":
        *outer, key = finding["loc"]
        known = _fields(model, outer)
        return f"{head} a known field, found {show(key)}" + nearest(str(key), known)
    expected = _EXPECTED.get(kind) or finding["msg"]
    for opening in _OPENINGS:
        expected = expected.removeprefix(opening)
    if expected.startswith(("greater than", "less than")):
        expected = f"a number {expected}"
    if kind == "value_error" and (not place or ", found " in expected):
        own = _OWN_PLACE.match(expected)  # a check over several fields says itself which it is
        return f"{where}: {own[1]}: expected {own[2]}" if own else f"{head} {expected}"
    return f"{head} {expected}, found {show(finding['input'])}"


def _fields(model: Any, outer: Iterable[Any]) -> list[str]:
    """The fields that the table at `outer` may have; none where that is not known."""
    for part in outer:
        field = _table(model).get(part) if isinstance(part, str) else None
        if field is not None:
            model = field.annotation
    return list(_table(model))


def _table(annotation: Any) -> Mapping[str, Any]:
    """The fields of the schema in an annotation, whatever it is wrapped in (a list, an optional)."""
    found: Mapping[str, Any] | None = getattr(annotation, "model_fields", None)
    if found is not None:
        return found
    return next((table for inner in get_args(annotation) if (table := _table(inner))), {})
