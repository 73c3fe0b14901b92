"""The main jobs as functions: one call from names and numbers to a result.

They take what a user types (a GPU's name, a pattern's text, the words of a protocol), check all of it before
anything is simulated, and raise one `UserError` with every problem. Whoever needs more control builds a
`Simulator` and calls `runtime` and `attribution`. What the numbers stand on: every value of a hardware file
has its source (``sparsesim check``), and so has every rule of a stack (``sparsesim explain --rules``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from sparsesim.errors import Problem, UserError
from sparsesim.hardware import GpuSpec, load_gpu
from sparsesim.importers import import_file
from sparsesim.protocol import Protocol
from sparsesim.results import GemmResult
from sparsesim.simulator import Simulator
from sparsesim.sparsity import Pattern
from sparsesim.stacks import Stack, get_stack
from sparsesim.workload import Gemm, GemmError, Workload, load_workload
from sparsesim.workload.ops import issue_line, size_issue

if TYPE_CHECKING:
    from sparsesim.attribution import Attribution, WorkloadAttribution
    from sparsesim.audit import Audit
    from sparsesim.counters import Counters
    from sparsesim.report import Report
    from sparsesim.results_workload import WorkloadResult
    from sparsesim.validate import Validation

__all__ = [
    "DEFAULT_STACK",
    "audit_file",
    "explain_gemm",
    "explain_workload",
    "import_file",
    "report_workload",
    "resolve_gpu",
    "simulate_gemm",
    "simulate_workload",
    "validate_files",
    "workload_counters",
]

#: the stack that has a sparse path
DEFAULT_STACK = "cusparselt"


def simulate_gemm(
    gpu: str | Path | GpuSpec,
    m: int,
    n: int,
    k: int,
    dtype: str = "f16",
    pattern: str = "2:4",
    batch: int = 1,
    stack: str | Stack | None = None,
    timing: str = "kernel",
    l2: str = "rotating",
    clock: str = "free",
    acc_dtype: str | None = None,
    baseline: str | None = None,
) -> GemmResult:
    """Time one GEMM D[m×n] = A[m×k]·B[k×n] beside its dense baseline.

    Parameters
    ----------
    gpu : str, Path or GpuSpec
        A packaged name (`gpu_names`), a path to a hardware file, or a loaded description.
    m, n, k : int
        Out features, tokens and in features [elements], 1 to 2**20; A, m × k, is the weight and the
        operand that may be sparse, and k its full, uncompressed length.
    dtype : str
        ``f16``, ``bf16``, ``tf32``, ``i8``, ``e4m3`` or ``e2m1``.
    pattern : str
        Of A: ``dense``, ``N:M``, ``V:2:M`` or ``2:4(pair 4:8)``.
    batch : int
        Independent products in one launch.
    stack : str or Stack, optional
        Software stack that decides the path; by default `DEFAULT_STACK`.
    timing : str
        What a time includes: ``kernel``, ``graph``, ``stream``, ``event`` or ``host``.
    l2 : str
        L2 before each launch: ``warm``, ``rotating`` or ``cold``.
    clock : str
        ``free`` (boost and the power limit decide) or ``locked:<MHz>``.
    acc_dtype : str, optional
        Accumulator, where the type has a choice (f16: ``f32`` or ``f16``).
    baseline : str, optional
        How the dense library picks its kernel: ``heuristic`` (the default: what a plain call runs) or ``search``
        (the best of its kernels, as measured tables often have).

    Returns
    -------
    GemmResult
        Times in µs, path and reason, kernels, counters, clock in Hz. A weight that the stack cannot run
        sparse is no error: `path` is then ``"dense"`` and `reason` names the rule.

    Raises
    ------
    UserError
        Unknown names, impossible sizes or patterns: every problem, one line each.
    NoKernelError
        The type has no dense kernel on this GPU.
    """
    simulator, op, protocol = _one(gpu, m, n, k, dtype, pattern, batch, stack, timing, l2, clock, acc_dtype, baseline)
    return simulator.gemm(op, protocol)


def explain_gemm(
    gpu: str | Path | GpuSpec,
    m: int,
    n: int,
    k: int,
    dtype: str = "f16",
    pattern: str = "2:4",
    batch: int = 1,
    stack: str | Stack | None = None,
    timing: str = "kernel",
    l2: str = "rotating",
    clock: str = "free",
    acc_dtype: str | None = None,
    baseline: str | None = None,
) -> Attribution:
    """Say where the speedup of one GEMM went; parameters and errors as for `simulate_gemm`.

    Returns
    -------
    Attribution
        For each cause its share of ln(nominal speedup) - ln(effective speedup), a Shapley value: shares
        sum to the gap, and a negative one is a loss that the dense baseline has more of.
    """
    from sparsesim.attribution import attribute_gemm

    simulator, op, protocol = _one(gpu, m, n, k, dtype, pattern, batch, stack, timing, l2, clock, acc_dtype, baseline)
    return attribute_gemm(simulator, op, protocol)


def simulate_workload(
    gpu: str | Path | GpuSpec,
    workload: str | Path | Workload | Iterable[Gemm],
    tokens: int | None = None,
    phase: str | None = None,
    dtype: str | None = None,
    pattern: str | None = None,
    stack: str | Stack | None = None,
    timing: str = "kernel",
    l2: str = "rotating",
    clock: str = "free",
    streams: int = 1,
    graph: bool = False,
    repeats: int = 1,
    progress: Callable[[int, int, str], None] | None = None,
    baseline: str | None = None,
) -> WorkloadResult:
    """Run a workload through the streams of one GPU, beside its dense baseline.

    Parameters
    ----------
    gpu, stack, l2, clock, baseline
        As for `simulate_gemm`.
    workload : str, Path, Workload or iterable of Gemm
        A packaged name (`workload_names`), a TOML, CSV or JSONL file, or ops.
    tokens, phase, dtype, pattern
        The part of a file to run and what to run it with instead of its own, as for `load_workload`; not
        for a workload that is already loaded.
    timing : str
        Whose launch costs count, as for `simulate_gemm`.
    streams : int
        Streams that the ops are dealt to in turn.
    graph : bool
        Each pass is one CUDA graph (implied by timing ``graph``).
    repeats : int
        Passes over the workload.
    progress : callable, optional
        Called as progress(done, total, name) after each op.

    Returns
    -------
    WorkloadResult
        A row for each op with path, reason and times in µs; makespans, fallback rates, host-bound share.

    Raises
    ------
    UserError
        Every problem of the arguments and of the files, one line each.
    NoKernelError
        An op's type has no dense kernel on this GPU.
    """
    from sparsesim.runtime import run_workload

    simulator, loaded, protocol = _many(
        gpu, workload, tokens, phase, dtype, pattern, stack, timing, l2, clock, baseline
    )
    return run_workload(loaded, simulator, protocol, streams, graph, repeats, progress)


def explain_workload(
    gpu: str | Path | GpuSpec,
    workload: str | Path | Workload | Iterable[Gemm],
    tokens: int | None = None,
    phase: str | None = None,
    dtype: str | None = None,
    pattern: str | None = None,
    stack: str | Stack | None = None,
    timing: str = "kernel",
    l2: str = "rotating",
    clock: str = "free",
    progress: Callable[[int, int, str], None] | None = None,
    baseline: str | None = None,
) -> WorkloadAttribution:
    """Say where the speedup of a workload went, op by op; parameters and errors as for `simulate_workload`.

    Returns
    -------
    WorkloadAttribution
        One `Attribution` for each op, and their sum weighted by time.
    """
    from sparsesim.attribution import attribute_workload

    simulator, loaded, protocol = _many(
        gpu, workload, tokens, phase, dtype, pattern, stack, timing, l2, clock, baseline
    )
    return attribute_workload(simulator, loaded, protocol, progress=progress)


def workload_counters(
    result: WorkloadResult,
    gpu: str | Path | GpuSpec,
    stack: str | Stack | None = None,
    dtype: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Counters:
    """Count fallbacks, conversions, metadata, tensor-core use and precision of what `simulate_workload` returned.

    Parameters
    ----------
    result : WorkloadResult
    gpu, stack
        Those that it ran on.
    dtype : str, optional
        That the caller asked for instead of the workload's.
    progress : callable, optional
        Called as progress(done, total) after each op.

    Raises
    ------
    UserError
        GPU or stack are unknown.
    """
    from sparsesim.counters import count

    chosen = stack if isinstance(stack, Stack) else get_stack(stack or DEFAULT_STACK)
    return count(result, resolve_gpu(gpu), chosen, dtype, progress)


def report_workload(
    gpu: str | Path | GpuSpec,
    workload: str | Path | Workload | Iterable[Gemm],
    tokens: int | None = None,
    phase: str | None = None,
    dtype: str | None = None,
    pattern: str | None = None,
    stack: str | Stack | None = None,
    timing: str = "kernel",
    l2: str = "rotating",
    clock: str = "free",
    dims: Mapping[str, int] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    baseline: str | None = None,
) -> Report:
    """Simulate a workload and report on it: answer, layers, losses, fallbacks and what mending them brings.

    Parameters
    ----------
    gpu, stack, timing, l2, clock, baseline
        As for `simulate_workload`.
    workload : str, Path, Workload or iterable of Gemm
        As for `simulate_workload`, or a file that `import_file` reads: config.json, ONNX, safetensors, a trace.
    tokens, phase, dtype, pattern
        As for `simulate_workload`; of a foreign file, tokens and phase only where its format has them.
    dims : mapping, optional
        Sizes of dynamic dimensions of a foreign file, as for `import_file`.
    progress : callable, optional
        Called as progress(step, done, total).

    Returns
    -------
    Report
        `sparsesim.report.html` and `sparsesim.report.markdown` render it, `Report.to_dict` is its plain form.

    Raises
    ------
    UserError, NoKernelError
        As `simulate_workload` and `import_file`.
    """
    from sparsesim.report.build import build_report
    from sparsesim.report.commands import Source
    from sparsesim.report.foreign import load_any

    problems = _Gather()
    form = ""
    notes: tuple[str, ...] = ()
    with problems:
        spec = resolve_gpu(gpu)
    with problems:
        if isinstance(workload, str | Path):
            loaded, form, notes = load_any(workload, tokens, phase, dtype, pattern, dims)
        else:
            loaded = _workload(workload, tokens, phase, dtype, pattern)
    with problems:
        chosen = stack if isinstance(stack, Stack) else get_stack(stack or DEFAULT_STACK)
    with problems:
        protocol = Protocol.parse(timing, l2, clock)
    problems.raise_if_any()
    source = Source(
        str(workload) if isinstance(workload, str | Path) else loaded.name,
        str(gpu) if isinstance(gpu, str | Path) else spec.name,
        form, tokens, phase, dtype, pattern, tuple((dims or {}).items()), chosen.name, timing, l2, clock, baseline,
    )  # fmt: skip
    return build_report(Simulator(spec, chosen, baseline), loaded, protocol, source, notes, progress)


def validate_files(
    files: Iterable[str | Path],
    min_us: float = 10.0,
    progress: Callable[[int, int], None] | None = None,
    gpu: str | Path | GpuSpec | None = None,
    shapes: str | Path | Workload | None = None,
) -> Validation:
    """Compare the model with files of measured timings, and with profiles.

    Parameters
    ----------
    files : iterable of paths
        CSV files in the schema of `sparsesim.measured`, and profiles (see `sparsesim.profiles`).
    min_us : float
        Rows measured below this [µs] are predicted but enter no group.
    progress : callable, optional
        Called as progress(done, total) after each row.
    gpu : str, Path or GpuSpec, optional
        The GPU of profiles that do not name theirs; its description also stands for rows of that name.
    shapes : str, Path or Workload, optional
        Shapes of a profile's GEMM kernels in the order of their launches, where it records none.

    Returns
    -------
    Validation
        Error measures (defined in `sparsesim.validate`) by GPU, type and kind, each row with its
        prediction, and the rows that could not be simulated, with the reason. Of profiles also `kernels`:
        path, tile and hardware counters beside the model's.

    Raises
    ------
    UserError
        No files, one given twice, or unreadable ones: every problem, one line each.
    """
    from dataclasses import replace

    from sparsesim.measured import MeasuredRow, read_measured
    from sparsesim.profile_check import read_profiles, summary
    from sparsesim.profiles import detect_profile
    from sparsesim.validate import validate_rows

    problems = _Gather()
    paths = [Path(file) for file in files]
    if not paths:
        problems.lines.append("files: expected at least one CSV file of measured timings, found none")
    if not 0.0 <= min_us < float("inf"):
        problems.lines.append(Problem.line("min_us", "", "a time of at least 0 [µs]", min_us))
    rows: list[MeasuredRow] = []
    profiled: list[Path] = []
    seen: set[Path] = set()
    for path in paths:
        with problems:
            if path.resolve() in seen:
                raise UserError(f"{path}: expected each file once, found it twice")
            seen.add(path.resolve())
            if detect_profile(path) is None:
                rows += read_measured(path)
            else:
                profiled.append(path)
    with problems:
        spec = None if gpu is None else resolve_gpu(gpu)
        ops = load_workload(shapes) if isinstance(shapes, str | Path) else shapes
    problems.raise_if_any()
    launches = None if ops is None else [op for op in ops.ops for _ in range(op.count)]
    profiles = read_profiles(profiled, spec, launches)
    rows += profiles.rows
    total = len(rows)
    result = validate_rows(
        rows,
        lambda name: spec if spec is not None and name == spec.name else load_gpu(name),
        min_us,
        None if progress is None else lambda done: progress(done, total),
    )
    if not profiled:
        return result
    checks = profiles.check()
    kernels = {**summary(checks), "checks": [check.to_dict() for check in checks]}
    return replace(result, skipped=[*result.skipped, *profiles.skipped], kernels=kernels)


def audit_file(
    path: str | Path,
    gpu: str | Path | GpuSpec,
    stack: str | Stack | None = None,
    patterns: Sequence[str] | None = None,
    tokens: int = 2048,
    dtype: str | None = None,
    k_axis: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Audit:
    """Audit the weights in a checkpoint: N:M along which axis, what breaks it, and whether the stack runs it sparse.

    The file is streamed, in memory that its size does not bound. Parameters as for
    `sparsesim.audit.audit_weights`, with GPU and stack by name.

    Returns
    -------
    Audit
        A record for each tensor; `Audit.workload` has the products that run sparse.

    Raises
    ------
    UserError
        Every problem of the arguments, or of the file's headers, or the first of its data.
    """
    from sparsesim.audit import audit_weights

    problems = _Gather()
    with problems:
        spec = resolve_gpu(gpu)
    with problems:
        chosen = stack if isinstance(stack, Stack) else get_stack(stack or DEFAULT_STACK)
    if issue := size_issue("tokens", tokens):
        problems.lines.append(Problem.line("tokens", "", *issue[1:]))
    with problems:
        _gemm(1, 1, 1, dtype or "f16", "dense", 1, None)
    if k_axis not in (None, 0, 1):
        problems.lines.append(Problem.line("k_axis", "", "0 or 1", k_axis))
    for text in patterns or ():
        with problems:
            Pattern.parse(text)
    problems.raise_if_any()
    return audit_weights(path, spec, chosen, patterns, tokens, dtype, k_axis, progress)


def resolve_gpu(gpu: str | Path | GpuSpec) -> GpuSpec:
    """The description meant by `gpu`; raises `UserError` (see `load_gpu`)."""
    return gpu if isinstance(gpu, GpuSpec) else load_gpu(gpu)


class _Gather:
    """Collects the problems of several steps: ``with gather: step()`` goes on after a `UserError`."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, UserError):
            self.lines += error.problems
            return True
        return False

    def raise_if_any(self) -> None:
        """Raise one `UserError` with all lines, if there are any."""
        if self.lines:
            raise UserError(self.lines)


def _gemm(m: int, n: int, k: int, dtype: str, pattern: str, batch: int, acc_dtype: str | None) -> Gemm:
    """The op, with its problems worded as those of arguments."""
    try:
        return Gemm("gemm", m, n, k, batch=batch, dtype=dtype, acc_dtype=acc_dtype, pattern=pattern)
    except GemmError as error:
        raise UserError(issue_line("gemm", "", issue) for issue in error.issues) from None


def _one(
    gpu: str | Path | GpuSpec,
    m: int,
    n: int,
    k: int,
    dtype: str,
    pattern: str,
    batch: int,
    stack: str | Stack | None,
    timing: str,
    l2: str,
    clock: str,
    acc_dtype: str | None,
    baseline: str | None,
) -> tuple[Simulator, Gemm, Protocol]:
    """Everything a GEMM needs, or one error with all problems."""
    problems = _Gather()
    with problems:
        spec = resolve_gpu(gpu)
    with problems:
        op = _gemm(m, n, k, dtype, pattern, batch, acc_dtype)
    with problems:
        chosen = stack if isinstance(stack, Stack) else get_stack(stack or DEFAULT_STACK)
    with problems:
        protocol = Protocol.parse(timing, l2, clock)
    problems.raise_if_any()
    return Simulator(spec, chosen, baseline), op, protocol


def _many(
    gpu: str | Path | GpuSpec,
    workload: str | Path | Workload | Iterable[Gemm],
    tokens: int | None,
    phase: str | None,
    dtype: str | None,
    pattern: str | None,
    stack: str | Stack | None,
    timing: str,
    l2: str,
    clock: str,
    baseline: str | None,
) -> tuple[Simulator, Workload, Protocol]:
    """Everything a workload needs, or one error with all problems."""
    problems = _Gather()
    with problems:
        spec = resolve_gpu(gpu)
    with problems:
        loaded = _workload(workload, tokens, phase, dtype, pattern)
    with problems:
        chosen = stack if isinstance(stack, Stack) else get_stack(stack or DEFAULT_STACK)
    with problems:
        protocol = Protocol.parse(timing, l2, clock)
    problems.raise_if_any()
    return Simulator(spec, chosen, baseline), loaded, protocol


def _workload(
    workload: str | Path | Workload | Iterable[Gemm],
    tokens: int | None,
    phase: str | None,
    dtype: str | None,
    pattern: str | None,
) -> Workload:
    """The workload meant; what selects a part of a file is an error where there is no file."""
    if isinstance(workload, str | Path):
        return load_workload(workload, tokens=tokens, dtype=dtype, pattern=pattern, phase=phase)
    given = {"tokens": tokens, "phase": phase, "dtype": dtype, "pattern": pattern}
    lines = [
        Problem.line(name, "", "nothing where the workload is given as ops", value)
        for name, value in given.items()
        if value is not None
    ]
    if lines:
        raise UserError(lines)
    return workload if isinstance(workload, Workload) else Workload("ops", "", "", tuple(workload))
