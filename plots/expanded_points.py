"""Measured times of 6:8 weights run as 2:4 on 1.5 times the k, beside dense ones, that a plot shows.

Source: as `measured_points`; bf16 with f32 accumulation. Of the pairs of at least 10 µs whose dense product was
measured, ordered by m·n·k, every third.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["EXPANDED", "Expanded"]


class Expanded(NamedTuple):
    """Dense at k and 2:4 at 1.5 k [µs] of D[m×n] = A[m×k]·B[k×n]."""

    gpu: str
    m: int
    n: int
    k: int
    dense_us: float
    sparse_us: float


EXPANDED = (
    Expanded("a100_pcie_80gb", 5120, 64, 3072, 21.299, 25.149),
    Expanded("a100_pcie_80gb", 2048, 512, 2048, 32.379, 30.024),
    Expanded("a100_pcie_80gb", 3072, 512, 3072, 46.633, 54.108),
    Expanded("a100_pcie_80gb", 27648, 64, 5120, 212.931, 166.584),
    Expanded("a100_pcie_80gb", 5120, 1024, 5120, 238.49, 241.644),
    Expanded("a100_pcie_80gb", 16384, 1024, 3072, 485.888, 482.939),
    Expanded("a100_pcie_80gb", 3072, 8192, 3072, 722.391, 659.435),
    Expanded("a100_pcie_80gb", 27648, 4096, 5120, 5068.72, 6411.94),
    Expanded("a100_pcie_80gb", 5120, 32768, 5120, 7567.65, 7000.9),
    Expanded("a100_pcie_80gb", 5120, 65536, 5120, 15231.5, 14445),
    Expanded("a100_pcie_80gb", 32768, 32768, 32768, 322287, 432664),
    Expanded("h100_pcie", 2048, 64, 8192, 15.807, 39.434),
    Expanded("h100_pcie", 3072, 128, 8192, 35.402, 54.964),
    Expanded("h100_pcie", 27648, 64, 5120, 158.486, 169.652),
    Expanded("h100_pcie", 27648, 128, 5120, 163.774, 159.574),
    Expanded("h100_pcie", 16384, 512, 3072, 111.228, 129.444),
    Expanded("h100_pcie", 4096, 4096, 4096, 289.463, 295.792),
    Expanded("h100_pcie", 3072, 8192, 8192, 983.569, 873.724),
    Expanded("h100_pcie", 7168, 8192, 5120, 1436.27, 1299.89),
    Expanded("h100_pcie", 16384, 16384, 3072, 4107.49, 3679.2),
    Expanded("b200", 3072, 64, 3072, 10.384, 10.316),
    Expanded("b200", 5120, 64, 5120, 14.643, 14.414),
    Expanded("b200", 16384, 64, 3072, 20.356, 12.365),
    Expanded("b200", 3072, 1024, 3072, 16.497, 18.519),
    Expanded("b200", 3072, 1024, 8192, 36.996, 39.023),
    Expanded("b200", 27648, 256, 5120, 61.533, 61.487),
    Expanded("b200", 27648, 512, 5120, 97.076, 91.615),
    Expanded("b200", 5120, 4096, 5120, 135.395, 135.405),
    Expanded("b200", 5120, 8192, 5120, 283.292, 243.74),
    Expanded("b200", 16384, 16384, 3072, 1052.76, 926.784),
    Expanded("rtx4090", 64, 64, 64, 9.544, 10.424),
    Expanded("rtx4090", 3072, 64, 3072, 22.914, 19.168),
    Expanded("rtx4090", 3072, 256, 3072, 42.537, 34.181),
    Expanded("rtx4090", 3072, 256, 8192, 95.314, 81.326),
    Expanded("rtx4090", 5120, 128, 13824, 174.694, 152.146),
    Expanded("rtx4090", 7168, 512, 5120, 252.867, 197.591),
    Expanded("rtx4090", 2048, 2048, 8192, 429.445, 317.993),
    Expanded("rtx4090", 5120, 2048, 13824, 1904.85, 1443.98),
    Expanded("rtx4090", 16384, 8192, 3072, 5003.92, 4242.94),
    Expanded("rtx4090", 27648, 16384, 5120, 31252.5, 31778.9),
)
