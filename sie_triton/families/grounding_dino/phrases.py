"""Which label a box is of: that whose words have the scores. Numpy."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]

# Less than any two shares of words differ by.
LITTLE = 1e-9


def labels_of(scores: Floats, ids: Ints, labels: Ints, least: float) -> npt.NDArray[np.int64]:
    """Number of the label, from 0, of each box: [boxes].

    scores [boxes, tokens], ids [tokens], labels [tokens] from 1, 0 for tokens of none. The words above `least` are the
    box's phrase; it is the label of whose words the phrase has the largest share, then that of which it has the most,
    then the first. Where it has none of any, it is the label of the best word.
    """
    in_phrase = scores > least
    in_phrase[:, 0] = False
    words, which = np.unique(ids, return_inverse=True)
    has_word = np.zeros((len(scores), len(words)), np.bool_)
    for token, word in enumerate(which):
        has_word[:, word] |= in_phrase[:, token]
    num_labels = int(labels.max())
    of_label = np.zeros((len(words), num_labels))
    np.add.at(of_label, (which[labels > 0], labels[labels > 0] - 1), 1)
    found = has_word @ of_label
    rank = found / of_label.sum(0).clip(min=1) + LITTLE * found
    best_word = labels[labels > 0][scores[:, labels > 0].argmax(1)] - 1
    return np.where(found.any(1), rank.argmax(1), best_word)
