"""``sparsesim serve``: requests through a serving engine, dense beside sparse, with latencies and gains."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer

from sparsesim.cli import options as opt
from sparsesim.cli.output import JsonTarget, add_row, percent, progress, say, show_table, table

if TYPE_CHECKING:
    from sparsesim.serving.results import ServingResult, VariantResult
    from sparsesim.serving.stats import Estimate

__all__ = ["register"]

EXAMPLE = "Example: sparsesim serve qwen2.5-14b --gpu rtx4090 --dtype i8 --rate 4 --prompt 512 --output 128"

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="Packaged model (e.g. llama-3.2-3b) or a Hugging Face config.json.")
]
Dtype = Annotated[str, typer.Option("--dtype", metavar="TYPE", help="Of the linear layers: bf16, f16, i8 or e4m3.")]
Pattern = Annotated[str, typer.Option("--pattern", metavar="N:M", help="Of the linear layers; dense runs one variant.")]
Stack = Annotated[str, typer.Option("--serving-stack", metavar="STACK", help="Engine and its host costs.")]
Kind = Annotated[str, typer.Option("--arrivals", metavar="KIND", help="poisson, bursty, closed or batch.")]
Rate = Annotated[
    float, typer.Option("--rate", metavar="REQ/S", help="Mean arrival rate (poisson, bursty).", parser=opt.number)
]
Burst = Annotated[
    float, typer.Option("--burst", metavar="REQ", help="Mean requests of a burst (bursty).", parser=opt.number)
]
Clients = Annotated[int, opt.integer("--clients", "Clients of a closed loop.")]
Think = Annotated[
    float, typer.Option("--think", metavar="S", help="Mean think time of a client (closed).", parser=opt.number)
]
TraceFile = Annotated[
    str | None,
    typer.Option(
        "--trace", metavar="FILE", help="CSV of arrival_s, prompt_tokens, output_tokens, instead of drawn requests."
    ),
]
Prompt = Annotated[int, opt.integer("--prompt", "Mean prompt tokens.")]
Output = Annotated[int, opt.integer("--output", "Mean output tokens.")]
Spread = Annotated[
    float,
    typer.Option(
        "--spread", metavar="CV", help="Coefficient of variation of the token counts; 0 = all alike.", parser=opt.number
    ),
]
Requests = Annotated[int, opt.integer("--requests", "Requests of each replication.")]
Replications = Annotated[int, opt.integer("--replications", "Replications; replication r draws with seed + r.")]
Seed = Annotated[int, opt.integer("--seed", "Seed of the first replication.")]
Warmup = Annotated[
    float,
    typer.Option(
        "--warmup", metavar="SHARE", help="First requests that enter no metric, as a share.", parser=opt.number
    ),
]
SchedulerName = Annotated[str, typer.Option("--scheduler", metavar="NAME", help="continuous or static.")]
MaxSeqs = Annotated[int | None, opt.integer("--max-seqs", "Sequences at once; by default the stack's.")]
MaxTokens = Annotated[int, opt.integer("--max-tokens", "Token budget of a step.")]
Chunked = Annotated[bool, typer.Option("--chunked/--whole-prompts", help="Whether a prompt may be split into chunks.")]
MemoryFraction = Annotated[
    float | None,
    typer.Option("--memory-fraction", metavar="SHARE", help="Of the device's memory.", parser=opt.number),
]
KvTokens = Annotated[int | None, opt.integer("--kv-tokens", "Size of the KV cache, instead of what is left.")]
Tp = Annotated[int, opt.integer("--tp", "GPUs that share each layer; dispatch rules apply to the shard.")]
Host = Annotated[
    float | None,
    typer.Option("--host", metavar="FACTOR", help="Host times over the reference host's.", parser=opt.number),
]
Exact = Annotated[bool, typer.Option("--exact", help="Simulate every token count; do not interpolate.")]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("serve", epilog=EXAMPLE)(serve)


def serve(
    model: Model,
    gpu: opt.Gpu,
    dtype: Dtype = "i8",
    pattern: Pattern = "2:4",
    serving_stack: Stack = "vllm-slidesparse",
    arrivals: Kind = "poisson",
    rate: Rate = 1.0,
    burst: Burst = 8.0,
    clients: Clients = 16,
    think: Think = 0.0,
    trace: TraceFile = None,
    prompt: Prompt = 512,
    output: Output = 128,
    spread: Spread = 0.5,
    requests: Requests = 200,
    replications: Replications = 5,
    seed: Seed = 0,
    warmup: Warmup = 0.1,
    scheduler: SchedulerName = "continuous",
    max_seqs: MaxSeqs = None,
    max_tokens: MaxTokens = 2048,
    chunked: Chunked = True,
    memory_fraction: MemoryFraction = None,
    kv_tokens: KvTokens = None,
    tp: Tp = 1,
    host: Host = None,
    exact: Exact = False,
    json: opt.Json = None,
) -> None:
    """Serve requests with a dense and a sparse model: TTFT, TPOT, latency, throughput, and what the gain is made of."""
    target = JsonTarget.parse(json)
    from sparsesim.serving.api import simulate_serving

    with progress("serving") as report:
        result = simulate_serving(
            gpu, model, dtype=dtype, pattern=pattern, serving_stack=serving_stack, arrivals=arrivals, rate=rate,
            burst=burst, clients=clients, think_s=think, trace=trace, prompt=prompt, output=output, spread=spread,
            requests=requests, replications=replications, seed=seed, warmup=warmup, scheduler=scheduler,
            max_seqs=max_seqs, max_tokens=max_tokens, chunked=chunked, memory_fraction=memory_fraction,
            kv_tokens=kv_tokens, tp=tp, host=host, exact=exact, progress=report,
        )  # fmt: skip
    if target.write(result.to_dict()):
        show(result)


#: row of the table → metric, factor to the unit shown, digits
LATENCY_ROWS = tuple(
    (f"{label} {what}", f"{name}_{what}_s", 1e3)
    for name, label in (("ttft", "TTFT"), ("tpot", "TPOT"), ("e2e", "latency"))
    for what in ("p50", "p95", "p99")
)
RATE_ROWS = (
    ("output tokens/s", "output_tokens_per_s"),
    ("requests/s", "requests_per_s"),
    ("queue, mean", "queue_mean"),
    ("sequences in a step", "batch_mean"),
    ("preemptions", "preemptions"),
)
SHARE_ROWS = (
    ("GPU busy", "gpu_busy"),
    ("tensor cores busy", "tensor_busy"),
    ("GPU waits for host", "host_bound"),
    ("steps as graphs", "graph_share"),
    ("fallback, by time", "fallback_rate"),
)


def show(result: ServingResult) -> None:
    """Print the variants side by side, then what the gain is made of."""
    variants = [variant for variant in result.variants if variant.name in ("dense", "sparse")]
    load, policy = result.load, result.scheduler
    title = (
        f"{result.model} {result.dtype} on {result.tp} x {result.gpu}, {result.stack}, {policy['name']}; "
        f"{_load_text(load)}; {len(result.seeds)} replications of {load['requests']} requests, "
        f"seeds {result.seeds[0]} to {result.seeds[-1]}"
    )
    names = [variant.name if variant.name == "dense" else variant.pattern for variant in variants]
    grid = table("", *names, right=names)
    for label, metric, factor in LATENCY_ROWS:
        add_row(grid, f"{label} [ms]", *(_interval(v.metrics[metric], factor) for v in variants))
    for label, metric in RATE_ROWS:
        add_row(grid, label, *(_interval(v.metrics[metric], 1.0) for v in variants))
    for label, metric in SHARE_ROWS:
        add_row(grid, label, *(percent(v.metrics[metric].mean) for v in variants))
    add_row(grid, "weights [GB]", *(f"{v.memory.weights / 1e9:.2f}" for v in variants))
    add_row(grid, "KV cache [tokens]", *(str(policy["kv_tokens"] or v.memory.tokens) for v in variants))
    show_table(title, grid)
    if result.gains:
        _show_gains(result)
    _show_shares(variants, names)
    fallen = {layer: path for layer, path in variants[-1].paths.items() if path != "sparse"} if result.gains else {}
    for layer, path in fallen.items():
        say(f"fallback   {layer}: {path}")
    say(
        f"\nmean and 95 % interval over replications; first {percent(result.warmup, 0)} of the requests cut; "
        f"GEMM times between simulated token counts are interpolated, off by at most {percent(result.interpolation)}"
        if result.interpolation
        else f"\nmean and 95 % interval over replications; first {percent(result.warmup, 0)} of the requests cut"
    )


def _show_gains(result: ServingResult) -> None:
    columns = ("gain", "kernels", "freed memory")
    grid = table("", *columns, right=columns)
    for gain in result.gains:
        name = _gain_name(gain.metric)
        shown = [_factor(value) for value in (gain.total, gain.kernels, gain.memory)]
        add_row(grid, name, *shown)
    show_table("Gain of the sparse model, same requests (factor above 1 = better; columns multiply)", grid)


def _show_shares(variants: list[VariantResult], names: list[str]) -> None:
    grid = table("GPU time", *names, right=names)
    for part in variants[0].parts:
        add_row(grid, part, *(percent(variant.parts[part]) for variant in variants))
    show_table("What the GPU's time is made of", grid)


def _gain_name(metric: str) -> str:
    """``TTFT p95`` of ``ttft_p95_s``."""
    if metric == "output_tokens_per_s":
        return "output tokens/s"
    name, what = metric.removesuffix("_s").split("_")
    return f"{'latency' if name == 'e2e' else name.upper()} {what}"


def _load_text(load: dict[str, object]) -> str:
    kind = load["kind"]
    if kind == "trace":
        return "trace"
    sizes = f"{load['prompt']} + {load['output']} tokens (CV {load['spread']})"
    how = {
        "poisson": f"poisson {load['rate']:g}/s",
        "bursty": f"bursty {load['rate']:g}/s in bursts of {load['burst']:g}",
        "closed": f"{load['clients']} clients, think {load['think_s']:g} s",
    }.get(str(kind), "all at once")
    return f"{how}, {sizes}"


def _interval(value: Estimate, factor: float) -> str:
    mean = _number(value.mean * factor)
    return mean if value.high is None else f"{mean} ± {_number((value.high - value.mean) * factor)}"


def _number(value: float) -> str:
    if value == 0:
        return "0"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _factor(value: Estimate) -> str:
    mean = f"{math.exp(value.mean):.3f}"
    if value.low is None or value.high is None:
        return mean
    return f"{mean} ({math.exp(value.low):.3f} to {math.exp(value.high):.3f})"
