"""GLiREL's heads: the words of one piece, its entities and the labels → relations. Torch.

Computes what glirel computes for each pair of entities, but the first layer over a pair is a sum of one term for each
entity.
"""

import numpy as np
import torch
from torch import nn

from sie_triton.models.families.gliner.heads import PAIR_NUMBERS, Candidates, SpanMarker, linear_layers, two_layers

HEAD_WIDTH = 64


class CrossAttention(nn.Module):
    """Cross-attention; attribute names are those of the checkpoint."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.mha = nn.MultiheadAttention(size, size // HEAD_WIDTH, batch_first=True, add_zero_attn=True)

    def forward(self, states: torch.Tensor, of: torch.Tensor | None) -> torch.Tensor:
        """Let states [n, d] attend to `of` [m, d]; None attends to nothing, which leaves the bias of the last layer."""
        if of is None:
            return self.mha.out_proj.bias
        read: torch.Tensor = self.mha(states[None], of[None], of[None], need_weights=False)[0][0]
        return read


class RefiningBlock(nn.Module):
    def __init__(self, size: int, factor: int) -> None:
        super().__init__()
        self.read, self.norm_read = CrossAttention(size), nn.LayerNorm(size)
        self.ffn = nn.Sequential(
            nn.Linear(size, factor * size), nn.GELU(), nn.Identity(), nn.Linear(factor * size, size)
        )
        self.norm_ffn = nn.LayerNorm(size)

    def forward(self, states: torch.Tensor, of: torch.Tensor | None) -> torch.Tensor:
        states = states + self.read(self.norm_read(states), of)
        refined: torch.Tensor = states + self.norm_ffn(self.ffn(states))
        return refined


class Refining(nn.Module):
    """Blocks of cross-attention, then a layer; attribute names are those of the checkpoint."""

    def __init__(self, size: int, factor: int, num_layers: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([RefiningBlock(size, factor) for _ in range(num_layers)])
        self.output = nn.Linear(size, size)

    def forward(self, states: torch.Tensor, of: torch.Tensor | None) -> torch.Tensor:
        for block in self.blocks:
            states = block(states, of)
        refined: torch.Tensor = self.output(states)
        return refined


class RelationMarker(nn.Module):
    """Layers of `rel_mode` marker over `span_marker_mode` markerv1; attribute names are those of the checkpoint."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.span_marker, self.out_project = SpanMarker(size), two_layers(2 * size, size)


class RelationHead(nn.Module):
    """Scorer of pairs of entities.

    Two layers over both ends of an entity, two over both entities of a pair, multiplied with the label. `max_distance`
    limits the distance, in words, from an entity back to an earlier one; None is no limit.
    """

    def __init__(
        self, size: int, max_distance: int | None, refine_relations: Refining | None, refine_labels: Refining | None
    ) -> None:
        super().__init__()
        self._max_distance = max_distance
        self.marker, self.labels = RelationMarker(size), two_layers(size, size)
        self.refine_relations, self.refine_labels = refine_relations, refine_labels

    def of_labels(self, states: torch.Tensor) -> torch.Tensor:
        """Compute states of labels, [k, d] → [k, d].

        glirel lets labels attend to pairs that are known to be related; here no such pairs are known.
        """
        made: torch.Tensor = self.labels(states)
        return made if self.refine_labels is None else self.refine_labels(made, None)

    def forward(
        self, words: torch.Tensor, places: torch.Tensor, labels: torch.Tensor, thresholds: torch.Tensor
    ) -> Candidates:
        """Score pairs of entities: words [w, d], places [e, 2], labels [k, d] from `of_labels`, thresholds [k].

        `places` are the first and last word of each entity. The result is ordered by head, tail and label, and limited
        to the best.
        """
        size, (first, second) = words.shape[1], linear_layers(self.marker.out_project)
        entities, allowed = self._entities(words, places), self._allowed(places)
        heads, tails = entities @ first.weight[:, :size].T + first.bias, entities @ first.weight[:, size:].T
        step = max(1, PAIR_NUMBERS // (len(entities) * max(4 * size, len(labels))))
        parts = []
        for start in range(0, len(entities), step):
            head, tail = torch.nonzero(allowed[start : start + step], as_tuple=True)
            pairs = second((heads[head + start] + tails[tail]).relu_())
            if self.refine_relations is not None:
                pairs = self.refine_relations(pairs, words)
            scores = (pairs @ labels.T).float().sigmoid()
            pair, label = torch.nonzero(scores > thresholds, as_tuple=True)
            found = (head[pair] + start, tail[pair], label, scores[pair, label])
            parts.append(tuple(each.cpu().numpy() for each in found))
        return Candidates(*(np.concatenate(each) for each in zip(*parts, strict=True))).best()

    def _entities(self, words: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        marker = self.marker.span_marker
        ends = [marker.project_start(words[places[:, 0]]), marker.project_end(words[places[:, 1]])]
        made: torch.Tensor = marker.out_project(torch.cat(ends, 1).relu())
        return made

    def _allowed(self, places: torch.Tensor) -> torch.Tensor:
        """Return bool [e, e]: the pairs to score."""
        order = torch.arange(len(places), device=places.device)
        if self._max_distance is None:
            return order[:, None] != order
        near = (places[:, 0][:, None] - places[:, 0]).abs() <= self._max_distance
        return (order[:, None] < order) | ((order[:, None] > order) & near)
