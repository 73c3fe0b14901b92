"""Parameters by their path: what can be set, how a text becomes a value, and a scenario with values changed.

==============================  ==================================================================================
path                            meaning
==============================  ==================================================================================
``l2.bytes``                    a parameter of the hardware file; a table (``tensor.macs_per_clk``) means all entries
``m``, ``pattern``, ``dtype``   a field of the GEMM; of a workload, of every op
``ops.NAME.k``                  a field of one op of a workload
``tokens``, ``phase``           the part of a workload file that runs
``protocol.l2``                 timing, L2 state or clock of the protocol
``run.streams``                 streams, graph or repeats of a workload's run
``stack``, ``stack.policy``     the software stack; how it picks kernels (search or heuristic)
``stack.rules``                 its rules: ``stack.rules-=shape-alignment`` lifts one
``gpu``                         another GPU
==============================  ==================================================================================
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sparsesim.errors import Problem, UserError, nearest
from sparsesim.hardware import GpuSpec, load_gpu
from sparsesim.hardware.load import override
from sparsesim.hardware.spec import unit_of
from sparsesim.protocol import Protocol
from sparsesim.scenarios.scenario import Scenario
from sparsesim.stacks import get_stack
from sparsesim.units import UNITS, units_of
from sparsesim.workload import Gemm, Workload, load_workload
from sparsesim.workload.ops import GemmError, issue_line

__all__ = ["Assignment", "apply", "hardware_values", "known_paths", "parse_assignment", "parse_quantity", "value_of"]

OPERATORS = ("=", "*=", "/=", "+=", "-=")
GEMM_INTEGERS = ("m", "n", "k", "batch", "count")
GEMM_TEXTS = ("dtype", "acc_dtype", "pattern", "sparse_operand")
PROTOCOL = ("timing", "l2", "clock")
RUN = ("streams", "graph", "repeats")
POLICIES = ("search", "heuristic")
#: rules that can be lifted: the kernels could run such an op; the others say that the machine has no way to
LIFTABLE = ("shape-alignment", "operand-side")

_ASSIGNMENT = re.compile(r"\s*(?P<path>[A-Za-z][^=*+]*?)\s*(?P<operator>\*=|/=|\+=|-=|=)\s*(?P<text>.*?)\s*", re.DOTALL)
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-zµ].*)?")


@dataclass(frozen=True)
class Assignment:
    """One change: ``l2.bytes*=2``."""

    path: str
    operator: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}{self.operator}{self.text}"

    def with_text(self, text: str) -> Assignment:
        """The same change by another value."""
        return replace(self, text=text)


def parse_assignment(text: str, where: str = "set") -> Assignment:
    """Read ``path=value``, ``path*=factor``, ``path/=…``, ``path+=…`` or ``path-=…``.

    Raises
    ------
    UserError
        The text has no operator, no path or no value.
    """
    found = _ASSIGNMENT.fullmatch(text)
    if found is None or not found["text"]:
        raise UserError(Problem.line(where, "", "path=value, path*=factor or path+=difference", text))
    return Assignment(found["path"], found["operator"], found["text"])


def hardware_values(gpu: GpuSpec) -> dict[str, tuple[Any, str]]:
    """Every parameter of a GPU by its path: (value in the canonical unit, that unit); tables entry by entry."""
    values: dict[str, tuple[Any, str]] = {}
    for section, field in _fields():
        value, unit = getattr(getattr(gpu, section), field), unit_of(type(getattr(gpu, section)), field)
        entries = {f".{key}": item for key, item in value.items()} if isinstance(value, dict) else {"": value}
        for suffix, item in entries.items():
            values[f"{section}.{field}{suffix}"] = (item, unit)
    return values


def known_paths(scenario: Scenario) -> list[str]:
    """All paths that exist in a scenario."""
    values = hardware_values(scenario.gpu)
    tables = dict.fromkeys(path.rpartition(".")[0] for path in values if path.count(".") == 2)
    of_run = [] if scenario.single else [f"run.{name}" for name in RUN]
    of_file = [] if scenario.source is None else ["tokens", "phase"]
    of_ops = (
        []
        if scenario.single
        else [f"ops.{op.name}.{name}" for op in scenario.workload.ops for name in (*GEMM_INTEGERS, *GEMM_TEXTS)]
    )
    return [
        *values, *tables, *GEMM_INTEGERS, *GEMM_TEXTS, *of_file, *of_ops,
        *(f"protocol.{name}" for name in PROTOCOL), *of_run, "stack", "stack.policy", "stack.rules", "gpu",
    ]  # fmt: skip


def value_of(scenario: Scenario, path: str, where: str = "set") -> tuple[Any, str]:
    """(value, canonical unit) at `path`; of a table of numbers, its first entry's.

    Raises
    ------
    UserError
        There is no such path; the nearest one is named.
    """
    values = hardware_values(scenario.gpu)
    if path in values:
        return values[path]
    entries = [value for name, value in values.items() if name.startswith(f"{path}.")]
    if entries and path.count(".") == 1:
        return entries[0]
    if path in GEMM_INTEGERS or path in GEMM_TEXTS:
        return getattr(scenario.op, path), "-"
    if path.startswith("ops."):
        name, _, field = path.removeprefix("ops.").rpartition(".")
        for op in scenario.workload.ops:
            if op.name == name and field in (*GEMM_INTEGERS, *GEMM_TEXTS):
                return getattr(op, field), "-"
    others: dict[str, Any] = {
        "protocol.timing": scenario.protocol.timing,
        "protocol.l2": scenario.protocol.l2,
        "protocol.clock": scenario.protocol.clock,
        "run.streams": scenario.streams,
        "run.graph": scenario.graph,
        "run.repeats": scenario.repeats,
        "tokens": scenario.selection[0] or 0,
        "phase": scenario.selection[1] or "",
        "stack": scenario.stack.name,
        "stack.policy": scenario.stack.policy,
        "stack.rules": tuple(rule.code for rule in scenario.stack.rules),
        "gpu": scenario.gpu.name,
    }
    valid = known_paths(scenario)
    if path in others and path in valid:
        return others[path], "-"
    raise UserError(f"{where}: {path}: expected a parameter path, found no such one{_nearest_path(path, valid)}")


def parse_quantity(text: str, unit: str, where: str) -> float:
    """The number that `text` spells, in the canonical `unit`: ``16MiB``, ``1.4 GHz``, ``250ns``.

    A dimension that has several units needs one: 16 alone could be bytes or MiB.

    Raises
    ------
    UserError
        No number, no unit where one is needed, or one of another dimension.
    """
    found = _QUANTITY.fullmatch(text.strip())
    accepted = units_of(unit)
    if found is None:
        raise UserError(Problem.line(where, "", f"a number{_unit_text(accepted)}", text))
    number, suffix = float(found[1]), (found[2] or "").strip().replace("µ", "u")
    if not math.isfinite(number):
        raise UserError(Problem.line(where, "", "a finite number", text))
    if not suffix:
        if len(accepted) > 1:
            raise UserError(Problem.line(where, "", f"a number{_unit_text(accepted)}", text))
        return number
    if suffix not in accepted or suffix == "-":
        expected = f"a number{_unit_text(accepted)}" if unit != "-" else "a plain number"
        raise UserError(Problem.line(where, "", expected, text) + nearest(suffix, accepted))
    return number * UNITS[unit][suffix]


def apply(scenario: Scenario, changes: Iterable[Assignment], where: str = "set") -> Scenario:
    """`scenario` with all `changes`: first another GPU, then what is asked of a workload file, then in order.

    A file is read again for another part, type or pattern, so that these come before what is changed in its ops.
    The board is checked with all of its changes made: what one alone would break, another may mend.

    Raises
    ------
    UserError
        Paths that do not exist, values that cannot be read, and values outside what is plausible: every problem.
    """
    first = {"gpu": 0, "tokens": 1, "phase": 1, **({} if scenario.source is None else {"dtype": 1, "pattern": 1})}
    edits: dict[str, Any] = {}
    lines: list[str] = []
    for change in sorted(changes, key=lambda item: first.get(item.path, 2)):
        try:
            mine = _of_table(hardware_values(scenario.gpu), change.path)
            if mine:
                # a later change starts from what the earlier ones gave
                now = {path: (edits.get(path, value), unit) for path, (value, unit) in mine.items()}
                edits.update(_gpu_edits(now, change, f"{where}: {change.path}"))
            else:
                scenario = _apply(scenario, change, where)
        except UserError as error:
            lines += error.problems
    if lines:
        raise UserError(lines)
    return replace(scenario, gpu=override(scenario.gpu, edits)) if edits else scenario


# --- one change ---


def _apply(scenario: Scenario, change: Assignment, where: str) -> Scenario:
    path = change.path
    value, unit = value_of(scenario, path, where)
    at = f"{where}: {path}"
    if path == "gpu":
        return replace(scenario, gpu=load_gpu(_text(change, at)))
    if path in ("tokens", "phase") or (path in ("dtype", "pattern") and scenario.source is not None):
        return _reload(scenario, change, at)
    if path == "stack":
        return replace(scenario, stack=get_stack(_text(change, at)))
    if path == "stack.policy":
        policy = _choice(change, POLICIES, at)
        return replace(scenario, stack=replace(scenario.stack, policy=policy))
    if path == "stack.rules":
        return _without_rule(scenario, change, at)
    if path.startswith("protocol."):
        words = {name: getattr(scenario.protocol, name) for name in PROTOCOL}
        words[path.removeprefix("protocol.")] = _text(change, at)
        return replace(scenario, protocol=Protocol.parse(**words))
    if path.startswith("run."):
        name = path.removeprefix("run.")
        new = _flag(change, at) if name == "graph" else _whole(_number(change, value, unit, at), change, at)
        return replace(scenario, **{name: new})  # type: ignore[arg-type]
    if path in GEMM_INTEGERS or path in GEMM_TEXTS:
        return _with_ops(scenario, [_changed_op(op, path, change, at) for op in scenario.workload.ops])
    name, _, field = path.removeprefix("ops.").rpartition(".")
    ops = [_changed_op(op, field, change, at) if op.name == name else op for op in scenario.workload.ops]
    return _with_ops(scenario, ops)


def _of_table(values: dict[str, tuple[Any, str]], path: str) -> dict[str, tuple[Any, str]]:
    """The hardware parameters that `path` means: itself, or all entries of a table; none where it is no such path."""
    if path in values:
        return {path: values[path]}
    if path.count(".") != 1:
        return {}
    return {name: value for name, value in values.items() if name.startswith(f"{path}.")}


def _gpu_edits(mine: dict[str, tuple[Any, str]], change: Assignment, at: str) -> dict[str, Any]:
    """The new values of the parameters in `mine`, of which each is (value, unit)."""
    edits: dict[str, Any] = {}
    for path, (value, unit) in mine.items():
        if isinstance(value, bool):
            edits[path] = _flag(change, at)
        elif isinstance(value, tuple):
            edits[path] = _list(change, value)
        elif isinstance(value, str):
            edits[path] = _text(change, at)
        else:
            number = _number(change, value, unit, at)
            edits[path] = int(number) if isinstance(value, int) and number.is_integer() else number
    return edits


def _changed_op(op: Gemm, field: str, change: Assignment, at: str) -> Gemm:
    try:
        if field in GEMM_INTEGERS:
            number = _number(change, getattr(op, field), "-", at)
            return replace(op, **{field: _whole(number, change, at)})  # type: ignore[arg-type]
        text = _text(change, at)
        return op.with_dtype(text) if field == "dtype" else replace(op, **{field: text})  # type: ignore[arg-type]
    except GemmError as error:
        raise UserError(issue_line("set", "", issue) for issue in error.issues) from None


def _with_ops(scenario: Scenario, ops: Sequence[Gemm]) -> Scenario:
    old = scenario.workload
    return replace(scenario, workload=Workload(old.name, old.description, old.source, tuple(ops)))


def _reload(scenario: Scenario, change: Assignment, at: str) -> Scenario:
    """Another part of the workload's file, or the same with another type or pattern."""
    names = ("tokens", "phase", "dtype", "pattern")
    asked: dict[str, Any] = dict(zip(names, scenario.selection, strict=True))
    if change.path == "tokens":
        asked["tokens"] = _whole(_number(change, asked["tokens"] or 0, "-", at), change, at)
    else:
        asked[change.path] = _text(change, at)
    assert scenario.source is not None
    loaded = load_workload(scenario.source, **asked)
    return replace(scenario, workload=loaded, selection=tuple(asked[name] for name in names))


def _without_rule(scenario: Scenario, change: Assignment, at: str) -> Scenario:
    codes = [rule.code for rule in scenario.stack.rules if rule.code in LIFTABLE]
    if change.operator != "-=" or change.text not in codes:
        expected = f"-= and a rule that can be lifted ({', '.join(codes) or 'this stack has none'})"
        raise UserError(Problem.line(at, "", expected, f"{change.operator}{change.text}") + nearest(change.text, codes))
    kept = tuple(rule for rule in scenario.stack.rules if rule.code != change.text)
    return replace(scenario, stack=replace(scenario.stack, rules=kept))


# --- values ---


def _number(change: Assignment, old: float, unit: str, at: str) -> float:
    """The new number; a factor has no unit, a difference has the parameter's."""
    if change.operator in ("*=", "/="):
        factor = parse_quantity(change.text, "-", at)
        if change.operator == "/=" and factor == 0:
            raise UserError(Problem.line(at, "", "a divisor other than 0", change.text))
        if old == 0:
            raise UserError(Problem.line(at, "", "= or +=, for the parameter is 0 and a factor leaves it", str(change)))
        return old * factor if change.operator == "*=" else old / factor
    number = parse_quantity(change.text, unit, at)
    return {"=": number, "+=": old + number, "-=": old - number}[change.operator]


def _whole(number: float, change: Assignment, at: str) -> int:
    if not float(number).is_integer():
        raise UserError(Problem.line(at, "", "a whole number", f"{number:g}") + f" from {change}")
    return int(number)


def _text(change: Assignment, at: str) -> str:
    if change.operator != "=":
        raise UserError(Problem.line(at, "", "= for what is no number", change.operator))
    return change.text


def _choice(change: Assignment, valid: Sequence[str], at: str) -> str:
    text = _text(change, at)
    if text not in valid:
        raise UserError(Problem.line(at, "", "one of " + ", ".join(valid), text) + nearest(text, valid))
    return text


def _flag(change: Assignment, at: str) -> bool:
    return _choice(change, ("true", "false"), at) == "true"


def _list(change: Assignment, old: tuple[str, ...]) -> tuple[str, ...]:
    items = tuple(item.strip() for item in change.text.split(",") if item.strip())
    if change.operator == "+=":
        return (*old, *(item for item in items if item not in old))
    if change.operator == "-=":
        return tuple(item for item in old if item not in items)
    return items


def _unit_text(accepted: Sequence[str]) -> str:
    return "" if tuple(accepted) == ("-",) else " with a unit, " + " or ".join(accepted)


def _nearest_path(path: str, valid: Sequence[str]) -> str:
    """The nearest path: as a whole, or by its last part, for a section is easily mistaken."""
    last = path.rpartition(".")[2]
    whole = nearest(path, valid)
    by_last = [name for name in valid if name.rpartition(".")[2] == last]
    return f" (did you mean {by_last[0]!r}?)" if by_last else whole


def _fields() -> list[tuple[str, str]]:
    """(section, field) of every parameter of a hardware file, in order."""
    found = []
    for section, declared in GpuSpec.model_fields.items():
        model = declared.annotation
        fields = getattr(model, "model_fields", None)
        if fields is None or section in ("library_target", "provenance"):
            continue
        found += [(section, name) for name, item in fields.items() if item.json_schema_extra is not None]
    return found
