"""Packed rows for text embeddings of CLIP and similar models, which otherwise reject a row longer than one item.

In a packed row, the positions of each item restart."""

from typing import Any

import torch

from sie_triton.engines.torch.attention.packed import current


def let_rows_be_long(model: torch.nn.Module) -> None:
    """Let text embeddings in `model` take packed rows; outside of `attending` they compute as before."""
    kin = ("CLIPTextEmbeddings", "SiglipTextEmbeddings", "Siglip2TextEmbeddings")
    for module in model.modules():
        if type(module).__name__ in kin:
            module.__class__ = _long_rows_class(type(module))


def _long_rows_class(library: type[torch.nn.Module]) -> type[torch.nn.Module]:
    class OfRows(library):  # type: ignore[misc, valid-type]
        def forward(self, input_ids: Any = None, position_ids: Any = None, inputs_embeds: Any = None) -> torch.Tensor:
            if current() is None or input_ids is None or position_ids is None:
                plain: torch.Tensor = super().forward(input_ids, position_ids, inputs_embeds)
                return plain
            embedded: torch.Tensor = self.token_embedding(input_ids) + self.position_embedding(position_ids)
            return embedded

    return OfRows
