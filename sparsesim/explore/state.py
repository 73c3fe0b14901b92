"""What the explorer shows, as its address says it: every field bounded, every problem one line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sparsesim.errors import Problem, UserError, nearest
from sparsesim.hardware import GpuSpec, gpu_names, load_gpu
from sparsesim.kernels.datapath import family_dtype, rate_key
from sparsesim.scenarios import Scenario, build_scenario
from sparsesim.scenarios.paths import apply, hardware_values, parse_assignment, parse_quantity
from sparsesim.stacks import stack_names
from sparsesim.units import UNITS
from sparsesim.workload import workload_names
from sparsesim.workload.ops import GemmError

__all__ = ["MAX_SIDE", "SLIDERS", "SPAN", "Board", "Slider", "State", "load_board", "parse_state", "sliders"]

#: largest m, n and k: a launch of 65536³ still takes less than a second
MAX_SIDE = 65536
MAX_QUERY = 4000
MAX_SETS = 24
#: a slider goes from the parameter's own value over this to that times it
SPAN = 4.0

#: parameters with a slider; the rate of the datapath that the op uses comes first (see `sliders`)
SLIDERS = (
    "sm.count", "clock.max", "power.limit", "smem.bytes", "smem.bytes_per_clk", "l2.bytes", "l2.bytes_per_clk",
    "l2.fabric_bytes_per_clk", "dram.bytes_per_s", "metadata.groups_per_clk", "launch.ramp",
)  # fmt: skip
#: what else the address may hold, with the value of an address without it
DEFAULTS: dict[str, str] = {
    "gpu": "a100_pcie_80gb", "workload": "", "phase": "", "tokens": "", "op": "0", "m": "4096", "n": "2048",
    "k": "4096", "dtype": "f16", "pattern": "2:4", "stack": "cusparselt", "timing": "kernel", "l2": "rotating",
}  # fmt: skip


#: what a board of a file may be called: the name stands in addresses and in the name of a download
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True)
class Board:
    """A GPU that whoever started the explorer gave as a file; a page knows its name alone."""

    file: str
    gpu: GpuSpec


NO_BOARDS: Mapping[str, Board] = {}


def load_board(file: str) -> Board:
    """The board of a hardware file.

    Raises
    ------
    UserError
        Problems of the file, a name that an address cannot have, or one that is a packaged GPU's.
    """
    gpu = load_gpu(file)
    if _NAME.fullmatch(gpu.name) is None:
        raise UserError(Problem.line(file, "name", "letters, digits, _, . and -, at most 64", gpu.name))
    if gpu.name in gpu_names() and gpu != load_gpu(gpu.name):
        raise UserError(Problem.line(file, "name", "one that no packaged GPU has", gpu.name))
    return Board(file, gpu)


@dataclass(frozen=True)
class Slider:
    """A hardware parameter that can be moved: numbers are in `unit`, that of the hardware file."""

    path: str
    unit: str
    base: float
    low: float
    high: float
    value: float
    whole: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return dict(vars(self))


@dataclass(frozen=True)
class State:
    """One view of the page.

    base : scenario of the packaged GPU
    scenario : the same on the GPU that the sliders made
    sets : the changes, ``path=value unit``, sorted
    op : which op of the workload is drawn
    query : the fields of the address that are not their default
    source : what ``--gpu`` takes for the GPU of `base`: a packaged name or a file
    """

    base: Scenario
    scenario: Scenario
    sets: tuple[str, ...]
    op: int
    query: tuple[tuple[str, str], ...]
    source: str

    @property
    def gpu(self) -> GpuSpec:
        """The GPU that the sliders made."""
        return self.scenario.gpu

    def command(self) -> str:
        """The command that gives the same numbers for the op that is drawn."""
        scenario, op = self.scenario, self.scenario.workload.ops[self.op]
        words = ["sparsesim", "whatif" if self.sets else "gemm", "--gpu", self.source]
        words += ["-m", str(op.m), "-n", str(op.n), "-k", str(op.k)]
        if op.batch != 1:
            words += ["--batch", str(op.batch)]
        if op.acc_dtype:
            words += ["--acc", op.acc_dtype]
        words += ["--dtype", op.dtype, "--pattern", op.pattern, "--stack", scenario.stack.name]
        words += ["--timing", scenario.protocol.timing, "--l2", scenario.protocol.l2]
        for change in self.sets:
            words += ["--set", change]
        return shlex.join(words)


def parse_state(pairs: Iterable[tuple[str, str]], boards: Mapping[str, Board] = NO_BOARDS) -> State:
    """The view that the fields of an address mean.

    Parameters
    ----------
    pairs : (name, value) of each field; ``set`` may come several times, as ``l2.bytes=80MiB``
    boards : by name, those that the explorer was started with

    Raises
    ------
    UserError
        Unknown or repeated fields, and values out of bounds: every problem, one line each.
    """
    lines: list[str] = []
    fields = dict(DEFAULTS)
    seen: set[str] = set()
    sets: list[str] = []
    pairs = list(pairs)
    if sum(len(name) + len(value) for name, value in pairs) > MAX_QUERY:
        raise UserError(f"address: expected at most {MAX_QUERY} characters, found more")
    for name, value in pairs:
        if name == "set":
            sets.append(value)
        elif name not in DEFAULTS:
            lines.append(f"{name[:40]!r}: expected one of {', '.join(DEFAULTS)} or set{nearest(name, DEFAULTS)}")
        elif name in seen:
            lines.append(f"{name}: expected once, found several")
        else:
            seen.add(name)
            fields[name] = value
    if len(sets) > MAX_SETS:
        lines.append(Problem.line("set", "", f"at most {MAX_SETS} parameters", len(sets)))
    for name, valid in (("gpu", [*gpu_names(), *boards]), ("workload", ["", *workload_names()])):
        if fields[name] not in valid:  # names only: a page must not open files
            lines.append(
                Problem.line(
                    name,
                    "",
                    "a packaged name"
                    if name == "workload" or not boards
                    else f"a packaged name or {' or '.join(boards)}",
                    fields[name],
                )
                + nearest(fields[name], valid)
            )
    stack = re.split("[@:]", fields["stack"])[0]
    if stack not in stack_names():
        lines.append(Problem.line("stack", "", "a packaged stack", stack) + nearest(stack, stack_names()))
    numbers = {
        name: _whole(name, fields[name], 0 if name == "op" else 1, lines)
        for name in ("m", "n", "k", "op", *(["tokens"] if fields["tokens"] else []))
    }
    if lines:
        raise UserError(lines)
    board = boards.get(fields["gpu"])
    base = _scenario(fields, numbers, fields["gpu"] if board is None else board.gpu)
    if numbers["op"] >= len(base.workload.ops):
        raise UserError(Problem.line("op", "", f"less than {len(base.workload.ops)}", numbers["op"]))
    scenario = _changed(base, sets)
    query = tuple((name, value) for name, value in fields.items() if value != DEFAULTS[name])
    source = fields["gpu"] if board is None else board.file
    return State(base, scenario, tuple(sorted(sets)), numbers["op"], query, source)


def _scenario(fields: dict[str, str], numbers: dict[str, int], gpu: str | GpuSpec) -> Scenario:
    about: dict[str, Any] = {name: fields[name] for name in ("dtype", "pattern", "stack", "timing", "l2")}
    about["gpu"] = gpu
    if not fields["workload"]:
        return build_scenario(m=numbers["m"], n=numbers["n"], k=numbers["k"], **about)
    scenario = build_scenario(
        workload=fields["workload"], tokens=numbers.get("tokens"), phase=fields["phase"] or None, **about
    )
    try:  # only sides that the page can draw
        large = [op.name for op in scenario.workload.ops if op.n > MAX_SIDE or op.batch > MAX_SIDE]
    except GemmError as error:
        raise UserError(str(error)) from None
    if large:
        raise UserError(f"workload: expected n of at most {MAX_SIDE}, found more in {large[0]}")
    return scenario


def _whole(name: str, text: str, low: int, lines: list[str]) -> int:
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 6 else -1
    if not low <= number <= MAX_SIDE:
        lines.append(Problem.line(name, "", f"an integer from {low} to {MAX_SIDE}", text))
        return low
    return number


def _changed(base: Scenario, sets: list[str]) -> Scenario:
    """`base` on the changed GPU; each change has to be within its slider's bounds."""
    lines: list[str] = []
    changes = []
    values = hardware_values(base.gpu)
    paths: set[str] = set()
    for text in sets:
        try:
            change = parse_assignment(text)
            if change.operator != "=":
                raise UserError(Problem.line("set", change.path, "path=value", text))
            slider = slider_of(base.gpu, change.path)
            if change.path in paths:
                raise UserError(f"set: {change.path}: expected once, found several")
            paths.add(change.path)
            new = parse_quantity(change.text, values[change.path][1], f"set: {change.path}")
            new /= UNITS[values[change.path][1]][slider.unit]
            tiny = 1e-6 * slider.base
            if not slider.low - tiny <= new <= slider.high + tiny:
                bounds = f"{slider.low:.6g} to {slider.high:.6g} {slider.unit}".removesuffix(" -")
                raise UserError(Problem.line("set", change.path, bounds, f"{new:.6g}"))
            changes.append(change)
        except UserError as error:
            lines += error.problems
    try:
        changed = apply(base, changes)  # what the description itself refuses, such as half an SM
    except UserError as error:
        lines += error.problems
    if lines:
        raise UserError(lines)
    return changed


def slider_of(gpu: GpuSpec, path: str, unit: str | None = None) -> Slider:
    """The slider of one parameter; raises UserError where there is no number at `path`."""
    values = hardware_values(gpu)
    if path not in values:
        raise UserError(
            f"set: {path[:60]}: expected the path of a hardware parameter, found no such one{nearest(path, values)}"
        )
    value, canonical = values[path]
    if isinstance(value, bool | str | tuple) or not value:
        raise UserError(f"set: {path}: expected a number other than 0 to change, found {value!r}")
    known = gpu.provenance.get(path)
    shown = unit or (known.unit if known is not None else canonical)
    base = value / UNITS[canonical][shown]
    low, high = base / SPAN, base * SPAN
    # what the description itself holds to
    if path == "clock.max":
        low = max(low, gpu.clock.base / UNITS[canonical][shown])
    if path == "smem.bytes":
        low = max(low, gpu.smem.max_per_cta / UNITS[canonical][shown])
    whole = isinstance(value, int) and shown == "-"
    if whole:
        low, high = float(max(-(-low // 1), 1)), float(high // 1)
    return Slider(path, shown, _tidy(base), _tidy(low), _tidy(high), _tidy(base), whole)


def sliders(state: State) -> list[Slider]:
    """The page's sliders, each where the state has it, and those of other parameters that the state changes."""
    op, gpu = state.scenario.workload.ops[state.op], state.base.gpu
    rate = f"tensor.macs_per_clk.{rate_key(family_dtype(op.dtype), op.accumulator)}"
    values = hardware_values(gpu)
    changed = [text.partition("=")[0].strip() for text in state.sets]
    paths = dict.fromkeys([rate, *SLIDERS, *changed])
    made = []
    for path in paths:
        if path in values and values[path][0]:
            slider = slider_of(gpu, path)
            made.append(replace(slider, value=slider_of(state.gpu, path, slider.unit).base))
    return made


def _tidy(value: float) -> float:
    return float(f"{value:.9g}")
