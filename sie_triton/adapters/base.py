"""What inference asks of a model family."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from sie_triton.adapters.encoder import Encoder


# The ways to run a sub-batch: see encoder.py.
PACKED, PADDED = "packed", "padded"


# Tensors of the contract by name: one row an item, or, of ragged ones, as many as its length says.
Rows = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Tokens:
    """input_ids: int32 [tokens], the texts one after another; lengths: int32 [texts]."""

    input_ids: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """One sub-batch without padding.

    input_ids: int32 [tokens], the items one after another.
    lengths: int32 [items], each at least 1, summing to `tokens`.
    prompt_tokens: int32 [items], leading tokens of each item that pooling leaves out.
    is_query: bool [items]; documents where it is not given.
    outputs: the output types that any of the items needs.
    """

    input_ids: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int32]
    prompt_tokens: npt.NDArray[np.int32]
    is_query: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    outputs: frozenset[str] = frozenset()

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
