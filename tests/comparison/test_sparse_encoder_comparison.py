"""SPLADE models against sentence-transformers' SparseEncoder on the same weights."""

from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SparseEncoder

from benchmarks.texts import texts
from sie_triton.contract import Batch
from sie_triton.contract.spec import ModelSpec, Runtime
from sie_triton.engines.torch.encoder import PACKED
from sie_triton.models.families import load_processor
from sie_triton.models.inputs.features import join
from tests.support.loading import load_adapter
from tests.support.models import save_splade

TEXTS = ["", "a", *texts(5, seed=3), " ".join(["many words"] * 200)]


def spec(directory: Path) -> ModelSpec:
    runtime = Runtime(device="cpu", max_sub_batch_cost=2048)
    return ModelSpec("m", str(directory), "splade", {"sparse": 30522}, 512, 16384, runtime=runtime)


def sparse(adapter, tokenizer, items, *, is_query=False):
    return forward(adapter, tokenizer.encode(items, is_query=is_query))


def forward(adapter, features):
    lengths = features["input_ids"].lengths
    rows = adapter.forward(Batch(features, np.zeros(len(lengths), np.bool_), frozenset({"sparse"})))
    ends = np.cumsum(rows["sparse_lengths"])[:-1]
    return list(zip(np.split(rows["sparse_indices"], ends), np.split(rows["sparse_values"], ends), strict=True))


def check(got, expected):
    """Same entries, values rtol 1e-4; an entry so small that rounding decides whether it is there may be missing."""
    for (indices, values), row in zip(got, expected.to_dense().numpy(), strict=True):
        assert (np.diff(indices) > 0).all()
        dense = np.zeros_like(row)
        dense[indices] = values
        assert set(np.flatnonzero(row > 1e-5)) <= set(indices.tolist()) <= set(np.flatnonzero(row > -1e-5))
        assert (dense[row == 0] < 1e-5).all()
        np.testing.assert_allclose(dense, row, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("architecture", "pooling", "activation"),
    [
        ("bert", "sum", "relu"),
        ("roberta", "max", "relu"),
        ("distilbert", "max", "relu"),
        ("gte", "max", "log1p_relu"),
    ],
)
def test_the_same_as_sparse_encoder(tmp_path, minilm_directory, architecture, pooling, activation):
    directory = save_splade(tmp_path, minilm_directory, architecture, pooling, activation)
    adapter = load_adapter(spec(directory), directory)
    assert adapter.encoder.path == PACKED
    tokenizer = load_processor(spec(directory), directory)
    reference = SparseEncoder(str(directory), device="cpu")
    expected = reference.encode_document(TEXTS, batch_size=4)
    together = sparse(adapter, tokenizer, TEXTS)
    check(together, expected)
    assert min(len(indices) for indices, _ in together) > 10
    alone = [sparse(adapter, tokenizer, [text])[0] for text in TEXTS]
    for (indices, values), (other, others) in zip(together, alone, strict=True):
        common = np.intersect1d(indices, other)
        assert len(common) >= 0.999 * max(len(indices), len(other))
        np.testing.assert_allclose(
            values[np.isin(indices, common)], others[np.isin(other, common)], rtol=1e-4, atol=1e-5
        )


def test_queries_without_a_forward_pass(tmp_path, minilm_directory):
    directory = save_splade(tmp_path, minilm_directory, "bert", "max", "relu", idf=True)
    adapter = load_adapter(spec(directory), directory)
    tokenizer = load_processor(spec(directory), directory)
    reference = SparseEncoder(str(directory), device="cpu")
    special = [*TEXTS, "[PAD] a [SEP] [CLS]"]
    # In a batch the library's own padding hides a pad token in a text.
    check(sparse(adapter, tokenizer, special, is_query=True), reference.encode_query(special, batch_size=1))
    check(sparse(adapter, tokenizer, TEXTS), reference.encode_document(TEXTS, batch_size=4))
    mixed = [tokenizer.encode([TEXTS[i]], is_query=i % 2 == 0) for i in range(4)]
    separate = [sparse(adapter, tokenizer, [TEXTS[i]], is_query=i % 2 == 0)[0] for i in range(4)]
    for (indices, values), (other, others) in zip(forward(adapter, join(mixed)), separate, strict=True):
        np.testing.assert_array_equal(indices, other)
        np.testing.assert_allclose(values, others, rtol=1e-4, atol=1e-5)
