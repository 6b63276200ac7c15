"""What inference asks of a model family."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from sie_triton.engines.torch.encoder import Encoder


# The ways to run a sub-batch: see encoder.py.
PACKED, PADDED = "packed", "padded"


# Tensors of the contract by name: one row an item, or, of ragged ones, as many as its length says.
Rows = dict[str, npt.NDArray[Any]]


Ints = npt.NDArray[np.int32]

# A pair is (query, text).
Text = str | tuple[str, str]


@dataclass(frozen=True, slots=True)
class Tokens:
    """input_ids: int32 [tokens], the texts one after another; lengths: int32 [texts].

    type_ids: int32 [tokens], which text of a pair each belongs to, or [0] of single texts.
    """

    input_ids: Ints
    lengths: Ints
    type_ids: Ints = field(default_factory=lambda: np.zeros(0, np.int32))

    def split(self, counts: Sequence[int]) -> Iterator["Tokens"]:
        """Consecutive parts of so many texts each."""
        text = token = 0
        for count in counts:
            lengths = self.lengths[text : text + count]
            part = slice(token, token + int(lengths.sum()))
            yield Tokens(self.input_ids[part], lengths, self.type_ids[part])
            text, token = text + count, part.stop

    @classmethod
    def join(cls, parts: Sequence["Tokens"]) -> "Tokens":
        """One after another."""
        return cls(
            np.concatenate([part.input_ids for part in parts]),
            np.concatenate([part.lengths for part in parts]),
            np.concatenate([part.type_ids for part in parts]),
        )


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """One sub-batch without padding.

    input_ids: int32 [tokens], the items one after another.
    lengths: int32 [items], each at least 1, summing to `tokens`.
    prompt_tokens: int32 [items], leading tokens of each item that pooling leaves out.
    is_query: bool [items]; documents where it is not given.
    type_ids: int32 [tokens], which text of a pair each belongs to; the first where it is not given.
    outputs: the output types that any of the items needs.
    """

    input_ids: Ints
    lengths: Ints
    prompt_tokens: Ints
    is_query: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    outputs: frozenset[str] = frozenset()
    type_ids: Ints | None = None

    def __post_init__(self) -> None:
        if not len(self.is_query):
            object.__setattr__(self, "is_query", np.zeros(len(self.lengths), np.bool_))


class Adapter(Protocol):
    """A loaded model. `forward` is called by one thread at a time."""

    encoder: "Encoder"
    vocab_size: int
    weights_bytes: int

    def forward(self, batch: PackedBatch) -> Rows:
        """The tensors of `batch.outputs` by name, all items one after another; `dense` not yet normalised."""
        ...
