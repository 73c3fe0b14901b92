"""A Hugging Face ``config.json`` as a workload of layers and phases.

The weights it describes have the pattern the caller assumes, or the one that a ``sparsity_config`` of the file
names; the output layer, routers and the embedding of patches stay dense, as pruners leave them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sparsesim.errors import Problem, ProblemList, UserError, nearest
from sparsesim.importers.hf_families import FAMILIES, Fields, Setting
from sparsesim.importers.imported import Imported, clean, tensor_core_dtype
from sparsesim.importers.transformer import layers_of
from sparsesim.textfiles import read_json
from sparsesim.weights.safetensors import MAX_JSON
from sparsesim.workload.expand import Overrides, Selection
from sparsesim.workload.model import parse_model
from sparsesim.workload.ops import canonical_pattern, size_issue
from sparsesim.workload.write import toml_table, toml_value

__all__ = ["PHASES", "import_hf_config"]

#: tokens (images, captions) of each phase where the caller names none
PHASES: dict[str, tuple[int, ...]] = {
    "prefill": (512, 2048),
    "decode": (1, 16, 64, 256),
    "encode": (512,),
    "inference": (1, 32),
    "text": (1, 32),
    "image": (1, 32),
}
CONTEXT = 2048
#: type where the config names none: what serving frameworks load such a model in
DEFAULT_DTYPE = "f16"
#: methods of `quantization_config` that multiply in a narrow type; all others unpack to 16 bits first
QUANTIZED = {"fp8": "e4m3", "fbgemm_fp8": "e4m3", "bitsandbytes_8bit": "i8"}


def import_hf_config(
    path: Path,
    pattern: str | None = None,
    dtype: str | None = None,
    phases: Mapping[str, Sequence[int]] | None = None,
    context: int | None = None,
) -> Imported:
    """Read the config at `path`.

    Parameters
    ----------
    pattern
        Of the prunable weights; by default that of the config's `sparsity_config`, else 2:4.
    dtype
        Instead of the config's.
    phases
        Token counts by phase instead of `PHASES`; only phases the model has.
    context
        Tokens before each decoded one (and of the encoder's sequence that a decoder attends to).

    Raises
    ------
    UserError
        If the family is unknown or fields are missing or impossible: every problem, one line each.
    """
    config = read_json(path, "a config.json", MAX_JSON)
    problems = ProblemList(str(path))
    if issue := size_issue("context", CONTEXT if context is None else context):
        problems.add_line(Problem.line("context", "", *issue[1:]))
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        line = Problem.line(str(path), "model_type", "one of " + ", ".join(FAMILIES), kind)
        problems.add_line(line + (nearest(kind, FAMILIES) if isinstance(kind, str) else ""))
        problems.raise_if_any()
    length = context or CONTEXT
    encoded = next(iter((phases or {}).get("encode", ())), PHASES["encode"][0])
    towers = FAMILIES[str(kind)](Fields(config, problems), Setting(length, encoded))
    notes: list[str] = []
    wide, found = _dtypes(config, problems, notes)
    found = dtype or found
    weights = pattern or _pattern(config, problems) or "2:4"
    chosen = _phases(problems, phases or {}, [phase for tower in towers for phase in tower.modes])
    problems.raise_if_any()
    canonical_pattern(weights)

    gemms: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    for tower in towers:
        more, beside = layers_of(tower, wide)
        gemms += more
        others += beside
    everywhere = set(chosen)
    if found in ("i8", "e4m3", "e2m1"):
        for layer in gemms:
            if layer.get("quantize") is False:
                layer["dtype"] = wide
    for layer in (*gemms, *others):
        if set(layer["phases"]) == everywhere:
            del layer["phases"]
    head = config.get("architectures")
    head = head[0] if isinstance(head, list) and head and isinstance(head[0], str) else ""
    if kind in ("bert", "roberta") and "For" in head:
        notes.append(f"the head of {clean(head)} is not counted: the encoder and its pooler alone")
    if any("attn_scores" in layer["name"] for layer in gemms):
        notes.append("attention is counted in full, as two products: nothing skipped for a mask, nothing fused")
    if "decode" in chosen:
        notes.append(f"decode: {length} tokens stand before each decoded one")
    if any("experts" in layer for layer in gemms):
        notes.append("experts: tokens choose at random and evenly; a real router loads some experts more")
    lines = tuple(_lines(config, path, weights, found, chosen, gemms, others, notes))
    workload = parse_model("\n".join(lines), path, Selection(), Overrides())
    return Imported(str(path), "hf-config", workload, tuple(notes), lines)


def _lines(
    config: dict[str, Any],
    path: Path,
    pattern: str,
    dtype: str,
    phases: dict[str, tuple[int, ...]],
    gemms: list[dict[str, Any]],
    others: list[dict[str, Any]],
    notes: list[str],
) -> Iterator[str]:
    """The TOML file of layers."""
    title = config.get("_name_or_path")
    name = title if isinstance(title, str) and title else path.parent.resolve().name
    stem = path.stem if path.stem != "config" else name.rpartition("/")[2]
    yield f"name = {toml_value(clean(stem, 'model'))}"
    yield f"description = {toml_value(clean('; '.join(notes), ''))}"
    yield f"source = {toml_value(f'Hugging Face config {clean(path.name)}: model_type ' + str(config['model_type']))}"
    if set(phases) == {"inference"}:
        yield 'unit = "image"'
    yield ""
    yield "[defaults]"
    yield f"dtype = {toml_value(dtype)}"
    yield f"pattern = {toml_value(canonical_pattern(pattern))}"
    yield ""
    yield "[phases]"
    yield from (f"{phase} = {toml_value(counts)}" for phase, counts in phases.items())
    for layer in gemms:
        yield from toml_table("layers", layer)
    for other in others:
        yield from toml_table("others", other)


def _phases(problems: ProblemList, wanted: Mapping[str, Sequence[int]], has: list[str]) -> dict[str, tuple[int, ...]]:
    """Token counts of each phase the model has."""
    for name in wanted:
        if name not in has:
            line = Problem.line(problems.where, "phase", "one of " + ", ".join(dict.fromkeys(has)), name)
            problems.add_line(line + nearest(name, has))
    return {phase: tuple(wanted.get(phase, PHASES[phase])) for phase in dict.fromkeys(has)}


def _dtypes(config: dict[str, Any], problems: ProblemList, notes: list[str]) -> tuple[str, str]:
    """The model's own type, and the one its quantised layers run in."""
    wide = _own_dtype(config, problems, notes)
    quantized = config.get("quantization_config")
    if not isinstance(quantized, dict):
        return wide, wide
    method = str(quantized.get("quant_method", "unknown"))
    key = "bitsandbytes_8bit" if method == "bitsandbytes" and quantized.get("load_in_8bit") is True else method
    narrow = _activations(quantized) if method == "compressed-tensors" else QUANTIZED.get(key)
    if narrow is None:
        notes.append(f"weights quantised by {clean(method)} are unpacked and multiplied in {wide}")
    return wide, narrow or wide


def _own_dtype(config: dict[str, Any], problems: ProblemList, notes: list[str]) -> str:
    """The type of the weights that are not quantised."""
    nested = config.get("text_config")
    for table in (config, nested if isinstance(nested, dict) else {}):
        for name in ("dtype", "torch_dtype"):
            value = table.get(name)
            if value is None:
                continue
            known = tensor_core_dtype(value) if isinstance(value, str) else None
            if known in ("f16", "bf16", "tf32"):
                return known
            problems.add(name, "float16, bfloat16 or float32", value)
            return DEFAULT_DTYPE
    notes.append(f"the config names no dtype: {DEFAULT_DTYPE} is assumed")
    return DEFAULT_DTYPE


def _activations(quantized: dict[str, Any]) -> str | None:
    """The type of a compressed-tensors model that quantises its activations to 8 bits too."""
    groups = quantized.get("config_groups")
    for group in groups.values() if isinstance(groups, dict) else ():
        inputs = group.get("input_activations") if isinstance(group, dict) else None
        if isinstance(inputs, dict) and inputs.get("num_bits") == 8:
            return "e4m3" if inputs.get("type") == "float" else "i8"
    return None


def _pattern(config: dict[str, Any], problems: ProblemList) -> str | None:
    """The pattern that the config's own `sparsity_config` (compressed-tensors) names."""
    quantized = config.get("quantization_config")
    for table in (quantized, config.get("compression_config"), config):
        sparsity = table.get("sparsity_config") if isinstance(table, dict) else None
        structure = sparsity.get("sparsity_structure") if isinstance(sparsity, dict) else None
        if isinstance(structure, str) and ":" in structure:
            try:
                return canonical_pattern(structure)
            except UserError:
                problems.add("sparsity_config.sparsity_structure", "a pattern N:M", structure)
    return None
