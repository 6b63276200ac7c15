"""Packed attention: items are concatenated without padding, and each token sees only its own item.

Registered with transformers as PACKED_ATTENTION, for every architecture that uses its attention interface. The model
computes one row [1, tokens]. Its attention layers call `packed_attention` with their own parameters; the boundaries of
the items come from the `attending` context.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from transformers import AttentionInterface

from sie_triton.engines.torch.attention.kernels import KERNELS, Kernel
from sie_triton.engines.torch.attention.segments import Segments, Window

PACKED_ATTENTION = "sie_packed"

# Arguments of transformers that do not affect a full forward pass in eval mode.
IGNORED_ARGUMENTS = {
    "cache_position",
    "deterministic",
    "output_attentions",
    "output_hidden_states",
    "position_ids",
    "use_cache",
}


class CannotPack(Exception):
    """The model's attention needs a feature that packed rows do not support; the probe then chooses the padded path."""


_context: ContextVar[tuple[Segments, Kernel]] = ContextVar("sie_attending")


@contextmanager
def attending(segments: Segments, kernel: str | Kernel = "sdpa") -> Iterator[None]:
    """Within the context, forward passes attend within `segments`, by `kernel` (a function or a name in KERNELS)."""
    token = _context.set((segments, KERNELS[kernel] if isinstance(kernel, str) else kernel))
    try:
        yield
    finally:
        _context.reset(token)


def current() -> Segments | None:
    """Return the segments of the current context, for attention outside of transformers' interface; else None."""
    found = _context.get(None)
    return None if found is None else found[0]


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention signature: query [1, heads, tokens, d] → ([1, tokens, heads, d], None).

    Raise CannotPack for arguments that would change the result: a mask of the model's own, capped scores, sinks.
    """
    unknown = sorted({k for k, v in kwargs.items() if v is not None} - IGNORED_ARGUMENTS)
    if attention_mask is not None or unknown:
        raise CannotPack(f"its attention uses {', '.join(unknown) or 'a mask of its own'}")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", False)
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    segments, kernel = _context.get()
    return kernel(query, key, value, segments, scaling, window_of(bool(is_causal), sliding_window)), None


def window_of(is_causal: bool, sliding_window: int | None) -> Window:
    """Return the window (left, right). A sliding window includes the token itself on each side.

    >>> window_of(True, None), window_of(True, 4), window_of(False, 4)
    ((-1, 0), (3, 0), (3, 3))
    """
    reach = -1 if sliding_window is None else sliding_window - 1
    return reach, 0 if is_causal else reach


# No mask function is registered, so transformers builds no mask and does not try to detect the items of the row.
AttentionInterface.register(PACKED_ATTENTION, packed_attention)


def let_rows_be_long(model: torch.nn.Module) -> None:
    """Let text embeddings in `model` take packed rows; outside of `attending` they compute as before."""
    kin = ("CLIPTextEmbeddings", "SiglipTextEmbeddings", "Siglip2TextEmbeddings")
    for module in model.modules():
        if type(module).__name__ in kin:
            module.__class__ = _long_rows_class(type(module))


def _long_rows_class(library: type[torch.nn.Module]) -> type[torch.nn.Module]:
    class PackedTextEmbeddings(library):  # type: ignore[misc, valid-type]
        def forward(self, input_ids: Any = None, position_ids: Any = None, inputs_embeds: Any = None) -> torch.Tensor:
            if current() is None or input_ids is None or position_ids is None:
                plain: torch.Tensor = super().forward(input_ids, position_ids, inputs_embeds)
                return plain
            embedded: torch.Tensor = self.token_embedding(input_ids) + self.position_embedding(position_ids)
            return embedded

    return PackedTextEmbeddings
