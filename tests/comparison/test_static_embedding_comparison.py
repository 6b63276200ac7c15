"""Static embeddings against sentence-transformers' StaticEmbedding, and model2vec's form of the same table."""

import json

import numpy as np
import pytest
import tokenizers
import torch
from safetensors.numpy import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, StaticEmbedding

from sie_triton.catalog import recognise
from sie_triton.errors import CatalogError
from sie_triton.families import load_processor
from sie_triton.spec import Runtime
from tests.support.items import Served
from tests.support.loading import load_adapter
from tests.support.parity import varied_texts

TEXTS = varied_texts(40)
SPEC = {"inputs": ("text",), "dims": {"dense": 24}, "tasks": ("encode",)}


@pytest.fixture(scope="module")
def library(tmp_path_factory, minilm_directory):
    """The library's model, and its directory."""
    torch.manual_seed(5)
    tokenizer = tokenizers.Tokenizer.from_file(str(minilm_directory / "tokenizer.json"))
    model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=24)], device="cpu")
    directory = tmp_path_factory.mktemp("static")
    model.save(str(directory))
    return model, directory


@pytest.fixture
def ours(library):
    return Served("static_embedding", library[1], **SPEC)


def dense(served, texts):
    return served.encode([{"text": text} for text in texts], normalize=False)["dense"]


def test_vectors_equal_the_librarys(ours, library):
    np.testing.assert_allclose(dense(ours, TEXTS), library[0].encode(TEXTS), atol=1e-5)


def test_a_text_alone_has_the_same_vector(ours):
    together = dense(ours, TEXTS)
    np.testing.assert_allclose(np.concatenate([dense(ours, [text]) for text in TEXTS]), together, atol=1e-6)


def test_another_row_gives_another_vector(ours, library):
    ours.adapter._table[ours.adapter._table.any(1)] += 0.1
    assert np.abs(dense(ours, ["ships sail"]) - library[0].encode(["ships sail"])).max() > 0.05


def test_directories_are_recognised(library, tmp_path):
    model, directory = library
    config = recognise(directory, "m", {"weights_path": str(directory)})
    assert (config.family, config.dims, config.resolve(Runtime()).profiles[0].parameters["normalize"]) == (
        "static_embedding",
        {"dense": 24},
        False,
    )
    SentenceTransformer(modules=[model[0], Normalize()], device="cpu").save(str(tmp_path / "unit"))
    assert (
        recognise(tmp_path / "unit", "m", {"weights_path": str(tmp_path)})
        .resolve(Runtime())
        .profiles[0]
        .parameters["normalize"]
    )


def test_model2vecs_form_gives_the_same_vectors(library, tmp_path):
    model, directory = library
    (home,) = directory.rglob("model.safetensors")
    save_file({"embeddings": load_file(home)["embedding.weight"]}, tmp_path / "model.safetensors")
    (tmp_path / "tokenizer.json").write_bytes(home.with_name("tokenizer.json").read_bytes())
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "model2vec", "normalize": False}))
    spec = recognise(tmp_path, "m", {"weights_path": str(tmp_path)}).resolve(Runtime())
    served = Served.__new__(Served)
    served.spec, served.processor, served.adapter = (
        spec,
        load_processor(spec, tmp_path),
        load_adapter(spec, tmp_path),
    )
    features = served.processor.encode(["ships sail"])
    rows = served.adapter._table[features["input_ids"].values]
    np.testing.assert_allclose(rows.mean(0), model.encode("ships sail"), atol=1e-5)


def test_modules_behind_the_table_are_refused(library, tmp_path):
    model, _ = library

    SentenceTransformer(modules=[model[0], Dense(24, 8)], device="cpu").save(str(tmp_path))
    with pytest.raises(CatalogError, match="Dense after StaticEmbedding cannot be served"):
        recognise(tmp_path, "m", {"weights_path": str(tmp_path)})


@pytest.mark.parametrize(
    ("names", "complaint"),
    [
        (["other"], r"model\.safetensors: must have one of embedding\.weight, embeddings"),
        (["embeddings", "mapping"], "mapping: quantized vocabularies cannot be served"),
    ],
)
def test_a_file_with_other_tensors_is_refused(tmp_path, names, complaint):
    save_file(dict.fromkeys(names, np.zeros((2, 2), np.float32)), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "model2vec"}))
    with pytest.raises(CatalogError, match=complaint):
        recognise(tmp_path, "m", {"weights_path": str(tmp_path)})
