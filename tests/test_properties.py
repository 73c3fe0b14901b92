"""What holds for every GEMM: rooflines, faster parts, conserved bytes and cycles, fallback, repeatability."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparsesim.device.build import Shape
from sparsesim.device.simulate import Conditions, Device, LaunchResult
from sparsesim.hardware import GpuSpec, load_gpu
from sparsesim.kernels import Kernel, Operands, dense_kernels, sparse_kernels
from sparsesim.kernels.datapath import rate_key
from sparsesim.protocol import TIMINGS, Protocol
from sparsesim.results import GemmResult
from sparsesim.simulator import Simulator
from sparsesim.sparsity import Pattern
from sparsesim.workload import DTYPE_BYTES, Gemm

#: dtypes that the libraries have a dense kernel for
DTYPES = {
    "a100_pcie_80gb": ("f16", "bf16", "tf32", "i8"),
    "h100_pcie": ("f16", "bf16", "tf32", "i8", "e4m3"),
    "b200": ("f16", "bf16", "tf32", "i8", "e4m3", "e2m1"),
    "rtx4090": ("f16", "bf16", "tf32", "i8", "e4m3"),
    "hypothetical_nm": ("f16", "i8", "e4m3"),
    "t4": ("f16", "i8"),
}
PATTERNS = ("dense", "2:4", "1:2", "1:4", "2:8", "4:8", "2:4(pair 4:8)", "3:8", "2:12", "64:2:8")
#: multiples of all sides that every stack accepts, for the dtypes and patterns above
ALIGNED = 32

many = settings(
    max_examples=150, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
few = settings(many, max_examples=60)


@cache
def spec(gpu: str) -> GpuSpec:
    return load_gpu(gpu)


@cache
def simulator(gpu: str) -> Simulator:
    return Simulator(spec(gpu))


@dataclass(frozen=True)
class Case:
    gpu: str
    op: Gemm
    protocol: Protocol

    def run(self) -> GemmResult:
        return simulator(self.gpu).gemm(self.op, self.protocol)


any_size = st.one_of(st.integers(1, 4096), st.integers(0, 12).map(lambda e: 2**e))
aligned_size = st.integers(1, 4096 // ALIGNED).map(lambda x: ALIGNED * x)


@st.composite
def cases(draw: st.DrawFn, odd: bool = True) -> Case:
    """Any GPU, dtype, pattern and protocol; half of the shapes suit the libraries, all of them if not `odd`."""
    gpu = draw(st.sampled_from(sorted(DTYPES)))
    dtype = draw(st.sampled_from(DTYPES[gpu]))
    native = spec(gpu).tensor.native_patterns.get("f16" if dtype == "bf16" else dtype, ())
    pattern = draw(st.sampled_from((*PATTERNS, *native * 4)))
    side = any_size if odd and draw(st.booleans()) else aligned_size
    batch = draw(st.sampled_from((1, 1, 1, 3)))
    op = Gemm("op", draw(side), draw(side), draw(side), batch=batch, dtype=dtype, pattern=pattern)
    clock = draw(st.sampled_from((None, spec(gpu).clock.base)))
    l2 = draw(st.sampled_from(("cold", "rotating", "warm")))
    return Case(gpu, op, Protocol(draw(st.sampled_from(TIMINGS)), l2, clock))


def launches(result: GemmResult) -> Iterator[tuple[LaunchResult, float, float]]:
    """(launch, kept share of A, metadata bits per element of A) of a result's op and of its dense baseline."""
    yield result.dense_launch, 1.0, 0.0
    if result.path == "sparse":
        op, gpu = result.op, spec(result.gpu)
        decision = simulator(result.gpu).stack.decide(op, gpu)
        assert decision.native is not None
        kept = decision.native.kept_fraction
        yield result.launch, kept, kept * decision.native.metadata_bits_per_kept


def operand_bytes(op: Gemm, kept: float, meta_bits: float) -> float:
    size = DTYPE_BYTES[op.dtype]
    return op.batch * op.k * (op.m * (size * kept + meta_bits / 8) + op.n * size)


# --- roofline ---


def roofline_s(gpu: GpuSpec, op: Gemm, protocol: Protocol, kept: float, meta_bits: float) -> float:
    """Least time [s]: nominal tensor rate at the highest clock, or DRAM at its peak for what L2 cannot hold."""
    rate = gpu.tensor.macs_per_clk[rate_key(op.dtype, op.accumulator)]
    macs = op.m * op.n * op.k * op.batch * kept
    compute = macs / (rate * gpu.sm.count * gpu.clock.max)
    read = operand_bytes(op, kept, meta_bits)
    written = op.m * op.n * op.batch * 1.0  # at least one byte per element
    spilled = max(read + written - gpu.l2.bytes - gpu.dram.write_queue, 0.0)
    compulsory = spilled if protocol.l2 == "warm" else max(read, spilled)
    return max(compute, compulsory / gpu.dram.bytes_per_s)


@many
@given(cases())
def test_never_below_the_roofline(case: Case) -> None:
    result = case.run()
    gpu = spec(case.gpu)
    for launch, kept, meta_bits in launches(result):
        assert launch.seconds >= roofline_s(gpu, case.op, case.protocol, kept, meta_bits)
        assert gpu.clock.min <= launch.clock_hz <= (case.protocol.locked_hz or gpu.clock.max)
    assert result.time_us >= result.launch.seconds * 1e6
    assert result.dense_time_us >= result.dense_launch.seconds * 1e6


@pytest.mark.parametrize("gpu", DTYPES)
@pytest.mark.parametrize(("m", "n", "k"), [(64, 64, 2**20), (4096, 64, 65536), (65536, 4096, 64), (16384, 16384, 32)])
def test_extreme_shapes_are_not_below_the_roofline(gpu: str, m: int, n: int, k: int) -> None:
    case = Case(gpu, Gemm("op", m, n, k, dtype="f16", pattern="2:4"), Protocol(l2="cold"))
    for launch, kept, meta_bits in launches(case.run()):
        assert launch.seconds >= roofline_s(spec(gpu), case.op, case.protocol, kept, meta_bits)


# --- faster parts ---


def part(gpu: GpuSpec, section: str, **values: float) -> GpuSpec:
    return gpu.model_copy(update={section: getattr(gpu, section).model_copy(update=values)})


def faster_parts(gpu: GpuSpec, factor: float) -> Iterator[tuple[str, GpuSpec]]:
    """The GPU with one part made faster."""
    l2 = gpu.l2
    yield "dram", part(gpu, "dram", bytes_per_s=gpu.dram.bytes_per_s * factor)
    wider = {"bytes_per_clk": l2.bytes_per_clk * factor, "fabric_bytes_per_clk": l2.fabric_bytes_per_clk * factor}
    yield "l2", part(gpu, "l2", **wider)
    yield "sm port", part(gpu, "l2", sm_bytes_per_clk=l2.sm_bytes_per_clk * factor)
    yield "smem", part(gpu, "smem", bytes_per_clk=gpu.smem.bytes_per_clk * factor)
    if gpu.metadata.groups_per_clk:
        yield "decoder", part(gpu, "metadata", groups_per_clk=gpu.metadata.groups_per_clk * factor)


@dataclass(frozen=True)
class Change:
    """What a faster part did to a launch: relative change of its time."""

    what: str
    change: float
    orderly: bool
    case: tuple[object, ...]


def changes(seeds: range, one_cta_per_sm: bool) -> Iterator[Change]:
    """Random fixed kernels on random GEMMs: every part 1.1x and 2x faster, and the locked clock higher."""
    simulators: dict[object, Simulator] = {}
    for seed in seeds:
        rng = Random(seed)
        name = rng.choice(sorted(DTYPES))
        gpu = spec(name)
        if one_cta_per_sm:
            gpu = part(gpu, "sm", max_ctas=1)
        dtype = rng.choice(DTYPES[name])
        pattern = rng.choice((None, *gpu.tensor.native_patterns.get("f16" if dtype == "bf16" else dtype, ())))
        native = Pattern.parse(pattern) if pattern else None
        m, n, k = (rng.randint(1, 4096) if rng.random() < 0.5 else int(2 ** rng.uniform(0, 12)) for _ in range(3))
        op = Gemm("op", m, n, k, dtype=dtype, pattern=pattern or "dense")
        base = simulators.setdefault(name, Simulator(gpu))
        found = base.library.candidates(base.library.operands(op, native), native is not None)
        kernel = rng.choice(found).kernel
        l2 = rng.choice(("cold", "warm"))

        def time(
            simulator: Simulator, clock: float, op: Gemm = op, native: Pattern | None = native,
            kernel: Kernel = kernel, l2: str = l2,
        ) -> tuple[float, LaunchResult]:  # fmt: skip
            return simulator.time_kernel(op, native, kernel, Protocol("kernel", l2, clock))

        before, launch = time(base, gpu.clock.base)
        footprint = operand_bytes(op, 1.0, 0.0) + m * n * 4
        orderly = launch.slots == 1 and footprint <= gpu.l2.usable_bytes
        case = (seed, name, op, kernel.name, l2)
        for factor in (1.1, 2.0):
            for what, faster in faster_parts(gpu, factor):
                other = simulators.setdefault((name, what, factor), Simulator(faster))
                yield Change(what, time(other, gpu.clock.base)[0] / before - 1, orderly, (*case, factor))
            clock = min(gpu.clock.base * (1 + 0.2 * (factor - 1)), gpu.clock.max)
            yield Change("clock", time(base, clock)[0] / before - 1, orderly, (*case, factor))


def test_a_faster_part_is_never_slower() -> None:
    """Strictly where the event loop has no anomaly: one CTA per SM, and everything fits in L2."""
    count: dict[str, int] = defaultdict(int)
    for change in changes(range(250), one_cta_per_sm=True):
        if change.orderly:
            assert change.change <= 0.01, change
            count[change.what] += 1
    assert min(count.values()) > 15, count
    assert set(count) == {"dram", "l2", "sm port", "smem", "decoder", "clock"}


def test_a_faster_part_is_hardly_ever_slower() -> None:
    """With several CTAs per SM the order of list scheduling changes, and with it who gets the last CTA.

    Such anomalies (Graham 1966) are real, and so is another draw of the random replacement in L2; both must stay
    rare and small: above 1 % in less than 1 % of cases, never above 25 %, and no gain in the mean turns into a loss.
    """
    found: dict[str, list[Change]] = defaultdict(list)
    for change in changes(range(1000, 1250), one_cta_per_sm=False):
        found[change.what].append(change)
    assert set(found) == {"dram", "l2", "sm port", "smem", "decoder", "clock"}
    for what, all_changes in found.items():
        worst = max(all_changes, key=lambda change: change.change)
        assert worst.change < 0.25, worst
        late = [change for change in all_changes if change.change > 0.01]
        assert len(late) <= 0.01 * len(all_changes), (what, late)
        assert sum(change.change for change in all_changes) <= 0


def test_decoders_can_be_the_limit() -> None:
    """The property above is not empty: time falls with the decoders' work until they are hidden."""
    gpu = spec("hypothetical_nm")
    op = Gemm("op", 2048, 2048, 2048, dtype="i8", pattern="1:4")
    native = Pattern.parse(op.pattern)
    kernels = sparse_kernels(gpu, Operands.of(gpu, "i8", "i32", native))
    kernel = next(kernel for kernel in kernels if (kernel.tile_m, kernel.tile_n) == (256, 128))
    protocol = Protocol(l2="warm", locked_hz=gpu.clock.base)

    def run(groups_per_clk: float) -> LaunchResult:
        faster = part(gpu, "metadata", groups_per_clk=groups_per_clk)
        return Simulator(faster).time_kernel(op, native, kernel, protocol)[1]

    slow, medium, fast, faster, fastest = (run(rate) for rate in (8.0, 16.0, 32.0, 64.0, 1024.0))
    assert slow.bound_by == "decode"
    assert fastest.bound_by != "decode"
    assert slow.seconds > 1.8 * medium.seconds
    assert slow.seconds - medium.seconds == pytest.approx(2 * (medium.seconds - fast.seconds), rel=0.01)
    assert fast.seconds > 1.3 * faster.seconds
    assert faster.seconds == fastest.seconds


# --- dense patterns ---


@few
@given(cases(), st.sampled_from(("4:4", "1:1", "8:8", "DENSE")))
def test_a_dense_pattern_equals_no_pattern(case: Case, pattern: str) -> None:
    gpu = spec(case.gpu)
    plain = Simulator(gpu).gemm(replace(case.op, pattern="dense"), case.protocol)
    other = Simulator(gpu).gemm(replace(case.op, pattern=pattern), case.protocol)
    assert json.dumps(plain.to_dict()) == json.dumps(other.to_dict())
    assert (plain.path, plain.reason, plain.speedup, plain.nominal_speedup) == ("dense", "dense-weight", 1, 1)
    assert Operands.of(gpu, case.op.dtype, case.op.accumulator, Pattern.parse(pattern)) == Operands.of(
        gpu, case.op.dtype, case.op.accumulator, None
    )


# --- conservation ---


@many
@given(cases())
def test_bytes_are_conserved(case: Case) -> None:
    """DRAM to L2 to shared memory; a cluster or a pair shares what it reads, at most as many times as it has CTAs."""
    for launch, kept, meta_bits in launches(case.run()):
        kernel, c = launch.kernel, launch.counters
        shared = max(kernel.cluster_m, kernel.cluster_n) * (2 if kernel.pair else 1)
        # the kernel that reduces split-K partials reads them from L2, too
        read, hit, fill = c["l2_read_bytes"] - c["partial_bytes"], c["l2_hit_bytes"], c["smem_fill_bytes"]
        tiles_m, tiles_n = kernel.tiles(case.op.m, case.op.n)
        k_steps = kernel.k_steps(case.op.k)
        # a slab's bytes are whole numbers: half a byte of each is lost or won
        rounding = 0.5 * case.op.batch * k_steps * (tiles_m + tiles_n)
        loads = 2 * case.op.batch * k_steps * tiles_m * tiles_n
        assert 0 <= hit <= c["l2_read_bytes"]
        assert read <= fill + loads
        assert fill <= shared * (read + loads)
        assert hit + c["dram_read_bytes"] >= c["l2_read_bytes"] * (1 - 1e-9)
        assert c["dram_read_bytes"] <= shared * (c["l2_read_bytes"] + loads)
        if shared == 1:
            assert read == pytest.approx(fill)
            assert hit + c["dram_read_bytes"] == pytest.approx(c["l2_read_bytes"])
        compulsory = operand_bytes(case.op, kept, meta_bits) - rounding
        if case.protocol.l2 != "warm" and not launch.extrapolated:
            assert c["dram_read_bytes"] >= compulsory * (1 - 1e-9)
        assert fill >= compulsory * (1 - 1e-9)
        assert c["metadata_bytes"] <= read
        if meta_bits == 0:
            assert c["metadata_bytes"] == 0
        assert c["l2_write_bytes"] >= case.op.m * case.op.n * case.op.batch - rounding
        assert (c["partial_bytes"] == 0) == (kernel.split_k == 1 or kernel.k_steps(case.op.k) == 1)
        assert c["executed_macs"] == pytest.approx(case.op.m * case.op.n * case.op.k * case.op.batch * kept)
        assert c["padded_macs"] >= c["macs"] * (1 - 1e-12)


@many
@given(cases())
def test_every_sm_cycle_has_one_owner(case: Case) -> None:
    for launch, _, _ in launches(case.run()):
        assert sum(launch.owners.values()) == pytest.approx(launch.cycles * launch.sms, rel=1e-9)
        assert min(launch.owners.values()) >= 0
        for server in ("tensor", "smem", "decode", "issue", "port", "l2"):
            assert 0 <= launch.counters[f"{server}_busy"] <= 1 + 1e-9


@pytest.mark.parametrize(
    ("gpu", "m", "n", "k"),
    [("a100_pcie_80gb", 64, 64, 2**20), ("rtx4090", 256, 128, 300_000), ("h100_pcie", 16384, 8192, 1024)],
)
def test_extrapolated_cycles_have_owners_too(gpu: str, m: int, n: int, k: int) -> None:
    device = simulator(gpu)
    op = Gemm("op", m, n, k, dtype="f16")
    kernel = list(dense_kernels(device.gpu, device.library.operands(op, None)))[-3]
    _, launch = device.time_kernel(op, None, kernel, Protocol())
    assert launch.extrapolated
    assert sum(launch.owners.values()) == pytest.approx(launch.cycles * launch.sms, rel=1e-9)


# --- fallback ---


@many
@given(cases())
def test_a_fallback_gains_nothing(case: Case) -> None:
    result = case.run()
    if result.path == "dense":
        assert result.speedup == 1.0
        assert result.launch is result.dense_launch
        assert result.reason_text
    else:
        assert result.reason == "eligible"
        assert result.launch.kernel.sparse
    assert not result.dense_launch.kernel.sparse


@many
@given(cases(odd=False), st.data())
def test_k_that_is_no_multiple_of_m_falls_back(case: Case, data: st.DataObject) -> None:
    gpu = spec(case.gpu)
    eligible = simulator(case.gpu).stack.decide(case.op, gpu).path == "sparse"
    if not eligible:
        return
    group = Pattern.parse(case.op.pattern).group
    k = data.draw(st.integers(ALIGNED, 4096).filter(lambda k: k % group))
    op = replace(case.op, k=k)
    result = simulator(case.gpu).gemm(op, case.protocol)
    assert (result.path, result.reason, result.speedup) == ("dense", "shape-alignment", 1.0)
    assert f"k = {k}" in result.reason_text


def test_aligned_k_that_is_no_multiple_of_m_falls_back() -> None:
    """2:12 runs as 2:4, and 64 suits the library, but is no multiple of 12."""
    device = simulator("a100_pcie_80gb")
    ran = device.gemm(Gemm("op", 256, 256, 192, dtype="f16", pattern="2:12"))
    fell = device.gemm(Gemm("op", 256, 256, 64, dtype="f16", pattern="2:12"))
    assert (ran.path, fell.path, fell.reason) == ("sparse", "dense", "shape-alignment")
    assert fell.reason_text.endswith("k = 64 is no multiple of the pattern's 12")


def test_the_cases_reach_both_paths_on_every_gpu() -> None:
    """The properties above are not empty."""
    reached: set[tuple[str, str]] = set()

    @many
    @given(cases())
    def collect(case: Case) -> None:
        reached.add((case.gpu, simulator(case.gpu).stack.decide(case.op, spec(case.gpu)).path))

    collect()
    assert reached == {(gpu, path) for gpu in DTYPES for path in ("dense", "sparse")} - {("t4", "sparse")}


# --- repeatability ---


@few
@given(st.lists(cases(), min_size=1, max_size=3))
def test_two_runs_are_byte_identical(some: list[Case]) -> None:
    """Fresh simulators, in either order: nothing that was simulated before changes a result."""

    def records(ordered: list[Case]) -> dict[Case, str]:
        fresh = {case.gpu: Simulator(spec(case.gpu)) for case in ordered}
        return {case: json.dumps(fresh[case.gpu].gemm(case.op, case.protocol).to_dict()) for case in ordered}

    first = records(some)
    assert first == records(some) == records(some[::-1])
    assert first == {case: json.dumps(case.run().to_dict()) for case in some}


PROGRAM = """
import json
import sparsesim as ss
for name in ("a100_pcie_80gb", "h100_pcie", "hypothetical_nm"):
    result = ss.simulate_gemm(ss.load_gpu(name), 1000, 777, 2048, dtype="i8", pattern="2:4")
    print(json.dumps(result.to_dict()))
"""


def test_two_processes_are_byte_identical() -> None:
    """Whatever the hash seed."""
    first, second = (
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            timeout=120,
        ).stdout
        for seed in ("1", "2")
    )
    assert first == second
    assert len(first.splitlines()) == 3


# --- extrapolation ---

DRIFT = pytest.mark.xfail(
    strict=True,
    reason="0.81 % short: SMs settle in different rates (the two CTAs of one are 1600 or 2700 cycles apart) and drift "
    "apart by 0.9 thousand cycles per wave, less than the CTA of 66 thousand that would even it out: 59.5 thousand of "
    "tail after 64 waves, where the 24 waves that are simulated, and continued at the mean rate, have 22.4 thousand",
)
EXTRAPOLATED = [
    ("a100_pcie_80gb", None, "128x128_64x3"),
    ("a100_pcie_80gb", "2:4", "128x128_64x3"),
    ("h100_pcie", None, "128x128_64x6"),
    ("b200", None, "256x128_64x8"),
    ("b200", None, "128x128_64x6"),
    ("rtx4090", None, "128x256_32x3"),
    ("rtx4090", "2:4", "128x128_64x3"),
    ("hypothetical_nm", None, "64x128_64x3"),
    ("hypothetical_nm", "2:4", "128x128_64x3"),
    pytest.param("hypothetical_nm", None, "128x128_32x3", marks=DRIFT),
    ("t4", None, "256x128_32x2"),
]


@pytest.mark.parametrize(("name", "pattern", "tile"), EXTRAPOLATED)
def test_extrapolation_agrees_with_the_full_run(name: str, pattern: str | None, tile: str) -> None:
    gpu = spec(name)
    shape = Shape(16384, 16384, 2048)
    operands = Operands.of(gpu, "f16", "f32", Pattern.parse(pattern) if pattern else None)
    kernels = (sparse_kernels if pattern else dense_kernels)(gpu, operands)
    kernel = next(kernel for kernel in kernels if f"_{tile}" in kernel.name)
    conditions = Conditions(locked_hz=gpu.clock.base)
    full = Device(gpu, step_budget=10**9).launch(kernel, operands, shape, conditions)
    short = Device(gpu).launch(kernel, operands, shape, conditions)
    assert short.extrapolated
    assert not full.extrapolated
    assert short.seconds == pytest.approx(full.seconds, rel=0.005)
    assert short.power_w == pytest.approx(full.power_w, rel=0.02)
    assert sum(short.owners.values()) == pytest.approx(short.cycles * short.sms, rel=1e-9)
