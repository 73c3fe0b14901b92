"""A serving stack: what the engine adds round the GEMMs, and what its host code costs.

Every value belongs to the stack, none to a model, a token count or a cell of a measured table. Times are those on
a reference host; the machines that measured tables come from are faster or slower by two factors each (`HOSTS`).
`SOURCES` says where each value comes from, with the statuses of hardware files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from sparsesim.errors import UserError, nearest

__all__ = ["HOSTS", "SERVING_STACKS", "Host", "ServingStack", "Source", "get_serving_stack", "host_of"]

#: types whose activations are quantised at run time, and whose products are scaled back by a kernel of their own
QUANTISED = ("i8", "e4m3")


@dataclass(frozen=True)
class Source:
    """Where a value comes from: status (datasheet, measured, fitted, assumed) and a line about it."""

    status: str
    text: str


@dataclass(frozen=True)
class ServingStack:
    """Parameters of one serving stack; times in s, sizes in B.

    Parameters
    ----------
    gemm_stack : the library stack that decides each linear layer's path
    step_serial, seq_serial : host time of a step, and for each sequence in it, while the GPU is idle: scheduling,
        input preparation, reading back the sampled tokens, bookkeeping
    step_issue : host time of a forward pass without a graph that overlaps with queued kernels
    sparse_step_issue : what the sparse path's Python layer adds to it
    call_issue : host time of one launch without a graph
    dense_linear_issue, sparse_linear_issue : host time of a linear layer's call beyond its launches
    graph_launch : host time to launch a captured graph
    graph_sizes : largest batch that is captured; larger ones run launch by launch
    front_prompt, front_output : time of the front end (its own process) for each prompt and output token
    front_request : and for each request
    max_seqs : sequences that run at once
    block : tokens in a block of the KV cache
    memory_fraction : share of the device's memory that the engine may use
    reserved : memory of context, libraries and captured graphs
    stream_efficiency : share of the best DRAM rate that element-wise kernels reach
    prefill_attention : share of the 16-bit tensor rate that attention over prompts reaches
    decode_attention : share of the best DRAM rate at which decoding reads the KV cache
    sampling_bytes : traffic of sampling for each entry of the vocabulary and sequence
    token_multiple : tokens are padded to a multiple of this before a quantised or a sparse linear layer
    dense_as : (GPU family, type) → (type whose dense kernels have the rate of those that run, from how many tokens)
    """

    name: str
    title: str
    gemm_stack: str
    step_serial: float
    seq_serial: float
    step_issue: float
    sparse_step_issue: float
    call_issue: float
    dense_linear_issue: float
    sparse_linear_issue: float
    graph_launch: float
    graph_sizes: int
    front_prompt: float
    front_output: float
    front_request: float
    max_seqs: int
    block: int
    memory_fraction: float
    reserved: float
    stream_efficiency: float
    prefill_attention: float
    decode_attention: float
    sampling_bytes: float
    token_multiple: int
    dense_as: Mapping[tuple[str, str], tuple[str, int]] = field(default_factory=dict)
    sources: Mapping[str, Source] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        values = {name for name in self.__dataclass_fields__ if name not in ("name", "title", "sources", "dense_as")}
        if missing := values - set(self.sources):
            raise ValueError(f"{self.name}: expected a source for {', '.join(sorted(missing))}")


_ASSUMED, _FITTED = "assumed", "fitted"
#: throughput tables of bcacdwk/vllmbench (arXiv 2603.05232), dense and 2:4 cells
_E2E = "vllmbench tables"

#: vLLM's V1 engine without asynchronous scheduling; linear layers as quantise, GEMM and scale-back kernels of
#: their own (Triton), dense through cuBLASLt, 2:4 through cuSPARSELt with searched algorithms
VLLM_SLIDESPARSE = ServingStack(
    name="vllm-slidesparse",
    title="vLLM 0.13 with SlideSparse's W8A8 linear layers",
    gemm_stack="cusparselt",
    step_serial=3.08e-3,
    seq_serial=7.25e-6,
    step_issue=18.6e-3,
    sparse_step_issue=10.5e-3,
    call_issue=26e-6,
    dense_linear_issue=184e-6,
    sparse_linear_issue=87.5e-6,
    graph_launch=50e-6,
    graph_sizes=512,
    front_prompt=2.49e-6,
    front_output=15e-6,
    front_request=50e-6,
    max_seqs=256,
    block=16,
    memory_fraction=0.8,
    reserved=0.9e9,
    stream_efficiency=0.77,
    prefill_attention=0.5,
    decode_attention=0.468,
    sampling_bytes=46.0,
    token_multiple=16,
    dense_as={("blackwell_dc", "i8"): ("e4m3", 512)},
    sources={
        "gemm_stack": Source("datasheet", "SlideSparse: 2:4 linears through cuSPARSELt, dense through cuBLASLt"),
        "step_serial": Source(_FITTED, f"{_E2E}: decode at 64 to 256 sequences"),
        "seq_serial": Source(_FITTED, f"{_E2E}: decode at 64 to 256 sequences"),
        "step_issue": Source(_FITTED, f"{_E2E}: prefill steps whose time does not depend on the tokens"),
        "sparse_step_issue": Source(
            _FITTED, f"{_E2E}: the same; not explained, only the smallest model shows it clearly"
        ),
        "call_issue": Source(_FITTED, f"{_E2E}: slope of those steps over the number of layers"),
        "dense_linear_issue": Source(_FITTED, f"{_E2E}: the same; dense calls ask the library's heuristic each time"),
        "sparse_linear_issue": Source(_FITTED, f"{_E2E}: the same; sparse calls have a plan"),
        "graph_launch": Source(_ASSUMED, "cudaGraphLaunch of about a thousand nodes"),
        "graph_sizes": Source(_ASSUMED, "recalled: vLLM captures up to the smaller of 512 and 2 max_num_seqs"),
        "front_prompt": Source(
            _FITTED, f"{_E2E}: B200, Llama-3.2-1B stops at one 1024-token prompt each 2.2 ms, dense and sparse alike"
        ),
        "front_output": Source(_ASSUMED, "detokenising and sending one token, by the tokenizers library"),
        "front_request": Source(_ASSUMED, "validation and queueing of one request"),
        "max_seqs": Source(
            _FITTED, f"{_E2E}: 512 requests at once give the throughput of 256 in the 19 cells that memory does "
            "not bind; recalled: vLLM's default for a GPU below 70 GiB is 256"
        ),
        "block": Source(_ASSUMED, "recalled: vLLM's default block_size"),
        "memory_fraction": Source(_FITTED, f"{_E2E}: Qwen2.5-14B on RTX 4090; vLLM's default is 0.9"),
        "reserved": Source(_FITTED, f"{_E2E}: Qwen2.5-14B on RTX 4090; CUDA context, workspaces, fragmentation"),
        "stream_efficiency": Source(_FITTED, f"{_E2E}: prefill of 8192 tokens and more"),
        "prefill_attention": Source(
            _ASSUMED, "recalled: FlashAttention-2 paper, A100, causal, 1k tokens: 0.4 to 0.5 of the peak"
        ),
        "decode_attention": Source(_FITTED, f"{_E2E}: decode at 256 sequences"),
        "sampling_bytes": Source(
            _ASSUMED, "recalled: vLLM's sampler, passes over f32 logits: cast 6, temperature 8, softmax 12, "
            "exponential 4, divide 12, argmax 4"
        ),
        "token_multiple": Source(_ASSUMED, "alignment of 8-bit operands, to which SlideSparse's wrapper pads"),
    },
)  # fmt: skip

SERVING_STACKS: dict[str, ServingStack] = {VLLM_SLIDESPARSE.name: VLLM_SLIDESPARSE}


class Host(NamedTuple):
    """Times of one machine's host over those of the reference host.

    `step` = Python work of the engine and of the front end; `launch` = what goes through the framework and the driver
    to issue kernels.
    """

    step: float
    launch: float


#: host of the machine that a GPU's serving rows come from; fitted with the stack on all dense and sparse cells
HOSTS: dict[str, Host] = {
    "rtx4090": Host(0.87, 1.37),
    "a100_pcie_80gb": Host(1.0, 1.0),
    "h100_pcie": Host(0.75, 0.63),
    "b200": Host(0.85, 0.54),
}
#: for any other machine: between the fastest and the slowest of those
OTHER_HOST = Host(0.9, 0.9)


def get_serving_stack(name: str) -> ServingStack:
    """The serving stack called `name`; raises UserError with the nearest valid name."""
    if name not in SERVING_STACKS:
        valid = ", ".join(SERVING_STACKS)
        raise UserError(f"serving stack: expected one of {valid}, found {name!r}{nearest(name, SERVING_STACKS)}")
    return SERVING_STACKS[name]


def host_of(gpu: str) -> Host:
    """The host of the machine round `gpu`."""
    return HOSTS.get(gpu, OTHER_HOST)
