"""Replay of practitioners' reports: a table of the project's own, the whole file where it is there, and faults."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sparsesim.cli.app import app
from sparsesim.errors import UserError
from sparsesim.replay import Case, load_cases, replay
from sparsesim.replay.circumstances import circumstances, stack_file
from sparsesim.replay.models import model_of

ROOT = Path(__file__).resolve().parent.parent
REPORTS = next(
    (
        path
        for path in (ROOT.parent / "shared/reports/cases.yaml", ROOT / "shared/reports/cases.yaml")
        if path.is_file()
    ),
    None,
)

#: a few public reports: (link, gpu, stack, version, dtype, pattern, (m, n, k), level, path, reason, range, losses)
TABLE = (
    ("pytorch/pytorch#153825", "h100_sxm5", "torch-cusparselt", "torch 2.6–2.14", "f16", "2:4", (3072, 3072, 10240),
     "op", "sparse", "eligible", (0.3, 0.65), ["host-plan", "alg-default"]),
    ("pytorch/pytorch#132009", "h100_sxm5", "torch-cutlass", "torch 2.4", "f16", "2:4", (3072, 3072, 10240),
     "op", "error", "arch-unsupported", None, []),
    ("pytorch/pytorch#132928", "h100_sxm5", "torch-cusparselt", "torch 2.4–2.5", "f32", "1:2", (3072, 3072, 10240),
     "op", "error", "dtype-unsupported", None, []),
    ("pytorch/ao#1460", "a100_sxm4_80gb", "torch-cusparselt", "any", "f16", "2:4", (3720, 64, 10240),
     "op", "error", "shape-alignment", None, []),
    ("NVIDIA/CUDALibrarySamples#219", "a100_sxm4_80gb", "cusparselt", None, "i8", "2:4", (256, 256, 256),
     "op", "error", "layout-unsupported", None, []),
    ("NVIDIA/CUDALibrarySamples#228", "a100_sxm4_80gb", "cusparselt", "0.6.3", "f16", "2:4", (320, 320, 640),
     "op", "sparse", "eligible", (0.3, 1.0), ["host-plan", "tile-waste"]),
    ("pytorch/ao#174", "rtx4070_ti_super", "torch-cutlass", "torch 2.4 nightly", "bf16", "2:4", (8192, 8192, 10240),
     "op", "sparse", "eligible", (1.3, 1.6), ["l2-cliff"]),
    ("NVIDIA/TensorRT#1403", "rtx3090", "tensorrt", "TRT 8.0", "f16", "2:4", (64, 8355840, 576),
     "kernel", "dense", "not-faster", (0.97, 1.03), []),
    ("vllm-project/vllm#13198", "h100_sxm5", "vllm-cutlass24", "< 0.7.3", "e4m3", "2:4", (4096, 512, 4096),
     "op", "error", "numerics-guard", None, []),
    ("vllm-project/vllm#8654", "l20", "vllm-marlin24", "0.5.4", "w4a16", "2:4", (1152, 16000, 3584),
     "op", "error", "shape-alignment", None, []),
    ("vllm-project/vllm#8654", "l20", "vllm-marlin24", "0.5.4", "w4a16", "2:4", (1152, 16, 3584),
     "op", "sparse", "eligible", (1.0, 1.4), []),
)  # fmt: skip


def _case(link, gpu, stack, version, dtype, pattern, shape, level, path, reason, bounds, losses) -> Case:
    low, high = bounds or (None, None)
    expect = {"path": path, "reason": reason, "speedup_min": low, "speedup_max": high, "losses": losses}
    return Case(
        id=link, link=link, gpu=gpu, stack=stack, stack_version=version, dtype=dtype, pattern=pattern, m=shape[0],
        n=shape[1], k=shape[2], level=level, expect=expect,
    )  # fmt: skip


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row[0]}-{row[6][1]}")
def test_public_reports_of_the_table(row):
    (outcome,) = replay([_case(*row)])
    assert outcome.ok, outcome.why


#: cases of the whole file that differ, and why
MISSES = {
    "PT-126420": "autograd through a converted weight; no field of the case says that it trains",
    "PT-SLOPE": "distributed training; no field of the case says so, and it names no model",
    "PT-155333": "a plan on every call takes longer than the whole range allows at 256 cubed",
    "PT-TUT-BERT-b4c": "the model has no fixed host cost of a compiled pass, which hides part of the gain: 1.17",
    "PT-90119-cslt": "the A100 model's sparse kernel is 15 % faster than the report's",
    "PT-90119-shortk": "the A100 model's sparse kernel is a quarter faster at short k: its epilogue is too cheap",
    "PT-150578-a": "the kernels on AMD parts are CUTLASS's, not hipSPARSELt's",
    "PT-150578-b": "the kernels on AMD parts are CUTLASS's, not hipSPARSELt's",
    "PT-150578-c": "the kernels on AMD parts are CUTLASS's, not hipSPARSELt's",
    "PT-179926": "the first kernel of the list is the best here; hipSPARSELt's algorithm 0 is not known",
    "AO-1460-n512": "the report's GPU is not stated, and slower in sparse than any model of an A100",
    "AO-1460-n1280": "the report's GPU is not stated",
    "AO-174-small": "the dense model is 5 % slow on GeForce: 2.07 instead of 1.93",
    "AO-174-3060": "the dense model is a few per cent slow on GeForce: 2.03 instead of 1.94",
    "AO-2012-64": "packing at run time is 4 % too cheap: 1.14",
    "AO-FP8-CSLT": "644 µs at every n are rather a plan on each call than a kernel, which is asked for: 1.21",
    "AO-184-act": "what the packing of activations costs beyond its kernels was not found: 1.29",
    "XF-975-w": "the report's rows put its sparse kernels at 0.56 of dense, the model at 1.4: 1.12",
    "XF-975-tokens": "the report's row puts its sparse kernels at 1.15 of dense, the model at 1.5: 1.28",
    "CSL-214": "cuSPARSELt 0.6.2 has e4m3 on Hopper; what the user's build lacked was not found",
    "CUT-408": "code of nvcc 11.3 is not modelled; it reaches 0.503 of 11.6, as with mma.sp at half rate",
    "CUT-2229": "the H100's power in large products is underestimated: 1.53",
    "ONNXSIM-1764": "Orin is a rough model: 1.76 at one image, 1.55 at 32, instead of 1.25",
    "VLLM-8654-tp1": "unpacking 4-bit weights takes no issue slots in the model: 1.90",
    "PDL-43853": "sizes below the group; the case gives no shape and no version",
    "ROC-5752": "the kernels on AMD parts are CUTLASS's: 0.62 at 256×64×128",
    "ROC-174835": "the kernels on AMD parts are CUTLASS's, not hipSPARSELt's",
    "WANDA-26": "no model of a CPU",
    "DINO-352": "the case gives no version, and the newest with the path has it",
}
#: so much work [MACs] of one op is attributed; beyond, the losses are left out to keep the test short
ATTRIBUTED = 3e11


def _whole_file():
    if REPORTS is None:
        return []
    return [
        pytest.param(case, marks=pytest.mark.xfail(strict=True, reason=MISSES[case.id]) if case.id in MISSES else ())
        for case in load_cases(REPORTS)
    ]


@pytest.mark.skipif(REPORTS is None, reason="the file of public reports is not here")
@pytest.mark.parametrize("case", _whole_file(), ids=lambda case: case.id)
def test_every_public_report(case):
    work = 1.0
    for side in case.shape or (1, 1, 1):
        work *= side
    if work > ATTRIBUTED or case.level in ("model", "training"):
        case = case.model_copy(update={"expect": case.expect.model_copy(update={"losses": ()})})
    (outcome,) = replay([case])
    assert outcome.ok, outcome.why


@pytest.mark.parametrize(
    ("stack", "version", "link", "taken"),
    [
        ("torch-cusparselt", "torch 2.6–2.14", "", "2.6"),
        ("torch-cusparselt", "torch ≥ 2.7", "", "2.7"),
        ("torch-cusparselt", "2025-05", "", "2.7"),
        ("torch-cusparselt", "any", "", "2.14"),
        ("torch-cusparselt", "PR build", "https://github.com/pytorch/pytorch/pull/177866", "2.14"),
        ("vllm-cutlass24", "< 0.7.3", "", "0.7.2"),
        ("torchao", "after 2026-08", "", "0.19"),
        ("cusparselt", "0.2, CUDA 11.5", "", "0.2"),
        ("torch-cusparselt", None, "", "2.14"),
    ],
)
def test_versions_in_the_words_of_reports(stack, version, link, taken):
    case = Case(id="x", gpu="a100", stack=stack, stack_version=version, link=link, dtype="f16",
                expect={"path": "sparse", "reason": "eligible"})  # fmt: skip
    file = stack_file(stack)
    assert file is not None
    assert circumstances(case, file).stack.version == taken


@pytest.mark.parametrize(
    ("text", "note", "first"),
    [
        ("bert-base, 4 x 384 tokens, eager", "4 sequences of 384 tokens", (2304, 1536, 768)),
        ("llama2-7b", "a prompt of 2048 tokens", (12288, 2048, 4096)),
        ("gpt-fast decode, batch 1 (7B assumed)", "decode of 1 sequences behind 512 tokens", (12288, 1, 4096)),
    ],
)
def test_models_in_the_words_of_reports(text, note, first):
    model = model_of(text, "f16", "2:4")
    assert model is not None
    op = model.ops[0]
    assert (model.note, (op.m, op.n, op.k)) == (note, first)
    assert model_of("something nobody knows", "f16", "2:4") is None


@pytest.mark.parametrize(
    ("stack", "text", "images"),
    [("tensorrt", "resnext101_32x8d", 1), ("tensorrt", "resnext101_32x8d, batch 8", 8),
     ("torch-cutlass", "resnext101_32x8d", 32)],
)  # fmt: skip
def test_a_builder_takes_a_batch_of_one_unless_it_is_named(stack, text, images):
    case = Case(id="x", gpu="rtx3090", stack=stack, dtype="f16", level="model", model=text,
                expect={"path": "dense", "reason": "not-faster"})  # fmt: skip
    (outcome,) = replay([case])
    assert f"{images} images" in " ".join(outcome.notes)


def test_what_cannot_be_run_is_an_outcome():
    good = _case(*TABLE[1])
    for change, word in (
        ({"gpu": "tpu-v5"}, "hardware file"),
        ({"stack": "nothing"}, "rule file"),
        ({"dtype": "i3"}, "dtype"),
    ):
        (outcome,) = replay([good.model_copy(update=change)])
        assert not outcome.ok
        assert word in outcome.why


def test_an_id_changes_nothing():
    one = _case(*TABLE[9])
    same = [replay([one.model_copy(update={"id": name})])[0] for name in ("a", "VLLM-8654")]
    assert same[0].path == same[1].path
    assert same[0].why == same[1].why


def test_the_command_prints_json(tmp_path):
    file = tmp_path / "cases.yaml"
    file.write_text(json.dumps([_case(*TABLE[index]).model_dump(mode="json") | {"id": str(index)} for index in (1, 3)]))
    result = CliRunner().invoke(app, ["replay", str(file), "--json", "-"])
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["ok"] == data["total"] == 2
    assert {"id", "path", "reason", "speedup", "losses", "ok", "why"} <= set(data["cases"][0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "a list of 1 to"),
        ("- 3", "a table"),
        ("- {id: a, gpu: x, stack: y, dtype: f16}", "expect: expected a value, found none"),
        ("- {id: a, gpu: x, stack: y, dtype: f16, m: -1, expect: {path: sparse, reason: eligible}}", "m: expected"),
        ("- {id: a, gpu: x, stack: y, dtype: f16, expect: {path: fast, reason: eligible}}", "path: expected"),
        ("- {id: a, gpu: x, stack: y, dtype: f16, expect: {path: sparse, reason: e, losses: [bad]}}", "losses out of"),
        ("{", "expected valid YAML"),
    ],
)
def test_faults_of_a_file_are_one_line_each(tmp_path, text, message):
    file = tmp_path / "cases.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=message):
        load_cases(file)


def test_the_project_s_own_file_of_cases_comes_out_as_it_says():
    outcomes = replay(load_cases(ROOT / "tests/data/cases.toml"))
    assert [outcome.why for outcome in outcomes if not outcome.ok] == []
    assert [outcome.path for outcome in outcomes] == ["sparse", "error"]
