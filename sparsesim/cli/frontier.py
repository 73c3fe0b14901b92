"""``sparsesim frontier``: quality at an equal simulated latency, the Pareto front, and break-even speedups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sparsesim.cli import options as opt
from sparsesim.cli.output import JsonTarget, add_row, output_file, progress, say, show_table, show_time, table
from sparsesim.cli.quality import interval_text

if TYPE_CHECKING:
    from rich.table import Table

    from sparsesim.quality.frontier import BreakEven, Comparison, Frontier

__all__ = ["register"]

EXAMPLE = "Example: sparsesim frontier docs/quality/byte_lm.json --gpu a100_pcie_80gb --dtype i8 --metric e2e_p95"
STYLES = {"better": "green", "worse": "red", "level": "yellow"}

File = Annotated[str, typer.Argument(metavar="FILE", help="Quality file (JSON) with the shapes of its models.")]
Metric = Annotated[
    str,
    typer.Option(
        "--metric", metavar="NAME", help="Of decoders: e2e, ttft or tpot with _mean, _p50, _p95 or _p99, e.g. ttft_p95."
    ),
]
Dtype = Annotated[str, typer.Option("--dtype", metavar="TYPE", help="Of models whose entry states none.")]
Rate = Annotated[float, typer.Option("--rate", metavar="REQ/S", help="Poisson arrivals.", parser=opt.number)]
Prompt = Annotated[int, opt.integer("--prompt", "Mean prompt tokens.")]
Output = Annotated[int, opt.integer("--output", "Mean output tokens.")]
Requests = Annotated[int, opt.integer("--requests", "Requests of each replication.")]
Replications = Annotated[int, opt.integer("--replications", "Replications, the same draws for all models.")]
Seed = Annotated[int, opt.integer("--seed", "Seed of the first replication.")]
TokenCount = Annotated[int, opt.integer("--tokens", "Columns of a pass, for models that are lists of GEMMs.")]
ServingStack = Annotated[str, typer.Option("--serving-stack", metavar="STACK", help="Of decoders.")]
Stack = Annotated[str, typer.Option("--stack", metavar="STACK", help="Of lists of GEMMs.")]
TaskName = Annotated[str | None, typer.Option("--task", metavar="NAME", help="By default the first of the file.")]
Only = Annotated[
    list[str] | None, typer.Option("--only", metavar="KEY", help="Only this sparse or narrow model; repeat.")
]
Base = Annotated[
    str | None,
    typer.Option("--baseline", metavar="KEY", help="Dense model whose latency is the budget; by default the slowest."),
]
Budget = Annotated[
    float | None, typer.Option("--budget", metavar="MS", help="Budget instead of a baseline's.", parser=opt.number)
]
Width = Annotated[int | None, opt.integer("--width-scale", "Sizes of the simulated models over the study's.")]
Depth = Annotated[int | None, opt.integer("--depth-scale", "Their layers over the study's.")]
Plot = Annotated[str | None, typer.Option("--plot", metavar="FILE.png", help="Draw quality against latency.")]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("frontier", epilog=EXAMPLE)(frontier)


def frontier(
    file: File,
    gpu: opt.Gpu,
    metric: Metric = "e2e_p95",
    dtype: Dtype = "bf16",
    rate: Rate = 4.0,
    prompt: Prompt = 512,
    output: Output = 128,
    requests: Requests = 200,
    replications: Replications = 4,
    seed: Seed = 0,
    tokens: TokenCount = 2048,
    serving_stack: ServingStack = "vllm-slidesparse",
    stack: Stack = "cusparselt",
    task: TaskName = None,
    only: Only = None,
    baseline: Base = None,
    budget: Budget = None,
    width_scale: Width = None,
    depth_scale: Depth = None,
    plot: Plot = None,
    json: opt.Json = None,
) -> None:
    """Is the sparse model better than the dense model of its latency? Quality is measured, latency simulated.

    Also the break-even speedup: what the sparse model must gain over its own dense model to equal the dense ladder.
    """
    target = JsonTarget.parse(json)
    picture = output_file(plot, "--plot")
    from sparsesim.quality.frontier import frontier as compare
    from sparsesim.quality.latency import Sla
    from sparsesim.quality.record import Scale, read_quality

    read = read_quality(file)
    from sparsesim.errors import Problem, UserError
    from sparsesim.hardware import load_gpu

    if budget is not None and not 0.0 < budget < 1e9:
        raise UserError(Problem.line("frontier", "budget", "a positive number of ms", budget))
    scale = read.scale
    for name, value in (("width", width_scale), ("depth", depth_scale)):
        if value is None:
            continue
        if not 1 <= value <= 4096:
            raise UserError(Problem.line("frontier", f"{name}-scale", "an integer from 1 to 4096", value))
        scale = Scale(**{**scale.model_dump(), name: value})
    sla = Sla(
        metric, rate, prompt, output, requests=requests, replications=replications, seed=seed, tokens=tokens,
        serving_stack=serving_stack, stack=stack, dtype=dtype,
    )  # fmt: skip
    with progress("simulating") as report:
        result = compare(
            read, load_gpu(gpu), sla, task, scale, baseline, None if budget is None else budget * 1e-3, only or (),
            report,
        )  # fmt: skip
    if picture is not None:
        from sparsesim.figures import draw_frontier, save

        save(draw_frontier(result), picture)
    if target.write(result.to_dict()):
        _show(result)


def _show(result: Frontier) -> None:
    decoders = any(p.latency.seconds.samples > 1 for p in result.points)
    scale, sla = result.scale, result.sla
    load = (
        f"{sla.serving_stack}, {sla.metric}, poisson {sla.rate:g}/s, {sla.prompt} + {sla.output} tokens"
        if decoders
        else f"{sla.stack}, one pass over {sla.tokens} columns"
    )
    size = f"sizes x {scale.width}" + (f", layers x {scale.depth}" if scale.depth > 1 else "")
    title = f"{result.study} on {result.gpu}, {load}; {size}"
    right = ("latency", result.metric)
    grid = table("dense model", "type", "latency", result.metric, "", right=right)
    for p in sorted(result.points, key=lambda p: (p.seconds, p.entry.key)):
        if p.entry.pattern == "dense":
            rung = "rung" if p.entry.key in {r.entry.key for r in result.ladder} else ""
            add_row(grid, p.entry.key, p.dtype, show_time(p.seconds * 1e6), interval_text(p.quality, 3), rung)
    show_table(title, grid)
    right_sparse = ("latency", "speedup", "break-even", "at budget", "equal latency")
    grid = table(
        "sparse model", "latency", "speedup", "break-even", "at budget", "", "equal latency", " ", "±15 %",
        right=right_sparse,
    )  # fmt: skip
    for c in result.comparisons:
        _add(grid, c)
    budget = show_time(result.budget_s * 1e6) + (f" (that of {result.budget_of})" if result.budget_of else "")
    best = next((c.best.entry.key for c in result.comparisons if c.best is not None), "none")
    show_table(f"Budget {budget}, best dense model within it: {best}. Positive = sparse is better", grid)
    for key, why in result.skipped.items():
        say(f"skipped    {key}: {why}")
    front = [p.entry.key for p in sorted(result.points, key=lambda p: p.seconds) if p.front]
    say(f"\nfront      {', '.join(front)}")
    say(
        "speedup = simulated, over its own dense model; break-even = the speedup at which the ladder of dense sizes\n"
        "is as good; at budget = minus the best dense model within it; equal latency = minus the dense ladder there,\n"
        "interpolated; ±15 % = that verdict if the simulated latency were 15 % longer and shorter. Intervals: 95 %"
    )


def _add(grid: Table, c: Comparison) -> None:
    from sparsesim.quality.frontier import verdict

    budget = ("", "") if c.meets else ("too slow", "")
    ladder = ("off the ladder", "unknown")
    if c.at_budget is not None:
        budget = (interval_text(c.at_budget, 3), verdict(c.at_budget))
    if c.against_ladder is not None:
        ladder = (interval_text(c.against_ladder, 3), verdict(c.against_ladder))
    longer, _, shorter = c.verdicts
    add_row(
        grid, c.point.entry.key, show_time(c.point.seconds * 1e6), f"{c.speedup:.3f}", _break_even(c.break_even),
        *budget, *ladder, longer if longer == shorter else f"{longer} to {shorter}", style=STYLES.get(ladder[1]),
    )  # fmt: skip


def _break_even(found: BreakEven) -> str:
    low = "" if found.low is None else f"{found.low:.2f}"
    high = "" if found.high is None else f"{found.high:.2f}"
    bounds = f" ({low} to {high})" if low and high else f" (> {low})" if low else f" (< {high})" if high else ""
    if found.speedup is None:
        return ("none: better" if found.why.startswith("better") else "none: worse") + bounds
    return f"{found.speedup:.2f}{bounds}"
