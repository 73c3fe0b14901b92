"""A release policy: thresholds, each with an owner and what to do when it fails; from a TOML file.

[policy]
name = "chat, RTX 4090"
model_error = { speedup = 0.15, time = 0.2 }

[[gates]]
metric = "effective_speedup"
min = 1.15
owner = "inference-performance"
rollback = "serve the dense i8 checkpoint"
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsesim.errors import ProblemList, nearest
from sparsesim.gates.metrics import DEFAULT_OF, METRICS, Kind
from sparsesim.textfiles import read_toml
from sparsesim.units import is_number

__all__ = ["DEFAULT_ERROR", "Gate", "Policy", "load_policy"]

#: relative error of simulated values where the policy names none: about the 90th percentile of |ln(predicted /
#: measured)| of served models (docs/serving.md)
DEFAULT_ERROR = {Kind.SPEEDUP: 0.15, Kind.TIME: 0.15}
_GATE_KEYS = ("name", "metric", "min", "max", "owner", "rollback", "of", "path")
_POLICY_KEYS = ("name", "model_error")


@dataclass(frozen=True)
class Gate:
    """One threshold.

    Parameters
    ----------
    metric : one of `METRICS`, or any word if `path` says where to find it
    threshold, at_least : the bound, and whether the value must not be below it (else not above)
    owner, rollback : who answers for it, and what is done when it fails
    of : for ``effective_speedup`` of a serving run: the metric whose gain it is. Where the load is below capacity,
        throughput is what arrives, and a latency (``e2e_p95_s``) says more. For drifts of a quality file: the
        candidate, ``model/pattern/method``; by default all of them
    path : dotted path to a number, or to an object with low and high, in the run's JSON
    """

    name: str
    metric: str
    threshold: float
    at_least: bool
    owner: str
    rollback: str
    of: str = DEFAULT_OF
    path: str = ""

    @property
    def bound(self) -> str:
        """``>= 1.15`` or ``<= 0.05``."""
        return f"{'>=' if self.at_least else '<='} {self.threshold:g}"


@dataclass(frozen=True)
class Policy:
    """Gates in the order of the file; `model_error` widens the intervals of simulated values, by kind."""

    name: str
    gates: tuple[Gate, ...]
    model_error: dict[Kind, float]
    file: str


def load_policy(path: str | Path) -> Policy:
    """Read a policy.

    Raises
    ------
    UserError
        Missing file, bad TOML, unknown keys or metrics, gates without owner, rollback or threshold: every problem.
    """
    where = str(path)
    document = read_toml(Path(path), "a policy file")
    problems = ProblemList(where)
    _keys(problems, "", document, ("policy", "gates"))
    head = document.get("policy", {})
    if not isinstance(head, dict):
        problems.add("policy", "a table", head)
        head = {}
    _keys(problems, "policy.", head, _POLICY_KEYS)
    if not _is_text(head.get("name", "policy")):
        problems.add("policy.name", "text", head["name"])
    errors = _errors(problems, head.get("model_error", {}))
    tables = document.get("gates", [])
    if not isinstance(tables, list) or not tables:
        problems.add("gates", "at least one [[gates]]", tables)
        tables = []
    gates = [gate for i, table in enumerate(tables) if (gate := _gate(problems, f"gates[{i}]", table)) is not None]
    names = [gate.name for gate in gates]
    for name in sorted({name for name in names if names.count(name) > 1}):
        problems.add("gates", "each name once; give gates of one metric a name", name)
    problems.raise_if_any()
    return Policy(str(head.get("name", Path(path).stem)), tuple(gates), errors, where)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _keys(problems: ProblemList, path: str, table: dict[str, Any], valid: tuple[str, ...]) -> None:
    for key in table:
        if key not in valid:
            problems.add_line(
                f"{problems.where}: {path}{key}: expected one of {', '.join(valid)}, found {key!r}"
                + nearest(key, valid)
            )


def _errors(problems: ProblemList, table: Any) -> dict[Kind, float]:
    errors = dict(DEFAULT_ERROR)
    if not isinstance(table, dict):
        problems.add("policy.model_error", "a table of speedup and time", table)
        return errors
    kinds = tuple(kind.value for kind in DEFAULT_ERROR)
    _keys(problems, "policy.model_error.", table, kinds)
    for kind in DEFAULT_ERROR:
        value = table.get(kind.value, errors[kind])
        if not is_number(value) or not 0.0 <= value < 1.0:
            problems.add(f"policy.model_error.{kind.value}", "a share from 0 to 1", value)
        else:
            errors[kind] = float(value)
    return errors


def _gate(problems: ProblemList, path: str, table: Any) -> Gate | None:
    before = len(problems.lines)
    if not isinstance(table, dict):
        problems.add(path, "a table", table)
        return None
    _keys(problems, f"{path}.", table, _GATE_KEYS)
    for key in ("metric", "owner", "rollback"):
        if not _is_text(table.get(key)):
            problems.add(f"{path}.{key}", "text", table.get(key))
    for key in ("name", "of", "path"):
        if key in table and not _is_text(table[key]):
            problems.add(f"{path}.{key}", "text", table[key])
    metric = table.get("metric")
    if isinstance(metric, str) and metric not in METRICS and "path" not in table:
        problems.add_line(
            f"{problems.where}: {path}.metric: expected one of {', '.join(METRICS)}, or any name with a path, "
            f"found {metric!r}{nearest(metric, METRICS)}"
        )
    bounds = [key for key in ("min", "max") if key in table]
    if len(bounds) != 1:
        problems.add(path, "either min or max", " and ".join(bounds) or "neither")
    elif not is_number(table[bounds[0]]):
        problems.add(f"{path}.{bounds[0]}", "a number", table[bounds[0]])
    if len(problems.lines) > before:
        return None
    return Gate(
        name=str(table.get("name", table["metric"])),
        metric=table["metric"],
        threshold=float(table[bounds[0]]),
        at_least=bounds[0] == "min",
        owner=table["owner"],
        rollback=table["rollback"],
        of=table.get("of", DEFAULT_OF),
        path=table.get("path", ""),
    )
