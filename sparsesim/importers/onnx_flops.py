"""What ONNX ops beside products cost: FLOPs by element, and which move data or do not even that."""

from __future__ import annotations

__all__ = ["CONTROL", "FREE", "LIKE_FIRST", "MOVES", "PER_INPUT", "PER_OUTPUT", "POOLS"]


def _named(text: str) -> frozenset[str]:
    return frozenset(text.split())


FREE = _named("Reshape Squeeze Unsqueeze Flatten Identity Shape Size Dropout Constant")
"""Ops that only rename or describe: no data move."""

MOVES = _named(
    """
    Transpose Gather GatherND GatherElements Slice Concat Split Cast CastLike Expand Tile Pad DepthToSpace SpaceToDepth
    ScatterND ScatterElements Scatter ConstantOfShape Range OneHot Compress NonZero EyeLike ReverseSequence Trilu
    """
)
"""Ops that move data and compute nothing."""

_BY_FLOPS = {
    1: """
    Add Sub Mul Div Min Max Neg Abs Relu Sum Mean And Or Not Xor Equal Greater Less GreaterOrEqual LessOrEqual Where
    Clip Ceil Floor Round Sign Mod LeakyRelu PRelu QuantizeLinear DequantizeLinear DynamicQuantizeLinear Resize Upsample
    IsNaN IsInf BatchNormalization CumSum BitShift BiasAdd Sqrt Exp Log Reciprocal Pow Sin Cos Tan HardSigmoid HardSwish
    ThresholdedRelu
    """,
    3: "RotaryEmbedding",
    4: """
    Sigmoid Tanh Softplus Softsign Elu Selu Celu Swish Mish LRN SimplifiedLayerNormalization RMSNormalization
    SkipSimplifiedLayerNormalization
    """,
    5: "Softmax LogSoftmax Hardmax",
    7: """
    LayerNormalization InstanceNormalization GroupNormalization SkipLayerNormalization EmbedLayerNormalization
    """,
    8: "Erf Gelu FastGelu BiasGelu QuickGelu",
}

PER_OUTPUT: dict[str, int] = {op: flops for flops, ops in _BY_FLOPS.items() for op in ops.split()}
"""FLOPs per output element (a transcendental function by its usual polynomial, others 1)."""

PER_INPUT: dict[str, int] = dict.fromkeys(
    _named(
        """
        ReduceMean ReduceSum ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSumExp ArgMax
        ArgMin TopK GlobalAveragePool GlobalMaxPool
        """
    ),
    1,
)
"""FLOPs per input element."""

POOLS = _named("AveragePool MaxPool LpPool")
"""One FLOP for each element of the kernel and of the output."""

CONTROL = _named("If Loop Scan SequenceMap")
"""Ops with bodies."""

LIKE_FIRST = _named(
    """
    SkipLayerNormalization SkipSimplifiedLayerNormalization SimplifiedLayerNormalization BiasGelu FastGelu Gelu
    QuickGelu RotaryEmbedding MultiHeadAttention GroupQueryAttention LayerNormalization BiasAdd
    """
)
"""Ops of ONNX Runtime's domain whose first output has the shape and type of the first input."""
