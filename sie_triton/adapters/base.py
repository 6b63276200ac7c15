"""What inference asks of a model family."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from sie_triton.adapters.encoder import Encoder


# The ways to run a sub-batch: see encoder.py.
PACKED, PADDED = "packed", "padded"


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
    """

    input_ids: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int32]
    prompt_tokens: npt.NDArray[np.int32]


class Adapter(Protocol):
    """A loaded model. `forward` is called by one thread at a time."""

    encoder: "Encoder"
    vocab_size: int
    weights_bytes: int

    def forward(self, batch: PackedBatch) -> dict[str, npt.NDArray[np.float32]]:
        """Outputs by name; `dense` is float32 [items, dim], not yet normalised."""
        ...
