"""The reader of words and labels in GLiNER and GLiREL: encoder → [projection] → [LSTM over the words]."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence, unpack_sequence

from sie_triton.contract import Batch
from sie_triton.contract.tensors import WORD_TOKENS
from sie_triton.engines.torch.checkpoint import Checkpoint
from sie_triton.engines.torch.encoder import TorchEncoder, num_bytes
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.models.families.shared.labels.words import states_at
from sie_triton.models.families.shared.token_batch import tokens

ENCODER = "token_rep_layer.bert_layer.model."

# Names of the word embeddings in different encoders.
WORD_TABLES = ("word_embeddings.weight", "tok_embeddings.weight", "embed_tokens.weight", "shared.weight")


class WordReader:
    """Encoder, projection and LSTM; None if the model has no projection or no LSTM."""

    def __init__(self, encoder: TorchEncoder, projection: nn.Linear | None, lstm: nn.LSTM | None) -> None:
        self.encoder, self._projection, self._lstm = encoder, projection, lstm
        self.head_bytes = sum(num_bytes(part) for part in (projection, lstm) if part is not None)

    @classmethod
    def load(
        cls,
        config: Mapping[str, Any],
        weights: Checkpoint,
        engine: TorchEngine,
        *,
        size: int,
        lstm_layers: int,
        gives_vocabulary_size: bool = False,
    ) -> "WordReader":
        """Load the reader, whose states have `size` entries; raise LoadError saying what in `weights` cannot be used.

        Unless `gives_vocabulary_size`, the vocabulary size is that of the word embeddings instead of that in `config`.
        """
        resized = {} if gives_vocabulary_size else {"vocab_size": weights.num_rows(ENCODER, WORD_TABLES)}
        encoder = engine.encoder(engine.load_part({**config, **resized}, weights, ENCODER))
        engine.settle(encoder)
        projection = projection_of(encoder, weights, "token_rep_layer.projection.", size)
        lstm = nn.LSTM(size, size // 2, lstm_layers, bidirectional=True) if lstm_layers else None
        return cls(encoder, projection, weights.fill(lstm, "rnn.lstm.") if lstm is not None else None)

    def states(self, batch: Batch) -> torch.Tensor:
        """Return the states of all tokens, [tokens, size], before the LSTM."""
        hidden = self.encoder.hidden_states(*tokens(batch))
        return self._projection(hidden) if self._projection is not None else hidden

    def words(self, states: torch.Tensor, batch: Batch) -> list[torch.Tensor]:
        """Return the states of the words in each piece, [words, size]."""
        words = states_at(states, batch, WORD_TOKENS.name)
        read = [i for i, each in enumerate(words) if len(each)]
        if self._lstm is not None and read:
            packed, _ = self._lstm(pack_sequence([words[i] for i in read], enforce_sorted=False))
            for i, states in zip(read, unpack_sequence(packed), strict=True):
                words[i] = states
        return words


def projection_of(encoder: TorchEncoder, weights: Checkpoint, prefix: str, size: int) -> nn.Linear | None:
    """Return the projection to `size`; None if that is the encoder's own size."""
    width = int(encoder.config.hidden_size)
    return weights.fill(nn.Linear(width, size), prefix) if width != size else None
