"""Readings → a hardware file that extends the packaged one, each value with status ``measured``.

What a reading stands for is in the notes of the values. A reading that the model has no parameter for (the clock under
tensor load, which the power model has to predict) is kept in the file's comment and in the JSON.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sparsesim.errors import UserError
from sparsesim.hardware import GpuSpec, load_gpu
from sparsesim.microbench.programs import Readings

__all__ = ["Fragment", "Value", "fragment_of"]

#: instruction m16n8kK: MACs = 16 · 8 · K
M, N = 16, 8
#: dtype key → (dense K, sparse K) of the large instructions that are timed
DEPTHS = {"f16_f32": (16, 32), "f16_f16": (16, 32), "tf32": (8, 16), "i8": (32, 64), "e4m3_f32": (32, 64)}
#: a measured rate this far from the description's [share] is a rate of its own; nearer it is an issue ratio
RATE_BAND = 0.15
WGMMA_DENSE, WGMMA_N, WGMMA_K = "wgmma.interval.f16_f32.n256.k16", 256, 16


@dataclass(frozen=True)
class Value:
    """One parameter: dotted path, value in `unit`, and what it was computed from."""

    path: str
    value: float
    unit: str
    note: str


@dataclass(frozen=True)
class Fragment:
    """A hardware file in the making: the base it extends, its values, where they come from, other readings."""

    base: str
    title: str
    source: str
    values: tuple[Value, ...]
    others: tuple[str, ...]

    def text(self) -> str:
        """The TOML."""
        lines = [f"# {self.title}, with values measured by `sparsesim microbench`.", "#"]
        lines += [f"# {other}" for other in self.others]
        lines += ["", f"extends = {_quoted(self.base)}", f"title = {_quoted(self.title)}"]
        tables: dict[str, list[str]] = {}
        for value in self.values:
            table, _, field = value.path.rpartition(".")
            tables.setdefault(table, []).append(
                f"{field} = {{ value = {value.value:.6g}, unit = {_quoted(value.unit)}, source = "
                f'{_quoted(self.source)}, status = "measured", note = {_quoted(value.note)} }}'
            )
        for table, entries in tables.items():
            lines += ["", f"[{table}]", *entries]
        return "\n".join(lines) + "\n"

    def write(self, path: Path) -> None:
        """Write the file in one step, once it loads as a hardware file; raises UserError otherwise."""
        temporary = path.with_name(f".{path.stem[:100]}.{os.getpid()}.tmp.toml")
        try:
            try:
                temporary.write_text(self.text(), encoding="utf-8")
                load_gpu(temporary)
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as err:
            raise UserError(
                f"--out: expected a file that can be written, found {str(path)!r}: {err.strerror}"
            ) from None


def fragment_of(readings: Readings, gpu: GpuSpec, base: str, date: str) -> Fragment:
    """The values that `readings` give for `gpu`.

    Parameters
    ----------
    readings : Readings
    gpu : GpuSpec
        Description of the board; what readings cannot separate (ramp and drain of a launch) is taken from it.
    base : str
        What the file extends: a packaged name, or a path relative to the file.
    date : str
        Date of the readings.

    Raises
    ------
    UserError
        The readings are of another board than `gpu` describes.
    """
    board = readings.device
    if board["sms"] != gpu.sm.count or board["compute_capability"] != gpu.compute_capability:
        raise UserError(
            f"--gpu: expected a description of {board['device']} ({board['sms']} SMs, compute capability "
            f"{board['compute_capability']}), found {gpu.name} ({gpu.sm.count} SMs, {gpu.compute_capability})"
        )
    values = (*_tensor(readings, gpu), *_memory(readings, gpu), *_launch(readings, gpu), *_clock(readings, gpu))
    used = {name for value in values for name in value.note.split() if name in readings.values}
    others = tuple(
        f"{name} = {value:.6g} {unit}" for name, (value, unit) in readings.values.items() if name not in used
    )
    source = f"sparsesim microbench on {board['device']}, {date}"
    return Fragment(base, gpu.title, source, values, others)


def _tensor(readings: Readings, gpu: GpuSpec) -> Iterator[Value]:
    """Rates, ratios and floors of the tensor datapath."""
    own = gpu.tensor.generation == "mma"
    rates = gpu.tensor.macs_per_clk if own else gpu.tensor.legacy_macs_per_clk
    table = "macs_per_clk" if own else "legacy_macs_per_clk"
    measured: dict[str, float] = {}
    for key, (depth, _) in DEPTHS.items():
        name = f"mma.interval.{key}.k{depth}"
        interval = readings.get(name)
        if interval is None or key not in rates:
            continue
        measured[key] = gpu.sm.subcores * M * N * depth / interval
        if not own or abs(measured[key] / rates[key] - 1.0) > RATE_BAND:
            yield Value(f"tensor.{table}.{key}", round(measured[key], 1), "MAC/clk", f"{name} = {interval:.4g} clk")
    if own:
        yield from _issue_ratios(readings, gpu, measured)
        latency = readings.get("mma.latency.f16_f32.k16")
        if latency is not None:
            yield Value("tensor.latency", latency, "clk", "mma.latency.f16_f32.k16 of a dependent chain")
        return
    gain = _gain(readings, "f16_f32")
    if gain is not None:
        yield Value(
            "tensor.legacy_sparse_gain", gain, "-",
            "mma.interval.f16_f32.k16 over half of mma_sp.interval.f16_f32.k32 : rate of mma.sp over mma.sync",
        )  # fmt: skip
    interval = readings.get(WGMMA_DENSE)
    if interval is not None and gpu.tensor.generation == "wgmma":
        ideal = 64 * WGMMA_N * WGMMA_K / gpu.tensor.macs_per_clk["f16_f32"]
        yield _bounded(
            "tensor.dense_issue_ratio", interval / ideal, 1.0, "-",
            f"{WGMMA_DENSE} = {interval:.4g} clk over {ideal:g}, both operands in shared memory",
        )  # fmt: skip


def _gain(readings: Readings, key: str) -> float | None:
    """Rate of the large sparse instruction over that of the dense one: it does twice the MACs in its interval."""
    dense_k, sparse_k = DEPTHS[key]
    dense, sparse = readings.get(f"mma.interval.{key}.k{dense_k}"), readings.get(f"mma_sp.interval.{key}.k{sparse_k}")
    return None if dense is None or sparse is None else dense / sparse * (sparse_k / dense_k)


def _issue_ratios(readings: Readings, gpu: GpuSpec, measured: dict[str, float]) -> Iterator[Value]:
    dense, sparse = "mma.interval.f16_f32.k16", "mma_sp.interval.f16_f32.k32"
    interval = readings.get(dense)
    if interval is None or "f16_f32" not in measured:
        return
    known = gpu.tensor.macs_per_clk["f16_f32"]
    near = abs(measured["f16_f32"] / known - 1.0) <= RATE_BAND
    ideal = M * N * 16 * gpu.sm.subcores / (known if near else measured["f16_f32"])
    yield _bounded(
        "tensor.dense_issue_ratio", interval / ideal, 1.0, "-", f"{dense} = {interval:.4g} clk over {ideal:g}"
    )
    two = readings.get(sparse)
    if two is None:
        return
    yield _bounded("tensor.sparse_issue_ratio", two / ideal, 1.0, "-", f"{sparse} = {two:.4g} clk over {ideal:g}")
    small = readings.get("mma_sp.interval.f16_f32_small.k16")
    if small is not None:
        # a floor only if half the depth does not issue in half the time
        floor = small if small > 0.5 * two * (1.0 + RATE_BAND) else 0.0
        yield Value(
            "tensor.sparse_min_interval", floor, "clk",
            f"mma_sp.interval.f16_f32_small.k16 = {small:.4g} clk; no floor if near half of {two:.4g}",
        )  # fmt: skip


def _memory(readings: Readings, gpu: GpuSpec) -> Iterator[Value]:
    for name, path, unit in (
        ("smem.bandwidth", "smem.bytes_per_clk", "B/clk"),
        ("smem.latency", "smem.latency", "clk"),
        ("l2.bandwidth", "l2.bytes_per_clk", "B/clk"),
    ):
        value = readings.get(name)
        if value is not None:
            yield Value(path, value, unit, f"{name} reading")
    near, middle, far = (readings.get(f"l2.latency.p{share}") for share in (10, 50, 90))
    if near is not None and middle is not None and far is not None:
        several = gpu.l2.partitions > 1
        how = "of 2 MiB read by one SM" + ("" if several else "; one partition")
        yield Value("l2.latency_near", near if several else middle, "clk", f"l2.latency.p{10 if several else 50} {how}")
        yield Value("l2.latency_far", far if several else middle, "clk", f"l2.latency.p{90 if several else 50} {how}")
    rate = readings.get("dram.bandwidth_s")
    if rate is not None:
        share = rate / gpu.dram.bytes_per_s
        yield Value(
            "dram.achieved_fraction", min(share, 1.0), "-",
            f"dram.bandwidth_s = {rate / 1e9:.4g} GB/s over {gpu.dram.bytes_per_s / 1e9:.4g}",
        )  # fmt: skip
    miss, ghz = readings.get("dram.latency.p50"), readings.get("dram.latency.clock")
    if miss is not None and ghz is not None and middle is not None and miss > middle:
        yield Value(
            "dram.latency", (miss - middle) / ghz, "ns",
            f"dram.latency.p50 less l2.latency.p50 , {miss:.4g} - {middle:.4g} clk at dram.latency.clock {ghz:.4g} GHz",
        )  # fmt: skip


def _launch(readings: Readings, gpu: GpuSpec) -> Iterator[Value]:
    ends = (gpu.launch.ramp + gpu.launch.drain) * 1e6
    for name, path in (
        ("launch.stream_interval", "launch.stream_gap"),
        ("launch.graph_interval", "launch.graph_gap"),
        ("launch.event_pair", "launch.event_overhead"),
    ):
        value = readings.get(name)
        if value is not None:
            yield _bounded(
                path, value * 1e-3 - ends, 0.0, "us",
                f"{name} = {value * 1e-3:.4g} us less ramp and drain ( {ends:.3g} us of the file it extends)",
            )  # fmt: skip


def _clock(readings: Readings, gpu: GpuSpec) -> Iterator[Value]:
    value = readings.get("clock.light")
    # below base, something held the board back: no property of it, so it stays among the other readings
    if value is not None and value * 1e6 >= gpu.clock.base:
        yield Value("clock.max", value, "MHz", "clock.light reading, one SM busy")


def _bounded(path: str, value: float, least: float, unit: str, note: str) -> Value:
    """A value that the schema bounds below; a reading under the bound is written as it, and the note says so."""
    if value >= least:
        return Value(path, value, unit, note)
    return Value(path, least, unit, f"{note}; {value:.4g} came out, the least possible is {least:g}")


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in escaped) + '"'
