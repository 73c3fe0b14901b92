"""Conditions of a rule: fields over the op, the GPU and the circumstances of the call, all of which must hold.

A rule has two of them. `when` says for which calls the rule is there at all; `needs` says what the sparse path needs
then. `missing` words what a call lacks.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from sparsesim.hardware import GpuSpec
from sparsesim.sparsity import Pattern
from sparsesim.stacks.facts import FLAGS, Setting
from sparsesim.stacks.versions import satisfies
from sparsesim.workload import DTYPES, Gemm

__all__ = ["WEIGHT_DTYPES", "Condition", "Sizes", "Strict", "native_pattern"]

#: types of stored weights that are unpacked to 16 bits before they are multiplied
WEIGHT_DTYPES = ("w4a16", "w8a16")
Dtype = str
Side = Literal["m", "n", "k"]
Sizes = dict[Side, Annotated[int, Field(ge=1)]]


class Strict(BaseModel):
    """A table of a rule file: unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def native_pattern(op: Gemm, pattern: Pattern, gpu: GpuSpec) -> Pattern | None:
    """The cheapest pattern of the datapath that `pattern` can run as, or None."""
    key = "f16" if op.dtype == "bf16" else op.dtype
    known = [Pattern.parse(text) for text in gpu.tensor.native_patterns.get(key, ())]
    fitting = [native for native in known if pattern.runs_as(native)]
    # the sparsest; of equals the pattern itself, then the one with the least metadata
    return min(
        fitting,
        key=lambda native: (native.kept_fraction, native != pattern, native.metadata_bits_per_kept),
        default=None,
    )


class Condition(Strict):
    """All fields that are given must hold.

    Parameters
    ----------
    version, caller, caller_version : specifier of the stack's version; product that calls; specifier of its version
    capability : compute capabilities of NVIDIA GPUs, ``8.x`` or ``9.0``
    vendor, gpus : of the GPU; beginnings of its name
    sparse_cores, sparse_dtype, native_pattern : the GPU has sparse tensor cores; they take the op's type; they run
        its pattern, as it is or as a less sparse one
    dtypes : of the inputs, or of the stored weight (``w4a16``)
    patterns : spelt as in a workload
    operands : ``A`` (the weight) or ``B``
    layouts : see `Setting`
    kinds : of the op, see `sparsesim.workload.KINDS`
    flags, without : words of `FLAGS` that the call must, and must not, have
    least, multiple, most : of m, n and k [elements]; `by_dtype` gives a multiple per type and is its own least
    whole_groups : k is a multiple of the pattern's group
    batch_most : products in one call
    """

    version: str | None = None
    caller: str | None = None
    caller_version: str | None = None
    capability: tuple[str, ...] | None = None
    vendor: str | None = None
    gpus: tuple[str, ...] | None = None
    sparse_cores: bool | None = None
    sparse_dtype: bool | None = None
    native_pattern: bool | None = None
    dtypes: tuple[Dtype, ...] | None = None
    patterns: tuple[str, ...] | None = None
    operands: tuple[Literal["A", "B"], ...] | None = None
    layouts: tuple[Literal["TN", "NN", "NT", "TT"], ...] | None = None
    kinds: tuple[Literal["linear", "conv", "matmul"], ...] | None = None
    flags: tuple[str, ...] | None = None
    without: tuple[str, ...] | None = None
    least: Sizes | None = None
    multiple: Sizes | None = None
    most: Sizes | None = None
    least_by_dtype: dict[Dtype, Sizes] | None = None
    multiple_by_dtype: dict[Dtype, Sizes] | None = None
    whole_groups: bool | None = None
    batch_most: int | None = None

    @field_validator("version", "caller_version")
    @classmethod
    def _specifier(cls, value: str | None) -> str | None:
        if value is not None:
            satisfies("0", value)
        return value

    @field_validator("dtypes")
    @classmethod
    def _dtypes(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return _known("types", value, (*DTYPES, *WEIGHT_DTYPES))

    @field_validator("flags", "without")
    @classmethod
    def _flags(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return _known("flags", value, tuple(FLAGS))

    def missing(self, op: Gemm, pattern: Pattern, gpu: GpuSpec, setting: Setting) -> str | None:
        """What the call lacks, in words; None if every field holds."""
        for check in (self._circumstances, self._hardware, self._op):
            found = check(op, pattern, gpu, setting)
            if found is not None:
                return found
        return self._sizes(op, pattern, dtype_of(op, setting))

    def _circumstances(self, op: Gemm, pattern: Pattern, gpu: GpuSpec, setting: Setting) -> str | None:
        if self.version is not None and not satisfies(setting.version, self.version):
            return f"version {setting.version} is not {self.version}"
        if self.caller is not None and setting.caller != self.caller:
            return f"the caller is not {self.caller}"
        if self.caller_version is not None and not satisfies(setting.caller_version or "0", self.caller_version):
            return f"{setting.caller} {setting.caller_version} is not {self.caller_version}"
        for flag in self.flags or ():
            if flag not in setting.flags:
                return f"not the case: {FLAGS[flag]}"
        for flag in self.without or ():
            if flag in setting.flags:
                return FLAGS[flag]
        return None

    def _hardware(self, op: Gemm, pattern: Pattern, gpu: GpuSpec, setting: Setting) -> str | None:
        if self.vendor is not None and gpu.vendor != self.vendor:
            return f"{gpu.name} is no {self.vendor} GPU"
        if self.capability is not None and not any(matches(gpu, wanted) for wanted in self.capability):
            return f"{gpu.name} has compute capability {gpu.compute_capability}"
        if self.gpus is not None and not gpu.name.startswith(self.gpus):
            return f"{gpu.name} is none of {', '.join(self.gpus)}"
        if self.sparse_cores is not None and gpu.has_sparse != self.sparse_cores:
            return (
                f"{gpu.name} (compute capability {gpu.compute_capability}) has {'some' if gpu.has_sparse else 'none'}"
            )
        key = "f16" if op.dtype == "bf16" else op.dtype
        natives = gpu.tensor.native_patterns.get(key, ())
        if self.sparse_dtype is not None and bool(natives) != self.sparse_dtype:
            return f"{op.dtype} has {'a' if natives else 'no'} sparse instruction on {gpu.name}"
        if self.native_pattern is not None and (native_pattern(op, pattern, gpu) is not None) != self.native_pattern:
            return f"{pattern} cannot run as {' or '.join(natives) or 'any'} of {op.dtype} on {gpu.name}"
        return None

    def _op(self, op: Gemm, pattern: Pattern, gpu: GpuSpec, setting: Setting) -> str | None:
        dtype = dtype_of(op, setting)
        if self.dtypes is not None and dtype not in self.dtypes:
            return f"the type is {dtype}"
        if self.patterns is not None and str(pattern) not in self.patterns:
            return f"the pattern is {pattern}"
        if self.operands is not None and op.sparse_operand not in self.operands:
            return f"operand {op.sparse_operand} is the sparse one"
        if self.layouts is not None and (setting.layout or "TN") not in self.layouts:
            return f"the operands are {setting.layout or 'TN'}"
        if self.kinds is not None and op.kind not in self.kinds:
            return f"the op is a {op.kind}"
        if self.batch_most is not None and op.batch > self.batch_most:
            return f"{op.batch} products in one call"
        return None

    def _sizes(self, op: Gemm, pattern: Pattern, dtype: str) -> str | None:
        sizes = {"m": op.m, "k": op.k, "n": op.n}

        def each(given: Sizes | None, table: dict[str, Sizes] | None) -> list[tuple[str, int, int]]:
            wanted: dict[Any, int] = {**(given or {}), **(table or {}).get(dtype, {})}
            return [(side, sizes[side], wanted[side]) for side in sizes if side in wanted]

        small = [f"{s} = {size} < {least}" for s, size, least in each(self.least, self.least_by_dtype) if size < least]
        if small:
            return ", ".join(small)
        large = [f"{side} = {size} > {most}" for side, size, most in each(self.most, None) if size > most]
        if large:
            return ", ".join(large)
        odd = [
            f"{side} = {size} is no multiple of {unit}"
            for side, size, unit in each(self.multiple, self.multiple_by_dtype)
            if size % unit
        ]
        if odd:
            return ", ".join(odd)
        if self.whole_groups and op.k % pattern.group:
            return f"k = {op.k} is no multiple of the pattern's {pattern.group}"
        return None


def dtype_of(op: Gemm, setting: Setting) -> str:
    """The type that rules ask for: of the stored weight where it is another."""
    return setting.weight or op.dtype


def matches(gpu: GpuSpec, wanted: str) -> bool:
    """Whether the GPU has compute capability `wanted`; ``8.x`` takes all of 8."""
    major, _, minor = wanted.partition(".")
    own_major, _, own_minor = gpu.compute_capability.partition(".")
    return gpu.vendor == "NVIDIA" and major == own_major and minor in ("x", own_minor)


def _known(what: str, value: tuple[str, ...] | None, valid: tuple[str, ...]) -> tuple[str, ...] | None:
    unknown = [item for item in value or () if item not in valid]
    if unknown:
        raise ValueError(f"expected {what} out of {', '.join(valid)}, found {', '.join(unknown)}")
    return value
