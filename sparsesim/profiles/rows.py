"""Kernels of a profile as measured rows, under the protocol that the tool ran them with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from sparsesim.errors import UserError
from sparsesim.measured import MeasuredRow
from sparsesim.profiles.record import KernelShape, Profile, ProfiledKernel
from sparsesim.units import natural
from sparsesim.workload import ACC_DTYPES, Gemm

__all__ = ["ProfiledGemm", "gemms_of", "measured_rows"]

#: the format in which the user, not the library, picked the kernel
TOLD = "cutlass-profiler"
#: name of a kernel that no grammar knows, in a reason
SHOWN = 60


@dataclass(frozen=True)
class ProfiledGemm:
    """A product with the kernel that computed it: launches of one shape, kernel and L2 state together.

    `kernel` holds the medians of time and counters; `row` is the timing as a measured row, None where the profile has
    no time.
    """

    kernel: ProfiledKernel
    shape: KernelShape
    dtype: str
    pattern: str
    l2: str
    gpu: str
    row: MeasuredRow | None


def gemms_of(
    profile: Profile, gpu: str, shapes: Sequence[Gemm] | None = None
) -> tuple[list[ProfiledGemm], list[dict[str, str]]]:
    """The products of a profile and the kernels that are none, or whose shape is not known, with the reason.

    Parameters
    ----------
    profile : Profile
    gpu : str
        Name of the GPU it was taken on.
    shapes : sequence of Gemm, optional
        Shapes of the profile's GEMM kernels in the order of their launches, for tools that record none.

    Raises
    ------
    UserError
        `shapes` are not as many as the GEMM kernels without a shape.
    """
    kernels = _with_shapes(profile, _with_reductions(profile.kernels), shapes)
    skipped: list[dict[str, str]] = []
    groups: dict[tuple[object, ...], list[tuple[ProfiledKernel, str]]] = {}
    before: ProfiledKernel | None = None
    for kernel in kernels:
        why = _unusable(kernel)
        if why is not None:
            if kernel.parsed is not None or kernel.shape is not None:
                skipped.append({"row": kernel.where, "why": why})
        else:
            # launches of one shape in succession find their operands in L2, others do not
            again = before is not None and (before.name, before.shape) == (kernel.name, kernel.shape)
            l2 = kernel.l2 or ("warm" if again else "cold")
            groups.setdefault((kernel.name, kernel.shape, l2), []).append((kernel, l2))
        before = kernel
    return [_group(profile, members, gpu) for members in groups.values()], skipped


def measured_rows(gemms: Iterable[ProfiledGemm]) -> list[MeasuredRow]:
    """The timings among `gemms`."""
    return [gemm.row for gemm in gemms if gemm.row is not None]


def _with_reductions(kernels: Iterable[ProfiledKernel]) -> list[ProfiledKernel]:
    """Kernels with the time of a split-K reduction added to the product before it, which it completes."""
    out: list[ProfiledKernel] = []
    for kernel in kernels:
        is_reduction = kernel.parsed is not None and kernel.parsed.role == "reduce"
        last = out[-1] if out else None
        if is_reduction and last is not None and last.parsed is not None and last.parsed.role == "gemm":
            if last.time_us is not None and kernel.time_us is not None:
                out[-1] = replace(last, time_us=last.time_us + kernel.time_us)
        else:
            out.append(kernel)
    return out


def _with_shapes(
    profile: Profile, kernels: list[ProfiledKernel], shapes: Sequence[Gemm] | None
) -> list[ProfiledKernel]:
    if shapes is None:
        return kernels
    bare = [i for i, k in enumerate(kernels) if k.shape is None and k.parsed is not None and k.parsed.role == "gemm"]
    if len(bare) != len(shapes):
        raise UserError(
            f"{profile.path}: expected as many shapes as GEMM kernels without one ({len(bare)}), found {len(shapes)}"
        )
    out = list(kernels)
    for i, op in zip(bare, shapes, strict=True):
        shape = KernelShape(op.m, op.n, op.k, op.batch, op.dtype, op.pattern)
        out[i] = replace(out[i], shape=shape)
    return out


def _unusable(kernel: ProfiledKernel) -> str | None:
    parsed = kernel.parsed
    if parsed is None:
        if kernel.shape is None:
            return "no GEMM kernel"
        return f"kernel name of no known library: {kernel.name[:SHOWN]}"
    if parsed.role != "gemm":
        return f"a {parsed.role} kernel"
    if kernel.shape is None:
        return "the profile names no shape for this kernel"
    dtype = kernel.shape.dtype if kernel.shape.dtype not in (None, "f32") else parsed.dtype
    if dtype not in ACC_DTYPES:
        return f"no tensor-core type: {dtype or 'not named'}"
    return None


def _group(profile: Profile, members: list[tuple[ProfiledKernel, str]], gpu: str) -> ProfiledGemm:
    kernel, l2 = members[0]
    times = [k.time_us for k, _ in members if k.time_us is not None]
    names = {name for k, _ in members for name in k.counters}
    counters = {name: median(k.counters[name] for k, _ in members if name in k.counters) for name in sorted(names)}
    merged = replace(
        kernel,
        time_us=median(times) if times else None,
        counters=counters,
        calls=sum(k.calls for k, _ in members),
    )
    shape, parsed = kernel.shape, kernel.parsed
    assert shape is not None
    assert parsed is not None
    dtype = shape.dtype if shape.dtype not in (None, "f32") else parsed.dtype
    assert dtype is not None
    # a named pattern is the weight's; a dense kernel that multiplies it is a fallback and is compared as dense
    pattern = "dense" if parsed.path == "dense" else (shape.pattern if shape.pattern not in (None, "dense") else "2:4")
    assert pattern is not None
    clock = "free" if merged.clock_hz is None else f"locked:{merged.clock_hz / 1e6:.0f}"
    row = None
    if merged.time_us is not None:
        path, _, line = kernel.where.rpartition(":")
        row = MeasuredRow(
            gpu=gpu,
            # a profiler that was told which kernel to run names it, so that the model runs that tile, too
            library=f"CUTLASS {kernel.name}" if profile.format == TOLD else f"{parsed.library} ({profile.format})",
            m=shape.m,
            n=shape.n,
            k=shape.k,
            batch=shape.batch,
            dtype=dtype,
            acc_dtype=ACC_DTYPES[dtype][0],
            pattern=pattern,
            sparse_operand="A" if pattern != "dense" else "",
            time_us=merged.time_us,
            timing=kernel.timing,
            l2=l2,
            clock=clock,
            set="profile",
            source=profile.path,
            file=path or profile.path,
            line=natural(line) or 0,
        )
    return ProfiledGemm(merged, shape, dtype, pattern, l2, gpu, row)
