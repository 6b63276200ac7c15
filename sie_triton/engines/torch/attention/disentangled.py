"""DeBERTa's disentangled attention over packed items; transformers' own needs one item per row, padded.

The score of a pair of tokens is the product of their contents, plus the product of each content with the relative
position of the other (He et al., 2021). There are few distinct distances, and they increase by one along a row of
scores. So their products are computed once per distance and read as scores through a view with shifted rows.
"""

from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.deberta_v2 import modeling_deberta_v2 as library

from sie_triton.engines.torch.attention.packed import CannotPack, current
from sie_triton.engines.torch.attention.segments import Segments
from sie_triton.engines.torch.lora_layers import Adapted

# Maximum number of products of tokens and distances that are computed at once.
MAX_PRODUCTS = 8_000_000

Positions = tuple[torch.Tensor | None, torch.Tensor | None]


def make_packable(model: PreTrainedModel) -> bool:
    """Make DeBERTa's layers in `model` respect `attending`; outside of that context they compute as before.

    Return True if there are such layers: packed, they compute their attention without a kernel.
    """
    found = False
    for module in model.modules():
        if type(module) is library.DebertaV2Encoder and module.relative_attention:
            module.__class__ = PackedEncoder
        elif type(module) is library.DisentangledSelfAttention and module.relative_attention:
            module.__class__ = PackedSelfAttention
            vars(module)["_positions"] = None
            found = True
    return found


class PackedEncoder(library.DebertaV2Encoder):
    """The encoder without masks and distance matrices, which need one item per row and are quadratic in its length."""

    def forward(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        segments = current()
        if segments is None:
            return super().forward(hidden_states, attention_mask, *args, **kwargs)  # type: ignore[no-untyped-call]
        if self.conv is not None:
            raise CannotPack("a convolution over the row, which would mix items")
        positions = self.get_rel_embedding()  # type: ignore[no-untyped-call]
        for layer in self.layer:
            hidden_states, _ = layer(hidden_states, attention_mask, rel_embeddings=positions)
        return BaseModelOutput(last_hidden_state=hidden_states, hidden_states=(hidden_states,))


class PackedSelfAttention(library.DisentangledSelfAttention):
    """Self-attention; `_positions` caches keys and queries of the distances, [heads, distances, d] each.

    Keys are scaled before the product, since the scores of a large model would overflow float16 otherwise.

    If a LoRA adapter changes these projections, its passes are separate and recompute the positions, since a cache of
    them may be larger than the adapter.
    """

    _positions: Positions | None

    def forward(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        segments = current()
        if segments is None:
            return super().forward(hidden_states, attention_mask, *args, **kwargs)  # type: ignore[no-untyped-call]
        positions = self._positions_now(kwargs["rel_embeddings"])
        projections = (self.query_proj, self.key_proj, self.value_proj)
        query, key, value = (self._heads(projection(hidden_states[0])) for projection in projections)
        return self._attend(query, key * self._scale, value, segments, positions)[None], None

    @property
    def reads_distances(self) -> tuple[str, ...]:
        """Names of the projections that are also applied to distances."""
        names = ("key_proj", "query_proj") if self.share_att_key else ("pos_key_proj", "pos_query_proj")
        return tuple(name for name, kind in zip(names, ("c2p", "p2c"), strict=True) if kind in self.pos_att_type)

    def _positions_now(self, embeddings: torch.Tensor) -> Positions:
        projections = (getattr(self, name) for name in self.reads_distances)
        if any(isinstance(each, Adapted) and each.whole for each in projections):
            return self._distance_states(embeddings)
        if self._positions is None:
            self._positions = self._distance_states(embeddings)
        return self._positions

    def _heads(self, states: torch.Tensor) -> torch.Tensor:
        """[rows, heads · d] → [heads, rows, d]."""
        return states.view(len(states), self.num_attention_heads, -1).transpose(0, 1)

    def _distance_states(self, embeddings: torch.Tensor) -> Positions:
        embeddings = embeddings[: 2 * self.pos_ebd_size]
        to_key = self.key_proj if self.share_att_key else getattr(self, "pos_key_proj", None)
        to_query = self.query_proj if self.share_att_key else getattr(self, "pos_query_proj", None)
        key = self._heads(to_key(embeddings)) if "c2p" in self.pos_att_type and to_key else None
        query = self._heads(to_query(embeddings)) if "p2c" in self.pos_att_type and to_query else None
        return None if key is None else key * self._scale, query

    @property
    def _scale(self) -> float:
        """Scale of scores: a score sums one product for the contents and one for each further attention type."""
        num_products = 1 + sum(kind in self.pos_att_type for kind in ("c2p", "p2c"))
        return float((self.attention_head_size * num_products) ** -0.5)

    def _attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, segments: Segments, positions: Positions
    ) -> torch.Tensor:
        """[heads, tokens, d] each → [tokens, heads · d]."""
        done, start = [], 0
        for count, length, keys in segments.runs:
            end = start + count * length
            of_run = [each[:, start:end].view(len(each), count, length, -1) for each in (query, key, value)]
            step = max(1, MAX_PRODUCTS // (2 * count * length * length))
            heads = [
                self._attend_heads(
                    [each[head : head + step] for each in of_run], slice(head, head + step), keys, positions
                )
                for head in range(0, self.num_attention_heads, step)
            ]
            done.append(torch.cat(heads).permute(1, 2, 0, 3).reshape(count * length, -1))
            start = end
        return torch.cat(done)

    def _attend_heads(self, states: list[torch.Tensor], heads: slice, keys: int, positions: Positions) -> torch.Tensor:
        """query, key and value, [heads, items, tokens, d] each → the same shape."""
        query, key, value = states
        of_key, of_query = (None if each is None else each[heads, None] for each in positions)
        scores = query @ key.mT
        buckets = self._buckets(query.shape[-2], query.device)
        if of_key is not None:
            scores += shifted(query @ of_key[..., buckets.flip(0), :].mT)
        if of_query is not None:
            scores += shifted(key @ of_query[..., buckets, :].mT).mT
        probabilities = scores[..., :keys].softmax(-1, dtype=torch.float32).to(value.dtype)
        attended: torch.Tensor = probabilities @ value[..., :keys, :]
        return attended

    def _buckets(self, length: int, device: torch.device) -> torch.Tensor:
        """Return the embedding indices of the distances from -(length - 1) to length - 1."""
        distances = torch.arange(1 - length, length, device=device)
        if self.position_buckets > 0 and self.max_relative_positions > 0:
            distances = library.make_log_bucket_position(distances, self.position_buckets, self.max_relative_positions)
        last = 2 * self.pos_ebd_size - 1
        return (distances.long() + self.pos_ebd_size).clamp(0, last)


def shifted(products: torch.Tensor) -> torch.Tensor:
    """[…, n, 2n - 1] → […, n, n]: entry (i, j) is entry (i, j - i + n - 1) of `products`."""
    length = products.shape[-2]
    products = products.contiguous()
    strides = (*products.stride()[:-2], products.stride(-2) - 1, 1)
    return products.as_strided((*products.shape[:-1], length), strides, products.storage_offset() + length - 1)
