"""Audit of real weights: which tensors are N:M, along which axis, and whether a stack would run them sparse."""

from sparsesim.audit.report import DEFAULT_PATTERNS, Audit, TensorAudit
from sparsesim.audit.run import audit_weights

__all__ = ["DEFAULT_PATTERNS", "Audit", "TensorAudit", "audit_weights"]
