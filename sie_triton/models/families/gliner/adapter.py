"""GLiNER's forward pass: words and labels in one packed pass, then the spans of each piece separately."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from sie_triton.checkpoints.gliner import GlinerFiles
from sie_triton.contract import Batch, ParameterValue, Rows
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import LABEL_THRESHOLDS, LABEL_TOKENS, WORD_SPANS
from sie_triton.contract.transforms.spans import chosen
from sie_triton.engines.torch.checkpoint import Checkpoint
from sie_triton.engines.torch.encoder import num_bytes
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.models.families.gliner import choice
from sie_triton.models.families.gliner.heads import SpanHead, TaggingHead
from sie_triton.models.families.shared.labels.spans import SPAN_SCORES, SPANS, scored
from sie_triton.models.families.shared.labels.word_reader import WordReader
from sie_triton.models.families.shared.labels.words import pieces_of, states_at
from sie_triton.models.families.shared.thresholds import least_scores
from sie_triton.models.families.shared.token_batch import TokenAdapter

MARKER = "span_rep_layer.span_rep_layer."
LABELS = "prompt_rep_layer."

Head = SpanHead | TaggingHead
Spans = tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]


class GlinerAdapter(TokenAdapter):
    """GLiNER adapter. `head` scores the spans of one piece."""

    def __init__(self, reader: WordReader, head: Head) -> None:
        super().__init__(reader.encoder)
        self._reader, self._head = reader, head
        self.weights_bytes += reader.head_bytes + num_bytes(head)

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Rows:
        states = self._reader.states(batch)
        labels, words = self._labels(states, batch), self._reader.words(states, batch)
        places, thresholds = pieces_of(batch, WORD_SPANS.name), pieces_of(batch, LABEL_THRESHOLDS.name)
        pieces = zip(words, labels, places, thresholds, batch.options, strict=True)
        return scored([self._find_spans(*piece) for piece in pieces], SPANS, SPAN_SCORES)

    def _labels(self, states: torch.Tensor, batch: Batch) -> list[torch.Tensor]:
        """Return the labels of each piece, in the form that the head takes."""
        return [self._head.of_labels(each) for each in states_at(states, batch, LABEL_TOKENS.name)]

    def _find_spans(
        self,
        words: torch.Tensor,
        labels: torch.Tensor,
        places: npt.NDArray[np.int32],
        thresholds: npt.NDArray[np.float32],
        options: Mapping[str, ParameterValue],
    ) -> Spans:
        if not len(words):
            return np.empty((0, 3), np.int32), np.empty(0, np.float32)
        least = torch.from_numpy(least_scores(thresholds, options)).to(words.device)
        found = self._head(words, labels, least)
        spans = np.stack([places[found.first, 0], places[found.last, 1], found.label], 1).astype(np.int32)
        kept = chosen(spans, found.score, **choice(options))
        return spans[kept], found.score[kept]


def load_adapter(spec: ModelSpec, directory: Path, engine: TorchEngine) -> GlinerAdapter:
    files = GlinerFiles.read(directory)
    weights = Checkpoint(directory, engine.dtype, engine.device)
    return GlinerAdapter(reader_of(files, weights, engine), head_of(files, weights))


def reader_of(files: GlinerFiles, weights: Checkpoint, engine: TorchEngine) -> WordReader:
    return WordReader.load(
        files.encoder.values,
        weights,
        engine,
        size=files.hidden_size,
        # A bi-encoder's LSTM is saved but never used.
        lstm_layers=0 if files.is_bi_encoder else files.num_lstm_layers,
        gives_vocabulary_size=files.gives_vocabulary_size,
    )


def head_of(files: GlinerFiles, weights: Checkpoint) -> Head:
    if files.span_mode == "token_level":
        return weights.fill(TaggingHead(files.hidden_size), "scorer.")
    head = SpanHead(files.hidden_size, files.max_width, files.span_mode)
    weights.fill(head.marker, MARKER)
    weights.fill(head.labels, LABELS)
    return head
