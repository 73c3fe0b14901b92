"""Files that are written: each in one step, and those of one call as a set, all of them or none.

Every file goes to a temporary name beside its own first. Only when all are whole are they renamed, with signals held
back meanwhile; if a rename fails, those before it are undone. A kill that no program can hold back (SIGKILL, a power
cut) can still fall between two renames: no file system renames two files at once.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sparsesim.errors import Problem, UserError

__all__ = ["OutFile", "write_file", "write_set"]

#: what ends a program and can be held back; the last is not known everywhere
_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


@dataclass(frozen=True)
class OutFile:
    """A file to write: its text, whole or in pieces, and the option that names it, for messages."""

    path: Path
    text: str | Iterable[str]
    flag: str = ""

    def problem(self, error: OSError) -> UserError:
        """Why it cannot be written."""
        reason = error.strerror or str(error)
        if self.flag:
            line = f"{self.flag}: expected a file that can be written, found {str(self.path)!r}: {reason}"
            return UserError(line)
        return UserError(Problem.line(str(self.path), "", "a file that can be written", reason))


def write_file(path: Path, text: str | Iterable[str], flag: str = "") -> None:
    """Write one file: a reader sees the old one or the whole new one. Raises UserError if that fails."""
    write_set([OutFile(path, text, flag)])


def write_set(files: Sequence[OutFile]) -> None:
    """Write `files`, all of them or none; what is no regular file (a pipe, /dev/null) is written as it is.

    Raises
    ------
    UserError
        If one cannot be written: then all names hold what they held before.
    """
    staged: list[tuple[OutFile, Path, Path]] = []
    try:
        for number, file in enumerate(files):
            target = file.path.resolve()
            if target.exists() and not target.is_file():
                continue
            temporary = target.with_name(f".{target.name[:100]}.{os.getpid()}.{number}.tmp")
            staged.append((file, temporary, target))
            with _told(file), temporary.open("x", encoding="utf-8") as handle:
                _write(handle, file.text)
                handle.flush()
                os.fsync(handle.fileno())
        # pipes come once all files are whole, and before any is renamed: nothing that is in a pipe can be undone
        regular = {id(file) for file, _, _ in staged}
        for file in files:
            if id(file) not in regular:
                with _told(file, but=BrokenPipeError), file.path.open("w", encoding="utf-8") as handle:
                    _write(handle, file.text)
        with _undisturbed():
            _rename(staged)
    finally:
        for _, temporary, _ in staged:
            temporary.unlink(missing_ok=True)


def _write(handle: object, text: str | Iterable[str]) -> None:
    handle.writelines([text] if isinstance(text, str) else text)  # type: ignore[attr-defined]


@contextmanager
def _told(file: OutFile, but: type[OSError] | tuple[()] = ()) -> Iterator[None]:
    """Errors of the system as the user's, save those of class `but`, which somebody else tells."""
    try:
        yield
    except but:
        raise
    except OSError as error:
        raise file.problem(error) from None


def _rename(staged: Sequence[tuple[OutFile, Path, Path]]) -> None:
    """Give all files their names; if one cannot have it, those before it get back what they held."""
    done: list[tuple[Path, Path | None]] = []
    try:
        for number, (file, temporary, target) in enumerate(staged):
            with _told(file):
                if number < len(staged) - 1:  # nothing after the last can fail
                    done.append((target, _aside(temporary, target)))
                temporary.replace(target)
    except BaseException:
        for target, old in reversed(done):
            if old is None:
                target.unlink(missing_ok=True)
            else:
                old.replace(target)
                old.unlink(missing_ok=True)  # renaming one of two names of a file to the other does nothing
        raise
    for _, old in done:
        if old is not None:
            old.unlink(missing_ok=True)


def _aside(temporary: Path, target: Path) -> Path | None:
    """A second name of what `target` holds, or a copy where the file system has no such names; None if it is new."""
    if not target.exists():
        return None
    old = temporary.with_suffix(".old.tmp")
    old.unlink(missing_ok=True)
    try:
        os.link(target, old)
    except OSError:
        shutil.copy2(target, old)
    return old


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Hold back what would end the program (the main thread's to decide) until the block is done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.signal(number, lambda found, _: came.append(found)) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for number in came:
            signal.raise_signal(number)
