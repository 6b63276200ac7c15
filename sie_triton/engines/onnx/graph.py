"""An encoder's graph: packed tokens in, states out, without a line of Python between layers.

One text of a few words is computed in a millisecond or two, of which Python's way through a model's layers takes more
than half. The graph has one row of tokens, as the packed path has, and a mask that keeps items apart: its attention
reads all pairs of tokens, so it is for small sub-batches only, and measured which these are.
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

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

Ints = npt.NDArray[np.int32]

# Where in its item each token stands, int [tokens], and the mask that keeps items apart.
Places = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]

HIDDEN = np.finfo(np.float32).min

# Tokens of the sub-batches that it is measured with; more than that is no short query any more.
SIZES = (4, 8, 12, 16, 24, 32, 48, 64)


class Graph:
    """Of the file `path`, for sub-batches of up to `max_tokens`, none until it is said how many.

    Where a pass has not all of `num_threads` to itself, up to `max_tokens_beside_others`. Items are of at most
    `max_length` tokens: within every window of the model. Any thread may run it.
    """

    sizes = SIZES

    def __init__(self, path: Path, num_threads: int, *, is_causal: bool, max_length: int) -> None:
        self._session = open_session(path, "cpu", num_threads)
        self._takes = frozenset(each.name for each in self._session.get_inputs())
        self._is_causal, self.max_length = is_causal, max_length
        self._num_threads = num_threads
        self.max_tokens = self.max_tokens_beside_others = 0

    def serve(self, max_tokens: int, beside_others: int) -> None:
        """Sub-batches of up to so many; up to `beside_others` where a pass shares the processor with others."""
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
        first_position: int,
        beside: Sequence[Indices] = (),
    ) -> torch.Tensor:
        """As Encoder.hidden_states; int32 [tokens], int32 [items], … → float32 [tokens, d]."""
        is_one = len(lengths) == 1 and keys[0] == lengths[0]
        places, mask = one_item(len(input_ids), self._is_causal) if is_one else self._laid_out(lengths, keys)
        given = {
            INPUT_IDS: input_ids[None].astype(np.int64),
            TOKEN_TYPE_IDS: type_ids[None].astype(np.int64),
            POSITION_IDS: places[None] + first_position,
            ATTENTION_MASK: mask,
        }
        (states,) = self._session.run([STATES], {name: given[name] for name in self._takes})
        return torch.from_numpy(states[0])

    def _laid_out(self, lengths: Ints, keys: Ints) -> Places:
        items, places = placed(lengths)
        return places, mask_of(items, places, keys, is_causal=self._is_causal)


@lru_cache(maxsize=2 * SIZES[-1])
def one_item(num_tokens: int, is_causal: bool) -> Places:
    """Where the tokens of one item stand, and the mask of them: the commonest sub-batch."""
    places, whole = np.arange(num_tokens), np.array([num_tokens], np.int32)
    return places, mask_of(np.zeros(num_tokens, np.int64), places, whole, is_causal=is_causal)


def mask_of(
    items: npt.NDArray[np.int64], places: npt.NDArray[np.int64], keys: Ints, *, is_causal: bool
) -> npt.NDArray[np.float32]:
    """float32 [1, 1, tokens, tokens], added to attention's scores: 0 where a token sees another.

    `items` int [tokens] are the items of tokens, `places` where in them they stand; the first `keys` [items] are seen.

    >>> two, one = np.array([0, 0, 1]), np.array([0, 1, 0])
    >>> (mask_of(two, one, np.array([2, 1], np.int32), is_causal=True)[0, 0] == 0).astype(int).tolist()
    [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    """
    sees = (items[:, None] == items) & (places < keys[items])
    if is_causal:
        sees &= places[:, None] >= places
    return np.where(sees, np.float32(0), HIDDEN)[None, None]
