"""``sparsesim whatif``, ``sensitivity``, ``breakeven`` and ``patterns``: parameters changed, and what becomes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparsesim.cli import options as opt
from sparsesim.cli.output import (
    JsonTarget,
    add_row,
    bar,
    output_file,
    percent,
    progress,
    say,
    show_table,
    show_time,
    table,
)
from sparsesim.errors import Problem, UserError
from sparsesim.wording import counted

if TYPE_CHECKING:
    from sparsesim.scenarios import BreakEven, ExpansionCheck, Outcome, PatternTable, Scenario, Sensitivities, WhatIf

__all__ = ["register"]

WHATIF = (
    "Example: sparsesim whatif --gpu h100_pcie -m 4096 -n 4096 -k 4096 --set dram.bytes_per_s*=2"
    " --vary l2.bytes=16MiB:128MiB:8 --plot l2.png;  sparsesim whatif llama-3.1-8b --phase decode --tokens 64"
    " --gpu a100_pcie_80gb --vary pattern=2:4,1:4 --set tensor.native_patterns.f16+=1:4"
)
SENSITIVITY = "Example: sparsesim sensitivity --gpu a100_pcie_80gb -m 4096 -n 4096 -k 4096 --plot tornado.png"
BREAKEVEN = (
    "Example: sparsesim breakeven --gpu h100_pcie --dtype bf16 --timing stream --l2 warm"
    " --measured measured/sparse/slidesparse_h100_pcie.csv --plot breakeven.png"
)
PATTERNS = (
    "Example: sparsesim patterns --gpu a100_pcie_80gb -m 4096 -n 4096 -k 3840 --expand 6:8 --plot patterns.png;  "
    "sparsesim patterns --gpu h100_pcie --dtype bf16 --expand 6:8 --measured slidesparse_kexpanded_sparse_only.csv"
    " --measured slidesparse_h100_pcie.csv"
)

Source = Annotated[
    str | None,
    typer.Argument(metavar="[WORKLOAD]", help="Packaged workload or a file; instead of -m, -n and -k."),
]
OpDtype = Annotated[
    str | None, typer.Option("--dtype", metavar="TYPE", help="Input type; default f16, or what the workload says.")
]
OpPattern = Annotated[
    str | None, typer.Option("--pattern", metavar="N:M", help="Of A; default 2:4, or what the workload says.")
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Set a parameter (=) or change it (*=, /=, +=, -=); may be given again. Paths as in `sparsesim check`.",
    ),
]
Vary = Annotated[
    list[str] | None,
    typer.Option(
        "--vary",
        metavar="PATH=VALUES",
        help="Vary a parameter: low:high:count, low:high:count:log or a,b,c; at most twice.",
    ),
]
Plot = Annotated[str | None, typer.Option("--plot", metavar="FILE", help="Also draw a figure, a PNG.")]
Jobs = Annotated[int | None, opt.integer("--jobs", "Processes; by default one for each core.")]
Step = Annotated[float, typer.Option("--step", metavar="SHARE", help="Relative step, up and down.", parser=opt.number)]
Only = Annotated[
    list[str] | None, typer.Option("--only", metavar="PATH", help="Only parameters that begin so; may be given again.")
]
Top = Annotated[int, opt.integer("--top", "Parameters to show.")]
Tokens = Annotated[str | None, typer.Option("--tokens", metavar="LIST", help="n of the map: 16,64,256.")]
Sides = Annotated[str | None, typer.Option("--sides", metavar="LIST", help="m = k of the weights: 1024,2048.")]
Measured = Annotated[
    list[str] | None,
    typer.Option("--measured", metavar="FILE", help="CSV file of measured timings; may be given again."),
]
Patterns = Annotated[str | None, typer.Option("--patterns", metavar="LIST", help="Patterns: dense,2:4,1:4.")]
Expand = Annotated[
    str | None, typer.Option("--expand", metavar="LIST", help="Patterns to run as 2:4 on a longer k: 6:8.")
]


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.command("whatif", epilog=WHATIF)(whatif)
    app.command("sensitivity", epilog=SENSITIVITY)(sensitivity)
    app.command("breakeven", epilog=BREAKEVEN)(breakeven)
    app.command("patterns", epilog=PATTERNS)(patterns)


def whatif(
    workload: Source = None,
    gpu: opt.OptionalGpu = None,
    m: opt.OptionalM = None,
    n: opt.OptionalN = None,
    k: opt.OptionalK = None,
    set_: Set = None,
    vary: Vary = None,
    batch: opt.Batch = 1,
    dtype: OpDtype = None,
    acc: opt.Acc = None,
    pattern: OpPattern = None,
    tokens: opt.Tokens = None,
    phase: opt.Phase = None,
    stack: opt.StackName = None,
    timing: opt.Timing = "kernel",
    l2: opt.L2 = "rotating",
    clock: opt.Clock = "free",
    plot: Plot = None,
    jobs: Jobs = None,
    json: opt.Json = None,
) -> None:
    """Set, scale and vary parameters of hardware, stack, workload and protocol; compare with how it was."""
    target, picture = JsonTarget.parse(json), output_file(plot, "--plot")
    scenario = _scenario(
        gpu, workload=workload, m=m, n=n, k=k, batch=batch, dtype=dtype, acc_dtype=acc, pattern=pattern,
        tokens=tokens, phase=phase, stack=stack, timing=timing, l2=l2, clock=clock,
    )  # fmt: skip
    if not set_ and not vary:
        raise UserError("whatif: expected --set or --vary, found neither")
    from sparsesim.scenarios import what_if

    with progress("simulating") as report:
        result = what_if(scenario, set_ or (), vary or (), report, _jobs(jobs))
    if picture is not None:
        from sparsesim.figures import draw_whatif, save

        save(draw_whatif(result), picture)
    if target.write(result.to_dict()):
        show_whatif(result)


def sensitivity(
    workload: Source = None,
    gpu: opt.OptionalGpu = None,
    m: opt.OptionalM = None,
    n: opt.OptionalN = None,
    k: opt.OptionalK = None,
    step: Step = 0.1,
    only: Only = None,
    top: Top = 15,
    batch: opt.Batch = 1,
    dtype: OpDtype = None,
    acc: opt.Acc = None,
    pattern: OpPattern = None,
    tokens: opt.Tokens = None,
    phase: opt.Phase = None,
    stack: opt.StackName = None,
    timing: opt.Timing = "kernel",
    l2: opt.L2 = "rotating",
    clock: opt.Clock = "free",
    plot: Plot = None,
    jobs: Jobs = None,
    json: opt.Json = None,
) -> None:
    """Step each hardware parameter up and down; elasticity d ln speedup / d ln parameter, largest first."""
    target, picture = JsonTarget.parse(json), output_file(plot, "--plot")
    scenario = _scenario(
        gpu, workload=workload, m=m, n=n, k=k, batch=batch, dtype=dtype, acc_dtype=acc, pattern=pattern,
        tokens=tokens, phase=phase, stack=stack, timing=timing, l2=l2, clock=clock,
    )  # fmt: skip
    from sparsesim.scenarios import sensitivities

    with progress("simulating") as report:
        result = sensitivities(scenario, step, only or (), report, _jobs(jobs))
    if picture is not None:
        from sparsesim.figures import draw_tornado, save

        save(draw_tornado(result), picture)
    if target.write(result.to_dict()):
        show_sensitivities(result, top)


def breakeven(
    gpu: opt.OptionalGpu = None,
    dtype: opt.Dtype = "f16",
    pattern: opt.PatternText = "2:4",
    tokens: Tokens = None,
    sides: Sides = None,
    measured: Measured = None,
    acc: opt.Acc = None,
    stack: opt.StackName = None,
    timing: opt.Timing = "kernel",
    l2: opt.L2 = "rotating",
    clock: opt.Clock = "free",
    plot: Plot = None,
    jobs: Jobs = None,
    json: opt.Json = None,
) -> None:
    """Map over tokens n and weight size m·k where the sparse path beats dense; with measured pairs if given."""
    target, picture = JsonTarget.parse(json), output_file(plot, "--plot")
    scenario = _scenario(
        gpu, m=256, n=256, k=256, dtype=dtype, acc_dtype=acc, pattern=pattern, stack=stack, timing=timing, l2=l2,
        clock=clock,
    )  # fmt: skip
    from sparsesim.scenarios import break_even
    from sparsesim.scenarios.breakeven import SIDES, TOKENS

    with progress("simulating") as report:
        result = break_even(
            scenario, _integers(tokens, "--tokens") or TOKENS, _integers(sides, "--sides") or SIDES, measured or (),
            report, _jobs(jobs),
        )  # fmt: skip
    if picture is not None:
        from sparsesim.figures import draw_breakeven, save

        save(draw_breakeven(result), picture)
    if target.write(result.to_dict()):
        show_breakeven(result)


def patterns(
    gpu: opt.OptionalGpu = None,
    m: opt.OptionalM = None,
    n: opt.OptionalN = None,
    k: opt.OptionalK = None,
    patterns: Patterns = None,
    expand: Expand = None,
    measured: Measured = None,
    batch: opt.Batch = 1,
    dtype: OpDtype = None,
    acc: opt.Acc = None,
    stack: opt.StackName = None,
    timing: opt.Timing = "kernel",
    l2: opt.L2 = "rotating",
    clock: opt.Clock = "free",
    plot: Plot = None,
    jobs: Jobs = None,
    json: opt.Json = None,
) -> None:
    """Patterns side by side: on the GPU as it is, with a datapath that has them all, and expanded along k.

    With --measured, compare the model with measured timings of K-expanded products instead (of one --gpu and
    --dtype, or all).
    """
    target, picture = JsonTarget.parse(json), output_file(plot, "--plot")
    expanded = _words(expand)
    if measured:
        from sparsesim.measured import read_measured
        from sparsesim.scenarios import check_expansion

        if any(value is not None for value in (m, n, k, patterns)) or len(expanded or ()) > 1:
            raise UserError("patterns: expected --measured with one --expand pattern and no GEMM, found more")
        rows = [row for file in measured for row in read_measured(file)]
        rows = [row for row in rows if gpu in (None, row.gpu) and dtype in (None, row.dtype)]
        with progress("predicting") as report:
            check = check_expansion(rows, (expanded or ("6:8",))[0], progress=report, jobs=_jobs(jobs))
        if picture is not None:
            from sparsesim.figures import draw_expansion, save

            save(draw_expansion(check), picture)
        if target.write(check.to_dict()):
            show_expansion(check)
        return
    scenario = _scenario(
        gpu, m=m, n=n, k=k, batch=batch, dtype=dtype, acc_dtype=acc, stack=stack, timing=timing, l2=l2, clock=clock
    )
    from sparsesim.scenarios import compare_patterns
    from sparsesim.scenarios.patterns import PATTERNS as EVERY

    with progress("simulating") as report:
        result = compare_patterns(scenario, _words(patterns) or EVERY, expanded or (), report, _jobs(jobs))
    if picture is not None:
        from sparsesim.figures import draw_patterns, save

        save(draw_patterns(result), picture)
    if target.write(result.to_dict()):
        show_patterns(result)


# --- arguments ---


def _scenario(gpu: str | None, **run: Any) -> Scenario:
    from sparsesim.scenarios import build_scenario

    if gpu is None:
        raise UserError("--gpu: expected a packaged GPU or a path to a .toml file, found none")
    return build_scenario(gpu, **run)


def _jobs(jobs: int | None) -> int | None:
    if jobs is not None and not 1 <= jobs <= 256:
        raise UserError(Problem.line("--jobs", "", "a number of processes from 1 to 256", jobs))
    return jobs


def _words(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(item.strip() for item in text.split(",") if item.strip())


def _integers(text: str | None, flag: str) -> tuple[int, ...] | None:
    words = _words(text)
    try:
        return None if words is None else tuple(int(word) for word in words)
    except ValueError:
        raise UserError(Problem.line(flag, "", "integers such as 16,64,256", text)) from None


# --- views ---

NUMBERS = ("time", "dense", "speedup", "against before")


def _headline(scenario: Scenario) -> None:
    op, protocol = scenario.op, scenario.protocol
    batch = f"{op.batch} × " if op.batch > 1 else ""
    what = f"{batch}{op.m}×{op.n}×{op.k} {op.dtype} {op.pattern}" if scenario.single else scenario.workload.name
    say(
        f"{scenario.gpu.name}, {scenario.stack.name}: {what}; timing {protocol.timing}, L2 {protocol.l2}, "
        f"clock {protocol.clock}",
        "bold",
    )


def _cells(outcome: Outcome, before: Outcome | None) -> list[str]:
    """time, dense time, speedup, speedup against `before`, path, bound by."""
    if outcome.error:
        return ["-", "-", "-", "-", "none", outcome.error]
    against = "" if before is None or before.error else f"×{outcome.speedup / before.speedup:.3f}"
    path = f"{outcome.path} ({outcome.reason})" if outcome.path == "dense" else outcome.path
    return [
        show_time(outcome.time_us), show_time(outcome.dense_time_us), f"{outcome.speedup:.3f}", against, path,
        outcome.bound_by,
    ]  # fmt: skip


def show_whatif(result: WhatIf) -> None:
    """Print how it was, how it is, and the points of the axes."""
    _headline(result.base)
    grid = table("", *NUMBERS, "path", "bound by", right=NUMBERS)
    add_row(grid, "before", *_cells(result.before, None))
    if result.changes:
        add_row(grid, "after " + ", ".join(map(str, result.changes)), *_cells(result.after, result.before))
    show_table("Before and after", grid)
    if not result.axes:
        return
    names = [axis.path for axis in result.axes]
    grid = table(*names, *NUMBERS, "path", "bound by", right=(*names, *NUMBERS))
    for point in result.points:
        add_row(grid, *point.labels, *_cells(point.outcome, result.before))
    show_table("Varied: " + ", ".join(names), grid)


def show_sensitivities(result: Sensitivities, top: int) -> None:
    """Print the elasticities, largest first."""
    _headline(result.scenario)
    base = result.base
    say(f"speedup   {base.speedup:.3f}: {show_time(base.time_us)}, dense {show_time(base.dense_time_us)}")
    numbers = ("value", "speedup, step up", "speedup, step down", "time, step up", "time, step down")
    grid = table("parameter", *numbers, "", right=numbers)
    shown = [row for row in result.rows if row.largest >= 5e-4][:top]
    widest = shown[0].largest if shown else 1.0
    for row in shown:
        value = f"{row.value:.4g}" + (f" {row.unit}" if row.unit != "-" else "")
        rates = (row.speedup_up, row.speedup_down, row.time_up, row.time_down)
        add_row(
            grid,
            row.path,
            value,
            *("at its limit" if rate is None else f"{rate:+.3f}" for rate in rates),
            bar(row.largest / widest, 16),
        )
    show_table(f"Elasticity d ln / d ln parameter, step {percent(result.step, 0)}", grid)
    rest = sum(row.largest < 5e-4 for row in result.rows)
    stepped = counted(len(result.rows), "parameter")
    say(f"\n{stepped} stepped, {rest} without effect; {len(result.skipped)} have no relative step")


def show_breakeven(result: BreakEven) -> None:
    """Print the map as a table of speedups, where it crosses 1, and how it stands to measured pairs."""
    op, protocol = result.scenario.op, result.scenario.protocol
    say(
        f"{result.scenario.gpu.name}, {result.scenario.stack.name}: {op.dtype} {op.pattern}; timing {protocol.timing},"
        f" L2 {protocol.l2}, clock {protocol.clock}",
        "bold",
    )
    names = [f"n={n}" for n in result.tokens]
    grid = table("m = k", *names, "breaks even at n", right=("m = k", *names, "breaks even at n"))
    for side, row, found in zip(result.sides, result.speedups(), result.crossings(), strict=True):
        always = "always" if min(row) > 1.0 else "never" if max(row) <= 1.0 else ""
        grid_cells = [f"{value:.2f}" for value in row]
        add_row(grid, str(side), *grid_cells, ", ".join(f"{n:.0f}" for n in found) or always)
    show_table("Speedup of sparse over dense", grid)
    if result.pairs:
        clear = len(result.clear_pairs)
        say(
            f"\n{len(result.pairs)} measured pairs on the map; of {clear} that are off 1 by more than 5 %, the model "
            f"is on the right side for {result.right_pairs}"
        )
    for why, rows in result.left_out:
        say(f"  {rows} measured sparse rows left out: {why}")


def show_patterns(result: PatternTable) -> None:
    """Print the patterns side by side."""
    op, protocol = result.scenario.op, result.scenario.protocol
    say(
        f"{result.scenario.gpu.name}, {result.scenario.stack.name}: {op.m}×{op.n}×{op.k} {op.dtype}; "
        f"timing {protocol.timing}, L2 {protocol.l2}, clock {protocol.clock}",
        "bold",
    )
    numbers = ("kept", "bits", "promised", "time", "speedup", "native", "speedup ", "k ×", "speedup  ")
    grid = table("pattern", *numbers[:5], "path", *numbers[5:], right=numbers)
    for row in result.rows:
        here, native = row.here, row.native
        path = "dense" if here.path == "dense" else "sparse"
        add_row(
            grid,
            str(row.pattern),
            percent(row.pattern.kept_fraction, 0),
            f"{row.pattern.metadata_bits_per_kept:.3g}",
            f"{row.pattern.nominal_speedup:.3g}",
            show_time(here.time_us),
            f"{here.speedup:.3f}",
            path if here.reason in ("eligible", "dense-weight") else f"{path} ({here.reason})",
            show_time(native.time_us),
            f"{native.speedup:.3f}",
            "" if row.factor is None else f"{float(row.factor):.3g}",
            "" if row.expanded_speedup is None else f"{row.expanded_speedup:.3f}",
        )
    show_table("As the GPU is; with a datapath that runs each pattern natively; as 2:4 on a k that is longer", grid)


def show_expansion(check: ExpansionCheck) -> None:
    """Print measured K-expansion against the model."""
    numbers = ("pairs", "measured", "model", "male", "bias", "time male", "time bias")
    grid = table("gpu", "dtype", *numbers, right=numbers)
    for group in check.groups:
        add_row(
            grid,
            group["gpu"],
            group["dtype"],
            str(group["rows"]),
            f"{group['measured_median']:.3f}",
            f"{group['predicted_median']:.3f}",
            f"{group['speedup_male']:.3f}",
            f"{group['speedup_bias']:+.3f}",
            f"{group['time_male']:.3f}",
            f"{group['time_bias']:+.3f}",
        )
    limit = 2 / float(check.factor)
    show_table(
        f"{check.pattern} as 2:4 on {float(check.factor):g} k: median speedup over dense at k, at most {limit:.3g}; "
        "errors as in `sparsesim validate`",
        grid,
    )
    say(f"\n{len(check.pairs)} pairs; {check.unpaired} expanded rows have no measured dense product at k")
