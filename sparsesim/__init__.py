"""Cycle-approximate, discrete-event simulator of GPUs with sparse tensor cores.

The names below are loaded on first use, so that ``import sparsesim`` costs nothing. Each is documented where
it is defined; the functions that simulate are in `sparsesim.api`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sparsesim._version import __version__

if TYPE_CHECKING:
    from sparsesim.api import (
        audit_file,
        explain_gemm,
        explain_workload,
        import_file,
        report_workload,
        simulate_gemm,
        simulate_workload,
        validate_files,
        workload_counters,
    )
    from sparsesim.errors import UserError
    from sparsesim.hardware import GpuSpec, gpu_names, load_gpu
    from sparsesim.protocol import Protocol
    from sparsesim.results import GemmResult
    from sparsesim.serving.api import simulate_serving, validate_serving
    from sparsesim.simulator import Simulator
    from sparsesim.sparsity import Pattern
    from sparsesim.studies import break_even, compare_patterns, sensitivity, timeline, whatif
    from sparsesim.workload import Gemm, Workload, load_workload, workload_names

__all__ = [
    "Gemm",
    "GemmResult",
    "GpuSpec",
    "Pattern",
    "Protocol",
    "Simulator",
    "UserError",
    "Workload",
    "__version__",
    "audit_file",
    "break_even",
    "compare_patterns",
    "explain_gemm",
    "explain_workload",
    "gpu_names",
    "import_file",
    "load_gpu",
    "load_workload",
    "report_workload",
    "sensitivity",
    "simulate_gemm",
    "simulate_serving",
    "simulate_workload",
    "timeline",
    "validate_files",
    "validate_serving",
    "whatif",
    "workload_counters",
    "workload_names",
]

#: public name -> module that defines it
_HOMES = {
    "Gemm": "workload",
    "GemmResult": "results",
    "GpuSpec": "hardware",
    "Pattern": "sparsity",
    "Protocol": "protocol",
    "Simulator": "simulator",
    "UserError": "errors",
    "Workload": "workload",
    "audit_file": "api",
    "break_even": "studies",
    "compare_patterns": "studies",
    "explain_gemm": "api",
    "explain_workload": "api",
    "gpu_names": "hardware",
    "import_file": "api",
    "load_gpu": "hardware",
    "load_workload": "workload",
    "report_workload": "api",
    "sensitivity": "studies",
    "simulate_gemm": "api",
    "simulate_serving": "serving.api",
    "simulate_workload": "api",
    "timeline": "studies",
    "validate_files": "api",
    "validate_serving": "serving.api",
    "whatif": "studies",
    "workload_counters": "api",
    "workload_names": "workload",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
