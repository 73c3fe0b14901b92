"""Logs of cuBLASLt and cuSPARSELt (``CUBLASLT_LOG_LEVEL=5``, ``CUSPARSELT_LOG_LEVEL=5``): shapes, the kernel picked.

A line is ``[time][library][process][level][function] key=value …``, with ``[…]`` round a group's own pairs. cuBLASLt's
``cublasLtMatmul`` line has the layouts and the algorithm (``tile=MATMUL_TILE_128x256 stages=MATMUL_STAGES_64x3``), and
is enough by itself. cuSPARSELt's descriptors are made by earlier calls; their sizes are remembered until
``cusparseLtMatmul``. Logs hold no times.
"""

from __future__ import annotations

import re
from pathlib import Path

from sparsesim.errors import UserError
from sparsesim.profiles.kernel_names import KernelName
from sparsesim.profiles.record import KernelShape, Profile, ProfiledKernel
from sparsesim.profiles.tables import read_text
from sparsesim.units import natural

__all__ = ["read_library_log"]

_LINE = re.compile(
    r"^\[[^\]]*\]\[(?P<library>cublasLt|cusparseLt|CUSPARSELT)\]\[\d+\]\[(?P<level>\w+)\]\[(?P<call>\w+)\]\s*(?P<rest>.*)$"
)
_GROUP = re.compile(r"(\w+)=\[([^\]]*)\]")
_PAIR = re.compile(r"(\w+)\s*[=:]\s*([^\s,\]]+)")
TYPES = {
    "R_16F": "f16", "R_16BF": "bf16", "R_32F": "tf32", "R_8I": "i8", "R_8F_E4M3": "e4m3", "R_4F_E2M1": "e2m1",
}  # fmt: skip


def read_library_log(path: Path) -> Profile:
    """The products of a log, in order; raises UserError if it has none."""
    kernels: list[ProfiledKernel] = []
    descriptors: list[dict[str, str]] = []
    for line, text in enumerate(read_text(path).splitlines(), 1):
        found = _LINE.match(text)
        if not found:
            continue
        call, rest = found["call"], found["rest"]
        if call == "cublasLtMatmul":
            kernel = _cublaslt(f"{path}:{line}", rest)
            if kernel is not None:
                kernels.append(kernel)
        elif call.endswith("DescriptorInit"):
            pairs = dict(_PAIR.findall(rest))
            if {"rows", "cols"} <= pairs.keys():
                descriptors.append({**pairs, "structured": "yes" if "Structured" in call else ""})
        elif call == "cusparseLtMatmul":
            kernel = _cusparselt(f"{path}:{line}", descriptors, rest)
            if kernel is not None:
                kernels.append(kernel)
    if not kernels:
        raise UserError(f"{path}: expected cublasLtMatmul or cusparseLtMatmul lines with shapes, found none")
    return Profile(str(path), "library-log", tuple(kernels))


def _sides(group: dict[str, str]) -> tuple[int, int] | None:
    rows, columns = natural(group.get("rows", "")), natural(group.get("cols", ""))
    return None if rows is None or columns is None else (rows, columns)


def _type(word: str | None) -> str | None:
    return TYPES.get(word.removeprefix("CUDA_")) if word else None


def _cublaslt(where: str, rest: str) -> ProfiledKernel | None:
    groups = {name: dict(_PAIR.findall(body)) for name, body in _GROUP.findall(rest)}
    a, d = groups.get("Adesc"), groups.get("Ddesc") or groups.get("Cdesc")
    if a is None or d is None:
        return None
    left, out = _sides(a), _sides(d)
    if left is None or out is None:
        return None
    compute = groups.get("computeDesc", {})
    k = left[0] if compute.get("transa", "OP_N") in ("OP_T", "OP_C") else left[1]
    batch = str(a.get("batchCount") or "1")
    algorithm = groups.get("algo", {})
    tile = re.fullmatch(r"MATMUL_TILE_(\d{1,9})x(\d{1,9})", algorithm.get("tile", ""))
    stages = re.fullmatch(r"MATMUL_STAGES_(\d{1,9})x(\d{1,9}|AUTO)", algorithm.get("stages", ""))
    splits = str(algorithm.get("numSplitsK") or algorithm.get("splitK") or "1")
    dtype = _type(a.get("type"))
    parsed = KernelName(
        name=f"cublasLt algo {algorithm.get('algoId', '?')}",
        library="cuBLAS",
        tile=(int(tile[1]), int(tile[2]), int(stages[1]) if stages else None) if tile else None,
        stages=natural(stages[2]) if stages else None,
        dtype=dtype,
        split_k=(natural(splits) or 1) > 1,
    )
    shape = KernelShape(out[0], out[1], k, natural(batch) or 1, dtype, "dense")
    return ProfiledKernel(parsed.name, where, parsed, None, shape)


def _cusparselt(where: str, descriptors: list[dict[str, str]], rest: str) -> ProfiledKernel | None:
    """From the last structured descriptor and the dense ones after it: A, then B, then the output."""
    at = next((i for i in reversed(range(len(descriptors))) if descriptors[i]["structured"]), None)
    if at is None:
        return None
    weight, others = descriptors[at], [d for d in descriptors[at + 1 :] if not d["structured"]]
    left, out = _sides(weight), _sides(others[-1]) if others else None
    if left is None or out is None or out[0] not in left:
        return None
    m = out[0]
    k = left[1] if left[0] == m else left[0]
    dtype = _type(weight.get("valueType") or weight.get("type"))
    parsed = KernelName("cusparseLtMatmul", "cuSPARSELt", path="sparse", dtype=dtype)
    return ProfiledKernel(parsed.name, where, parsed, None, KernelShape(m, out[1], k, 1, dtype, "2:4"))
