"""A stored tensor seen as the weight of a product: where its out features and its summed axis are.

PyTorch keeps a linear weight as [out, in] and a convolution as [out, in/groups, kernel…]; ONNX says itself what a
MatMul sums over. N:M groups of a convolution lie along its input channels (TensorRT's rule), position by position
of the kernel. Three axes are a convolution in one dimension if the name says so or the last side is short, else
a batch of matrices (experts).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from sparsesim.weights.tensor import Tensor
from sparsesim.workload import MAX_DIM

__all__ = ["Unsuited", "View", "is_embedding", "view_of"]

SHORT_KERNEL = 16
"""Longest last side of three that is taken for the kernel of a convolution."""

#: what a file may say about the use of a tensor that is a weight, or a table of an embedding
_PRODUCTS = ("", "MatMul", "Gemm", "Conv", "Gather")
_EMBEDDING = re.compile(r"(?i)(embed|(^|[._])w[tp]e([._]|$)|token_type|position)")
_NO_EMBEDDING = re.compile(r"(?i)(patch_embed|conv|proj|lm_head|out)")
_CONV = re.compile(r"(?i)(conv|patch_embed)")


@dataclass(frozen=True)
class Unsuited:
    """Why a tensor is not the weight of a product: a code and a sentence."""

    reason: str
    text: str


@dataclass(frozen=True)
class View:
    """`batch` matrices of rows × columns × inner in storage order; `k_axis` is the tensor's summed axis.

    Parameters
    ----------
    batch, rows, columns, inner
        Sizes [elements]; `inner` is the kernel of a convolution, else 1.
    m, k
        Of the product.
    groups
        Independent products: experts, or groups of a convolution.
    row_axis, column_axis
        The axes of the tensor that rows and columns are.
    k_is_column
        Whether the groups that count lie along the columns; else along the rows.
    kind
        ``linear`` or ``conv``.
    """

    batch: int
    rows: int
    columns: int
    inner: int
    m: int
    k: int
    groups: int
    row_axis: int
    column_axis: int
    k_is_column: bool
    kind: str

    @property
    def k_axis(self) -> int:
        """The axis of the tensor along which N:M groups have to lie."""
        return self.column_axis if self.k_is_column else self.row_axis

    @property
    def other_axis(self) -> int:
        """The axis along which they would lie if the stored matrix were the transposed one."""
        return self.row_axis if self.k_is_column else self.column_axis


def view_of(tensor: Tensor, k_axis: int | None = None) -> View | Unsuited:
    """How `tensor` multiplies, or why it does not; `k_axis` (0 or 1) is the summed axis of a matrix."""
    shape = tensor.shape
    if len(shape) < 2:
        return Unsuited("not-a-matrix", f"{len(shape)} axes: a bias, a norm or a scalar")
    if 0 in shape:
        return Unsuited("empty", "it has no elements")
    if max(shape) > MAX_DIM:
        return Unsuited("too-long", f"a side of {max(shape)} exceeds {MAX_DIM}")
    if tensor.used_by not in _PRODUCTS:
        return Unsuited("op-unsupported", f"{tensor.used_by} does not multiply by it as a weight")
    conv = tensor.used_by == "Conv" or (
        not tensor.used_by
        and (len(shape) > 3 or (len(shape) == 3 and bool(_CONV.search(tensor.name) or shape[-1] <= SHORT_KERNEL)))
    )
    if conv and len(shape) >= 3:
        if shape[0] % tensor.groups:
            return Unsuited("not-a-matrix", f"{shape[0]} output channels in {tensor.groups} groups")
        kernel, out = math.prod(shape[2:]), shape[0] // tensor.groups
        return View(1, shape[0], shape[1], kernel, out, shape[1] * kernel, tensor.groups, 0, 1, True, "conv")
    if len(shape) > 3:
        return Unsuited("not-a-matrix", f"{len(shape)} axes, multiplied by {tensor.used_by}")
    batch, rows, columns = (1, *shape) if len(shape) == 2 else shape
    axis = tensor.k_axis if k_axis is None and tensor.k_axis is not None else (1 if k_axis is None else k_axis)
    m, k = (rows, columns) if axis == 1 else (columns, rows)
    lead = len(shape) - 2
    return View(batch, rows, columns, 1, m, k, batch, lead, lead + 1, axis == 1, "linear")


def is_embedding(tensor: Tensor) -> bool:
    """Whether rows of `tensor` are looked up and not multiplied, by its name or its user."""
    if tensor.used_by:
        return tensor.used_by == "Gather"
    return bool(_EMBEDDING.search(tensor.name)) and not _NO_EMBEDDING.search(tensor.name)
