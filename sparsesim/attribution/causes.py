"""The causes of lost speedup: what each is, what idealising it means, and where it shows.

The order is that of the bits of a coalition (see `launches`), nothing else depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparsesim.device.build import DEVICE_IDEALS

__all__ = ["CAUSES", "CLASSES", "MACHINE", "OWNER_CLASS", "Cause", "bit", "cause"]

#: first-principles classes
CLASSES = ("software", "tensor", "metadata", "smem", "l2", "dram", "occupancy", "launch", "power")


@dataclass(frozen=True)
class Cause:
    """One mechanism that can be idealised.

    counters : those of a launch (`LaunchResult.counters`, or the extra ones of `gemm`) that show it
    """

    id: str
    meaning: str
    idealised: str
    kind: str
    counters: tuple[str, ...]


CAUSES = (
    Cause(
        "pattern",
        "the datapath runs the pattern only as a less sparse one",
        "the datapath runs the pattern natively: gain M/N, N/M of the weight kept, its own metadata",
        "tensor",
        ("executed_macs",),
    ),
    Cause(
        "fallback",
        "the stack refuses the sparse path, so the op runs dense",
        "the sparse kernel runs as if the op were eligible, sides padded to what the stack needs; a pattern "
        "that the datapath lacks runs on an ideal datapath for it",
        "software",
        ("executed_macs",),
    ),
    Cause(
        "tile",
        "the dense library's heuristic, or the sparse stack, picks another kernel than a search of the library finds",
        "both runs on the kernel that a search finds; a sparse stack that searches has done so",
        "software",
        ("tensor_busy", "waves"),
    ),
    Cause(
        "metadata",
        "metadata bytes take part of the bandwidth of DRAM, L2 and shared memory",
        "metadata take no bytes",
        "metadata",
        ("metadata_bytes", "dram_read_bytes", "l2_read_bytes", "smem_read_bytes"),
    ),
    Cause(
        "decode",
        "the metadata decoder is slower than the datapath",
        "decoding takes no time",
        "metadata",
        ("decode_busy",),
    ),
    Cause(
        "waves",
        "the last wave leaves SMs idle: wave quantisation and tail",
        "every SM does its exact share of the tiles",
        "occupancy",
        ("waves",),
    ),
    Cause(
        "padding",
        "tiles reach beyond the matrix",
        "only the useful part of every tile is computed",
        "occupancy",
        ("padding",),
    ),
    Cause(
        "latency",
        "latency shows: prologue, epilogue, barriers, CTA start, cache and memory latency that nothing hides",
        "no serial cost per CTA or k-step, no latency",
        "occupancy",
        ("overhead_share",),
    ),
    Cause(
        "residency",
        "registers or shared memory let too few CTAs share an SM to hide latency",
        "as many CTAs per SM as give each sub-core four warps",
        "occupancy",
        ("ctas_per_sm",),
    ),
    Cause(
        "issue",
        "instructions issue slower than the datapath's nominal interval",
        "every instruction at the nominal interval, no other instructions",
        "tensor",
        ("tensor_busy", "issue_busy"),
    ),
    Cause(
        "operand",
        "the shared-memory port feeds the datapath too slowly; B is not compressed",
        "shared memory with free bandwidth",
        "smem",
        ("smem_busy",),
    ),
    Cause(
        "l2",
        "the L2 cache and the network to the SMs are too slow",
        "L2 with free bandwidth and no latency",
        "l2",
        ("l2_busy", "port_busy", "l2_read_bytes"),
    ),
    Cause(
        "dram",
        "device memory is too slow",
        "device memory with free bandwidth and no latency",
        "dram",
        ("dram_busy", "dram_read_bytes", "l2_hit_rate"),
    ),
    Cause(
        "launch",
        "launch costs of host and GPU: gaps, ramp, drain",
        "launches cost nothing",
        "launch",
        ("launch_us",),
    ),
    Cause(
        "conversion",
        "padding, transposes, pruning and other launches that the stack adds",
        "the op's own shape, no conversion",
        "software",
        ("macs", "added_us"),
    ),
    Cause(
        "power",
        "the board's power limit lowers the clock",
        "no power limit",
        "power",
        ("clock_mhz", "power_w"),
    ),
)

#: causes that act on a given launch; the others choose what is launched
MACHINE = (*DEVICE_IDEALS, "launch", "power")

#: class of each owner of SM-cycles in the cycle accounting
OWNER_CLASS = {
    "tensor": "tensor",
    "issue": "tensor",
    "decode": "metadata",
    "smem": "smem",
    "l2": "l2",
    "dram": "dram",
    "barrier": "occupancy",
    "prologue": "occupancy",
    "epilogue": "occupancy",
    "idle": "occupancy",
}

_INDEX = {item.id: i for i, item in enumerate(CAUSES)}


def bit(name: str) -> int:
    """The bit of a coalition's index that stands for cause `name`."""
    return 1 << _INDEX[name]


def cause(name: str) -> Cause:
    """The cause called `name`."""
    return CAUSES[_INDEX[name]]
