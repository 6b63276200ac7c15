"""SPLADE models against sentence-transformers' SparseEncoder on the same weights."""

from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SparseEncoder

from sie_triton.engines.torch.encoder import PACKED
from sie_triton.errors import LoadError
from sie_triton.inputs.tokenizer import TextTokenizer
from sie_triton.perf.workload import texts
from sie_triton.spec import ModelSpec, Runtime
from tests.support.loading import Tokens, load_adapter, token_batch
from tests.support.models import save_splade

TEXTS = ["", "a", *texts(20, seed=3), " ".join(["many words"] * 200)]


def spec(directory: Path) -> ModelSpec:
    runtime = Runtime(device="cpu", max_sub_batch_cost=2048)
    return ModelSpec("m", str(directory), "splade", {"sparse": 30522}, 512, 16384, runtime=runtime)


def sparse(adapter, tokenizer, items, *, is_query=False):
    tokens = Tokens.of(tokenizer.encode(items))
    batch = token_batch(
        tokens.input_ids,
        tokens.lengths,
        np.zeros(len(items), np.int32),
        np.full(len(items), is_query),
        frozenset({"sparse"}),
    )
    rows = adapter.forward(batch)
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
        ("bert", "max", "relu"),
        ("bert", "sum", "relu"),
        ("bert", "max", "log1p_relu"),
        ("roberta", "max", "relu"),
        ("distilbert", "max", "relu"),
        ("gte", "max", "log1p_relu"),
    ],
)
def test_the_same_as_sparse_encoder(tmp_path, minilm_directory, architecture, pooling, activation):
    directory = save_splade(tmp_path, minilm_directory, architecture, pooling, activation)
    adapter = load_adapter(spec(directory), directory)
    assert adapter.encoder.path == PACKED
    tokenizer = TextTokenizer.load(directory, 512)
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
    tokenizer = TextTokenizer.load(directory, 512)
    reference = SparseEncoder(str(directory), device="cpu")
    check(sparse(adapter, tokenizer, TEXTS, is_query=True), reference.encode_query(TEXTS))
    check(sparse(adapter, tokenizer, TEXTS), reference.encode_document(TEXTS, batch_size=4))
    mixed = Tokens.of(tokenizer.encode(TEXTS[2:4]))
    roles = np.array([True, False])
    rows = adapter.forward(
        token_batch(mixed.input_ids, mixed.lengths, np.zeros(2, np.int32), roles, frozenset({"sparse"}))
    )
    (query,), (document,) = (sparse(adapter, tokenizer, [TEXTS[i]], is_query=i == 2) for i in (2, 3))
    np.testing.assert_array_equal(rows["sparse_lengths"], [len(query[0]), len(document[0])])


def test_a_dense_model_is_refused_as_splade(tmp_path, tiny_directory):
    with pytest.raises(
        LoadError, match=r"Transformer → Pooling → Normalize cannot be served; supported is .* SpladePooling"
    ):
        load_adapter(spec(tiny_directory), tiny_directory)
