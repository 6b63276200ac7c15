"""Transforms of vectors after the forward pass: NumPy in, NumPy out."""

from sie_triton.contract.transforms.muvera import Muvera
from sie_triton.contract.transforms.quantize import quantize, scales
from sie_triton.contract.transforms.similarity import similarity
from sie_triton.contract.transforms.truncate import normalize, truncate

__all__ = ["Muvera", "normalize", "quantize", "scales", "similarity", "truncate"]
