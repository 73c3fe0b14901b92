"""Op → launch: the stack decides the path, the library's policy picks the kernel, the device runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from sparsesim.device.build import Shape
from sparsesim.device.simulate import Conditions, Device, LaunchResult
from sparsesim.hardware import GpuSpec
from sparsesim.kernels import (
    Kernel,
    KStep,
    Operands,
    dense_kernels,
    kstep,
    occupancy,
    sparse_kernels,
    splits,
    stage_bytes,
)
from sparsesim.kernels.datapath import rate_key
from sparsesim.kernels.estimate import estimate_cycles
from sparsesim.sparsity import Pattern
from sparsesim.workload import Gemm

__all__ = ["POLICIES", "Library", "NoKernelError", "shape_of"]

#: how a library picks a kernel: by its estimate alone, or by trying the best of them
POLICIES = ("heuristic", "search")
#: of a stack also: the first kernel of its list that fits, as an algorithm given by number
FIRST = "first"

#: candidates that a search simulates: those estimated within this factor of the best, at most so many
SEARCH_MARGIN = 1.25
SEARCH_LIMIT = 5
#: estimates this near are level
LEVEL = 1.02
#: CTA k-steps spent on each candidate of a search; the winner is then run in full
SEARCH_BUDGET = 60_000
SEARCH_WAVES = 5
#: a candidate whose least time exceeds the best found by more than this is not run: a launch settles its clock to
#: `CLOCK_TOLERANCE`, and extrapolated ones undercut their least time by some 1e-4
SEARCH_SLACK = 1.005


class NoKernelError(ValueError):
    """The library has no kernel of the wanted kind that fits on the GPU."""


def shape_of(op: Gemm, out_bytes: float) -> Shape:
    """The launch shape of an op whose output takes `out_bytes` per element."""
    return Shape(op.m, op.n, op.k, op.batch, out_bytes)


@dataclass(frozen=True)
class _Candidate:
    kernel: Kernel
    step: KStep
    known_step: KStep
    slots: int


class Library:
    """Kernels of the dense and the sparse library on one device, and the policies that pick among them.

    weight_bits : bits of one stored weight where the kernels unpack it in registers (w4a16: 4); None = the op's type
    """

    def __init__(self, device: Device, weight_bits: int | None = None) -> None:
        self.device = device
        self.weight_bits = weight_bits
        self._scout = Device(device.gpu, SEARCH_BUDGET, SEARCH_WAVES, memory=device.memory)
        self._candidates: dict[tuple[object, ...], tuple[_Candidate, ...]] = {}

    def operands(self, op: Gemm, native: Pattern | None) -> Operands:
        """What `op`'s operands look like on the dense path (native None) or as `native`."""
        found = Operands.of(self.device.gpu, op.dtype, op.accumulator, native)
        if self.weight_bits is None:
            return found
        return replace(found, kept=found.kept * self.weight_bits / (8 * found.bytes_per_element))

    def candidates(
        self, operands: Operands, sparse: bool, kernels: tuple[Kernel, ...] | None = None
    ) -> tuple[_Candidate, ...]:
        """Those of `kernels` (None: the library's own) that fit, without split-K, with k-step costs and residency."""
        key = (operands, sparse, kernels)
        if key not in self._candidates:
            gpu = self.device.gpu
            known = rate_key(operands.dtype, operands.acc_dtype) in gpu.tensor.macs_per_clk
            if operands.dtype == "bf16" and not gpu.tensor.bf16:
                known = False
            if not known:
                raise NoKernelError(
                    f"{operands.dtype} (accumulating in {operands.acc_dtype}) has no tensor-core path on {gpu.name}"
                )
            knows = rate_key(operands.dtype, operands.acc_dtype) in gpu.tuned_for.tensor.macs_per_clk
            tuned_for = gpu.tuned_for if knows else gpu
            found: Iterable[Kernel] = (sparse_kernels if sparse else dense_kernels)(gpu, operands)
            if kernels is not None:
                found = [item for item in kernels if occupancy(gpu, item, stage_bytes(item, operands)).ctas > 0]
            self._candidates[key] = tuple(
                _Candidate(
                    kernel,
                    kstep(gpu, kernel, operands),
                    kstep(tuned_for, kernel, operands),
                    1 if kernel.persistent else occupancy(gpu, kernel, stage_bytes(kernel, operands)).ctas,
                )
                for kernel in found
            )
        return self._candidates[key]

    def run(
        self,
        operands: Operands,
        shape: Shape,
        conditions: Conditions,
        policy: str,
        accept: Callable[[Kernel], bool] | None = None,
        kernels: tuple[Kernel, ...] | None = None,
    ) -> LaunchResult:
        """Pick a kernel by `policy` ("search", "heuristic" or "first") and run it.

        `accept` restricts the choice (a measured row that names its tile), `kernels` replaces the library's own.
        Raises NoKernelError if nothing fits.
        """
        sparse = operands.gain > 1.0
        if policy == FIRST:
            for candidate in self.candidates(operands, sparse, kernels):
                return self.device.launch(candidate.kernel, operands, shape, conditions)
            raise NoKernelError(f"no kernel of the stack for {operands.dtype} fits on {self.device.gpu.name}")
        ranked = self._rank(operands, shape, conditions, sparse, policy, accept, kernels)
        if policy == "heuristic" or len(ranked) == 1:
            return self.device.launch(ranked[0], operands, shape, conditions)
        best = self._search(ranked, operands, shape, conditions)
        return self.device.launch(best.kernel, operands, shape, conditions, clock_guess=best.clock_hz)

    def _search(self, ranked: list[Kernel], operands: Operands, shape: Shape, conditions: Conditions) -> LaunchResult:
        """Run of the fastest of `ranked` on the scout, the first of equals.

        Those whose least time is above the best that was seen are not run: the result is that of running all.
        """
        reduction = [self._reduction_s(self.device.gpu, kernel) for kernel in ranked]
        least = [
            self._scout.at_least(kernel, operands, shape, conditions) + extra
            for kernel, extra in zip(ranked, reduction, strict=True)
        ]
        found: list[tuple[float, int, LaunchResult]] = []
        for place in sorted(range(len(ranked)), key=lambda place: (least[place], place)):
            if found and least[place] > min(found)[0] * SEARCH_SLACK:
                break  # as all that follow
            launch = self._scout.launch(ranked[place], operands, shape, conditions)
            found.append((launch.seconds + reduction[place], place, launch))
        return min(found)[2]

    @staticmethod
    def _reduction_s(gpu: GpuSpec, kernel: Kernel) -> float:
        """Launch cost [s] of the kernel that reduces split-K partials."""
        launch = gpu.launch
        return launch.ramp + launch.drain + launch.stream_gap if kernel.split_k > 1 else 0.0

    def _rank(
        self,
        operands: Operands,
        shape: Shape,
        conditions: Conditions,
        sparse: bool,
        policy: str,
        accept: Callable[[Kernel], bool] | None,
        kernels: tuple[Kernel, ...] | None = None,
    ) -> list[Kernel]:
        gpu = self.device.gpu
        # a search runs on the board as it is; a heuristic knows the board that the library was built for
        known = gpu if policy == "search" else gpu.tuned_for
        clock = conditions.locked_hz or known.clock.max
        size = (shape.m, shape.n, shape.k, shape.batch)
        operand_bytes = operands.bytes_per_element * shape.batch * shape.k * (shape.m * operands.kept + shape.n)
        in_l2 = conditions.l2 == "warm" and operand_bytes + shape.m * shape.n * shape.out_bytes <= gpu.l2.usable_bytes
        scored = []
        for candidate in self.candidates(operands, sparse, kernels):
            if accept is not None and not accept(candidate.kernel):
                continue
            if shape.m * shape.n * shape.batch < candidate.kernel.min_outputs * gpu.sm.count:
                continue
            for split_k in splits(candidate.kernel, operands.dtype, shape.k):
                kernel = candidate.kernel.with_split(split_k)
                cycles = estimate_cycles(
                    known, kernel, candidate.step if known is gpu else candidate.known_step, candidate.slots,
                    size, clock, shape.out_bytes, in_l2,
                    heuristic=policy == "heuristic",
                )  # fmt: skip
                cycles += self._reduction_s(known, kernel) * clock
                scored.append((cycles, kernel.name, kernel))
        if not scored:
            raise NoKernelError(f"no {'sparse' if sparse else 'dense'} kernel for {operands.dtype} fits on {gpu.name}")
        scored.sort(key=lambda item: item[:2])
        # of kernels that promise the same, as where DRAM is the bound, a persistent library takes the largest tile
        level = [kernel for cycles, _, kernel in scored if cycles <= scored[0][0] * LEVEL and kernel.persistent]
        largest = max(level, key=lambda kernel: (kernel.tile_m * kernel.tile_n, -kernel.split_k), default=scored[0][2])
        if policy == "heuristic":
            return [largest]
        limit = scored[0][0] * SEARCH_MARGIN
        best = [kernel for cycles, _, kernel in scored[:SEARCH_LIMIT] if cycles <= limit]
        return best if largest in best else [*best, largest]
