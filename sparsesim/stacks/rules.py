"""What a software stack is: an ordered list of rules that decide which path an op runs on, and why.

The first rule that refuses wins, and its reason is the op's reason. If none refuses, the op runs sparse.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sparsesim.hardware import GpuSpec
from sparsesim.sparsity import Pattern
from sparsesim.workload import Gemm

__all__ = ["Decision", "Rule", "Stack"]


@dataclass(frozen=True)
class Rule:
    """One reason for which a stack refuses the sparse path.

    refuses(op, pattern, gpu) returns what was found, in words, or None if the rule lets the op pass.
    """

    code: str
    text: str
    source: str
    refuses: Callable[[Gemm, Pattern, GpuSpec], str | None]


@dataclass(frozen=True)
class Decision:
    """Path of one op under one stack, with the code and the text of the rule that decided."""

    path: str
    reason: str
    text: str
    native: Pattern | None = None

    @property
    def is_fallback(self) -> bool:
        """An op with a sparse weight that runs on the dense path."""
        return self.path == "dense" and self.reason != "dense-weight"


@dataclass(frozen=True)
class Stack:
    """A software stack: rules, what it writes, and how it picks kernels.

    policy : "search" = the fastest of all the library's kernels is taken; "heuristic" = the library predicts
    output : dtype → bytes of one output element on the sparse path
    """

    name: str
    title: str
    rules: tuple[Rule, ...]
    policy: str
    output: Callable[[str], float]
    dense_stack: str = "cublaslt"

    def decide(self, op: Gemm, gpu: GpuSpec) -> Decision:
        """Which path `op` runs on, and why."""
        pattern = Pattern.parse(op.pattern)
        if pattern.is_dense:
            return Decision("dense", "dense-weight", "the weight is dense")
        for rule in self.rules:
            found = rule.refuses(op, pattern, gpu)
            if found is not None:
                return Decision("dense", rule.code, f"{rule.text}: {found}")
        native = native_pattern(op, pattern, gpu)
        if native is None:
            raise AssertionError(f"{self.name}: the rules let {pattern} pass, but {gpu.name} has no native form")
        how = "natively" if native == pattern else f"as {native}"
        return Decision("sparse", "eligible", f"all rules met; runs {how}", native)


def native_pattern(op: Gemm, pattern: Pattern, gpu: GpuSpec) -> Pattern | None:
    """The cheapest pattern of the datapath that `pattern` can run as, or None."""
    key = "f16" if op.dtype == "bf16" else op.dtype
    known = [Pattern.parse(text) for text in gpu.tensor.native_patterns.get(key, ())]
    fitting = [native for native in known if pattern.runs_as(native)]
    # the sparsest; of equals the pattern itself, then the one with the least metadata
    return min(
        fitting,
        key=lambda native: (native.kept_fraction, native != pattern, native.metadata_bits_per_kept),
        default=None,
    )
