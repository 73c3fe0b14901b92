"""Study on magika's file-type CNN, a shipped model: one-shot pruning of its ONNX graph, no training, no torch.

Files of this Python installation, labelled by their extension. Bytes become the model's input as magika does it (1024
from the start and the end of the file, white space stripped, padded). The convolution and the output layer are pruned,
the embedding is not. Extra ``quality-onnx``.
"""

from __future__ import annotations

import hashlib
import json
import sysconfig
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsesim._version import __version__
from sparsesim.errors import UserError
from sparsesim.quality.pruners import METHODS, PATTERNS, prune_layer
from sparsesim.quality.record import Entry, GemmShape, ModelShape, QualityFile, Task

__all__ = ["run_magika"]

TASK = "files"
#: extension → label of the model. Left out: extensions of several types (.h, .txt, .in) and types of no fixed one
LABELS = {
    ".py": "python", ".pyc": "pythonbytecode", ".so": "elf", ".json": "json", ".html": "html", ".css": "css",
    ".js": "javascript", ".png": "png", ".svg": "svg", ".c": "c", ".cpp": "cpp", ".md": "markdown", ".rst": "rst",
    ".toml": "toml", ".yaml": "yaml", ".xml": "xml", ".csv": "csv", ".npy": "npy", ".npz": "npz", ".gz": "gzip",
    ".zip": "zip", ".ttf": "ttf", ".pdf": "pdf", ".pkl": "pickle", ".onnx": "onnx", ".ipynb": "ipynb", ".bat": "batch",
    ".wav": "wav", ".jpg": "jpeg", ".gif": "gif", ".pem": "pem", ".f90": "fortran", ".sh": "shell",
}  # fmt: skip
SIDE, BLOCK, PADDING, LEAST = 1024, 4096, 256, 64
CALIBRATION = 3
BATCH = 32


def run_magika(
    patterns: Sequence[str] = PATTERNS,
    per_label: int = 40,
    folder: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> QualityFile:
    """Prune and measure; `per_label` files of each label at most, of which the first three calibrate.

    Raises
    ------
    UserError
        Fewer than two labels with more than three files in the folder.
    """
    import onnx

    home = Path(str(files("magika"))) / "models"
    at = next(iter(sorted(home.glob("*/model.onnx"))))
    space = json.loads((at.parent / "config.min.json").read_text())["target_labels_space"]
    chosen = _files(folder or Path(sysconfig.get_paths()["purelib"]), per_label)
    if len(chosen) < 2:
        raise UserError(f"{folder}: expected files of at least two labels, found {len(chosen)}")
    fit = [path for paths in chosen.values() for path in paths[:CALIBRATION]]
    held = [(path, label) for label, paths in chosen.items() for path in paths[CALIBRATION:]]
    x = np.stack([_features(path) for path, _ in held])
    answers = np.array([space.index(label) for _, label in held])
    model = onnx.load(str(at))
    variants = [("dense", "dense"), *((pattern, method) for pattern in patterns for method in METHODS)]
    layers = _layers(model)
    grams = _grams(model, layers, np.stack([_features(path) for path in fit]))
    entries = []
    for done, (pattern, method) in enumerate(variants, 1):
        pruned = onnx.load(str(at))
        if pattern != "dense":
            _prune(pruned, layers, grams, pattern, method)
        right = (_run(pruned, x, ["target_label"])[0].argmax(axis=1) == answers).astype(float)
        entries.append(
            Entry(
                model="magika", pattern=pattern, method=method, task=TASK, metric="accuracy", better="higher",
                samples=(tuple(map(float, right)),),
            )
        )  # fmt: skip
        if progress is not None:
            progress(done, len(variants))
    digest = hashlib.sha256()
    for path, _ in held:
        digest.update(path.read_bytes())
    return QualityFile(
        study="magika",
        entries=tuple(entries),
        tasks={TASK: Task(slices=tuple(label for _, label in held))},
        models={
            "magika": ModelShape(
                gemms=(GemmShape(name="conv", m=512, k=1280), GemmShape(name="output", m=214, k=512))
            )
        },
        provenance={
            "data": "files of a Python installation, labelled by extension", "files": len(held),
            "calibration_files": len(fit), "labels": len(chosen), "files_sha256": digest.hexdigest(),
            "model_sha256": hashlib.sha256(at.read_bytes()).hexdigest(), "sparsesim": __version__,
            "packages": {package: version(package) for package in ("numpy", "onnx", "onnxruntime", "magika")},
        },
    )  # fmt: skip


def _files(folder: Path, per_label: int) -> dict[str, list[Path]]:
    """Label → files, spread evenly over the sorted ones, no two of equal content."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*")):
        label = LABELS.get(path.suffix.lower())
        if label is not None and path.is_file() and not path.is_symlink() and path.stat().st_size >= LEAST:
            found.setdefault(label, []).append(path)
    chosen: dict[str, list[Path]] = {}
    for label, paths in sorted(found.items()):
        seen: dict[bytes, Path] = {}
        for i in np.unique(np.linspace(0, len(paths) - 1, min(len(paths), per_label)).astype(int)):
            seen.setdefault(_features(paths[i]).tobytes(), paths[i])
        if len(seen) > CALIBRATION:
            chosen[label] = list(seen.values())
    return chosen


def _features(path: Path) -> NDArray[np.int32]:
    """The model's 2048 integers of a file, as `magika.Magika._extract_features_from_seekable` makes them."""
    with path.open("rb") as handle:
        size = handle.seek(0, 2)
        handle.seek(0)
        begin = handle.read(BLOCK).lstrip()[:SIDE]
        handle.seek(max(0, size - BLOCK))
        end = handle.read(BLOCK).rstrip()[-SIDE:]
    out = np.full(2 * SIDE, PADDING, dtype=np.int32)
    out[: len(begin)] = np.frombuffer(begin, dtype=np.uint8)
    if end:
        out[-len(end) :] = np.frombuffer(end, dtype=np.uint8)
    return out


def _run(model: Any, x: NDArray[np.int32], outputs: list[str]) -> list[NDArray[np.float32]]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    parts = [session.run(outputs, {"bytes": x[i : i + BATCH]}) for i in range(0, len(x), BATCH)]
    return [np.concatenate(column) for column in zip(*parts, strict=True)]


def _layers(model: Any) -> dict[str, tuple[str, str]]:
    """Weight → (operator, name of its input): the convolution, and the matrix product that is no embedding."""
    weights = {w.name: list(w.dims) for w in model.graph.initializer}
    return {
        node.input[1]: (node.op_type, node.input[0])
        for node in model.graph.node
        if node.op_type in ("Conv", "MatMul") and node.input[1] in weights and weights[node.input[1]][0] != PADDING + 1
    }


def _grams(model: Any, layers: dict[str, tuple[str, str]], x: NDArray[np.int32]) -> dict[str, NDArray[np.float64]]:
    """Gram matrices of the layers' inputs in the dense model; of a convolution over windows, columns tap by tap."""
    import onnx

    tapped = onnx.ModelProto()
    tapped.CopyFrom(model)
    names = [source for _, source in layers.values()]
    tapped.graph.output.extend(onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in names)
    taps = {w.name: w.dims[2] for w in model.graph.initializer if w.name in layers and len(w.dims) == 4}
    grams: dict[str, NDArray[np.float64]] = {}
    for start in range(0, len(x), BATCH):
        for (weight, (op, _)), values in zip(
            layers.items(), _run(tapped, x[start : start + BATCH], names), strict=True
        ):
            flat = values.astype(np.float32)
            if op == "Conv":
                # (files, channels, positions, 1) → (windows, taps × channels): groups of N:M lie along the channels
                windows = np.lib.stride_tricks.sliding_window_view(flat[..., 0], taps[weight], axis=2)
                flat = windows.transpose(0, 2, 3, 1).reshape(-1, taps[weight] * flat.shape[1])
            gram = flat.T @ flat
            grams[weight] = grams.get(weight, np.zeros(gram.shape)) + gram
    return grams


def _prune(
    model: Any, layers: dict[str, tuple[str, str]], grams: dict[str, NDArray[np.float64]], pattern: str, method: str
) -> None:
    """Replace the weights in place."""
    from onnx import numpy_helper

    for tensor in model.graph.initializer:
        if tensor.name not in layers:
            continue
        w = numpy_helper.to_array(tensor)
        if layers[tensor.name][0] == "Conv":
            m, channels, taps, _ = w.shape
            matrix = w[..., 0].transpose(0, 2, 1).reshape(m, taps * channels)
            pruned = prune_layer(matrix, grams[tensor.name], pattern, method)
            back = pruned.reshape(m, taps, channels).transpose(0, 2, 1)[..., None]
        else:
            back = prune_layer(w.T, grams[tensor.name], pattern, method).T
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(back, dtype=w.dtype), tensor.name))
