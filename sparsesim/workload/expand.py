"""What a caller asks of a workload file, and its layers expanded into ops.

Called by the readers of TOML files and by the loader; nothing here opens a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sparsesim.errors import Problem, ProblemList, UserError, nearest
from sparsesim.workload.ops import Gemm, GemmError, issue_line
from sparsesim.workload.others import OtherOp, polynomial

__all__ = [
    "Layer",
    "OtherLayer",
    "Overrides",
    "Selection",
    "expand",
    "expand_others",
    "report",
    "report_name",
    "routed",
    "select_gemms",
    "select_phases",
]


@dataclass(frozen=True)
class Overrides:
    """What a caller wants instead of what a file says.

    Parameters
    ----------
    dtype, pattern
        In a list of GEMMs they replace those of every op. In a file of layers they replace the defaults:
        a layer that names its own keeps it, and one with ``quantize = false`` keeps its type when the
        override has fewer than 16 bits. An op of kind ``matmul``, which has no weight, keeps its pattern, and
        its type as if ``quantize = false``.
    """

    dtype: str | None = None
    pattern: str | None = None

    def apply(self, op: Gemm, own: frozenset[str] = frozenset(), quantize: bool = True) -> Gemm:
        """`op` with the overrides, apart from the fields it has of its `own`."""
        narrow = self.dtype in ("i8", "e4m3", "e2m1")
        weight = op.kind != "matmul"
        if self.dtype is not None and "dtype" not in own and ((quantize and weight) or not narrow):
            op = op.with_dtype(self.dtype)
        if self.pattern is not None and "pattern" not in own and weight:
            op = op.with_pattern(self.pattern)
        return op


@dataclass(frozen=True)
class Selection:
    """The part of a workload a caller asks for: a phase by name, a token count, or all (None)."""

    phase: str | None = None
    tokens: int | None = None


@dataclass(frozen=True)
class Layer:
    """One layer of a model before its phases are known.

    Parameters
    ----------
    path
        Place in the file, ``layers[3]``.
    values
        `Gemm` arguments without `n` (unless it is fixed), defaults merged in.
    own
        The fields the layer names itself.
    n_per_unit
        Columns of B per token (or image).
    phases
        The phases it runs in; None for all.
    quantize
        Whether a narrow type asked for by the caller applies.
    grows
        Fields among m, n and k that are the token count itself, as in the scores of attention.
    batch_per_unit
        Independent products per token (attention of decoded tokens); 0 leaves the batch as it is.
    experts
        (experts, experts per token) of a routed layer, see `routed`; None for all others.
    """

    path: str
    values: dict[str, Any]
    own: frozenset[str]
    n_per_unit: int
    phases: tuple[str, ...] | None
    quantize: bool
    grows: frozenset[str] = frozenset()
    batch_per_unit: int = 0
    experts: tuple[int, int] | None = None

    def sizes(self, tokens: int) -> dict[str, Any]:
        """n, and whatever else depends on the number of tokens, at `tokens`."""
        sizes = {"n": tokens * self.n_per_unit, **self.values, **dict.fromkeys(self.grows, tokens)}
        if self.batch_per_unit:
            sizes["batch"] = tokens * self.batch_per_unit
        if self.experts:
            sizes["batch"], sizes["n"] = routed(tokens, *self.experts)
        return sizes


@dataclass(frozen=True)
class OtherLayer:
    """What a model does beside its GEMMs, before its phases are known.

    Parameters
    ----------
    path
        Place in the file, ``others[3]``.
    values
        `OtherOp` arguments; bytes and flops may be coefficients of 1, units and units squared.
    phases
        The phases it runs in; None for all.
    """

    path: str
    values: dict[str, Any]
    phases: tuple[str, ...] | None


def routed(tokens: int, experts: int, per_token: int) -> tuple[int, int]:
    """Experts that `tokens` tokens reach, and tokens of each, under even random routing.

    A token picks `per_token` distinct experts at random, so one expert is left out by all with probability
    (1 - per_token / experts) ** tokens. The first number is the expected count of the others, to the nearest
    integer; the tokens are dealt to them evenly, rounded up. A real router is less even.
    """
    expected = experts * (1.0 - (1.0 - per_token / experts) ** tokens)
    active = min(experts, max(per_token, round(expected)))
    return active, -(-tokens * per_token // active)


def report_name(problems: ProblemList, path: str, name: Any, valid: Sequence[str]) -> None:
    """Report that `name` is none of the `valid` ones, with the nearest of them."""
    line = Problem.line(problems.where, path, "one of " + ", ".join(valid), name)
    problems.add_line(line + nearest(name, valid))


def report(problems: ProblemList, path: str, values: dict[str, Any]) -> list[str]:
    """Report what is impossible about a `Gemm` of `values`; returns the fields."""
    try:
        Gemm(**values)
    except GemmError as error:
        for issue in error.issues:
            problems.add_line(issue_line(problems.where, f"{path}.", issue))
        return [issue[0] for issue in error.issues]
    return []


def select_phases(
    problems: ProblemList, phases: dict[str, tuple[int, ...]], selection: Selection
) -> dict[str, tuple[int, ...]]:
    """The phases asked for. A token count no phase lists needs a phase, which then runs at it."""
    phase, tokens = selection.phase, selection.tokens
    if phase is not None:
        if phase not in phases:
            report_name(problems, "phase", phase, tuple(phases))
            return {}
        phases = {phase: phases[phase]}
    if tokens is None:
        return phases
    listing: dict[str, tuple[int, ...]] = {name: (tokens,) for name, counts in phases.items() if tokens in counts}
    if listing:
        return listing
    if len(phases) == 1:
        return dict.fromkeys(phases, (tokens,))
    listed = "; ".join(f"{name} {', '.join(map(str, counts))}" for name, counts in phases.items())
    problems.add("tokens", f"a listed count ({listed}), or a phase to run it in", tokens)
    return {}


def select_gemms(where: str, gemms: Sequence[Gemm], selection: Selection) -> Sequence[Gemm]:
    """The GEMMs with as many columns as tokens are asked for; there are no phases to choose from.

    Raises `UserError` if a phase is asked for or no op has that many columns.
    """
    problems = ProblemList(where)
    if selection.phase is not None:
        problems.add("phase", "no phase: this is a list of GEMMs", selection.phase)
    chosen = [op for op in gemms if selection.tokens in (None, op.n)]
    if not chosen:
        sizes = sorted({op.n for op in gemms})
        listed = ", ".join(map(str, sizes[:20])) + (", …" if len(sizes) > 20 else "")
        problems.add("tokens", f"the n of an op, one of {listed}", selection.tokens)
    problems.raise_if_any()
    return chosen


def expand(
    problems: ProblemList, layers: list[Layer], phases: dict[str, tuple[int, ...]], overrides: Overrides
) -> list[Gemm]:
    """One op for each layer, phase and token count; sizes that grow too large are reported once a layer."""
    ops: list[Gemm] = []
    broken: set[str] = set()
    for phase, counts in phases.items():
        for tokens in counts:
            for layer in layers:
                if layer.path in broken or (layer.phases is not None and phase not in layer.phases):
                    continue
                name = f"{phase}-{tokens}/{layer.values['name']}"
                values = {**layer.sizes(tokens), "name": name}
                if report(problems, f"{layer.path} in {phase}-{tokens}", values):
                    broken.add(layer.path)
                else:
                    ops.append(overrides.apply(Gemm(**values), layer.own, layer.quantize))
    _check_overrides(problems, layers, overrides)
    if phases and not ops and not problems.lines:
        problems.add("phases", "a layer that runs in " + ", ".join(phases), "none")
    return ops


def expand_others(problems: ProblemList, layers: list[OtherLayer], phases: dict[str, tuple[int, ...]]) -> list[OtherOp]:
    """One op for each other layer, phase and token count."""
    ops: list[OtherOp] = []
    for phase, counts in phases.items():
        for tokens in counts:
            for layer in layers:
                if layer.phases is not None and phase not in layer.phases:
                    continue
                sizes = {key: polynomial(layer.values.get(key), tokens) for key in ("bytes", "flops")}
                try:
                    ops.append(OtherOp(**{**layer.values, **sizes, "name": f"{phase}-{tokens}/{layer.values['name']}"}))
                except UserError as error:
                    for line in error.problems:
                        problems.add_line(f"{problems.where}: {layer.path}: {line}")
                    return ops
    return ops


def _check_overrides(problems: ProblemList, layers: list[Layer], overrides: Overrides) -> None:
    """Report an override that nothing in the file listens to."""
    for key, value in (("dtype", overrides.dtype), ("pattern", overrides.pattern)):
        if value is not None and all(key in layer.own for layer in layers):
            problems.add(key, f"a layer that takes its {key} from the defaults", "none")
