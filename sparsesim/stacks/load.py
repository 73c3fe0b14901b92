"""Rule files (TOML, one a stack) → `Stack`; every problem of a file is one line.

A stack is named ``NAME``, ``NAME@VERSION`` or either with ``:TREATMENT`` behind it (``torch-cutlass@2.4:dense``).
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, model_validator

from sparsesim.errors import UserError, nearest, show
from sparsesim.schemas import finding_lines
from sparsesim.stacks.calls import AddedSpec, CatalogueSpec, HostSpec
from sparsesim.stacks.conditions import Condition, Sizes, Strict
from sparsesim.stacks.facts import Setting
from sparsesim.stacks.rules import TREATMENTS, Asks, Behaviour, Rule, Stack
from sparsesim.stacks.versions import parse_version, satisfies
from sparsesim.textfiles import read_toml
from sparsesim.workload import DTYPES

__all__ = ["CODES", "StackFile", "get_stack", "load_stack", "stack_files", "stack_names"]

FOLDER = Path(__file__).resolve().parent / "files"
#: reason codes, in the words of practitioners' reports
CODES = (
    "arch-unsupported", "build-missing", "dtype-unsupported", "pattern-unsupported", "shape-alignment",
    "operand-side", "layout-unsupported", "op-unsupported", "not-converted", "not-enabled", "owned-elsewhere",
    "quant-graph", "version-removed", "not-faster", "numerics-guard",
)  # fmt: skip
#: a framework's own name → the back-end that it takes by default, the first whose versions fit; the newest without one
BACK_ENDS = {
    # _FORCE_CUTLASS in torch/sparse/semi_structured.py: False in 2.1, True from 2.2, False again from 2.6
    "torch": ((">=2.6", "torch-cusparselt"), (">=2.2", "torch-cutlass"), (">=0", "torch-cusparselt")),
}
Treatment = Literal["raise", "dense", "unpruned"]


class RuleSpec(Strict):
    """One rule: where `when` holds, the sparse path needs `needs`; without `needs` it is refused."""

    code: Literal[
        "arch-unsupported", "build-missing", "dtype-unsupported", "pattern-unsupported", "shape-alignment",
        "operand-side", "layout-unsupported", "op-unsupported", "not-converted", "not-enabled", "owned-elsewhere",
        "quant-graph", "version-removed", "not-faster", "numerics-guard",
    ]  # fmt: skip
    text: Annotated[str, Field(min_length=1)]
    source: Annotated[str, Field(min_length=1)]
    when: Condition = Condition()
    needs: Condition | None = None
    treatment: Treatment | None = None


class PaddingSpec(Strict):
    """Sides of the activation that are padded, by type."""

    source: str
    when: Condition = Condition()
    multiple: dict[str, Sizes]


class StackFile(Strict):
    """A rule file.

    Parameters
    ----------
    products : names whose versions count as the stack's own in a report (``torch``, ``pytorch``)
    versions, default : known versions, oldest first; the one taken where none is asked for
    default_text : why that one
    dates : version → month of its release
    builds : name of a build in reports → version and flags it stands for
    """

    name: str
    title: str
    summary: str = ""
    treatment: Treatment
    policy: Literal["search", "heuristic", "first"] = "search"
    dense_stack: str = "cublaslt"
    products: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    default: str = ""
    default_text: str = ""
    dates: dict[str, str] = Field(default_factory=dict)
    builds: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    builder: bool = False
    emulated: bool = False
    output_bytes: dict[str, float]
    rules: tuple[RuleSpec, ...]
    padding: tuple[PaddingSpec, ...] = ()
    catalogue: tuple[CatalogueSpec, ...] = ()
    added: tuple[AddedSpec, ...] = ()
    dense_added: tuple[AddedSpec, ...] = ()
    host: tuple[HostSpec, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> StackFile:
        parsed = [parse_version(version) for version in self.versions]
        if None in parsed or parsed != sorted(parsed, key=lambda item: item or ()):
            raise ValueError("expected versions as dotted numbers, oldest first")
        if bool(self.versions) != bool(self.default) or (self.default and self.default not in self.versions):
            raise ValueError("expected a default out of the versions")
        if set(self.output_bytes) != set(DTYPES):
            raise ValueError(f"expected output_bytes for {', '.join(DTYPES)}")
        if set(self.dates) - set(self.versions):
            raise ValueError("expected dates of known versions only")
        return self

    def stack(self, version: str = "", treatment: str = "", setting: Setting | None = None) -> Stack:
        """The stack at `version` (default: the file's), in `setting`; raises UserError for an unknown version."""
        chosen = self._version(version)
        given = setting or Setting()
        own = Setting(chosen, given.caller, given.caller_version, given.flags, given.layout, given.weight)
        name = self.name + (f"@{chosen}" if version and chosen != self.default else "")
        return Stack(
            name=f"{name}:{treatment}" if treatment and treatment != self.treatment else name,
            title=self.title,
            rules=tuple(
                Rule(
                    rule.code,
                    rule.text,
                    rule.source,
                    Asks(rule.when, rule.needs, own),
                    treatment or rule.treatment,
                    where(rule.when),
                )
                for rule in self.rules
                if _there(rule.when, chosen)
            ),
            policy=self.policy,
            output=self.output_bytes.__getitem__,
            dense_stack=self.dense_stack,
            base=self.name,
            version=chosen,
            versions=self.versions,
            treatment=treatment or self.treatment,
            setting=own,
            behaviour=Behaviour(
                padding=tuple((item.when, dict(item.multiple)) for item in self.padding if _there(item.when, chosen)),
                catalogue=tuple(item for item in self.catalogue if _there(item.when, chosen)),
                added=tuple(item for item in self.added if _there(item.when, chosen)),
                dense_added=tuple(item for item in self.dense_added if _there(item.when, chosen)),
                host=tuple(item for item in self.host if _there(item.when, chosen)),
                builder=self.builder,
                emulated=self.emulated,
            ),
        )

    def _version(self, version: str) -> str:
        if not version:
            return self.default
        wanted = parse_version(version)
        known = [parse_version(item) or () for item in self.versions]
        series = [item[: len(wanted or ())] for item in known]
        if wanted is None or not known or (not known[0] <= wanted <= known[-1] and wanted not in series
                                           and wanted[: len(known[-1])] != known[-1]):  # fmt: skip
            listed = f"{self.versions[0]} to {self.versions[-1]}" if known else "no version: this stack has none"
            raise UserError(f"stack {self.name}: version: expected {listed}, found {show(version)}")
        return version


def _there(when: Condition, version: str) -> bool:
    """Whether a part with condition `when` is there in `version` at all."""
    return when.version is None or satisfies(version, when.version)


def where(when: Condition) -> str:
    """For which calls a rule is there, in short: the fields of its condition."""
    given = when.model_dump(exclude_none=True)
    words = []
    for name, value in given.items():
        if isinstance(value, dict):
            value = [f"{side} {size}" for side, size in value.items()]
        text = ", ".join(map(str, value)) if isinstance(value, tuple | list) else value
        words.append(f"{name} {text}" if not isinstance(value, bool) else f"{name} {'yes' if value else 'no'}")
    return "; ".join(words)


def stack_files() -> list[Path]:
    """The packaged rule files, sorted by name."""
    return sorted(FOLDER.glob("*.toml"))


def stack_names() -> list[str]:
    """Names of the packaged stacks, sorted."""
    return list(_packaged())


@lru_cache(maxsize=1)
def _packaged() -> tuple[str, ...]:
    """The names; a stack is looked up for every op, and its folder is read once."""
    return tuple(path.stem for path in stack_files())


@lru_cache(maxsize=128)
def load_stack(path: Path) -> StackFile:
    """Read one rule file.

    Raises
    ------
    UserError
        No such file, no TOML, or anything that the schema does not know: every problem, one line each.
    """
    data = read_toml(path, "a readable rule file")
    try:
        return StackFile(**data)
    except ValidationError as err:
        raise UserError(finding_lines(str(path), map(dict, err.errors()), StackFile)) from None


def get_stack(name: str, setting: Setting | None = None) -> Stack:
    """The stack called `name`: packaged, or a path to a rule file; with ``@VERSION`` and ``:TREATMENT``.

    ``torch`` is the back-end that PyTorch takes by default in that version.

    Raises
    ------
    UserError
        An unknown name (with the nearest valid one), version or treatment.
    """
    whole, _, treatment = name.partition(":")
    base, at, version = whole.partition("@")
    if treatment and treatment not in TREATMENTS:
        raise UserError(
            f"stack {base}: treatment: expected one of {', '.join(TREATMENTS)}, found {show(treatment)}"
            + nearest(treatment, TREATMENTS)
        )
    if base in BACK_ENDS:
        wanted = version if parse_version(version) else ""
        base = next(stack for versions, stack in BACK_ENDS[base] if not wanted or satisfies(wanted, versions))
    path = Path(base) if base.endswith(".toml") else FOLDER / f"{base}.toml"
    if not base.endswith(".toml") and base not in _packaged():
        known = [*stack_names(), *BACK_ENDS]
        raise UserError(f"stack: expected one of {', '.join(known)}, found {name!r}{nearest(base, known)}")
    if at and not version:
        raise UserError(f"stack {base}: version: expected a version after @, found none")
    return load_stack(path).stack(version, treatment, setting)
