"""Weight files: which tensors they hold, where, and their bytes as a stream; a file is never read as a whole.

Formats are safetensors (one file, shards, or a folder), npz and npy, and ONNX with its external data. Nothing
here knows a pattern, a GPU or a stack. Every claim of a header (lengths, offsets, places of files) is checked
against the file before a byte of data is believed.
"""

from sparsesim.weights.load import open_weights
from sparsesim.weights.tensor import Tensor, Weights, nonzero

__all__ = ["Tensor", "Weights", "nonzero", "open_weights"]
