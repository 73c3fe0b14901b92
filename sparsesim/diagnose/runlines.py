"""Writing runs as run files, which read back as the same run; and what of a run no file can say."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Any

from sparsesim.diagnose.changes import aligned, find_changes
from sparsesim.diagnose.run import Run
from sparsesim.diagnose.runfile import parse_run
from sparsesim.errors import UserError
from sparsesim.hardware import load_gpu
from sparsesim.scenarios.paths import hardware_values
from sparsesim.stacks import Setting, Stack, get_stack
from sparsesim.workload import Gemm
from sparsesim.workload.ops import GEMM_FIELDS
from sparsesim.workload.write import toml_table, toml_value

__all__ = ["not_written", "run_lines"]

_DEFAULTS = {field.name: field.default for field in fields(Gemm)}


def run_lines(run: Run, table: str = "", folder: Path | None = None) -> list[str]:
    """The lines of a run file in `folder` that reads back as `run`; with `table`, of one table of a pair file.

    What was measured, and quality, is not written: a slice or a fix has neither. Nor are rules and heuristics that no
    file has; `not_written` finds them.
    """
    head = [f"[{table}]"] if table else []
    prefix = f"{table}." if table else ""
    stack = run.stack_source or run.stack.name
    base = stack.partition(":")[0].partition("@")[0]
    values: dict[str, Any] = {"name": run.label, "gpu": _from(run.gpu_source, folder),
                              "stack": _from(base, folder) + stack[len(base):],
                              "baseline": run.baseline, "timing": run.protocol.timing, "l2": run.protocol.l2,
                              "clock": run.protocol.clock}  # fmt: skip
    if run.tuned_source:
        values["tuned_for"] = _from(run.tuned_source, folder)
    if run.streams != 1:
        values["streams"] = run.streams
    if run.graph:
        values["graph"] = True
    if run.repeats != 1:
        values["repeats"] = run.repeats
    edits = [*_edits(run), *_stack_edits(run.stack, stack)]
    lines = [*head, *(f"{key} = {toml_value(value)}" for key, value in values.items())]
    setting = _setting(run.stack.setting)
    if setting:
        pairs = ", ".join(f"{name} = {toml_value(value)}" for name, value in setting.items())
        lines.append(f"setting = {{ {pairs} }}")
    if edits:
        lines += ["set = [", *(f"  {toml_value(edit)}," for edit in edits), "]"]
    if run.unusable:
        pairs = ", ".join(f"{toml_value(name)} = {toml_value(why)}" for name, why in run.unusable)
        lines.append(f"unusable = {{ {pairs} }}")
    for op in run.workload.ops:
        values = {name: getattr(op, name) for name in GEMM_FIELDS}
        plain = {name: value for name, value in values.items() if value != _DEFAULTS.get(name)}
        lines += toml_table(f"{prefix}gemms", plain)
    for item in run.conversions:
        lines += ["", f"[[{prefix}conversions]]", f"op = {toml_value(item.op)}", f"bytes = {item.bytes!r}",
                  f"launches = {item.launches}"]  # fmt: skip
    return lines


def not_written(run: Run) -> list[str]:
    """What a run would lose on its way through a file, each as the change that it makes: what no file can say."""
    try:
        again = parse_run("\n".join(run_lines(run)), Path("run.toml"))
    except UserError as error:
        return list(error.problems)
    return [change.what for change in find_changes(again, aligned(again, run))]


def _from(source: str, folder: Path | None) -> str:
    """A file by its path from `folder`; a packaged name as it is."""
    return os.path.relpath(source, folder) if folder is not None and Path(source).is_file() else source


def _edits(run: Run) -> list[str]:
    """Assignments that make the run's GPU out of its source."""
    ours, theirs = hardware_values(load_gpu(run.gpu_source)), hardware_values(run.gpu)
    edits = []
    for path, (value, unit) in theirs.items():
        if path in ours and ours[path][0] == value:
            continue
        if isinstance(value, bool):
            text = str(value).lower()
        elif isinstance(value, tuple):
            text = ", ".join(value)
        else:
            text = f"{value!r}{'' if unit == '-' or isinstance(value, str) else ' ' + unit}"
        edits.append(f"{path}={text}")
    return edits


def _stack_edits(stack: Stack, source: str) -> list[str]:
    """Assignments that make the run's stack out of its source: policy, and rules that were lifted."""
    plain = get_stack(source)
    edits = [] if stack.policy == plain.policy else [f"stack.policy={stack.policy}"]
    kept = {rule.code for rule in stack.rules}
    return edits + [f"stack.rules-={code}" for code in dict.fromkeys(r.code for r in plain.rules) if code not in kept]


def _setting(setting: Setting) -> dict[str, Any]:
    """The circumstances that are set, without the version."""
    known = {field.name: getattr(setting, field.name) for field in fields(Setting) if field.name != "version"}
    return {name: sorted(value) if name == "flags" else value for name, value in known.items() if value}
