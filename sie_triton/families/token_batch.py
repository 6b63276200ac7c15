"""What families of texts read of a batch."""

import numpy as np
import numpy.typing as npt

from sie_triton.contract import Batch
from sie_triton.contract.tensors import INPUT_IDS, PROMPT_TOKENS

Ints = npt.NDArray[np.int32]


def tokens(batch: Batch) -> tuple[Ints, Ints]:
    """input_ids int32 [tokens], the items one after another, and lengths int32 [items], each at least 1."""
    input_ids, lengths = batch.features[INPUT_IDS.name]
    assert lengths is not None
    return input_ids, lengths


def prompt_tokens(batch: Batch) -> Ints:
    """int32 [items], leading tokens of each item that pooling leaves out."""
    return batch.features[PROMPT_TOKENS.name].values
