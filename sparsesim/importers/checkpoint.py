"""The header of a checkpoint as a workload: one product for each weight, with a token count of the caller's.

Shapes and types only; whether a weight has a pattern is for the audit, which reads the data. Tensors that no
product sums over (biases, norms, embeddings, packed types) are named with the bytes they are read with.
"""

from __future__ import annotations

from pathlib import Path

from sparsesim.importers.imported import Draft, Imported, clean
from sparsesim.weights import open_weights
from sparsesim.weights.tensor import GEMM_DTYPE
from sparsesim.weights.view import Unsuited, is_embedding, view_of

__all__ = ["TOKENS", "import_checkpoint"]

TOKENS = 2048


def import_checkpoint(path: Path, pattern: str | None, dtype: str | None, tokens: int | None) -> Imported:
    """Read the headers at `path` (see `open_weights`); raises `UserError` with every problem."""
    weights = open_weights(path)
    draft = Draft(str(path), pattern or "2:4", dtype)
    n = tokens or TOKENS
    draft.note(f"every product has {n} columns: a checkpoint knows its weights alone")
    for tensor in weights.tensors:
        view = view_of(tensor)
        if isinstance(view, Unsuited):
            draft.other(tensor.name, view.reason, tensor.nbytes, None, view.text)
            continue
        wanted = dtype or GEMM_DTYPE.get(tensor.dtype)
        if is_embedding(tensor):
            draft.other(tensor.name, "embedding", tensor.nbytes, 0, "rows are looked up, not multiplied")
        elif wanted is None:
            draft.other(tensor.name, "dtype", tensor.nbytes, None, f"no tensor core multiplies {tensor.dtype}")
        else:
            draft.gemm(tensor.name, view.m, n, view.k, wanted, batch=view.groups, kind=view.kind)
    name = clean(path.stem if path.suffix else path.name)
    source = f"{weights.source} header of {clean(path.name)}"
    workload = draft.finish(name, "; ".join(draft.notes), source, "a tensor that is the weight of a product")
    return Imported(str(path), "safetensors", workload, tuple(draft.notes))
