"""Entry of ``sparsesim`` and ``python -m sparsesim``: runs a command, turns mistakes into one-line errors.

Exit status: 0 done; 1 the command ran and what it checked is not clean; 2 the user's mistake;
130 interrupted; 141 whoever read the output went away.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable

from sparsesim.errors import UserError

__all__ = ["main"]

USER_ERROR = 2
INTERRUPTED = 130
BROKEN_PIPE = 141


def main(argv: list[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's) and return its exit status."""
    _prepare_streams()
    try:
        status = _run(argv)
        sys.stdout.flush()
    except KeyboardInterrupt:
        status = INTERRUPTED
    except BrokenPipeError:
        return _closed_pipe()
    except OSError as err:  # a full disk, a file that vanished
        return _report([f"{err.filename or 'output'}: {err.strerror or err}"])
    except SystemExit as err:
        if not isinstance(err.__context__, BrokenPipeError):  # typer's and rich's way to end on one
            raise
        return _closed_pipe()
    if status == INTERRUPTED:
        _report(["interrupted"])
    return status


def _run(argv: list[str] | None) -> int:
    import typer

    from sparsesim.cli import app

    try:
        status = app(argv, prog_name="sparsesim", standalone_mode=False)
    except UserError as err:
        return _report(err.problems)
    except typer.Abort:
        return INTERRUPTED
    except ValueError as err:
        from sparsesim.lowering import NoKernelError

        if not isinstance(err, NoKernelError):
            raise
        return _report([str(err)])
    except Exception as err:
        # a usage error: click's class or typer's copy of it, depending on typer's version
        wording = getattr(err, "format_message", None)
        if wording is None:
            raise
        return _report([" ".join(wording().split())])
    return status if isinstance(status, int) else 0


def _prepare_streams() -> None:
    """A closed stream swallows what is written to it; one of a narrow encoding shows what it can."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - open for as long as the process runs
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _closed_pipe() -> int:
    """Let what is left in stdout's buffer go nowhere, so that the flush at exit cannot fail either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE


def _report(lines: Iterable[str]) -> int:
    """Print each line as an error on stderr, and return the status of a user's mistake."""
    for line in lines:
        print(f"error: {''.join(map(_shown, line))}", file=sys.stderr)
    return USER_ERROR


def _shown(letter: str) -> str:
    """A line break, an escape or a change of direction out of a file stays inside the message's one line."""
    return letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")


if __name__ == "__main__":
    sys.exit(main())
