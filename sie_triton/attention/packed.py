"""Attention over items laid end to end: each token sees its own item only, and nothing is padded.

Registered with transformers under PACKED_ATTENTION. The model gets one row [1, tokens]; its
attention layers call back here, and the bounds of the items come from the `attending` context.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

PACKED_ATTENTION = "sie_packed"

# Passed by transformers and without influence on a full bidirectional forward pass.
IGNORED_ARGUMENTS = {"is_causal", "position_ids", "use_cache", "output_attentions", "output_hidden_states"}


@dataclass(frozen=True, slots=True)
class Segments:
    """Where the items lie: runs of (first token, number of items, tokens per item).

    Neighbours of equal length form one run, attended to in one kernel call; a sub-batch
    sorted by length has few runs.
    """

    runs: tuple[tuple[int, int, int], ...]

    @classmethod
    def of(cls, lengths: Sequence[int]) -> "Segments":
        """
        >>> Segments.of([3, 3, 5]).runs
        ((0, 2, 3), (6, 1, 5))
        """
        runs, start = [], 0
        for length, group in groupby(lengths):
            count = sum(1 for _ in group)
            runs.append((start, count, length))
            start += count * length
        return cls(tuple(runs))


_segments: ContextVar[Segments] = ContextVar("sie_segments")


@contextmanager
def attending(segments: Segments) -> Iterator[None]:
    """Forward passes inside this context attend within `segments`."""
    token = _segments.set(segments)
    try:
        yield
    finally:
        _segments.reset(token)


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention signature: query [1, heads, tokens, d] → ([1, tokens, heads, d], None).

    Raises NotImplementedError for arguments that would change the result and are not handled.
    """
    unknown = {k for k, v in kwargs.items() if v is not None} - IGNORED_ARGUMENTS
    causal = kwargs.get("is_causal")
    if causal is None:
        causal = getattr(module, "is_causal", False)
    if unknown or causal:
        raise NotImplementedError(f"packed attention: {'causal' if causal else sorted(unknown)}")
    q, k, v = (x.transpose(1, 2)[0] for x in (query, key, value))
    out = torch.empty_like(q)
    for start, count, length in _segments.get().runs:
        rows = slice(start, start + count * length)
        items = (x[rows].view(count, length, *x.shape[1:]).transpose(1, 2) for x in (q, k, v))
        attended = scaled_dot_product_attention(*items, scale=scaling)  # type: ignore[misc,arg-type]
        out[rows] = attended.transpose(1, 2).reshape(count * length, *out.shape[1:])
    return out[None], None


def _no_mask(*_: Any, **__: Any) -> None:
    return None


AttentionInterface.register(PACKED_ATTENTION, packed_attention)
AttentionMaskInterface.register(PACKED_ATTENTION, _no_mask)
