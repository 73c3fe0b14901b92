"""What a decoder model looks like to a server: the sizes that decide GEMMs, KV cache and memory.

The packaged ones are those of the published ``config.json`` files; any other model is read from its own file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsesim.errors import ProblemList, UserError, nearest
from sparsesim.textfiles import read_json

__all__ = ["MODELS", "Linear", "ServedModel", "get_served_model"]

#: bytes of a 16-bit element: activations between layers, the KV cache, embedding and output layer
HALF = 2


@dataclass(frozen=True)
class Linear:
    """A weight GEMM of one layer: m out and k in features; `row` is split along k by tensor parallelism."""

    name: str
    m: int
    k: int
    row: bool


@dataclass(frozen=True)
class ServedModel:
    """A decoder-only transformer with grouped-query attention and a gated MLP.

    Parameters
    ----------
    layers, hidden, heads, kv_heads, head_dim, ffn, vocab : sizes as in ``config.json``
    tied : whether the output layer shares the embedding's weight
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    tied: bool
    source: str

    def linears(self) -> tuple[Linear, ...]:
        """The four weight GEMMs of a layer, as serving engines merge them."""
        query, pair = self.heads * self.head_dim, 2 * self.kv_heads * self.head_dim
        return (
            Linear("qkv", query + pair, self.hidden, row=False),
            Linear("o", self.hidden, query, row=True),
            Linear("gate_up", 2 * self.ffn, self.hidden, row=False),
            Linear("down", self.hidden, self.ffn, row=True),
        )

    def shards(self, tp: int) -> tuple[Linear, ...]:
        """`linears` as one of `tp` GPUs holds them: column-parallel ones lose rows, row-parallel ones columns.

        Raises
        ------
        UserError
            A side, the query heads or the vocabulary is no multiple of `tp`.
        """
        problems = ProblemList(self.name)
        for what, size in (("heads", self.heads), ("vocab", self.vocab), ("ffn", self.ffn)):
            if size % tp:
                problems.add("tp", f"a divisor of {what} = {size}", tp)
        if self.kv_heads % tp and tp % self.kv_heads:
            problems.add("tp", f"a divisor or a multiple of kv_heads = {self.kv_heads}", tp)
        problems.raise_if_any()
        kv = max(1, self.kv_heads // tp)
        sizes = {"qkv": (self.heads // tp + 2 * kv) * self.head_dim}
        return tuple(
            Linear(
                x.name,
                x.m if x.row else sizes.get(x.name, x.m // tp),
                x.k // tp if x.row else x.k,
                x.row,
            )
            for x in self.linears()
        )

    def kv_bytes_per_token(self, tp: int = 1) -> int:
        """KV cache of one token on one GPU, all layers [B]."""
        return self.layers * 2 * max(1, self.kv_heads // tp) * self.head_dim * HALF

    @property
    def unpruned_parameters(self) -> int:
        """Embedding and, where it is not tied, output layer: neither pruned nor quantised."""
        return self.vocab * self.hidden * (1 if self.tied else 2)


def _model(name: str, sizes: tuple[int, int, int, int, int, int, int], tied: bool, repository: str) -> ServedModel:
    return ServedModel(name, *sizes, tied, f"Hugging Face {repository} config.json")


#: layers, hidden, heads, KV heads, head size, FFN, vocabulary
_ALL = (
    _model("llama-3.2-1b", (16, 2048, 32, 8, 64, 8192, 128256), True, "meta-llama/Llama-3.2-1B"),
    _model("llama-3.2-3b", (28, 3072, 24, 8, 128, 8192, 128256), True, "meta-llama/Llama-3.2-3B"),
    _model("llama-3.1-8b", (32, 4096, 32, 8, 128, 14336, 128256), False, "meta-llama/Llama-3.1-8B"),
    _model("qwen2.5-7b", (28, 3584, 28, 4, 128, 18944, 152064), False, "Qwen/Qwen2.5-7B"),
    _model("qwen2.5-14b", (48, 5120, 40, 8, 128, 13824, 152064), False, "Qwen/Qwen2.5-14B"),
    _model("bitnet-2b", (30, 2560, 20, 5, 128, 6912, 128256), True, "microsoft/bitnet-b1.58-2B-4T"),
)
MODELS: dict[str, ServedModel] = {model.name: model for model in _ALL}


def get_served_model(name: str | Path) -> ServedModel:
    """The packaged model called `name` (``Llama3.2-1B`` finds ``llama-3.2-1b``), or that of a ``config.json``.

    Raises
    ------
    UserError
        No such name or file, or a file that lacks a size: every problem, one line each.
    """
    text = str(name)
    found = {_plain(key): model for key, model in MODELS.items()}.get(_plain(text))
    if found is not None:
        return found
    path = Path(text)
    if path.suffix == ".json" or path.is_file():
        return _from_config(path)
    expected = f"one of {', '.join(MODELS)}, or a config.json"
    raise UserError(f"model: expected {expected}, found {text!r}{nearest(text, MODELS)}")


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def _from_config(path: Path) -> ServedModel:
    """Read a Hugging Face ``config.json``."""
    config = read_json(path, "a config.json")
    problems = ProblemList(str(path))
    sizes = dict(_sizes(config, problems))
    tied = config.get("tie_word_embeddings", False)
    if not isinstance(tied, bool):
        problems.add("tie_word_embeddings", "true or false", tied)
    problems.raise_if_any()
    heads = sizes["num_attention_heads"]
    head_dim = sizes.get("head_dim", sizes["hidden_size"] // heads)
    return ServedModel(
        name=path.parent.name or path.stem,
        layers=sizes["num_hidden_layers"],
        hidden=sizes["hidden_size"],
        heads=heads,
        kv_heads=sizes.get("num_key_value_heads", heads),
        head_dim=head_dim,
        ffn=sizes["intermediate_size"],
        vocab=sizes["vocab_size"],
        tied=bool(tied),
        source=str(path),
    )


_REQUIRED = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")
_OPTIONAL = ("num_key_value_heads", "head_dim")


def _sizes(config: dict[str, Any], problems: ProblemList) -> Iterator[tuple[str, int]]:
    for key in (*_REQUIRED, *_OPTIONAL):
        value = config.get(key)
        if value is None and key in _OPTIONAL:
            continue
        if type(value) is not int or not 1 <= value <= 1 << 24:
            problems.add(key, "a positive integer", value)
        else:
            yield key, value
