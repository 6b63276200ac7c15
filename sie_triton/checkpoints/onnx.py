"""ONNX files of a checkpoint, as optimum and sentence-transformers write them: one graph, or several forms of it."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from glob import escape

PATTERNS = ("*.onnx", "onnx/*.onnx")

# Before all others: what has not been quantised, or optimised for another machine.
PLAIN = ("onnx/model.onnx", "model.onnx")


def graphs(names: Sequence[str]) -> list[str]:
    """Of a checkpoint's files, those that are graphs: the plain one first, those of ARM processors last."""
    found = [name for name in names if any(fnmatchcase(name, each) for each in PATTERNS) and name.count("/") <= 1]
    return sorted(found, key=lambda name: (PLAIN.index(name) if name in PLAIN else len(PLAIN), "arm64" in name, name))


def with_data(name: str) -> tuple[str, ...]:
    """Patterns of the graph and of the files that its weights may be in."""
    return escape(name), f"{escape(name)}_data*", f"{escape(name)}.data*"
