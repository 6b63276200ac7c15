"""Where weights come from: a directory, a Python package, or the model hub."""

from sie_triton.weights.locate import loadable, locate, pin_of

__all__ = ["loadable", "locate", "pin_of"]
