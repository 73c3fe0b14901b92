"""TOML workload files: the layers of a model once, times named phases; or an explicit list of GEMMs.

``[phases]`` gives token counts per phase; each layer becomes the op ``phase-tokens/layer`` with
n = tokens * `n_per_unit` (or its own fixed `n`). A file whose `unit` is ``"image"`` counts images
instead. All problems of a file are collected and raised once.

Where sizes grow otherwise: m, n or k may be ``"tokens"`` (attention scores), `batch_per_unit` is a batch for
each token (attention of decoded tokens), and `experts` with `experts_per_token` route the tokens (see
`expand.routed`). ``[[others]]`` are ops that are no GEMM: `bytes` and `flops` are numbers, or coefficients of 1,
units and units squared.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparsesim.errors import ProblemList, UserError
from sparsesim.workload.expand import (
    Layer,
    OtherLayer,
    Overrides,
    Selection,
    expand,
    expand_others,
    report,
    report_name,
    select_gemms,
    select_phases,
)
from sparsesim.workload.files import BadText, open_bytes, text_lines
from sparsesim.workload.ops import GEMM_FIELDS, Gemm, Workload, size_issue
from sparsesim.workload.others import OTHER_FIELDS, OtherOp, polynomial_issue

__all__ = ["load_model", "parse_model"]

_TOP = ("name", "description", "source", "unit", "defaults", "phases", "layers", "gemms", "others")
_DEFAULTS = ("dtype", "acc_dtype", "out_dtype", "pattern", "sparse_operand", "kind", "n_per_unit")
_LAYER_ONLY = ("n_per_unit", "phases", "quantize", "batch_per_unit", "experts", "experts_per_token")
_GROW = ("m", "n", "k")
_OTHER = (*OTHER_FIELDS, "phases")
_LAYER = (*GEMM_FIELDS, *_LAYER_ONLY)
_WORD = re.compile(r"[A-Za-z0-9_.-]+")
_UNITS = ("token", "image")


def load_model(path: Path, selection: Selection, overrides: Overrides) -> Workload:
    """Read, check, select and expand the TOML workload at `path`; raises `UserError`."""
    with open_bytes(path) as file:
        try:
            text = "".join(text_lines(file))
        except BadText as error:
            raise UserError(f"{path}: {error}") from None
    return parse_model(text, path, selection, overrides)


def parse_model(text: str, path: Path, selection: Selection, overrides: Overrides) -> Workload:
    """The workload that the TOML `text`, which came from `path`, describes; raises `UserError`."""
    document = _parse(text, path)
    problems = ProblemList(str(path))
    _check_keys(problems, "", document, _TOP)
    about = _about(problems, document, path.stem)
    defaults = _defaults(problems, document)
    phases = _phases(problems, document)
    if ("layers" in document) == ("gemms" in document):
        found = "both" if "layers" in document else "neither"
        problems.add("", "either [[layers]] with [phases], or [[gemms]]", found)
    layers = list(_layers(problems, document, defaults, phases))
    gemms = list(_gemms(problems, document, defaults))
    others = list(_others(problems, document, phases))
    problems.raise_if_any()
    if layers:
        chosen = select_phases(problems, phases, selection)
        ops = expand(problems, layers, chosen, overrides)
        rest = expand_others(problems, others, chosen)
    else:
        ops = [overrides.apply(op) for op in select_gemms(str(path), gemms, selection)]
        rest = [OtherOp(**other.values) for other in others]
    problems.raise_if_any()
    return Workload(*about, tuple(ops), tuple(rest))


def _parse(text: str, path: Path) -> dict[str, Any]:
    """The TOML document in `text`, from `path`."""
    if not text.strip():
        raise UserError(f"{path}: expected a TOML workload, found an empty file")
    try:
        document = tomllib.loads(text.replace("\r\n", "\n"))
        repr(document)  # a hexadecimal integer may be too long to be shown
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: expected valid TOML, found an error: {error}") from None
    return document


# --- checks ---


def _check_keys(problems: ProblemList, path: str, table: dict[str, Any], valid: tuple[str, ...]) -> None:
    """Report the unknown keys of `table`, each with the nearest valid name."""
    for key in table:
        if key not in valid:
            report_name(problems, _join(path, key), key, valid)


def _join(path: str, key: str) -> str:
    """``path.key``, or `key` at the top; an unprintable key is quoted."""
    key = key if key.isprintable() else repr(key)
    return f"{path}.{key}" if path else key


def _about(problems: ProblemList, document: dict[str, Any], stem: str) -> tuple[str, str, str]:
    """Name, description and source; checks the unit on the way."""
    for key in ("name", "description", "source"):
        if not isinstance(document.get(key, ""), str):
            problems.add(key, "text", document[key])
    if document.get("unit", "token") not in _UNITS:
        problems.add("unit", "one of " + ", ".join(_UNITS), document["unit"])
    return document.get("name", stem), document.get("description", ""), document.get("source", "")


def _defaults(problems: ProblemList, document: dict[str, Any]) -> dict[str, Any]:
    """The good values of ``[defaults]``; the bad ones are reported here and not again in every layer."""
    table = document.get("defaults", {})
    if not isinstance(table, dict):
        problems.add("defaults", "a table", table)
        return {}
    _check_keys(problems, "defaults", table, _DEFAULTS)
    values = {key: value for key, value in table.items() if key in _DEFAULTS}
    if issue := size_issue("n_per_unit", values.get("n_per_unit", 1)):
        problems.add("defaults.n_per_unit", *issue[1:])
        del values["n_per_unit"]
    probe = {key: value for key, value in values.items() if key in GEMM_FIELDS}
    for key in report(problems, "defaults", {**probe, "name": "defaults", "m": 1, "n": 1, "k": 1}):
        values.pop(key, None)
    return values


def _phases(problems: ProblemList, document: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Token counts by phase."""
    table = document.get("phases", {})
    if not isinstance(table, dict):
        problems.add("phases", "a table of token counts by phase", table)
        return {}
    if "layers" in document and not table:
        problems.add("phases", "at least one phase, as in prefill = [512, 2048]", table)
    if "gemms" in document and table:
        problems.add("phases", "no phases beside [[gemms]], which have their own n", ", ".join(table))
    phases: dict[str, tuple[int, ...]] = {}
    for name, counts in table.items():
        path = _join("phases", name)
        if not _WORD.fullmatch(name):
            problems.add(path, "a name of letters, digits, _, . and -", name)
        phases[name] = ()
        if not isinstance(counts, list) or not counts:
            problems.add(path, "a list of token counts", counts)
            continue
        issues = [(i, issue) for i, value in enumerate(counts) if (issue := size_issue("", value))]
        for i, issue in issues:
            problems.add(f"{path}[{i}]", *issue[1:])
        if not issues and len(set(counts)) < len(counts):
            problems.add(path, "each token count once", counts)
        elif not issues:
            phases[name] = tuple(counts)
    return phases


def _tables(
    problems: ProblemList, document: dict[str, Any], key: str, valid: tuple[str, ...], required: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Path and known entries of each table of the array ``[[key]]`` that has the required ones."""
    tables = document.get(key, [])
    if not isinstance(tables, list) or (key in document and not tables):
        problems.add(key, f"at least one [[{key}]]", tables)
        return
    for i, table in enumerate(tables):
        path = f"{key}[{i}]"
        if not isinstance(table, dict):
            problems.add(path, "a table", table)
            continue
        _check_keys(problems, path, table, valid)
        missing = [name for name in required.split() if name not in table]
        for name in missing:
            problems.add(path, f"a field {name}", ", ".join(table) or "an empty table")
        if not missing:
            yield path, {name: value for name, value in table.items() if name in valid}


def _layers(
    problems: ProblemList,
    document: dict[str, Any],
    defaults: dict[str, Any],
    phases: dict[str, tuple[int, ...]],
) -> Iterator[Layer]:
    """The good ``[[layers]]``."""
    first: dict[tuple[str, Any], str] = {}
    for path, own in _tables(problems, document, "layers", _LAYER, "name m k"):
        merged = {**dict.fromkeys(_LAYER_ONLY), "n_per_unit": 1, "quantize": True, **defaults, **own}
        extra = {key: merged.pop(key) for key in _LAYER_ONLY}
        grows = frozenset(key for key in _GROW if merged.get(key) == "tokens")
        merged.update(dict.fromkeys(grows, 1))
        per_unit, experts = _batch(problems, path, own, extra)
        if issue := size_issue("n_per_unit", extra["n_per_unit"]):
            problems.add(f"{path}.n_per_unit", *issue[1:])
        if "n" in own and "n_per_unit" in own:
            problems.add(f"{path}.n_per_unit", "no n_per_unit beside a fixed n", own["n_per_unit"])
        if not isinstance(extra["quantize"], bool):
            problems.add(f"{path}.quantize", "true or false", extra["quantize"])
        runs = _layer_phases(problems, path, extra["phases"], phases)
        report(problems, path, {"n": 1, **merged})
        for phase in phases if runs is None else runs:
            other = first.setdefault((phase, str(merged["name"])), path)
            if other != path:
                problems.add(f"{path}.name", f"a unique name ({other} has it too)", merged["name"])
                break
        yield Layer(
            path, merged, frozenset(own), extra["n_per_unit"], runs, extra["quantize"], grows, per_unit, experts
        )


def _batch(
    problems: ProblemList, path: str, own: dict[str, Any], extra: dict[str, Any]
) -> tuple[int, tuple[int, int] | None]:
    """`batch_per_unit` (0 if none) and (experts, experts per token) of a layer, checked."""
    given = {key: extra[key] for key in ("batch_per_unit", "experts", "experts_per_token") if extra[key] is not None}
    before = len(problems.lines)
    for key, value in given.items():
        if issue := size_issue(key, value):
            problems.add(f"{path}.{key}", *issue[1:])
    ways = [key for key in ("batch", "batch_per_unit", "experts") if key in own]
    if len(ways) > 1:
        problems.add(path, "one of batch, batch_per_unit and experts", ", ".join(ways))
    if ("experts" in given) != ("experts_per_token" in given):
        problems.add(path, "experts and experts_per_token together", ", ".join(given))
    if "experts" in given and ("n" in own or "n_per_unit" in own):
        problems.add(path, "no n and no n_per_unit beside experts", "n" if "n" in own else "n_per_unit")
    if len(problems.lines) > before:
        return 0, None
    routing = (given["experts"], given["experts_per_token"]) if "experts" in given else None
    if routing and routing[1] > routing[0]:
        problems.add(f"{path}.experts_per_token", f"at most the {routing[0]} experts", routing[1])
        return 0, None
    return given.get("batch_per_unit", 0), routing


def _others(
    problems: ProblemList, document: dict[str, Any], phases: dict[str, tuple[int, ...]]
) -> Iterator[OtherLayer]:
    """The good ``[[others]]``."""
    first: dict[str, str] = {}
    for path, own in _tables(problems, document, "others", _OTHER, "name op"):
        before = len(problems.lines)
        for key in ("bytes", "flops"):
            if key in own and (issue := polynomial_issue(own[key])):
                problems.add(f"{path}.{key}", *issue)
            elif isinstance(own.get(key), list) and "gemms" in document:
                problems.add(f"{path}.{key}", "a number beside [[gemms]]", own[key])
        values = {key: value for key, value in own.items() if key != "phases"}
        if len(problems.lines) == before:
            try:
                OtherOp(**{**values, "bytes": None, "flops": None})
            except UserError as error:
                for line in error.problems:
                    problems.add_line(f"{problems.where}: {path}: {line}")
        runs = _layer_phases(problems, path, own.get("phases"), phases)
        place = first.setdefault(f"{values['name']}/{sorted(runs or ())}", path)
        if place != path:
            problems.add(f"{path}.name", f"a unique name ({place} has it too)", values["name"])
        yield OtherLayer(path, values, runs)


def _layer_phases(
    problems: ProblemList, path: str, names: Any, phases: dict[str, tuple[int, ...]]
) -> tuple[str, ...] | None:
    """The phases a layer is limited to, or None for all."""
    if names is None:
        return None
    if not isinstance(names, list) or not names:
        problems.add(f"{path}.phases", "a list of phase names", names)
        return ()
    good = []
    for i, name in enumerate(names):
        if isinstance(name, str) and name in phases:
            good.append(name)
        else:
            report_name(problems, f"{path}.phases[{i}]", name, tuple(phases))
    return tuple(dict.fromkeys(good))


def _gemms(problems: ProblemList, document: dict[str, Any], defaults: dict[str, Any]) -> Iterator[Gemm]:
    """The good ``[[gemms]]``."""
    base = {key: value for key, value in defaults.items() if key in GEMM_FIELDS}
    if "gemms" in document and "n_per_unit" in defaults:
        problems.add("defaults.n_per_unit", "no n_per_unit beside [[gemms]]", defaults["n_per_unit"])
    first: dict[str, str] = {}
    for path, own in _tables(problems, document, "gemms", GEMM_FIELDS, "name m n k"):
        if report(problems, path, {**base, **own}):
            continue
        other = first.setdefault(own["name"], path)
        if other != path:
            problems.add(f"{path}.name", f"a unique name ({other} has it too)", own["name"])
        yield Gemm(**{**base, **own})
