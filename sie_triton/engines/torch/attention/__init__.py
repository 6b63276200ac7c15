"""Attention over packed items, for every transformers architecture."""

from sie_triton.engines.torch.attention.disentangled import make_packable
from sie_triton.engines.torch.attention.kernels import KERNELS, choose_kernel
from sie_triton.engines.torch.attention.packed import PACKED_ATTENTION, attending
from sie_triton.engines.torch.attention.segments import Segments

__all__ = ["KERNELS", "PACKED_ATTENTION", "Segments", "attending", "choose_kernel", "make_packable"]
