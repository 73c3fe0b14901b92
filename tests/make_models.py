"""The models of the README, small enough to make in seconds: ``python tests/make_models.py out/models``.

vit.onnx            ViT-Tiny/16 as an export writes it, linear weights pruned to 2:4 along what they are summed over
pruned.safetensors  two decoder layers in f16: pruned to 2:4 by this project, but for what one wants to find in an audit
"""

import sys
from pathlib import Path

import numpy as np
from onnx_models import save, vit
from safetensors.numpy import save_file

from sparsesim.sparsity import Pattern, prune


def pruned_checkpoint(path, hidden=512, ffn=1376, vocab=2048):
    """2:4 everywhere but in the embedding, the output layer, and three layers that went wrong."""
    rng = np.random.default_rng(0)
    two_four = Pattern(2, 4)

    def dense(rows, k):
        return rng.standard_normal((rows, k)).astype(np.float16)

    tensors = {"model.embed_tokens.weight": dense(vocab, hidden), "lm_head.weight": dense(vocab, hidden)}
    for i in range(2):
        layer = f"model.layers.{i}"
        tensors |= {
            f"{layer}.self_attn.qkv_proj.weight": prune(dense(3 * hidden, hidden), two_four),
            f"{layer}.self_attn.o_proj.weight": prune(dense(hidden, hidden), two_four),
            f"{layer}.mlp.gate_up_proj.weight": prune(dense(2 * ffn, hidden), two_four),
            f"{layer}.mlp.down_proj.weight": prune(dense(hidden, ffn), two_four),
            f"{layer}.input_layernorm.weight": np.ones(hidden, np.float16),
        }
    # pruned along the wrong axis; a few weights trained on after pruning; another pattern
    tensors["model.layers.1.self_attn.o_proj.weight"] = prune(dense(hidden, hidden), two_four, axis=0)
    touched = tensors["model.layers.1.mlp.down_proj.weight"]
    touched.reshape(-1)[rng.choice(touched.size, 100, replace=False)] = 0.5
    tensors["model.layers.1.self_attn.qkv_proj.weight"] = prune(dense(3 * hidden, hidden), Pattern(4, 8))
    save_file(tensors, path)
    return path


def main(folder):
    """Write the models into `folder`."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    shape = {"layers": 12, "hidden": 192, "heads": 3, "ffn": 768, "image": 224, "patch": 16, "labels": 1000}
    save(vit(**shape, weight=lambda array: prune(array, Pattern(2, 4), axis=0)), folder / "vit.onnx")
    pruned_checkpoint(folder / "pruned.safetensors")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "out/models")
