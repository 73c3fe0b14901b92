"""Compiling and running the micro-benchmarks. A program prints one JSON object a line: the device, then readings."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsesim.errors import UserError
from sparsesim.units import is_number

__all__ = [
    "PROGRAMS",
    "SOURCES",
    "Readings",
    "compile_program",
    "find_compiler",
    "find_gpu",
    "parse_readings",
    "run_programs",
]

SOURCES = Path(__file__).resolve().parent / "cuda"
#: program → what it measures
PROGRAMS = {
    "mma": "issue interval and latency of mma.sync and mma.sp",
    "wgmma": "issue interval of wgmma, dense and sparse (Hopper)",
    "memory": "bandwidth and latency of shared memory, L2 and device memory",
    "launch": "launch intervals in a stream and a graph, event pairs",
    "clock": "SM clock under light and under tensor load",
}
#: seconds after which a program is taken to hang; the clock program adds its own
TIMEOUT_S = 300.0
COMPILE_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Readings:
    """What the programs found: the device's own description, and name → (value, unit)."""

    device: Mapping[str, Any]
    values: Mapping[str, tuple[float, str]]

    def get(self, name: str) -> float | None:
        """A reading's value, or None."""
        return self.values[name][0] if name in self.values else None

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "device": dict(self.device),
            "readings": {name: {"value": value, "unit": unit} for name, (value, unit) in self.values.items()},
        }


def find_gpu() -> None:
    """Raise UserError if the machine has no NVIDIA GPU with a driver, in one line that says how to get one."""
    smi = shutil.which("nvidia-smi")
    found = "nvidia-smi is not installed"
    if smi is not None:
        try:
            done = subprocess.run([smi, "-L"], capture_output=True, text=True, timeout=60, check=False)
        except (OSError, subprocess.TimeoutExpired):
            found = "nvidia-smi does not answer"
        else:
            if done.returncode == 0 and done.stdout.strip():
                return
            found = "nvidia-smi lists none"
    raise UserError(
        f"no GPU to measure on: {found}; the micro-benchmarks need an NVIDIA GPU with its driver, and nvcc of the CUDA "
        "toolkit 12.5 or newer"
    )


def find_compiler() -> str:
    """Path of nvcc; raises UserError if there is none."""
    found = shutil.which("nvcc")
    for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda"):
        if found is None and home and (Path(home) / "bin" / "nvcc").is_file():
            found = str(Path(home) / "bin" / "nvcc")
    if found is None:
        raise UserError("nvcc: expected the CUDA toolkit 12.5 or newer (nvcc on PATH or in CUDA_HOME/bin), found none")
    return found


def architecture(compute_capability: str) -> str:
    """nvcc's name: ``8.0`` → ``sm_80``; with the architecture's own instructions where it has such (``sm_90a``)."""
    digits = compute_capability.replace(".", "")
    return f"sm_{digits}a" if compute_capability == "9.0" else f"sm_{digits}"


def compile_program(name: str, compute_capability: str, target: Path, compiler: str, more: Sequence[str] = ()) -> None:
    """Compile program `name` for an architecture; raises UserError with the compiler's first error."""
    command = [
        compiler, "-std=c++17", "-O3", f"-arch={architecture(compute_capability)}", *more, "-o", str(target),
        str(SOURCES / f"{name}.cu"),
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as err:
        raise UserError(f"{name}.cu: expected nvcc to compile it, found an error: {err}") from None
    if done.returncode:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if "error" in line.lower()]
        raise UserError(f"{name}.cu: expected nvcc to compile it, found: {(lines or [f'status {done.returncode}'])[0]}")


def run_programs(
    compute_capability: str,
    device: int = 0,
    seconds: float = 10.0,
    programs: Sequence[str] = tuple(PROGRAMS),
    progress: Callable[[int, int], None] | None = None,
    execute: Callable[[str, Sequence[str], float], str] | None = None,
) -> Readings:
    """Compile and run programs on GPU `device`; `seconds` is how long each clock load lasts.

    `execute(name, arguments, timeout_s)` returns what program `name` prints; tests give their own.

    Raises UserError if there is no GPU or compiler, or a program fails, hangs or prints no readings.
    """
    wanted = [name for name in programs if name != "wgmma" or compute_capability.startswith("9.")]
    if execute is not None:
        return _run_all(wanted, device, seconds, progress, execute)
    find_gpu()
    compiler = find_compiler()
    with tempfile.TemporaryDirectory(prefix="sparsesim-microbench-") as folder:

        def compiled(name: str, arguments: Sequence[str], timeout_s: float) -> str:
            target = Path(folder) / name
            compile_program(name, compute_capability, target, compiler)
            return _output(name, [str(target), *arguments], timeout_s)

        return _run_all(wanted, device, seconds, progress, compiled)


def _run_all(
    programs: Sequence[str],
    device: int,
    seconds: float,
    progress: Callable[[int, int], None] | None,
    execute: Callable[[str, Sequence[str], float], str],
) -> Readings:
    board: Mapping[str, Any] = {}
    values: dict[str, tuple[float, str]] = {}
    for count, name in enumerate(programs, 1):
        arguments = [str(device), f"{seconds:g}"] if name == "clock" else [str(device)]
        found = parse_readings(name, execute(name, arguments, TIMEOUT_S + 4 * seconds))
        if board and found.device != board:
            raise UserError(f"{name}: expected readings of {board['device']}, found {found.device['device']}")
        board = found.device
        values.update(found.values)
        if progress is not None:
            progress(count, len(programs))
    return Readings(board, values)


def _output(name: str, command: Sequence[str], timeout_s: float) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise UserError(f"{name}: expected readings within {timeout_s:g} s, found none") from None
    except OSError as err:
        raise UserError(f"{name}: expected a program that starts, found an error: {err}") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise UserError(f"{name}: expected readings, found an error: {lines[-1]}")
    return done.stdout


def parse_readings(name: str, text: str) -> Readings:
    """The device and the readings that program `name` printed; raises UserError for anything else."""
    device: dict[str, Any] = {}
    values: dict[str, tuple[float, str]] = {}
    for line in text.splitlines():
        try:
            item = json.loads(line)
        except ValueError:
            raise UserError(f"{name}: expected a JSON object on each line, found {line[:60]!r}") from None
        if not isinstance(item, dict):
            raise UserError(f"{name}: expected a JSON object on each line, found {line[:60]!r}")
        if "device" in item:
            device = item
        elif is_number(item.get("value")) and item["value"] > 0:
            values[str(item["name"])] = (float(item["value"]), str(item["unit"]))
        else:
            raise UserError(f"{name}: expected readings above 0, found {line[:60]!r}")
    if not device:
        raise UserError(f"{name}: expected a line that names the device, found none")
    return Readings(device, values)
