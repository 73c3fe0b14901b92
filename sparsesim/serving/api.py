"""Serving as one call from names and numbers, with every problem of the arguments raised at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from sparsesim.errors import ProblemList, UserError
from sparsesim.hardware import GpuSpec, load_gpu
from sparsesim.serving.endtoend import EndToEnd, predict_cells
from sparsesim.serving.measured import Cell, read_cells
from sparsesim.serving.models import ServedModel, get_served_model
from sparsesim.serving.requests import MAX_TOKENS, Arrivals, Lengths, read_trace
from sparsesim.serving.results import ServingResult
from sparsesim.serving.serve import Policy, check_arguments, serve
from sparsesim.serving.stack import ServingStack, get_serving_stack

__all__ = ["simulate_serving", "validate_serving"]


def simulate_serving(
    gpu: str | Path | GpuSpec,
    model: str | Path | ServedModel,
    dtype: str = "i8",
    pattern: str = "2:4",
    serving_stack: str | ServingStack = "vllm-slidesparse",
    arrivals: str = "poisson",
    rate: float = 1.0,
    burst: float = 8.0,
    clients: int = 16,
    think_s: float = 0.0,
    trace: str | Path | None = None,
    prompt: int = 512,
    output: int = 128,
    spread: float = 0.5,
    requests: int = 200,
    replications: int = 5,
    seed: int = 0,
    warmup: float = 0.1,
    scheduler: str = "continuous",
    max_seqs: int | None = None,
    max_tokens: int = 2048,
    chunked: bool = True,
    memory_fraction: float | None = None,
    kv_tokens: int | None = None,
    tp: int = 1,
    host: float | None = None,
    exact: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> ServingResult:
    """Serve requests with the dense model and with a sparse one, on the same draws.

    Parameters
    ----------
    gpu, model : a packaged name, a file (TOML; ``config.json``), or what was loaded from one
    dtype, pattern : of the linear layers; a pattern of ``dense`` runs the dense model alone
    arrivals, rate, burst, clients, think_s : see `sparsesim.serving.requests.Arrivals`
    trace : CSV file of arrival_s, prompt_tokens, output_tokens; its requests replace the drawn ones, and every
        replication would be the same, so there is one
    prompt, output, spread : see `Lengths`
    scheduler, max_seqs, max_tokens, chunked, memory_fraction, kv_tokens : see `Policy`
    requests, replications, seed, warmup, tp, host, exact, progress : see `serve`

    Returns
    -------
    ServingResult
        Latencies [s], throughputs, utilisation with 95 % intervals; gains booked to kernels and to freed memory; and
        these arguments, so that the run can be made again.

    Raises
    ------
    UserError
        Every problem of the arguments and files, one line each.
    """
    problems: list[str] = []

    def collect(load: Callable[[], object]) -> object:
        try:
            return load()
        except UserError as error:
            problems.extend(error.problems)
            return None

    spec = gpu if isinstance(gpu, GpuSpec) else collect(lambda: load_gpu(gpu))
    served = model if isinstance(model, ServedModel) else collect(lambda: get_served_model(model))
    stack = serving_stack
    if not isinstance(serving_stack, ServingStack):
        stack = collect(lambda: get_serving_stack(serving_stack))  # type: ignore[assignment]
    rows = collect(lambda: read_trace(trace)) if trace is not None else ()
    kind = "trace" if trace is not None else arrivals
    coming = Arrivals(kind, rate, burst, clients, think_s, rows or ())  # type: ignore[arg-type]
    if not (kind == "trace" and rows is None):
        collect(coming.check)
    sizes = ProblemList("serve")
    for name, value in (("prompt", prompt), ("output", output)):
        if not 1 <= value <= MAX_TOKENS:
            sizes.add(name, f"an integer from 1 to {MAX_TOKENS}", value)
    if not 0.0 <= spread < 10.0:
        sizes.add("spread", "a coefficient of variation from 0 to 10", spread)
    problems.extend(sizes.lines)
    policy = Policy(scheduler, max_seqs, max_tokens, chunked, memory_fraction, kv_tokens)
    given = (policy, dtype, pattern, tp, len(coming.trace) or requests, replications, seed, warmup, host)
    collect(lambda: check_arguments(*given))
    if problems:
        raise UserError(problems)
    assert isinstance(spec, GpuSpec)
    assert isinstance(served, ServedModel)
    assert isinstance(stack, ServingStack)
    found = serve(
        spec, served, stack, coming, Lengths(prompt, output, spread), policy,
        dtype=dtype, pattern=pattern, tp=tp, requests=len(coming.trace) or requests,
        replications=1 if kind == "trace" else replications, seed=seed, warmup=warmup, host=host, exact=exact,
        progress=progress,
    )  # fmt: skip
    inputs = {
        "model": model.name if isinstance(model, ServedModel) else str(model),
        "gpu": gpu.name if isinstance(gpu, GpuSpec) else str(gpu),
        "dtype": dtype, "pattern": pattern, "serving_stack": stack.name, "arrivals": arrivals, "rate": rate,
        "burst": burst, "clients": clients, "think_s": think_s, "trace": None if trace is None else str(trace),
        "prompt": prompt, "output": output, "spread": spread, "requests": requests, "replications": replications,
        "seed": seed, "warmup": warmup, "scheduler": scheduler, "max_seqs": max_seqs, "max_tokens": max_tokens,
        "chunked": chunked, "memory_fraction": memory_fraction, "kv_tokens": kv_tokens, "tp": tp, "host": host,
        "exact": exact,
    }  # fmt: skip
    return replace(found, inputs=inputs)


def validate_serving(files: Iterable[str | Path], progress: Callable[[int, int], None] | None = None) -> EndToEnd:
    """Compare the runtime with files of measured serving throughputs.

    Parameters
    ----------
    files : CSV files in the schema of `sparsesim.serving.measured`
    progress : called as progress(done, total) after each cell

    Returns
    -------
    EndToEnd
        Errors by GPU, type and phase, each cell with its prediction and where the kernels' gain went, and the cells
        that could not be simulated, with the reason.

    Raises
    ------
    UserError
        No files, one given twice, or unreadable ones: every problem, one line each.
    """
    problems: list[str] = []
    cells: list[Cell] = []
    seen: set[Path] = set()
    for path in map(Path, files):
        if path.resolve() in seen:
            problems.append(f"{path}: expected each file once, found it twice")
            continue
        seen.add(path.resolve())
        try:
            cells += read_cells(path)
        except UserError as error:
            problems.extend(error.problems)
    if not seen:
        problems.append("files: expected at least one CSV file of serving throughputs, found none")
    if problems:
        raise UserError(problems)
    total = len(cells)
    return predict_cells(cells, progress=None if progress is None else lambda done: progress(done, total))
