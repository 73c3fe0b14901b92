"""Compare the serving runtime with measured throughputs of served models, cell by cell.

Usage: python bench/serving.py ENDTOEND.csv [KERNELS.csv ...]

With kernel timings of the same GPUs, the page says which part of each error is the kernel model's.
Writes docs/serving.md and its figure. Nothing is written if the file cannot be read.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path

from serving_figure import draw_speedups

from sparsesim._version import __version__
from sparsesim.hardware import load_gpu
from sparsesim.measured import read_measured
from sparsesim.serving.endtoend import ASKED, CAUSES, TARGETS, EndToEnd, Prediction, predict_cells
from sparsesim.serving.kernel_rows import correct_kernels
from sparsesim.serving.measured import read_cells
from sparsesim.serving.models import get_served_model
from sparsesim.serving.stack import HOSTS, OTHER_HOST, ServingStack, get_serving_stack
from sparsesim.serving.steps import StepModel, interpolation_error
from sparsesim.simulator import Simulator

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "serving.md"
FIGURE = ROOT / "docs" / "figures" / "serving_speedup.png"
STACK = "vllm-slidesparse"
#: below this a step is bound by the host, in the words of the page
HOST_BOUND = 0.3
#: boards, model and token counts at which interpolated linear layers are compared with simulated ones
PROBED = ("a100_pcie_80gb", "h100_pcie", "rtx4090")
PROBES = (20, 40, 80, 112, 160, 224, 320, 448, 640, 896, 1280, 1792, 2560, 3584)
#: parameters in seconds
TIMES = {
    "step_serial", "seq_serial", "step_issue", "sparse_step_issue", "call_issue", "dense_linear_issue",
    "sparse_linear_issue", "graph_launch", "front_prompt", "front_output", "front_request",
}  # fmt: skip

HOW = """\
Each cell is run as the table's harness ran it: vLLM 0.13, one GPU, prompts of min(tokens, 1024) tokens with one output
token (prefill), or `tokens` requests at once with 16 prompt and 256 output tokens (decode). The runtime admits the
requests through the front end, schedules steps under the KV cache that the weights leave, and takes each step's time
from the simulated GEMMs, the kernels round them and the host.

A linear layer is three kernels here: the activations are quantised row by row, the GEMM runs, and its product is scaled
back. Dense i8 GEMMs write i32 (4 bytes), all others bf16, so the last kernel moves more for dense i8. Norms, rotary
embedding, cache writes, gate, attention, output layer and sampling are kernels of their own. Steps of decode are one
captured graph; prefill steps are issued kernel by kernel, so host and GPU run side by side and the slower one decides.

The host's costs belong to the stack, and two factors to each machine. No value belongs to a model, a token count or a
cell.
"""

NOT_EXPLAINED = """\
- Llama-3.2-1B loses 7 to 19 % with 2:4 weights in nearly all cells that the host decides, on all four machines, while
  Llama-3.2-3B and Qwen2.5-14B on the same path stand between 0.99 and 1.19. Costs that grow with the number of layers
  cannot do both: the fit books a fixed cost of each sparse step (`sparse_step_issue`) and a cheaper sparse call, and
  stays between the two. What that fixed cost is, the data do not say.
- Part of a step without a graph (`step_issue`) does not grow with the layers and is hidden behind a busy GPU. That it
  is spread over the launches is an assumption.
- 512 requests at once give the throughput of 256, within 17 %, in all cells that memory does not bind: the engine is
  assumed to run 256 at most.
- A100, i8, prefill: the model speedup is up to 14 % too low, because the sparse i8 kernels are simulated too slow
  (docs/accuracy.md): Qwen2.5-14B gained more than the simulated kernels alone. H100, e4m3: the dense run is 13 % slow.
- Splitting the errors says whose they are: A100 i8 prefill is the kernel model's (with measured kernels 48 % of the
  cells become 86 %). H100 e4m3, B200 i8 and decode on RTX 4090 are the runtime's: with measured kernels they are no
  better, so no kernel fix alone reaches the target. On H100 and B200 e4m3 prefill an error of the kernels even hides
  part of the runtime's.
- B200, dense i8: the kernel tables stop near 930 TOP/s, but from 512 tokens on the served model runs as if i8 had the
  rate of e4m3. Below, it is as slow as the tables. The stack says so (`dense_as`); Qwen2.5-14B at 256 sequences is fast
  already and is missed.
- Freed memory on RTX 4090 with Qwen2.5-14B: a preempted sequence is computed again from nothing. vLLM may find part of
  its cache again (prefix caching), which is not modelled.
"""


def main() -> None:
    """Predict every cell, write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("kernels", nargs="*", help="measured kernel timings, to split the errors")
    options = parser.parse_args()
    cells = read_cells(options.file)
    types = {cell.dtype for cell in cells}
    rows = [row for path in options.kernels for row in read_measured(path) if row.dtype in types]

    def progress(done: int) -> None:
        print(f"\r{done} of {len(cells)} cells", end="", file=sys.stderr, flush=True)

    result = predict_cells(cells, progress=progress)
    corrected = predict_cells(cells, progress=progress, measured=correct_kernels(rows)) if rows else None
    print(file=sys.stderr)
    draw_speedups(result.predictions, FIGURE)
    temporary = PAGE.with_suffix(".tmp")
    temporary.write_text(page(result, corrected, get_serving_stack(STACK)), encoding="utf-8")
    temporary.replace(PAGE)
    print(f"wrote {PAGE} and {FIGURE}")


def table(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table."""
    names = list(header)
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def page(result: EndToEnd, corrected: EndToEnd | None, stack: ServingStack) -> str:
    """The page as Markdown."""
    parts = [
        "# Served models against measurements\n",
        f"Written by `python bench/serving.py FILE` with sparsesim {__version__}. Source of the measured cells: "
        "bcacdwk/vllmbench (arXiv 2603.05232), throughput tables. male = mean |ln(predicted / measured)|.\n",
        HOW,
        "![Kernel and model speedups, predicted and measured](figures/serving_speedup.png)\n",
        "## Targets\n",
        targets(result),
        groups(result),
        "## Where the kernels' gain goes\n",
        "Medians over the cells, in ln: the gain of the linear layers' kernels (predicted), what each cause takes from "
        "it (negative: gives), and what is left. Shares are Shapley values of taking a cause out of a typical step of "
        "both runs; `scheduling` is the rest: KV memory, front end, mixed steps.\n",
        losses(result),
        *split_section(result, corrected),
        "## Not explained\n",
        NOT_EXPLAINED,
        "## Parameters of the stack\n",
        parameters(stack),
        "## Interpolated GEMM times\n",
        interpolation(stack),
        "## Every cell\n",
        "thr: dense throughput [tokens/s]; kernel: predicted speedup of the linear layers' kernels alone; S: speedup "
        "of the model; memory: factor on S that freed KV memory is worth; then the shares of ln(kernel) - ln(S); GPU "
        "waits: for the host, share of a dense step.\n",
        every_cell(result, corrected),
    ]
    return "\n".join(parts)


def targets(result: EndToEnd) -> str:
    """Each target with what is reached."""
    lines = []
    for group in result.groups:
        if group["gpu"] == "all":
            name = "dense throughput" if group["kind"] == "throughput" else "model speedup"
            state = "met" if group["within"] >= ASKED else f"missed by {100 * (ASKED - group['within']):.1f} points"
            lines.append(
                f"- {name} within {100 * TARGETS[group['kind']]:.0f} % in {100 * ASKED:.0f} % of the cells: "
                f"{100 * group['within']:.1f} % of {group['rows']}, {state}"
            )
    signs = [g["sign_accuracy"] for g in result.groups if g["gpu"] == "all" and g["kind"] == "speedup"]
    lines.append(f"- of the cells that gain or lose more than 5 %, {100 * signs[0]:.1f} % on the right side of 1")
    lines += [f"- skipped: {item['row']}: {item['why']}" for item in result.skipped]
    return "\n".join(lines) + "\n"


def groups(result: EndToEnd) -> str:
    """The groups, throughput and speedup side by side."""
    by_key: dict[tuple[str, str, str], dict[str, dict[str, float]]] = {}
    for g in result.groups:
        by_key.setdefault((g["gpu"], g["dtype"], g["phase"]), {})[g["kind"]] = g
    rows = []
    for key, kinds in by_key.items():
        cells = [kinds["throughput"]["rows"]]
        for kind in ("throughput", "speedup"):
            g = kinds[kind]
            cells += [f"{g['male']:.3f}", f"{g['bias']:+.3f}", f"{100 * g['within']:.0f} %"]
        rows.append((*key, *cells))
    header = ("gpu", "dtype", "phase", "cells", "thr male", "bias", "within 20 %", "S male", "bias", "within 8 %")
    return table(header, rows)


def losses(result: EndToEnd) -> str:
    """Median gain of the kernels and of the model, and median share of each cause, by regime."""
    regimes: dict[tuple[str, str], list[Prediction]] = {}
    for p in result.predictions:
        bound = "host-bound" if p.dense.typical.host_bound > HOST_BOUND else "GPU-bound"
        regimes.setdefault((p.cell.phase, bound), []).append(p)
    causes = (*CAUSES, "scheduling")
    rows = []
    for (phase, bound), members in sorted(regimes.items()):
        middle = [statistics.median(p.shares[cause] for p in members) for cause in causes]
        rows.append(
            (
                phase, bound, len(members),
                f"{statistics.median(math.log(p.kernel_speedup) for p in members):+.3f}",
                *(f"{value:+.3f}" for value in middle),
                f"{statistics.median(math.log(p.speedup) for p in members):+.3f}",
                f"{statistics.median(math.log(p.cell.speedup) for p in members):+.3f}",
            )
        )  # fmt: skip
    return table(("phase", "dense run", "cells", "ln kernel", *causes, "ln S", "measured"), rows)


def split_section(result: EndToEnd, corrected: EndToEnd | None) -> list[str]:
    """Which part of the errors of the speedup is the kernel model's, by group; nothing without kernel timings."""
    if corrected is None:
        return []
    groups: dict[tuple[str, str, str], list[tuple[Prediction, Prediction]]] = {}
    for pair in zip(result.predictions, corrected.predictions, strict=True):
        c = pair[0].cell
        groups.setdefault((c.gpu, c.dtype, c.phase), []).append(pair)
        groups.setdefault(("all", "all", "all"), []).append(pair)
    rows = []
    for key, pairs in sorted(groups.items(), key=lambda item: (item[0][0] == "all", item[0])):
        all_of_it = [math.log(p.speedup / p.cell.speedup) for p, _ in pairs]
        kernel = [math.log(p.speedup / q.speedup) for p, q in pairs]
        runtime = [math.log(q.speedup / q.cell.speedup) for _, q in pairs]
        parts = [f"{statistics.median(x):+.3f}" for x in (all_of_it, kernel, runtime)]
        sizes = [f"{statistics.fmean(map(abs, x)):.3f}" for x in (all_of_it, kernel, runtime)]
        within = [
            sum(abs(math.exp(error) - 1) <= TARGETS["speedup"] for error in errors) / len(errors)
            for errors in (all_of_it, runtime)
        ]
        kernels = [statistics.median(p.kernel_speedup for p in side) for side in zip(*pairs, strict=True)]
        rows.append((*key, len(pairs), *(f"{x:.2f}" for x in kernels), *parts, *sizes, *(f"{x:.0%}" for x in within)))
    header = (
        "gpu", "dtype", "phase", "cells", "kernel S predicted", "measured", "bias of S", "kernel model", "runtime",
        "male of S", "kernel model ", "runtime ", "within 8 %", "with measured kernels",
    )  # fmt: skip
    return [
        "## Kernel model or runtime\n",
        "The same runs with the linear layers' kernels corrected by measured timings of the same GPU, type and shape: "
        "simulated time times measured / predicted, the prediction under the measured row's protocol. What the speedup "
        "then still misses is the runtime's; the difference between the runs is the kernel model's. In ln, medians and "
        "means of the size; dense i8 on B200 takes the e4m3 rows where the stack says that it runs so.\n",
        table(header, rows),
    ]


def parameters(stack: ServingStack) -> str:
    """Every value of the stack with its source, and the hosts."""
    rows = []
    for name, source in stack.sources.items():
        value = getattr(stack, name)
        shown = str(value)
        if name in TIMES:
            shown = f"{1e6 * value:.5g} µs"
        elif name == "reserved":
            shown = f"{value / 1e9:g} GB"
        rows.append((f"`{name}`", shown, source.status, source.text))
    hosts = ", ".join(f"{gpu} {host.step:g} and {host.launch:g}" for gpu, host in HOSTS.items())
    return (
        table(("parameter", "value", "status", "source"), rows)
        + f"\nHost times over those of the reference host, of steps and of launches: {hosts} (fitted), any "
        f"other machine {OTHER_HOST.step:g} and {OTHER_HOST.launch:g}. "
        "Fitted values come from `python bench/serving_fit.py FILE`. When they were fitted, --held-out gave, for cells "
        "of the model left out, within 20 % in throughput and 8 % in speedup: Llama-3.2-1B 79 and 52 % of them, "
        "Llama-3.2-3B 100 and 64 %, Qwen2.5-14B 95 and 52 %.\n"
    )


def interpolation(stack: ServingStack) -> str:
    """Errors of interpolated linear layers at counts between those of the grid."""
    rows = []
    for gpu in PROBED:
        simulator = Simulator(load_gpu(gpu), stack.gemm_stack)
        for pattern in ("dense", "2:4"):
            model = StepModel(
                simulator.gpu, get_served_model("llama-3.2-3b"), stack, "i8", pattern, simulator=simulator
            )
            errors = [abs(error) for error in interpolation_error(model, list(PROBES))]
            rows.append((gpu, pattern, f"{statistics.mean(errors):.3f}", f"{max(errors):.3f}"))
    text = (
        f"Linear layers of Llama-3.2-3B, i8, at {len(PROBES)} token counts between those of the grid (2^k and 1.5 x "
        "2^k): |ln(interpolated / simulated)|. Every measured cell is on the grid. `--exact` simulates every count.\n\n"
    )
    return text + table(("gpu", "pattern", "mean", "largest"), rows)


def every_cell(result: EndToEnd, corrected: EndToEnd | None) -> str:
    """One row a cell."""
    causes = (*CAUSES, "scheduling")
    rows = []
    for p, q in zip(result.predictions, corrected.predictions if corrected else result.predictions, strict=True):
        c = p.cell
        off = "" if abs(p.speedup / c.speedup - 1) <= TARGETS["speedup"] else " *"
        far = "" if abs(p.dense.tokens_per_s / c.dense_tokens_per_s - 1) <= TARGETS["throughput"] else " *"
        rows.append(
            (
                c.gpu, c.model, c.dtype, c.phase, c.tokens,
                f"{c.dense_tokens_per_s:.0f}", f"{p.dense.tokens_per_s:.0f}{far}", f"{p.kernel_speedup:.2f}",
                f"{c.speedup:.2f}", f"{p.speedup:.2f}{off}", f"{p.memory_gain:.2f}",
                *(f"{p.shares[cause]:+.2f}" for cause in causes),
                f"{100 * p.dense.typical.host_bound:.0f} %",
                *((f"{q.kernel_speedup:.2f}", f"{q.speedup:.2f}") if corrected else ()),
            )
        )  # fmt: skip
    header = (
        "gpu", "model", "dtype", "phase", "tokens", "thr measured", "predicted", "kernel", "S measured", "predicted",
        "memory", *causes, "GPU waits", *(("kernel measured", "S with it") if corrected else ()),
    )  # fmt: skip
    return table(header, rows) + "\n\\* outside the target.\n"


if __name__ == "__main__":
    main()
