"""A measuring session: every case with every library of its kind, its failures, and the files it leaves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparsesim._version import __version__
from sparsesim.errors import UserError, nearest
from sparsesim.measure.cases import LIBRARIES, Case, libraries_for
from sparsesim.measure.device import (
    DeviceLostError,
    KernelError,
    MeasureError,
    MeasuringDevice,
    OutOfMemoryError,
    PreparedKernel,
    UnsupportedError,
)
from sparsesim.measure.files import SessionFiles
from sparsesim.measure.telemetry import board_state
from sparsesim.measure.timing import Budget, Timed, check_protocol, copies_needed, time_kernel
from sparsesim.protocol import Protocol

__all__ = ["TOLERANCE", "Outcome", "SessionReport", "Settings", "run_session"]

#: input types that are measured live, and the largest relative error (Frobenius, against float32) of a kernel whose
#: time is kept: outputs are rounded to f16 (2^-11) or bf16 (2^-9; e4m3, and i8 on sparse kernels)
TOLERANCE = {"f16": 2e-3, "bf16": 6e-3, "i8": 6e-3, "e4m3": 6e-3}
#: the same of dense i8 kernels, which write i32; the float32 reference rounds
EXACT = 1e-5
DATA = ("random", "zeros")
#: kind of a failure → its exception, and whether another session would fail as well
FAILURES: tuple[tuple[type[MeasureError], str, bool], ...] = (
    (UnsupportedError, "unsupported", True),
    (OutOfMemoryError, "out of memory", False),
    (DeviceLostError, "device lost", False),
    (KernelError, "kernel error", False),
)


@dataclass(frozen=True)
class Settings:
    """What a session measures with: protocol, libraries, data (``random`` or ``zeros``), budget, seed."""

    protocol: Protocol
    libraries: tuple[str, ...] = ("cublaslt", "cusparselt")
    data: str = "random"
    budget: Budget = field(default_factory=Budget)
    seed: int = 0

    def check(self) -> None:
        """Raise UserError, one line for each wrong setting."""
        lines: list[str] = []
        try:
            check_protocol(self.protocol)
        except UserError as err:
            lines += err.problems
        for name in self.libraries:
            if name not in LIBRARIES:
                lines.append(
                    f"--library: expected one of {', '.join(LIBRARIES)}, found {name!r}{nearest(name, LIBRARIES)}"
                )
        if self.data not in DATA:
            lines.append(f"--data: expected random or zeros, found {self.data!r}{nearest(self.data, DATA)}")
        budget = self.budget
        if not 0.0 < budget.precision < 1.0:
            lines.append(f"--precision: expected a share between 0 and 1, found {budget.precision!r}")
        if not (math.isfinite(budget.most_s) and budget.most_s > 0.0):
            lines.append(f"--most-seconds: expected a time above 0, found {budget.most_s!r}")
        if not (math.isfinite(budget.warmup_s) and budget.warmup_s >= 0.0):
            lines.append(f"--warmup-seconds: expected a time of at least 0, found {budget.warmup_s!r}")
        if lines:
            raise UserError(lines)


@dataclass(frozen=True)
class Outcome:
    """What became of one case and library: a row, or why there is none.

    kind : ``measured``, ``kept`` (an earlier session's row), or a kind of failure
    """

    case: Case
    library: str
    kind: str
    text: str = ""
    time_us: float | None = None
    throttled: tuple[str, ...] = ()


@dataclass(frozen=True)
class SessionReport:
    """Outcomes in order, the file, and whether the session is complete; if not, `stopped` says why."""

    outcomes: tuple[Outcome, ...]
    path: Path
    provenance: Path
    complete: bool
    stopped: str = ""

    def count(self, *kinds: str) -> int:
        """Outcomes of these kinds."""
        return sum(outcome.kind in kinds for outcome in self.outcomes)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "file": str(self.path),
            "provenance": str(self.provenance),
            "complete": self.complete,
            "stopped": self.stopped,
            "outcomes": [
                {
                    "library": o.library,
                    "m": o.case.m,
                    "n": o.case.n,
                    "k": o.case.k,
                    "batch": o.case.batch,
                    "dtype": o.case.dtype,
                    "pattern": o.case.pattern,
                    "kind": o.kind,
                    "why": o.text,
                    "time_us": o.time_us,
                    "throttled": list(o.throttled),
                }
                for o in self.outcomes
            ],
        }


def run_session(
    device: MeasuringDevice,
    cases: Sequence[Case],
    settings: Settings,
    out: Path,
    gpu: str,
    command: str = "",
    date: Callable[[], str] = lambda: "",
    progress: Callable[[int, int], None] | None = None,
) -> SessionReport:
    """Measure every case with each library of its kind; rows go to `out` as they come.

    Parameters
    ----------
    device : MeasuringDevice
    cases : sequence of Case
    settings : Settings
    out : Path
        CSV of the finished session; see `sparsesim.measure.files` for what stands beside it.
    gpu : str
        The `gpu` column: the name of the board's hardware file.
    command, date
        For the provenance: how the session was started, and a function of the date and time now.
    progress : callable, optional
        Called as progress(done, total) after each kernel.

    Returns
    -------
    SessionReport
        A lost device ends the session with the rows so far kept; it is then not complete.

    Raises
    ------
    UserError
        Wrong settings, nothing to measure, or a file that cannot be written or continued.
    """
    settings.check()
    jobs = [(case, library) for case in cases for library in libraries_for(case, settings.libraries)]
    if not jobs:
        raise UserError("measure: expected a shape that one of the libraries multiplies, found none")
    files = SessionFiles(out, _facts(device, settings, gpu))
    files.open()
    done = files.done()
    files.begin({"started": date(), "command": command, "version": __version__})
    outcomes: list[Outcome] = []
    stopped = ""
    try:
        for count, (case, library) in enumerate(jobs, 1):
            if (library, str(case)) in done:
                outcomes.append(Outcome(case, library, "kept"))
            else:
                outcome = _measure(device, case, library, settings, gpu, files)
                outcomes.append(outcome)
                if outcome.kind == "device lost":
                    stopped = outcome.text
                    break
            if progress is not None:
                progress(count, len(jobs))
    except BaseException as err:
        files.note_end({"ended": date(), "how": type(err).__name__})
        raise
    if stopped:
        files.note_end({"ended": date(), "how": f"device lost: {stopped}"})
        return SessionReport(tuple(outcomes), files.part, files.provenance, complete=False, stopped=stopped)
    if not files.rows:
        files.note_end({"ended": date(), "how": "nothing measured"})
        return SessionReport(
            tuple(outcomes), files.part, files.provenance, complete=False, stopped="no kernel could be measured"
        )
    files.finish({"ended": date(), "how": "complete"})
    return SessionReport(tuple(outcomes), files.target, files.provenance, complete=True)


def _tolerance(case: Case) -> float:
    return EXACT if case.dtype == "i8" and not case.is_sparse else TOLERANCE[case.dtype]


def _facts(device: MeasuringDevice, settings: Settings, gpu: str) -> dict[str, Any]:
    protocol = settings.protocol
    return {
        "gpu": gpu,
        "device": device.info.to_dict(),
        "timing": protocol.timing,
        "l2": protocol.l2,
        "clock": protocol.clock,
        "data": settings.data,
        "seed": settings.seed,
    }


def _measure(
    device: MeasuringDevice, case: Case, library: str, settings: Settings, gpu: str, files: SessionFiles
) -> Outcome:
    """Time one kernel and write its row, or note why there is none."""
    try:
        kernel, error = _prepared(device, case, library, settings)
        try:
            label = kernel.label
            wrong = not error <= _tolerance(case)  # true for a NaN, too
            timed = None if wrong else time_kernel(device, kernel, settings.protocol, settings.budget)
        finally:
            kernel.release()
    except MeasureError as err:
        kind, final = next((kind, final) for cls, kind, final in FAILURES if isinstance(err, cls))
        return _failure(files, case, library, kind, str(err), final)
    if timed is None:
        text = f"relative error {error:.3g} against float32, allowed {_tolerance(case):g}"
        return _failure(files, case, library, "wrong result", text, final=True)
    locked = settings.protocol.locked_hz
    board = board_state(timed.readings, None if locked is None else locked / 1e6)
    summary = timed.summary
    files.add(
        _row(device, case, label, settings, gpu, timed, error, board),
        {
            "library": library,
            "case": str(case),
            "label": label,
            "outliers_us": [round(s * 1e6, 4) for s in summary.outliers],
            "converged": timed.converged,
            "readings": board.readings,
            "sm_mhz_low": board.sm_mhz_low,
        },
    )
    return Outcome(case, library, "measured", time_us=summary.median_s * 1e6, throttled=board.throttled)


def _prepared(device: MeasuringDevice, case: Case, library: str, settings: Settings) -> tuple[PreparedKernel, float]:
    """The kernel with as many operand sets as the protocol wants, and its error against float32."""
    if case.pattern not in ("dense", "2:4"):
        raise UnsupportedError(f"pattern {case.pattern}: libraries on a live GPU run dense and 2:4")
    if case.dtype not in TOLERANCE:
        raise UnsupportedError(f"{case.dtype}: measured live are {', '.join(TOLERANCE)}")
    if case.batch != 1:
        raise UnsupportedError(f"batch {case.batch}: measured live are single products")
    copies = copies_needed(settings.protocol.l2, case.operand_bytes, device.info.l2_bytes)
    kernel = device.prepare(case, library, settings.data, copies, settings.seed)
    try:
        return kernel, kernel.relative_error()
    except BaseException:
        kernel.release()
        raise


def _failure(files: SessionFiles, case: Case, library: str, kind: str, why: str, final: bool) -> Outcome:
    files.fail({"library": library, "case": str(case), "kind": kind, "why": why, "final": final})
    return Outcome(case, library, kind, why)


def _row(
    device: MeasuringDevice,
    case: Case,
    label: str,
    settings: Settings,
    gpu: str,
    timed: Timed,
    error: float,
    board: Any,
) -> Mapping[str, object]:
    summary, protocol = timed.summary, settings.protocol

    def shown(value: float | None, digits: int = 1) -> str:
        return "" if value is None else f"{value:.{digits}f}"

    return {
        "gpu": gpu,
        "library": label,
        "m": case.m,
        "n": case.n,
        "k": case.k,
        "batch": case.batch,
        "dtype": case.dtype,
        "acc_dtype": case.accumulator,
        "pattern": case.pattern,
        "sparse_operand": "A" if case.is_sparse else "",
        "time_us": f"{summary.median_s * 1e6:.4f}",
        "timing": protocol.timing,
        "l2": protocol.l2,
        "clock": protocol.clock,
        "set": case.set,
        "source": device.info.source,
        "low_us": f"{summary.low_s * 1e6:.4f}",
        "high_us": f"{summary.high_s * 1e6:.4f}",
        "samples": summary.samples,
        "calls": timed.calls,
        "converged": "yes" if timed.converged else "no",
        "outliers": len(summary.outliers),
        "relative_error": f"{error:.2e}",
        "data": settings.data,
        "sm_mhz": shown(board.sm_mhz, 0),
        "memory_mhz": shown(board.memory_mhz, 0),
        "power_w": shown(board.power_w),
        "temperature_c": shown(board.temperature_c, 0),
        "limited_by": " ".join(board.reasons),
        "throttled": " ".join(board.throttled),
    }
