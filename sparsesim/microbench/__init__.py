"""Micro-benchmarks on a live GPU: the parameters of a hardware file that matter most, measured.

The kernels are CUDA C++ (in ``cuda/``), compiled by nvcc for the board's architecture and run as programs of their own
that print readings; `fragment` turns the readings into a hardware file that extends the packaged one.
"""

from sparsesim.microbench.fragment import Fragment, fragment_of
from sparsesim.microbench.programs import PROGRAMS, Readings, compile_program, find_compiler, find_gpu, run_programs

__all__ = [
    "PROGRAMS",
    "Fragment",
    "Readings",
    "compile_program",
    "find_compiler",
    "find_gpu",
    "fragment_of",
    "run_programs",
]
