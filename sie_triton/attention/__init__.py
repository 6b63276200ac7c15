"""One attention function that works on packed items, for every transformers architecture."""

from sie_triton.attention.packed import PACKED_ATTENTION, Segments, attending

__all__ = ["PACKED_ATTENTION", "Segments", "attending"]
