"""User errors: collected, then raised once, one line each.

Every line reads ``file: path.to.field: expected …, found …``. The CLI prints the lines without a
traceback and exits with status 2. Nothing here knows what is being read; every reader uses it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

__all__ = ["Problem", "ProblemList", "UserError", "nearest"]


class UserError(Exception):
    """A mistake in the user's input, with one line for each problem found."""

    def __init__(self, problems: Iterable[str] | str) -> None:
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))

    def __reduce__(self) -> tuple[Any, ...]:
        # an exception is pickled by its text; kinds of it that take more must come back from a worker too
        return _unpickled, (type(self), self.args, self.__dict__)


def _unpickled(kind: type[UserError], args: tuple[Any, ...], state: dict[str, Any]) -> UserError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


def nearest(name: str, valid: Iterable[str]) -> str:
    """``" (did you mean 'x'?)"`` for the valid name closest to `name`, or an empty string."""
    close = difflib.get_close_matches(str(name), list(valid), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""


def show(value: Any, limit: int = 60) -> str:
    """A short, one-line rendering of a found value."""
    text = repr(value).replace("\n", " ")
    return text if len(text) <= limit else text[: limit - 1] + "…"


class Problem:
    """Builder of one problem line: where it is, what was expected, what was found."""

    @staticmethod
    def line(where: str, path: str, expected: str, found: Any) -> str:
        """Return ``where: path: expected …, found …`` (`path` may be empty)."""
        place = f"{where}: {path}" if path else where
        return f"{place}: expected {expected}, found {show(found)}"


class ProblemList:
    """Collects problems of one input; `raise_if_any` raises them all at once."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.lines: list[str] = []

    def add(self, path: str, expected: str, found: Any) -> None:
        """Record one problem at `path` of this input."""
        self.lines.append(Problem.line(self.where, path, expected, found))

    def add_line(self, line: str) -> None:
        """Record a problem that is already worded."""
        self.lines.append(line)

    def raise_if_any(self) -> None:
        """Raise `UserError` with every collected line, if there is one."""
        if self.lines:
            raise UserError(self.lines)
