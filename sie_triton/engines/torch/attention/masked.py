"""Attention over a packed row of fixed length, with a mask computed on the device from each token's item.

The items may change between replays of a CUDA graph. The cost is quadratic in the row's length, so this is for short
rows."""

import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from sie_triton.engines.torch.attention.kernels import Kernel, visible
from sie_triton.engines.torch.attention.segments import EVERYTHING, Segments, Window


def masked(sees: torch.Tensor) -> Kernel:
    """Return a kernel for a row in which token i sees token j where `sees[i, j]`, bool [tokens, tokens].

    The kernel ignores its `segments`.
    """
    masks: dict[Window, torch.Tensor] = {}

    def mask_of(window: Window, dtype: torch.dtype) -> torch.Tensor:
        """Return the mask for `window`, shared by all layers with the same window."""
        if window not in masks:
            seen = sees if window == EVERYTHING else sees & visible(len(sees), window, sees.device)
            masks[window] = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(~seen, float("-inf"))
        return masks[window]

    def attend(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, segments: Segments, scaling: float, window: Window
    ) -> torch.Tensor:
        grouped = query.shape[1] != key.shape[1]
        mask = mask_of(window, query.dtype)
        return sdpa(query, key, value, attn_mask=mask, scale=scaling, enable_gqa=grouped).transpose(1, 2)

    return attend
