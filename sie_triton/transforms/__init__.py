"""Numpy in, numpy out: what happens to vectors after the forward pass."""

from sie_triton.transforms.truncate import normalize, truncate

__all__ = ["normalize", "truncate"]
