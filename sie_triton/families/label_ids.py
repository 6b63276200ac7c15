"""Tokens of labels that are read by themselves, beside the items that they are looked for in. No torch."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sie_triton.contract import Label, Ragged
from sie_triton.contract.tensors import LABEL_THRESHOLDS, Tensor

Ints = npt.NDArray[np.int32]

LABEL_IDS = Tensor("label_ids", "INT32", (-1,), "[tokens] of a piece's labels", "label_id_lengths", 0)
LABEL_SIZES = Tensor("label_sizes", "INT32", (-1,), "[labels] tokens of each", LABEL_THRESHOLDS.lengths, 1)


class Labels(NamedTuple):
    """`ids` int32 [tokens] of all, `sizes` int32 [labels], `thresholds` float32 [labels]."""

    ids: Ints
    sizes: Ints
    thresholds: npt.NDArray[np.float32]


def labels_of(labels: Sequence[Label], ids: Sequence[Sequence[int]]) -> Labels:
    """`ids` are the tokens of each."""
    flat = np.concatenate([np.array(each, np.int32) for each in ids])
    return Labels(flat, np.array(list(map(len, ids)), np.int32), thresholds_of(labels))


def thresholds_of(labels: Sequence[Label]) -> npt.NDArray[np.float32]:
    """NaN: that of the request."""
    return np.array([np.nan if label.threshold is None else label.threshold for label in labels], np.float32)


def label_ids(of_pieces: Sequence[Labels]) -> dict[str, Ragged]:
    """Those that are read with each piece."""
    counts = np.array([len(each.sizes) for each in of_pieces], np.int32)
    return {
        LABEL_IDS.name: Ragged(
            np.concatenate([each.ids for each in of_pieces]), np.array([len(each.ids) for each in of_pieces], np.int32)
        ),
        LABEL_SIZES.name: Ragged(np.concatenate([each.sizes for each in of_pieces]), counts),
        LABEL_THRESHOLDS.name: Ragged(np.concatenate([each.thresholds for each in of_pieces]), counts),
    }
