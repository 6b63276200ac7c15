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
from torch.nn.functional import scaled_dot_product_attention as sdpa
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

PACKED_ATTENTION = "sie_packed"

# Past the last full vector of a row, the CPU's fused kernel takes exp() one element at a time.
VECTOR = 16
SHORT = 96

# Passed by transformers and without influence on a full bidirectional forward pass.
IGNORED_ARGUMENTS = {"is_causal", "position_ids", "use_cache", "output_attentions", "output_hidden_states"}


@dataclass(frozen=True, slots=True)
class Segments:
    """Where the items lie: runs of (number of items, tokens per item), end to end.

    Neighbours of equal length form one run, attended to in one kernel call; a sub-batch
    sorted by length has few runs.
    """

    runs: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, lengths: Sequence[int]) -> "Segments":
        """
        >>> Segments.of([3, 3, 5]).runs
        ((2, 3), (1, 5))
        """
        return cls(tuple((sum(1 for _ in group), length) for length, group in groupby(lengths)))

    @property
    def run_tokens(self) -> list[int]:
        return [count * length for count, length in self.runs]


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
    segments = _segments.get()
    pieces = zip(*(torch.split(x, segments.run_tokens, dim=2) for x in (query, key, value)), segments.runs, strict=True)
    attended = [_unstack(_attend(_stack(q, run), _stack(k, run), _stack(v, run), scaling)) for q, k, v, run in pieces]
    return (torch.cat(attended, dim=1) if len(attended) > 1 else attended[0]), None


def _attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None) -> torch.Tensor:
    """Full attention of [count, heads, length, d], by the faster of two exact ways."""
    length, width = query.shape[2:]
    if query.device.type == "cpu" and length < SHORT and length % VECTOR > VECTOR // 2 - 2:
        scores = torch.matmul(query, key.transpose(2, 3)).mul_(width**-0.5 if scaling is None else scaling)
        return torch.matmul(scores.softmax(-1), value)
    return sdpa(query, key, value, scale=scaling)


def _stack(x: torch.Tensor, run: tuple[int, int]) -> torch.Tensor:
    """[1, heads, count · length, d] → [count, heads, length, d], without a copy."""
    count, length = run
    return x if count == 1 else x[0].view(x.shape[1], count, length, x.shape[3]).transpose(0, 1)


def _unstack(x: torch.Tensor) -> torch.Tensor:
    """[count, heads, length, d] → [1, count · length, heads, d]."""
    return x.transpose(1, 2).flatten(0, 1)[None]


def _no_mask(*_: Any, **__: Any) -> None:
    return None


AttentionInterface.register(PACKED_ATTENTION, packed_attention)
AttentionMaskInterface.register(PACKED_ATTENTION, _no_mask)
