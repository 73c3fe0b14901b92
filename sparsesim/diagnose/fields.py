"""Fields of a run file, checked all at once."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from sparsesim.errors import UserError, nearest, show
from sparsesim.stacks import FLAGS

__all__ = ["ConversionFields", "RunFields", "SettingFields", "ShardFields", "check_fields"]

Positive = Annotated[int, Field(ge=1, strict=True)]
Text = Annotated[str, Field(min_length=1, strict=True)]


class _Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ConversionFields(_Fields):
    """See `run.Conversion`; `op` may be a family."""

    op: Text
    bytes: Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
    launches: Annotated[int, Field(ge=1, le=1 << 20, strict=True)] = 1


class ShardFields(_Fields):
    """Tensor parallelism: `rows` are the ops or families whose k is split, of all others m is."""

    size: Positive
    rows: tuple[Text, ...] = ()


class SettingFields(_Fields):
    """Circumstances of the stack's calls, see `sparsesim.stacks.Setting`; the version is part of the stack's name."""

    caller: Text = ""
    caller_version: Text = ""
    flags: tuple[Text, ...] = ()
    layout: Literal["", "TN", "NN", "NT", "TT"] = ""
    weight: Text = ""

    @field_validator("flags")
    @classmethod
    def _known(cls, flags: tuple[str, ...]) -> tuple[str, ...]:
        for flag in flags:
            if flag not in FLAGS:
                raise ValueError(f"one of {', '.join(FLAGS)}, not {flag!r}{nearest(flag, FLAGS)}")
        return flags


class RunFields(_Fields):
    """A run file, as `runfile` documents it."""

    name: Text | None = None
    gpu: Text
    tuned_for: Text | None = None
    stack: Text | None = None
    setting: SettingFields | None = None
    baseline: Literal["heuristic", "search"] | None = None
    workload: Text | None = None
    gemms: tuple[dict[str, Any], ...] = ()
    tokens: Positive | None = None
    phase: Text | None = None
    dtype: Text | None = None
    pattern: Text | None = None
    timing: Text = "kernel"
    l2: Text = "rotating"
    clock: Text = "free"
    streams: Positive = 1
    graph: Annotated[bool, Field(strict=True)] = False
    repeats: Positive = 1
    set: tuple[Text, ...] = ()
    tensor_parallel: ShardFields | None = None
    wrong_axis: tuple[Text, ...] = ()
    unusable: dict[str, Text] = Field(default_factory=dict)
    conversions: tuple[ConversionFields, ...] = ()
    quality: dict[str, Text] | None = None


def check_fields(document: Any, where: str) -> RunFields:
    """The fields of one run; raises UserError with every problem."""
    if not isinstance(document, dict):
        raise UserError(f"{where}: expected a table, found {show(document)}")
    lines = []
    found: RunFields | None = None
    try:
        found = RunFields(**document)
    except ValidationError as error:
        for item in error.errors():
            path = ".".join(str(part) for part in item["loc"])
            if item["type"] == "extra_forbidden":
                key = str(item["loc"][-1])
                valid = RunFields.model_fields if len(item["loc"]) == 1 else ()
                lines.append(f"{where}: {path}: expected a key of a run file, found {key!r}{nearest(key, valid)}")
            elif item["type"] == "missing":
                lines.append(f"{where}: {path}: expected a value, found none")
            else:
                expected = item["msg"]
                for prefix in ("Value error, ", "Input should be ", "String should "):
                    expected = expected.removeprefix(prefix)
                lines.append(f"{where}: {path}: expected {expected}, found {show(item['input'])}")
    if found is not None:
        if bool(found.gemms) == (found.workload is not None):
            given = "both" if found.gemms else "neither"
            lines.append(f"{where}: workload: expected either a workload or [[gemms]], found {given}")
        for name in ("tokens", "phase", "dtype", "pattern"):
            if found.gemms and getattr(found, name) is not None:
                lines.append(f"{where}: {name}: expected it with a workload file only, found it beside [[gemms]]")
        if found.quality is not None and "file" not in found.quality:
            lines.append(f"{where}: quality.file: expected a quality file, found none")
    if lines or found is None:
        raise UserError(lines)
    return found
