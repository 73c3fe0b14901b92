"""Hardware files (TOML) → `GpuSpec`, with every problem of a file reported at once.

A file gives identity fields as plain keys and every parameter as a table
``{ value = 108, unit = "-", source = "A100-WP", status = "datasheet" }`` (optional: ``note``, ``range``,
``rows``). ``extends = "other"`` starts from another file, by packaged name or by path relative to this one.
"""

from __future__ import annotations

import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from sparsesim.datafiles import data_dir
from sparsesim.errors import ProblemList, UserError, nearest, show
from sparsesim.hardware.spec import STATUSES, TABLE_KEYS, GpuSpec, Provenance, unit_of
from sparsesim.textfiles import parse_toml, read_text
from sparsesim.units import is_number, to_canonical, units_of

__all__ = ["gpu_names", "load_gpu", "load_sources", "override"]

IDENTITY = ("name", "title", "vendor", "family", "compute_capability", "hypothetical")
LEAF_KEYS = {"value", "unit", "source", "status", "note", "range", "rows"}
MAX_EXTENDS = 6

_SECTIONS: dict[str, type[BaseModel]] = {
    name: field.annotation
    for name, field in GpuSpec.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
}


def gpu_names() -> list[str]:
    """Names of the packaged hardware files, sorted."""
    return sorted(p.stem for p in data_dir("hw_configs").glob("*.toml") if p.stem != "sources")


@lru_cache(maxsize=1)
def load_sources() -> dict[str, str]:
    """Source code → citation, from the packaged ``sources.toml``."""
    path = data_dir("hw_configs") / "sources.toml"
    if not path.is_file():
        return {}
    with path.open("rb") as handle:
        return dict(tomllib.load(handle).get("sources", {}))


def _find(name: str, beside: Path | None, where: str) -> Path:
    """Path of a hardware file given by path or packaged name."""
    looks_like_path = name.endswith(".toml") or "/" in name or "\\" in name
    candidates = []
    if looks_like_path or beside is not None:
        base = beside if beside is not None else Path()
        candidates += [base / name, base / f"{name}.toml"]
    candidates.append(data_dir("hw_configs") / f"{name}.toml")
    for candidate in candidates:
        if _is_file(candidate):
            return candidate
    if looks_like_path and beside is None:
        raise UserError(f"{name}: expected a hardware file (TOML), found no such file")
    raise UserError(
        f"{where}: expected a packaged GPU or a path to a .toml file, found {name!r}" + nearest(name, gpu_names())
    )


def _is_file(path: Path) -> bool:
    """Whether `path` is a file; a name that the system refuses (too long, forbidden) is none."""
    try:
        return path.is_file()
    except OSError:
        return False


def _read_toml(path: Path) -> dict[str, Any]:
    text = read_text(path, "a readable file")
    if not text.strip():
        raise UserError(f"{path}: expected a hardware description, found an empty file")
    return parse_toml(text, path)


def _chain(path: Path) -> list[tuple[Path, dict[str, Any]]]:
    """The file and what it extends, base first."""
    chain: list[tuple[Path, dict[str, Any]]] = []
    current: Path | None = path
    seen: list[Path] = []
    while current is not None:
        if current.resolve() in seen:
            circle = " -> ".join(p.stem for p in [*seen, current])
            raise UserError(f"{current}: extends: expected no circle, found {circle}")
        if len(seen) > MAX_EXTENDS:
            raise UserError(f"{path}: extends: expected at most {MAX_EXTENDS} levels, found more")
        seen.append(current.resolve())
        data = _read_toml(current)
        chain.insert(0, (current, data))
        base = data.get("extends")
        if base is None:
            current = None
        elif not isinstance(base, str) or not base:
            raise UserError(f"{current}: extends: expected the name of a hardware file, found {base!r}")
        else:
            current = _find(base, current.parent, f"{current}: extends")
    return chain


def _leaf(raw: Any, path: str, unit: str, problems: ProblemList, file: Path) -> tuple[Any, Provenance] | None:
    """Check one ``{value, unit, source, status}`` table; convert its value to canonical units."""
    if not isinstance(raw, dict) or "value" not in raw:
        problems.add(path, "a table { value, unit, source, status }", raw)
        return None
    ok = True
    for key in raw:
        if key not in LEAF_KEYS:
            problems.add(f"{path}.{key}", f"one of {', '.join(sorted(LEAF_KEYS))}{nearest(key, LEAF_KEYS)}", raw[key])
            ok = False
    for key in ("unit", "source", "status"):
        if key not in raw:
            problems.add_line(f"{file}: {path}.{key}: expected a non-empty string, found none")
            ok = False
        elif not isinstance(raw[key], str) or not raw[key].strip():
            problems.add(f"{path}.{key}", "a non-empty string", raw[key])
            ok = False
    if ok and raw["status"] not in STATUSES:
        problems.add(f"{path}.status", f"one of {', '.join(STATUSES)}{nearest(raw['status'], STATUSES)}", raw["status"])
        ok = False
    if ok and raw["unit"] not in units_of(unit):
        problems.add(f"{path}.unit", f"one of {', '.join(units_of(unit))}", raw["unit"])
        ok = False
    rng = raw.get("range")
    if rng is not None and not (
        isinstance(rng, list) and len(rng) == 2 and all(is_number(x) for x in rng) and rng[0] <= rng[1]
    ):
        problems.add(f"{path}.range", "[low, high] with low <= high", rng)
        ok = False
    if not ok:
        return None
    value = raw["value"]
    if isinstance(value, bool | str):
        pass
    elif isinstance(value, list):
        value = tuple(value)
    elif is_number(value):
        scaled = to_canonical(value, raw["unit"], unit)
        value = int(scaled) if isinstance(value, int) and float(scaled).is_integer() and unit == "-" else scaled
        if rng is not None:
            if not rng[0] <= raw["value"] <= rng[1]:
                problems.add(f"{path}.value", f"a value within its range {rng}", raw["value"])
                return None
            rng = [to_canonical(x, raw["unit"], unit) for x in rng]
    else:
        problems.add(f"{path}.value", "a finite number, a string, a boolean or a list", value)
        return None
    return value, Provenance(
        unit=raw["unit"],
        source=raw["source"],
        status=raw["status"],
        note=str(raw.get("note", "")),
        range=tuple(rng) if rng is not None else None,
        rows=str(raw.get("rows", "")),
        file=file.name,
    )


def _merge_file(
    data: dict[str, Any], file: Path, values: dict[str, Any], provenance: dict[str, Provenance]
) -> ProblemList:
    """Add one file's parameters to `values` and `provenance`."""
    problems = ProblemList(str(file))
    for key, raw in data.items():
        if key in IDENTITY:
            if key == "hypothetical":
                if not isinstance(raw, bool):
                    problems.add(key, "true or false", raw)
            elif not isinstance(raw, str) or not raw:
                problems.add(key, "a non-empty string", raw)
            values[key] = raw
        elif key in ("extends", "abstract"):
            continue
        elif key not in _SECTIONS:
            valid = [*_SECTIONS, *IDENTITY, "extends"]
            problems.add(key, f"a known section{nearest(key, valid)}", raw)
        elif not isinstance(raw, dict):
            problems.add(key, "a table", raw)
        else:
            _merge_section(key, raw, file, values.setdefault(key, {}), provenance, problems)
    return problems


def _merge_section(
    section: str,
    raw: dict[str, Any],
    file: Path,
    values: dict[str, Any],
    provenance: dict[str, Provenance],
    problems: ProblemList,
) -> None:
    model = _SECTIONS[section]
    for field, leaf in raw.items():
        path = f"{section}.{field}"
        if field not in model.model_fields:
            problems.add(path, f"a field of [{section}]{nearest(field, model.model_fields)}", leaf)
            continue
        unit = unit_of(model, field)
        is_table = str(model.model_fields[field].annotation).startswith("dict")
        items = leaf.items() if is_table and isinstance(leaf, dict) and "value" not in leaf else None
        if items is None:
            checked = _leaf(leaf, path, unit, problems, file)
            if checked is not None:
                values[field], provenance[path] = checked
            continue
        table = dict(values.get(field, {}))
        for name, item in items:
            if name not in TABLE_KEYS[field]:
                problems.add(
                    f"{path}.{name}",
                    f"one of {', '.join(TABLE_KEYS[field])}{nearest(name, TABLE_KEYS[field])}",
                    item,
                )
                continue
            checked = _leaf(item, f"{path}.{name}", unit, problems, file)
            if checked is not None:
                table[name], provenance[f"{path}.{name}"] = checked
        values[field] = table


def _plain(err: ValidationError, where: str, provenance: dict[str, Provenance], reported: list[str]) -> list[str]:
    """Pydantic's findings as one line each, less those on a parameter that a line of `reported` names."""
    lines = []
    for item in err.errors():
        path = ".".join(str(part) for part in item["loc"])
        if path and any(f": {path}:" in line or f": {path}." in line for line in reported):
            continue
        if item["type"] == "missing":
            lines.append(f"{where}: {path}: expected a value, found none")
        elif not path:
            lines.append(f"{where}: {item['msg'].removeprefix('Value error, ')}")
        else:
            place = provenance[path].file if path in provenance else where
            expected = item["msg"].removeprefix("Input should be ")
            lines.append(f"{place}: {path}: expected {expected}, found {_as_written(item['input'], path, provenance)}")
    return lines


def _as_written(value: Any, path: str, provenance: dict[str, Provenance]) -> str:
    """`value` as the file gives it: a number that was converted goes back to the file's unit."""
    if path not in provenance or not is_number(value) or provenance[path].unit == "-":
        return show(value)
    section, field = path.split(".")[:2]
    factor = to_canonical(1.0, provenance[path].unit, unit_of(_SECTIONS[section], field))
    return f"{value / factor:.12g} {provenance[path].unit}"


def load_gpu(name: str | Path) -> GpuSpec:
    """Load a GPU by packaged name (``"rtx4090"``) or by path to a TOML file.

    Raises
    ------
    UserError
        Unknown name (with the nearest valid one), unreadable or invalid file, missing or unknown fields,
        values outside their range: every problem, one line each.
    """
    path = _find(str(name), None, "gpu")
    values: dict[str, Any] = {}
    provenance: dict[str, Provenance] = {}
    lines: list[str] = []
    chain = _chain(path)
    for file, data in chain:
        values.pop("hypothetical", None)
        lines += _merge_file(data, file, values, provenance).lines
    packaged = [file for file, _ in chain if file.resolve().parent == data_dir("hw_configs").resolve()]
    target = load_gpu(packaged[-1].stem) if packaged and packaged[-1] != path else None
    try:
        gpu = GpuSpec(**values, provenance=provenance, library_target=target)
    except ValidationError as err:
        lines += _plain(err, str(path), provenance, lines)
        if len(chain) == 1 and sum(item["type"] == "missing" for item in err.errors()) > 1:
            lines.append(f"{path}: extends: expected for a variant, as in extends = {gpu_names()[0]!r}, found none")
        raise UserError(lines) from None
    if lines:
        raise UserError(lines)
    return gpu


def override(gpu: GpuSpec, changes: dict[str, Any]) -> GpuSpec:
    """A copy of `gpu` with parameters replaced by dotted path, in canonical units, validated again.

    Raises
    ------
    UserError
        A path that does not exist (with the nearest one), or a value outside its range.
    """
    data = gpu.model_dump()
    problems = ProblemList(gpu.name)
    for path, value in changes.items():
        node: Any = data
        *parents, last = path.split(".")
        for part in parents:
            node = node.get(part) if isinstance(node, dict) else None
        if not isinstance(node, dict) or last not in node:
            hint = nearest(path, _paths(data))
            problems.add_line(f"{gpu.name}: {path}: expected a parameter path{hint}, found no such one")
            continue
        node[last] = value
    problems.raise_if_any()
    try:
        return GpuSpec(
            **data, provenance=gpu.provenance, library_target=gpu.library_target or (gpu if changes else None)
        )
    except ValidationError as err:
        raise UserError(_plain(err, gpu.name, {}, [])) from None


def _paths(data: dict[str, Any], prefix: str = "") -> list[str]:
    out = []
    for key, value in data.items():
        out += _paths(value, f"{prefix}{key}.") if isinstance(value, dict) else [prefix + key]
    return out
