"""Where weights come from: a directory, a Python package, or the model hub."""

from sie_triton.weights.locate import loadable, locate

__all__ = ["loadable", "locate"]
