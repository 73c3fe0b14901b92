"""A CUDA device through PyTorch. Thin on purpose: what is here can only be tested on a GPU.

Layout: x is n×k row-major and W m×k row-major, as a linear layer has them, so that x·Wᵀ is D with its columns
contiguous: the "TN" GEMM that libraries are tuned for. Argument names are those of PyTorch 2.6 to 2.13.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np

from sparsesim.backends.nvml import Sensors
from sparsesim.measure.cases import Case
from sparsesim.measure.device import (
    DeviceInfo,
    DeviceLostError,
    Graph,
    KernelError,
    OutOfMemoryError,
    Telemetry,
    UnsupportedError,
)

__all__ = ["CudaDevice", "translated"]

TORCH_DTYPES = {"f16": "float16", "bf16": "bfloat16", "i8": "int8", "e4m3": "float8_e4m3fn"}
#: words of errors after which a CUDA context is unusable (driver API: sticky errors)
STICKY = (
    "illegal memory access", "illegal instruction", "misaligned address", "unspecified launch failure",
    "device-side assert", "launch timed out", "uncorrectable ecc", "gpu has fallen off", "device lost",
    "hardware stack error", "nvlink", "context is destroyed", "no longer available",
)  # fmt: skip
#: words of errors that say that a library has no kernel
UNSUPPORTED = (
    "not supported", "not implemented", "unsupported", "must be divisible", "multiple of", "expected", "only supports",
    "requires compute capability", "arch_mismatch", "architecture mismatch", "status_not_supported",
    "needs to be greater than",
)  # fmt: skip
#: rows of D that are compared with the float32 product: all of small ones, a sample of large ones
CHECKED_ROWS = 1024


@contextmanager
def translated() -> Iterator[None]:
    """Turn PyTorch's errors into those of `sparsesim.measure`, by type and by what their first line says."""
    import torch

    try:
        yield
    except torch.cuda.OutOfMemoryError as err:
        raise OutOfMemoryError(_first_line(err)) from None
    except (RuntimeError, ValueError, TypeError, AttributeError) as err:  # TypeError: another version's arguments
        text = str(err).lower()
        if any(words in text for words in STICKY):
            raise DeviceLostError(_first_line(err)) from None
        if "out of memory" in text or "alloc_failed" in text:
            raise OutOfMemoryError(_first_line(err)) from None
        if not isinstance(err, RuntimeError) or any(words in text for words in UNSUPPORTED):
            raise UnsupportedError(_first_line(err)) from None
        raise KernelError(_first_line(err)) from None


def _first_line(err: BaseException) -> str:
    return (str(err).strip().splitlines() or [type(err).__name__])[0][:200]


class CudaDevice:
    """CUDA device `index`, as `sparsesim.measure.MeasuringDevice`."""

    def __init__(self, index: int) -> None:
        import torch

        self._torch = torch
        self._device = torch.device("cuda", index)
        torch.cuda.set_device(self._device)
        torch.backends.cuda.matmul.allow_tf32 = False  # the reference product is float32
        torch.backends.cuda.preferred_blas_library("cublaslt")
        board = torch.cuda.get_device_properties(self._device)
        self._sensors = Sensors(str(getattr(board, "uuid", "")))
        sparse = torch.backends.cusparselt.version()
        libraries = {"torch": str(torch.__version__)}
        if sparse is not None:
            libraries["cusparselt"] = str(sparse)
        self._info = DeviceInfo(
            name=board.name,
            uuid=str(getattr(board, "uuid", "")),
            compute_capability=f"{board.major}.{board.minor}",
            sms=board.multi_processor_count,
            memory_bytes=board.total_memory,
            l2_bytes=board.L2_cache_size,
            driver=self._sensors.driver,
            cuda=str(torch.version.cuda),
            libraries=libraries,
            power_limit_w=self._sensors.power_limit_w,
            max_sm_mhz=self._sensors.max_sm_mhz,
        )
        self._flush = torch.empty(2 * max(board.L2_cache_size, 1), dtype=torch.int8, device=self._device)

    @property
    def info(self) -> DeviceInfo:
        """The board and its software."""
        return self._info

    def prepare(self, case: Case, library: str, data: str, copies: int, seed: int) -> CudaKernel:
        """Operands and the call of `library`; see `MeasuringDevice`."""
        try:
            with translated():
                return CudaKernel(self._torch, self._device, self._info, case, library, data, copies, seed)
        except BaseException:
            _give_back(self._torch)
            raise

    def now(self) -> float:
        """Host clock [s]."""
        return time.perf_counter()

    def synchronize(self) -> None:
        """Wait for the device."""
        with translated():
            self._torch.cuda.synchronize(self._device)

    def record(self) -> Any:
        """An event on the current stream."""
        with translated():
            event = self._torch.cuda.Event(enable_timing=True)
            event.record()
            return event

    def elapsed_s(self, start: Any, end: Any) -> float:
        """Device time between two events [s]; PyTorch gives ms."""
        with translated():
            return float(start.elapsed_time(end)) / 1e3

    def flush_l2(self) -> None:
        """Write twice the size of L2."""
        with translated():
            self._flush.zero_()

    def capture(self, work: Callable[[], None]) -> Graph:
        """`work` as a CUDA graph, captured after it has run once on a side stream, as PyTorch asks for."""
        torch = self._torch
        with translated():
            side = torch.cuda.Stream(self._device)
            side.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(side):
                work()
            torch.cuda.current_stream(self._device).wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                work()
            return graph

    def telemetry(self) -> Telemetry:
        """One reading of the sensors."""
        return self._sensors.read()


class CudaKernel:
    """One case's operands and its call, as `sparsesim.measure.PreparedKernel`."""

    def __init__(
        self, torch: Any, device: Any, info: DeviceInfo, case: Case, library: str, data: str, copies: int, seed: int
    ) -> None:
        self._torch, self._case = torch, case
        self.copies = copies
        self._dtype = getattr(torch, TORCH_DTYPES[case.dtype])
        generator = torch.Generator(device=device)
        self._weights, self._inputs, self._calls = [], [], []
        for copy in range(copies):
            generator.manual_seed(seed + copy)
            weight = self._operand(case.m, case.k, data, generator, device)
            if case.is_sparse:
                weight = _pruned(torch, weight)
            self._weights.append(weight)
            self._inputs.append(self._operand(case.n, case.k, data, generator, device))
        build = {
            "cublaslt": self._dense,
            "cublaslt-bias": self._dense_bias,
            "cusparselt": self._cusparselt,
            "cusparselt-default": self._cusparselt,
            "torch-cutlass": self._cutlass,
        }[library]
        self.label, calls = build(info, library)
        self._calls = calls
        if copies > 1:
            self._weights[1:] = []  # the first is what the check needs; calls hold what they use

    def _operand(self, rows: int, columns: int, data: str, generator: Any, device: Any) -> Any:
        """rows×columns, row-major: standard normal over sqrt(k), integers −8 … 7 for i8, or zeros."""
        torch = self._torch
        if data == "zeros":
            return torch.zeros(rows, columns, dtype=self._dtype, device=device)
        if self._case.dtype == "i8":
            return torch.randint(-8, 8, (rows, columns), dtype=torch.int8, device=device, generator=generator)
        values = torch.randn(rows, columns, dtype=torch.float32, device=device, generator=generator)
        if self._case.dtype != "e4m3":
            values *= self._case.k**-0.25
        return values.to(self._dtype)

    def _dense(self, info: DeviceInfo, library: str) -> tuple[str, list[Callable[[], Any]]]:
        torch, case = self._torch, self._case
        calls: list[Callable[[], Any]] = []
        if case.dtype == "e4m3":
            one = torch.ones((), dtype=torch.float32, device=self._inputs[0].device)
            for x, w in zip(self._inputs, self._weights, strict=True):
                out = torch.empty(case.n, case.m, dtype=torch.bfloat16, device=x.device)
                more = {"scale_a": one, "scale_b": one, "out_dtype": torch.bfloat16, "out": out}
                calls.append(partial(torch._scaled_mm, x, w.t(), **more))
            name = "_scaled_mm"
        elif case.dtype == "i8":
            for x, w in zip(self._inputs, self._weights, strict=True):
                out = torch.empty(case.n, case.m, dtype=torch.int32, device=x.device)
                calls.append(partial(torch._int_mm, x, w.t(), out=out))
            name = "_int_mm"
        else:
            for x, w in zip(self._inputs, self._weights, strict=True):
                out = torch.empty(case.n, case.m, dtype=self._dtype, device=x.device)
                calls.append(partial(torch.mm, x, w.t(), out=out))
            name = "mm"
        return f"cuBLASLt (torch.{name} {info.libraries['torch']}, heuristic)", calls

    def _dense_bias(self, info: DeviceInfo, library: str) -> tuple[str, list[Callable[[], Any]]]:
        torch, case = self._torch, self._case
        if case.dtype not in ("f16", "bf16"):
            raise UnsupportedError(f"torch.addmm with a bias: f16 and bf16, not {case.dtype}")
        calls: list[Callable[[], Any]] = []
        for x, w in zip(self._inputs, self._weights, strict=True):
            bias = torch.zeros(case.m, dtype=self._dtype, device=x.device)
            calls.append(partial(torch.addmm, bias, x, w.t()))
        return f"cuBLASLt (torch.addmm {info.libraries['torch']}, heuristic, bias epilogue)", calls

    def _cusparselt(self, info: DeviceInfo, library: str) -> tuple[str, list[Callable[[], Any]]]:
        torch, case = self._torch, self._case
        if "cusparselt" not in info.libraries:
            raise UnsupportedError("this build of PyTorch is without cuSPARSELt")
        # i8 products are written as bf16, as in the published rows of this library
        out_dtype = torch.bfloat16 if case.dtype in ("i8", "e4m3") else None
        packed = [torch._cslt_compress(w) for w in self._weights]
        algorithm = 0
        if library == "cusparselt":
            algorithm = torch._cslt_sparse_mm_search(packed[0], self._inputs[0].t(), out_dtype=out_dtype)
        calls: list[Callable[[], Any]] = [
            partial(torch._cslt_sparse_mm, p, x.t(), out_dtype=out_dtype, alg_id=algorithm)
            for p, x in zip(packed, self._inputs, strict=True)
        ]
        how = f"alg search, alg {algorithm}" if library == "cusparselt" else "default alg 0"
        version = info.libraries["cusparselt"]
        return f"cuSPARSELt {version} (torch._cslt_sparse_mm {info.libraries['torch']}, {how})", calls

    def _cutlass(self, info: DeviceInfo, library: str) -> tuple[str, list[Callable[[], Any]]]:
        torch, case = self._torch, self._case
        if case.dtype == "e4m3":
            raise UnsupportedError("the CUTLASS back-end of semi-structured tensors: f16, bf16 and i8, not e4m3")
        packed = [torch.sparse.SparseSemiStructuredTensorCUTLASS.from_dense(w) for w in self._weights]
        out_dtype = torch.int32 if case.dtype == "i8" else None
        calls: list[Callable[[], Any]] = [
            partial(torch._sparse_semi_structured_mm, p.packed, p.meta, x.t(), out_dtype=out_dtype)
            for p, x in zip(packed, self._inputs, strict=True)
        ]
        return f"CUTLASS back-end of torch {info.libraries['torch']} (one kernel, no choice)", calls

    def launch(self, copy: int) -> None:
        """Enqueue the call on one operand set."""
        with translated():
            self._calls[copy]()

    def relative_error(self) -> float:
        """Frobenius error of up to `CHECKED_ROWS` rows of the result against the float32 product."""
        torch, case = self._torch, self._case
        with translated():
            result = self._calls[0]()
            if not case.is_sparse:  # x·Wᵀ; the sparse libraries take W first
                result = result.t()
            step = max(1, -(-case.m // CHECKED_ROWS))
            rows = torch.arange(0, case.m, step, device=result.device)
            expected = self._weights[0][rows].float() @ self._inputs[0].float().t()
            got = result[rows].float()
            error, norm = torch.linalg.norm(got - expected).item(), torch.linalg.norm(expected).item()
        return float(np.float64(error) / norm) if norm else float(error)

    def release(self) -> None:
        """Drop the operands; the caching allocator gives them back."""
        self._weights, self._inputs, self._calls = [], [], []
        _give_back(self._torch)


def _give_back(torch: Any) -> None:
    """Return freed memory to the device. A lost one cannot, and the call that lost it has already said so."""
    with suppress(RuntimeError):
        torch.cuda.empty_cache()


def _pruned(torch: Any, weight: Any) -> Any:
    """The weight with the two largest magnitudes of every four elements along k kept, the others zero."""
    rows, columns = weight.shape
    if columns % 4:
        raise UnsupportedError(f"k = {columns} is no multiple of 4")
    groups = weight.float().abs().view(rows, columns // 4, 4)
    kept = groups.topk(2, dim=-1).indices
    mask = torch.zeros_like(groups, dtype=torch.bool).scatter_(-1, kept, True).view(rows, columns)
    return torch.where(mask, weight.float(), 0.0).to(weight.dtype)
