"""A file of cases (YAML or TOML), one report each: what was run, and what a correct answer says.

m, n, k as everywhere: D[m × n] = A[m × k]·B[k × n], A the weight and n the tokens; null where a report is about a
whole model. Every problem of a file is one line, *file: case: field: expected …, found …*.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sparsesim.errors import Problem, UserError
from sparsesim.schemas import finding_lines
from sparsesim.textfiles import parse_toml, read_text

__all__ = ["LEVELS", "LOSSES", "Case", "Expectation", "load_cases"]

LEVELS = ("kernel", "op", "model", "training")
#: losses of a path that runs sparse, in the words of the reports
LOSSES = (
    "host-plan", "pad-n", "pad-copy", "transpose-copy", "alg-default", "legacy-mma", "tile-waste", "memory-bound",
    "runtime-prune", "convert-activations", "epilogue-unfused", "l2-cliff", "power", "baseline",
)  # fmt: skip
#: a file of more cases than this is a mistake
MAX_CASES = 10_000

Size = Annotated[int, Field(ge=1, le=2**31)]
Positive = Annotated[float, Field(gt=0)]


class Expectation(BaseModel):
    """What a correct answer says; a bound that is null asks for nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: Literal["sparse", "dense", "error"]
    reason: Annotated[str, Field(min_length=1)]
    speedup_min: Positive | None = None
    speedup_max: Positive | None = None
    losses: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _ordered(self) -> Expectation:
        low, high = self.speedup_min, self.speedup_max
        if low is not None and high is not None and low > high:
            raise ValueError("expected speedup_min at most speedup_max")
        unknown = [name for name in self.losses if name not in LOSSES]
        if unknown:
            raise ValueError(f"expected losses out of {', '.join(LOSSES)}, found {', '.join(unknown)}")
        return self


class Case(BaseModel):
    """One report.

    Parameters
    ----------
    gpu, stack : names; the stack without version
    stack_version : as the report says it: a number, a range, a date, a build
    level : ``kernel`` = device time of the product, ``op`` = a framework call with its host time, ``model`` = end to
        end, ``training`` = forward and backward
    model : in words, e.g. ``bert-base, 4 x 384 tokens, eager``
    layout, flags : circumstances, where the report gives them; see `sparsesim.stacks.Setting`
    treatment : of ineligible layers, where the user has overridden the stack's
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: Annotated[str, Field(min_length=1, max_length=100)]
    gpu: Annotated[str, Field(min_length=1)]
    stack: Annotated[str, Field(min_length=1)]
    dtype: Annotated[str, Field(min_length=1)]
    expect: Expectation
    m: Size | None = None
    n: Size | None = None
    k: Size | None = None
    batch: Annotated[int, Field(ge=1, le=2**20)] = 1
    pattern: str = "2:4"
    operand: Literal["A", "B"] = "A"
    level: Literal["kernel", "op", "model", "training"] = "op"
    kind: str = "report"
    link: str = ""
    model: str | None = None
    stack_version: str | None = None
    layout: Literal["TN", "NN", "NT", "TT"] | None = None
    flags: tuple[str, ...] = ()
    treatment: Literal["raise", "dense", "unpruned"] | None = None
    confidence: Literal["high", "medium", "low"] = "medium"
    gpu_note: str | None = None
    reported: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _as_text(cls, data: Any) -> Any:
        """A version that YAML took for a number or a date is text."""
        if isinstance(data, dict) and data.get("stack_version") is not None:
            data = {**data, "stack_version": str(data["stack_version"])}
        return data

    @property
    def shape(self) -> tuple[int, int, int] | None:
        """(m, n, k), or None where the report gives no shape."""
        if self.m is None or self.n is None or self.k is None:
            return None
        return self.m, self.n, self.k


def load_cases(path: str | Path) -> tuple[Case, ...]:
    """Read a file of cases: a list, or a table with ``cases``.

    Raises
    ------
    UserError
        Unreadable, not YAML or TOML, a field that is missing or wrong, two cases of one id: every problem, one line
        each.
    """
    path = Path(path)
    document = _read(path)
    if isinstance(document, dict):
        document = document.get("cases")
    if not isinstance(document, list) or not 1 <= len(document) <= MAX_CASES:
        found = f"{len(document)} entries" if isinstance(document, list) else type(document).__name__
        raise UserError(Problem.line(str(path), "", f"a list of 1 to {MAX_CASES} cases", found))
    cases: list[Case] = []
    lines: list[str] = []
    for position, item in enumerate(document):
        name = item.get("id") if isinstance(item, dict) else None
        at = f"{path}: case {name if isinstance(name, str) else position + 1}"
        if not isinstance(item, dict):
            lines.append(Problem.line(at, "", "a table", item))
            continue
        try:
            cases.append(Case(**item))
        except ValidationError as err:
            lines += finding_lines(at, map(dict, err.errors()), Case)
        except TypeError:
            lines.append(Problem.line(at, "", "names as keys", sorted(map(str, item))))
    seen: set[str] = set()
    for case in cases:
        if case.id in seen:
            lines.append(Problem.line(f"{path}: case {case.id}", "id", "an id of its own", case.id))
        seen.add(case.id)
    if lines:
        raise UserError(lines)
    return tuple(cases)


def _read(path: Path) -> Any:
    suffix = path.suffix.lower()
    if suffix not in (".toml", ".yaml", ".yml"):
        raise UserError(f"{path}: expected cases in .yaml, .yml or .toml, found {suffix or 'no ending'}")
    text = read_text(path, "a readable file of cases")
    if suffix == ".toml":
        return parse_toml(text, path)
    try:
        import yaml
    except ImportError:
        raise UserError(f"{path}: expected PyYAML to read it (pip install 'sparsesim[sweep]'), found none") from None
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as err:
        raise UserError(f"{path}: expected valid YAML, found an error: {' '.join(str(err).split())}") from None
