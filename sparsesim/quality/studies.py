"""The studies by name, and quality files as text."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from sparsesim.errors import Problem, ProblemList, UserError, nearest
from sparsesim.quality.pruners import PATTERNS
from sparsesim.quality.record import QualityFile, read_quality

__all__ = ["STUDIES", "file_text", "load_or_run"]

#: study → the extra that it needs
STUDIES = {"digits": "quality-ci", "lm": "quality", "magika": "quality-onnx", "smollm": "quality-llm"}
MAX_SEEDS = 100


def load_or_run(
    source: str,
    seeds: int = 3,
    patterns: Sequence[str] | None = None,
    steps: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> QualityFile:
    """A quality file, or that of a study, which is run.

    Parameters
    ----------
    source : name of a study, or a path
    seeds, patterns, steps : of a study; `steps` are training steps (``lm``) or epochs (``digits``)

    Raises
    ------
    UserError
        Neither, arguments out of range, or a study whose packages are not installed.
    """
    if source not in STUDIES:
        path = Path(source)
        if path.suffix == ".json" or path.exists():
            return read_quality(path)
        expected = f"one of {', '.join(STUDIES)}, or a quality file"
        raise UserError(Problem.line("quality", "", expected, source) + nearest(source, STUDIES))
    problems = ProblemList("quality")
    if not 1 <= seeds <= MAX_SEEDS:
        problems.add("seeds", f"an integer from 1 to {MAX_SEEDS}", seeds)
    if steps is not None and not 1 <= steps <= 10**6:
        problems.add("steps", "an integer from 1 to 1000000", steps)
    for pattern in patterns or ():
        if pattern not in PATTERNS:
            problems.add("pattern", f"one of {', '.join(PATTERNS)}", pattern)
    problems.raise_if_any()
    chosen = tuple(patterns or PATTERNS)
    try:
        if source == "digits":
            from sparsesim.quality.digits import run_digits
            from sparsesim.quality.mlp import MlpBudget

            return run_digits(
                seeds, patterns=chosen, budget=None if steps is None else MlpBudget(steps), progress=progress
            )
        if source == "lm":
            from sparsesim.quality.lm import Budget
            from sparsesim.quality.lm_study import run_lm

            return run_lm(seeds, patterns=chosen, budget=None if steps is None else Budget(steps), progress=progress)
        if source == "smollm":
            from sparsesim.quality.smollm_study import run_smollm

            return run_smollm(patterns=chosen, progress=progress)
        from sparsesim.quality.magika_study import run_magika

        return run_magika(patterns=chosen, progress=progress)
    except ModuleNotFoundError as error:
        raise UserError(
            f"quality {source}: expected the packages of the extra {STUDIES[source]} "
            f"(pip install 'sparsesim[{STUDIES[source]}]'), found no {error.name}"
        ) from None


def file_text(file: QualityFile) -> str:
    """A quality file as JSON, one entry a line; `read_quality` gives it back."""
    document = file.to_dict()
    entries = document.pop("entries")
    for entry in entries:
        if "samples" in entry:  # 1 and 0 of an accuracy without their decimals
            entry["samples"] = [[int(x) if x.is_integer() else x for x in row] for row in entry["samples"]]
    head = json.dumps(document, indent=1)
    lines = ",\n".join("  " + json.dumps(entry, separators=(",", ":")) for entry in entries)
    return f'{head[:-2]},\n "entries": [\n{lines}\n ]\n}}\n'
