"""What an audit found, tensor by tensor, and the trace of the tensors that run sparse."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sparsesim.errors import Problem, UserError
from sparsesim.importers.imported import clean, distinct
from sparsesim.workload import Gemm, Workload

__all__ = ["DEFAULT_PATTERNS", "Audit", "AxisAudit", "TensorAudit"]

DEFAULT_PATTERNS = ("1:2", "2:4", "1:4", "4:8", "2:8", "1:8", "2:16", "2:4(pair 4:8)")
"""Patterns judged where the caller names none: those of shipped and announced hardware, and their neighbours."""


@dataclass(frozen=True)
class AxisAudit:
    """Groups along one axis of a tensor.

    Parameters
    ----------
    axis
        Of the stored tensor.
    groups, broken
        By pattern: how many there are, and how many hold more nonzeros than it allows.
    complies
        Patterns without a broken group, the sparsest first. A side shorter than a group complies with nothing.
    """

    axis: int
    groups: dict[str, int]
    broken: dict[str, int]
    complies: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with the share of broken groups."""
        shares = {name: self.broken[name] / self.groups[name] if self.groups[name] else 0.0 for name in self.groups}
        return {"axis": self.axis, "complies": list(self.complies), "broken_share": shares,
                "broken": self.broken, "groups": self.groups}  # fmt: skip


@dataclass(frozen=True)
class TensorAudit:
    """One tensor: how sparse it is, along which axis it is N:M, and what the stack does with it.

    Parameters
    ----------
    name, shape, dtype, file
        As stored.
    sparsity
        Share of zeros; None for a tensor whose data were not read.
    along_k, across_k
        Along the summed axis, and along the one that a transposed layout would sum over; None if not read.
    eligible, reason, text
        Whether the stack runs it sparse; code and sentence of what decided.
    first
        Index of the first group that breaks the judged pattern, if that is why.
    op
        The product, with the pattern it was judged by; None where there is none.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    file: str
    sparsity: float | None
    along_k: AxisAudit | None
    across_k: AxisAudit | None
    eligible: bool
    reason: str
    text: str
    first: tuple[int, ...] | None = None
    op: Gemm | None = None

    @property
    def pattern(self) -> str:
        """The pattern it has along the summed axis; ``"dense"`` for none."""
        return self.along_k.complies[0] if self.along_k and self.along_k.complies else "dense"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        op = self.op
        return {
            "name": self.name, "shape": list(self.shape), "dtype": self.dtype, "file": self.file,
            "sparsity": self.sparsity, "pattern": self.pattern, "eligible": self.eligible,
            "reason": self.reason, "text": self.text, "first_broken": list(self.first) if self.first else None,
            "transposed_complies": list(self.across_k.complies) if self.across_k else [],
            "axes": [axis.to_dict() for axis in (self.along_k, self.across_k) if axis],
            "gemm": None if op is None else {"m": op.m, "n": op.n, "k": op.k, "batch": op.batch, "dtype": op.dtype,
                                             "pattern": op.pattern, "kind": op.kind},
        }  # fmt: skip


@dataclass(frozen=True)
class Audit:
    """All tensors of a checkpoint under one stack on one GPU, with `tokens` columns in every product."""

    path: str
    source: str
    gpu: str
    stack: str
    tokens: int
    patterns: tuple[str, ...]
    tensors: tuple[TensorAudit, ...]

    @property
    def eligible(self) -> tuple[TensorAudit, ...]:
        """The tensors that the stack runs sparse."""
        return tuple(tensor for tensor in self.tensors if tensor.eligible)

    def workload(self) -> Workload:
        """The products with the eligible tensors; raises `UserError` if there are none."""
        ops = tuple(tensor.op for tensor in self.eligible if tensor.op is not None)
        if not ops:
            found = f"none of {len(self.tensors)}"
            raise UserError(Problem.line(self.path, "", f"a tensor that {self.stack} runs sparse on {self.gpu}", found))
        names = distinct(op.name for op in ops)
        ops = tuple(replace(op, name=name) for op, name in zip(ops, names, strict=True))
        description = f"Tensors that {self.stack} runs sparse on {self.gpu}, {self.tokens} tokens"
        return Workload(
            clean(self.path.rstrip("/").rpartition("/")[2], "weights"), description, f"audit of {clean(self.path)}", ops
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data: tensors, and counts by reason."""
        reasons: dict[str, dict[str, int]] = {}
        for tensor in self.tensors:
            entry = reasons.setdefault(tensor.reason, {"tensors": 0, "elements": 0})
            entry["tensors"] += 1
            size = 1
            for side in tensor.shape:
                size *= side
            entry["elements"] += size
        return {
            "file": self.path, "format": self.source, "gpu": self.gpu, "stack": self.stack, "tokens": self.tokens,
            "patterns": list(self.patterns), "eligible": len(self.eligible), "reasons": reasons,
            "tensors": [tensor.to_dict() for tensor in self.tensors],
        }  # fmt: skip
