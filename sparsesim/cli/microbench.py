"""``sparsesim microbench``: parameters of this machine's GPU, measured into a hardware file."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparsesim.cli import options as opt
from sparsesim.cli.output import JsonTarget, add_row, progress, say, show_table, table
from sparsesim.errors import Problem, UserError

if TYPE_CHECKING:
    from sparsesim.hardware import GpuSpec
    from sparsesim.microbench import Fragment, Readings

__all__ = ["register"]

EXAMPLE = "Example: sparsesim microbench --gpu h100_pcie --out my_h100.toml"

Out = Annotated[
    str | None, typer.Option("--out", metavar="FILE", help="Write a hardware file (.toml) that extends the GPU.")
]
Index = Annotated[int, opt.integer("--device", "GPU, as CUDA counts them.")]
Seconds = Annotated[
    float, typer.Option("--seconds", metavar="S", help="How long each clock load lasts.", parser=opt.number)
]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("microbench", epilog=EXAMPLE)(microbench)


def microbench(
    gpu: opt.Gpu, out: Out = None, device: Index = 0, seconds: Seconds = 10.0, json: opt.Json = None
) -> None:
    """Measure instruction intervals, bandwidths, latencies, launch gaps and clocks of this machine's GPU.

    Compiles CUDA C++ with nvcc and runs it. Needs an NVIDIA GPU with its driver; changes no setting of it.
    """
    target = JsonTarget.parse(json)
    from sparsesim.calibrate import check_target
    from sparsesim.hardware import gpu_names, load_gpu
    from sparsesim.microbench import fragment_of, run_programs

    spec = load_gpu(gpu)
    if not 0.1 <= seconds <= 600.0:
        raise UserError(Problem.line("--seconds", "", "a time between 0.1 and 600", seconds))
    base = gpu
    if out is not None:
        check_target(Path(out), gpu)
        if gpu not in gpu_names():
            base = os.path.relpath(Path(gpu).absolute(), Path(out).absolute().parent)
    with progress("measuring") as report:
        readings = run_programs(spec.compute_capability, device, seconds, progress=report)
    fragment = fragment_of(readings, spec, base, datetime.now(UTC).date().isoformat())
    if out is not None:
        fragment.write(Path(out))
    data = {
        **readings.to_dict(),
        "extends": fragment.base,
        "values": [{"path": v.path, "value": v.value, "unit": v.unit, "note": v.note} for v in fragment.values],
    }
    if target.write(data):
        show(readings, fragment, spec)
        if out is not None:
            say(f"\nwrote {out}")


def show(readings: Readings, fragment: Fragment, gpu: GpuSpec) -> None:
    """Print the values beside those of the description, and the readings that no parameter holds."""
    from sparsesim.hardware.audit import audit

    known = {row.path: row for row in audit(gpu)}
    grid = table("parameter", "measured", "unit", f"{gpu.name}", "status", "from", right=("measured", f"{gpu.name}"))
    for value in fragment.values:
        row = known.get(value.path)
        before = "" if row is None or row.value is None else f"{row.value:g} {row.unit}"
        add_row(
            grid, value.path, f"{value.value:.5g}", value.unit, before, "" if row is None else row.status, value.note
        )
    show_table(str(readings.device["device"]), grid)
    say("\nother readings")
    for other in fragment.others:
        say(f"  {other}")
