"""Attention of items laid end to end, by its formula in float64."""

import torch

from sie_triton.engines.torch.attention.kernels import visible

LENGTHS = (1, 2, 5, 16, 17, 42, 63, 64, 65, 130, 130, 300)
WINDOWS = ((-1, -1), (-1, 0), (10, 10), (30, 0), (0, 0))


def formula(query, key, value, lengths, scaling, window, keys=None):
    """Return float64 attention. Only the first `keys` tokens of each item are attended to; None: all."""
    group = query.shape[1] // key.shape[1]
    items = zip(
        *(torch.split(x[0].double(), lengths, dim=1) for x in (query, key, value)), keys or lengths, strict=True
    )
    results = []
    for q, k, v, num_keys in items:
        scores = q @ k.repeat_interleave(group, 0).transpose(1, 2) * scaling
        scores = scores.masked_fill(~visible(q.shape[1], window, q.device), -torch.inf)
        scores[:, :, num_keys:] = -torch.inf
        results.append((scores.softmax(-1) @ v.repeat_interleave(group, 0)).transpose(0, 1))
    return torch.cat(results)[None]


def tensors(heads, kv_heads, width, tokens, seed=0):
    """Random query, key and value in an attention layer's layout."""
    torch.manual_seed(seed)
    return [
        torch.randn(1, tokens, n * width).view(1, tokens, n, width).transpose(1, 2) for n in (heads, kv_heads, kv_heads)
    ]
