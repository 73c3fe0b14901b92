"""Content addresses: what a simulated number depends on, as a hash.

Two sub-problems have one address exactly if they have the same model, hardware description, op, protocol and
library. The model is known by its sources: an edited constant makes it another one.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import sparsesim
from sparsesim._version import __version__
from sparsesim.hardware import GpuSpec

__all__ = ["digest", "hardware_digest", "model_version"]

#: parts of the package that no simulated time depends on
BESIDE_MODEL = ("attribution", "calibrate", "cli", "figures", "api", "measured", "uncertainty", "validate", "__main__")


@lru_cache(maxsize=1)
def model_version() -> str:
    """Version of the package and hash of the sources that a simulated time can depend on."""
    package = Path(sparsesim.__file__).parent
    content = hashlib.sha256()
    for path in sorted(package.rglob("*.py"), key=lambda path: path.relative_to(package).as_posix()):
        name = path.relative_to(package).as_posix()
        if name.partition("/")[0].removesuffix(".py") in BESIDE_MODEL:
            continue
        content.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return f"{__version__}+{content.hexdigest()[:12]}"


def digest(*parts: Any) -> str:
    """SHA-256 (hex) of plain data."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=repr)
    return hashlib.sha256(text.encode()).hexdigest()


def hardware_digest(gpu: GpuSpec) -> str:
    """Hash of all of a description that a time depends on: its values, and the board its libraries know."""
    return digest(gpu.model_dump(), gpu.tuned_for.model_dump())
