"""Who owns what: a file in the manner of CODEOWNERS, in which the last line that matches wins.

    # pattern            owners
    *                    @inference-performance
    mechanism:fallback   @kernels
    class:launch         @runtime
    change:stack         @platform
    prefill-*/qkv        @attention @kernels

A pattern is matched as a shell wildcard against the names of ops and families that a change touches, and, with its
prefix, against mechanisms, first-principles classes, ids of changes and kinds of changes (``kind:pattern``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from sparsesim.errors import ProblemList
from sparsesim.textfiles import read_text

__all__ = ["NOBODY", "Owners", "load_owners"]

NOBODY = "unowned"
PREFIXES = ("mechanism", "class", "change", "kind")


@dataclass(frozen=True)
class Owners:
    """Rules in the order of the file: (pattern, owners)."""

    rules: tuple[tuple[str, str], ...] = ()

    def of(self, subjects: Iterable[str]) -> str:
        """Owners of a thing that goes by any of `subjects`: of the last rule that matches one, else `NOBODY`."""
        names = list(subjects)
        for pattern, owners in reversed(self.rules):
            if any(_matches(pattern, name) for name in names):
                return owners
        return NOBODY


def _matches(pattern: str, subject: str) -> bool:
    # a bare * is everybody's fallback; else a pattern without a prefix means names of ops and families alone
    if pattern == "*":
        return True
    prefixed = subject.partition(":")[0] in PREFIXES and ":" in subject
    return prefixed == (pattern.partition(":")[0] in PREFIXES) and fnmatchcase(subject, pattern)


def load_owners(path: str | Path) -> Owners:
    """Read an owners file.

    Raises
    ------
    UserError
        No such file, lines without an owner, or prefixes that mean nothing: every problem.
    """
    where = str(path)
    text = read_text(Path(path), "an owners file")
    problems = ProblemList(where)
    rules: list[tuple[str, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        pattern, *owners = words
        prefix, colon, _ = pattern.partition(":")
        if colon and prefix.isalpha() and prefix not in PREFIXES:
            problems.add(f"line {number}", f"one of {', '.join(f'{p}:' for p in PREFIXES)} or a name", pattern)
        elif colon and prefix in PREFIXES and pattern == f"{prefix}:":
            problems.add(f"line {number}", f"what of {prefix}: is owned, or {prefix}:* for all", pattern)
        if not owners:
            problems.add(f"line {number}", "a pattern and its owners", line.strip())
        rules.append((pattern, " ".join(owners)))
    problems.raise_if_any()
    return Owners(tuple(rules))
