"""The GPU description: frozen, validated, in canonical units. What each field means is in `FIELDS`.

Fields are declared once, with their canonical unit, by :func:`quantity`. `load` reads TOML files
against this declaration; `audit` lists where every value comes from. Rates "per clk" are per cycle of the
SM clock; "per SM" is in the name of the section or the field.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from sparsesim.errors import UserError
from sparsesim.sparsity import Pattern

__all__ = [
    "DTYPE_RATES",
    "OPERAND_DTYPES",
    "STATUSES",
    "TABLE_KEYS",
    "ClockSpec",
    "ClusterSpec",
    "DramSpec",
    "GpuSpec",
    "L2Spec",
    "LaunchSpec",
    "LibrarySpec",
    "MetadataSpec",
    "PipelineSpec",
    "PowerSpec",
    "Provenance",
    "SmSpec",
    "SmemSpec",
    "TensorSpec",
    "unit_of",
]

STATUSES = ("datasheet", "measured", "fitted", "assumed")

#: keys of the rate tables: operand dtype, and the accumulator where the rate depends on it
DTYPE_RATES = ("f16_f32", "f16_f16", "tf32", "i8", "e4m3_f32", "e4m3_f16", "e2m1")
#: keys of the tables by operand dtype alone
OPERAND_DTYPES = ("f16", "tf32", "i8", "e4m3", "e2m1")
#: table field -> its allowed keys
TABLE_KEYS = {
    "macs_per_clk": DTYPE_RATES,
    "legacy_macs_per_clk": DTYPE_RATES,
    "mac": OPERAND_DTYPES,
    "native_patterns": OPERAND_DTYPES,
    "sparse_raster_group": OPERAND_DTYPES,
}


def quantity(unit: str, text: str, **constraints: Any) -> Any:
    """A pydantic field with a canonical `unit` (see `sparsesim.units`) and a one-line meaning."""
    return Field(description=text, json_schema_extra={"unit": unit}, **constraints)


def _number(value: Any) -> Any:
    """Refuse text and booleans, which pydantic would read as numbers."""
    if isinstance(value, bool | str):
        raise PydanticCustomError("number", "Input should be a number")
    return value


Positive = Annotated[float, BeforeValidator(_number), Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, BeforeValidator(_number), Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, BeforeValidator(_number), Field(gt=0, le=1, allow_inf_nan=False)]
Share = Annotated[float, BeforeValidator(_number), Field(ge=0, le=1, allow_inf_nan=False)]
Ratio = Annotated[float, BeforeValidator(_number), Field(ge=1, allow_inf_nan=False)]
Count = Annotated[int, BeforeValidator(_number), Field(gt=0)]


#: canonical unit -> (least value that is not 0, largest value): wide enough for any machine, narrow enough that no
#: product of them leaves the range of the event loop's integers
PLAUSIBLE = {
    "-": (1e-4, 1e7),
    "Hz": (1e6, 1e11),
    "W": (1e-2, 1e5),
    "J": (1e-18, 1e-6),
    "J/B": (1e-18, 1e-6),
    "s": (1e-12, 1.0),
    "B": (1.0, 1e14),
    "B/s": (1e7, 1e16),
    "B/clk": (1e-1, 1e7),
    "clk": (1e-3, 1e7),
    "MAC/clk": (1e-1, 1e7),
    "CTA/clk": (1e-4, 1e4),
    "group/clk": (1e-3, 1e6),
}


class Section(BaseModel):
    """Base of all sections: immutable, no unknown field, every number within `PLAUSIBLE` of its unit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*")
    @classmethod
    def _plausible(cls, value: Any, info: ValidationInfo) -> Any:
        declared = cls.model_fields[str(info.field_name)].json_schema_extra is not None
        bounds = PLAUSIBLE.get(unit_of(cls, str(info.field_name))) if declared else None
        numbers = value.values() if isinstance(value, dict) else (value,)
        for number in numbers:
            if bounds is None or isinstance(number, bool | str | tuple) or number == 0:
                continue
            low, high = bounds
            if not low <= number <= high:
                raise PydanticCustomError("plausible", f"Input should be between {low:g} and {high:g}")
        return value


class SmSpec(Section):
    """Streaming multiprocessors and what limits residency."""

    count: Count = quantity("-", "SMs that can run CTAs")
    subcores: Count = quantity("-", "sub-cores (warp schedulers, tensor cores) per SM")
    registers: Count = quantity("-", "32-bit registers per SM")
    register_alloc_unit: Count = quantity("-", "registers per warp are rounded up to this")
    max_registers_per_thread: Count = quantity("-", "architectural limit")
    max_warps: Count = quantity("-", "resident warps per SM")
    max_threads: Count = quantity("-", "resident threads per SM")
    max_ctas: Count = quantity("-", "resident CTAs per SM")
    issue_per_clk: Positive = quantity("-", "warp instructions issued per sub-core per clk")


class ClockSpec(Section):
    """SM clock."""

    base: Positive = quantity("Hz", "rated base clock")
    boost: Positive = quantity("Hz", "rated boost clock")
    max: Positive = quantity("Hz", "clock that the part really holds when power allows")
    min: Positive = quantity("Hz", "lowest clock that the power limit can force")


class PowerSpec(Section):
    """Board power: what a sustained load costs, and the limit that sets the clock."""

    limit: Positive = quantity("W", "board power limit")
    burst_ratio: Annotated[float, Field(ge=1, le=4)] = quantity(
        "-", "power that a run may draw at its start, over the limit", default=1.0
    )
    burst_window: NonNegative = quantity("s", "time constant with which the limit then takes hold", default=0.0)
    idle: NonNegative = quantity("W", "clock-independent power of the board under load: leakage, fans, HBM idle")
    sm_active: NonNegative = quantity("J", "energy per SM-cycle that an SM is occupied, at boost voltage")
    mac: dict[str, NonNegative] = quantity("J", "energy per executed MAC, by operand dtype, at boost voltage")
    sparse_mac_ratio: Annotated[float, Field(ge=1, le=4)] = quantity(
        "-", "energy of an executed MAC of a sparse instruction over that of a dense one"
    )
    smem_byte: NonNegative = quantity("J/B", "energy per shared-memory byte")
    l2_byte: NonNegative = quantity("J/B", "energy per L2 byte delivered to an SM")
    dram_byte: NonNegative = quantity("J/B", "energy per DRAM byte")
    voltage_slope: Share = quantity("-", "V(f)/V(boost) = 1 - slope * (1 - f/boost)")
    zeros_activity: Fraction = quantity("-", "dynamic energy of all-zero data over that of random data")


class TensorSpec(Section):
    """Tensor-core datapath."""

    generation: Literal["mma", "wgmma", "tcgen05"] = quantity("-", "instruction family that reaches peak")
    macs_per_clk: dict[str, Positive] = quantity("MAC/clk", "dense MAC per clk per SM, by dtype and accumulator")
    legacy_macs_per_clk: dict[str, Positive] = quantity(
        "MAC/clk", "the same through mma.sync, where the generation is not mma", default_factory=dict
    )
    native_patterns: dict[str, tuple[str, ...]] = quantity("-", "patterns the datapath runs, by operand dtype")
    bf16: bool = quantity("-", "bf16 operands run at the f16 rates (from Ampere on; PTX ISA: mma .bf16 needs sm_80)")
    dense_issue_ratio: Ratio = quantity("-", "dense issue interval, measured over ideal")
    sparse_issue_ratio: Ratio = quantity("-", "sparse issue interval, measured over ideal")
    sparse_min_interval: NonNegative = quantity("clk", "floor of the sparse issue interval per sub-core")
    legacy_sparse_gain: NonNegative = quantity("-", "mma.sp over mma.sync rate where mma is legacy", default=2.0)
    latency: NonNegative = quantity("clk", "latency of one large-K instruction")


class MetadataSpec(Section):
    """Metadata decoder of the sparse datapath."""

    groups_per_clk: NonNegative = quantity("group/clk", "N:M groups decoded per clk per sub-core; 0 = never limits")
    bits_factor: Positive = quantity(
        "-", "stored metadata bits over the pattern's own (padding, doubling)", default=1.0
    )


class SmemSpec(Section):
    """Shared memory of one SM."""

    bytes: Positive = quantity("B", "shared memory per SM")
    max_per_cta: Positive = quantity("B", "largest allocation of one CTA")
    reserved_per_cta: NonNegative = quantity("B", "system reservation per CTA")
    alloc_unit: Positive = quantity("B", "allocation granularity")
    bytes_per_clk: Positive = quantity("B/clk", "port width")
    latency: NonNegative = quantity("clk", "load latency")
    fill_contention: Share = quantity("-", "share of the fill cycles that the read port loses")


class L2Spec(Section):
    """L2 cache and the network between it and the SMs."""

    bytes: Positive = quantity("B", "capacity")
    partitions: Count = quantity("-", "partitions; lines of the other one are far")
    bytes_per_clk: Positive = quantity("B/clk", "read bandwidth of all slices together")
    fabric_bytes_per_clk: Positive = quantity("B/clk", "bandwidth between partitions")
    sm_bytes_per_clk: Positive = quantity("B/clk", "what one SM can take in")
    far_copies: Share = quantity("-", "share of the lines read from the other partition that are kept in both")
    latency_near: NonNegative = quantity("clk", "hit latency, own partition")
    latency_far: NonNegative = quantity("clk", "hit latency, other partition")

    @property
    def usable_bytes(self) -> float:
        """Distinct bytes [B] that stay resident: copies of far lines take space in both partitions.

        With all far lines copied, 40 MiB on A100 hold 27; its L2 bandwidth is flat to 25 MB (RRZE-L2).
        """
        return self.bytes / (1.0 + self.far_copies * (self.partitions - 1) / self.partitions)


class DramSpec(Section):
    """Device memory."""

    bytes: Positive = quantity("B", "capacity")
    bytes_per_s: Positive = quantity("B/s", "peak bandwidth")
    achieved_fraction: Fraction = quantity("-", "best measured fraction of the peak")
    write_queue: NonNegative = quantity("B", "write-backs that wait for idle DRAM before they delay reads")
    tiled_fraction: Fraction = quantity("-", "of that, what tiled operand reads of a GEMM reach")
    latency: NonNegative = quantity("s", "latency beyond an L2 miss")


class LaunchSpec(Section):
    """Launch costs."""

    stream_gap: NonNegative = quantity("s", "idle time between dependent kernels of one stream")
    graph_gap: NonNegative = quantity("s", "idle time between dependent kernels of one graph")
    event_overhead: NonNegative = quantity("s", "what an event pair round one launch adds")
    host_call: NonNegative = quantity("s", "host time of one library call; bounds back-to-back launches")
    framework_call: NonNegative = quantity("s", "host time of one framework call (timing = host)")
    ramp: NonNegative = quantity("s", "kernel start to first instruction of the first CTA")
    sparse_ramp: NonNegative = quantity("s", "further start-up of a sparse kernel: metadata set-up")
    drain: NonNegative = quantity("s", "last CTA's end to kernel completion")
    cta_rate: Positive = quantity("CTA/clk", "CTAs the global scheduler starts per clk")
    cta_start: NonNegative = quantity("clk", "CTA start to its first load: index arithmetic, barriers, descriptors")


class ClusterSpec(Section):
    """Thread-block clusters."""

    max_size: Count = quantity("-", "CTAs per cluster; 1 = no clusters")
    multicast: bool = quantity("-", "one L2 read can feed all CTAs of a cluster")


class PipelineSpec(Section):
    """Costs of a main-loop iteration and of an epilogue that no datapath resource explains."""

    barrier: NonNegative = quantity("clk", "serial cost of the stage barrier per k-step")
    legacy_barrier: NonNegative = quantity(
        "clk", "the same for mma.sync kernels where the generation is not mma", default=0.0
    )
    sparse_barrier: NonNegative = quantity("clk", "further serial cost per k-step of a sparse main loop")
    epilogue: NonNegative = quantity("clk", "serial cost of an epilogue beyond its bytes")
    overhead_instructions: NonNegative = quantity(
        "-", "warp instructions per warp per k-step beside the MMAs and loads"
    )


class LibrarySpec(Section):
    """What the vendor's libraries ship for this GPU and how their heuristics pick, as far as timings show it."""

    heuristic_whole_waves: bool = quantity(
        "-", "the dense heuristic ranks mma.sync kernels by whole waves; false: by throughput beyond the first wave"
    )
    sparse_raster_group: dict[str, Count] = quantity(
        "-",
        "columns of tiles that sparse mma.sp kernels walk together, by operand dtype, where not 8",
        default_factory=dict,
    )
    small_i8_tiles: tuple[str, ...] = quantity(
        "-", "mma.sync kernels that small dense i8 products get: tile m x n _ k x stages", default=()
    )
    large_i8_outputs: NonNegative = quantity(
        "-", "output elements per SM from which on the other dense i8 kernels are offered", default=0.0
    )

    @field_validator("small_i8_tiles")
    @classmethod
    def _tiles(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for tile in value:
            if not re.fullmatch(r"[1-9][0-9]{1,2}x[1-9][0-9]{1,2}_[1-9][0-9]{1,2}x[1-9][0-9]?", tile):
                raise PydanticCustomError("tile", "Input should be tiles such as 128x64_64x3")
        return value

    @property
    def small_i8(self) -> tuple[tuple[int, ...], ...]:
        """`small_i8_tiles` as (tile m, tile n, k per stage, stages)."""
        return tuple(tuple(map(int, re.split("[x_]", tile))) for tile in self.small_i8_tiles)


class Provenance(Section):
    """Where one value comes from."""

    unit: str
    source: str
    status: Literal["datasheet", "measured", "fitted", "assumed"]
    note: str = ""
    range: tuple[float, float] | None = Field(default=None, description="plausible range of a fitted value")
    rows: str = Field(default="", description="rows that a fitted value was fitted on")
    file: str = Field(default="", description="file that set the value")


class GpuSpec(Section):
    """One GPU. Equality and hash cover the description; `provenance` says where each value comes from."""

    name: str
    title: str
    vendor: str = "NVIDIA"
    family: str
    compute_capability: Annotated[str, Field(pattern=r"^[0-9]{1,2}\.[0-9]$")]
    hypothetical: bool = False
    sm: SmSpec
    clock: ClockSpec
    power: PowerSpec
    tensor: TensorSpec
    metadata: MetadataSpec
    smem: SmemSpec
    l2: L2Spec
    dram: DramSpec
    launch: LaunchSpec
    cluster: ClusterSpec
    pipeline: PipelineSpec
    library: LibrarySpec
    provenance: dict[str, Provenance] = Field(default_factory=dict, repr=False, exclude=True)
    library_target: GpuSpec | None = Field(default=None, repr=False, exclude=True)

    @property
    def tuned_for(self) -> GpuSpec:
        """The GPU that the libraries' heuristics know: of an edited description, the board that it started from.

        Only the number of SMs is read from the GPU itself.
        """
        if self.library_target is None:
            return self
        return self.library_target.model_copy(update={"sm": self.sm})

    @model_validator(mode="after")
    def _consistent(self) -> GpuSpec:
        clock = self.clock
        if not clock.min <= clock.base <= clock.max:
            raise ValueError("clock: expected min <= base <= max")
        if not clock.min <= clock.boost <= 2.0 * clock.max:
            raise ValueError("clock.boost: expected min <= boost <= 2 max")
        known = {key.split("_")[0] for key in self.tensor.macs_per_clk}
        for dtype in sorted(known - set(self.power.mac)):
            raise ValueError(
                f"power.mac.{dtype}: expected the energy of a MAC that tensor.macs_per_clk has, found none"
            )
        for dtype, patterns in self.tensor.native_patterns.items():
            if patterns and dtype not in known:
                raise ValueError(f"tensor.native_patterns.{dtype}: expected a rate in tensor.macs_per_clk, found none")
            for text in patterns:
                try:
                    is_dense = Pattern.parse(text).is_dense
                except UserError:
                    is_dense = True
                if is_dense:
                    raise ValueError(f"tensor.native_patterns.{dtype}: expected sparse patterns N:M, found {text!r}")
        if self.smem.max_per_cta > self.smem.bytes:
            raise ValueError("smem.max_per_cta: expected at most smem.bytes")
        if self.l2.latency_far < self.l2.latency_near:
            raise ValueError("l2.latency_far: expected at least l2.latency_near")
        return self

    @property
    def has_sparse(self) -> bool:
        """Whether any dtype has a native sparse pattern."""
        return any(self.tensor.native_patterns.values())


def unit_of(section: type[BaseModel], field: str) -> str:
    """Canonical unit of `field` of `section`."""
    extra = section.model_fields[field].json_schema_extra
    return str(extra["unit"]) if isinstance(extra, dict) and "unit" in extra else "-"
