"""GLiNER2's heads: the number of instances of a structure, their fields, and the spans of these. Torch.

Attribute names are those of gliner2's checkpoints.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from sie_triton.models.families.gliner.heads import Candidates, SpanMarker, linear_layers

# Exclusive upper limit of the number of instances.
MAX_COUNT = 20


def two_layers(width: int, inner: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, out))


class Instances(nn.Module, ABC):
    """States of fields for each instance of a structure: [g, m, d] → [g, count, m, d]."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.pos_embedding = nn.Embedding(MAX_COUNT, size)
        self.gru = nn.GRU(size, size)

    def forward(self, fields: torch.Tensor, count: int) -> torch.Tensor:
        num, many, size = fields.shape
        count = min(count, MAX_COUNT)
        flat = fields.reshape(1, num * many, size)
        steps = self.pos_embedding.weight[:count, None].expand(count, num * many, size)
        recurrent, _ = self.gru(steps.contiguous(), flat.contiguous())
        states = recurrent.view(count, num, many, size).transpose(0, 1)
        return self.mixed(states, fields[:, None].expand_as(states))

    @abstractmethod
    def mixed(self, states: torch.Tensor, fields: torch.Tensor) -> torch.Tensor:
        """Combine states and fields, both [g, count, m, d]."""


class Projected(Instances):
    """The `counting_layer` count_lstm; attribute names are those of the checkpoint."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.projector = two_layers(2 * size, 4 * size, size)

    def mixed(self, states: torch.Tensor, fields: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.projector(torch.cat([states, fields], -1))
        return found


class Attended(Instances):
    """The `counting_layer` count_lstm_v2, in which the fields of an instance attend to each other."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.transformer = Narrow(size)

    def mixed(self, states: torch.Tensor, fields: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.transformer((states + fields).flatten(0, 1))
        return found.view_as(states)


class Narrow(nn.Module):
    """A small transformer between two projections; [rows, m, d] → [rows, m, d]."""

    WIDTH, HEADS, LAYERS = 128, 4, 2

    def __init__(self, size: int) -> None:
        super().__init__()
        width = self.WIDTH
        layer = nn.TransformerEncoderLayer(width, self.HEADS, 2 * width, dropout=0.0, batch_first=True)
        self.in_projector = nn.Linear(size, width)
        self.transformer = nn.TransformerEncoder(layer, self.LAYERS, enable_nested_tensor=False)
        self.out_projector = nn.Sequential(
            *(nn.Linear(width + size, size), nn.ReLU(), nn.Linear(size, size), nn.ReLU(), nn.Linear(size, size))
        )

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        seen = self.transformer(self.in_projector(states))
        found: torch.Tensor = self.out_projector(torch.cat([seen, states], -1))
        return found


class Experts(Instances):
    """The `counting_layer` count_lstm_moe: four experts, weighted by a router."""

    NUM = 4

    def __init__(self, size: int) -> None:
        super().__init__(size)
        inner = 2 * size
        self.w1, self.b1 = nn.Parameter(torch.empty(self.NUM, size, inner)), nn.Parameter(torch.empty(self.NUM, inner))
        self.w2, self.b2 = nn.Parameter(torch.empty(self.NUM, inner, size)), nn.Parameter(torch.empty(self.NUM, size))
        self.router = nn.Sequential(nn.Linear(size, size), nn.GELU(), nn.Linear(size, self.NUM), nn.Softmax(dim=-1))

    def mixed(self, states: torch.Tensor, fields: torch.Tensor) -> torch.Tensor:
        inner = nn.functional.gelu(torch.einsum("gcmd,edh->gcmeh", states, self.w1) + self.b1)
        out = torch.einsum("gcmeh,ehd->gcmed", inner, self.w2) + self.b2
        found: torch.Tensor = (self.router(states)[..., None] * out).sum(-2)
        return found


INSTANCES: Mapping[str, Callable[[int], Instances]] = {
    "count_lstm": Projected,
    "count_lstm_v2": Attended,
    "count_lstm_moe": Experts,
}


class Ends(NamedTuple):
    """States of words as the first and as the last word of a span, both [words, 4 d]."""

    first: torch.Tensor
    last: torch.Tensor


class Spans(nn.Module):
    """Scorer of spans of up to `max_width` words: two layers over both ends, multiplied with the query."""

    def __init__(self, size: int, max_width: int) -> None:
        super().__init__()
        self._max_width = max_width
        self.marker = SpanMarker(size)

    def ends(self, words: torch.Tensor) -> Ends:
        """Return the states of words [w, d] as ends of spans."""
        first, _ = linear_layers(self.marker.out_project)
        size = words.shape[1]
        return Ends(
            self.marker.project_start(words).relu() @ first.weight[:, :size].T + first.bias,
            self.marker.project_end(words).relu() @ first.weight[:, size:].T,
        )

    def forward(self, ends: Ends, queries: torch.Tensor, thresholds: torch.Tensor) -> Candidates:
        """Score the spans of one piece; queries [q, d], which are the labels, thresholds [q]. Ordered by query."""
        pieces = []
        num_words = len(ends.first)
        for width in range(min(self._max_width, num_words)):
            scores = self._scores(ends.first[: num_words - width] + ends.last[width:], queries)
            start, which = torch.nonzero(scores >= thresholds, as_tuple=True)
            pieces.append((start, start + width, which, scores[start, which]))
        first, last, query, score = (torch.cat(each).cpu().numpy() for each in zip(*pieces, strict=True))
        order = np.lexsort((last, first, query))
        return Candidates(first[order], last[order], query[order], score[order])

    def of_single(self, ends: Ends, queries: torch.Tensor) -> npt.NDArray[np.float32]:
        """Return the score of each single word, [w, q]."""
        found: npt.NDArray[np.float32] = self._scores(ends.first + ends.last, queries).cpu().numpy()
        return found

    def _scores(self, hidden: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
        _, second = linear_layers(self.marker.out_project)
        hidden = hidden.relu()
        if len(queries) < queries.shape[1]:
            logits = hidden @ (queries @ second.weight).T + queries @ second.bias
        else:
            logits = second(hidden) @ queries.T
        return logits.float().sigmoid()


def stacked(groups: Sequence[torch.Tensor], counts: Sequence[int], instances: Instances) -> list[torch.Tensor]:
    """Return the instances [count, m, d] of each group of fields [m, d]; groups of one shape are computed together."""
    alike: dict[tuple[int, int], list[int]] = {}
    for i, (fields, count) in enumerate(zip(groups, counts, strict=True)):
        alike.setdefault((len(fields), count), []).append(i)
    found: dict[int, torch.Tensor] = {}
    for (_, count), members in alike.items():
        found |= zip(members, instances(torch.stack([groups[i] for i in members]), count), strict=True)
    return [found[i] for i in range(len(groups))]
