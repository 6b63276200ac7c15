"""Rows of a forward pass: which items share one, what attention may see of each, and how many a pass has."""

import numpy as np
import pytest

from sie_triton.engines.torch.rows import ROW_COUNTS, ROWS, side_by_side, similar, spare_items


@pytest.mark.parametrize(("lengths", "groups"), [([8, 9], [[0, 1]]), ([7, 8], [[0], [1]]), ([5, 1, 5], [[1], [0, 2]])])
def test_rows_have_one_token_of_padding_for_eight_real_ones_at_most(lengths, groups):
    assert list(similar(lengths)) == groups


def test_attention_sees_the_first_tokens_of_an_item_only():
    (rows,) = side_by_side(np.array([8, 9], np.int32), np.array([8, 2], np.int32))
    assert rows.real.sum(1).tolist() == [8, 9]
    assert rows.seen.tolist() == [[True] * 8 + [False], [True] * 2 + [False] * 7]


def test_rows_that_are_added_are_few_and_make_counts_that_recur():
    sizes = range(1, 20_000)
    added = [spare_items(size) for size in sizes]
    totals = {size + sum(items) for size, items in zip(sizes, added, strict=True)}
    assert max(sum(items) / size for size, items in zip(sizes, added, strict=True)) <= 1 / 32
    assert max(map(max, filter(None, added))) == ROWS
    counts = [sum(least <= total < 2 * least for total in totals) for least in 64 * 2 ** np.arange(8)]
    assert counts == [32, 32, 32, 32, 27, 25, 23, 23]


def test_the_largest_sub_batches_have_their_own_counts():
    assert spare_items(ROW_COUNTS[-1]) == spare_items(ROW_COUNTS[-1] + 1) == []
