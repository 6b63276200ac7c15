"""GLiNER2's forward pass: words and labels in one packed pass, then the questions about each piece."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from sie_triton.contract import Batch, Rows
from sie_triton.contract.arrays import Floats, Ints, item_lengths
from sie_triton.contract.limits import LIMITS
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import LABEL_THRESHOLDS, LABEL_TOKENS, WORD_SPANS, WORD_TOKENS
from sie_triton.contract.transforms.overlap import resolved
from sie_triton.engines.torch.checkpoint import Checkpoint
from sie_triton.engines.torch.encoder import TorchEncoder, num_bytes
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.models.families.gliner.heads import Candidates
from sie_triton.models.families.gliner2 import Gliner2Files
from sie_triton.models.families.gliner2.heads import (
    INSTANCES,
    MAX_COUNT,
    Instances,
    Spans,
    stacked,
    two_layers,
)
from sie_triton.models.families.gliner2.request import OVERLAP_POLICY
from sie_triton.models.families.gliner2.tensors import (
    ANY_CLASSES,
    CHOICE,
    CHOICE_LABELS,
    CHOICE_TOKENS,
    CLASS_SCORES,
    ENTITIES,
    FIELD,
    LABEL_ROLES,
    ONE_CLASS,
    PLACE_SCORES,
    PLACES,
)
from sie_triton.models.families.shared.labels.spans import scored
from sie_triton.models.families.shared.labels.words import pieces_of, states_at
from sie_triton.models.families.shared.thresholds import least_scores
from sie_triton.models.families.shared.token_batch import TokenAdapter, tokens


class Group(NamedTuple):
    """A question: its role, its task, and the range of its labels, from its own to the one after its last field."""

    role: int
    task: int
    first: int
    end: int

    @property
    def is_classes(self) -> bool:
        return self.role in (ONE_CLASS, ANY_CLASSES)


@dataclass(slots=True)
class Queries:
    """Queries of one piece: `states` [q, d]; `keys`, task, instance and field, int64 [q, 3]; `labels` int64 [q]."""

    states: torch.Tensor
    keys: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]


class Heads(nn.Module):
    """All heads. `instances` is that of the checkpoint's `counting_layer`."""

    def __init__(self, size: int, max_width: int, instances: Instances) -> None:
        super().__init__()
        self.spans, self.instances = Spans(size, max_width), instances
        self.classifier, self.counter = two_layers(size, 2 * size, 1), two_layers(size, 2 * size, MAX_COUNT)


class Gliner2Adapter(TokenAdapter):
    def __init__(self, encoder: TorchEncoder, heads: Heads) -> None:
        super().__init__(encoder)
        self._heads = heads
        self.weights_bytes += num_bytes(heads)

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Rows:
        hidden = self.encoder.hidden_states(*tokens(batch))
        labels = states_at(hidden, batch, LABEL_TOKENS.name)
        groups = [list(groups_of(roles)) for roles in pieces_of(batch, LABEL_ROLES.name)]
        classes = [self._classes(*piece) for piece in zip(labels, groups, strict=True)]
        places = self._places(hidden, batch, self._queries(labels, groups))
        return {
            **scored(places, PLACES, PLACE_SCORES),
            CLASS_SCORES.name: np.concatenate(classes),
            CLASS_SCORES.lengths: item_lengths(classes),
        }

    def _classes(self, labels: torch.Tensor, groups: Sequence[Group]) -> Floats:
        """Return the scores of all classification tasks of one piece."""
        found = []
        for group in groups:
            if group.is_classes and group.end > group.first + 1:
                logits = self._heads.classifier(labels[group.first + 1 : group.end]).squeeze(-1).float()
                found.append(logits.softmax(-1) if group.role == ONE_CLASS else logits.sigmoid())
        return torch.cat(found).cpu().numpy() if found else np.empty(0, np.float32)

    def _queries(self, labels: Sequence[torch.Tensor], groups: Sequence[Sequence[Group]]) -> list[Queries | None]:
        """Return the queries of each piece; None if the model finds nothing in it."""
        asked = [
            (piece, group)
            for piece, of_piece in enumerate(groups)
            for group in of_piece
            if not group.is_classes and group.end > group.first + 1
        ]
        if not asked:
            return [None] * len(groups)
        counted = self._heads.counter(torch.stack([labels[piece][group.first] for piece, group in asked])).argmax(-1)
        counts = {
            slot: 1 if slot[1].role == ENTITIES else count
            for slot, count in zip(asked, counted.tolist(), strict=True)
            if count
        }
        fields = [labels[piece][group.first + 1 : group.end] for piece, group in counts]
        states = stacked(fields, list(counts.values()), self._heads.instances)
        found: list[list[Queries]] = [[] for _ in groups]
        for (piece, group), each in zip(counts, states, strict=True):
            found[piece].append(queries_of(group, each))
        return [joined(each) if each else None for each in found]

    def _places(
        self, hidden: torch.Tensor, batch: Batch, queries: Sequence[Queries | None]
    ) -> list[tuple[Ints, Floats]]:
        words = states_at(hidden, batch, WORD_TOKENS.name)
        choices = states_at(hidden, batch, CHOICE_TOKENS.name)
        names = (WORD_SPANS, LABEL_THRESHOLDS, CHOICE_LABELS)
        spans, thresholds, choice_labels = (pieces_of(batch, tensor.name) for tensor in names)
        found = []
        for i, of_piece in enumerate(queries):
            if of_piece is None:
                found.append((np.empty((0, 5), np.int32), np.empty(0, np.float32)))
                continue
            options = batch.options[i] if batch.options else {}
            least = least_scores(thresholds[i][of_piece.labels], options)
            chosen = self._chosen(choices[i], of_piece, least, choice_labels[i])
            policy = str(options.get(OVERLAP_POLICY.name, ""))
            told = self._best_spans(words[i], of_piece, least, choice_labels[i], spans[i], policy)
            found.append((np.concatenate([told[0], chosen[0]]), np.concatenate([told[1], chosen[1]])))
        return found

    def _best_spans(
        self, words: torch.Tensor, queries: Queries, least: Floats, choice_labels: Ints, spans: Ints, policy: str
    ) -> tuple[Ints, Floats]:
        """Return the spans of queries without choices, best first."""
        of_words = np.flatnonzero(~np.isin(queries.labels, choice_labels))
        if not len(of_words) or not len(words):
            return np.empty((0, 5), np.int32), np.empty(0, np.float32)
        wanted, heads = queries.states[torch.from_numpy(of_words).to(words.device)], self._heads
        found = heads.spans(heads.spans.ends(words), wanted, torch.from_numpy(least[of_words]).to(words.device))
        kept = kept_of(found, policy)
        asked = queries.keys[of_words[found.label[kept]]]
        places = np.stack([spans[found.first[kept], 0], spans[found.last[kept], 1]], 1)
        return np.concatenate([asked, places], 1).astype(np.int32), found.score[kept]

    def _chosen(
        self, choices: torch.Tensor, queries: Queries, least: Floats, choice_labels: Ints
    ) -> tuple[Ints, Floats]:
        if not len(choices):
            return np.empty((0, 5), np.int32), np.empty(0, np.float32)
        scores = self._heads.spans.of_single(self._heads.spans.ends(choices), queries.states).T
        own = queries.labels[:, None] == choice_labels
        query, choice = np.nonzero(own & (scores >= least[:, None]))
        first = np.searchsorted(choice_labels, choice_labels[choice])
        places = np.stack([choice - first, np.full_like(choice, CHOICE)], 1)
        return np.concatenate([queries.keys[query], places], 1).astype(np.int32), scores[query, choice]


def groups_of(roles: Ints) -> Iterator[Group]:
    """Yield the questions. Entities are task 0; other tasks are numbered from 1."""
    starts = np.flatnonzero(roles != FIELD).tolist()
    if not starts or starts[0]:
        raise ValueError("label_roles: must begin with one that is not a field")
    task = 0
    for first, end in zip(starts, [*starts[1:], len(roles)], strict=True):
        role = int(roles[first])
        task += role != ENTITIES
        yield Group(role, 0 if role == ENTITIES else task, first, end)


def queries_of(group: Group, states: torch.Tensor) -> Queries:
    """Return queries for the fields of each instance, states [count, m, d]."""
    count, num_fields = states.shape[:2]
    instance, number = np.divmod(np.arange(count * num_fields), num_fields)
    asked = np.stack([np.full_like(instance, group.task), instance, number], 1)
    return Queries(states.flatten(0, 1), asked, group.first + 1 + number)


def joined(queries: Sequence[Queries]) -> Queries:
    return Queries(
        torch.cat([each.states for each in queries]),
        np.concatenate([each.keys for each in queries]),
        np.concatenate([each.labels for each in queries]),
    )


def kept_of(found: Candidates, policy: str) -> npt.NDArray[np.int64]:
    """Return indices of the rows to keep: of the best in the piece, those of each query that `policy` keeps."""
    best = np.sort(np.argsort(-found.score, kind="stable")[: LIMITS.max_candidates])
    _, starts = np.unique(found.label[best], return_index=True)
    kept = [np.empty(0, np.int64)]
    for rows in np.split(best, starts[1:]) if len(best) else ():
        spans = np.stack([found.first[rows], found.last[rows] + 1], 1)
        kept.append(rows[resolved(spans, found.score[rows], policy)])
    return np.concatenate(kept)


def load_adapter(spec: ModelSpec, directory: Path, engine: TorchEngine) -> Gliner2Adapter:
    files = Gliner2Files.read(directory)
    weights = Checkpoint(directory, engine.dtype, engine.device)
    encoder = engine.encoder(engine.load_part(files.encoder.values, weights, "encoder."))
    engine.settle(encoder)
    size = int(encoder.config.hidden_size)
    heads = Heads(size, files.max_width, INSTANCES[files.counting_layer](size))
    weights.fill(heads.spans.marker, "span_rep.span_rep_layer.")
    weights.fill(heads.classifier, "classifier.")
    weights.fill(heads.counter, "count_pred.")
    weights.fill(heads.instances, "count_embed.")
    return Gliner2Adapter(encoder, heads)
