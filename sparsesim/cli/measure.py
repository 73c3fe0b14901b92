"""``sparsesim measure``: kernels of a live GPU, as measured rows."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparsesim.cli import options as opt
from sparsesim.cli.output import JsonTarget, add_row, progress, say, show_table, show_time, table
from sparsesim.errors import UserError
from sparsesim.wording import counted

if TYPE_CHECKING:
    from sparsesim.measure import Case, SessionReport
    from sparsesim.measure.session import Settings

__all__ = ["Wanted", "cases_of", "register", "run", "show", "unfinished"]

EXAMPLE = "Example: sparsesim measure llama-3.1-8b --tokens 2048 --timing graph --l2 rotating --out llama.csv"

Shapes = Annotated[
    str | None,
    typer.Argument(metavar="[SHAPES]", help="A workload (name or file), or a file of measured rows to take again."),
]
Sizes = "a size or several with commas; with equal lists, or one of them alone, square shapes"
SizesM = Annotated[str | None, typer.Option("-m", metavar="INTS", help=f"Instead of SHAPES, a grid: {Sizes}.")]
SizesN = Annotated[str | None, typer.Option("-n", metavar="INTS", help="Of the grid.")]
SizesK = Annotated[str | None, typer.Option("-k", metavar="INTS", help="Of the grid.")]
Dtypes = Annotated[
    str | None,
    typer.Option("--dtype", metavar="TYPES", help="f16, bf16, i8, e4m3, several with commas; a file's own by default."),
]
Libraries = Annotated[
    list[str] | None,
    typer.Option(
        "--library",
        metavar="NAME",
        help="cublaslt, cublaslt-bias, cusparselt, cusparselt-default, torch-cutlass (repeatable).",
    ),
]
Timing = Annotated[
    str,
    typer.Option(
        "--timing", metavar="WORD", help="stream, graph, event or host; `validate` takes each for what it is."
    ),
]
L2 = Annotated[str, typer.Option("--l2", metavar="WORD", help="warm, rotating, or (event, host) cold.")]
Data = Annotated[str, typer.Option("--data", metavar="WORD", help="random or zeros: zeros take less power.")]
Precision = Annotated[
    float,
    typer.Option(
        "--precision", metavar="SHARE", help="Half-width of the median's 95 % interval to reach.", parser=opt.number
    ),
]
MostSeconds = Annotated[
    float, typer.Option("--most-seconds", metavar="S", help="Cap of one kernel's sampling.", parser=opt.number)
]
Warmup = Annotated[
    float,
    typer.Option("--warmup-seconds", metavar="S", help="A kernel runs so long before it is timed.", parser=opt.number),
]
Out = Annotated[str, typer.Option("--out", metavar="FILE", help="CSV to write; an interrupted run goes on with it.")]
Index = Annotated[int, opt.integer("--device", "GPU, as PyTorch counts them.")]
Seed = Annotated[int, opt.integer("--seed", "Of the random data.")]


@dataclass(frozen=True)
class Wanted:
    """What a command line asks to be measured, and where."""

    shapes: str | None = None
    m: str | None = None
    n: str | None = None
    k: str | None = None
    dtypes: str | None = None
    pattern: str | None = None
    tokens: int | None = None
    phase: str | None = None
    out: str = "measured.csv"
    device: int = 0
    gpu: str | None = None


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("measure", epilog=EXAMPLE)(measure)


def measure(
    shapes: Shapes = None,
    m: SizesM = None,
    n: SizesN = None,
    k: SizesK = None,
    dtype: Dtypes = None,
    pattern: opt.WorkloadPattern = None,
    tokens: opt.Tokens = None,
    phase: opt.Phase = None,
    library: Libraries = None,
    timing: Timing = "stream",
    l2: L2 = "warm",
    clock: opt.Clock = "free",
    data: Data = "random",
    precision: Precision = 0.01,
    most_seconds: MostSeconds = 5.0,
    warmup_seconds: Warmup = 0.2,
    out: Out = "measured.csv",
    device: Index = 0,
    gpu: opt.OptionalGpu = None,
    seed: Seed = 0,
    json: opt.Json = None,
) -> None:
    """Time kernels of this machine's GPU, dense and 2:4, into a file that `validate` and `calibrate` take.

    Needs an NVIDIA GPU and the extra `cuda`. Reads the board's sensors and changes no setting of it. Exit status 1 if
    a kernel gave a wrong result, 2 if the session could not be finished; started again, it goes on.
    """
    target = JsonTarget.parse(json)
    from sparsesim.measure.session import Settings
    from sparsesim.measure.timing import Budget
    from sparsesim.protocol import Protocol

    settings = Settings(
        Protocol.parse(timing, l2, clock),
        tuple(library or ("cublaslt", "cusparselt")),
        data,
        Budget(warmup_s=warmup_seconds, precision=precision, most_s=most_seconds),
        seed,
    )
    report = run(Wanted(shapes, m, n, k, dtype, pattern, tokens, phase, out, device, gpu), settings)
    if target.write(report.to_dict()):
        show(report)
    if not report.complete:
        raise UserError(unfinished(report))
    if report.count("wrong result"):
        raise typer.Exit(1)


def run(wanted: Wanted, settings: Settings) -> SessionReport:
    """Open the GPU and measure; raises UserError for whatever is wrong or missing."""
    from sparsesim import backends
    from sparsesim.measure import NoDeviceError, run_session
    from sparsesim.measure.identify import identify

    settings.check()
    cases = cases_of(wanted)
    try:
        device = backends.open_device(wanted.device)
    except NoDeviceError as err:
        raise UserError(str(err)) from None
    gpu = identify(device.info, wanted.gpu)
    with progress("measuring") as report:
        return run_session(
            device, cases, settings, Path(wanted.out), gpu, shlex.join(["sparsesim", *sys.argv[1:]]), _now, report
        )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def unfinished(report: SessionReport) -> str:
    kept = report.count("measured", "kept")
    return (
        f"measure: {report.stopped}; {counted(kept, 'row')} kept in {report.path} (the same command goes on from there)"
    )


def cases_of(wanted: Wanted) -> list[Case]:
    """The shapes that were asked for; of several dtypes, each shape with each."""
    from dataclasses import replace

    from sparsesim.measure import cases_from_grid, cases_from_measured, cases_from_ops
    from sparsesim.measured import read_measured
    from sparsesim.workload import load_workload

    dtypes = [word.strip() for word in wanted.dtypes.split(",")] if wanted.dtypes else []
    m, n, k = (_sizes(flag, text) for flag, text in (("-m", wanted.m), ("-n", wanted.n), ("-k", wanted.k)))
    if wanted.shapes is None:
        return cases_from_grid(m, n, k, dtypes or ["f16"], wanted.pattern or "2:4")
    if m or n or k:
        raise UserError("SHAPES, -m, -n, -k: expected a file or a grid, found both")
    if _is_measured(Path(wanted.shapes)):
        cases = cases_from_measured(read_measured(wanted.shapes))
        return list(dict.fromkeys(replace(c, dtype=d) for c in cases for d in dtypes or [c.dtype]))
    chosen: list[str | None] = [*dtypes] or [None]
    loaded = [
        load_workload(wanted.shapes, tokens=wanted.tokens, dtype=dtype, pattern=wanted.pattern, phase=wanted.phase)
        for dtype in chosen
    ]
    return list(dict.fromkeys(case for w in loaded for case in cases_from_ops(w.ops, w.name)))


def _is_measured(path: Path) -> bool:
    """Whether the file's header has the column that only measured rows have."""
    if path.suffix != ".csv" or not path.is_file():
        return False
    with path.open(encoding="utf-8-sig", errors="replace") as handle:
        return "time_us" in handle.readline().split(",")


def _sizes(flag: str, text: str | None) -> list[int]:
    try:
        return [int(word) for word in text.split(",")] if text else []
    except ValueError:
        raise UserError(f"{flag}: expected integers with commas between them, found {text!r}") from None


def show(report: SessionReport) -> None:
    """Print the times, what was not measured, and which rows are doubtful."""
    grid = table("library", "shape", "time", "", right=("time",))
    for o in report.outcomes:
        time = "" if o.time_us is None else show_time(o.time_us)
        note = o.kind if o.time_us is None else ", ".join(o.throttled)
        add_row(grid, o.library, str(o.case), time, f"{note}: {o.text}" if o.text else note)
    show_table("Measured", grid)
    failed = len(report.outcomes) - report.count("measured", "kept")
    throttled = sum(bool(o.throttled) for o in report.outcomes)
    say(f"\n{report.count('measured')} measured, {report.count('kept')} kept from before, {failed} not measured, "
        f"{throttled} throttled")  # fmt: skip
    if report.complete:
        say(f"wrote {report.path} and {report.provenance}")
