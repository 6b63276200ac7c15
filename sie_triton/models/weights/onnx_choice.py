"""Decide whether a checkpoint is run from an ONNX file, and from which one."""

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase

from sie_triton.checkpoints.onnx import graphs
from sie_triton.contract.spec import AUTO, ONNX, TORCH, ModelSpec
from sie_triton.errors import LoadError


def is_transformers(name: str) -> bool:
    """Return whether the file belongs to the transformer, and not to a layer after it."""
    return "/" not in name or name.startswith("0_Transformer/")


def graph_of(spec: ModelSpec, engines: Collection[str], names: Sequence[str]) -> str:
    """Return the ONNX file that ONNX Runtime is to run; empty if another engine is to be used.

    LoadError if the model file requires an ONNX file that does not exist.
    """
    found = graphs(names)
    if spec.engine == ONNX:
        if (spec.onnx_file or (found or [""])[0]) not in found:
            there = f"it has {', '.join(found)}" if found else "it has no *.onnx and no onnx/*.onnx"
            asked = f"onnx_file: {spec.onnx_file}" if spec.onnx_file else f"engine: {ONNX}"
            raise LoadError(f"weights: {asked} cannot be served from {spec.weights}; {there}", "not found")
        return spec.onnx_file or found[0]
    if ONNX not in engines or spec.engine != TORCH or spec.runtime.engine == TORCH or not found:
        return ""
    has_others = any(fnmatchcase(name, "*.safetensors") and is_transformers(name) for name in names)
    return "" if has_others and spec.runtime.engine == AUTO else found[0]
