"""Reading runs: the JSON of ``simulate`` and ``gemm``, run files (TOML), and profiles.

A run file names what a run is made of; only `gpu` and a workload are needed:

    gpu = "a100_pcie_80gb"              # or a hardware file
    workload = "llama-3.1-8b"           # or a file, or [[gemms]] tables in this one
    phase = "prefill"
    tokens = 2048
    stack = "cusparselt"                # or a rule file
    setting = { flags = ["plan-cache"] }  # also caller, caller_version, layout, weight: circumstances of its calls
    tuned_for = "a100_sxm4_80gb"        # whose board the libraries' heuristics know, where it is not that of `gpu`
    set = ["l2.bytes/=2", "ops.prefill-2048/o.dtype=f16", "families.qkv.pattern=dense"]
    wrong_axis = ["lm_head"]            # ops or families pruned along m: no N:M along k
    tensor_parallel = { size = 8, rows = ["attn_out", "mlp_down"] }

    [[conversions]]
    op = "prefill-2048/qkv"             # before each call; bytes read and written
    bytes = 33554432

    [quality]
    file = "quality.json"               # see `quality`; other keys pick the variant
    method = "wanda"

`set` takes the assignments of ``whatif``; paths in the file are relative to it. A file with the tables ``[base]`` and
``[candidate]``, each a run, is a pair.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sparsesim.diagnose.fields import RunFields, check_fields
from sparsesim.diagnose.quality import QualityRun, read_quality
from sparsesim.diagnose.run import Conversion, Run
from sparsesim.errors import Problem, UserError
from sparsesim.hardware import GpuSpec, load_gpu
from sparsesim.lowering import POLICIES
from sparsesim.profile_check import read_profiles
from sparsesim.profiles import detect_profile
from sparsesim.protocol import Protocol
from sparsesim.results import config_hash
from sparsesim.results_workload import SCHEMA
from sparsesim.scenarios.paths import Assignment, apply, parse_assignment
from sparsesim.scenarios.scenario import build_scenario
from sparsesim.stacks import Setting, get_stack
from sparsesim.textfiles import parse_toml, read_json, read_text, read_toml
from sparsesim.units import is_number
from sparsesim.workload import Gemm, Workload
from sparsesim.workload.ops import GEMM_FIELDS, GemmError, issue_line

__all__ = ["is_pair", "parse_run", "read_pair", "read_run", "with_quality"]

WRONG_AXIS = "pruned along m, so not N:M along k"
RAN_DENSE = "ran dense in the profile"
#: what the reader of a file expects
RUN_FILE = "a run file"
#: settings that the JSON of one GEMM does not have
DEFAULTS: dict[str, Any] = {"streams": 1, "graph": False, "repeats": 1}


def is_pair(path: str | Path) -> bool:
    """Whether a file holds both runs."""
    path = Path(path)
    if path.suffix != ".toml" or not path.is_file():
        return False
    document = read_toml(path, RUN_FILE)
    return "base" in document and "candidate" in document


def read_pair(path: str | Path) -> tuple[Run, Run]:
    """Both runs of a pair file; raises UserError with every problem."""
    path = Path(path)
    document = read_toml(path, RUN_FILE)
    lines: list[str] = []
    runs: list[Run] = []
    extra = [key for key in document if key not in ("base", "candidate")]
    lines += [Problem.line(str(path), key, "only base and candidate", document[key]) for key in extra]
    for name in ("base", "candidate"):
        try:
            runs.append(_from_fields(check_fields(document[name], f"{path}: {name}"), path, name))
        except UserError as error:
            lines += error.problems
    if lines:
        raise UserError(lines)
    return runs[0], runs[1]


def read_run(
    path: str | Path,
    gpu: str | Path | None = None,
    hardware: Iterable[str | Path] = (),
    quality: str | Path | None = None,
) -> Run:
    """Read a run of any of the forms.

    Parameters
    ----------
    path : JSON of ``simulate`` or ``gemm``, a run file, or a profile
    gpu : the GPU of a profile that does not name its own
    hardware : hardware files that the simulated runs were made with, where these are no packaged ones
    quality : a quality file, where the run file names none

    Raises
    ------
    UserError
        Every problem of the file.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: expected a run, found {'a folder' if path.is_dir() else 'no such file'}")
    if path.suffix == ".toml":
        run = parse_run(read_text(path, RUN_FILE), path)
    elif detect_profile(path) is not None:
        run = _from_profile(path, gpu)
    elif path.suffix == ".csv":
        raise UserError(f"{path}: expected a profile, a result or a run file, found a CSV file that no profiler wrote")
    else:
        run = _from_result(path, hardware)
    return with_quality(run, quality)


def parse_run(text: str, path: Path) -> Run:
    """The run that the text of a run file at `path` describes; raises UserError with every problem."""
    return _from_fields(check_fields(parse_toml(text, path), str(path)), path, path.stem)


def with_quality(run: Run, path: str | Path | None) -> Run:
    """`run` with the figures of a quality file instead of its own, if one is given."""
    return run if path is None else replace(run, quality=read_quality(path))


# --- run files ---


def _from_fields(given: RunFields, path: Path, label: str) -> Run:
    folder, where = path.parent, str(path)
    lines: list[str] = []
    gpu_source = _located(given.gpu, folder)
    stack_source = "" if given.stack is None else _located_stack(given.stack, folder)
    workload: str | Workload | None = None if given.workload is None else _located(given.workload, folder)
    if given.gemms:
        try:
            workload = Workload(given.name or "ops", "", "", _gemms(given.gemms, where))
        except UserError as error:
            raise UserError(error.problems) from None
    chosen = (given.tokens, given.phase, given.dtype, given.pattern) if not given.gemms else (None,) * 4
    try:
        scenario = build_scenario(
            gpu_source, workload=workload, tokens=chosen[0], phase=chosen[1], dtype=chosen[2], pattern=chosen[3],
            stack=stack_source or None, timing=given.timing, l2=given.l2, clock=given.clock, streams=given.streams,
            graph=given.graph, repeats=given.repeats,
        )  # fmt: skip
    except UserError as error:
        raise UserError(f"{where}: {line}" if not line.startswith(where) else line for line in error.problems) from None
    if given.setting is not None:
        setting = Setting(**{**given.setting.model_dump(), "flags": frozenset(given.setting.flags)})
        scenario = replace(scenario, stack=scenario.stack.under(setting))
    # a family stands for each of its ops; ops change before they are sharded
    changes: list[Assignment] = []
    for text in given.set:
        try:
            changes += _expanded(parse_assignment(text, f"{where}: set"), scenario.workload, where)
        except UserError as error:
            lines += error.problems
    tuned_source = "" if given.tuned_for is None else _located(given.tuned_for, folder)
    try:
        scenario = apply(scenario, changes, f"{where}: set")
    except UserError as error:
        lines += [line if line.startswith(where) else f"{where}: set: {line}" for line in error.problems]
    try:
        if tuned_source:
            scenario = replace(scenario, gpu=_tuned_for(scenario.gpu, tuned_source))
    except UserError as error:
        lines += [f"{where}: tuned_for: {line}" for line in error.problems]
    ops = scenario.workload.ops
    if given.tensor_parallel is not None and given.tensor_parallel.size > 1:
        try:
            ops = _sharded(ops, given.tensor_parallel.size, given.tensor_parallel.rows, where)
        except UserError as error:
            lines += error.problems
    broken: list[tuple[str, str]] = []
    for name in given.wrong_axis:
        found = _named(ops, name)
        if not found:
            lines.append(Problem.line(where, "wrong_axis", "ops or families of the workload", name))
        broken += [(op.name, WRONG_AXIS) for op in found if op.pattern != "dense"]
    for name, why in given.unusable.items():
        if not _named(ops, name):
            lines.append(Problem.line(where, "unusable", "ops of the workload", name))
        broken += [(op.name, why) for op in _named(ops, name)]
    conversions: list[Conversion] = []
    for item in given.conversions:
        found = _named(ops, item.op)
        if not found:
            lines.append(Problem.line(where, "conversions.op", "an op or a family of the workload", item.op))
        conversions += [Conversion(op.name, item.bytes, item.launches) for op in found]
    quality: QualityRun | None = None
    if given.quality is not None:
        variant = {key: value for key, value in given.quality.items() if key != "file"}
        try:
            quality = read_quality(_located(given.quality["file"], folder), variant)
        except UserError as error:
            lines += error.problems
    if lines:
        raise UserError(lines)
    old = scenario.workload
    return Run(
        label=given.name or label,
        gpu=scenario.gpu,
        gpu_source=gpu_source,
        workload=Workload(old.name, old.description, old.source, ops),
        stack=scenario.stack,
        protocol=scenario.protocol,
        baseline=given.baseline or get_stack(scenario.stack.dense_stack).policy,
        streams=scenario.streams,
        graph=scenario.graph,
        repeats=scenario.repeats,
        unusable=tuple(sorted(dict(broken).items())),
        conversions=tuple(sorted(conversions, key=lambda item: item.op)),
        quality=quality,
        tuned_source=tuned_source,
        stack_source=stack_source,
    )


def _tuned_for(gpu: GpuSpec, source: str) -> GpuSpec:
    """`gpu` with the libraries' heuristics of the board `source`."""
    return gpu.model_copy(update={"library_target": load_gpu(source).tuned_for})


def _located_stack(text: str, folder: Path) -> str:
    """A rule file beside the run file, with version and treatment as they are; else the text: a packaged name."""
    base = text.partition(":")[0].partition("@")[0]
    return _located(base, folder) + text[len(base) :]


def _located(text: str, folder: Path) -> str:
    """`text` as a path from `folder` if there is such a file, else as it is: a packaged name."""
    beside = folder / text
    return str(beside) if beside.is_file() else text


def _gemms(tables: Sequence[Mapping[str, Any]], where: str) -> tuple[Gemm, ...]:
    ops: list[Gemm] = []
    lines: list[str] = []
    for i, table in enumerate(tables):
        extra = [key for key in table if key not in GEMM_FIELDS]
        missing = [key for key in ("name", "m", "n", "k") if key not in table]
        lines += [Problem.line(where, f"gemms[{i}].{key}", "a field of a GEMM", key) for key in extra]
        lines += [Problem.line(where, f"gemms[{i}].{key}", "a value", None) for key in missing]
        if extra or missing:
            continue
        try:
            ops.append(Gemm(**table))
        except GemmError as error:
            lines += [issue_line(where, f"gemms[{i}].", issue) for issue in error.issues]
    if lines:
        raise UserError(lines)
    return tuple(ops)


def _named(ops: Sequence[Gemm], name: str) -> list[Gemm]:
    return [op for op in ops if op.name == name] or [op for op in ops if op.family == name]


def _expanded(change: Assignment, workload: Workload, where: str) -> list[Assignment]:
    """``families.NAME.field`` as one assignment for each op of the family."""
    if change.path in ("gpu", "stack", "tokens", "phase"):
        raise UserError(Problem.line(where, f"set: {change.path}", f"the key {change.path} of the file", str(change)))
    if not change.path.startswith("families."):
        return [change]
    family, _, name = change.path.removeprefix("families.").rpartition(".")
    ops = [op for op in workload.ops if op.family == family]
    if not ops:
        families = ", ".join(dict.fromkeys(op.family for op in workload.ops if op.family)) or "none"
        raise UserError(Problem.line(where, f"set: {change.path}", f"a family of the workload ({families})", family))
    return [replace(change, path=f"ops.{op.name}.{name}") for op in ops]


def _sharded(ops: Sequence[Gemm], size: int, rows: Sequence[str], where: str) -> tuple[Gemm, ...]:
    """What one of `size` GPUs runs: row-parallel ops lose in features (k), the others out features (m)."""
    known = {name for op in ops for name in (op.name, op.family)}
    lines = [
        Problem.line(where, "tensor_parallel.rows", "ops or families of the workload", name)
        for name in rows
        if name not in known
    ]
    out = []
    for op in ops:
        side = "k" if op.name in rows or op.family in rows else "m"
        if getattr(op, side) % size:
            expected = f"a divisor of {side} = {getattr(op, side)} of {op.name}"
            lines.append(Problem.line(where, "tensor_parallel.size", expected, size))
            continue
        out.append(replace(op, k=op.k // size) if side == "k" else replace(op, m=op.m // size))
    if lines:
        raise UserError(lines)
    return tuple(out)


# --- results ---


def _from_result(path: Path, hardware: Iterable[str | Path]) -> Run:
    where = str(path)
    document = read_json(path, "the JSON of a run, a run file or a profile")
    if "variants" in document and "scheduler" in document:
        raise UserError(
            f"{where}: expected the run of a workload or a GEMM, found one of serve: `sparsesim gate` judges those"
        )
    single = {"m", "n", "k", "time_us", "dense_time_us", "path"} <= document.keys()
    if document.get("schema") != SCHEMA and not single:
        raise UserError(Problem.line(where, "schema", f"{SCHEMA!r}, or the JSON of gemm", document.get("schema")))
    try:
        rows: list[Any] = [{"gemm": document, "count": 1, "family": ""}] if single else document["rows"]
        if rows == []:
            raise UserError(Problem.line(where, "rows", "at least one op", rows))
        ops = tuple(_op_of_row(row) for row in rows)
        gpu, source = _gpu_of(document, hardware, where)
        clock = document["clock"]
        times = (document["time_us"], document["dense_time_us"]) if single else (
            document["makespan_us"], document["dense_makespan_us"]
        )  # fmt: skip
        settings = {name: document.get(name, value) for name, value in DEFAULTS.items()}
        settings["baseline"] = rows[0]["gemm"]["baseline"]
        _check_result(settings, times, where)
        return Run(
            label=path.stem,
            gpu=gpu,
            gpu_source=source,
            workload=Workload(str(document.get("workload", "gemm")), "", where, ops),
            stack=get_stack(document["stack"]),
            protocol=Protocol.parse(document["timing"], document["l2"], clock),
            **settings,
            recorded=(float(times[0]), float(times[1])),
        )
    except UserError as error:
        raise UserError(line if line.startswith(where) else f"{where}: {line}" for line in error.problems) from None
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        found = f"{type(error).__name__}: {error}"
        raise UserError(Problem.line(where, "", "the fields that `sparsesim simulate --json` writes", found)) from None


def _check_result(settings: Mapping[str, Any], times: Sequence[Any], where: str) -> None:
    """Settings and recorded times of a result; raises UserError with every problem."""
    lines = []
    if settings["baseline"] not in POLICIES:
        lines.append(Problem.line(where, "baseline", f"one of {', '.join(POLICIES)}", settings["baseline"]))
    if type(settings["graph"]) is not bool:
        lines.append(Problem.line(where, "graph", "true or false", settings["graph"]))
    for name in ("streams", "repeats"):
        if type(settings[name]) is not int or settings[name] < 1:
            lines.append(Problem.line(where, name, "an integer of at least 1", settings[name]))
    for name, value in zip(("time", "dense time"), times, strict=True):
        if not is_number(value) or value <= 0.0:
            lines.append(Problem.line(where, name, "a positive number of µs", value))
    if lines:
        raise UserError(lines)


def _op_of_row(row: Mapping[str, Any]) -> Gemm:
    gemm = row["gemm"]
    return Gemm(
        name=gemm["name"],
        m=gemm["m"],
        n=gemm["n"],
        k=gemm["k"],
        batch=gemm["batch"],
        dtype=gemm["dtype"],
        acc_dtype=gemm["acc_dtype"],
        pattern=gemm["pattern"],
        # not recorded; the one rule that asks for it gives its name as the reason
        sparse_operand="B" if gemm["reason"] == "operand-side" else "A",
        count=row["count"],
        family=row["family"],
    )


def _gpu_of(document: Mapping[str, Any], hardware: Iterable[str | Path], where: str) -> tuple[GpuSpec, str]:
    """The description that a result was made with, by its hash."""
    name, wanted = str(document["gpu"]), document["provenance"]["gpu_hash"]
    for source in [*map(str, hardware), name]:
        try:
            gpu = load_gpu(source)
        except UserError:
            if source != name:
                raise
            continue
        if gpu.name == name and config_hash(gpu) == wanted:
            return gpu, source
    raise UserError(
        f"{where}: provenance.gpu_hash: expected that of a packaged or given hardware file (--hardware FILE), found "
        f"{wanted} of {name!r}, which is none of them; simulate it again, or give the file it was made with"
    )


# --- profiles ---


def _from_profile(path: Path, gpu: str | Path | None) -> Run:
    found = read_profiles([path], None if gpu is None else load_gpu(gpu))
    ((name, spec),) = found.gpus.items()
    timed = [gemm for gemm in found.gemms if gemm.row is not None]
    if not timed:
        raise UserError(f"{path}: expected at least one timed GEMM kernel, found none")
    ops: list[Gemm] = []
    broken: list[tuple[str, str]] = []
    measured: list[tuple[str, float]] = []
    kernels: list[tuple[str, str]] = []
    for gemm in timed:
        shape, row = gemm.shape, gemm.row
        assert row is not None
        word = f"{shape.m}x{shape.n}x{shape.k}"
        label = f"{word}-{sum(op.name.partition('-')[0] == word for op in ops) + 1}"
        pattern = shape.pattern or gemm.pattern
        ops.append(
            Gemm(label, shape.m, shape.n, shape.k, batch=shape.batch, dtype=gemm.dtype, pattern=pattern,
                 count=gemm.kernel.calls)
        )  # fmt: skip
        if gemm.pattern == "dense" and pattern != "dense":
            broken.append((label, RAN_DENSE))
        measured.append((label, row.time_us))
        kernels.append((label, gemm.kernel.name))
    # one protocol for the run: that of most of its time
    weight: dict[Protocol, float] = {}
    for gemm in timed:
        assert gemm.row is not None
        protocol = Protocol.parse(gemm.row.timing, gemm.l2, gemm.row.clock)
        weight[protocol] = weight.get(protocol, 0.0) + gemm.row.time_us * gemm.kernel.calls
    notes = [f"{item['row']}: left out: {item['why']}" for item in found.skipped]
    if len(weight) > 1:
        notes.append(f"{path}: {len(weight)} protocols; all of it is simulated under that of most time")
    stack = get_stack("cusparselt")
    return Run(
        label=path.stem,
        gpu=spec,
        gpu_source=str(gpu or name),
        workload=Workload(path.stem, "", str(path), tuple(ops)),
        stack=stack,
        protocol=max(weight, key=lambda item: weight[item]),
        baseline=get_stack(stack.dense_stack).policy,
        unusable=tuple(sorted(broken)),
        measured=tuple(measured),
        kernels=tuple(kernels),
        notes=tuple(notes),
    )
