"""Sparse and multi-vector outputs with LoRA adapters equal those of the libraries with peft."""

import numpy as np
import pytest
import torch
from sentence_transformers import MultiVectorEncoder, SparseEncoder

from benchmarks.texts import texts
from sie_triton.contract import Batch, Part
from sie_triton.models.families import load_processor
from sie_triton.models.families.splade import adapter as splade_adapter
from sie_triton.models.inputs import kind_of
from sie_triton.models.inputs.features import join
from sie_triton.models.inputs.request_parts import Framed, features_of
from tests.comparison import test_bge_m3_comparison as bge_m3
from tests.comparison import test_multi_vector_comparison as multi_vector
from tests.comparison import test_sparse_encoder_comparison as splade
from tests.support.loading import load_adapter
from tests.support.loras import LEAST_COSINE, save_lora
from tests.support.models import save_bge_m3, save_splade

TEXTS = ["a", *texts(6, seed=3), "naïve 😀 日本語", "x"]
MIXED = [("", "one", "other")[i % 3] for i in range(len(TEXTS))]
OF_HEAD = ({"target_modules": ["query", "dense", "decoder"]}, {"target_modules": ["value"], "use_dora": True})


def batch_of(tokenizer, items, loras):
    return Batch(tokenizer.encode(items), np.zeros(len(items), np.bool_), loras=loras)


def sparse(adapter, batch):
    with adapter.encoder.adapted(batch.loras):
        rows = adapter.forward(batch)
    ends = np.cumsum(rows["sparse_lengths"])[:-1]
    return list(zip(np.split(rows["sparse_indices"], ends), np.split(rows["sparse_values"], ends), strict=True))


def test_sparse_vectors_are_those_of_peft(tmp_path, minilm_directory, monkeypatch):
    """The vocabulary head, which runs in chunks of tokens across items, is adapted, too."""
    monkeypatch.setattr(splade_adapter, "CHUNK_TOKENS", 19)
    directory = save_splade(tmp_path, minilm_directory)
    spec = splade.spec(directory)
    tokenizer, adapter = load_processor(spec, directory), load_adapter(spec, directory)
    library = SparseEncoder(str(directory), device="cpu")
    base, expected = library[0].model, {"": library.encode(TEXTS).to_dense()}
    for name, config in zip(("one", "other"), OF_HEAD, strict=True):
        library[0].model = save_lora(tmp_path / name, base, spread=0.1, **config)
        expected[name] = library.encode(TEXTS).to_dense()
        adapter.encoder.add_lora(name, tmp_path / name)
        splade.check(sparse(adapter, batch_of(tokenizer, TEXTS, [name] * len(TEXTS))), expected[name].to_sparse())
    rows = torch.stack([expected[name][i] for i, name in enumerate(MIXED)])
    splade.check(sparse(adapter, batch_of(tokenizer, TEXTS, MIXED)), rows.to_sparse())
    with pytest.raises(AssertionError):  # negative control: the base differs
        splade.check(sparse(adapter, batch_of(tokenizer, TEXTS, [])), rows.to_sparse())


def test_queries_without_a_forward_pass_have_no_adapter(tmp_path, minilm_directory):
    """Adapters apply only to the documents of a mixed batch."""
    directory = save_splade(tmp_path, minilm_directory, idf=True)
    spec = splade.spec(directory)
    tokenizer, adapter = load_processor(spec, directory), load_adapter(spec, directory)
    library = SparseEncoder(str(directory), device="cpu")
    save_lora(tmp_path / "one", library[0].sub_modules["document"][0].model, spread=0.1, target_modules=["query"])
    adapter.encoder.add_lora("one", tmp_path / "one")
    roles = [True, False, True, False, False]
    kind = kind_of(("text",))

    def batch(texts, loras, roles):
        parts = [Part("text", [text], is_query=role) for text, role in zip(texts, roles, strict=True)]
        (features,) = features_of(tokenizer, [[Framed(part, tokenizer.frame(part), kind) for part in parts]])
        return Batch(features, np.array(roles), frozenset(), loras=loras)

    mixed = sparse(adapter, batch(TEXTS[:5], ["one", "one", "", "", "one"], roles))
    for i, name in enumerate(["", "one", "", "", "one"]):
        (alone,) = sparse(adapter, batch([TEXTS[i]], [name], [roles[i]]))
        np.testing.assert_array_equal(mixed[i][0], alone[0])
        np.testing.assert_allclose(mixed[i][1], alone[1], rtol=1e-4, atol=1e-5)


def test_vectors_of_tokens_are_those_of_peft(tmp_path, minilm_directory):
    """Queries and documents share a batch; a query's expansion tokens are not attended to."""
    expansion = {"query_expansion": {"strategy": "fixed", "length": 32}}
    directory = multi_vector.save_native(tmp_path, minilm_directory, "modernbert", **expansion)
    spec = multi_vector.spec(directory)
    tokenizer, adapter = load_processor(spec, directory), load_adapter(spec, directory)
    library = MultiVectorEncoder(str(directory), device="cpu")
    base = [*library.encode_query(TEXTS), *library.encode_document(TEXTS)]
    library[0].model = save_lora(tmp_path / "one", library[0].model, target_modules=["Wqkv", "Wi"])
    adapter.encoder.add_lora("one", tmp_path / "one")
    adapted = [*library.encode_query(TEXTS), *library.encode_document(TEXTS)]
    names = [("", "one")[i % 2] for i in range(len(adapted))]
    texts_of = [[tokenizer.prompts[role] + text for text in TEXTS] for role in ("query", "document")]
    features = join(
        [tokenizer.encode(each, is_query=is_query) for each, is_query in zip(texts_of, (True, False), strict=True)]
    )
    batch = Batch(features, np.repeat([True, False], len(TEXTS)))
    with adapter.encoder.adapted(names):
        rows = adapter.forward(batch)
    found = np.split(rows["multivector"], np.cumsum(rows["multivector_lengths"])[:-1])
    for ours, name, of_base, of_peft in zip(found, names, base, adapted, strict=True):
        np.testing.assert_allclose(ours, np.asarray(of_peft if name else of_base), atol=2e-5)
        assert np.abs(ours - np.asarray(of_base if name else of_peft)).max() > 0.01


def test_all_outputs_of_bge_m3_equal_the_formulas(tmp_path, minilm_directory):
    directory = save_bge_m3(tmp_path, minilm_directory, bge_m3.DIM)
    ours, formulas = bge_m3.Ours(directory), bge_m3.Formulas(directory)
    base = bge_m3.split(ours.rows(TEXTS))
    formulas.model = save_lora(tmp_path / "one", formulas.model, target_modules=["query", "dense"])
    ours.adapter.encoder.add_lora("one", tmp_path / "one")
    names = [("", "one")[i % 2] for i in range(len(TEXTS))]
    with ours.adapter.encoder.adapted(names):
        mixed = bge_m3.split(ours.rows(TEXTS))
    for text, name, of_base, (dense, indices, values, vectors) in zip(TEXTS, names, base, mixed, strict=True):
        if not name:
            np.testing.assert_allclose(dense, of_base[0], atol=1e-6)
            continue
        their_dense, their_weights, their_vectors = formulas(text)
        assert bge_m3.cosine(dense, their_dense) >= LEAST_COSINE > bge_m3.cosine(of_base[0], their_dense)
        assert indices.tolist() == sorted(their_weights)
        np.testing.assert_allclose(values, [their_weights[i] for i in indices], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(vectors, their_vectors, atol=2e-5)
