"""Loss attribution: counterfactual runs, and shares of the lost speedup that sum exactly."""

from sparsesim.attribution.causes import CAUSES, CLASSES, Cause, cause
from sparsesim.attribution.gemm import Attributor, attribute_gemm
from sparsesim.attribution.result import Attribution, Evidence
from sparsesim.attribution.shapley import shapley
from sparsesim.attribution.workload import LayerLoss, WorkloadAttribution, attribute_workload

__all__ = [
    "CAUSES",
    "CLASSES",
    "Attribution",
    "Attributor",
    "Cause",
    "Evidence",
    "LayerLoss",
    "WorkloadAttribution",
    "attribute_gemm",
    "attribute_workload",
    "cause",
    "shapley",
]
