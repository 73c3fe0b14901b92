"""GPU kernels: tiles, what a k-step costs, which kernels a library has."""

from sparsesim.kernels.catalogue import dense_kernels, kernel_family, sparse_kernels, splits
from sparsesim.kernels.datapath import KStep, Operands, kstep, mma_interval, stage_bytes, wgmma_cycles
from sparsesim.kernels.kernel import Kernel, Occupancy, occupancy, resident_limit

__all__ = [
    "KStep",
    "Kernel",
    "Occupancy",
    "Operands",
    "dense_kernels",
    "kernel_family",
    "kstep",
    "mma_interval",
    "occupancy",
    "resident_limit",
    "sparse_kernels",
    "splits",
    "stage_bytes",
    "wgmma_cycles",
]
