"""A kernel search that leaves out hopeless candidates finds what running all of them finds."""

import json
import random

import pytest

import sparsesim as ss
from sparsesim import lowering
from sparsesim.device.simulate import CLOCK_TOLERANCE, Device
from sparsesim.lowering import SEARCH_SLACK, NoKernelError
from sparsesim.protocol import Protocol
from sparsesim.simulator import Simulator
from sparsesim.workload import Gemm

GPUS = ("a100_pcie_80gb", "h100_pcie", "rtx4090", "b200", "orin_nano", "mi300x", "l4")
SHAPES = (
    (64, 64, 64), (512, 512, 512), (4096, 16, 4096), (1000, 520, 8200), (2048, 2048, 2048), (4096, 300, 14336),
    (256, 4096, 20480), (4096, 4096, 4096),
)  # fmt: skip
PROTOCOLS = (("kernel", "rotating", "free"), ("stream", "warm", "free"), ("graph", "cold", "free"))


def problems(gpu: str) -> list[tuple[Gemm, Protocol]]:
    """A fixed random choice of types, patterns and protocols for each shape."""
    chance = random.Random(gpu)
    found = []
    for m, n, k in SHAPES:
        dtype = chance.choice(("f16", "bf16", "i8", "e4m3", "tf32"))
        pattern = chance.choice(("2:4", "2:4", "1:4", "dense"))
        op = Gemm(name="x", m=m, n=n, k=k, dtype=dtype, pattern=pattern)
        found.append((op, Protocol.parse(*chance.choice(PROTOCOLS))))
    return found


@pytest.mark.parametrize("gpu", GPUS)
def test_a_search_finds_what_running_every_candidate_finds(gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = ss.load_gpu(gpu)
    runs = {}
    documents = {}
    for slack in (SEARCH_SLACK, float("inf")):
        monkeypatch.setattr(lowering, "SEARCH_SLACK", slack)
        found = []
        runs[slack] = 0
        for op, protocol in problems(gpu):
            simulator = Simulator(spec, baseline="search")
            try:
                found.append(json.dumps(simulator.gemm(op, protocol).to_dict()))
            except NoKernelError as error:
                found.append(str(error))
            runs[slack] += simulator.device.runs + simulator.library._scout.runs
        documents[slack] = found
    assert documents[SEARCH_SLACK] == documents[float("inf")]
    assert runs[SEARCH_SLACK] < runs[float("inf")]


@pytest.mark.parametrize("gpu", GPUS)
def test_no_launch_takes_less_than_its_least_time(gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ratios = []
    launch = Device.launch

    def both(self, kernel, operands, shape, conditions, *rest, **options):  # type: ignore[no-untyped-def]
        result = launch(self, kernel, operands, shape, conditions, *rest, **options)
        least = self.at_least(kernel, operands, shape, conditions)
        assert least > 0.0
        ratios.append(least / result.seconds)
        return result

    monkeypatch.setattr(Device, "launch", both)
    monkeypatch.setattr(lowering, "SEARCH_SLACK", float("inf"))
    for op, protocol in problems(gpu):
        try:
            Simulator(ss.load_gpu(gpu), baseline="search").gemm(op, protocol)
        except NoKernelError:
            continue
    assert len(ratios) > len(SHAPES)
    assert max(ratios) <= 1.0 + CLOCK_TOLERANCE
    # a bound that is far below every launch would turn none down
    assert max(ratios) > 0.9
