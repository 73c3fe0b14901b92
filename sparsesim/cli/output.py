"""What every command prints with: the consoles, the files, tables, and how numbers look.

The files of one command are written as a set (`outfiles`), so that neither a half-written one nor one without the
others is taken for a result.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sparsesim.errors import Problem, UserError
from sparsesim.outfiles import OutFile, write_file, write_set
from sparsesim.wording import percent, show_time

__all__ = [
    "JsonTarget",
    "add_row",
    "bar",
    "check_files",
    "output_file",
    "owners_text",
    "percent",
    "progress",
    "say",
    "show_table",
    "show_time",
    "steps",
    "table",
    "write_file",
]

#: columns that a table may take where the output is no terminal
PIPE_WIDTH = 132


class _Console(Console):
    """A console that leaves a closed pipe to the entry point."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console() -> Console:
    """A console on stdout, as wide as the terminal; wide enough for the tables where there is none."""
    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH
    return _Console(width=wide, highlight=False, emoji=False)


@dataclass(frozen=True)
class JsonTarget:
    """Where the JSON form of a result goes: nowhere, to stdout, or to a file."""

    path: Path | None = None
    stdout: bool = False

    @staticmethod
    def parse(text: str | None) -> JsonTarget:
        """From the value of ``--json``; raises UserError if nothing can be written there."""
        if text is None:
            return JsonTarget()
        if text == "-":
            return JsonTarget(stdout=True)
        return JsonTarget(output_file(text, "--json"))

    def write(self, data: Mapping[str, Any], beside: Sequence[OutFile] = ()) -> bool:
        """Write `data` and, as one set with it, the other files of the command.

        Returns whether stdout still belongs to the human-readable form.
        """
        own = [] if self.path is None else [OutFile(self.path, _chunks(data), "--json")]
        write_set([*beside, *own])
        if self.stdout:
            sys.stdout.writelines(_chunks(data))
        return not self.stdout


def output_file(text: str | None, flag: str) -> Path | None:
    """The file that option `flag` names, None for none; raises UserError if it cannot be written."""
    if text is None:
        return None
    if text == "-":
        raise UserError(f"{flag}: expected a file name, found '-': standard output is for --json")
    path = Path(text)
    problem = _unwritable(path) if text.strip() and "\0" not in text else "no file name"
    if problem:
        raise UserError(f"{flag}: expected a file that can be written, found {text!r}: {problem}")
    return path


def check_files(written: Mapping[str, Path | None], *read: str) -> None:
    """Raise UserError for each of the files that options name if it is another's too, or one that the command reads."""
    lines: list[str] = []
    taken: dict[Path, str] = {}
    for flag, path in written.items():
        if path is None:
            continue
        if any(_same(path, other) for other in read):
            lines.append(Problem.line(flag, "", "another file than the one that is read", str(path)))
        other = taken.setdefault(path.resolve(), flag)
        if other != flag and (path.is_file() or not path.exists()):  # two may go to one pipe
            lines.append(Problem.line(flag, "", f"another file than that of {other}", str(path)))
    if lines:
        raise UserError(lines)


def _same(path: Path, read: str) -> bool:
    """Whether the file to be written is the one called `read`, by whatever name."""
    try:
        return path.is_file() and path.samefile(read)
    except (OSError, ValueError):
        return False


def _chunks(data: Mapping[str, Any]) -> Iterator[str]:
    """The JSON text in pieces: that of a long trace is larger than the trace."""
    yield from json.JSONEncoder(indent=2, ensure_ascii=True).iterencode(data)
    yield "\n"


def _unwritable(path: Path) -> str | None:
    """Why `path` cannot be written, or None."""
    try:
        if path.is_dir():
            return "it is a folder"
        folder = path.resolve().parent
        if not folder.is_dir():
            return "its folder does not exist"
        if not os.access(path if path.exists() else folder, os.W_OK):
            return "no permission to write there"
    except OSError as err:
        return (err.strerror or str(err)).lower()
    return None


@contextmanager
def progress(label: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr, if that is a terminal; yields a function of the count done and the total."""
    shown = Console(stderr=True)
    if not shown.is_terminal:
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=shown, transient=True) as bars:
        task = bars.add_task(label, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


@contextmanager
def steps() -> Iterator[Callable[[str, int, int], None]]:
    """The same for work in several steps: a function of the step's name, the count done and the total."""
    shown = Console(stderr=True)
    if not shown.is_terminal:
        yield lambda step, done, total: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=shown, transient=True) as bars:
        task = bars.add_task("", total=None)
        yield lambda step, done, total: bars.update(task, description=step, completed=done, total=total)


def table(*columns: str, right: Sequence[str] = ()) -> Table:
    """A plain table; columns named in `right` hold numbers."""
    made = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in columns:
        made.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return made


def add_row(to: Table, *cells: str, style: str | None = None) -> None:
    """Add cells as literal text: a ``[2:4]`` in a name is no markup."""
    to.add_row(*(Text(shown(cell)) for cell in cells), style=style)


def shown(text: str) -> str:
    """`text` without what commands a terminal or changes its direction: names come out of foreign files."""
    return "".join(
        letter if letter.isprintable() or letter in "\n\u00a0\u202f" else _escaped(letter) for letter in text
    )


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")


def show_table(title: str, grid: Table) -> None:
    """Print a table under its title."""
    out = console()
    out.print(Text(f"\n{shown(title)}", style="bold"))
    out.print(grid)


def say(text: str, style: str = "") -> None:
    """Print one line of literal text, unbroken."""
    console().print(Text(shown(text), style=style), soft_wrap=True)


def bar(share: float, width: int = 24) -> str:
    """A horizontal bar for a share of 1: filled if it is a loss, hollow if it is a gain (negative)."""
    cells = min(round(abs(share) * width), width)
    return ("█" if share > 0 else "░") * max(cells, 1 if abs(share) > 5e-4 else 0)


def owners_text(owners: Mapping[str, float], least: float = 0.002) -> str:
    """Shares of the SM-cycles, largest first and one a line, without those below `least`."""
    total = sum(owners.values())
    shares = sorted(((value / total, name) for name, value in owners.items()), reverse=True)
    return "\n".join(f"{name} {percent(share)}" for share, name in shares if share >= least)
