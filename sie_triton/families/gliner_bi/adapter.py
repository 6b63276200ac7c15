"""The forward pass of GLiNER's bi-encoders: words as in the others, labels from an encoder of their own, once."""

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from sie_triton.checkpoints.gliner import GlinerFiles
from sie_triton.contract import Batch
from sie_triton.engines.torch.checkpoint import Checkpoint
from sie_triton.engines.torch.encoder import Encoder, num_bytes
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.families.gliner.adapter import GlinerAdapter, Head, head_of, reader_of
from sie_triton.families.gliner_bi import LABEL_IDS, LABEL_SIZES
from sie_triton.families.labelled_words import pieces_of
from sie_triton.families.word_reader import WordReader, projection_of

Ints = npt.NDArray[np.int32]

LABELS_ENCODER = "token_rep_layer.labels_encoder.model."
LABELS_PROJECTION = "token_rep_layer.labels_projection."

# What is kept of labels, in bytes: of 768 numbers each, 21,845 labels.
KEPT_BYTES = 64 * 1024**2

# So many tokens of labels go through their encoder at once.
TOKENS_AT_ONCE = 16_384


class Kept:
    """States of labels by their tokens, the least recently used gone first; safe to call from several threads."""

    def __init__(self, max_bytes: int = KEPT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._states: OrderedDict[bytes, torch.Tensor] = OrderedDict()

    def __len__(self) -> int:
        return len(self._states)

    def known(self, labels: Sequence[bytes]) -> dict[bytes, torch.Tensor]:
        """Those of `labels` that are kept."""
        with self._lock:
            found = {label: self._states[label] for label in labels if label in self._states}
            for label in found:
                self._states.move_to_end(label)
        return found

    def put(self, states: dict[bytes, torch.Tensor]) -> None:
        """All of one size."""
        with self._lock:
            self._states |= states
            while self._states and len(self._states) * next(iter(self._states.values())).nbytes > self._max_bytes:
                self._states.popitem(last=False)


class GlinerBiAdapter(GlinerAdapter):
    """`labels_encoder` and its projection are those of labels, whose states the head gets from `kept`."""

    def __init__(
        self, reader: WordReader, head: Head, labels_encoder: Encoder, projection: nn.Linear | None, longest: int
    ) -> None:
        super().__init__(reader, head)
        self.limits = {
            **self.limits,
            LABEL_IDS.name: labels_encoder.vocab_size - 1,
            LABEL_SIZES.name: longest,
        }
        self.kept = Kept()
        self._labels_encoder, self._labels_projection = labels_encoder, projection
        self.weights_bytes += labels_encoder.weights_bytes + (num_bytes(projection) if projection is not None else 0)

    def _labels(self, states: torch.Tensor, batch: Batch) -> list[torch.Tensor]:
        pieces = list(zip(pieces_of(batch, LABEL_IDS.name), pieces_of(batch, LABEL_SIZES.name), strict=True))
        sets = [(ids.tobytes(), sizes.tobytes()) for ids, sizes in pieces]
        # Pieces of one request have the same.
        distinct = {key: _apart(*piece) for key, piece in zip(sets, pieces, strict=True)}
        known = self._states({label: None for labels in distinct.values() for label in labels})
        stacked = {key: torch.stack([known[label] for label in labels]) for key, labels in distinct.items()}
        return [stacked[key] for key in sets]

    def _states(self, labels: dict[bytes, None]) -> dict[bytes, torch.Tensor]:
        """Of labels as the bytes of their tokens; those that are not kept go through the encoder together."""
        found = self.kept.known(list(labels))
        for chunk in _chunks([label for label in labels if label not in found]):
            made = dict(zip(chunk, self._encoded(chunk), strict=True))
            self.kept.put(made)
            found |= made
        return found

    def _encoded(self, labels: Sequence[bytes]) -> list[torch.Tensor]:
        ids = [np.frombuffer(label, np.int32) for label in labels]
        lengths = np.array(list(map(len, ids)), np.int32)
        hidden = self._labels_encoder.hidden_states(np.concatenate(ids), lengths)
        means = torch.stack([each.float().mean(0) for each in torch.split(hidden, lengths.tolist())]).to(hidden.dtype)
        if self._labels_projection is not None:
            means = self._labels_projection(means)
        # Each in memory of its own, which goes when it does.
        return [state.clone() for state in self._head.of_labels(means)]


def _apart(ids: Ints, sizes: Ints) -> list[bytes]:
    """Of one piece: the tokens of each label."""
    if int(sizes.sum(dtype=np.int64)) != len(ids):
        raise ValueError(f"{LABEL_SIZES.name}: must sum to the tokens in {LABEL_IDS.name}, {len(ids)}")
    return [each.tobytes() for each in np.split(ids, np.cumsum(sizes)[:-1])]


def _chunks(labels: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Of about TOKENS_AT_ONCE each."""
    chunk: list[bytes] = []
    num_bytes = 0
    for label in labels:
        chunk.append(label)
        num_bytes += len(label)
        if num_bytes >= TOKENS_AT_ONCE * np.dtype(np.int32).itemsize:
            yield chunk
            chunk, num_bytes = [], 0
    if chunk:
        yield chunk


def load(directory: Path, engine: TorchEngine) -> GlinerBiAdapter:
    """LoadError says what in the directory cannot be used."""
    files = GlinerFiles.read(directory)
    weights = Checkpoint(directory, engine.dtype, engine.device)
    reader = reader_of(files, weights, engine)
    encoder = engine.encoder(engine.load_part(files.labels_encoder.values, weights, LABELS_ENCODER))
    engine.settle(encoder, "labels", files.longest_label)
    projection = projection_of(encoder, weights, LABELS_PROJECTION, files.hidden_size)
    return GlinerBiAdapter(reader, head_of(files, weights), encoder, projection, files.longest_label)
