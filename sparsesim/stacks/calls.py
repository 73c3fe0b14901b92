"""What one call of a stack does: the product itself, launches beside it, and time on the host.

A launch beside the product moves memory and nothing else: its bytes follow from the shapes, its time from
`sparsesim.device.elementwise`. Nothing here is a share of the product's time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from sparsesim.hardware import GpuSpec
from sparsesim.kernels import Kernel
from sparsesim.sparsity import Pattern
from sparsesim.stacks.conditions import Condition, Sizes, Strict
from sparsesim.stacks.facts import Setting
from sparsesim.workload import DTYPE_BYTES, Gemm
from sparsesim.workload.ops import OUT_DTYPES

__all__ = ["LOSSES", "Added", "AddedSpec", "Call", "CatalogueSpec", "HostSpec", "as_weight"]

#: losses of a path that runs sparse which a stack brings about itself; the rest are the device's
LOSSES = (
    "host-plan", "pad-n", "pad-copy", "transpose-copy", "alg-default", "legacy-mma", "tile-waste", "runtime-prune",
    "convert-activations", "epilogue-unfused",
)  # fmt: skip

Loss = Literal["pad-copy", "transpose-copy", "runtime-prune", "convert-activations", "epilogue-unfused"]
#: A (weight, m × k), B (k × n) and D (m × n); with "p" at the padded sizes
Matrix = Literal["A", "B", "D", "Ap", "Bp", "Dp"]
NonNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(gt=0, le=1)]


class AddedSpec(Strict):
    """A launch that a call adds: how often it reads and writes each matrix, in dense bytes of the matrix.

    Parameters
    ----------
    loss : the name under which its time is booked
    when, pads : for which calls, and only where one of these sides is padded
    read, write : matrix → times its bytes; a compressed operand is written as 9/16 or 10/16 of its bytes
    efficiency : share of the DRAM rate of a copy that such a kernel reaches
    trips : loads that depend on each other
    """

    loss: Loss
    text: str
    source: str
    when: Condition = Condition()
    pads: tuple[Literal["m", "n", "k"], ...] = ()
    read: dict[Matrix, NonNegative] = Field(default_factory=dict)
    write: dict[Matrix, NonNegative] = Field(default_factory=dict)
    efficiency: Share = 1.0
    trips: Annotated[int, Field(ge=1, le=4)] = 1


class HostSpec(Strict):
    """Host time of a call beyond a plain framework call [µs].

    call_us : dispatch, which runs ahead of the GPU
    plan_us : descriptors, plan, algorithm selection, workspace
    serial : the GPU waits for the plan, as where the plan's resources are freed behind each call
    range_us : of call_us + plan_us, as reported
    """

    text: str
    source: str
    when: Condition = Condition()
    call_us: NonNegative = 0.0
    plan_us: NonNegative = 0.0
    serial: bool = False
    range_us: tuple[NonNegative, NonNegative] | None = None


class CatalogueSpec(Strict):
    """Which kernels the sparse path may take.

    policy : "search" (the best of them), "heuristic" (what the library predicts), "first" (the first that fits: the
        default algorithm, or the only tile)
    family : instruction family of the tiles, where they are not the library's own for the GPU
    tiles : type → rows of (m, n, k in elements of that type, stages, warps m, warps n)
    raster_group : width of the band of tiles that the launch order walks
    cluster : CTAs of a cluster along m and n, for the families that have them
    loss : the name of what this choice costs against a search of the library's own kernels
    """

    text: str
    source: str
    when: Condition = Condition()
    policy: Literal["search", "heuristic", "first"] = "search"
    family: Literal["sm80", "sm90", "sm100"] | None = None
    tiles: dict[str, tuple[tuple[int, int, int, int, int, int], ...]] = Field(default_factory=dict)
    raster_group: Annotated[int, Field(ge=1, le=64)] = 8
    cluster: tuple[int, int] = (1, 1)
    loss: Literal["alg-default", "legacy-mma", "tile-waste"] | None = None

    def kernels(self, dtype: str) -> tuple[Kernel, ...] | None:
        """The kernels for inputs of `dtype`; None = the library's own."""
        rows = self.tiles.get("f16" if dtype == "bf16" and "bf16" not in self.tiles else dtype)
        if rows is None or self.family is None:
            return None
        persistent = self.family != "sm80"
        return tuple(
            Kernel(
                self.family, True, m, n, k, stages, wm, wn, *self.cluster, persistent=persistent,
                raster_group=self.raster_group, raster_along_m=persistent,
            )
            for m, n, k, stages, wm, wn in rows
        )  # fmt: skip


@dataclass(frozen=True)
class Added:
    """A launch beside the product: its name as a loss, and the bytes it moves."""

    loss: str
    text: str
    read_bytes: float
    write_bytes: float
    efficiency: float = 1.0
    trips: int = 1


@dataclass(frozen=True)
class Call:
    """One call on the sparse path.

    Parameters
    ----------
    op : as the kernel sees it: the sparse operand as A, sides padded
    plain : the same without padding
    added : launches beside the product, in order
    dense_added : those of the dense call of the same framework
    host_s, plan_s : host time beyond that of a plain framework call [s]; `serial` = the GPU waits for the plan
    policy, kernels, loss : how the kernel is picked, out of which (None: the library's own), and the name of that loss
    """

    op: Gemm
    plain: Gemm
    policy: str
    added: tuple[Added, ...] = ()
    dense_added: tuple[Added, ...] = ()
    host_s: float = 0.0
    plan_s: float = 0.0
    serial: bool = False
    kernels: tuple[Kernel, ...] | None = None
    loss: str | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the call is the product alone, on the library's own kernels."""
        return not self.added and not self.host_s and not self.plan_s and self.op == self.plain and not self.kernels


def as_weight(op: Gemm) -> Gemm:
    """`op` with the sparse operand as A: its transpose if B is the sparse one."""
    return op if op.sparse_operand == "A" else replace(op, m=op.n, n=op.m, sparse_operand="A")


def padded(op: Gemm, table: dict[str, Sizes], dtype: str) -> Gemm:
    """`op` with its sides at the multiples that `table` gives for `dtype`."""
    units = dict([*table.get("*", {}).items(), *table.get(dtype, {}).items()])
    return replace(op, **{side: -(-getattr(op, side) // unit) * unit for side, unit in units.items()})


def added_launches(specs: tuple[AddedSpec, ...], op: Gemm, wide: Gemm, gpu: GpuSpec, setting: Setting) -> Any:
    """The launches of `specs` that a call of `op`, padded to `wide`, adds."""
    pattern = Pattern.parse(op.pattern)
    width = DTYPE_BYTES[op.dtype]
    product = DTYPE_BYTES[op.out_dtype or ("bf16" if op.dtype == "i8" else OUT_DTYPES[op.dtype][0])]

    def size(name: str) -> float:
        of = wide if name.endswith("p") else op
        elements = {"A": of.m * of.k, "B": of.k * of.n, "D": of.m * of.n}[name[0]]
        return elements * of.batch * (product if name[0] == "D" else width)

    for spec in specs:
        if spec.pads and not any(getattr(op, side) != getattr(wide, side) for side in spec.pads):
            continue
        if spec.when.missing(op, pattern, gpu, setting) is None:
            read = sum(times * size(name) for name, times in spec.read.items())
            written = sum(times * size(name) for name, times in spec.write.items())
            yield Added(spec.loss, spec.text, read, written, spec.efficiency, spec.trips)
