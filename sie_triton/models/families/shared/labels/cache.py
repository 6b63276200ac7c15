"""A cache of the states of labels, for models that read labels by a separate encoder."""

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from sie_triton.contract import Batch
from sie_triton.contract.arrays import Ints
from sie_triton.models.families.shared.labels.ids import LABEL_IDS, LABEL_SIZES
from sie_triton.models.families.shared.labels.words import pieces_of

# Maximum tokens of labels in one pass of their encoder.
TOKENS_AT_ONCE = 16_384


class LabelStates:
    """Thread-safe cache of label states by their tokens; evicts the least recently used."""

    def __init__(self, max_bytes: int = 64 * 1024**2) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._states: OrderedDict[bytes, torch.Tensor] = OrderedDict()

    def __len__(self) -> int:
        return len(self._states)

    def known(self, labels: Sequence[bytes]) -> dict[bytes, torch.Tensor]:
        """Return the states of those `labels` that are cached."""
        with self._lock:
            found = {label: self._states[label] for label in labels if label in self._states}
            for label in found:
                self._states.move_to_end(label)
        return found

    def put(self, states: dict[bytes, torch.Tensor]) -> None:
        """Add states, all of the same size."""
        with self._lock:
            self._states |= states
            while self._states and len(self._states) * next(iter(self._states.values())).nbytes > self._max_bytes:
                self._states.popitem(last=False)


class LabelReader(ABC):
    """Base of adapters whose batches carry LABEL_IDS and LABEL_SIZES with each piece."""

    kept: LabelStates

    @abstractmethod
    def _encoded(self, labels: Sequence[bytes]) -> list[torch.Tensor]:
        """Return the state of each label, each in memory of its own, so that evicting it frees the memory."""

    def labels_of(self, batch: Batch) -> list[torch.Tensor]:
        """Return the label states of each piece, [labels, d]."""
        pieces = list(zip(pieces_of(batch, LABEL_IDS.name), pieces_of(batch, LABEL_SIZES.name), strict=True))
        sets = [(ids.tobytes(), sizes.tobytes()) for ids, sizes in pieces]
        # Pieces of one request have the same labels.
        distinct = {key: _apart(*piece) for key, piece in zip(sets, pieces, strict=True)}
        known = self._states({label: None for labels in distinct.values() for label in labels})
        stacked = {key: torch.stack([known[label] for label in labels]) for key, labels in distinct.items()}
        return [stacked[key] for key in sets]

    def _states(self, labels: dict[bytes, None]) -> dict[bytes, torch.Tensor]:
        """Return the state of each label, by the bytes of its tokens; compute those that are not cached together."""
        found = self.kept.known(list(labels))
        for chunk in _chunks([label for label in labels if label not in found]):
            made = dict(zip(chunk, self._encoded(chunk), strict=True))
            self.kept.put(made)
            found |= made
        return found


def _apart(ids: Ints, sizes: Ints) -> list[bytes]:
    """Return the tokens of each label in one piece, as bytes."""
    if int(sizes.sum(dtype=np.int64)) != len(ids):
        raise ValueError(f"{LABEL_SIZES.name}: must sum to the tokens in {LABEL_IDS.name}, {len(ids)}")
    return [each.tobytes() for each in np.split(ids, np.cumsum(sizes)[:-1])]


def _chunks(labels: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Yield chunks of about TOKENS_AT_ONCE tokens each."""
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
