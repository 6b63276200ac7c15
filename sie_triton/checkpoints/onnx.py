"""ONNX files of a checkpoint, as optimum and sentence-transformers write them: one graph, or several variants of it."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from glob import escape

PATTERNS = ("*.onnx", "onnx/*.onnx")

# Preferred: neither quantised nor optimised for a certain machine.
PLAIN = ("onnx/model.onnx", "model.onnx")


def graphs(names: Sequence[str]) -> list[str]:
    """Return those of a checkpoint's files that are graphs: the plain one first, those for ARM processors last."""
    found = [name for name in names if any(fnmatchcase(name, each) for each in PATTERNS) and name.count("/") <= 1]
    return sorted(found, key=lambda name: (PLAIN.index(name) if name in PLAIN else len(PLAIN), "arm64" in name, name))


def with_data(name: str) -> tuple[str, ...]:
    """Return patterns of the graph and of the files that may hold its weights."""
    return escape(name), f"{escape(name)}_data*", f"{escape(name)}.data*"
