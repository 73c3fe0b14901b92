"""GPU descriptions: read, validated, audited."""

from sparsesim.hardware.load import gpu_names, load_gpu, load_sources, override
from sparsesim.hardware.spec import GpuSpec, Provenance

__all__ = ["GpuSpec", "Provenance", "gpu_names", "load_gpu", "load_sources", "override"]
