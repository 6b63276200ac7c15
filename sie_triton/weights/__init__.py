"""Where weights come from: a directory, a Python package, or the model hub."""

from sie_triton.weights.locate import locate

__all__ = ["locate"]
