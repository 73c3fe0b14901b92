"""What a serving run was asked for, in full: the arguments, the command that gives them, hashes of what they name."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping
from typing import Any

__all__ = ["content_hash", "serve_command"]

#: argument of `simulate_serving` → option of ``sparsesim serve``, where it has another name
OPTIONS = {"think_s": "--think"}
#: truth values: argument → (option if true, option if false)
SWITCHES = {"chunked": ("--chunked", "--whole-prompts"), "exact": ("--exact", "")}


def serve_command(inputs: Mapping[str, Any]) -> str:
    """The command that runs a serving simulation with these arguments, none left to a default that may change."""
    words = ["sparsesim", "serve", str(inputs["model"])]
    for name, value in inputs.items():
        if name in SWITCHES:
            words += [word for word in (SWITCHES[name][0 if value else 1],) if word]
        elif name != "model" and value is not None:
            words += [OPTIONS.get(name, f"--{name.replace('_', '-')}"), str(value)]
    return shlex.join(words)


def content_hash(value: object) -> str:
    """Short hash of dataclasses of plain data: a file that has changed since the run is found out by it."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:12]
