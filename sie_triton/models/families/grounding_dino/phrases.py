"""The choice of each box's label by the scores of the labels' words. Numpy."""

import numpy as np
import numpy.typing as npt

from sie_triton.contract.arrays import Floats, Ints

# Less than any difference between two shares of words.
LITTLE = 1e-9


def labels_of(scores: Floats, ids: Ints, labels: Ints, least: float) -> npt.NDArray[np.int64]:
    """Return the number of each box's label, from 0: [boxes].

    scores [boxes, tokens], ids [tokens]; labels [tokens] are numbers from 1, 0 for tokens of no label. The words that
    score more than `least` are the box's phrase. The label is the one with the largest share of its words in the
    phrase, then the one with most words in it, then the first. If the phrase has no word of any label, it is the label
    of the best word.
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
