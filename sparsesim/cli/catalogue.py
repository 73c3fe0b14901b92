"""``sparsesim gpus``, ``workloads`` and ``stacks``: what is packaged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from sparsesim.cli import options as opt
from sparsesim.cli.output import JsonTarget, add_row, show_table, table

if TYPE_CHECKING:
    from sparsesim.hardware import GpuSpec
    from sparsesim.stacks import Stack

__all__ = ["register", "stack_record"]


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.command("gpus", epilog="Example: sparsesim gpus --json -")(gpus)
    app.command("workloads", epilog="Example: sparsesim workloads")(workloads)
    app.command("stacks", epilog="Example: sparsesim stacks")(stacks)


def gpus(json: opt.Json = None) -> None:
    """List the packaged GPUs."""
    target = JsonTarget.parse(json)
    from sparsesim.hardware import gpu_names, load_gpu

    records = [_gpu_record(load_gpu(name)) for name in gpu_names()]
    if not target.write({"gpus": records}):
        return
    numbers = ("SMs", "MHz", "L2 MB", "GB", "GB/s")
    grid = table("name", "title", "cc", *numbers, "sparse patterns", right=numbers)
    for item in records:
        patterns: dict[str, list[str]] = {}
        for dtype, names in item["native_patterns"].items():
            patterns.setdefault(", ".join(names), []).append(dtype)
        add_row(
            grid,
            item["name"],
            item["title"] + (" (hypothetical)" if item["hypothetical"] else ""),
            item["compute_capability"],
            str(item["sms"]),
            f"{item['boost_mhz']:.0f}",
            f"{item['l2_bytes'] / 1e6:.1f}",
            f"{item['memory_bytes'] / 1e9:.0f}",
            f"{item['dram_bytes_per_s'] / 1e9:.0f}",
            "; ".join(f"{names} of {' '.join(dtypes)}" for names, dtypes in patterns.items() if names) or "none",
        )
    show_table("Packaged GPUs", grid)


def _gpu_record(spec: GpuSpec) -> dict[str, Any]:
    """What tells one GPU from another, in canonical units."""
    return {
        "name": spec.name,
        "title": spec.title,
        "family": spec.family,
        "compute_capability": spec.compute_capability,
        "hypothetical": spec.hypothetical,
        "sms": spec.sm.count,
        "boost_mhz": spec.clock.boost / 1e6,
        "l2_bytes": spec.l2.bytes,
        "memory_bytes": spec.dram.bytes,
        "dram_bytes_per_s": spec.dram.bytes_per_s,
        "native_patterns": {key: list(names) for key, names in spec.tensor.native_patterns.items()},
    }


def workloads(json: opt.Json = None) -> None:
    """List the packaged workloads."""
    target = JsonTarget.parse(json)
    from sparsesim.workload import load_workload, workload_names

    records: list[dict[str, Any]] = []
    for name in workload_names():
        loaded = load_workload(name)
        phases: dict[str, list[str]] = {}
        for phase in filter(None, loaded.phases()):
            kind, _, tokens = phase.rpartition("-")
            phases.setdefault(kind, []).append(tokens)
        records.append(
            {
                "name": name,
                "description": loaded.description,
                "source": loaded.source,
                "ops": len(loaded.ops),
                "phases": phases,
            }
        )
    if not target.write({"workloads": records}):
        return
    grid = table("name", "ops", "phases", "description", right=("ops",))
    for item in records:
        listed = "\n".join(f"{kind} {' '.join(tokens)}" for kind, tokens in item["phases"].items())
        add_row(grid, item["name"], str(item["ops"]), listed, item["description"])
    show_table("Packaged workloads", grid)


def stacks(json: opt.Json = None) -> None:
    """List the software stacks."""
    target = JsonTarget.parse(json)
    from sparsesim.stacks import get_stack, stack_names

    records = [stack_record(get_stack(name)) for name in stack_names()]
    if not target.write({"stacks": records}):
        return
    grid = table("name", "title", "versions", "ineligible", "kernel choice", "rules", right=("rules",))
    for item in records:
        known = f"{item['versions'][0]} to {item['versions'][-1]}, {item['version']} taken" if item["versions"] else ""
        rules = str(len(item["rules"]))
        add_row(grid, item["name"], item["title"], known, item["treatment"], item["policy"], rules)
    show_table("Software stacks", grid)


def stack_record(stack: Stack) -> dict[str, Any]:
    """A stack as plain data, its rules in order."""
    return {
        "name": stack.name,
        "title": stack.title,
        "version": stack.version,
        "versions": list(stack.versions),
        "treatment": stack.treatment,
        "policy": stack.policy,
        "dense_stack": stack.dense_stack,
        "rules": [
            {
                "code": rule.code,
                "text": rule.text,
                "source": rule.source,
                "applies": rule.applies,
                "treatment": rule.treatment or stack.treatment,
            }
            for rule in stack.rules
        ],
    }
