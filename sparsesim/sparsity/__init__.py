"""Sparsity patterns as pure arithmetic: names, pruning, compressed storage, and a reference product.

Knows no hardware: which GPU runs which pattern, and how fast, is decided elsewhere. Workloads, stacks,
the device model and the audit of weight files call it.
"""

from sparsesim.sparsity.codec import (
    Compressed,
    compress,
    compressed_bytes,
    decompress,
    kept_columns,
    metadata_bytes,
)
from sparsesim.sparsity.gemm import spmm
from sparsesim.sparsity.pattern import ASSUMED_V, DENSE, PAIR_4_8, TWO_FOUR, Form, Pattern
from sparsesim.sparsity.prune import Check, check, keep_mask, prune

__all__ = [
    "ASSUMED_V",
    "DENSE",
    "PAIR_4_8",
    "TWO_FOUR",
    "Check",
    "Compressed",
    "Form",
    "Pattern",
    "check",
    "compress",
    "compressed_bytes",
    "decompress",
    "keep_mask",
    "kept_columns",
    "metadata_bytes",
    "prune",
    "spmm",
]
