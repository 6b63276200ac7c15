"""Rows of a padded forward pass: which items share one, and what attention may see of each."""

import numpy as np
import pytest

from sie_triton.engines.torch.rows import side_by_side, similar


@pytest.mark.parametrize(("lengths", "groups"), [([8, 9], [[0, 1]]), ([7, 8], [[0], [1]]), ([5, 1, 5], [[1], [0, 2]])])
def test_rows_have_one_token_of_padding_for_eight_real_ones_at_most(lengths, groups):
    assert list(similar(lengths)) == groups


def test_attention_sees_the_first_tokens_of_an_item_only():
    (rows,) = side_by_side(np.array([8, 9], np.int32), np.array([8, 2], np.int32))
    assert rows.real.sum(1).tolist() == [8, 9]
    assert rows.seen.tolist() == [[True] * 8 + [False], [True] * 2 + [False] * 7]
