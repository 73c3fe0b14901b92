"""Options that several commands share: one wording, one set of defaults."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sparsesim.errors import Problem, UserError
from sparsesim.units import natural

__all__ = [
    "L2",
    "Acc",
    "Baseline",
    "Batch",
    "Clock",
    "Dtype",
    "Gpu",
    "Json",
    "OptionalGpu",
    "OptionalK",
    "OptionalM",
    "OptionalN",
    "PatternText",
    "Phase",
    "SizeK",
    "SizeM",
    "SizeN",
    "StackName",
    "Timing",
    "Tokens",
    "WorkloadDtype",
    "WorkloadPattern",
    "integer",
    "number",
    "pairs",
    "size",
    "sizes",
    "whole",
]


def whole(text: str | int) -> int:
    """The integer that `text` spells; ``64.0`` is a mistake. Its range is checked elsewhere."""
    try:
        return int(str(text))
    except ValueError:
        raise typer.BadParameter(_found("an integer", text)) from None


def number(text: str | float) -> float:
    """The number that `text` spells."""
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(_found("a number", text)) from None


def _found(expected: str, text: object) -> str:
    return Problem.line("", "", expected, text).removeprefix(": ")


def pairs(flag: str, texts: list[str] | None) -> list[tuple[str, str]]:
    """The ``NAME=VALUE`` of a repeatable option, each name once."""
    found: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name or name in found:
            raise UserError(Problem.line(flag, "", "NAME=VALUE, each name once", text))
        found[name] = value
    return list(found.items())


def size(flag: str, text: str) -> int:
    """The positive integer that `text` spells."""
    number = natural(text)
    if not number:
        raise UserError(Problem.line(flag, "", "a positive integer", text))
    return number


def sizes(flag: str, texts: list[str] | None) -> dict[str, int]:
    """The ``NAME=SIZE`` of a repeatable option."""
    return {name: size(f"{flag} {name}", text) for name, text in pairs(flag, texts)}


def integer(flag: str, text: str) -> Any:
    """An option `flag` that takes an integer; `text` is its help."""
    return typer.Option(flag, metavar="INT", help=text, parser=whole)


_GPU = typer.Option("--gpu", metavar="GPU", help="Packaged GPU (see `sparsesim gpus`) or path to a .toml file.")
_M = integer("-m", "Rows of A, the weight: out features.")
_N = integer("-n", "Columns of B: tokens.")
_K = integer("-k", "In features, full uncompressed length.")
_DTYPES = "f16, bf16, tf32, i8, e4m3 or e2m1"
_PATTERNS = "dense, N:M, V:2:M or '2:4(pair 4:8)'"

Gpu = Annotated[str, _GPU]
OptionalGpu = Annotated[str | None, _GPU]
SizeM = Annotated[int, _M]
SizeN = Annotated[int, _N]
SizeK = Annotated[int, _K]
OptionalM = Annotated[int | None, _M]
OptionalN = Annotated[int | None, _N]
OptionalK = Annotated[int | None, _K]
Batch = Annotated[int, integer("--batch", "Independent products in one launch.")]
Dtype = Annotated[str, typer.Option("--dtype", metavar="TYPE", help=f"Input type: {_DTYPES}.")]
Acc = Annotated[
    str | None,
    typer.Option("--acc", metavar="TYPE", help="Accumulator: f32 or f16 for f16; the type's own by default."),
]
PatternText = Annotated[str, typer.Option("--pattern", metavar="N:M", help=f"Of A: {_PATTERNS}.")]
StackName = Annotated[
    str | None,
    typer.Option(
        "--stack",
        metavar="STACK",
        help="Software stack (see `sparsesim stacks`), NAME or NAME@VERSION; by default the one with a sparse path.",
    ),
]
Timing = Annotated[
    str,
    typer.Option(
        "--timing",
        metavar="WORD",
        help="What a time includes: kernel (device only, in a model that runs on: the power limit has settled), graph, "
        "stream (with launch gap), event or host (short loops, which a board may run above its limit).",
    ),
]
L2 = Annotated[
    str,
    typer.Option("--l2", metavar="WORD", help="L2 before each launch: warm (same buffers), rotating or cold."),
]
Clock = Annotated[
    str, typer.Option("--clock", metavar="CLOCK", help="free (boost and power limit decide) or locked:<MHz>.")
]
Baseline = Annotated[
    str | None,
    typer.Option(
        "--baseline",
        metavar="WORD",
        help="How the dense library picks its kernel: heuristic (as a plain call does) or search (the best of all).",
    ),
]
Json = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE", help="Also write JSON to FILE; - prints nothing but it."),
]
WorkloadDtype = Annotated[
    str | None, typer.Option("--dtype", metavar="TYPE", help=f"Instead of the file's: {_DTYPES}.")
]
WorkloadPattern = Annotated[
    str | None, typer.Option("--pattern", metavar="N:M", help=f"Instead of the file's: {_PATTERNS}.")
]
Tokens = Annotated[int | None, integer("--tokens", "Only this token count of the file's phases.")]
Phase = Annotated[str | None, typer.Option("--phase", metavar="NAME", help="Only this phase, e.g. decode.")]
