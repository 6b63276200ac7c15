"""The GLiNER family's forward pass: words and labels from one packed pass, then the spans of each piece by itself."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence, unpack_sequence

from sie_triton.checkpoints.gliner import GlinerFiles
from sie_triton.contract import Batch, ParameterValue, Rows
from sie_triton.contract.tensors import (
    INPUT_IDS,
    LABEL_THRESHOLDS,
    LABEL_TOKENS,
    SPAN_LENGTHS,
    SPAN_SCORES,
    SPANS,
    WORD_SPANS,
    WORD_TOKENS,
)
from sie_triton.engines.torch.checkpoint import Checkpoint
from sie_triton.engines.torch.encoder import Encoder, num_bytes
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.families.base import Adapter
from sie_triton.families.gliner import THRESHOLD, choice
from sie_triton.families.gliner.heads import SpanHead, TokenHead
from sie_triton.families.labelled_words import pieces_of, states_at
from sie_triton.families.token_batch import tokens
from sie_triton.transforms.spans import chosen

USUAL_THRESHOLD = 0.5

ENCODER = "token_rep_layer.bert_layer.model."
PROJECTION = "token_rep_layer.projection."
LSTM = "rnn.lstm."
MARKER = "span_rep_layer.span_rep_layer."
LABELS = "prompt_rep_layer."
SCORER = "scorer."

# How the table of words is called in the encoders there are.
WORD_TABLES = ("word_embeddings.weight", "tok_embeddings.weight", "embed_tokens.weight", "shared.weight")

Parts = tuple[Encoder, SpanHead | TokenHead, nn.LSTM | None, nn.Linear | None]
Spans = tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]


class GlinerAdapter(Adapter):
    """`head` scores the spans of one piece; `lstm` and `projection` None: the model has none."""

    encoder: Encoder

    def __init__(
        self, encoder: Encoder, head: SpanHead | TokenHead, lstm: nn.LSTM | None, projection: nn.Linear | None
    ) -> None:
        super().__init__(encoder, limits={INPUT_IDS.name: encoder.vocab_size - 1})
        self._head, self._lstm, self._projection = head, lstm, projection
        self.weights_bytes += sum(num_bytes(part) for part in (head, lstm, projection) if part is not None)

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Rows:
        hidden = self.encoder.hidden_states(*tokens(batch))
        if self._projection is not None:
            hidden = self._projection(hidden)
        labels = self._labels(hidden, batch)
        words = in_context(self._lstm, states_at(hidden, batch, WORD_TOKENS.name))
        places, thresholds = pieces_of(batch, WORD_SPANS.name), pieces_of(batch, LABEL_THRESHOLDS.name)
        found = [self._found(*piece) for piece in zip(words, labels, places, thresholds, batch.options, strict=True)]
        return {
            SPANS.name: np.concatenate([spans for spans, _ in found]),
            SPAN_SCORES.name: np.concatenate([scores for _, scores in found]),
            SPAN_LENGTHS.name: np.array([len(spans) for spans, _ in found], np.int32),
        }

    def _labels(self, hidden: torch.Tensor, batch: Batch) -> list[torch.Tensor]:
        """Those of each piece, as the head takes them."""
        return [self._head.of_labels(states) for states in states_at(hidden, batch, LABEL_TOKENS.name)]

    def _found(
        self,
        words: torch.Tensor,
        labels: torch.Tensor,
        places: npt.NDArray[np.int32],
        thresholds: npt.NDArray[np.float32],
        options: Mapping[str, ParameterValue],
    ) -> Spans:
        if not len(words):
            return np.empty((0, 3), np.int32), np.empty(0, np.float32)
        usual = float(options.get(THRESHOLD.name, USUAL_THRESHOLD))
        least = torch.from_numpy(np.where(np.isnan(thresholds), np.float32(usual), thresholds)).to(words.device)
        found = self._head(words, labels, least)
        spans = np.stack([places[found.first, 0], places[found.last, 1], found.label], 1).astype(np.int32)
        kept = chosen(spans, found.score, **choice(options))
        return spans[kept], found.score[kept]


def in_context(lstm: nn.LSTM | None, words: list[torch.Tensor]) -> list[torch.Tensor]:
    """What the LSTM makes of each piece's words."""
    read = [i for i, each in enumerate(words) if len(each)]
    if lstm is not None and read:
        packed, _ = lstm(pack_sequence([words[i] for i in read], enforce_sorted=False))
        for i, states in zip(read, unpack_sequence(packed), strict=True):
            words[i] = states
    return words


def load(directory: Path, engine: TorchEngine) -> GlinerAdapter:
    """LoadError says what in the directory cannot be used."""
    files = GlinerFiles.read(directory)
    return GlinerAdapter(*parts_of(files, Checkpoint(directory, engine.dtype, engine.device), engine))


def parts_of(files: GlinerFiles, weights: Checkpoint, engine: TorchEngine) -> Parts:
    """What an adapter is made of, taken from `weights`."""
    resized = {} if files.tells_vocabulary else {"vocab_size": weights.num_rows(ENCODER, WORD_TABLES)}
    encoder = engine.encoder(engine.load_part({**files.encoder.values, **resized}, weights, ENCODER))
    engine.settle(encoder)
    size, width = files.hidden_size, int(encoder.config.hidden_size)
    projection = weights.fill(nn.Linear(width, size), PROJECTION) if width != size else None
    # A bi-encoder's is saved and never used.
    depth = 0 if files.is_bi_encoder else files.num_lstm_layers
    lstm = weights.fill(nn.LSTM(size, size // 2, depth, bidirectional=True), LSTM) if depth else None
    return encoder, head_of(files, weights), lstm, projection


def head_of(files: GlinerFiles, weights: Checkpoint) -> SpanHead | TokenHead:
    if files.span_mode == "token_level":
        return weights.fill(TokenHead(files.hidden_size), SCORER)
    head = SpanHead(files.hidden_size, files.max_width)
    weights.fill(head.marker, MARKER)
    weights.fill(head.labels, LABELS)
    return head
