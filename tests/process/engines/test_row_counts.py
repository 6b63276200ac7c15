"""Passes of any size on a CPU: their products have few different numbers of rows, and no result depends on them."""

import numpy as np
import pytest
import torch
import transformers

from sie_triton.engines.torch.encoder import TorchEncoder
from sie_triton.engines.torch.prepack import PrepackedLinear
from tests.support.models import SIZES, sharpen

MAX_LENGTH = 20


@pytest.fixture(scope="module")
def encoder():
    config = transformers.BertConfig(**SIZES, intermediate_size=128, max_position_embeddings=MAX_LENGTH)
    torch.manual_seed(7)
    model = transformers.AutoModel.from_config(config, attn_implementation="eager", add_pooling_layer=False).eval()
    sharpen(model)
    encoder = TorchEncoder(model)
    encoder.prepare()
    encoder.use("packed")
    return encoder


@pytest.fixture
def row_counts(encoder):
    """The numbers of rows of all products."""
    found = set()
    layers = [layer for layer in encoder.model.modules() if isinstance(layer, PrepackedLinear)]
    hooks = [layer.register_forward_pre_hook(lambda _, inputs: found.add(inputs[0].shape[1])) for layer in layers]
    assert hooks
    yield found
    for hook in hooks:
        hook.remove()


def states(encoder, num_tokens):
    """Return the states of `num_tokens` tokens, in items of MAX_LENGTH; those of one size begin as those of another."""
    ids = np.random.default_rng(0).integers(1000, 30000, 8192).astype(np.int32)[:num_tokens]
    full, rest = divmod(num_tokens, MAX_LENGTH)
    return encoder.hidden_states(ids, np.array([*[MAX_LENGTH] * full, *filter(None, [rest])], np.int32))


@pytest.mark.parametrize(("least", "num_counts"), [(128, 33), (4096, 24)])
def test_products_have_few_numbers_of_rows(encoder, row_counts, least, num_counts):
    """oneDNN keeps two descriptions of 252 KB for each number of rows and product."""
    sizes = set(np.random.default_rng(1).integers(least, 2 * least, 80))
    assert len(sizes) > 1.5 * num_counts
    for size in sizes:
        states(encoder, size)
    assert len(row_counts) <= num_counts


def test_rows_that_are_added_change_no_result(encoder):
    """They are as many as several of the model's longest items, which have no position for one item of them."""
    expected = states(encoder, 8192)
    for size in (67, 255, 512, 1019, 4980, 7985):
        torch.testing.assert_close(
            states(encoder, size)[:-MAX_LENGTH], expected[: size - MAX_LENGTH], rtol=0, atol=2e-6
        )
