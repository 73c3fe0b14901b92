"""Profiles that users already hold, as timings and counters of kernels.

`read_profile` reads Nsight Compute and Nsight Systems exports, PyTorch profiler traces, CUTLASS profiler tables and
cuBLASLt/cuSPARSELt logs; `parse_kernel_name` says what a kernel's name tells. Nothing here simulates.
"""

from sparsesim.profiles.kernel_names import KernelName, parse_kernel_name
from sparsesim.profiles.read import FORMATS, detect_profile, read_profile
from sparsesim.profiles.record import KernelShape, Profile, ProfiledKernel, shape_of_text
from sparsesim.profiles.rows import ProfiledGemm, gemms_of, measured_rows

__all__ = [
    "FORMATS",
    "KernelName",
    "KernelShape",
    "Profile",
    "ProfiledGemm",
    "ProfiledKernel",
    "detect_profile",
    "gemms_of",
    "measured_rows",
    "parse_kernel_name",
    "read_profile",
    "shape_of_text",
]
