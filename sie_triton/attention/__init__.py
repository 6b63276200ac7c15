"""One attention function that works on packed items, for every transformers architecture."""

from sie_triton.attention.kernels import KERNELS, choose_kernel
from sie_triton.attention.packed import PACKED_ATTENTION, attending
from sie_triton.attention.segments import Segments

__all__ = ["KERNELS", "PACKED_ATTENTION", "Segments", "attending", "choose_kernel"]
