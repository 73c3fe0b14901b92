"""What a stack knows of one call beside the op itself: its version, its caller, how the model was built.

`Setting` travels with a stack; the rules of its file ask it, and `OpFacts` for the op.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["FLAGS", "Setting"]

#: words that say how a call comes about; rules and cases use them
FLAGS = {
    "bert": "the model is a BERT-like encoder",
    "bias": "the layer has a bias",
    "cnn": "the model is a convolutional network",
    "compiled": "the model is compiled (torch.compile)",
    "decoder": "the model is a decoder-only language model",
    "draft": "a development build before the first release",
    "eager": "every op is its own framework call",
    "gemm-plugin": "GEMMs go to the plugin of the stack",
    "library": "the library is called directly, by its own samples' layout unless one is given",
    "model": "the op is a layer of a running model: its result is read by the next op",
    "moe": "experts' weights are one tensor",
    "no-plugin": "GEMMs stay with the builder",
    "plan-cache": "plans are kept between calls",
    "qdq": "quantisation nodes stand in the graph",
    "searched": "algorithms were searched, and the best is given to the call",
    "sparsity-off": "the option that enables sparse kernels is not set",
    "training": "forward and backward",
    "vit": "the model is a vision transformer",
    "without-library": "the framework was built without the sparse library",
}


@dataclass(frozen=True)
class Setting:
    """Circumstances of a call.

    Parameters
    ----------
    version : of the stack, a dotted number
    caller : product whose version was named instead of the stack's, e.g. ``torchao`` in ``torchao 0.8``; or ""
    caller_version : its version, or ""
    flags : of `FLAGS`
    layout : of both operands, ``TN``, ``NN``, ``NT`` or ``TT`` in the column-major words of BLAS for D = A·B with A
        and B stored along k as T and N; "" = what the stack makes by itself
    weight : type of the stored weight where it is not the op's, e.g. ``w4a16``; or ""
    """

    version: str = ""
    caller: str = ""
    caller_version: str = ""
    flags: frozenset[str] = field(default_factory=frozenset)
    layout: str = ""
    weight: str = ""
