"""``sparsesim timeline``: one run over time, as a Chrome trace."""

from __future__ import annotations

import json as json_format
from typing import Annotated

import typer

from sparsesim.cli import options as opt
from sparsesim.cli.output import (
    JsonTarget,
    add_row,
    check_files,
    output_file,
    percent,
    progress,
    say,
    show_table,
    show_time,
    table,
)
from sparsesim.cli.whatif import OpDtype, OpPattern, Source
from sparsesim.errors import UserError
from sparsesim.outfiles import OutFile

__all__ = ["register"]

EXAMPLE = (
    "Example: sparsesim timeline --gpu h100_pcie -m 4096 -n 4096 -k 4096 --out gemm.trace.json;  "
    "sparsesim timeline llama-3.1-8b --phase decode --tokens 64 --gpu rtx4090 --timing stream --out decode.trace.json"
)

Out = Annotated[
    str, typer.Option("--out", metavar="FILE", help="Trace (JSON), for https://ui.perfetto.dev or chrome://tracing.")
]
Bins = Annotated[
    int | None, opt.integer("--bins", "Parts of each launch over which utilisation is averaged; 200, or fewer of many.")
]
Ctas = Annotated[
    str, typer.Option("--ctas", metavar="WORD", help="CTAs of the first launch of each op, of all launches, or none.")
]
Run = Annotated[str, typer.Option("--run", metavar="WORD", help="sparse, dense (the baseline), or both.")]
Streams = Annotated[int, opt.integer("--streams", "Streams that ops are dealt to in turn.")]
Graph = Annotated[bool, typer.Option("--graph", help="Each pass is one CUDA graph.")]
Repeats = Annotated[int, opt.integer("--repeats", "Passes over the workload.")]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("timeline", epilog=EXAMPLE)(timeline)


def timeline(
    out: Out,
    workload: Source = None,
    gpu: opt.OptionalGpu = None,
    m: opt.OptionalM = None,
    n: opt.OptionalN = None,
    k: opt.OptionalK = None,
    bins: Bins = None,
    ctas: Ctas = "first",
    run: Run = "both",
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
    streams: Streams = 1,
    graph: Graph = False,
    repeats: Repeats = 1,
    json: opt.Json = None,
) -> None:
    """Write a run as a trace: streams, launches, CTAs of each SM, and how busy each server is over time."""
    target, path = JsonTarget.parse(json), output_file(out, "--out")
    assert path is not None
    check_files({"--out": path, "--json": target.path}, workload or "", gpu or "", stack or "")
    if gpu is None:
        raise UserError("--gpu: expected a packaged GPU or a path to a .toml file, found none")
    if run not in ("sparse", "dense", "both"):
        raise UserError(f"--run: expected one of sparse, dense, both, found {run!r}")
    from sparsesim.studies import timeline as traced

    with progress("recording") as report:
        trace = traced(
            gpu, bins, ctas, ("sparse", "dense") if run == "both" else (run,),
            lambda done, total, name: report(done, total),
            workload=workload, m=m, n=n, k=k, batch=batch, dtype=dtype, acc_dtype=acc, pattern=pattern,
            tokens=tokens, phase=phase, stack=stack, timing=timing, l2=l2, clock=clock,
            streams=streams, graph=graph, repeats=repeats,
        )  # fmt: skip
    about = {"file": str(path), "events": len(trace["traceEvents"]), **trace["otherData"]}
    made = OutFile(path, json_format.dumps(trace, separators=(",", ":")) + "\n", "--out")
    if not target.write(about, [made]):
        return
    say(f"{about['gpu']}, {about['stack']}: {about['workload']}; {about['events']} events in {path}", "bold")
    numbers = ("busy", "tensor", "decode", "smem", "L2", "DRAM")
    grid = table("run", "op", "kernel", *numbers, right=numbers)
    for launch in about["launches"]:
        shares = [launch["counters"][f"{name}_busy"] for name in ("tensor", "decode", "smem", "l2", "dram")]
        add_row(
            grid, launch["run"], launch["op"], launch["kernel"], show_time(launch["recorded_us"]), *map(percent, shares)
        )
    show_table("Launches recorded, and how busy each server is on average", grid)
    say("\nopen it at https://ui.perfetto.dev or in chrome://tracing")
