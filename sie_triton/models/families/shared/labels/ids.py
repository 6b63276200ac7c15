"""Features for labels that are read apart from the text in which they are looked for. No torch."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sie_triton.contract import Label, Ragged
from sie_triton.contract.arrays import Ints, item_lengths
from sie_triton.contract.tensors import LABEL_THRESHOLDS, Tensor

LABEL_IDS = Tensor("label_ids", "INT32", (-1,), "[tokens] of a piece's labels", "label_id_lengths", 0)
LABEL_SIZES = Tensor(
    "label_sizes", "INT32", (-1,), "[labels] number of tokens of each label", LABEL_THRESHOLDS.lengths, 1
)


class Labels(NamedTuple):
    """Labels of a piece: `ids` int32 [tokens] of all labels, `sizes` int32 [labels], `thresholds` float32 [labels]."""

    ids: Ints
    sizes: Ints
    thresholds: npt.NDArray[np.float32]


def labels_of(labels: Sequence[Label], ids: Sequence[Sequence[int]]) -> Labels:
    """Combine labels and their tokens, `ids`."""
    flat = np.concatenate([np.array(each, np.int32) for each in ids])
    return Labels(flat, item_lengths(ids), thresholds_of(labels))


def thresholds_of(labels: Sequence[Label]) -> npt.NDArray[np.float32]:
    """Return float32 [labels]; NaN is the threshold of the request."""
    return np.array([np.nan if label.threshold is None else label.threshold for label in labels], np.float32)


def label_ids(of_pieces: Sequence[Labels]) -> dict[str, Ragged]:
    """Return the features for the labels of each piece."""
    ids, sizes, thresholds = zip(*of_pieces, strict=True)
    return {
        LABEL_IDS.name: Ragged.of(ids),
        LABEL_SIZES.name: Ragged.of(sizes),
        LABEL_THRESHOLDS.name: Ragged.of(thresholds),
    }
