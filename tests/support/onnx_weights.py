"""The weights of a BERT in an ONNX file whose matrices are stored as 8-bit integers, as the floats they stand for."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

# What quantisers call a matrix, and where it is zero (None: at 0).
STORED = {"_quantized": "_zero_point", "_q": None}


def float_weights(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Return weights by their PyTorch names: a matrix without a name takes that of the bias added after it."""
    graph = onnx.load(path).graph
    stored = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    made_by = {output: node for node in graph.node for output in node.output}
    plain = {**stored, **dict(_dequantised(stored))}
    weights = {name: plain[name] for name in plain if name.endswith(("embeddings.weight", ".bias", "LayerNorm.weight"))}
    for node in graph.node:
        bias = next((name for name in node.input if name.endswith(".bias") and "LayerNorm" not in name), None)
        if node.op_type == "Add" and bias is not None:
            product = made_by[next(name for name in node.input if name != bias)]
            while not product.op_type.startswith("MatMul"):
                product = made_by[product.input[0]]
            matrix = product.input[1].removesuffix("_quantized")
            weights[f"{bias.removesuffix('bias')}weight"] = plain[matrix].T
    return {name: np.array(array, np.float32, order="C") for name, array in weights.items()}


def _dequantised(stored: dict[str, Any]) -> Any:
    for name, integers in stored.items():
        suffix = next((each for each in STORED if name.endswith(each)), None)
        if suffix is not None:
            base = name.removesuffix(suffix)
            zero = stored[base + STORED[suffix]] if STORED[suffix] else 0
            yield base, (integers.astype(np.float32) - np.float32(zero)) * stored[f"{base}_scale"]
