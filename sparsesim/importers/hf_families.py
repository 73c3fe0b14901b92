"""Which fields a Hugging Face model family has, and the towers they describe.

Sources: the configuration and modelling files of the `transformers` library, one per family (a test compares
every linear layer with those of the library's own models). A field that the library leaves out of a
``config.json`` has the default of its configuration class, as given here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sparsesim.errors import ProblemList
from sparsesim.importers.transformer import ACTIVATION_FLOPS, Experts, Tower
from sparsesim.workload.ops import size_issue

__all__ = ["FAMILIES", "Fields", "Setting"]

_MISSING: Any = object()


class Fields:
    """A table of a config whose fields are checked as they are read; problems go to `problems`."""

    def __init__(self, values: dict[str, Any], problems: ProblemList, path: str = "") -> None:
        self.values = values
        self.problems = problems
        self.path = path

    def size(self, *names: str, default: Any = _MISSING) -> int:
        """A size by the first of `names` that is there (null counts as absent); 1 after a problem."""
        for name in names:
            value = self.values.get(name)
            if value is not None:
                if issue := size_issue(name, value):
                    self.problems.add(self.path + name, *issue[1:])
                    return 1
                return int(value)
        if default is _MISSING:
            self.problems.add(self.path + names[0], "a positive integer", "no such field")
            return 1
        return int(default)

    def count(self, name: str, default: int = 0) -> int:
        """A size that may be 0."""
        return 0 if self.values.get(name) == 0 else self.size(name, default=default)

    def flag(self, name: str, default: bool) -> bool:
        """A truth value."""
        value = self.values.get(name, default)
        if not isinstance(value, bool):
            self.problems.add(self.path + name, "true or false", value)
            return default
        return value

    def table(self, name: str, defaults: dict[str, Any]) -> Fields:
        """A nested table over the library's defaults, which it leaves out; those alone if it is absent.

        An older spelling, the name with ``_dict`` behind it, holds the whole table and counts for more.
        """
        values = dict(defaults)
        for key, under in ((name, {}), (f"{name}_dict", defaults)):
            value = self.values.get(key)
            if value is not None and not isinstance(value, dict):
                self.problems.add(self.path + key, "a table", value)
            elif value is not None:
                values |= {**under, **value}
        return Fields(values, self.problems, f"{self.path}{name}.")

    def activation(self, *names: str, default: str) -> str:
        """The kind of activation function, by its FLOPs."""
        text = next((self.values[name] for name in names if isinstance(self.values.get(name), str)), default)
        return next((kind for kind in ACTIVATION_FLOPS if kind in text.lower()), "silu" if "swish" in text else "gelu")


@dataclass(frozen=True)
class Setting:
    """What a caller chooses: tokens before a decoded one, and tokens of the encoder's sequence."""

    context: int
    encoded: int


Family = Callable[[Fields, Setting], list[Tower]]

_LM = {"prefill": "prefill", "decode": "decode"}
_ENCODE = {"encode": "encode"}
_IMAGE = {"inference": "image"}
_TOWER_IMAGE = {"image": "image"}


def _heads(f: Fields, hidden: int, *names: str, kv: str = "num_key_value_heads") -> dict[str, Any]:
    """Heads, key/value heads and head size; impossible ones are reported."""
    heads = f.size(*names)
    kv_heads = f.size(kv, default=heads)
    if heads % kv_heads:
        f.problems.add(f.path + kv, f"a divisor of the {heads} heads", kv_heads)
        kv_heads = heads
    if f.values.get("head_dim") is None and hidden % heads:
        f.problems.add(f.path + names[0], f"a divisor of the hidden size {hidden}", heads)
    return {"heads": heads, "kv_heads": kv_heads, "head_dim": f.size("head_dim", default=max(1, hidden // heads))}


def _decoder(f: Fields, setting: Setting, **more: Any) -> Tower:
    """The decoder that most families share: RMS norms, rotary positions, gated feed-forward."""
    hidden = f.size("hidden_size")
    common: dict[str, Any] = {
        "hidden": hidden,
        "layers": f.size("num_hidden_layers"),
        **_heads(f, hidden, "num_attention_heads"),
        "ffn": f.size("intermediate_size"),
        "gated": True,
        "modes": _LM,
        "activation": f.activation("hidden_activation", "hidden_act", default="silu"),
        "norm": "rms",
        "rope": True,
        "vocab": f.size("vocab_size"),
        "context": setting.context,
    }
    return Tower(**{**common, **more})


def _sliding(f: Fields, layers: int, local: int | None = None) -> tuple[int, int] | None:
    """(window, layers that use it) where the config says so."""
    if f.values.get("sliding_window") is None or f.values.get("use_sliding_window") is False:
        return None
    kinds = f.values.get("layer_types")
    if isinstance(kinds, list):
        local = sum(kind == "sliding_attention" for kind in kinds)
    return f.size("sliding_window"), min(layers, layers if local is None else local)


def _llama(f: Fields, setting: Setting) -> list[Tower]:
    return [_decoder(f, setting)]


def _mistral(f: Fields, setting: Setting) -> list[Tower]:
    return [_decoder(f, setting, window=_sliding(f, f.size("num_hidden_layers")))]


def _qwen_window(f: Fields, alternating: bool = False) -> tuple[int, int] | None:
    """Qwen has windows only if it says so: in the layers from `max_window_layers` on, or in every other one before."""
    layers, edge = f.size("num_hidden_layers"), f.count("max_window_layers", 28)
    if not f.flag("use_sliding_window", False):
        return None
    return _sliding(f, layers, -(-min(edge, layers) // 2) if alternating else max(0, layers - edge))


def _qwen2(f: Fields, setting: Setting) -> list[Tower]:
    return [_decoder(f, setting, window=_qwen_window(f))]


def _qwen3(f: Fields, setting: Setting) -> list[Tower]:
    return [_decoder(f, setting, qk_norm=True, window=_qwen_window(f))]


def _gemma(f: Fields, setting: Setting) -> list[Tower]:
    return [_decoder(f, setting, activation="gelu")]


def _gemma2(f: Fields, setting: Setting) -> list[Tower]:
    layers = f.size("num_hidden_layers")
    return [_decoder(f, setting, activation="gelu", norms=4, window=_sliding(f, layers, -(-layers // 2)))]


#: defaults of the library's configuration classes, which it leaves out of the tables of a composed config.json
_GEMMA3_TEXT = {"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
                "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208, "sliding_window": 4096}  # fmt: skip
_SIGLIP_VISION = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
                  "num_channels": 3, "image_size": 224, "patch_size": 16,
                  "hidden_act": "gelu_pytorch_tanh"}  # fmt: skip


def _gemma3(f: Fields, setting: Setting) -> list[Tower]:
    """Text and images, as the larger ones are published; their text alone as gemma3_text."""
    if f.values.get("text_config") is None:
        return _gemma3_text(f, setting)
    text, vision = f.table("text_config", _GEMMA3_TEXT), f.table("vision_config", _SIGLIP_VISION)
    high = vision.size("hidden_size")
    count, embed = _patches(vision, high)
    projector = {"name": "projector", "family": "projection", "m": text.size("hidden_size"), "k": high,
                 "n_per_unit": f.size("mm_tokens_per_image", default=256)}  # fmt: skip
    images = Tower(
        high, vision.size("num_hidden_layers"), **_heads(vision, high, "num_attention_heads"),
        ffn=vision.size("intermediate_size"), gated=False, modes=_TOWER_IMAGE, prefix="vision.", seq=count,
        activation=vision.activation("hidden_act", default="gelu"), extra=(embed, projector),
    )  # fmt: skip
    return [*_gemma3_text(text, setting), images]


def _gemma3_text(f: Fields, setting: Setting) -> list[Tower]:
    f.values = {**_GEMMA3_TEXT, **f.values}
    layers = f.size("num_hidden_layers")
    every = f.size("sliding_window_pattern", "_sliding_window_pattern", default=6)
    window = _sliding(f, layers, layers - layers // every)
    return [_decoder(f, setting, activation="gelu", norms=4, qk_norm=True, window=window)]


def _phi(f: Fields, setting: Setting) -> list[Tower]:
    activation = f.activation("hidden_act", default="gelu_new")
    return [_decoder(f, setting, gated=False, activation=activation, norm="layer", norms=1)]


def _experts(f: Fields, ffn: str, layers: int, shared: int = 0) -> Experts:
    """Routed experts; the number a token takes cannot exceed the number there is."""
    experts, per_token = f.size("num_experts", "num_local_experts"), f.size("num_experts_per_tok")
    if per_token > experts:
        f.problems.add(f.path + "num_experts_per_tok", f"at most the {experts} experts", per_token)
    return Experts(experts, per_token, f.size(ffn), layers, shared)


def _mixtral(f: Fields, setting: Setting) -> list[Tower]:
    layers = f.size("num_hidden_layers")
    experts = _experts(f, "intermediate_size", layers)
    return [_decoder(f, setting, experts=experts, window=_sliding(f, layers))]


def _routed_layers(f: Fields) -> int:
    """Layers that Qwen routes: every `decoder_sparse_step`-th that is not in `mlp_only_layers`."""
    layers, step = f.size("num_hidden_layers"), f.size("decoder_sparse_step", default=1)
    listed = f.values.get("mlp_only_layers") or []
    plain = set(listed) if isinstance(listed, list) and all(isinstance(item, int) for item in listed) else set()
    return sum(1 for layer in range(layers) if layer not in plain and (layer + 1) % step == 0)


def _qwen2_moe(f: Fields, setting: Setting) -> list[Tower]:
    shared = f.size("shared_expert_intermediate_size")
    experts = _experts(f, "moe_intermediate_size", _routed_layers(f), shared)
    gate = {"name": "shared.gate", "family": "router", "m": 1, "k": f.size("hidden_size"), "count": experts.layers}
    gate |= {"pattern": "dense", "quantize": False}
    return [_decoder(f, setting, experts=experts, extra=(gate,), window=_qwen_window(f, alternating=True))]


def _qwen3_moe(f: Fields, setting: Setting) -> list[Tower]:
    experts = _experts(f, "moe_intermediate_size", _routed_layers(f))
    window = _sliding(f, f.size("num_hidden_layers")) if f.flag("use_sliding_window", False) else None
    return [_decoder(f, setting, qk_norm=True, experts=experts, window=window)]


def _gpt2(f: Fields, setting: Setting) -> list[Tower]:
    hidden = f.size("n_embd", "hidden_size")
    return [
        Tower(
            hidden, f.size("n_layer", "num_hidden_layers"), **_heads(f, hidden, "n_head", "num_attention_heads"),
            ffn=f.size("n_inner", default=4 * hidden), gated=False, modes=_LM, vocab=f.size("vocab_size"),
            activation=f.activation("activation_function", default="gelu_new"), context=setting.context,
        )
    ]  # fmt: skip


def _gpt_neox(f: Fields, setting: Setting) -> list[Tower]:
    activation = f.activation("hidden_act", default="gelu")
    return [_decoder(f, setting, gated=False, activation=activation, norm="layer")]


def _opt(f: Fields, setting: Setting) -> list[Tower]:
    hidden = f.size("hidden_size")
    word = f.size("word_embed_proj_dim", default=hidden)
    extra: tuple[dict[str, Any], ...] = ()
    if word != hidden:
        extra = (
            {"name": "project_in", "family": "projection", "m": hidden, "k": word},
            {"name": "project_out", "family": "projection", "m": word, "k": hidden},
            {"name": "lm_head", "family": "lm_head", "m": f.size("vocab_size"), "k": word, "pattern": "dense",
             "quantize": False, "n": 1, "phases": ["prefill"]},
            {"name": "lm_head", "family": "lm_head", "m": f.size("vocab_size"), "k": word, "pattern": "dense",
             "quantize": False, "phases": ["decode"]},
        )  # fmt: skip
    return [
        Tower(
            hidden, f.size("num_hidden_layers"), **_heads(f, hidden, "num_attention_heads"),
            ffn=f.size("ffn_dim"), gated=False, modes=_LM, vocab=f.size("vocab_size"), lm_head=word == hidden,
            activation=f.activation("activation_function", default="relu"), context=setting.context, extra=extra,
        )
    ]  # fmt: skip


def _bert(f: Fields, setting: Setting) -> list[Tower]:
    hidden = f.size("hidden_size")
    pooler = {"name": "pooler", "family": "classifier", "m": hidden, "k": hidden, "n": 1}
    return [
        Tower(
            hidden, f.size("num_hidden_layers"), **_heads(f, hidden, "num_attention_heads"),
            ffn=f.size("intermediate_size"), gated=False, modes=_ENCODE, vocab=f.size("vocab_size"), lm_head=False,
            activation=f.activation("hidden_act", default="gelu"), extra=(pooler,),
        )
    ]  # fmt: skip


def _patches(f: Fields, hidden: int) -> tuple[int, dict[str, Any]]:
    """Patches of an image, and the convolution that embeds them."""
    image, patch = f.size("image_size"), f.size("patch_size")
    channels = f.size("num_channels", default=3)
    if image % patch:
        f.problems.add(f.path + "patch_size", f"a divisor of image_size {image}", patch)
    count = max(1, image // patch) ** 2
    embed = {"name": "patch_embed", "family": "patch_embed", "m": hidden, "k": channels * patch**2,
             "n_per_unit": count, "kind": "conv", "pattern": "dense", "quantize": False}  # fmt: skip
    return count, embed


def _vit(f: Fields, setting: Setting) -> list[Tower]:
    hidden = f.size("hidden_size")
    count, embed = _patches(f, hidden)
    extra: tuple[dict[str, Any], ...] = (embed,)
    labels = f.values.get("id2label")
    if isinstance(labels, dict) and labels:
        extra += ({"name": "classifier", "family": "classifier", "m": len(labels), "k": hidden, "pattern": "dense",
                   "quantize": False},)  # fmt: skip
    return [
        Tower(
            hidden, f.size("num_hidden_layers"), **_heads(f, hidden, "num_attention_heads"),
            ffn=f.size("intermediate_size"), gated=False, modes=_IMAGE, seq=count + 1,
            activation=f.activation("hidden_act", default="gelu"), extra=extra,
        )
    ]  # fmt: skip


_CLIP_TEXT = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 8,
              "vocab_size": 49408, "max_position_embeddings": 77, "hidden_act": "quick_gelu"}  # fmt: skip
_CLIP_VISION = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
                "num_channels": 3, "image_size": 224, "patch_size": 32, "hidden_act": "quick_gelu"}  # fmt: skip


def _clip(f: Fields, setting: Setting) -> list[Tower]:
    text, vision = f.table("text_config", _CLIP_TEXT), f.table("vision_config", _CLIP_VISION)
    wide, high = text.size("hidden_size"), vision.size("hidden_size")
    joint = f.size("projection_dim", default=512)
    count, embed = _patches(vision, high)
    # A unit of phase text is one caption, which is padded to the longest.
    towers = []
    for fields, prefix, hidden, seq, phase, extra in (
        (text, "text.", wide, text.size("max_position_embeddings"), "text", ()),
        (vision, "vision.", high, count + 1, "image", (embed,)),
    ):
        projection = {"name": "projection", "family": "projection", "m": joint, "k": hidden}
        towers.append(
            Tower(
                hidden, fields.size("num_hidden_layers"), **_heads(fields, hidden, "num_attention_heads"),
                ffn=fields.size("intermediate_size"), gated=False, modes={phase: "image"}, prefix=prefix, seq=seq,
                vocab=fields.size("vocab_size") if phase == "text" else 0, lm_head=False,
                activation=fields.activation("hidden_act", default="gelu"), extra=(*extra, projection),
            )
        )  # fmt: skip
    return towers


def _t5(f: Fields, setting: Setting) -> list[Tower]:
    hidden, heads = f.size("d_model"), f.size("num_heads")
    layers = f.size("num_layers")
    text = str(f.values.get("feed_forward_proj", "relu"))
    common: dict[str, Any] = {
        "hidden": hidden, "heads": heads, "kv_heads": heads, "head_dim": f.size("d_kv"), "ffn": f.size("d_ff"),
        "gated": f.flag("is_gated_act", text.startswith("gated")), "norm": "rms", "vocab": f.size("vocab_size"),
        "activation": "relu" if "relu" in text else "gelu",
    }  # fmt: skip
    decoder = f.size("num_decoder_layers", default=layers)
    return [
        Tower(layers=layers, modes=_ENCODE, prefix="encoder.", lm_head=False, **common),
        Tower(
            layers=decoder, modes={"decode": "decode"}, prefix="decoder.", norms=3, context=setting.context,
            cross=setting.encoded, encoder_phases=("encode",), **common,
        ),
    ]  # fmt: skip


FAMILIES: dict[str, Family] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma3_text": _gemma3_text,
    "phi": _phi,
    "phi3": _mistral,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "opt": _opt,
    "bert": _bert,
    "roberta": _bert,
    "vit": _vit,
    "clip": _clip,
    "t5": _t5,
    "mixtral": _mixtral,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen3_moe,
}
"""`model_type` of a ``config.json`` -> the towers it describes."""
