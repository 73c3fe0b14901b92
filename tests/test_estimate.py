"""The closed form of many shapes at once is that of each shape, to the last bit."""

import random

import numpy as np
import pytest

import sparsesim as ss
from sparsesim.device.simulate import Device
from sparsesim.kernels import splits
from sparsesim.kernels.estimate import estimate_cycles, estimate_shapes
from sparsesim.lowering import Library
from sparsesim.sparsity import Pattern
from sparsesim.workload import Gemm


@pytest.mark.parametrize("gpu", ["a100_pcie_80gb", "h100_pcie", "b200", "rtx4090"])
@pytest.mark.parametrize("pattern", [None, "2:4"])
def test_many_shapes_at_once_are_each_alone(gpu: str, pattern: str | None) -> None:
    spec = ss.load_gpu(gpu)
    library = Library(Device(spec))
    chance = random.Random(gpu)
    shapes = [tuple(2 ** chance.randrange(17) + chance.randrange(9) for _ in "mnk") for _ in range(40)]
    native = Pattern.parse(pattern) if pattern else None
    operands = library.operands(Gemm(name="x", m=64, n=64, k=64, dtype="f16", pattern=pattern or "dense"), native)
    in_l2 = np.array([chance.random() < 0.5 for _ in shapes])
    clock = spec.clock.max
    for batch in (1, 3):
        for candidate in library.candidates(operands, native is not None):
            for split in splits(candidate.kernel, "f16", 1 << 16):
                kernel = candidate.kernel.with_split(split)
                what = (spec, kernel, candidate.step, candidate.slots)
                found = estimate_shapes(*what, np.array(shapes), batch, clock, 2.0, in_l2)
                alone = [
                    estimate_cycles(*what, (*shape, batch), clock, 2.0, bool(hit))
                    for shape, hit in zip(shapes, in_l2, strict=True)
                ]
                assert found.tolist() == alone
