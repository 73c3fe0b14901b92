"""The CUDA side without a GPU: error words, NVML's masks; and, where PyTorch is installed, its operators and maths."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from sparsesim.backends.nvml import Sensors, reasons_of
from sparsesim.measure import Case, DeviceLostError, KernelError, OutOfMemoryError, UnsupportedError
from sparsesim.measure.telemetry import REASONS

#: operator → (arguments that `sparsesim.backends.cuda` passes, in order, then by name)
OPERATORS = {
    "_cslt_compress": ("input",),
    "_cslt_sparse_mm": ("compressed_A", "dense_B", "out_dtype", "alg_id"),
    "_cslt_sparse_mm_search": ("compressed_A", "dense_B", "out_dtype"),
    "_sparse_semi_structured_mm": ("mat1", "mat1_meta", "mat2", "out_dtype"),
    "_scaled_mm": ("self", "mat2", "scale_a", "scale_b", "out_dtype", "out"),
    "_int_mm": ("self", "mat2", "out"),
    "mm": ("self", "mat2", "out"),
    "addmm": ("self", "mat1", "mat2"),
}


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="needs PyTorch (pip install 'sparsesim[cuda]')")


def test_nvml_masks():
    assert reasons_of(0x1) == frozenset()  # idle
    assert reasons_of(0x4 | 0x20) == {"power-cap", "thermal"}
    assert reasons_of(0x8 | 0x40 | 0x80) <= set(REASONS)


def fake_nvml(monkeypatch, **functions):
    class NVMLError(Exception):
        pass

    def refuse(*arguments):
        raise NVMLError

    module = ModuleType("pynvml")
    known = {
        "NVMLError": NVMLError, "nvmlInit": lambda: None, "NVML_CLOCK_SM": 1, "NVML_CLOCK_MEM": 2,
        "NVML_TEMPERATURE_GPU": 0, "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
    }  # fmt: skip
    for name, value in {**known, **{n: f or refuse for n, f in functions.items()}}.items():
        setattr(module, name, value)
    module.__spec__ = SimpleNamespace(name="pynvml")  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "pynvml", module)


def test_sensors_read_what_the_board_has(monkeypatch):
    fake_nvml(
        monkeypatch,
        nvmlDeviceGetClockInfo=lambda board, which: {1: 1305, 2: 2619}[which],
        nvmlDeviceGetPowerUsage=lambda board: 691_000,
        nvmlDeviceGetTemperature=lambda board, which: 61,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda board: 0x4,
        nvmlDeviceGetEnforcedPowerLimit=lambda board: 700_000,
        nvmlSystemGetDriverVersion=lambda: b"580.65.06",
    )
    sensors = Sensors("abc")
    reading = sensors.read()
    assert (reading.sm_mhz, reading.memory_mhz, reading.power_w) == (1305, 2619, 691.0)
    assert reading.reasons == {"power-cap"}
    assert (sensors.driver, sensors.power_limit_w, sensors.max_sm_mhz) == ("580.65.06", 700.0, None)


def test_a_sensor_that_a_board_lacks_is_none(monkeypatch):
    fake_nvml(monkeypatch, nvmlDeviceGetPowerUsage=None, nvmlDeviceGetClockInfo=lambda board, which: 210)
    reading = Sensors("GPU-abc").read()
    assert reading.power_w is None
    assert reading.sm_mhz == 210


def test_without_nvml_every_reading_is_empty(monkeypatch):
    monkeypatch.setattr("sparsesim.backends.nvml.find_spec", lambda name: None)
    sensors = Sensors("abc")
    assert sensors.read().sm_mhz is None
    assert sensors.driver == ""


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("CUDA error: an illegal memory access was encountered\nCUDA kernel errors ...", DeviceLostError),
        ("CUDA error: unspecified launch failure", DeviceLostError),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", OutOfMemoryError),
        ("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasLtMatmul`", UnsupportedError),
        ("CUDA error: architecture mismatch when calling `cusparseLtInit(&handle)`", UnsupportedError),
        ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasLtMatmul`", KernelError),
    ],
)  # fmt: skip
def test_errors_are_told_apart(torch, message, error):
    from sparsesim.backends.cuda import translated

    with pytest.raises(error) as raised, translated():
        raise RuntimeError(message)
    assert len(str(raised.value).splitlines()) == 1


def test_pytorch_s_own_out_of_memory(torch):
    from sparsesim.backends.cuda import translated

    with pytest.raises(OutOfMemoryError), translated():
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_take_the_arguments_that_are_passed(torch, name):
    schemas = torch._C._jit_get_schemas_for_operator(f"aten::{name}")
    wanted = OPERATORS[name]
    assert any([a.name for a in s.arguments if a.name in wanted] == list(wanted) for s in schemas), schemas


@pytest.mark.parametrize(
    ("dtype", "pattern", "library"),
    [
        ("f16", "dense", "cublaslt"),
        ("bf16", "dense", "cublaslt-bias"),
        ("i8", "dense", "cublaslt"),
        ("e4m3", "dense", "cublaslt"),
    ],
)
def test_the_check_compares_with_float32(torch, dtype, pattern, library):
    from fake_gpu import A100

    from sparsesim.backends.cuda import CudaKernel
    from sparsesim.measure.session import TOLERANCE

    kernel = CudaKernel(torch, torch.device("cpu"), A100, Case(48, 24, 64, dtype, pattern), library, "random", 2, 0)
    assert kernel.relative_error() <= TOLERANCE[dtype]
    kernel.launch(1)
    right = kernel._calls[0]
    kernel._calls[0] = lambda: right() * 2
    assert kernel.relative_error() == pytest.approx(1.0, rel=0.05)
    zeros = CudaKernel(torch, torch.device("cpu"), A100, Case(48, 24, 64, dtype, pattern), library, "zeros", 1, 0)
    assert zeros.relative_error() == 0.0


def test_pruning_keeps_the_two_largest_of_four(torch):
    from sparsesim.backends.cuda import _pruned

    weight = torch.tensor([[1.0, -3.0, 2.0, 0.5, 0.0, 0.0, 5.0, 4.0]], dtype=torch.float16)
    assert _pruned(torch, weight).tolist() == [[0.0, -3.0, 2.0, 0.0, 0.0, 0.0, 5.0, 4.0]]
    with pytest.raises(UnsupportedError, match="multiple of 4"):
        _pruned(torch, torch.ones(2, 6))


def test_random_data_differ_between_copies_and_not_between_runs(torch):
    from fake_gpu import A100

    from sparsesim.backends.cuda import CudaKernel

    def inputs(seed):
        case = Case(16, 24, 32, "i8")
        return CudaKernel(torch, torch.device("cpu"), A100, case, "cublaslt", "random", 2, seed)._inputs

    one, again, other = inputs(0), inputs(0), inputs(5)
    assert torch.equal(one[0], again[0])
    assert not torch.equal(one[0], one[1])
    assert not torch.equal(one[0], other[0])


def test_giving_memory_back_to_a_lost_device_hides_no_error(torch, monkeypatch):
    from fake_gpu import A100

    from sparsesim.backends.cuda import CudaKernel

    def lost():
        raise RuntimeError("CUDA error: unspecified launch failure")

    kernel = CudaKernel(torch, torch.device("cpu"), A100, Case(16, 24, 32), "cublaslt", "random", 1, 0)
    monkeypatch.setattr(torch.cuda, "empty_cache", lost)
    kernel.release()
    kernel.release()


@pytest.mark.parametrize("library", ["cusparselt", "cusparselt-default", "torch-cutlass"])
def test_sparse_libraries_without_a_gpu_are_one_of_the_known_errors(torch, library):
    from fake_gpu import A100

    from sparsesim.backends.cuda import CudaKernel, translated

    with pytest.raises((UnsupportedError, KernelError)), translated():
        CudaKernel(torch, torch.device("cpu"), A100, Case(64, 64, 64, pattern="2:4"), library, "random", 1, 0)


def test_e4m3_on_the_cutlass_back_end_is_unsupported(torch):
    from fake_gpu import A100

    from sparsesim.backends.cuda import CudaKernel

    with pytest.raises(UnsupportedError, match="e4m3"):
        CudaKernel(torch, torch.device("cpu"), A100, Case(64, 64, 64, "e4m3", "2:4"), "torch-cutlass", "random", 1, 0)
