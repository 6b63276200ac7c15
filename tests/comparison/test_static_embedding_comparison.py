"""Static embeddings against sentence-transformers' StaticEmbedding on the same table."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
from safetensors.numpy import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding

from sie_triton.contract.spec import Runtime
from sie_triton.errors import CatalogError, LoadError
from sie_triton.models.catalog import recognise
from sie_triton.models.families import load_processor
from sie_triton.models.families.static_embedding import adapter
from tests.support.items import Recognised
from tests.support.loading import load_adapter
from tests.support.parity import varied_texts

TEXTS = varied_texts(40)
DIM = 24
PROMPTS = {"query": "find: ", "document": ""}


@pytest.fixture(scope="module")
def library(tmp_path_factory, minilm_directory):
    """The library's model, and its directory."""
    torch.manual_seed(5)
    tokenizer = tokenizers.Tokenizer.from_file(str(minilm_directory / "tokenizer.json"))
    modules = [StaticEmbedding(tokenizer, embedding_dim=DIM)]
    model = SentenceTransformer(modules=modules, device="cpu", prompts=PROMPTS)
    directory = tmp_path_factory.mktemp("static")
    model.save(str(directory))
    return model, directory


@pytest.fixture
def copied(library, tmp_path) -> Path:
    """A copy of the directory, to be changed."""
    return Path(shutil.copytree(library[1], tmp_path / "static"))


def dense(ours, texts, **given):
    return ours.encode([{"text": text} for text in texts], normalize=False, **given)["dense"]


def weights_of(directory: Path) -> Path:
    (path,) = directory.rglob("model.safetensors")
    return path


def test_vectors_equal_the_librarys(library):
    np.testing.assert_allclose(dense(Recognised(library[1]), TEXTS), library[0].encode(TEXTS), atol=1e-5)


def test_queries_get_the_models_prompt(library):
    ours = dense(Recognised(library[1]), TEXTS, is_query=True)
    np.testing.assert_allclose(ours, library[0].encode(TEXTS, prompt_name="query"), atol=1e-5)
    assert np.abs(ours - library[0].encode(TEXTS)).max() > 0.05


def test_a_text_alone_has_the_same_vector(library):
    ours = Recognised(library[1])
    together = dense(ours, TEXTS)
    np.testing.assert_allclose(np.concatenate([dense(ours, [text]) for text in TEXTS]), together, atol=1e-6)


def test_long_texts_are_summed_in_chunks(library, monkeypatch):
    monkeypatch.setattr(adapter, "CHUNK_TOKENS", 7)
    np.testing.assert_allclose(dense(Recognised(library[1]), TEXTS), library[0].encode(TEXTS), atol=1e-5)


def test_directories_are_recognised(library, tmp_path):
    model, directory = library
    config = recognise(directory, "m", {"weights_path": str(directory)})
    assert (config.family, config.dims) == ("static_embedding", {"dense": DIM})
    (profile,) = config.resolve(Runtime()).profiles
    assert (profile.parameters["normalize"], profile.query_instruction) == (False, PROMPTS["query"])
    SentenceTransformer(modules=[model[0], Normalize()], device="cpu").save(str(tmp_path / "unit"))
    unit = recognise(tmp_path / "unit", "m", {"weights_path": str(tmp_path)})
    assert unit.resolve(Runtime()).profiles[0].parameters["normalize"]


def test_a_table_under_model2vecs_name_is_read(library, copied):
    path = weights_of(copied)
    save_file({"embeddings": load_file(path)["embedding.weight"]}, path)
    np.testing.assert_allclose(dense(Recognised(copied), TEXTS), library[0].encode(TEXTS), atol=1e-5)


def test_preprocess_needs_no_weights(library, copied):
    spec = Recognised(copied).spec
    weights_of(copied).unlink()
    assert len(load_processor(spec, copied).encode(["ships sail"])["input_ids"].values) == 2
    with pytest.raises(CatalogError, match=r"known from the weights only.*write a model file with tasks\.encode"):
        recognise(copied, "m", {"hf_id": "org/m"})


def test_padding_and_truncation_of_the_tokenizer_are_as_in_the_library(library, copied):
    """The library keeps the truncation in tokenizer.json, and no padding."""
    path = weights_of(copied).with_name("tokenizer.json")
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    tokenizer.enable_truncation(9)
    tokenizer.enable_padding(length=20)
    tokenizer.save(str(path))
    ours = Recognised(copied)
    expected = SentenceTransformer(str(copied), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(dense(ours, TEXTS), expected, atol=1e-5)
    short, long = ours.processor.encode(["ships sail", "ships sail " * 9])["truncated"].values
    assert (short, long) == (False, True)


@pytest.mark.parametrize("names", [["mapping"], ["weights"], ["mapping", "weights"]], ids=str)
@pytest.mark.parametrize("table", ["embeddings", "embedding.weight"])
def test_rows_that_tokens_share_and_their_factors_are_read(copied, table, names):
    """model2vec's quantized vocabularies; the library ignores them beside its own table."""
    rng, path = np.random.default_rng(3), weights_of(copied)
    rows = load_file(path)["embedding.weight"]
    beside = {"mapping": rng.integers(0, 100, len(rows)), "weights": rng.random(len(rows))}
    is_small = table == "embeddings" and "mapping" in names
    save_file({table: rows[:100] if is_small else rows, **{name: beside[name] for name in names}}, path)
    expected = SentenceTransformer(str(copied), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(dense(Recognised(copied), TEXTS), expected, atol=1e-5)


def test_a_file_with_other_tensors_is_refused(copied):
    save_file({"other": np.zeros((2, 2), np.float32)}, weights_of(copied))
    with pytest.raises(CatalogError, match=r"model\.safetensors: must have one of embedding\.weight, embeddings"):
        recognise(copied, "m", {"weights_path": str(copied)})


def test_a_table_smaller_than_the_vocabulary_is_refused(library, copied):
    spec = replace(Recognised(library[1]).spec, weights=str(copied))
    save_file({"embeddings": np.zeros((10, DIM), np.float32)}, weights_of(copied))
    with pytest.raises(LoadError, match="the tokenizer has 30522 tokens, but the table 10 rows"):
        load_adapter(spec, copied)
