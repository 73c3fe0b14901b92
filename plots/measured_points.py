"""Measured dense and sparse times that the plots show beside the model.

Source: SlideSparse kernel benchmark, bcacdwk/vllmbench (arXiv 2603.05232), cuSPARSELt and cuBLASLt best of
search, stream, warm L2. bf16 with f32 accumulation, 2:4 on the weight; square products, and the gate and up
projection of Qwen2.5-14B (m = 27648, k = 5120) over tokens.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["DTYPE", "L2", "MEASURED", "PATTERN", "SOURCE", "TIMING", "Measured", "of_square", "of_weight"]

SOURCE = (
    "SlideSparse kernel benchmark, bcacdwk/vllmbench (arXiv 2603.05232), "
    "cuSPARSELt and cuBLASLt best of search, stream, warm L2"
)
DTYPE, PATTERN, TIMING, L2 = "bf16", "2:4", "stream", "warm"


class Measured(NamedTuple):
    """One pair of timings [µs] of D[m×n] = A[m×k]·B[k×n]."""

    gpu: str
    m: int
    n: int
    k: int
    dense_us: float
    sparse_us: float


MEASURED = (
    Measured("a100_pcie_80gb", 64, 64, 64, 4.321, 5.693),
    Measured("a100_pcie_80gb", 128, 128, 128, 4.567, 6.39),
    Measured("a100_pcie_80gb", 256, 256, 256, 5.796, 6.984),
    Measured("a100_pcie_80gb", 512, 512, 512, 7.578, 8.438),
    Measured("a100_pcie_80gb", 2048, 2048, 2048, 82.104, 69.632),
    Measured("a100_pcie_80gb", 4096, 4096, 4096, 586.342, 342.364),
    Measured("a100_pcie_80gb", 16384, 16384, 16384, 38038.734, 31247.482),
    Measured("a100_pcie_80gb", 27648, 64, 5120, 212.931, 115.057),
    Measured("a100_pcie_80gb", 27648, 128, 5120, 214.528, 121.16),
    Measured("a100_pcie_80gb", 27648, 256, 5120, 330.465, 237.179),
    Measured("a100_pcie_80gb", 27648, 512, 5120, 653.66, 482.632),
    Measured("a100_pcie_80gb", 27648, 1024, 5120, 1270.395, 1010.155),
    Measured("a100_pcie_80gb", 27648, 2048, 5120, 2550.907, 2103.685),
    Measured("a100_pcie_80gb", 27648, 4096, 5120, 5068.718, 4302.807),
    Measured("a100_pcie_80gb", 27648, 8192, 5120, 10115.011, 8623.615),
    Measured("h100_pcie", 64, 64, 64, 4.657, 5.821),
    Measured("h100_pcie", 128, 128, 128, 4.593, 6.646),
    Measured("h100_pcie", 256, 256, 256, 4.571, 6.838),
    Measured("h100_pcie", 512, 512, 512, 4.712, 7.88),
    Measured("h100_pcie", 2048, 2048, 2048, 35.049, 36.077),
    Measured("h100_pcie", 4096, 4096, 4096, 289.463, 188.748),
    Measured("h100_pcie", 16384, 16384, 16384, 22274.043, 15311.246),
    Measured("h100_pcie", 27648, 64, 5120, 158.486, 116.461),
    Measured("h100_pcie", 27648, 128, 5120, 163.774, 109.594),
    Measured("h100_pcie", 27648, 256, 5120, 185.011, 117.972),
    Measured("h100_pcie", 27648, 512, 5120, 300.479, 200.627),
    Measured("h100_pcie", 27648, 1024, 5120, 676.787, 387.232),
    Measured("h100_pcie", 27648, 2048, 5120, 1394.335, 813.144),
    Measured("h100_pcie", 27648, 4096, 5120, 2895.188, 1738.624),
    Measured("h100_pcie", 27648, 8192, 5120, 5990.395, 3668.232),
    Measured("b200", 64, 64, 64, 5.889, 5.135),
    Measured("b200", 128, 128, 128, 5.404, 6.221),
    Measured("b200", 256, 256, 256, 5.51, 6.174),
    Measured("b200", 512, 512, 512, 5.555, 6.225),
    Measured("b200", 2048, 2048, 2048, 16.506, 12.913),
    Measured("b200", 4096, 4096, 4096, 90.918, 56.618),
    Measured("b200", 16384, 16384, 16384, 5970.898, 3703.827),
    Measured("b200", 27648, 64, 5120, 47.733, 31.569),
    Measured("b200", 27648, 128, 5120, 51.249, 34.074),
    Measured("b200", 27648, 256, 5120, 61.533, 43.64),
    Measured("b200", 27648, 512, 5120, 97.076, 63.533),
    Measured("b200", 27648, 1024, 5120, 208.209, 112.83),
    Measured("b200", 27648, 2048, 5120, 364.618, 212.91),
    Measured("b200", 27648, 4096, 5120, 757.466, 432.632),
    Measured("b200", 27648, 8192, 5120, 1558.305, 869.573),
    Measured("rtx4090", 64, 64, 64, 9.544, 9.605),
    Measured("rtx4090", 128, 128, 128, 9.933, 8.66),
    Measured("rtx4090", 256, 256, 256, 10.037, 9.708),
    Measured("rtx4090", 512, 512, 512, 11.837, 10.383),
    Measured("rtx4090", 2048, 2048, 2048, 105.779, 61.542),
    Measured("rtx4090", 4096, 4096, 4096, 823.972, 447.058),
    Measured("rtx4090", 16384, 16384, 16384, 57258.148, 29111.461),
    Measured("rtx4090", 27648, 64, 5120, 329.851, 189.768),
    Measured("rtx4090", 27648, 128, 5120, 337.142, 209.654),
    Measured("rtx4090", 27648, 256, 5120, 540.877, 380.211),
    Measured("rtx4090", 27648, 512, 5120, 997.99, 739.267),
    Measured("rtx4090", 27648, 1024, 5120, 1937.797, 1400.013),
    Measured("rtx4090", 27648, 2048, 5120, 3857.734, 2755.584),
    Measured("rtx4090", 27648, 4096, 5120, 7755.591, 5402.03),
    Measured("rtx4090", 27648, 8192, 5120, 15634.392, 10827.469),
)


def of_square(gpu: str) -> list[tuple[float, float]]:
    """(size, speedup) of the square products on `gpu`."""
    return [(row.n, row.dense_us / row.sparse_us) for row in MEASURED if row.gpu == gpu and row.m == row.n == row.k]


def of_weight(gpu: str, m: int, k: int) -> list[tuple[float, float]]:
    """(n, speedup) of one weight on `gpu`."""
    return [
        (row.n, row.dense_us / row.sparse_us)
        for row in MEASURED
        if row.gpu == gpu and (row.m, row.k) == (m, k) and row.n != row.k
    ]
