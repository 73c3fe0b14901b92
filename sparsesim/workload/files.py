"""Opening user files: text with the line of a bad byte, packed ones within reason, system errors in plain words."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from sparsesim.errors import Problem, UserError

__all__ = ["BadText", "Unpacked", "open_bytes", "text_lines"]

#: unpacked bytes per byte of a .gz (traces pack 20 to 40 times), and below how many the ratio does not matter
MAX_EXPANSION = 200
EXPANSION_FREE = 256 * 2**20


class BadText(Exception):
    """A line that is not UTF-8: its number (from 1) and the first bad byte."""

    def __init__(self, line: int, byte: int) -> None:
        self.line = line
        self.byte = byte
        super().__init__(f"line {line}: expected UTF-8 text, found byte 0x{byte:02x}")


@contextmanager
def open_bytes(path: Path) -> Iterator[BinaryIO]:
    """Open `path` for reading; raises `UserError` if it is missing, a folder or unreadable."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise UserError(f"{path}: expected a file, found nothing of that name") from None
    except IsADirectoryError:
        raise UserError(f"{path}: expected a file, found a directory") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(Problem.line(str(path), "", "a readable file", reason)) from None
    with file:
        try:
            yield file
        except OSError as error:
            raise UserError(Problem.line(str(path), "", "a readable file", error.strerror)) from None


class Unpacked(gzip.GzipFile):
    """What the gzip file `file` of `size` bytes holds; it stops where that expands beyond reason."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        super().__init__(fileobj=file)
        self.most = max(EXPANSION_FREE, MAX_EXPANSION * size)

    def read(self, size: int | None = -1) -> bytes:
        """The next bytes; raises ValueError past the limit."""
        raw = super().read(self.most + 1 if size is None or size < 0 else size)
        if self.tell() > self.most:
            raise ValueError(f"more than {self.most} bytes packed into a file of {self.most // MAX_EXPANSION} or less")
        return raw


def text_lines(file: BinaryIO) -> Iterator[str]:
    """Lines of `file` as text with their line ends, without a byte-order mark; raises `BadText`."""
    for number, raw in enumerate(file, start=1):
        if number == 1:
            raw = raw.removeprefix(b"\xef\xbb\xbf")
        try:
            yield raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadText(number, raw[error.start]) from None
