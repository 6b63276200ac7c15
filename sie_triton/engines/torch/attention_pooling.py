"""Attention pooling (SigLIP): an item's vector is the attention output of one learnt query, the probe."""

from typing import Any

import torch
from torch.nn import functional

from sie_triton.engines.torch.attention import Segments


class AttentionPooling(torch.nn.Module):
    """transformers' pooling head `head` for packed items, without padding.

    The query is the same for all items and is computed once. torch's MultiheadAttention cannot be used, because it
    reads weights directly instead of calling its layers, which prepacking replaces.
    """

    def __init__(self, head: Any) -> None:
        super().__init__()
        attention = head.attention
        width, self._num_heads = attention.embed_dim, attention.num_heads
        sizes = [width, 2 * width]
        (of_query, of_others), (query_bias, other_biases) = (
            torch.split(each.detach(), sizes) for each in (attention.in_proj_weight, attention.in_proj_bias)
        )
        query = functional.linear(head.probe.detach()[0], of_query, query_bias)
        self.query = torch.nn.Parameter(query.view(1, self._num_heads, 1, -1), requires_grad=False)
        self.keys_values = linear(of_others, other_biases)
        self.out = linear(attention.out_proj.weight.detach(), attention.out_proj.bias.detach())
        self.layernorm, self.mlp = head.layernorm, head.mlp

    def forward(self, states: torch.Tensor, segments: Segments) -> torch.Tensor:
        """[tokens, d] → [items, d]."""
        both = self.keys_values(states).view(len(states), 2, self._num_heads, -1)
        runs = torch.split(both, [count * length for count, length, _ in segments.runs])
        seen = [self._seen(run, count) for run, (count, _, _) in zip(runs, segments.runs, strict=True)]
        pooled = self.out(torch.cat(seen))
        mixed: torch.Tensor = pooled + self.mlp(self.layernorm(pooled))
        return mixed

    def _seen(self, run: torch.Tensor, count: int) -> torch.Tensor:
        """Keys and values [count · length, 2, heads, d / heads] → [count, d]."""
        keys, values = run.view(count, -1, *run.shape[1:]).permute(2, 0, 3, 1, 4)
        query = self.query.expand(count, -1, -1, -1)
        return functional.scaled_dot_product_attention(query, keys, values).reshape(count, -1)


def linear(weight: torch.Tensor, bias: torch.Tensor | None) -> torch.nn.Linear:
    """Return the layer for a weight, [out, in], and a bias, [out]."""
    layer = torch.nn.Linear(weight.shape[1], len(weight), bias=bias is not None, device="meta")
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = torch.nn.Parameter(bias, requires_grad=False)
    return layer
