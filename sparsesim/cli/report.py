"""``sparsesim report``: the page that a release meeting decides on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sparsesim.cli import options as opt
from sparsesim.cli.output import JsonTarget, add_row, check_files, output_file, percent, say, show_table, steps, table
from sparsesim.outfiles import OutFile
from sparsesim.wording import show_time

if TYPE_CHECKING:
    from sparsesim.report import Report

__all__ = ["register"]

EXAMPLE = "Example: sparsesim report llama-3.1-8b --gpu h100_pcie --phase prefill --tokens 2048 --html report.html"
#: layers and causes that the terminal shows; the page has all
SHOWN = 8

Source = Annotated[
    str,
    typer.Argument(
        metavar="WORKLOAD", help="Packaged workload, a file, or what `import` reads: config.json, ONNX, a trace."
    ),
]
Html = Annotated[str | None, typer.Option("--html", metavar="FILE", help="Write the page: one file, no network.")]
Markdown = Annotated[str | None, typer.Option("--markdown", metavar="FILE", help="Write the same as Markdown.")]
Dims = Annotated[
    list[str] | None,
    typer.Option("--dim", metavar="NAME=SIZE", help="Size of a dynamic dimension (ONNX, torch.export); repeatable."),
]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("report", epilog=EXAMPLE)(report)


def report(
    workload: Source,
    gpu: opt.Gpu,
    tokens: opt.Tokens = None,
    phase: opt.Phase = None,
    dtype: opt.WorkloadDtype = None,
    pattern: opt.WorkloadPattern = None,
    dim: Dims = None,
    stack: opt.StackName = None,
    timing: opt.Timing = "kernel",
    l2: opt.L2 = "rotating",
    clock: opt.Clock = "free",
    baseline: opt.Baseline = None,
    html: Html = None,
    markdown: Markdown = None,
    json: opt.Json = None,
) -> None:
    """Report on a workload: speedup, layers and their paths, losses, what each fallback costs and mending it brings."""
    target = JsonTarget.parse(json)
    files = {flag: output_file(text, flag) for flag, text in (("--html", html), ("--markdown", markdown))}
    check_files({**files, "--json": target.path}, workload, gpu, stack or "")
    from sparsesim import report as pages
    from sparsesim.api import report_workload

    with steps() as tell:
        made = report_workload(
            gpu,
            workload,
            tokens,
            phase,
            dtype,
            pattern,
            stack,
            timing,
            l2,
            clock,
            opt.sizes("--dim", dim) or None,
            tell,
            baseline,
        )
    # all are rendered before one is written
    texts = {"--html": pages.html, "--markdown": pages.markdown}
    ready = [OutFile(path, texts[flag](made), flag) for flag, path in files.items() if path is not None]
    if target.write(made.to_dict(), ready):
        show(made)
        for file in ready:
            say(f"wrote     {file.path}")


def show(made: Report) -> None:
    """Print the answer, the layers with most time, the largest losses, and the fallbacks."""
    say(made.answer.question, "bold")
    say(made.answer.first)
    say(made.answer.second)
    numbers: tuple[str, ...] = ("count", "time", "speedup", "share")
    grid = table("layer", "shape", "pattern", "path", "reason", *numbers, right=numbers)
    for layer in made.layers[:SHOWN]:
        add_row(
            grid, layer.name + (f" and {layer.more} more" if layer.more else ""), f"{layer.shape} {layer.dtype}",
            layer.pattern, layer.state, layer.reason, str(layer.launches), show_time(layer.time_us),
            f"{layer.speedup:.2f}", percent(layer.share), style="yellow" if layer.state == "fallback" else None,
        )  # fmt: skip
    show_table(f"Layers, {min(SHOWN, len(made.layers))} of {len(made.layers)}", grid)
    reasons = made.impact["reasons"]
    if reasons:
        numbers = ("layers", "time", "mended", "saved", "speedup then")
        grid = table("fallback", *numbers, "what to change", right=numbers)
        for reason in reasons:
            how = next((item["how"] for item in reason["layers"] if item["how"]), "nothing helps on this GPU and stack")
            add_row(
                grid, reason["reason"], str(reason["ops"]), show_time(reason["now_us"]),
                show_time(reason["mended_us"]) if reason["mendable"] else "-", show_time(reason["saved_us"]),
                f"{reason['speedup']:.3f}", how,
            )  # fmt: skip
        show_table("What fallbacks cost", grid)
    for note in made.notes:
        say(f"note      {note}")
