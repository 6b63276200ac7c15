"""Transforms of vectors after the forward pass: NumPy in, NumPy out."""

from sie_triton.transforms.muvera import Muvera
from sie_triton.transforms.quantize import quantize, scales
from sie_triton.transforms.similarity import similarity
from sie_triton.transforms.truncate import normalize, truncate

__all__ = ["Muvera", "normalize", "quantize", "scales", "similarity", "truncate"]
