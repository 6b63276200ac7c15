"""An exported graph of an encoder: packed tokens → token states, without Python code between layers.

A text of a few words takes a millisecond or two, more than half of it Python overhead in the model's layers. The graph
computes one row of tokens, like the packed path, with a mask that separates items. Its attention is quadratic in the
row's length, so it suits small sub-batches only; a measurement decides up to which size.
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from sie_triton.contract.arrays import Ints
from sie_triton.engines.onnx.session import (
    ATTENTION_MASK,
    INPUT_IDS,
    POSITION_IDS,
    STATES,
    TOKEN_TYPE_IDS,
    open_session,
)
from sie_triton.engines.torch.rows import placed
from sie_triton.engines.torch.transfers import Indices

# Sizes that are measured, in tokens. Larger sub-batches are not short queries and use the packed path.
SIZES = (4, 8, 12, 16, 24, 32, 48, 64)


class Graph:
    """The graph in the file `path`, for sub-batches of up to `max_tokens`; 0 until measured. Thread-safe.

    `max_tokens_beside_others`: the limit for a pass that has fewer than `num_threads` threads. `max_length`: maximum
    length of an item in tokens, within every attention window of the model.
    """

    sizes = SIZES

    def __init__(self, path: Path, num_threads: int, *, is_causal: bool, max_length: int) -> None:
        self._session = open_session(path, "cpu", num_threads)
        self._takes = frozenset(each.name for each in self._session.get_inputs())
        self._is_causal, self.max_length = is_causal, max_length
        self._num_threads = num_threads
        self.max_tokens = self.max_tokens_beside_others = 0

    def serve(self, max_tokens: int, beside_others: int) -> None:
        """Set the limits, in tokens; `beside_others` holds while a pass shares the processor with others."""
        self.max_tokens, self.max_tokens_beside_others = max_tokens, beside_others

    def suits(self, lengths: Ints) -> bool:
        is_alone = torch.get_num_threads() >= self._num_threads
        limit = self.max_tokens if is_alone else self.max_tokens_beside_others
        return int(lengths.sum()) <= limit and int(lengths.max()) <= self.max_length

    def hidden_states(
        self,
        input_ids: Ints,
        lengths: Ints,
        keys: Ints,
        type_ids: Ints,
        positions: npt.NDArray[np.int64],
        extra_indices: Sequence[Indices] = (),
    ) -> torch.Tensor:
        """Compute as Encoder.hidden_states; int32 [tokens], int32 [items], … → float32 [tokens, d]."""
        is_one = len(lengths) == 1 and keys[0] == lengths[0]
        mask = mask_of_one(len(input_ids), self._is_causal) if is_one else self._mask(lengths, keys)
        given = {
            INPUT_IDS: input_ids[None].astype(np.int64),
            TOKEN_TYPE_IDS: type_ids[None].astype(np.int64),
            POSITION_IDS: positions[None],
            ATTENTION_MASK: mask,
        }
        (states,) = self._session.run([STATES], {name: given[name] for name in self._takes})
        return torch.from_numpy(states[0])

    def _mask(self, lengths: Ints, keys: Ints) -> npt.NDArray[np.float32]:
        items, places = placed(lengths)
        return mask_of(items, places, keys, is_causal=self._is_causal)


@lru_cache(maxsize=2 * SIZES[-1])
def mask_of_one(num_tokens: int, is_causal: bool) -> npt.NDArray[np.float32]:
    """Return the mask of a single item; cached, since such sub-batches are the most common."""
    places, whole = np.arange(num_tokens), np.array([num_tokens], np.int32)
    return mask_of(np.zeros(num_tokens, np.int64), places, whole, is_causal=is_causal)


def mask_of(
    items: npt.NDArray[np.int64], places: npt.NDArray[np.int64], keys: Ints, *, is_causal: bool
) -> npt.NDArray[np.float32]:
    """Return the additive attention mask, float32 [1, 1, tokens, tokens]: 0 where a token (row) sees another.

    `items`, int [tokens]: each token's item. `places`, int [tokens]: its position there. `keys`, int32 [items]: number
    of leading tokens of each item that are visible.

    >>> two, one = np.array([0, 0, 1]), np.array([0, 1, 0])
    >>> (mask_of(two, one, np.array([2, 1], np.int32), is_causal=True)[0, 0] == 0).astype(int).tolist()
    [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    """
    sees = (items[:, None] == items) & (places < keys[items])
    if is_causal:
        sees &= places[:, None] >= places
    return np.where(sees, np.float32(0), np.finfo(np.float32).min)[None, None]
