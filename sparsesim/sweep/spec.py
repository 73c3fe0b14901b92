"""Sweep files (TOML, YAML): which settings are fixed, which vary over what, and by which design.

A setting is the name of an argument of `simulate` (``gpu``, ``workload``, ``tokens``, ``pattern``, ``stack``, …), of
`gemm` (``m``, ``n``, ``k``, ``batch``), or the path of a hardware parameter (``sm.count``, ``dram.bytes_per_s``).
A hardware value without ``unit`` is in the parameter's canonical unit; ``unit = "x"`` multiplies the GPU's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparsesim.errors import ProblemList, UserError, nearest
from sparsesim.hardware import GpuSpec, load_gpu
from sparsesim.lowering import POLICIES
from sparsesim.protocol import Protocol
from sparsesim.sparsity import Pattern
from sparsesim.stacks import get_stack
from sparsesim.sweep.parameters import FACTOR, is_count, sections, unit, value_at
from sparsesim.textfiles import parse_toml, read_text
from sparsesim.units import is_number, to_canonical, units_of
from sparsesim.workload import DTYPES

__all__ = ["DESIGNS", "MAX_POINTS", "Axis", "Budget", "SweepSpec", "read_spec"]

DESIGNS = ("grid", "list", "random", "latin-hypercube", "sobol")
MAX_POINTS = 2_000_000
#: settings of a point that are no hardware parameter -> type of their column
SETTINGS = {
    "gpu": "string",
    "workload": "string",
    "phase": "string",
    "tokens": "int64",
    "m": "int64",
    "n": "int64",
    "k": "int64",
    "batch": "int64",
    "dtype": "string",
    "pattern": "string",
    "stack": "string",
    "baseline": "string",
    "timing": "string",
    "l2": "string",
    "clock": "string",
    "streams": "int64",
    "graph": "bool",
    "repeats": "int64",
}
GEMM_ONLY = ("m", "n", "k", "batch")
WORKLOAD_ONLY = ("phase", "tokens", "streams", "graph", "repeats")
_TOP = ("name", "description", "design", "fixed", "axes", "points", "proxies", "optimise", "budgets")
_AXIS = ("values", "low", "high", "steps", "step", "scale", "unit")
_DESIGN = ("kind", "points", "seed")
_OPTIMISE = ("objective", "generations", "population", "seed")
_BUDGET = ("parameters", "limit")


@dataclass(frozen=True)
class Axis:
    """One setting and what it may be: `values`, or all from `low` to `high`.

    unit : of a hardware parameter's values: ``x`` (times the GPU's own) or its canonical unit, which they have already
    been converted to. integer : only whole numbers. step : of a range, distance between the values that are taken
    (0 = any). scale : ``linear`` or ``log``, how a range is divided
    """

    name: str
    values: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    steps: int = 0
    step: float = 0.0
    scale: str = "linear"
    unit: str = ""
    integer: bool = False

    @property
    def is_hardware(self) -> bool:
        """Whether it is a parameter of the GPU."""
        return self.name not in SETTINGS

    @property
    def is_range(self) -> bool:
        """Whether it has a range instead of values."""
        return not self.values


@dataclass(frozen=True)
class Budget:
    """Σ weight × (parameter / the GPU's own) ≤ `limit`."""

    weights: Mapping[str, float]
    limit: float


@dataclass(frozen=True)
class SweepSpec:
    """A sweep file, checked.

    rows : the points of a ``list`` design; otherwise empty
    bases : GPUs by the name that the file gives them
    proxies : name → weights by hardware path; see `evaluate.proxy`
    document : the file as plain data, for the record
    """

    name: str
    description: str
    kind: str
    points: int
    seed: int
    fixed: Mapping[str, Any]
    axes: tuple[Axis, ...]
    rows: tuple[Mapping[str, Any], ...]
    units: Mapping[str, str]
    bases: Mapping[str, GpuSpec] = field(repr=False)
    proxies: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    objective: str = "speedup"
    generations: int = 20
    population: int = 20
    budgets: tuple[Budget, ...] = ()
    document: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """All settings: fixed ones first, in the order of the file."""
        varied = [name for row in self.rows for name in row] if self.rows else [axis.name for axis in self.axes]
        return tuple(dict.fromkeys([*self.fixed, *varied]))

    def is_factor(self, name: str) -> bool:
        """Whether the values of a hardware parameter multiply the GPU's own."""
        return self.units.get(name) == FACTOR


def read_spec(path: str | Path, search: bool = False) -> SweepSpec:
    """Read and check a sweep file (``.toml``, ``.yaml``, ``.yml``).

    `search` says that it is for `optimise`, which needs axes and a section ``[optimise]`` and has no design.

    Raises
    ------
    UserError
        Every problem of the file, one line each.
    """
    path = Path(path)
    return _Reader(path, _parse(path), search).read()


def _parse(path: Path) -> dict[str, Any]:
    suffix = path.suffix.lower()
    if suffix not in (".toml", ".yaml", ".yml"):
        raise UserError(f"{path}: expected a sweep file ending in .toml, .yaml or .yml, found {suffix or 'no ending'}")
    text = read_text(path, "a readable sweep file")
    if suffix == ".toml":
        return parse_toml(text, path)
    import yaml

    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as err:
        raise UserError(f"{path}: expected valid YAML, found an error: {' '.join(str(err).split())}") from None
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise UserError(f"{path}: expected a table of sections, found {type(document).__name__}")
    return document


class _Reader:
    """Checks one document; every problem is collected before any is raised."""

    def __init__(self, path: Path, document: dict[str, Any], search: bool) -> None:
        self.problems = ProblemList(str(path))
        self.folder = path.parent
        self.document = document
        self.search = search
        self.stem = path.stem
        self.units: dict[str, str] = {}

    def read(self) -> SweepSpec:
        """The checked sweep."""
        self._keys("", self.document, _TOP)
        name, text = self.document.get("name", self.stem), self.document.get("description", "")
        for key, value in (("name", name), ("description", text)):
            if not isinstance(value, str):
                self.problems.add(key, "text", value)
        design = self._table("design")
        self._keys("design", design, _DESIGN)
        kind = design.get("kind", "list" if "points" in self.document else "grid")
        if kind not in DESIGNS:
            self.problems.add("design.kind", f"one of {', '.join(DESIGNS)}{nearest(str(kind), DESIGNS)}", kind)
        sampled = kind in ("random", "latin-hypercube", "sobol") and not self.search
        points = self._int("design.points", design.get("points", 0 if not sampled else None), 0, MAX_POINTS)
        if sampled and points == 0 and "points" in design:
            self.problems.add("design.points", "at least 1", points)
        if not sampled and design.get("points"):
            self.problems.add("design.points", f"no number of points for a {kind} design", points)
        seed = self._int("design.seed", design.get("seed", 0), 0, 2**32 - 1)
        fixed = self._fixed()
        axes = self._axes(kind)
        rows = self._rows(kind)
        self._settings(fixed, axes, rows)
        bases = self._bases(fixed, axes, rows)
        proxies = self._proxies(bases)
        search = self._search(axes)
        self.problems.raise_if_any()
        return SweepSpec(
            name, text, "optimise" if self.search else kind, points, search.pop("seed", seed), fixed, axes, rows,
            self.units, bases, proxies, **search, budgets=self._budgets(bases, axes), document=self.document,
        )  # fmt: skip

    # --- pieces of the file ---

    def _keys(self, where: str, table: Mapping[str, Any], valid: tuple[str, ...]) -> None:
        for key in table:
            if key not in valid:
                path = f"{where}.{key}" if where else str(key)
                self.problems.add(path, f"one of {', '.join(valid)}{nearest(str(key), valid)}", table[key])

    def _table(self, name: str) -> dict[str, Any]:
        table = self.document.get(name, {})
        if isinstance(table, dict):
            return table
        self.problems.add(name, "a table", table)
        return {}

    def _int(self, path: str, value: Any, low: int, high: int) -> int:
        if type(value) is int and low <= value <= high:
            return value
        self.problems.add(path, f"an integer from {low} to {high}", "nothing" if value is None else value)
        return low

    def _flat(self, table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
        """``{sm: {count: …}}`` and ``{"sm.count": …}`` alike as ``sm.count``; an axis' own table stays whole."""
        flat: dict[str, Any] = {}
        for key, value in table.items():
            path = f"{prefix}{key}"
            nested = isinstance(value, dict) and path not in SETTINGS and unit(path) is None
            nested = nested or (isinstance(value, dict) and not any(name in _AXIS for name in value))
            flat.update(self._flat(value, f"{path}.") if nested and value else {path: value})
        return flat

    def _known(self, where: str, name: str) -> bool:
        """Whether `name` is a setting or looks like a hardware path; otherwise a problem is recorded."""
        if name in SETTINGS or unit(name) is not None:
            return True
        section = name.partition(".")[0]
        valid = [*SETTINGS, *(f"{s}.{f}" for s, model in sections().items() for f in model.model_fields)]
        if section in sections() and "." in name:
            valid = [f"{section}.{f}" for f in sections()[section].model_fields]
        self.problems.add(f"{where}.{name}", f"a setting or a hardware parameter{nearest(name, valid)}", "no such one")
        return False

    def _unit(self, where: str, name: str, given: Any) -> float:
        """Factor from the unit that a value is given in to the canonical one (1 for ``x``); remembers which."""
        canonical = unit(name) if name not in SETTINGS else None
        if given is None:
            given = canonical or ""
        elif canonical is None or not (given == FACTOR or given in units_of(canonical)):
            accepted = [FACTOR, *units_of(canonical)] if canonical else ["no unit"]
            self.problems.add(f"{where}.unit", f"one of {', '.join(accepted)}", given)
            given = canonical or ""
        if canonical is None:
            return 1.0
        mine = FACTOR if given == FACTOR else canonical
        if self.units.setdefault(name, mine) != mine:
            self.problems.add(where, "one unit for all its values", given)
        return 1.0 if given == FACTOR else to_canonical(1.0, given, canonical)

    def _scaled(self, name: str, value: Any, factor: float) -> Any:
        if not is_number(value) or name in SETTINGS or (factor == 1.0 and isinstance(value, int) and is_count(name)):
            return value
        return float(value) * factor

    def _fixed(self) -> dict[str, Any]:
        fixed: dict[str, Any] = {}
        for name, value in self._flat(self._table("fixed")).items():
            if not self._known("fixed", name):
                continue
            given = None
            if isinstance(value, dict):
                self._keys(f"fixed.{name}", value, ("values", "unit"))
                given, value = value.get("unit"), value.get("values")
            fixed[name] = self._scaled(name, value, self._unit(f"fixed.{name}", name, given))
        return fixed

    def _axes(self, kind: str) -> tuple[Axis, ...]:
        table = self._flat(self._table("axes"))
        if kind == "list" and table and not self.search:
            self.problems.add("axes", "no axes beside a list of points", ", ".join(table))
        if (kind != "list" or self.search) and not table:
            self.problems.add("axes", "at least one axis", "none")
        return tuple(
            axis for name, raw in table.items() if self._known("axes", name) and (axis := self._axis(name, raw, kind))
        )

    def _axis(self, name: str, raw: Any, kind: str) -> Axis | None:
        where = f"axes.{name}"
        table = raw if isinstance(raw, dict) else {"values": raw}
        before = len(self.problems.lines)
        self._keys(where, table, _AXIS)
        factor = self._unit(where, name, table.get("unit"))
        whole = SETTINGS.get(name) == "int64" or (is_count(name) and self.units.get(name) != FACTOR)
        if ("values" in table) == ("low" in table or "high" in table):
            self.problems.add(where, "either values, or low and high", ", ".join(table) or "nothing")
            return None
        if "values" in table:
            values = table["values"]
            if not isinstance(values, list) or not values:
                self.problems.add(f"{where}.values", "a list of values", values)
                return None
            values = tuple(self._scaled(name, value, factor) for value in values)
            if len({repr(value) for value in values}) < len(values):
                self.problems.add(f"{where}.values", "each value once", table["values"])
            return Axis(name, values, unit=self.units.get(name, ""), integer=whole)
        low, high = table.get("low"), table.get("high")
        step, scale = table.get("step", 1 if whole else 0), table.get("scale", "linear")
        if name in SETTINGS and not whole:
            self.problems.add(where, "values: it is no number", "a range")
        elif not (is_number(low) and is_number(high)) or low >= high:
            self.problems.add(where, "numbers low < high", {"low": low, "high": high})
        elif scale not in ("linear", "log") or (scale == "log" and low <= 0):
            self.problems.add(f"{where}.scale", "linear, or log of a range above 0", scale)
        elif not is_number(step) or step < 0 or (whole and step < 1):
            self.problems.add(f"{where}.step", "a distance between values", step)
        steps = table.get("steps", 0)
        if kind == "grid" and not self.search:
            steps = self._int(f"{where}.steps", steps or None, 2, MAX_POINTS)
        elif "steps" in table:
            self.problems.add(f"{where}.steps", "no steps outside a grid", steps)
        if len(self.problems.lines) > before:
            return None
        assert low is not None
        assert high is not None
        return Axis(
            name, (), float(low) * factor, float(high) * factor, steps, float(step) * factor, scale,
            self.units.get(name, ""), whole,
        )  # fmt: skip

    def _rows(self, kind: str) -> tuple[dict[str, Any], ...]:
        raw = self.document.get("points", [])
        if kind != "list" or self.search:
            if raw:
                self.problems.add("points", f"no list of points beside a {kind} design", "some")
            return ()
        if not isinstance(raw, list) or not raw or not all(isinstance(row, dict) for row in raw):
            self.problems.add("points", "at least one [[points]]", raw)
            return ()
        rows = []
        for number, row in enumerate(raw):
            flat = {}
            for name, value in self._flat(row).items():
                where = f"points[{number}]"
                if self._known(where, name):
                    given, value = (
                        (value.get("unit"), value.get("values")) if isinstance(value, dict) else (None, value)
                    )
                    flat[name] = self._scaled(name, value, self._unit(f"{where}.{name}", name, given))
            rows.append(flat)
        for number, row in enumerate(rows):
            if missing := set(rows[0]) ^ set(row):
                self.problems.add(f"points[{number}]", "the settings of points[0]", sorted(missing))
        return tuple(rows)

    # --- checks across them ---

    def _settings(self, fixed: Mapping[str, Any], axes: tuple[Axis, ...], rows: tuple[dict[str, Any], ...]) -> None:
        varied = list(rows[0]) if rows else [axis.name for axis in axes]
        for name in varied:
            if name in fixed:
                self.problems.add(f"fixed.{name}", "a setting that no axis varies", fixed[name])
        names = {*fixed, *varied}
        if "gpu" not in names:
            self.problems.add("fixed.gpu", "a GPU, fixed or varied", "none")
        if ("workload" in names) == ("m" in names):
            self.problems.add("fixed", "either a workload, or m, n and k", ", ".join(sorted(names)))
        elif "m" in names and not {"n", "k"} <= names:
            self.problems.add("fixed", "m, n and k", ", ".join(sorted(names)))
        for name in WORKLOAD_ONLY if "m" in names else GEMM_ONLY:
            if name in names:
                self.problems.add(f"fixed.{name}", "a setting of a " + ("GEMM" if "m" in names else "workload"), name)
        for where, name, value in self._values(fixed, axes, rows):
            self._check_value(where, name, value)

    @staticmethod
    def _values(
        fixed: Mapping[str, Any], axes: tuple[Axis, ...], rows: tuple[dict[str, Any], ...]
    ) -> list[tuple[str, str, Any]]:
        found = [(f"fixed.{name}", name, value) for name, value in fixed.items()]
        found += [(f"axes.{axis.name}", axis.name, value) for axis in axes for value in axis.values]
        return found + [(f"points[{i}].{name}", name, row[name]) for i, row in enumerate(rows) for name in row]

    def _check_value(self, where: str, name: str, value: Any) -> None:
        kind = SETTINGS.get(name)
        if kind is None:
            if self.units.get(name) == FACTOR and (not is_number(value) or value <= 0):
                self.problems.add(where, "a factor above 0", value)
            elif isinstance(value, int | float) and not isinstance(value, bool) and not is_number(value):
                self.problems.add(where, "a finite number", value)
            elif not isinstance(value, int | float | str | bool | list):
                self.problems.add(where, "a value", value)
            return
        kinds: dict[str, tuple[type, str]] = {
            "string": (str, "text"),
            "int64": (int, "an integer"),
            "bool": (bool, "true or false"),
        }
        wanted = kinds[kind]
        if type(value) is wanted[0]:
            self._check_word(where, name, value)
        else:
            self.problems.add(where, wanted[1], value)

    def _check_word(self, where: str, name: str, value: Any) -> None:
        try:
            if name == "pattern":
                Pattern.parse(value)
            elif name in ("timing", "l2", "clock"):
                Protocol.parse(**{name: value})
            elif name == "stack":
                get_stack(value)
        except UserError as err:
            for line in err.problems:
                self.problems.add_line(f"{self.problems.where}: {where}: {line}")
        valid: tuple[str, ...] = {"dtype": tuple(DTYPES), "baseline": POLICIES}.get(name, ())
        if valid and value not in valid:
            self.problems.add(where, f"one of {', '.join(valid)}{nearest(value, valid)}", value)

    def _bases(
        self, fixed: Mapping[str, Any], axes: tuple[Axis, ...], rows: tuple[dict[str, Any], ...]
    ) -> dict[str, GpuSpec]:
        bases: dict[str, GpuSpec] = {}
        wanted: dict[str, str] = {}
        for where, name, value in self._values(fixed, axes, rows):
            if name == "gpu" and isinstance(value, str):
                wanted.setdefault(value, where)
        for name, where in wanted.items():
            beside = self.folder / name
            try:
                bases[name] = load_gpu(beside if name.endswith(".toml") and beside.is_file() else name)
            except UserError as err:
                for line in err.problems:
                    self.problems.add_line(f"{self.problems.where}: {where}: {line}")
        hardware = [(w, n) for w, n, _ in self._values(fixed, axes, rows) if n not in SETTINGS]
        hardware += [(f"axes.{axis.name}", axis.name) for axis in axes if axis.is_hardware and axis.is_range]
        for where, name in dict.fromkeys(hardware):
            self._on_all(where, name, bases)
        return bases

    def _on_all(self, where: str, path: str, bases: Mapping[str, GpuSpec]) -> None:
        for gpu in bases.values():
            try:
                value_at(gpu, path)
            except UserError as err:
                self.problems.add_line(f"{self.problems.where}: {where}: {err}")
                return

    def _weights(self, where: str, raw: Any, bases: Mapping[str, GpuSpec]) -> dict[str, float]:
        if not isinstance(raw, dict) or not raw:
            self.problems.add(where, "weights by hardware parameter", raw)
            return {}
        flat = self._flat(raw)
        for path, weight in flat.items():
            if path in SETTINGS or not self._known(where, path):
                continue
            self._on_all(f"{where}.{path}", path, bases)
            if not is_number(weight) or weight <= 0:
                self.problems.add(f"{where}.{path}", "a weight above 0", weight)
        return {path: float(weight) for path, weight in flat.items() if is_number(weight)}

    def _proxies(self, bases: Mapping[str, GpuSpec]) -> dict[str, dict[str, float]]:
        found = {}
        for name, raw in self._table("proxies").items():
            if not str(name).isidentifier():
                self.problems.add(f"proxies.{name}", "a name of letters, digits and _", name)
            found[str(name)] = self._weights(f"proxies.{name}", raw, bases)
        return found

    def _search(self, axes: tuple[Axis, ...]) -> dict[str, Any]:
        table = self._table("optimise")
        self._keys("optimise", table, _OPTIMISE)
        if not self.search:
            return {}
        objective = table.get("objective", "speedup")
        if objective not in ("speedup", "time_us"):
            self.problems.add("optimise.objective", "speedup or time_us", objective)
        if not any(axis.is_range or len(axis.values) > 1 for axis in axes):
            self.problems.add("axes", "at least one axis to search", "none")
        return {
            "objective": objective,
            "generations": self._int("optimise.generations", table.get("generations", 20), 1, 10_000),
            "population": self._int("optimise.population", table.get("population", 20), 5, 10_000),
            "seed": self._int("optimise.seed", table.get("seed", 0), 0, 2**32 - 1),
        }

    def _budgets(self, bases: Mapping[str, GpuSpec], axes: tuple[Axis, ...]) -> tuple[Budget, ...]:
        raw = self.document.get("budgets", [])
        if not isinstance(raw, list):
            self.problems.add("budgets", "a list of [[budgets]]", raw)
            raw = []
        budgets = []
        for number, table in enumerate(raw):
            where = f"budgets[{number}]"
            if not isinstance(table, dict):
                self.problems.add(where, "a table", table)
                continue
            self._keys(where, table, _BUDGET)
            limit = table.get("limit")
            if not is_number(limit) or limit <= 0:
                self.problems.add(f"{where}.limit", "a number above 0", limit)
                limit = 1.0
            budgets.append(Budget(self._weights(f"{where}.parameters", table.get("parameters"), bases), float(limit)))
        self.problems.raise_if_any()
        return tuple(budgets)
