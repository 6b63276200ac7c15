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
    scores, numbers = scores[:, labels > 0], labels[labels > 0] - 1
    words, which = np.unique(ids[labels > 0], return_inverse=True)
    in_phrase = np.zeros((len(scores), len(words)), np.bool_)
    of_labels = np.zeros((len(words), int(numbers.max()) + 1))
    for token, (word, number) in enumerate(zip(which, numbers, strict=True)):
        in_phrase[:, word] |= scores[:, token] > least
        of_labels[word, number] += 1
    found = in_phrase @ of_labels
    rank = found / of_labels.sum(0) + LITTLE * found
    return np.where(found.any(1), rank.argmax(1), numbers[scores.argmax(1)])
