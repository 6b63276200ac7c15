"""GLiREL's forward pass: words and labels in one packed pass, then the pairs of each piece separately."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from sie_triton.contract import Batch, ParameterValue, Rows
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import LABEL_THRESHOLDS, LABEL_TOKENS
from sie_triton.engines.torch.checkpoint import Checkpoint
from sie_triton.engines.torch.encoder import num_bytes
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.models.families.gliner.adapter import LABELS
from sie_triton.models.families.glirel import KNOWN, RELATION_SCORES, RELATIONS, GlirelFiles
from sie_triton.models.families.glirel.heads import Refining, RelationHead
from sie_triton.models.families.shared.labels.spans import scored
from sie_triton.models.families.shared.labels.word_reader import WordReader
from sie_triton.models.families.shared.labels.words import pieces_of, states_at
from sie_triton.models.families.shared.thresholds import least_scores
from sie_triton.models.families.shared.token_batch import TokenAdapter

# Offsets from a label's marker to the tokens whose mean is the label's state.
OFFSETS = {"ent_token": (0,), "label": (1,), "both": (0, 1)}

Relations = tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]


class GlirelAdapter(TokenAdapter):
    """GLiREL adapter. `head` scores the pairs of one piece."""

    def __init__(self, reader: WordReader, head: RelationHead, label_offsets: tuple[int, ...]) -> None:
        super().__init__(reader.encoder)
        self._reader, self._head, self._label_offsets = reader, head, label_offsets
        self.weights_bytes += reader.head_bytes + num_bytes(head)

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Rows:
        states = self._reader.states(batch)
        of_labels = [states_at(states, batch, LABEL_TOKENS.name, offset) for offset in self._label_offsets]
        labels = [torch.stack(each).mean(0) for each in zip(*of_labels, strict=True)]
        words = self._reader.words(states, batch)
        known, thresholds = pieces_of(batch, KNOWN.name), pieces_of(batch, LABEL_THRESHOLDS.name)
        pieces = zip(words, labels, known, thresholds, batch.options, strict=True)
        return scored([self._find_relations(*piece) for piece in pieces], RELATIONS, RELATION_SCORES)

    def _find_relations(
        self,
        words: torch.Tensor,
        labels: torch.Tensor,
        known: npt.NDArray[np.int32],
        thresholds: npt.NDArray[np.float32],
        options: Mapping[str, ParameterValue],
    ) -> Relations:
        if len(known) < 2:
            return np.empty((0, 7), np.int32), np.empty(0, np.float32)
        if int(known[:, 1:3].max()) >= len(words):
            raise ValueError(f"{KNOWN.name}: names words beyond the end of their piece")
        least = torch.from_numpy(least_scores(thresholds, options)).to(words.device)
        places = torch.from_numpy(known[:, 1:3].astype(np.int64)).to(words.device)
        found = self._head(words, places, self._head.of_labels(labels), least)
        heads, tails = known[found.first], known[found.last]
        relations = [heads[:, :1], tails[:, :1], heads[:, 3:], tails[:, 3:], found.label[:, None]]
        return np.concatenate(relations, 1).astype(np.int32), found.score


def load_adapter(spec: ModelSpec, directory: Path, engine: TorchEngine) -> GlirelAdapter:
    files = GlirelFiles.read(directory)
    weights = Checkpoint(directory, engine.dtype, engine.device)
    reader = WordReader.load(files.encoder.values, weights, engine, size=files.hidden_size, lstm_layers=1)
    return GlirelAdapter(reader, head_of(files, weights), OFFSETS[files.label_strategy])


def head_of(files: GlirelFiles, weights: Checkpoint) -> RelationHead:
    def refining(is_used: bool, prefix: str, num_layers: int) -> Refining | None:
        made = Refining(files.hidden_size, files.refining_factor, num_layers)
        return weights.fill(made, prefix) if is_used else None

    head = RelationHead(
        files.hidden_size,
        files.max_distance,
        refining(files.refines_relations, "refine_relation.", num_layers=1),
        refining(files.refines_labels, "refine_prompt.", num_layers=2),
    )
    weights.fill(head.marker, "span_rep_layer.rel_rep_layer.")
    weights.fill(head.labels, LABELS)
    return head
