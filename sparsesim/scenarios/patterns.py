"""Patterns side by side on equal hardware, and denser patterns run as 2:4 on a longer k (K-expansion).

K-expansion (SlideSparse, arXiv 2603.05232): a Z:L row, L even and Z at most L - 2, is covered by L/2 - 1 windows of
four elements that slide by two; each window takes two nonzeros, so that the row becomes a 2:4 row of
4·(L/2 - 1) elements: k grows by γ = 2 - 4/L (6:8: 1.5), and at most 2/γ of speedup is left (6:8: 1.33). B's rows
are repeated to match; that kernel is not part of the times here, neither the model's nor the measured ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from sparsesim.errors import Problem, UserError
from sparsesim.hardware import GpuSpec
from sparsesim.hardware.load import override
from sparsesim.kernels.datapath import family_dtype
from sparsesim.measured import MeasuredRow
from sparsesim.scenarios.scenario import Outcome, Progress, Scenario, run_scenarios
from sparsesim.scenarios.sweep import describe_scenario
from sparsesim.sparsity import Pattern
from sparsesim.validate import error_summary, predict_rows
from sparsesim.workload import Workload

__all__ = [
    "EXPANDED",
    "PATTERNS",
    "ExpansionCheck",
    "PatternRow",
    "PatternTable",
    "check_expansion",
    "compare_patterns",
    "expansion",
]

PATTERNS = ("dense", "1:2", "2:4", "1:4", "2:8", "4:8", "64:2:8")
#: denser patterns that run as 2:4 on a longer k
EXPANDED = ("4:6", "6:8", "8:10")
#: what an expanded pattern runs as
NATIVE = Pattern(2, 4)


@dataclass(frozen=True)
class PatternRow:
    """One pattern.

    here : on the GPU as it is; native : on the GPU with a datapath that runs the pattern itself, all else equal
    expanded : as 2:4 on a longer k, its times against the dense baseline at the pattern's own k; `factor` is γ
    """

    pattern: Pattern
    here: Outcome
    native: Outcome
    expanded: Outcome | None = None
    factor: Fraction | None = None

    @property
    def expanded_speedup(self) -> float | None:
        """Dense time at k over the 2:4 time at γ·k."""
        return None if self.expanded is None else self.here.dense_time_us / self.expanded.time_us

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "pattern": str(self.pattern),
            "kept": self.pattern.kept_fraction,
            "metadata_bits_per_kept": self.pattern.metadata_bits_per_kept,
            "nominal_speedup": self.pattern.nominal_speedup,
            "here": self.here.to_dict(),
            "native": self.native.to_dict(),
            "expansion": None if self.factor is None else float(self.factor),
            "expanded": None if self.expanded is None else self.expanded.to_dict(),
            "expanded_speedup": self.expanded_speedup,
        }


@dataclass(frozen=True)
class PatternTable:
    """Patterns at one shape on one GPU."""

    scenario: Scenario
    rows: tuple[PatternRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        about = describe_scenario(self.scenario)
        about.pop("pattern", None)
        return {**about, "patterns": [row.to_dict() for row in self.rows]}


@dataclass(frozen=True)
class ExpansionCheck:
    """Measured 2:4 timings at γ·k, paired with dense ones at k, against the model.

    pattern, factor : the expanded pattern and its γ
    pairs : (row of the expanded product, measured speedup, predicted speedup)
    groups : errors by GPU and type: of the time (male, bias) and of the speedup over dense
    unpaired : expanded rows without a measured dense product at k
    """

    pattern: Pattern
    factor: Fraction
    pairs: tuple[tuple[MeasuredRow, float, float], ...]
    groups: tuple[dict[str, Any], ...]
    unpaired: int

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "pattern": str(self.pattern),
            "expansion": float(self.factor),
            "groups": list(self.groups),
            "unpaired": self.unpaired,
            "rows": [
                {
                    "gpu": row.gpu, "dtype": row.dtype, "m": row.m, "n": row.n, "k": int(row.k / self.factor),
                    "expanded_k": row.k, "measured_speedup": measured, "predicted_speedup": predicted,
                }
                for row, measured, predicted in self.pairs
            ],
        }  # fmt: skip


def expansion(pattern: Pattern) -> Fraction | None:
    """γ by which k grows when `pattern` runs as 2:4 on a longer k; 1 if it runs as 2:4 anyway, None if it cannot."""
    if pattern.runs_as(NATIVE):
        return Fraction(1)
    if pattern.is_dense or pattern.is_vnm or pattern.is_pair or pattern.m % 2 or pattern.n > pattern.m - 2:
        return None
    return 2 - Fraction(4, pattern.m)


def compare_patterns(
    scenario: Scenario,
    patterns: Sequence[str] = PATTERNS,
    expanded: Sequence[str] = EXPANDED,
    progress: Progress | None = None,
    jobs: int | None = None,
) -> PatternTable:
    """Run one GEMM under several patterns: as the GPU has them, as if it had them all, and expanded along k.

    Parameters
    ----------
    scenario : Scenario
        Of one GEMM; its pattern is replaced.
    patterns : sequence of str
    expanded : sequence of str
        Patterns that also run as 2:4 on a longer k; added to `patterns` if they are not among them.
    progress, jobs
        As for `run_scenarios`.

    Raises
    ------
    UserError
        Unknown patterns, ones that cannot be expanded, a k that is no multiple of a group, or a workload.
    """
    if not scenario.single:
        raise UserError("patterns: expected one GEMM, found a workload")
    lines: list[str] = []
    parsed: dict[Pattern, Fraction | None] = {}
    for text in dict.fromkeys([*patterns, *expanded]):
        try:
            pattern = Pattern.parse(text)
        except UserError as error:
            lines += error.problems
            continue
        factor = expansion(pattern) if text in expanded else None
        if text in expanded and factor is None:
            lines.append(Problem.line("expand", "", "Z:L with L even and Z at most L - 2", text))
        elif factor is not None and scenario.op.k % pattern.m:
            lines.append(Problem.line("expand", text, f"k as a multiple of {pattern.m}", scenario.op.k))
        parsed[pattern] = factor
    if lines:
        raise UserError(lines)
    scenarios = []
    for pattern, factor in parsed.items():
        here = _with(scenario, pattern, scenario.op.k)
        scenarios += [here, replace(here, gpu=_with_native(scenario.gpu, scenario.op.dtype, pattern))]
        if factor is not None:
            scenarios.append(_with(scenario, NATIVE, int(scenario.op.k * factor)))
    outcomes = iter(run_scenarios(scenarios, progress, jobs))
    rows = []
    for pattern, factor in parsed.items():
        as_is, as_native = next(outcomes), next(outcomes)
        rows.append(PatternRow(pattern, as_is, as_native, next(outcomes) if factor is not None else None, factor))
    return PatternTable(scenario, tuple(rows))


def check_expansion(
    rows: Sequence[MeasuredRow],
    pattern: str = "6:8",
    min_us: float = 10.0,
    progress: Progress | None = None,
    jobs: int | None = None,
) -> ExpansionCheck:
    """Compare the model with measured 2:4 products on a k that an expansion made longer.

    A sparse row at k' is taken for an expanded product of `pattern` if there is a dense one of the same GPU, shape,
    type and protocol at k = k'/γ, and none at k' itself. The dense time at k over the sparse time at k' is the
    speedup.

    Parameters
    ----------
    rows : sequence of MeasuredRow
        Expanded sparse rows, and the dense ones to pair them with.
    min_us : float
        Sparse rows measured below this [µs] are left out.
    progress, jobs
        As for `run_scenarios`.

    Raises
    ------
    UserError
        A pattern that cannot be expanded, or no pair.
    """
    parsed = Pattern.parse(pattern)
    factor = expansion(parsed)
    if factor is None or factor == 1:
        raise UserError(Problem.line("expand", "", "Z:L with L even and Z at most L - 2, which 2:4 lacks", pattern))
    dense = {(*_shape(row), row.k): row for row in rows if not row.is_sparse}
    expanded = [
        row
        for row in rows
        if row.pattern == str(NATIVE) and row.time_us >= min_us and (*_shape(row), row.k) not in dense
    ]
    bases = [dense.get((*_shape(row), Fraction(row.k) / factor)) for row in expanded]
    pairs = [(base, row) for base, row in zip(bases, expanded, strict=True) if base is not None]
    if not pairs:
        raise UserError(f"measured: expected sparse rows at {float(factor):g} times the k of dense ones, found none")
    both = [row for pair in pairs for row in pair]
    told = None if progress is None else lambda done: progress(done, len(both))
    predictions, _ = predict_rows(both, progress=told, jobs=jobs)
    times = {(p.row.file, p.row.line): p.predicted_us for p in predictions}
    found = []
    for base, row in pairs:
        slow, fast = (times.get((item.file, item.line)) for item in (base, row))
        if slow is not None and fast is not None:
            found.append((row, base.time_us / row.time_us, slow / fast, fast))
    groups = []
    for gpu, dtype in sorted({(row.gpu, row.dtype) for row, *_ in found}):
        mine = [item for item in found if (item[0].gpu, item[0].dtype) == (gpu, dtype)]
        time = error_summary([item[3] for item in mine], [item[0].time_us for item in mine])
        speedup = error_summary([item[2] for item in mine], [item[1] for item in mine])
        groups.append(
            {
                "gpu": gpu, "dtype": dtype, "rows": len(mine), "time_male": time["male"], "time_bias": time["bias"],
                "speedup_male": speedup["male"], "speedup_bias": speedup["bias"],
                "measured_median": float(np.median([item[1] for item in mine])),
                "predicted_median": float(np.median([item[2] for item in mine])),
            }
        )  # fmt: skip
    pairs_found = tuple((row, measured, predicted) for row, measured, predicted, _ in found)
    return ExpansionCheck(parsed, factor, pairs_found, tuple(groups), len(expanded) - len(pairs))


def _shape(row: MeasuredRow) -> tuple[object, ...]:
    return (row.gpu, row.m, row.n, row.batch, row.dtype, row.timing, row.l2, row.clock)


def _with(scenario: Scenario, pattern: Pattern, k: int) -> Scenario:
    old = scenario.workload
    op = replace(scenario.op, pattern=str(pattern), k=k)
    return replace(scenario, workload=Workload(old.name, old.description, old.source, (op,)))


def _with_native(gpu: GpuSpec, dtype: str, pattern: Pattern) -> GpuSpec:
    """The GPU with `pattern` among its native ones; itself if it has it, or for dense."""
    key = family_dtype(dtype)
    known = gpu.tensor.native_patterns.get(key, ())
    if pattern.is_dense or str(pattern) in known or key not in gpu.tensor.native_patterns:
        return gpu
    return override(gpu, {f"tensor.native_patterns.{key}": (*known, str(pattern))})
