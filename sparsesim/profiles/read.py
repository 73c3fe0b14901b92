"""Which tool wrote a file, and the reader it goes to."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path

from sparsesim.errors import UserError, nearest
from sparsesim.profiles.chrome_trace import read_chrome_trace
from sparsesim.profiles.cutlass_profiler import read_cutlass_profiler
from sparsesim.profiles.library_logs import read_library_log
from sparsesim.profiles.nsight_compute import read_nsight_compute
from sparsesim.profiles.nsight_systems import read_nsys_sqlite, read_nsys_stats
from sparsesim.profiles.record import Profile

__all__ = ["FORMATS", "detect_profile", "read_profile"]

#: format → its reader
FORMATS: dict[str, Callable[[Path], Profile]] = {
    "nsight-compute": read_nsight_compute,
    "nsight-systems": read_nsys_stats,
    "nsight-systems-sqlite": read_nsys_sqlite,
    "pytorch-trace": read_chrome_trace,
    "cutlass-profiler": read_cutlass_profiler,
    "library-log": read_library_log,
}
#: bytes read to tell the format: tools write messages before their header
HEAD = 65536


def detect_profile(path: str | Path) -> str | None:
    """The format of `path` (a key of `FORMATS`), or None if no profiler wrote it; unreadable files are None."""
    path = Path(path)
    try:
        with path.open("rb") as handle:
            raw = handle.read(HEAD)
        if raw.startswith(b"SQLite format 3\x00"):
            return "nsight-systems-sqlite"
        if raw.startswith(b"\x1f\x8b"):
            with gzip.open(path, "rb") as unpacked:
                raw = unpacked.read(HEAD)
    except (OSError, EOFError, zlib.error):
        return None
    text = raw.decode("utf-8-sig", errors="replace")
    if "][cublasLt][" in text or "][cusparseLt][" in text or "][CUSPARSELT][" in text:
        return "library-log"
    if text.lstrip()[:1] in ("{", "["):
        return "pytorch-trace" if '"traceEvents"' in text or '"ph"' in text else None
    for line in text.splitlines():
        words = {word.strip().strip('"') for word in line.split(",")}
        if {"ID", "Kernel Name"} <= words:
            return "nsight-compute"
        if {"OperationKind", "Operation", "Runtime"} <= words:
            return "cutlass-profiler"
        if {"Kernel Name", "NVTX Range"} <= words or {"CorrId", "Name"} <= words or {"Instances", "Name"} <= words:
            return "nsight-systems"
    return None


def read_profile(path: str | Path, format: str | None = None) -> Profile:
    """Read a profile; `format` is detected where it is not given.

    Raises UserError if there is no such file, no profiler wrote it, or it is broken.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: expected a profile, found {'a folder' if path.is_dir() else 'no such file'}")
    found = format or detect_profile(path)
    if found is None:
        raise UserError(f"{path}: expected a profile ({', '.join(FORMATS)}), found none of them")
    if found not in FORMATS:
        raise UserError(f"format: expected one of {', '.join(FORMATS)}, found {found!r}{nearest(found, FORMATS)}")
    return FORMATS[found](path)
