"""The what-if studies and the timeline as functions: one call from names and numbers to a result.

Where `api` answers for one GEMM or workload as it is, these change things: `whatif` sets and varies parameters,
`sensitivity` steps each of them, `break_even` maps a GPU, `compare_patterns` sets patterns side by side. `timeline`
shows one run over time. All take the GEMM by m, n and k, or a workload, with the words of `api.simulate_gemm` and
`api.simulate_workload`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsesim.hardware import GpuSpec
from sparsesim.scenarios import build_scenario

if TYPE_CHECKING:
    from sparsesim.scenarios import BreakEven, PatternTable, Sensitivities, WhatIf

__all__ = ["break_even", "compare_patterns", "sensitivity", "timeline", "whatif"]

Progress = Callable[[int, int], None]


def whatif(
    gpu: str | Path | GpuSpec,
    changes: Sequence[str] = (),
    vary: Sequence[str] = (),
    progress: Progress | None = None,
    jobs: int | None = None,
    **run: Any,
) -> WhatIf:
    """Run a GEMM or a workload with parameters set (`changes`) and one or two varied (`vary`).

    Parameters
    ----------
    gpu : str, Path or GpuSpec
    changes : sequence of str
        ``l2.bytes=16MiB``, ``metadata.groups_per_clk*=0.5``, ``dram.latency+=50ns``; paths in `scenarios.paths`.
    vary : sequence of str
        ``l2.bytes=16MiB:128MiB:8``, ``n=64:4096:7:log``, ``pattern=2:4,1:4``.
    progress : callable, optional
        Called as progress(done, total) in scenarios.
    jobs : int, optional
        Processes; None: one for each core.
    **run
        ``m``, ``n``, ``k`` or ``workload``, and the other words of `scenarios.build_scenario`.

    Raises
    ------
    UserError
        Every problem, one line each: unknown paths (with the nearest), implausible values.
    """
    from sparsesim.scenarios import what_if

    return what_if(build_scenario(gpu, **run), changes, vary, progress, jobs)


def sensitivity(
    gpu: str | Path | GpuSpec,
    step: float = 0.1,
    only: Sequence[str] = (),
    progress: Progress | None = None,
    jobs: int | None = None,
    **run: Any,
) -> Sensitivities:
    """Elasticity d ln speedup / d ln parameter of every hardware parameter, for a step up and one down.

    Parameters and errors as for `whatif` and `scenarios.sensitivities`.
    """
    from sparsesim.scenarios import sensitivities

    return sensitivities(build_scenario(gpu, **run), step, only, progress, jobs)


def break_even(
    gpu: str | Path | GpuSpec,
    tokens: Sequence[int] | None = None,
    sides: Sequence[int] | None = None,
    measured: Sequence[str | Path] = (),
    progress: Progress | None = None,
    jobs: int | None = None,
    **run: Any,
) -> BreakEven:
    """Map over tokens n and square weights m = k where sparse beats dense; see `scenarios.break_even`.

    `run` takes ``dtype``, ``pattern``, ``stack`` and the protocol.
    """
    from sparsesim.scenarios import break_even as mapped
    from sparsesim.scenarios.breakeven import SIDES, TOKENS

    scenario = build_scenario(gpu, m=256, n=256, k=256, **run)
    return mapped(scenario, tokens or TOKENS, sides or SIDES, measured, progress, jobs)


def compare_patterns(
    gpu: str | Path | GpuSpec,
    patterns: Sequence[str] | None = None,
    expanded: Sequence[str] | None = None,
    progress: Progress | None = None,
    jobs: int | None = None,
    **run: Any,
) -> PatternTable:
    """One GEMM under several patterns on equal hardware, and expanded along k; see `scenarios.compare_patterns`."""
    from sparsesim.scenarios import compare_patterns as compared
    from sparsesim.scenarios.patterns import EXPANDED, PATTERNS

    scenario = build_scenario(gpu, **run)
    return compared(
        scenario, PATTERNS if patterns is None else patterns, EXPANDED if expanded is None else expanded, progress, jobs
    )


def timeline(
    gpu: str | Path | GpuSpec,
    bins: int | None = None,
    ctas: str = "first",
    runs: Sequence[str] = ("sparse", "dense"),
    progress: Callable[[int, int, str], None] | None = None,
    **run: Any,
) -> dict[str, Any]:
    """A run of a GEMM or a workload as a Chrome trace; see `chrometrace.chrome_trace`.

    Returns
    -------
    dict
        Plain data; written as JSON it opens in Perfetto and chrome://tracing.
    """
    from sparsesim.chrometrace import chrome_trace
    from sparsesim.runtime import run_workload
    from sparsesim.simulator import Simulator

    scenario = build_scenario(gpu, **run)
    simulator = Simulator(scenario.gpu, scenario.stack)
    result = run_workload(
        scenario.workload, simulator, scenario.protocol, scenario.streams, scenario.graph, scenario.repeats
    )
    return chrome_trace(result, simulator, bins, ctas, runs, progress)
