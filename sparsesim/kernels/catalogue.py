"""Which kernels a library has: tiles, stages and splits by instruction family, dtype and path.

Sources: CUTLASS python/cutlass_library/generator.py (SM80 dense and sparse tiles, SM90 and SM100 defaults) and
kernel names in public profiles (nvjet_… of cuBLAS, sm80_xmma_sparse_gemm… of cuSPARSELt), as listed in the
hardware facts. Stage counts of wgmma and tcgen05 kernels are "as many as fit", as CUTLASS's StageCountAuto.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sparsesim.hardware import GpuSpec
from sparsesim.kernels.datapath import Operands, family_dtype, stage_bytes
from sparsesim.kernels.kernel import Kernel, occupancy

__all__ = ["dense_kernels", "kernel_family", "sparse_kernels", "splits"]

#: SM80 dense: (m, n, k for 16-bit, stages, warps m, warps n); k scales with the inverse element size
SM80_DENSE = (
    (256, 128, 32, 3, 4, 2), (128, 256, 32, 3, 2, 4), (256, 64, 32, 4, 4, 1), (64, 256, 32, 4, 1, 4),
    (128, 128, 32, 4, 2, 2), (128, 128, 32, 3, 2, 2), (128, 64, 32, 6, 2, 2), (64, 128, 32, 6, 2, 2),
    (64, 64, 32, 10, 2, 2), (256, 128, 64, 3, 4, 2), (128, 256, 64, 3, 2, 4), (256, 64, 64, 4, 4, 1),
    (64, 256, 64, 4, 1, 4), (128, 128, 64, 4, 2, 2), (128, 128, 64, 3, 2, 2), (128, 64, 64, 3, 2, 2),
    (64, 128, 64, 3, 2, 2), (64, 64, 64, 5, 2, 2), (128, 32, 64, 4, 4, 1), (64, 32, 64, 6, 2, 2),
)  # fmt: skip
#: before cp.async (Volta, Turing): two stages staged through registers
SM70_DENSE = (
    (256, 128, 32, 2, 4, 2), (128, 256, 32, 2, 2, 4), (128, 128, 32, 2, 2, 2), (128, 64, 32, 2, 2, 2),
    (64, 128, 32, 2, 2, 2), (64, 64, 32, 2, 2, 2), (128, 32, 32, 2, 4, 1),
)  # fmt: skip
#: SM80 sparse (k is the uncompressed depth): the tiles that names of cuSPARSELt's kernels show in public profiles
#: (128x128x64 for f16, 128x64x128 for i8) and the 256x128 of CUTLASS. Measured: at n = 64 a step of 64 in f16, or of
#: 128 in i8, takes what a tile of 128 columns needs; smaller tiles of CUTLASS would be faster
SM80_SPARSE_16BIT = ((256, 128, 64, 3, 4, 2), (128, 128, 64, 3, 2, 2), (128, 128, 128, 3, 2, 4))
SM80_SPARSE_8BIT = (*SM80_SPARSE_16BIT, (128, 64, 64, 4, 2, 2))
#: SM90 dense: (m, n, cluster m, cluster n)
SM90_DENSE = (
    (128, 256, 2, 1), (256, 128, 1, 2), (192, 192, 1, 2), (128, 192, 2, 1), (128, 128, 2, 1), (128, 64, 2, 1),
    (64, 256, 2, 1), (64, 128, 2, 1), (64, 64, 1, 1), (64, 32, 1, 1), (64, 16, 1, 1), (128, 32, 1, 1),
)  # fmt: skip
SM90_SPARSE = ((128, 128, 1, 2), (128, 256, 2, 1), (256, 128, 1, 2))
#: and for 8-bit types. Measured (slidesparse_h100_pcie, 2:4): at n = 64 and k = 8192 they take 13 µs, less than a tile
#: of 128 columns needs; bf16 takes 36 µs for every n up to 256
SM90_SPARSE_8BIT = (*SM90_SPARSE, (128, 64, 2, 1), (64, 64, 1, 1))
#: SM100: (m, n, pair)
SM100_DENSE = (
    (256, 256, True), (256, 192, True), (256, 128, True), (256, 64, True), (128, 256, False), (128, 192, False),
    (128, 128, False), (128, 64, False), (128, 32, False),
)  # fmt: skip
SM100_SPARSE = ((256, 256, True), (256, 128, True), (128, 256, False), (128, 128, False))

#: columns of tiles that a launch walks together (CUTLASS ThreadblockSwizzle, up to 8)
RASTER_GROUP = 8
DENSE_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
SPARSE_SPLITS = (1, 2, 4, 8)
#: a CTA that shares its tile along k keeps at least this many k-steps
MIN_STEPS_PER_SPLIT = 4
#: shared memory that an epilogue keeps for itself where it overlaps the next tile's main loop
EPILOGUE_BYTES = 16 * 1024


def kernel_family(gpu: GpuSpec, dtype: str, sparse: bool) -> str:
    """Instruction family that the libraries use for a dtype and path on this GPU.

    Dense i8 on data-centre Blackwell runs on the legacy mma.sync path (measured: about 930 TOP/s).
    """
    generation = gpu.tensor.generation
    if generation == "mma":
        return "sm80"
    if generation == "tcgen05":
        return "sm80" if dtype == "i8" and not sparse and "i8" in gpu.tensor.legacy_macs_per_clk else "sm100"
    return "sm90"


def _scale(dtype: str) -> float:
    return {"f16": 1.0, "tf32": 0.5, "i8": 2.0, "e4m3": 2.0, "e2m1": 4.0}[family_dtype(dtype)]


def _fill_stages(gpu: GpuSpec, kernel: Kernel, ops: Operands) -> int:
    room = gpu.smem.max_per_cta - (EPILOGUE_BYTES if kernel.overlap else 0)
    return int(max(min(room // stage_bytes(kernel, ops), 16), 0))


def dense_kernels(gpu: GpuSpec, ops: Operands) -> Iterator[Kernel]:
    """Dense kernels that fit on this GPU, without split-K."""
    yield from _fitting(gpu, ops, _kernels(gpu, ops, sparse=False))


def sparse_kernels(gpu: GpuSpec, ops: Operands) -> Iterator[Kernel]:
    """Sparse kernels that fit on this GPU, without split-K."""
    yield from _fitting(gpu, ops, _kernels(gpu, ops, sparse=True))


def _kernels(gpu: GpuSpec, ops: Operands, sparse: bool) -> Iterator[Kernel]:
    library = gpu.library
    if ops.dtype == "i8" and not sparse and library.small_i8:
        for m, n, k, stages in library.small_i8:
            yield Kernel("sm80", sparse, m, n, k, stages, max(m // 64, 2), max(n // 64, 2))
        for kernel in _all_kernels(gpu, ops, sparse):
            yield replace(kernel, min_outputs=round(library.large_i8_outputs))
        return
    yield from _all_kernels(gpu, ops, sparse)


def _all_kernels(gpu: GpuSpec, ops: Operands, sparse: bool) -> Iterator[Kernel]:
    family = kernel_family(gpu, ops.dtype, sparse)
    scale = _scale(ops.dtype)
    if family == "sm80":
        old = gpu.compute_capability.startswith("7.")
        group = gpu.library.sparse_raster_group.get(family_dtype(ops.dtype), RASTER_GROUP) if sparse else RASTER_GROUP
        sparse_table = SM80_SPARSE_8BIT if scale == 2.0 else SM80_SPARSE_16BIT
        table = sparse_table if sparse else SM70_DENSE if old else SM80_DENSE
        for m, n, k, stages, warps_m, warps_n in table:
            yield Kernel(
                "sm80",
                sparse,
                m,
                n,
                int(k * scale),
                stages,
                warps_m,
                warps_n,
                raster_group=group,
            )
    elif family == "sm90":
        # 128 bytes of the dense operand per k-step; the sparse tile keeps A's bytes, so B's depth doubles
        depth = int(64 * scale) * (2 if sparse else 1)
        for m, n, cluster_m, cluster_n in _sm90_tiles(ops.dtype, sparse):
            if not gpu.cluster.multicast or gpu.cluster.max_size < cluster_m * cluster_n:
                cluster_m = cluster_n = 1
            base = Kernel(
                "sm90", sparse, m, n, depth, 1, max(1, min(m // 64, 2)), 1, cluster_m, cluster_n,
                persistent=True, overlap=not sparse, raster_along_m=True,
            )  # fmt: skip
            yield _with_stages(base, _fill_stages(gpu, base, ops))
    else:
        depth = int(64 * scale) * (2 if sparse else 1)
        for m, n, pair in SM100_SPARSE if sparse else SM100_DENSE:
            if pair and gpu.cluster.max_size < 2:
                continue
            base = Kernel(
                "sm100",
                sparse,
                m,
                n,
                depth,
                1,
                1,
                1,
                pair=pair,
                persistent=True,
                overlap=True,
                raster_along_m=True,
            )
            yield _with_stages(base, _fill_stages(gpu, base, ops))


def _sm90_tiles(dtype: str, sparse: bool) -> tuple[tuple[int, int, int, int], ...]:
    if not sparse:
        return SM90_DENSE
    return SM90_SPARSE_8BIT if _scale(dtype) == 2.0 else SM90_SPARSE


def _with_stages(kernel: Kernel, stages: int) -> Kernel:
    return replace(kernel, stages=stages)


def _fitting(gpu: GpuSpec, ops: Operands, kernels: Iterator[Kernel]) -> Iterator[Kernel]:
    for kernel in kernels:
        if kernel.stages >= 2 and occupancy(gpu, kernel, stage_bytes(kernel, ops)).ctas > 0:
            yield kernel


def splits(kernel: Kernel, dtype: str, k: int) -> tuple[int, ...]:
    """Splits along k that a library would try for `kernel` at this k.

    Without split-K come: sparse wgmma and tcgen05 kernels, 8-bit sparse kernels, and dense i8 kernels, which write
    i32 (measured: at small n their times grow with k as that of one CTA per tile).
    """
    if kernel.sparse and (kernel.family != "sm80" or dtype in ("i8", "e4m3")):
        return (1,)
    if not kernel.sparse and dtype == "i8":
        return (1,)
    options = SPARSE_SPLITS if kernel.sparse else DENSE_SPLITS
    steps = kernel.k_steps(k)
    return tuple(s for s in options if s == 1 or steps // s >= MIN_STEPS_PER_SPLIT)
