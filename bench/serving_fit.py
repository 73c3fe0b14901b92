"""Fit the host costs and kernel efficiencies of the serving stack to measured throughputs of served models.

Usage: python bench/serving_fit.py ENDTOEND.csv [--held-out MODEL]

Prints the fitted values and the errors; writes nothing. With --held-out the cells of one model take no part in the fit
and are reported apart. Least squares with a soft loss on ln(predicted / measured) of the dense throughput, and of the
speedup with twice the weight. Cells bound by KV memory (Qwen2.5-14B on RTX 4090: decode, and prompts of more than 8192
tokens) are left out: a step alone does not say their throughput.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np
from scipy.optimize import least_squares

from sparsesim.hardware import load_gpu
from sparsesim.serving.endtoend import DECODE_OUTPUT, DECODE_PROMPT, MAX_PROMPT, TARGETS
from sparsesim.serving.measured import Cell, read_cells
from sparsesim.serving.models import get_served_model
from sparsesim.serving.stack import HOSTS, Host, ServingStack, get_serving_stack
from sparsesim.serving.steps import Batch, StepModel
from sparsesim.simulator import Simulator

FITTED = (
    "step_serial", "seq_serial", "step_issue", "sparse_step_issue", "call_issue", "dense_linear_issue",
    "sparse_linear_issue", "front_prompt", "stream_efficiency", "decode_attention",
)  # fmt: skip
#: the machine whose host is the reference
REFERENCE = "a100_pcie_80gb"
#: shares are kept in this range; times within this factor of their start
SHARES = (0.3, 1.0)
FACTOR = 30.0
LOSS_SCALE = 0.08


def usable(cell: Cell) -> bool:
    """Whether the throughput of a cell follows from one step."""
    tight = cell.gpu == "rtx4090" and cell.model == "Qwen2.5-14B"
    return not (tight and (cell.phase == "decode" or cell.tokens > 8192))


class Model:
    """Throughputs of cells under given parameters; GEMMs are simulated once."""

    def __init__(self, cells: list[Cell], stack: ServingStack) -> None:
        self.stack = stack
        self.hosts = [gpu for gpu in HOSTS if gpu != REFERENCE]
        simulators = {gpu: Simulator(load_gpu(gpu), stack.gemm_stack) for gpu in {cell.gpu for cell in cells}}
        self.models: dict[tuple[str, str, str, str], StepModel] = {}
        for cell in cells:
            for pattern in ("dense", "2:4"):
                key = (cell.gpu, cell.model, cell.dtype, pattern)
                if key not in self.models:
                    simulator = simulators[cell.gpu]
                    self.models[key] = StepModel(
                        simulator.gpu, get_served_model(cell.model), stack, cell.dtype, pattern, simulator=simulator
                    )

    def start(self) -> np.ndarray:
        """ln of the present values."""
        return np.log(
            [getattr(self.stack, name) for name in FITTED] + [factor for gpu in self.hosts for factor in HOSTS[gpu]]
        )

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """ln of the range of each value."""
        low, high = self.start() - np.log(FACTOR), self.start() + np.log(FACTOR)
        for i, name in enumerate(FITTED):
            if getattr(self.stack, name) > 0.1:
                low[i], high[i] = np.log(SHARES)
        return low, high

    def values(self, x: np.ndarray) -> tuple[ServingStack, dict[str, Host]]:
        """The stack and the host factors that `x` means."""
        numbers = np.exp(x)
        pairs = numbers[len(FITTED) :].reshape(-1, 2).tolist()
        hosts = {gpu: Host(*pair) for gpu, pair in zip(self.hosts, pairs, strict=True)}
        named = dict(zip(FITTED, numbers[: len(FITTED)].tolist(), strict=True))
        return replace(self.stack, **named), {**hosts, REFERENCE: Host(1.0, 1.0)}

    def throughputs(self, x: np.ndarray, cells: list[Cell]) -> np.ndarray:
        """(dense, 2:4) tokens per second of each cell."""
        stack, hosts = self.values(x)
        rows = []
        for cell in cells:
            row = []
            for pattern in ("dense", "2:4"):
                model = self.models[cell.gpu, cell.model, cell.dtype, pattern]
                model = model.with_values(stack, hosts[cell.gpu])
                if cell.phase == "prefill":
                    prompt = min(cell.tokens, MAX_PROMPT)
                    seqs = cell.tokens // prompt
                    step = model.with_max_seqs(seqs).time(Batch(chunks=((prompt, prompt),) * seqs, sampled=seqs))
                    seconds = max(step.seconds, cell.tokens * stack.front_prompt * model.host.step)
                    row.append(cell.tokens / seconds)
                else:
                    seqs = min(cell.tokens, stack.max_seqs)
                    context = seqs * (DECODE_PROMPT + DECODE_OUTPUT // 2)
                    step = model.time(Batch(decodes=seqs, context=context, sampled=seqs))
                    row.append(seqs / max(step.seconds, seqs * stack.front_output * model.host.step))
            rows.append(row)
        return np.array(rows)


def report(label: str, found: np.ndarray, cells: list[Cell]) -> None:
    """Print errors and shares within the targets."""
    dense = np.array([cell.dense_tokens_per_s for cell in cells])
    speedup = np.array([cell.speedup for cell in cells])
    for what, ratio in (("throughput", found[:, 0] / dense), ("speedup", found[:, 1] / found[:, 0] / speedup)):
        inside = np.mean(np.abs(ratio - 1) <= TARGETS[what])
        print(
            f"{label:10} {what:10} {len(cells)} cells, male {np.mean(np.abs(np.log(ratio))):.3f}, within {inside:.3f}"
        )


def main() -> None:
    """Fit and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--held-out")
    parser.add_argument("--evaluations", type=int, default=15)
    options = parser.parse_args()
    cells = [cell for cell in read_cells(options.file) if usable(cell) and cell.gpu in HOSTS]
    train = [cell for cell in cells if cell.model != options.held_out]
    test = [cell for cell in cells if cell.model == options.held_out]
    model = Model(cells, get_serving_stack("vllm-slidesparse"))
    measured = np.log([[c.dense_tokens_per_s, c.dense_tokens_per_s * c.speedup] for c in train])

    def residuals(x: np.ndarray) -> np.ndarray:
        error = np.log(model.throughputs(x, train)) - measured
        return np.concatenate([error[:, 0], 2.0 * (error[:, 1] - error[:, 0])])

    report("before", model.throughputs(model.start(), train), train)
    fit = least_squares(
        residuals, model.start(), bounds=model.bounds(), loss="soft_l1", f_scale=LOSS_SCALE,
        max_nfev=options.evaluations,
    )  # fmt: skip
    report("fitted", model.throughputs(fit.x, train), train)
    if test:
        report("held out", model.throughputs(fit.x, test), test)
    stack, hosts = model.values(fit.x)
    for name in FITTED:
        print(f"{name} = {getattr(stack, name):.3g}")
    print("hosts:", ", ".join(f"{gpu} {host.step:.2f} {host.launch:.2f}" for gpu, host in hosts.items()))


if __name__ == "__main__":
    main()
