"""What the name of a GEMM kernel tells: library, path, tile, stages, types, instruction.

The grammars are those of the libraries' own names, as they stand in public profiles and in CUTLASS's generator:

- cuBLAS on Hopper and Blackwell: ``nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNT`` = types, tile, k × stages, cluster.
- cuBLAS before: ``ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn``, ``turing_…``, ``volta_…``.
- cuBLAS and cuSPARSELt: ``sm80_xmma_sparse_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x64_stage3_warpsize2x2x1_
  sptensor16x8x32_kernel``.
- CUTLASS 2: ``cutlass_80_tensorop_f16_s16816gemm_f16_256x128_32x3_tn_align8`` (``spgemm`` for sparse); CUTLASS 3:
  ``cutlass3x_sm90_tensorop_s64x128x16gemm_f16_f16_f32_f16_f16_128x128x64_2x1x1_0_tnn_align8_…``; and its templates,
  of which the first ``GemmShape<…>`` is the tile.

A field that a name does not tell is None. Tiles are m × n × k of the library's problem, which for a linear layer
(x·Wᵀ in row-major storage) has the weight's rows along m, as here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["KernelName", "parse_kernel_name"]


@dataclass(frozen=True)
class KernelName:
    """What a kernel's name tells.

    Attributes
    ----------
    name
        The name that was parsed.
    library
        ``cuBLAS``, ``cuSPARSELt`` or ``CUTLASS``.
    role
        ``gemm``, or ``reduce`` for the kernel that adds up split-K partials, ``gemv`` for matrix times vector.
    path
        ``dense`` or ``sparse``.
    tile
        (m, n, k) of the CTA tile in uncompressed elements; k is None where the name has none.
    stages, dtype, cluster, split_k
        Pipeline depth, input type (f16, bf16, tf32, f32, i8, e4m3, e5m2, e2m1), CTAs per cluster, whether the name
        says split-K.
    family
        ``sm70``, ``sm75``, ``sm80``, ``sm90``, ``sm100``, … : the architecture it was written for.
    instruction
        (m, n, k) of the tensor-core instruction.
    layout
        Transposition letters, e.g. ``tn``.
    """

    name: str
    library: str
    role: str = "gemm"
    path: str = "dense"
    tile: tuple[int, int, int | None] | None = None
    stages: int | None = None
    dtype: str | None = None
    cluster: tuple[int, int] | None = None
    split_k: bool = False
    family: str | None = None
    instruction: tuple[int, int, int] | None = None
    layout: str | None = None


#: words for types in the names → the project's
_TYPES = {
    "f16": "f16", "fp16": "f16", "h": "f16", "bf16": "bf16", "tf32": "tf32", "tf32f32": "tf32", "f32": "f32",
    "fp32": "f32", "s8": "i8", "u8": "i8", "i8": "i8", "int8": "i8", "e4m3": "e4m3", "fe4m3": "e4m3", "e5m2": "e5m2",
    "e2m1": "e2m1", "f8": None, "s4": None, "f64": "f64", "fp64": "f64",
}  # fmt: skip
#: first letters of an nvjet name's type word → input type. q and the further fp8 letters come twice (A and B).
_NVJET_TYPES = {"h": "f16", "t": "bf16", "s": "tf32", "q": "e4m3", "o": "i8"}
_CHIPS = {"volta": "sm70", "turing": "sm75", "ampere": "sm80", "ada": "sm89", "hopper": "sm90", "maxwell": "sm50"}

_NVJET = re.compile(
    r"nvjet_(?:(?P<arch>sm\d+)_)?(?P<types>[a-z]{3,6})_(?:mma_)?(?P<m>\d+)x(?P<n>\d+)_(?P<k>\d+)x(?P<stages>\d+)"
    r"(?:_(?P<cm>\d+)x(?P<cn>\d+))?(?P<rest>\w*)"
)
_XMMA = re.compile(
    r"(?P<arch>sm\d+)_xmma_(?P<sparse>sparse_)?gemm_(?P<types>[a-z0-9]+(?:_[a-z0-9]+)*?)_(?P<layout>[tn]{2})_[tn]_"
    r"tilesize(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)(?:_stage(?P<stages>\d+))?(?P<rest>\w*)"
)
_CHIP = re.compile(
    r"(?P<chip>volta|turing|ampere|ada|hopper|maxwell)_(?:(?P<out>[a-z0-9]+)_)?(?P<letter>[shi])(?P<inst>\d{3,5})gemm_"
    r"(?:(?P<type>[a-z]+\d+)_)?(?P<m>\d+)x(?P<n>\d+)(?P<rest>\w*)"
)
_CUTLASS2 = re.compile(
    r"cutlass_(?:(?P<arch>\d+)_)?(?:wmma_)?(?P<sp>sp)?tensorop_(?:(?P<out>[a-z]+\d+\w*?)_)?(?P<letter>[shi])"
    r"(?P<inst>\d{3,6})(?P<sparse>sp)?gemm_(?:(?P<type>[a-z]+\d\w*?)_)*?(?P<m>\d+)x(?P<n>\d+)_(?P<k>\d+)x(?P<stages>\d+)"
    r"(?:_(?P<layout>[tn]{2}))?"
)
_CUTLASS3 = re.compile(
    r"cutlass3x_(?P<arch>sm\d+)_(?P<spop>sp)?(?:bs)?tensorop_[a-z]*?(?P<im>\d+)x(?P<in>\d+)x(?P<ik>\d+)"
    r"(?P<sparse>sp|bssp|bs)?gemm_(?P<types>\w+?)_(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)_(?P<cm>\d+)x(?P<cn>\d+)x\d+_"
    r"(?P<stages>\d+)_(?P<layout>[tn]{2})"
)
_SHAPE = re.compile(r"GemmShape<\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*>")
_REDUCE = re.compile(r"splitKreduce_kernel|splitkreduce|reduce_splitk|ReduceSplitK", re.IGNORECASE)
_GEMV = re.compile(r"\bgemv(?:2T|2N|NSP|N)?\w*_kernel|\bgemvx::kernel|\bgemv\w*<")
_SPLIT = re.compile(r"split[_-]?k", re.IGNORECASE)


#: no kernel's name has such a number, and Python reads none of more than some thousand digits
_ENDLESS = re.compile(r"\d{100}")


def parse_kernel_name(name: str) -> KernelName | None:
    """What `name` (mangled or not, with or without its parameter list) tells, or None if it is no GEMM kernel."""
    if _ENDLESS.search(name):
        return None
    for parser in _PARSERS:
        parsed = parser(name)
        if parsed is not None:
            return parsed
    return None


def _type(word: str | None) -> str | None:
    return _TYPES.get(word) if word else None


def _reduce(name: str) -> KernelName | None:
    if not _REDUCE.search(name):
        return None
    return KernelName(name, "CUTLASS" if "cutlass" in name.lower() else "cuBLAS", role="reduce", split_k=True)


def _nvjet(name: str) -> KernelName | None:
    found = _NVJET.search(name)
    if not found:
        return None
    layout = re.search(r"_([TN]{2})[TN]?(?:_|$)", found["rest"])
    return KernelName(
        name,
        "cuBLAS",
        tile=(int(found["m"]), int(found["n"]), int(found["k"])),
        stages=int(found["stages"]),
        dtype=_NVJET_TYPES.get(found["types"][0]),
        cluster=(int(found["cm"]), int(found["cn"])) if found["cm"] else None,
        split_k=bool(_SPLIT.search(found["rest"])),
        family=found["arch"] or "sm90",
        layout=layout[1].lower() if layout else None,
    )


def _xmma(name: str) -> KernelName | None:
    found = _XMMA.search(name)
    if not found:
        return None
    # the first type word is A's type and D's run together: f16f16, bf16bf16, i8i32, e4m3bf16, tf32f32
    first = re.match(r"tf32|bf16|f16|f32|i8|e4m3|e5m2", found["types"])
    instruction = re.search(r"tensor(\d+)x(\d+)x(\d+)", found["rest"])
    return KernelName(
        name,
        "cuSPARSELt" if found["sparse"] else "cuBLAS",
        path="sparse" if found["sparse"] else "dense",
        tile=(int(found["m"]), int(found["n"]), int(found["k"])),
        stages=int(found["stages"]) if found["stages"] else None,
        dtype=_type(first[0]) if first else None,
        split_k=bool(_SPLIT.search(found["rest"])),
        family=found["arch"],
        instruction=_triple(instruction.groups()) if instruction else None,
        layout=found["layout"],
    )


def _chip(name: str) -> KernelName | None:
    found = _CHIP.search(name)
    if not found:
        return None
    stages = re.search(r"_stages_(\d+)x(\d+)", found["rest"])
    layout = re.search(r"_([tn]{2})(?:_|$)", found["rest"])
    dtype = _type(found["type"]) or ("f16" if found["letter"] == "h" else _type(found["out"]))
    if found["letter"] == "s" and dtype in (None, "f32"):
        dtype = "tf32"  # s1688gemm without a 16-bit type: f32 operands rounded to tf32
    return KernelName(
        name,
        "cuBLAS",
        tile=(int(found["m"]), int(found["n"]), int(stages[1]) if stages else None),
        stages=int(stages[2]) if stages else None,
        dtype=dtype,
        split_k=bool(_SPLIT.search(found["rest"])),
        family=_CHIPS[found["chip"]],
        instruction=_instruction(found["inst"]),
        layout=layout[1] if layout else None,
    )


def _cutlass2(name: str) -> KernelName | None:
    found = _CUTLASS2.search(name)
    if not found:
        return None
    dtype = _type(found["type"]) or ("f16" if found["letter"] == "h" else _type(found["out"]))
    return KernelName(
        name,
        "CUTLASS",
        path="sparse" if found["sparse"] or found["sp"] else "dense",
        tile=(int(found["m"]), int(found["n"]), int(found["k"])),
        stages=int(found["stages"]),
        dtype=dtype,
        split_k=bool(_SPLIT.search(name)),
        family=f"sm{found['arch']}" if found["arch"] else "sm80",
        instruction=_instruction(found["inst"]),
        layout=found["layout"],
    )


def _cutlass3(name: str) -> KernelName | None:
    found = _CUTLASS3.search(name)
    if not found:
        return None
    first = re.match(r"(?:ue\d+m\d+x)?([a-z0-9]+?)(?:_|$)", found["types"])
    sparse = bool(found["spop"]) or "sp" in (found["sparse"] or "")
    stages = int(found["stages"])
    return KernelName(
        name,
        "CUTLASS",
        path="sparse" if sparse else "dense",
        tile=(int(found["m"]), int(found["n"]), int(found["k"])),
        stages=stages or None,  # 0 = as many as fit
        dtype=_type(first[1]) if first else None,
        cluster=(int(found["cm"]), int(found["cn"])),
        split_k=bool(_SPLIT.search(name)),
        family=found["arch"],
        instruction=(int(found["im"]), int(found["in"]), int(found["ik"])),
        layout=found["layout"],
    )


def _cutlass_template(name: str) -> KernelName | None:
    if "cutlass::" not in name or "gemm" not in name.lower():
        return None
    shape = _SHAPE.search(name)
    if not shape:
        return None
    dtype = next(
        (
            known
            for word, known in (
                ("cutlass::bfloat16_t", "bf16"), ("cutlass::half_t", "f16"), ("cutlass::float_e4m3_t", "e4m3"),
                ("cutlass::tfloat32_t", "tf32"), ("signed char", "i8"), ("int8_t", "i8"),
            )
            if word in name
        ),
        None,
    )  # fmt: skip
    arch = re.search(r"cutlass::arch::Sm(\d+)", name)
    return KernelName(
        name,
        "CUTLASS",
        path="sparse" if "Sparse" in name else "dense",
        tile=_triple(shape.groups()),
        dtype=dtype,
        split_k="SplitK" in name,
        family=f"sm{arch[1]}" if arch else None,
    )


def _gemv(name: str) -> KernelName | None:
    return KernelName(name, "cuBLAS", role="gemv") if _GEMV.search(name) else None


def _triple(words: tuple[str | None, ...]) -> tuple[int, int, int]:
    m, n, k = (int(word or 0) for word in words)
    return m, n, k


def _instruction(digits: str) -> tuple[int, int, int] | None:
    """``16816`` → (16, 8, 16), ``1688`` → (16, 8, 8), ``16832`` → (16, 8, 32), ``884`` → (8, 8, 4)."""
    if digits == "884":
        return 8, 8, 4
    found = re.fullmatch(r"(16)(8|16)(\d{1,3})", digits)
    if digits.startswith("168"):
        found = re.fullmatch(r"(16)(8)(\d{1,3})", digits)
    return _triple(found.groups()) if found else None


_PARSERS: tuple[Callable[[str], KernelName | None], ...] = (
    _reduce, _nvjet, _xmma, _cutlass3, _cutlass2, _chip, _cutlass_template, _gemv,
)  # fmt: skip
