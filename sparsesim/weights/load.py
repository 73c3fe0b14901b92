"""Finding out what a weight file is, and its tensors."""

from __future__ import annotations

from pathlib import Path

from sparsesim.errors import Problem, UserError, nearest
from sparsesim.weights.npz import read_npy, read_npz
from sparsesim.weights.safetensors import read_index, read_safetensors
from sparsesim.weights.tensor import Weights

__all__ = ["SUFFIXES", "open_weights"]

SUFFIXES = (".safetensors", ".npz", ".npy", ".onnx", ".json")


def open_weights(path: str | Path) -> Weights:
    """The tensors of a checkpoint; headers are checked, no data are read.

    Parameters
    ----------
    path
        A ``.safetensors``, ``.npz``, ``.npy`` or ``.onnx`` file, a ``…index.json`` of shards, or a folder
        of safetensors files (with or without an index).

    Raises
    ------
    UserError
        If it is none of these, or for every problem of its headers.
    """
    if "\0" in str(path) or not str(path).strip():
        raise UserError(Problem.line("file", "", "a file name", str(path)))
    path = Path(path)
    if path.is_dir():
        return _folder(path)
    suffix = path.suffix.lower()
    if suffix == ".safetensors":
        return Weights(str(path), "safetensors", read_safetensors(path))
    if suffix == ".npz":
        return Weights(str(path), "npz", read_npz(path))
    if suffix == ".npy":
        return Weights(str(path), "npy", read_npy(path))
    if suffix == ".json":
        return Weights(str(path), "safetensors", read_index(path))
    if suffix == ".onnx":
        from sparsesim.weights.onnx_data import read_onnx

        return Weights(str(path), "onnx", read_onnx(path))
    if not path.exists():
        raise UserError(f"{path}: expected a file, found nothing of that name")
    expected = "a file ending in " + ", ".join(SUFFIXES)
    raise UserError(Problem.line(str(path), "", expected, path.suffix) + nearest(suffix, SUFFIXES))


def _folder(path: Path) -> Weights:
    """The checkpoint in a folder: by its index if it has one, else all its safetensors files."""
    indices = sorted(path.glob("*.safetensors.index.json"))
    if len(indices) == 1:
        return Weights(str(path), "safetensors", read_index(indices[0]))
    files = sorted(path.glob("*.safetensors"))
    if not files or indices:
        found = f"{len(indices)} indices" if indices else "none"
        raise UserError(Problem.line(str(path), "", "safetensors files with at most one index", found))
    tensors = [tensor for file in files for tensor in read_safetensors(file)]
    seen: dict[str, str] = {}
    lines = [
        Problem.line(tensor.file, tensor.name, f"a name that {seen[tensor.name]} has not", tensor.name)
        for tensor in tensors
        if seen.setdefault(tensor.name, tensor.file) != tensor.file
    ]
    if lines:
        raise UserError(lines[:20])
    return Weights(str(path), "safetensors", tuple(tensors))
