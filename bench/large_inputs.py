"""Large inputs at full size, each in its own process, with time and peak memory: ``python bench/large_inputs.py``.

A 10 GB checkpoint whose data are a hole in the file (it takes no disk), a 1.9 GB ONNX model that holds its weights
itself, a profiler trace of two million lines, and 200 000-line traces of the project's own form. Fails above 1 GB.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT_MB = 1000

# VmHWM and not ru_maxrss, which a process takes over from the one that started it
CODE = (
    "import re, sys\n"
    "from sparsesim.__main__ import main\n"
    "status = main(sys.argv[1:])\n"
    "print(re.search(r'VmHWM:\\s*(\\d+)', open('/proc/self/status').read())[1], file=sys.stderr)\n"
    "sys.exit(status)\n"
)


def checkpoint(path: Path, tensors: int, rows: int, k: int) -> Path:
    """A safetensors file of bf16 zeros that are not on the disk."""
    size = 2 * rows * k
    header = {
        f"layers.{i}.weight": {"dtype": "BF16", "shape": [rows, k], "data_offsets": [i * size, (i + 1) * size]}
        for i in range(tensors)
    }
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(file.tell() + tensors * size)
    return path


def onnx_model(path: Path, layers: int, side: int) -> Path:
    """A chain of MatMuls, f32 weights inside the file."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper

    nodes = [helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"], name=f"layer{i}") for i in range(layers)]
    first = helper.make_tensor_value_info("x0", TensorProto.FLOAT, ["batch", side])
    last = helper.make_tensor_value_info(f"x{layers}", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [first], [last])
    array = np.zeros((side, side), np.float32)
    array[::4] = array[1::4] = 1.0
    # a message may come in pieces, which a reader merges: no piece here is larger than one weight
    with path.open("wb") as file:
        file.write(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]).SerializeToString())
        for i in range(layers):
            weight = helper.make_tensor(f"w{i}", TensorProto.FLOAT, array.shape, array.tobytes(), raw=True)
            file.write(onnx.ModelProto(graph=onnx.GraphProto(initializer=[weight])).SerializeToString())
    return path


def profiler_trace(path: Path, events: int) -> Path:
    """A profiler trace, about 25 lines an op."""
    args = {"External id": 1, "Input Dims": [[2, 64, 512], [1024, 512], []], "Input type": ["float", "float", ""]}
    one = {"ph": "X", "cat": "cpu_op", "name": "aten::linear", "pid": 1, "tid": 1, "ts": 0, "dur": 5, "args": args}
    with path.open("w") as file:
        file.write('{"schemaVersion": 1,\n"traceEvents": [\n')
        for i in range(events):
            one["ts"] = 10 * i
            file.write(json.dumps(one, indent=1) + (",\n" if i + 1 < events else "\n"))
        file.write("]}\n")
    return path


def trace(path: Path, lines: int) -> Path:
    """The project's own form: 200 different shapes, every op with its own name."""
    with path.open("w") as file:
        for i in range(lines):
            op = {"name": f"op-{i}", "m": 4096, "n": 8 * (1 + i % 200), "k": 4096, "pattern": "2:4"}
            file.write(json.dumps(op) + "\n")
    return path


def main() -> int:
    """Run all; status 1 if one fails or takes too much memory."""
    bad = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        gpu = ["--gpu", "a100_pcie_80gb", "--json", str(folder / "out.json")]
        runs = {
            "audit, 10 GB safetensors": lambda: ["audit", checkpoint(folder / "w.safetensors", 75, 8192, 8192), *gpu],
            "import, 10 GB safetensors": lambda: ["import", folder / "w.safetensors", *gpu[2:]],
            "audit, 1.9 GB onnx": lambda: ["audit", onnx_model(folder / "m.onnx", 7, 8192), *gpu],
            "import, 1.9 GB onnx": lambda: ["import", folder / "m.onnx", "--dim", "batch=8", *gpu[2:]],
            "import, 2 500 000-line trace": lambda: ["import", profiler_trace(folder / "t.json", 100_000), *gpu[2:]],
            "simulate, 200 000-line trace": lambda: ["simulate", trace(folder / "t.jsonl", 200_000), *gpu],
            "report, 200 000-line trace": lambda: ["report", folder / "t.jsonl", *gpu, "--html", folder / "r.html"],
        }
        for label, arguments in runs.items():
            command = [sys.executable, "-c", CODE, *map(str, arguments())]
            start = time.perf_counter()
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            seconds = time.perf_counter() - start
            words = done.stderr.split()
            peak = int(words[-1]) * 1024 / 1e6 if words and words[-1].isdigit() else 0
            good = done.returncode == 0 and 0 < peak < LIMIT_MB
            bad += not good
            print(f"{label:32} {seconds:8.1f} s {peak:8.0f} MB  {'ok' if good else done.stderr[-300:]}", flush=True)
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main())
