"""GLiREL's heads: the words of one piece, the entities in it and the labels → relations. Torch.

As glirel computes them, one pair of entities after another; the first layer over a pair is a sum of one term an entity.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from sie_triton.families.gliner.heads import PAIR_NUMBERS, SpanMarker, linear_layers, two_layers
from sie_triton.transforms.spans import MAX_CANDIDATES

Ints = npt.NDArray[np.int64]

HEAD_WIDTH = 64
RELATION_LAYERS, LABEL_LAYERS = 1, 2


class Found(NamedTuple):
    """Head and tail among the piece's entities, int64 [n]; label, int64 [n]; score, float32 [n]."""

    head: Ints
    tail: Ints
    label: Ints
    score: npt.NDArray[np.float32]


class Reading(nn.Module):
    """Names of a checkpoint."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.mha = nn.MultiheadAttention(size, size // HEAD_WIDTH, batch_first=True, add_zero_attn=True)

    def forward(self, states: torch.Tensor, of: torch.Tensor | None) -> torch.Tensor:
        """What states [n, d] read of others [m, d]; None: of none at all, which leaves the last layer's bias."""
        if of is None:
            return self.mha.out_proj.bias
        read: torch.Tensor = self.mha(states[None], of[None], of[None], need_weights=False)[0][0]
        return read


class RefiningBlock(nn.Module):
    def __init__(self, size: int, factor: int) -> None:
        super().__init__()
        self.read, self.norm_read = Reading(size), nn.LayerNorm(size)
        self.ffn = nn.Sequential(
            nn.Linear(size, factor * size), nn.GELU(), nn.Identity(), nn.Linear(factor * size, size)
        )
        self.norm_ffn = nn.LayerNorm(size)

    def forward(self, states: torch.Tensor, of: torch.Tensor | None) -> torch.Tensor:
        states = states + self.read(self.norm_read(states), of)
        refined: torch.Tensor = states + self.norm_ffn(self.ffn(states))
        return refined


class Refining(nn.Module):
    """Attention to others, then a layer: by its names in a checkpoint."""

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
    """Its names in a checkpoint: of `rel_mode` marker over `span_marker_mode` markerv1."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.span_marker, self.out_project = SpanMarker(size), two_layers(2 * size, size)


class RelationHead(nn.Module):
    """Two layers of both ends of an entity, two of both entities of a pair · label.

    `max_distance` in words, of an entity from one named before it; None: any.
    """

    def __init__(
        self, size: int, max_distance: int | None, refine_relations: Refining | None, refine_labels: Refining | None
    ) -> None:
        super().__init__()
        self._max_distance = max_distance
        self.marker, self.labels = RelationMarker(size), two_layers(size, size)
        self.refine_relations, self.refine_labels = refine_relations, refine_labels

    def of_labels(self, states: torch.Tensor) -> torch.Tensor:
        """[k, d] → [k, d]. glirel lets labels read those pairs that are known to be related: here none is."""
        made: torch.Tensor = self.labels(states)
        return made if self.refine_labels is None else self.refine_labels(made, None)

    def forward(
        self, words: torch.Tensor, places: torch.Tensor, labels: torch.Tensor, thresholds: torch.Tensor
    ) -> Found:
        """words [w, d]; places [e, 2], first and last word of each entity; labels [k, d] from `of_labels`; [k].

        By head, tail and label; of very many the best.
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
        return _best(Found(*(np.concatenate(each) for each in zip(*parts, strict=True))))

    def _entities(self, words: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        marker = self.marker.span_marker
        ends = [marker.project_start(words[places[:, 0]]), marker.project_end(words[places[:, 1]])]
        made: torch.Tensor = marker.out_project(torch.cat(ends, 1).relu())
        return made

    def _allowed(self, places: torch.Tensor) -> torch.Tensor:
        """bool [e, e]: which pairs are looked at."""
        order = torch.arange(len(places), device=places.device)
        if self._max_distance is None:
            return order[:, None] != order
        near = (places[:, 0][:, None] - places[:, 0]).abs() <= self._max_distance
        return (order[:, None] < order) | ((order[:, None] > order) & near)


def _best(found: Found) -> Found:
    if len(found.score) <= MAX_CANDIDATES:
        return found
    kept = np.sort(np.argsort(-found.score, kind="stable")[:MAX_CANDIDATES])
    return Found(found.head[kept], found.tail[kept], found.label[kept], found.score[kept])
