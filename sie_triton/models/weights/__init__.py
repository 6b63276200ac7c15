"""Sources of weights: a directory, a Python package, or the model hub."""

from sie_triton.models.weights.locate import cache_of, loadable, locate, pin_of

__all__ = ["cache_of", "loadable", "locate", "pin_of"]
