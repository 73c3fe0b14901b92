"""Reading a checkpoint once, in blocks, and judging each tensor: pattern, axis, and what the stack says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sparsesim.audit.groups import GroupCounter, block_multiple
from sparsesim.audit.report import DEFAULT_PATTERNS, Audit, AxisAudit, TensorAudit
from sparsesim.errors import Problem, UserError
from sparsesim.hardware import GpuSpec
from sparsesim.importers.imported import op_name
from sparsesim.sparsity import Pattern
from sparsesim.stacks import Decision, Stack
from sparsesim.weights import Tensor, open_weights
from sparsesim.weights.tensor import BITS, GEMM_DTYPE
from sparsesim.weights.view import Unsuited, View, is_embedding, view_of
from sparsesim.workload import Gemm, GemmError

__all__ = ["audit_weights"]

#: elements read at a time: what bounds the memory
BLOCK = 1 << 22
MAX_BLOCK = 1 << 28

Progress = Callable[[int, int], None]


def audit_weights(
    path: str | Path,
    gpu: GpuSpec,
    stack: Stack,
    patterns: Sequence[str] | None = None,
    tokens: int = 2048,
    dtype: str | None = None,
    k_axis: int | None = None,
    progress: Progress | None = None,
) -> Audit:
    """Audit the checkpoint at `path` (see `open_weights`), in memory that its size does not bound.

    Parameters
    ----------
    gpu, stack
        Who decides whether a tensor runs sparse.
    patterns
        To judge by, the first being the one whose breaks are told; by default `DEFAULT_PATTERNS` (2:4 told).
    tokens
        Columns of each product (output pixels of a convolution): stacks have rules about them.
    dtype
        Type of the products instead of the stored one.
    k_axis
        The summed axis of a matrix, 0 or 1, where the file does not know; by default 1, as PyTorch stores.
    progress
        Called as progress(bytes done, bytes in all).

    Raises
    ------
    UserError
        Every problem of the headers, or the first of the data.
    """
    listed = [Pattern.parse(text) for text in patterns or DEFAULT_PATTERNS]
    for pattern in listed:
        if pattern.is_dense or (pattern.is_vnm and pattern.v is None):
            expected = "N:M, V:2:M with its V, or pairs"
            raise UserError(Problem.line("patterns", "", expected, str(pattern)))
    watched = listed[0] if patterns else Pattern(2, 4)
    weights = open_weights(path)
    total, done = weights.nbytes, 0
    found = []
    for tensor in weights.tensors:

        def seen(count: int, base: int = done) -> None:
            if progress is not None:
                progress(base + count, total)

        found.append(_audit(tensor, gpu, stack, list(dict.fromkeys(listed)), watched, tokens, dtype, k_axis, seen))
        done += tensor.nbytes
        seen(tensor.nbytes, done - tensor.nbytes)
    names = tuple(str(pattern) for pattern in dict.fromkeys(listed))
    return Audit(weights.path, weights.source, gpu.name, stack.name, tokens, names, tuple(found))


def _audit(
    tensor: Tensor,
    gpu: GpuSpec,
    stack: Stack,
    patterns: list[Pattern],
    watched: Pattern,
    tokens: int,
    dtype: str | None,
    k_axis: int | None,
    seen: Callable[[int], None],
) -> TensorAudit:
    """Judge one tensor."""
    view = view_of(tensor, k_axis)
    if isinstance(view, View) and not tensor.readable:
        view = Unsuited("dtype-unknown", f"{tensor.dtype} cannot be told zero from nonzero here")
    if isinstance(view, Unsuited):
        return _record(tensor, None, None, None, False, view.reason, view.text)
    zeros, along, across = _count(tensor, view, patterns, watched, seen)
    sparsity = zeros / tensor.size
    k_side = view.columns if view.k_is_column else view.rows
    on_k = _axis(along, view.k_axis, k_side)
    off_k = _axis(across, view.other_axis, view.rows if view.k_is_column else view.columns)
    first = _index(along.first, tensor, view)
    if is_embedding(tensor):
        return _record(tensor, sparsity, on_k, off_k, False, "embedding", "rows are looked up, not multiplied")
    wanted = dtype or GEMM_DTYPE.get(tensor.dtype)
    if wanted is None:
        text = f"no tensor core multiplies {tensor.dtype} (packed or wider than its types)"
        return _record(tensor, sparsity, on_k, off_k, False, "dtype-unsupported", text)
    if not on_k.complies:
        reason, text = _broken(watched, on_k, off_k, first, k_side)
        return _record(tensor, sparsity, on_k, off_k, False, reason, text, first)
    chosen: tuple[Gemm, Decision] | None = None
    for pattern in on_k.complies:
        try:
            op = Gemm(op_name(tensor.name), view.m, tokens, view.k, batch=view.groups, dtype=wanted,
                      pattern=pattern, kind=view.kind)  # fmt: skip
        except GemmError as error:
            text = "; ".join(f"{field}: expected {expected}" for field, expected, _ in error.issues)
            return _record(tensor, sparsity, on_k, off_k, False, "no-gemm", text)
        decision = _decide(stack, op, gpu)
        if chosen is None or decision.path == "sparse":
            chosen = op, decision
        if decision.path == "sparse":
            break
    assert chosen is not None
    op, decision = chosen
    return _record(
        tensor, sparsity, on_k, off_k, decision.path == "sparse", decision.reason, decision.text, None, op
    )  # fmt: skip


def _decide(stack: Stack, op: Gemm, gpu: GpuSpec) -> Decision:
    """The one place where the audit asks a stack."""
    return stack.decide(op, gpu)


def _record(
    tensor: Tensor,
    sparsity: float | None,
    on_k: AxisAudit | None,
    off_k: AxisAudit | None,
    eligible: bool,
    reason: str,
    text: str,
    first: tuple[int, ...] | None = None,
    op: Gemm | None = None,
) -> TensorAudit:
    return TensorAudit(
        tensor.name, tensor.shape, tensor.dtype, tensor.file, sparsity, on_k, off_k, eligible, reason, text, first, op
    )


def _count(
    tensor: Tensor, view: View, patterns: list[Pattern], watched: Pattern, seen: Callable[[int], None]
) -> tuple[int, GroupCounter, GroupCounter]:
    """Zeros, and the groups along the summed axis and across it."""
    row = view.columns * view.inner
    flat = [pattern for pattern in patterns if not (pattern.is_vnm and view.inner > 1)]
    step = block_multiple(flat)
    rows = min(view.rows, max(step, BLOCK // row // step * step))
    if rows * row > MAX_BLOCK:
        expected = f"patterns whose groups fit in blocks of {MAX_BLOCK} elements"
        raise UserError(Problem.line(tensor.file, tensor.name, expected, f"{rows * row} elements"))
    by_column, by_row = GroupCounter(flat, watched), GroupCounter(flat, watched)
    ones, done = 0, 0
    for batch, start, block in _blocks(tensor, view, rows):
        height = block.size // row
        ones += int(block.sum())
        by_column.add(block.reshape(height, view.columns, view.inner), (batch * view.rows + start, 0, 0))
        by_row.add(block.reshape(1, height, row), (batch, start, 0))
        done += block.size
        seen(done * BITS[tensor.dtype] // 8)
    along, across = (by_column, by_row) if view.k_is_column else (by_row, by_column)
    return tensor.size - ones, along, across


def _blocks(tensor: Tensor, view: View, rows: int) -> Iterator[tuple[int, int, NDArray[np.bool_]]]:
    """(matrix of the batch, first row, flat block) of at most `rows` rows, none of two matrices."""
    row = view.columns * view.inner
    places = [(batch, start) for batch in range(view.batch) for start in range(0, view.rows, rows)]
    sizes = (min(rows, view.rows - start) * row for _, start in places)
    for (batch, start), block in zip(places, tensor.blocks(sizes), strict=True):
        yield batch, start, block


def _axis(counter: GroupCounter, axis: int, side: int) -> AxisAudit:
    """The counts along one axis of `side` elements, and what complies."""
    broken = counter.broken
    complying = [pattern for pattern, count in broken.items() if count == 0 and side >= pattern.m]
    complying.sort(key=lambda p: (p.kept_fraction, p.m, p.is_pair))
    return AxisAudit(
        axis,
        {str(pattern): count for pattern, count in counter.groups.items()},
        {str(pattern): count for pattern, count in broken.items()},
        tuple(str(pattern) for pattern in complying),
    )


def _broken(
    watched: Pattern, on_k: AxisAudit, off_k: AxisAudit, first: tuple[int, ...] | None, side: int
) -> tuple[str, str]:
    """Why a tensor has no pattern along its summed axis."""
    name = str(watched)
    if side < watched.m:
        return "axis-too-short", f"axis {on_k.axis} has {side} elements, fewer than a group of {name}"
    if name in on_k.broken and on_k.groups[name]:
        share = on_k.broken[name] / on_k.groups[name]
        place = f", first at {list(first)}" if first else ""
        what = f"{100 * share:.3g} % of the groups along axis {on_k.axis} break {name}{place}"
    else:
        what = f"no pattern holds along axis {on_k.axis}"
    if off_k.complies:
        return "transposed-layout", f"{off_k.complies[0]} along axis {off_k.axis}, which is not summed over; {what}"
    return "pattern-broken", what


def _index(first: tuple[int, int, int] | None, tensor: Tensor, view: View) -> tuple[int, ...] | None:
    """The place of a broken group as an index of the tensor."""
    if first is None:
        return None
    if view.k_is_column:
        row, column, inner = first
        flat = (row * view.columns + column) * view.inner + inner
    else:
        batch, row, rest = first
        flat = (batch * view.rows + row) * view.columns * view.inner + rest
    index = []
    for side in reversed(tensor.shape):
        flat, place = divmod(flat, side)
        index.append(place)
    return tuple(reversed(index))
