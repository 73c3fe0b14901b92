"""Hugging Face configs: every family against the library's own configuration and, with torch, its own models."""

import json
from pathlib import Path

import pytest

from sparsesim.errors import UserError
from sparsesim.importers import import_file
from sparsesim.importers.hf_families import FAMILIES
from sparsesim.workload import load_workload
from sparsesim.workload.expand import routed

LLAMA = Path(__file__).parent / "workloads" / "llama-3.1-8b-config.json"

LM = "AutoModelForCausalLM"
DECODER = {
    "hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
    "intermediate_size": 208, "vocab_size": 1000, "tie_word_embeddings": False, "pad_token_id": 0,
}  # fmt: skip
MOE = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 56}
ENCODER = {"hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 6, "intermediate_size": 208}
#: model_type -> (arguments of its configuration, its model class)
CASES = {
    "llama": (DECODER, LM),
    "mistral": (DECODER | {"sliding_window": 64}, LM),
    "qwen2": (DECODER, LM),
    "qwen3": (DECODER | {"head_dim": 24}, LM),
    "gemma": (DECODER | {"head_dim": 32}, LM),
    "gemma2": (DECODER | {"head_dim": 32}, LM),
    "gemma3_text": (DECODER | {"head_dim": 32}, LM),
    "phi": (DECODER, LM),
    "phi3": (DECODER, LM),
    "gpt2": ({"n_embd": 96, "n_layer": 3, "n_head": 6, "vocab_size": 1000, "tie_word_embeddings": False}, LM),
    "gpt_neox": ({k: v for k, v in DECODER.items() if k != "num_key_value_heads"}, LM),
    "opt": ({"hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 6, "ffn_dim": 208, "vocab_size": 1000,
             "word_embed_proj_dim": 48, "tie_word_embeddings": False}, LM),
    "bert": (ENCODER | {"vocab_size": 1000}, "AutoModel"),
    "roberta": (ENCODER | {"vocab_size": 1000}, "AutoModel"),
    "vit": (ENCODER | {"image_size": 64, "patch_size": 16, "num_labels": 10}, "AutoModelForImageClassification"),
    "clip": ({"text_config": {"hidden_size": 64, "num_attention_heads": 4}, "vision_config": {"image_size": 64}},
             "AutoModel"),
    "t5": ({"d_model": 96, "d_kv": 24, "d_ff": 208, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 6,
            "vocab_size": 1000, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
           "AutoModelForSeq2SeqLM"),
    "mixtral": (DECODER | {"num_local_experts": 8, "num_experts_per_tok": 2}, LM),
    "qwen2_moe": (DECODER | MOE | {"shared_expert_intermediate_size": 80, "decoder_sparse_step": 2}, LM),
    "qwen3_moe": (DECODER | MOE | {"mlp_only_layers": [0], "head_dim": 24}, LM),
}  # fmt: skip
#: elements of all weights that multiply, in these configurations
WEIGHTS = {
    "llama": 349440, "mistral": 349440, "qwen2": 349440, "qwen3": 386304, "gemma": 423168, "gemma2": 423168,
    "gemma3_text": 423168, "phi": 289536, "phi3": 349440, "gpt2": 427776, "gpt_neox": 326400, "opt": 287616,
    "bert": 239616, "roberta": 239616, "vit": 305088, "clip": 91062272, "t5": 782592, "mixtral": 1609728,
    "qwen2_moe": 442464, "qwen3_moe": 526080,
}  # fmt: skip
#: what is looked up and not multiplied
EMBEDDINGS = (
    "embed_tokens", "wte", "wpe", "word_embeddings", "embed_positions", "position_embedding", "token_type",
    "embed_in", "shared.weight", "cls_token", "token_embedding", "relative_attention_bias", "class_embedding",
)  # fmt: skip


def made(tmp_path, kind, **more):
    """A config.json that the library wrote, and its configuration object."""
    transformers = pytest.importorskip("transformers", reason="the library that writes the configs")
    config = transformers.AutoConfig.for_model(kind, **CASES[kind][0] | more)
    config.save_pretrained(tmp_path)
    return tmp_path / "config.json", config


def weights_of(workload):
    """Elements of all weights, experts included, counted once: tokens are so many that all experts are reached."""
    once = {}
    for op in workload.ops:
        if op.kind != "matmul":
            once[op.name.partition("/")[2]] = op.m * op.k * op.count * (op.batch if "experts." in op.name else 1)
    return sum(once.values())


def test_every_family_has_a_case():
    assert set(CASES) | {"gemma3"} == set(FAMILIES)


@pytest.mark.parametrize("kind", CASES)
def test_the_layers_hold_the_weights_of_the_family(kind, tmp_path):
    path, _ = made(tmp_path, kind)
    phases = {name.partition("-")[0] for name in import_file(path).workload.phases()}
    imported = import_file(path, phases={phase: [4096] for phase in phases})
    assert {op.family for op in imported.workload.ops} >= {"attn_scores", "attn_values", "attn_out"}
    assert imported.workload.others
    assert weights_of(imported.workload) == WEIGHTS[kind]


@pytest.mark.parametrize("kind", CASES)
def test_the_weights_of_the_family_are_those_of_the_librarys_model(kind, tmp_path):
    torch = pytest.importorskip("torch", reason="builds the library's models")
    import transformers

    _, config = made(tmp_path, kind)
    with torch.device("meta"):
        model = getattr(transformers, CASES[kind][1]).from_config(config)
    expected = {
        name: parameter.numel()
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if parameter.ndim >= 2 and not any(word in name for word in EMBEDDINGS)
    }
    assert sum(expected.values()) == WEIGHTS[kind], expected


def written(tmp_path, **config):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    return path


def test_gemma_of_text_and_images_as_published(tmp_path):
    """google/gemma-3-4b-it: 4 300 079 472 parameters, and so many of them do not multiply."""
    text = {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
            "sliding_window": 1024}  # fmt: skip
    vision = {"hidden_size": 1152, "image_size": 896, "intermediate_size": 4304, "model_type": "siglip_vision_model",
              "num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14}  # fmt: skip
    path = written(tmp_path, model_type="gemma3", text_config=text, vision_config=vision, mm_tokens_per_image=256)
    phases = {"prefill": [64], "decode": [4], "image": [1]}
    imported = import_file(path, phases=phases)
    positions, norms = 4096 * 1152, 34 * (4 * 2560 + 2 * 256) + 2560
    vision_rest = 27 * (4 * 1152 + 4304 + 1152 + 4 * 1152) + 1152 + 2 * 1152 + 1152
    assert weights_of(imported.workload) + positions + norms + vision_rest == 4_300_079_472
    # its text alone, whose table leaves out what the library has by default
    alone = import_file(written(tmp_path, **text, torch_dtype="bfloat16"), phases={"prefill": [64], "decode": [4]})
    ops = [op for op in imported.workload.ops if "vision" not in op.name]
    assert [(op.name, op.m, op.k, op.count) for op in ops] == [
        (op.name, op.m, op.k, op.count) for op in alone.workload.ops
    ]


def test_the_older_spelling_of_a_table_counts_as_the_library_takes_it(tmp_path):
    transformers = pytest.importorskip("transformers", reason="says what such a config means")
    config = {
        "model_type": "clip", "projection_dim": 96,
        "text_config": None, "text_config_dict": {"hidden_size": 96, "num_attention_heads": 6},
        "vision_config": {"hidden_size": 64, "patch_size": 16, "num_hidden_layers": 5},
        "vision_config_dict": {"hidden_size": 192, "patch_size": 16},
    }  # fmt: skip
    old = import_file(written(tmp_path, **config)).workload.ops
    transformers.AutoConfig.from_pretrained(tmp_path).save_pretrained(tmp_path)
    assert "text_config_dict" not in json.loads((tmp_path / "config.json").read_text())
    assert import_file(tmp_path / "config.json").workload.ops == old
    with pytest.raises(UserError, match="text_config_dict: expected a table, found 5"):
        import_file(written(tmp_path, **config | {"text_config_dict": 5}))


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize(
    "kind", ["mistral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "gemma2", "gemma3_text", "phi3", "mixtral"]
)
def test_windows_are_in_the_layers_where_the_library_has_them(kind, listed, tmp_path):
    more = {"use_sliding_window": True, "max_window_layers": 2} if kind.startswith("qwen") else {}
    path, config = made(tmp_path, kind, sliding_window=128, num_hidden_layers=7, **more)
    kinds = getattr(config, "layer_types", None)
    local = kinds.count("sliding_attention") if kinds is not None else 7
    if not listed:  # as files of before this list have it
        fields = json.loads(path.read_text())
        fields.pop("layer_types", None)
        written(tmp_path, **fields)
    ops = import_file(path, phases={"decode": [4]}, context=512).workload.ops
    assert sum(op.count for op in ops if op.name == "decode-4/local.attn_scores") == local
    assert sum(op.count for op in ops if op.family == "attn_scores" and op.name.startswith("decode")) == 7


def test_a_head_that_is_not_counted_is_named(tmp_path):
    fields = {**ENCODER, "vocab_size": 1000, "model_type": "bert"}
    named = "the head of BertForMaskedLM is not counted: the encoder and its pooler alone"
    assert named in import_file(written(tmp_path, **fields, architectures=["BertForMaskedLM"])).notes
    for architectures in (["BertModel"], None, [], [5], "BertForMaskedLM"):
        notes = import_file(written(tmp_path, **fields, architectures=architectures)).notes
        assert not any("head" in note for note in notes)


def test_llama_is_the_packaged_workload_and_its_attention(tmp_path):
    imported = import_file(LLAMA, phases={"prefill": [2048], "decode": [64]})
    packaged = {op.name: op for op in load_workload("llama-3.1-8b").ops}
    mine = {op.name: op for op in imported.workload.ops}
    for name, op in mine.items():
        if op.kind != "matmul":
            assert op == packaged[name]
    scores, values = mine["prefill-2048/attn_scores"], mine["prefill-2048/attn_values"]
    # 32 heads: queries × keys × head size each, in 32 layers
    assert scores.macs * scores.count == values.macs * values.count == 32 * 32 * 2048 * 2048 * 128
    assert mine["decode-64/attn_scores"].macs == 64 * 32 * 2048 * 128
    # embedding, 65 norms over the weights once, and so on: all named
    assert {other.op for other in imported.workload.others} == {
        "embedding", "rms-norm", "rotary positions", "write to the key/value cache", "softmax", "add", "silu and gate",
    }  # fmt: skip
    softmax = next(o for o in imported.workload.others if o.name == "prefill-2048/softmax")
    assert (softmax.bytes, softmax.flops, softmax.count) == (2 * 2 * 32 * 2048**2, 5 * 32 * 2048**2, 32)


@pytest.mark.parametrize("suffix", [".toml", ".jsonl"])
@pytest.mark.parametrize("kind", ["llama", "qwen2_moe", "clip", "t5"])
def test_what_is_written_reads_back_as_the_same_workload(kind, suffix, tmp_path):
    imported = import_file(made(tmp_path, kind)[0])
    out = tmp_path / f"out{suffix}"
    imported.write(out)
    read = load_workload(out)
    assert read.ops == imported.workload.ops
    assert read.others == imported.workload.others
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_toml_of_layers_runs_at_other_token_counts(tmp_path):
    import_file(LLAMA).write(tmp_path / "llama.toml")
    loaded = load_workload(tmp_path / "llama.toml", phase="prefill", tokens=100)
    sizes = {op.name: (op.m, op.n, op.k, op.batch) for op in loaded.ops}
    assert sizes["prefill-100/attn_scores"] == (100, 400, 128, 8)
    assert sizes["prefill-100/attn_values"] == (128, 400, 100, 8)
    narrow = load_workload(tmp_path / "llama.toml", phase="prefill", tokens=100, dtype="i8")
    assert {op.name: op.dtype for op in narrow.ops}["prefill-100/attn_scores"] == "bf16"


def test_experts_are_routed(tmp_path):
    assert routed(1, 8, 2) == (2, 1)
    assert routed(4096, 8, 2) == (8, 1024)
    # 16 tokens leave an expert out with probability (3/4)^16 = 1 %
    assert routed(16, 8, 2) == (8, 4)
    imported = import_file(made(tmp_path, "mixtral")[0], phases={"decode": [1]})
    ops = {op.name: op for op in imported.workload.ops}
    up = ops["decode-1/experts.gate_up"]
    assert (up.m, up.n, up.k, up.batch, up.count) == (2 * 208, 1, 96, 2, 3)
    assert ops["decode-1/router"].pattern == "dense"
    assert any("experts" in note for note in imported.notes)


def test_windows_and_cross_attention_bound_what_a_decoded_token_sees(tmp_path):
    gemma = import_file(made(tmp_path, "gemma2", sliding_window=128)[0], phases={"decode": [4]}, context=512)
    keys = {op.name: (op.m, op.count) for op in gemma.workload.ops if op.family == "attn_scores"}
    assert keys["decode-4/attn_scores"] == (512, 1)
    assert keys["decode-4/local.attn_scores"] == (128, 2)
    t5 = import_file(made(tmp_path, "t5")[0], phases={"encode": [333], "decode": [4]}, context=50)
    ops = {op.name: op for op in t5.workload.ops}
    assert ops["decode-4/decoder.cross.attn_scores"].m == 333
    assert ops["encode-333/decoder.cross.kv"].n == 333


@pytest.mark.parametrize(
    ("quantized", "dtype", "pattern"),
    [
        ({"quant_method": "fp8"}, "e4m3", "2:4"),
        ({"quant_method": "gptq", "bits": 4}, "bf16", "2:4"),
        ({"quant_method": "compressed-tensors", "sparsity_config": {"sparsity_structure": "2:4"},
          "config_groups": {"g": {"input_activations": {"num_bits": 8, "type": "int"}}}}, "i8", "2:4"),
        ({"quant_method": "compressed-tensors", "sparsity_config": {"sparsity_structure": "1:4"}}, "bf16", "1:4"),
    ],
)  # fmt: skip
def test_quantised_models_run_in_their_type_and_keep_the_rest_wide(quantized, dtype, pattern, tmp_path):
    config = json.loads(LLAMA.read_text()) | {"quantization_config": quantized}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    ops = {op.name: op for op in import_file(path).workload.ops}
    assert (ops["prefill-512/qkv"].dtype, ops["prefill-512/qkv"].pattern) == (dtype, pattern)
    assert ops["prefill-512/lm_head"].dtype == ops["prefill-512/attn_scores"].dtype == "bf16"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"model_type": "lama"}, "model_type: expected one of llama"),
        ({"model_type": None}, "model_type: expected one of"),
        ({"hidden_size": None}, "hidden_size: expected a positive integer, found 'no such field'"),
        ({"hidden_size": -1}, "hidden_size: expected a positive integer, found -1"),
        ({"hidden_size": 1 << 40}, "hidden_size: expected an integer of at most"),
        ({"hidden_size": "4096"}, "hidden_size: expected a positive integer, found '4096'"),
        ({"num_key_value_heads": 5}, "num_key_value_heads: expected a divisor of the 32 heads, found 5"),
        ({"num_attention_heads": 7, "num_key_value_heads": 7}, "num_attention_heads: expected a divisor of the hidden"),
        ({"torch_dtype": "complex64"}, "torch_dtype: expected float16"),
        ({"sparsity_config": {"sparsity_structure": "9:4"}}, "sparsity_structure: expected a pattern"),
    ],
)
def test_a_bad_config_is_one_line_for_each_problem(change, expected, tmp_path):
    config = {k: v for k, v in (json.loads(LLAMA.read_text()) | change).items() if v is not None}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    with pytest.raises(UserError) as caught:
        import_file(path)
    assert any(expected in line and line.startswith(str(path)) for line in caught.value.problems)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"model_type": "llama", "model_type": "opt"}', "\ud800"])
def test_what_is_no_json_object_is_one_error(text, tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(UserError) as caught:
        import_file(path, format="hf-config")
    assert len(caught.value.problems) == 1


def test_options_of_another_format_are_refused():
    with pytest.raises(UserError, match="dims: expected no such option for a Hugging Face"):
        import_file(LLAMA, dims={"batch": 1})
    with pytest.raises(UserError, match=r"found 'prefil' .did you mean 'prefill'"):
        import_file(LLAMA, phases={"prefil": [1]})
    with pytest.raises(UserError, match="context: expected a positive integer"):
        import_file(LLAMA, context=0)
