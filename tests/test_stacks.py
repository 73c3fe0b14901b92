"""Stacks as rule files: the eligibility of common layers, versions, treatments, and what a call adds."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsesim.errors import UserError
from sparsesim.hardware import load_gpu
from sparsesim.protocol import Protocol
from sparsesim.simulator import Simulator
from sparsesim.stacks import CODES, Setting, get_stack, load_stack, stack_files, stack_names
from sparsesim.stacks.calls import as_weight
from sparsesim.stacks.versions import newest_before, satisfies
from sparsesim.workload import Gemm

A100, H100 = load_gpu("a100_sxm4_80gb"), load_gpu("h100_sxm5")

#: common layers by shape rules only, from the constraint tables of the libraries' sources. Columns: ASP, torch CUTLASS
#: 16-bit, torch CUTLASS int8, torch cuSPARSELt 16-bit, torch cuSPARSELt 8-bit, run-time pruning, torchao fp8 CUTLASS,
#: Marlin-24 at 16 tokens, Marlin-24 above, hipSPARSELt 16-bit
LAYERS = """
BERT-base projection    768 768     y y y y y y y y y y
BERT-base up            3072 768    y y y y y y y y y y
BERT-base down          768 3072    y y y y y y y y y y
BERT QA head            2 768       - - - - - - - - - -
ViT-B head              1000 768    y - - - - - y - - y
GPT-2 LM head           50257 768   - - - - - - - - - -
Llama-2-7B gate+up      22016 4096  y y y y y y y y y y
Llama-2-7B down         4096 11008  y y y y y y y y y y
Llama-3-8B k            1024 4096   y y y y y y y y y y
Llama-3-8B LM head      128256 4096 y y y y y y y y y y
Qwen2-7B qkv            4608 3584   y y y y y y y y y y
Qwen2-7B qkv TP=4       1152 3584   y y y y y y y y - y
Qwen2-7B down TP=4      3584 4736   y y y y y y y y y y
Qwen2.5-0.5B k          128 896     y y y y y y y y - y
Qwen2.5-0.5B down       896 4864    y y y y y y y y - y
FLUX proj_out           64 3072     y y y y y - y - - y
FLUX x_embedder         3072 64     y y - y y - y - - y
Mixtral router          8 4096      y - - - - - y - - y
LoRA A                  16 4096     y - y y - - y - - y
LoRA B                  4096 16     y - - y - - - - - y
SAM ViT-H up            5120 1280   y y y y y y y y y y
odd width               3720 10240  y - - - - - y - - y
"""
#: stack, type, tokens, weight
COLUMNS = (
    ("apex-asp", "f16", 512, ""), ("torch-cutlass", "f16", 512, ""), ("torch-cutlass", "i8", 512, ""),
    ("torch-cusparselt", "f16", 512, ""), ("torch-cusparselt", "i8", 512, ""), ("torchao-train", "f16", 512, ""),
    ("torchao-fp8-cutlass", "e4m3", 512, ""), ("vllm-marlin24", "f16", 16, "w4a16"),
    ("vllm-marlin24", "f16", 512, "w4a16"), ("hipsparselt", "f16", 512, ""),
)  # fmt: skip


def _rows():
    for line in LAYERS.strip().splitlines():
        words = line.split()
        marks = words[-len(COLUMNS) :]
        m, k = map(int, words[-len(COLUMNS) - 2 : -len(COLUMNS)])
        for mark, column in zip(marks, COLUMNS, strict=True):
            yield pytest.param(m, k, column, mark == "y", id=f"{m}x{k}-{column[0]}-{column[1]}-{column[2]}")


def _gpu(stack: str):
    return load_gpu("mi300x") if stack == "hipsparselt" else H100 if "fp8" in stack else A100


@pytest.mark.parametrize(("m", "k", "column", "eligible"), list(_rows()))
def test_eligibility_of_common_layers(m, k, column, eligible):
    name, dtype, tokens, weight = column
    stack = get_stack(name, Setting(weight=weight))
    decision = stack.decide(Gemm("layer", m, tokens, k, dtype=dtype, pattern="2:4"), _gpu(name))
    if name == "apex-asp":  # a pruner converts nothing
        assert decision.reason == ("not-converted" if eligible else "shape-alignment")
    elif eligible:
        assert (decision.path, decision.reason) == ("sparse", "eligible")
    else:
        assert decision.reason == "shape-alignment"
        assert decision.outcome == "error"


@pytest.mark.parametrize(
    ("stack", "gpu", "dtype", "pattern", "reason"),
    [
        ("torch-cutlass@2.4", H100, "f16", "2:4", "arch-unsupported"),
        ("torch-cusparselt@2.1", A100, "f16", "2:4", "build-missing"),
        ("torch-cusparselt@2.4", H100, "f16", "2:4", "arch-unsupported"),
        ("torch-cusparselt@2.6", H100, "f16", "2:4", "eligible"),
        ("torch-cusparselt@2.5", A100, "tf32", "1:2", "dtype-unsupported"),
        ("torch-cusparselt@2.4", A100, "tf32", "1:2", "eligible"),
        ("cusparselt@0.5.2", H100, "f16", "2:4", "arch-unsupported"),
        ("cusparselt@0.7.1", load_gpu("rtx4090"), "e4m3", "2:4", "dtype-unsupported"),
        ("cusparselt", load_gpu("rtx4090"), "e4m3", "2:4", "eligible"),
        ("torchao@0.19", A100, "f16", "2:4", "version-removed"),
        ("vllm-cutlass24@0.19.1", H100, "e4m3", "2:4", "version-removed"),
        ("vllm-cutlass24@0.7.2", H100, "e4m3", "2:4", "numerics-guard"),
        ("vllm-cutlass24@0.9", H100, "e4m3", "2:4", "eligible"),
        ("vllm-cutlass24@0.9", load_gpu("b200"), "e4m3", "2:4", "arch-unsupported"),
        ("trtllm", A100, "f16", "2:4", "owned-elsewhere"),
        ("xformers-sp24", H100, "f16", "2:4", "arch-unsupported"),
    ],
)
def test_paths_appear_and_vanish_with_the_version(stack, gpu, dtype, pattern, reason):
    op = Gemm("layer", 4096, 512, 4096, dtype=dtype, pattern=pattern)
    assert get_stack(stack).decide(op, gpu).reason == reason


def test_three_treatments_and_an_override():
    op = Gemm("layer", 1000, 512, 772, pattern="2:4")
    assert get_stack("torch-cutlass").decide(op, A100).outcome == "error"
    assert get_stack("torch-cutlass:dense").decide(op, A100).outcome == "dense"
    assert get_stack("apex-asp").decide(op, A100).treatment == "unpruned"
    result = Simulator(A100, "torch-cutlass").gemm(op)
    assert (result.path, result.treatment, result.speedup) == ("dense", "raise", 1.0)


@pytest.mark.parametrize("path", stack_files(), ids=lambda path: path.stem)
def test_every_rule_has_code_text_and_source(path):
    file = load_stack(path)
    assert file.name == path.stem
    for rule in file.rules:
        assert rule.code in CODES
        assert rule.text
        assert rule.source
    for version in file.versions:
        assert file.stack(version).version == version


def test_what_a_call_adds_is_simulated():
    op = Gemm("layer", 4096, 1, 4096, pattern="2:4")
    simulator = Simulator(A100, "torch-cutlass@2.12")
    call = simulator.stack.call(op, A100)
    assert call.op.n == 8
    assert {item.loss for item in call.added} == {"pad-copy", "transpose-copy", "epilogue-unfused"}
    kernel, host = (simulator.gemm(op, Protocol(timing)) for timing in ("kernel", "host"))
    assert not any(kernel.overheads.values())
    assert host.overheads["host-plan"] > 0.0
    assert host.time_us > host.dense_time_us


def test_a_serial_plan_stops_the_gpu_and_a_kept_one_does_not():
    op = Gemm("layer", 4096, 512, 4096, pattern="2:4")
    protocol = Protocol("host")
    plain = get_stack("torch-cusparselt@2.6")
    kept = plain.under(Setting(flags=frozenset({"plan-cache"})))
    slow, fast = (Simulator(A100, stack).gemm(op, protocol).time_us for stack in (plain, kept))
    assert 390.0 <= slow - fast < 390.0 + 45.0


def test_a_builder_takes_sparse_only_where_it_is_faster():
    small = Gemm("layer", 64, 4096, 64, pattern="2:4")
    result = Simulator(A100, "tensorrt").gemm(small)
    assert (result.path, result.reason) == ("dense", "not-faster")
    assert Simulator(A100, "tensorrt").gemm(Gemm("layer", 4096, 4096, 4096, pattern="2:4")).path == "sparse"


def test_old_instructions_are_slower_on_hopper():
    op = Gemm("layer", 4096, 4096, 4096, pattern="2:4")
    legacy, own = (Simulator(H100, name).gemm(op) for name in ("cutlass-sm80", "cutlass-sm90"))
    assert legacy.launch.kernel.family == "sm80"
    assert legacy.speedup < 1.0 < own.speedup


def test_a_sparse_activation_is_the_transposed_product():
    op = Gemm("layer", 4096, 256, 1024, pattern="2:4", sparse_operand="B")
    assert (as_weight(op).m, as_weight(op).n, as_weight(op).sparse_operand) == (256, 4096, "A")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("torch-cutlas", "did you mean 'torch-cutlass'"),
        ("torch-cutlass@9.9", "expected 2.0 to 2.14"),
        ("torch-cutlass@new", "expected 2.0 to 2.14"),
        ("torch-cutlass:skip", "expected one of raise, dense, unpruned"),
        ("apex-asp@1.0", "this stack has none"),
    ],
)
def test_unknown_names_versions_and_treatments(name, message):
    with pytest.raises(UserError, match=message):
        get_stack(name)


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("torch", "torch-cusparselt"),
        ("torch@2.1", "torch-cusparselt@2.1"),
        ("torch@2.2", "torch-cutlass@2.2"),
        ("torch@2.5.1", "torch-cutlass@2.5.1"),
        ("torch@2.6", "torch-cusparselt@2.6"),
        ("torch@2.4:dense", "torch-cutlass@2.4:dense"),
    ],
)
def test_the_default_back_end_of_torch_flips_with_the_version(name, taken):
    assert get_stack(name).name == get_stack(taken).name == taken


@pytest.mark.parametrize("version", ["1.9", "2.99", "9" * 5000, "x", "2.6+cu121"])
def test_a_version_that_torch_does_not_have_is_one_line(version):
    with pytest.raises(UserError, match=r"^stack torch-cusparselt: version: expected 2.0 to 2.14, found '"):
        get_stack(f"torch@{version}")


def test_faults_of_a_rule_file_are_named(tmp_path: Path):
    bad = tmp_path / "mine.toml"
    bad.write_text(
        stack_files()[0].read_text().replace('"shape-alignment"', '"shape"').replace("[[rules]]", "[[rule]]", 1)
    )
    with pytest.raises(UserError) as caught:
        get_stack(str(bad))
    assert f"{bad}: rule: expected a known field, found 'rule' (did you mean 'rules'?)" in caught.value.problems
    bad.write_text("name = ")
    with pytest.raises(UserError, match="expected valid TOML"):
        get_stack(str(bad))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('title = "', 'titel = "', ["titel: expected a known field, found 'titel' (did you mean 'title'?)",
                                    "title: expected a value, found none"]),
        ("needs = {", "neds = {", ["rules[0].neds: expected a known field, found 'neds' (did you mean 'needs'?)"]),
        ("needs = { capab", "needs = { kapab", ["rules[1].needs.kapability: expected a known field, found 'kapability' "
                                                "(did you mean 'capability'?)"]),
        ('treatment = "raise"', 'treatment = "rais"',
         ["treatment: expected 'raise', 'dense' or 'unpruned', found 'rais'"]),
        ('treatment = "raise"', "treatment = 3", ["treatment: expected 'raise', 'dense' or 'unpruned', found 3"]),
        ('title = "', 'title = 5 # "', ["title: expected text, found 5"]),
        ("multiple = { k = 32", "multiple = { k = 0",
         ["rules[5].needs.multiple.k: expected a number greater than or equal to 1, found 0"]),
        ("multiple = { k = 32", "multiple = { k = 3.5",
         ["rules[5].needs.multiple.k: expected an integer, found 3.5"]),
        ('versions = ["', 'versions = 5 # ["', ["versions: expected a list, found 5"]),
    ],
)  # fmt: skip
def test_a_fault_of_a_rule_file_is_worded_as_everywhere(tmp_path, old, new, expected):
    text = next(path for path in stack_files() if path.stem == "torchao-fp8-cutlass").read_text()
    assert old in text
    bad = tmp_path / "mine.toml"
    bad.write_text(text.replace(old, new, 1))
    with pytest.raises(UserError) as caught:
        get_stack(str(bad))
    assert sorted(line.removeprefix(f"{bad}: ") for line in caught.value.problems) == sorted(expected)


def test_a_rule_file_of_ones_own(tmp_path: Path):
    source = next(path for path in stack_files() if path.stem == "cusparselt").read_text()
    mine = tmp_path / "mine.toml"
    mine.write_text(source.replace('name = "cusparselt"', 'name = "mine"'))
    op = Gemm("layer", 4096, 512, 4096, pattern="2:4")
    assert get_stack(str(mine)).decide(op, A100).path == "sparse"


def test_versions():
    assert satisfies("2.12", ">=2.6,<2.13")
    assert not satisfies("2.12", "<2.6")
    assert satisfies("2.7.1", "<=2.7")
    assert newest_before("2025-04", {"2.5": "2024-10", "2.7": "2025-04", "2.8": "2025-08"}) == "2.7"
    assert newest_before("2020", {"2.5": "2024-10"}) is None
    assert len(stack_names()) > 20
