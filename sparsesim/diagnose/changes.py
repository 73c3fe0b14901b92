"""What differs between two runs of a workload, as changes that can be made one at a time.

A change is a set of facets: a hardware parameter, a field of an op, the stack, a word of the protocol … `apply` takes
the facets of some changes from the candidate and all others from the base. Fields without effect (names, titles,
families of ops, provenance) are no facets. Where there are more changes than can be attributed exactly, or where
some make no sense without others (half of another GPU), `coarser` puts them together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sparsesim.diagnose.run import Run
from sparsesim.hardware import GpuSpec
from sparsesim.hardware.load import override
from sparsesim.scenarios.paths import hardware_values
from sparsesim.stacks import Stack
from sparsesim.workload import Gemm, Workload

__all__ = ["Change", "aligned", "apply", "coarser", "find_changes", "levels", "show_quantity"]

Facet = tuple[str, ...]
#: path of a hardware parameter → (value, unit)
Values = Mapping[str, tuple[Any, str]]

#: kinds of changes, and what a reader calls them
KINDS = {
    "hardware": "hardware parameters",
    "software": "software stack",
    "shape": "shapes",
    "pattern": "sparsity patterns",
    "precision": "data types",
    "protocol": "clock and protocol",
    "launch": "how work is launched",
    "conversion": "conversions",
}
#: fields of an op that its time depends on; those of one group change together
OP_FIELDS: dict[str, tuple[str, ...]] = {
    "n": ("n",), "m": ("m",), "k": ("k",), "batch": ("batch",), "count": ("count",), "pattern": ("pattern",),
    "sparse_operand": ("sparse_operand",), "dtype": ("dtype", "acc_dtype", "out_dtype"),
}  # fmt: skip
SIZES = ("m", "n", "k", "batch", "count")
_OP_KIND = {"dtype": "precision", "pattern": "pattern", "sparse_operand": "pattern"}
_OP_WORDS = {"n": "tokens (n)", "m": "out features (m)", "k": "in features (k)", "dtype": "data type"}
BOARD: Facet = ("gpu", "*")
TUNING: Facet = ("gpu", "library tuning")
_RUN_FIELDS = {
    "stack": "software", "baseline": "software", "streams": "launch", "graph": "launch", "repeats": "launch",
}  # fmt: skip
_PROTOCOL = {"timing": "protocol", "l2": "protocol", "locked_hz": "protocol"}
#: names of ops that a sentence lists
LISTED = 4


@dataclass(frozen=True)
class Change:
    """One thing that changed: `facets` are what `apply` exchanges, `ops` the base's names of the ops concerned."""

    id: str
    kind: str
    what: str
    before: str
    after: str
    facets: tuple[Facet, ...]
    ops: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    members: tuple[Change, ...] = ()


def aligned(base: Run, candidate: Run) -> Run:
    """`candidate` with its ops called as their counterparts in `base` and in that order, what is new behind them.

    Counterparts have the same name; those left the same fields; if then equally many are left on both sides, the same
    place. Names have no effect on times, nor has the order of ops in one stream.
    """
    ours, theirs = base.workload.ops, candidate.workload.ops
    left, right = list(range(len(ours))), list(range(len(theirs)))
    partner: dict[int, int] = {}
    for key in (_by_name, _by_fields):
        where: dict[object, list[int]] = {}
        for j in right:
            where.setdefault(key(theirs[j]), []).append(j)
        for i in list(left):
            found = where.get(key(ours[i]))
            if found:
                partner[i] = found.pop(0)
                left.remove(i)
                right.remove(partner[i])
    if len(left) == len(right):
        partner.update(zip(left, right, strict=True))
        right = []
    names = {theirs[j].name: ours[i].name for i, j in partner.items()}
    order = [*(partner[i] for i in sorted(partner)), *right]
    ops = tuple(replace(theirs[j], name=names.get(theirs[j].name, theirs[j].name)) for j in order)
    old = candidate.workload
    return replace(
        candidate,
        workload=Workload(old.name, old.description, old.source, ops),
        conversions=tuple(replace(item, op=names.get(item.op, item.op)) for item in candidate.conversions),
        unusable=tuple((names.get(name, name), why) for name, why in candidate.unusable),
        measured=tuple((names.get(name, name), value) for name, value in candidate.measured),
        kernels=tuple((names.get(name, name), value) for name, value in candidate.kernels),
    )


def _by_name(op: Gemm) -> object:
    return op.name


def _by_fields(op: Gemm) -> object:
    return replace(op, name="op", family="", kind="linear")


def find_changes(base: Run, candidate: Run) -> list[Change]:
    """Everything that differs and may have an effect, in a fixed order; `candidate` as `aligned` gives it."""
    return [
        *_hardware(base.gpu, candidate.gpu),
        *_fields(base, candidate),
        *_ops(base, candidate),
        *_protocol(base, candidate),
        *_per_op(base, candidate),
    ]


# --- finding ---


def _values(gpu: GpuSpec) -> dict[str, dict[str, object]]:
    """section.field → {entry of a table, or "": value}."""
    found: dict[str, dict[str, object]] = {}
    for path, (value, _) in hardware_values(gpu).items():
        section, field, *entry = path.split(".")
        found.setdefault(f"{section}.{field}", {})[".".join(entry)] = value
    return found


def _tuning(gpu: GpuSpec) -> dict[str, dict[str, object]]:
    """What the libraries' heuristics know, less what they read from the board itself."""
    values = _values(gpu.tuned_for)
    return {path: value for path, value in values.items() if not path.startswith("sm.")}


def _hardware(base: GpuSpec, candidate: GpuSpec) -> list[Change]:
    ours, theirs = hardware_values(base), hardware_values(candidate)
    tables, tables_after = _values(base), _values(candidate)
    if (base.compute_capability, base.family) != (candidate.compute_capability, candidate.family):
        what = f"GPU {base.name} → {candidate.name}: another architecture, so all of its parameters together"
        return [Change("gpu", "hardware", what, base.name, candidate.name, (BOARD,))]
    found = []
    for path in dict.fromkeys([*tables, *tables_after]):
        before, after = tables.get(path, {}), tables_after.get(path, {})
        if before.keys() != after.keys():
            found.append(
                Change(path, "hardware", f"{path}: other entries", _show(before), _show(after), (("gpu", path),))
            )
            continue
        for entry in before:
            full = f"{path}.{entry}" if entry else path
            if before[entry] != after[entry]:
                unit = ours[full][1]
                old, new = (show_quantity(values[full][0], unit) for values in (ours, theirs))
                found.append(Change(full, "hardware", f"{full}: {old} → {new}", old, new, (("gpu", full),)))
    if _tuning(base) != _tuning(candidate):
        names = base.tuned_for.name, candidate.tuned_for.name
        what = f"libraries tuned for {names[0]} → {names[1]}: what their heuristics know"
        found.append(Change("library tuning", "software", what, *names, (TUNING,)))
    return _same_ratio(found, ours, theirs)


def _same_ratio(found: list[Change], ours: Values, theirs: Values) -> list[Change]:
    """Entries of one table that change by one factor are one change: all rates halved."""
    groups: dict[tuple[str, float], list[Change]] = {}
    for change in found:
        path = change.id
        values = [table.get(path, (None, ""))[0] for table in (ours, theirs)]
        numeric = all(isinstance(v, int | float) and not isinstance(v, bool) and v for v in values)
        ratio = float(f"{values[1] / values[0]:.9g}") if numeric and path.count(".") == 2 else math.nan
        key = (path.rpartition(".")[0], ratio) if ratio == ratio else (path, 0.0)
        groups.setdefault(key, []).append(change)
    out = []
    for (table, ratio), members in groups.items():
        if len(members) == 1:
            out.append(members[0])
            continue
        facets = tuple(facet for member in members for facet in member.facets)
        text = f"{table}, {len(members)} entries: ×{ratio:.4g}"
        out.append(Change(table, "hardware", text, members[0].before, members[0].after, facets))
    return out


def _fields(base: Run, candidate: Run) -> list[Change]:
    found = []
    for name, kind in _RUN_FIELDS.items():
        before, after = getattr(base, name), getattr(candidate, name)
        if name == "stack":
            same, before, after = _stack_key(before) == _stack_key(after), before.name, after.name
        else:
            same = before == after
        if not same:
            what = (
                f"{name}: {before} → {after}" if before != after else f"{name} {before}: other rules, policy or setting"
            )
            found.append(Change(name, kind, what, str(before), str(after), ((name,),)))
    return found


def _stack_key(stack: Stack) -> tuple[object, ...]:
    """Equal for stacks that decide alike and whose calls do the same, whether or not they are one object."""
    rules = tuple((rule.code, rule.text, rule.source) for rule in stack.rules)
    return stack.name, stack.policy, rules, stack.setting, stack.behaviour


def _protocol(base: Run, candidate: Run) -> list[Change]:
    found = []
    for name, kind in _PROTOCOL.items():
        if getattr(base.protocol, name) != getattr(candidate.protocol, name):
            word = "clock" if name == "locked_hz" else name
            before, after = getattr(base.protocol, word), getattr(candidate.protocol, word)
            found.append(
                Change(f"protocol.{word}", kind, f"{word}: {before} → {after}", before, after, (("protocol", name),))
            )
    return found


def _ops(base: Run, candidate: Run) -> list[Change]:
    groups: dict[tuple[str, object], list[tuple[Gemm, Gemm]]] = {}
    found: list[Change] = []
    before_ops, after_ops = ({op.name: op for op in run.workload.ops} for run in (base, candidate))
    for name in dict.fromkeys([*before_ops, *after_ops]):
        ours, theirs = before_ops.get(name), after_ops.get(name)
        if ours is None or theirs is None:
            op = ours or theirs
            assert op is not None
            word = "removed" if theirs is None else "added"
            shape = f"{op.m}×{op.n}×{op.k} {op.dtype} {op.pattern}"
            before, after = (shape, "none") if theirs is None else ("none", shape)
            what = f"{name} ({shape}) {word}"
            found.append(
                Change(f"op {word}: {name}", "shape", what, before, after, ((word, name),), (name,), _families([op]))
            )
            continue
        for group, names in OP_FIELDS.items():
            if group == "sparse_operand" and ours.pattern == theirs.pattern == "dense":
                continue
            old, new = (tuple(_effective(op, field) for field in names) for op in (ours, theirs))
            if old != new:
                # sizes that change by one factor are one change (a shard), others by their values
                step: object = (old, new)
                if group in SIZES:
                    step = float(f"{getattr(theirs, group) / getattr(ours, group):.9g}")
                groups.setdefault((group, step), []).append((ours, theirs))
    for (group, _), members in groups.items():
        found.append(_op_change(group, members, len(base.workload.ops)))
    return found


def _effective(op: Gemm, name: str) -> object:
    return {"acc_dtype": op.accumulator, "out_dtype": op.output}.get(name, getattr(op, name))


def _op_change(group: str, members: list[tuple[Gemm, Gemm]], total: int) -> Change:
    ops = [ours for ours, _ in members]
    pairs = list(dict.fromkeys((_shown(ours, group), _shown(theirs, group)) for ours, theirs in members))
    where = f"all {total} ops" if len(members) == total > 1 else _listed([op.name for op in ops])
    values = ", ".join(f"{before} → {after}" for before, after in pairs[:LISTED]) + (
        ", …" if len(pairs) > LISTED else ""
    )
    name = f"ops.{ops[0].name}.{group}" if len(members) == 1 else group
    return Change(
        id=name,
        kind=_OP_KIND.get(group, "shape"),
        what=f"{_OP_WORDS.get(group, group)} of {where}: {values}",
        before=pairs[0][0],
        after=pairs[0][1],
        facets=tuple(("op", op.name, group) for op in ops),
        ops=tuple(op.name for op in ops),
        families=_families(ops),
    )


def _shown(op: Gemm, group: str) -> str:
    return str(getattr(op, group))


def _per_op(base: Run, candidate: Run) -> list[Change]:
    """Conversions and weights that cannot be used sparse."""
    found = []
    names = {op.name: op for op in (*candidate.workload.ops, *base.workload.ops)}
    old, new = ({item.op: str(item) for item in run.conversions} for run in (base, candidate))
    grouped: dict[tuple[str, str], list[str]] = {}
    for name in dict.fromkeys([*old, *new]):
        if old.get(name) != new.get(name):
            grouped.setdefault((old.get(name, "none"), new.get(name, "none")), []).append(name)
    for (before, after), ops in grouped.items():
        facets = tuple(("conversion", name) for name in ops)
        what = f"conversion at {_listed(ops)}: {before} → {after}"
        found.append(Change("conversion", "conversion", what, before, after, facets, tuple(ops),
                            _families([names[name] for name in ops if name in names])))  # fmt: skip
    before_why, after_why = dict(base.unusable), dict(candidate.unusable)
    grouped = {}
    for name in dict.fromkeys([*before_why, *after_why]):
        # why a weight runs dense makes no difference to its time
        if (name in before_why) != (name in after_why):
            grouped.setdefault((before_why.get(name, "usable"), after_why.get(name, "usable")), []).append(name)
    for (before, after), ops in grouped.items():
        facets = tuple(("unusable", name) for name in ops)
        what = f"sparse weight of {_listed(ops)}: {before} → {after}"
        found.append(Change("weight layout", "pattern", what, before, after, facets, tuple(ops),
                            _families([names[name] for name in ops if name in names])))  # fmt: skip
    return found


def _families(ops: Sequence[Gemm]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(op.family for op in ops if op.family))


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:LISTED])
    return shown if len(names) <= LISTED else f"{shown} and {len(names) - LISTED} more"


def _show(entries: dict[str, object]) -> str:
    return ", ".join(f"{key} {value}" for key, value in entries.items()) or "none"


_PREFIXES = (
    (1e12, "T"),
    (1e9, "G"),
    (1e6, "M"),
    (1e3, "k"),
    (1.0, ""),
    (1e-3, "m"),
    (1e-6, "µ"),
    (1e-9, "n"),
    (1e-12, "p"),
)


def show_quantity(value: object, unit: str) -> str:
    """A value with its unit, short: ``1.94 TB/s``."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    if unit in ("B", "B/s", "Hz", "s", "J", "J/B") and value:
        factor, prefix = next(((f, p) for f, p in _PREFIXES if abs(value) >= f), _PREFIXES[-1])
        return f"{value / factor:.4g} {prefix}{unit}"
    return f"{value:.6g}" if unit == "-" else f"{value:.6g} {unit}"


# --- applying ---


def apply(base: Run, candidate: Run, changes: Iterable[Change]) -> Run:
    """`base` with the facets of `changes` taken from `candidate`.

    Raises
    ------
    UserError
        The mixture is no possible GPU or op.
    """
    facets = [facet for change in changes for facet in change.facets]
    kinds: dict[str, set[Facet]] = {}
    for facet in facets:
        kinds.setdefault(facet[0], set()).add(facet)
    run = replace(base, label="counterfactual", measured=(), kernels=(), recorded=None, notes=())
    if "gpu" in kinds:
        run = replace(run, gpu=_gpu(base.gpu, candidate.gpu, kinds["gpu"]))
    if BOARD in facets:
        run = replace(run, gpu_source=candidate.gpu_source, tuned_source=candidate.tuned_source)
    elif TUNING in facets:
        run = replace(run, tuned_source=candidate.tuned_source or candidate.gpu_source)
    for name in _RUN_FIELDS:
        if name in kinds:
            run = replace(run, **{name: getattr(candidate, name)})
    if "stack" in kinds:
        run = replace(run, stack_source=candidate.stack_source)
    words = {facet[1]: getattr(candidate.protocol, facet[1]) for facet in kinds.get("protocol", ())}
    if words:
        run = replace(run, protocol=replace(run.protocol, **words))
    if {"op", "added", "removed"} & kinds.keys():
        run = replace(run, workload=_mixed_ops(base, candidate, kinds))
    present = {op.name for op in run.workload.ops}
    conversions = {item.op: item for item in base.conversions}
    theirs = {item.op: item for item in candidate.conversions}
    for _, name in kinds.get("conversion", ()):
        conversions.pop(name, None)
        if name in theirs:
            conversions[name] = theirs[name]
    unusable, after = dict(base.unusable), dict(candidate.unusable)
    for _, name in kinds.get("unusable", ()):
        unusable.pop(name, None)
        if name in after:
            unusable[name] = after[name]
    return replace(
        run,
        conversions=tuple(conversions[name] for name in sorted(conversions) if name in present),
        unusable=tuple(sorted((name, why) for name, why in unusable.items() if name in present)),
    )


def _gpu(base: GpuSpec, candidate: GpuSpec, facets: set[Facet]) -> GpuSpec:
    if BOARD in facets:
        return candidate
    data = candidate.model_dump()
    edits: dict[str, object] = {}
    for _, path in sorted(facets - {TUNING}):
        node: object = data
        for part in path.split(".", 2):
            assert isinstance(node, dict)
            node = node.get(part)
        edits[path] = node
    gpu = override(base, edits) if edits else base
    if TUNING in facets:
        gpu = gpu.model_copy(update={"library_target": candidate.tuned_for})
    return gpu


def _mixed_ops(base: Run, candidate: Run, kinds: dict[str, set[Facet]]) -> Workload:
    """The ops in the order of the base, what was added behind them."""
    taken: dict[str, list[str]] = {}
    for _, name, group in kinds.get("op", ()):
        taken.setdefault(name, []).extend(OP_FIELDS[group])
    added, removed = ({name for _, name in kinds.get(word, ())} for word in ("added", "removed"))
    others = {op.name: op for op in candidate.workload.ops}
    ops = [
        replace(op, **{field: getattr(others[op.name], field) for field in taken.get(op.name, ())})
        for op in base.workload.ops
        if op.name not in removed
    ]
    ops += [op for op in candidate.workload.ops if op.name in added]
    return Workload(base.workload.name, base.workload.description, base.workload.source, tuple(ops))


# --- grouping ---


def coarser(changes: Sequence[Change], level: int) -> list[Change]:
    """Changes put together: 0 as found; 1 by section of the hardware file and field of the ops; 2 by kind; 3 GPU,
    stack and data types as one, for what neither board can run without the others."""
    if level == 0:
        return list(changes)

    def key(change: Change) -> str:
        facet = change.facets[0]
        if level == 3 and change.kind in ("hardware", "software", "precision"):
            return "GPU, stack and data types"
        if level >= 2:
            return KINDS[change.kind]
        if change.kind == "hardware":
            return f"hardware: {facet[1].partition('.')[0]}"
        return f"{facet[2]} of the ops" if facet[0] == "op" else change.id

    groups: dict[str, list[Change]] = {}
    for change in changes:
        groups.setdefault(key(change), []).append(change)
    return [_joined(name, members) if len(members) > 1 else members[0] for name, members in groups.items()]


def _joined(name: str, members: Sequence[Change]) -> Change:
    shown = "; ".join(member.what for member in members[:3]) + ("; …" if len(members) > 3 else "")
    return Change(
        id=name,
        kind=members[0].kind,
        what=f"{name}, {len(members)} changes: {shown}",
        before="base",
        after="candidate",
        facets=tuple(facet for member in members for facet in member.facets),
        ops=tuple(dict.fromkeys(op for member in members for op in member.ops)),
        families=tuple(dict.fromkeys(f for member in members for f in member.families)),
        members=tuple(members),
    )


def levels() -> range:
    """Levels of `coarser`."""
    return range(4)
