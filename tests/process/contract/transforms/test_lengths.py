"""Compiled code refuses wrong lengths and never reads out of bounds."""

import numpy as np
import pytest
import torch

from sie_triton.contract.spec import MuveraConfig
from sie_triton.contract.transforms import Muvera
from sie_triton.contract.transforms import muvera as module
from sie_triton.engines.torch import cpu_kernels

TOKENS = 4


@pytest.fixture(params=["native", "numpy", "native, centred", "numpy, centred"])
def muvera(request, monkeypatch) -> Muvera:
    if request.param.startswith("numpy"):
        monkeypatch.setattr(module, "library", lambda _: None)
    else:
        assert module.library(module.MUVERA) is not None
    options = {"num_repetitions": 2, "num_simhash_projections": 2, "final_projection_dim": None}
    return Muvera(MuveraConfig(**options, center_tokens="centred" in request.param), 3)


@pytest.mark.parametrize("lengths", [[5], [3, 2], [3, -2], [-1, 5], [2**31 - 1, 2**31 - 1, 6]], ids=str)
def test_muvera_refuses_negative_or_excessive_lengths(muvera, lengths):
    vectors = np.ones((TOKENS, 3), np.float32)
    with pytest.raises(ValueError, match="lengths must be 0 or more, and their sum must not exceed the number of"):
        muvera.encode(vectors, np.array(lengths, np.int32), is_query=True)


@pytest.mark.parametrize("lengths", [[], [0], [4], [3, 0], [0, 1, 3]], ids=str)
def test_muvera_takes_lengths_that_stay_within_the_vectors(muvera, lengths):
    """Vectors behind the last item are ignored."""
    vectors = np.random.default_rng(0).normal(size=(TOKENS, 3)).astype(np.float32)
    encoded = muvera.encode(vectors, np.array(lengths, np.int32), is_query=True)
    assert len(encoded) == len(lengths)
    if not muvera.config.center_tokens:  # centring makes a single vector zero
        assert encoded.any(axis=1).tolist() == [length > 0 for length in lengths]
    used = int(sum(lengths))
    np.testing.assert_array_equal(encoded, muvera.encode(vectors[:used], np.array(lengths, np.int32), is_query=True))


@pytest.mark.parametrize(
    ("lengths", "keys"),
    [
        ((3,), (3,)),
        ((1, 2), (1, 2)),
        ((1, 3), (2, 3)),
        ((2, 2), (2, -1)),
        ((4, 1), (4, 1)),
        ((5, -1), (5, -1)),
        ((2**31 - 1, 2**31 - 1, 6), (1, 1, 1)),
    ],
    ids=str,
)
def test_the_attention_kernel_refuses_inconsistent_lengths_and_keys(lengths, keys):
    assert cpu_kernels.is_built()
    x = torch.ones(1, 2, TOKENS, cpu_kernels.LANES)
    with pytest.raises(ValueError, match="lengths must sum to the tokens, and no item may have more keys than tokens"):
        cpu_kernels.attention(x, x, x, lengths, keys, 1.0, (-1, -1))


def test_the_attention_kernel_wants_keys_of_each_item():
    x = torch.ones(1, 2, TOKENS, cpu_kernels.LANES)
    with pytest.raises(ValueError, match="there are 2 lengths and 1 keys"):
        cpu_kernels.attention(x, x, x, (2, 2), (2,), 1.0, (-1, -1))
