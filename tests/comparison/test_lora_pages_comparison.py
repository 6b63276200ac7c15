"""Vision-language models with LoRA adapters of the language model equal transformers with peft."""

import numpy as np
import pytest

from sie_triton.client.items import encoded
from sie_triton.errors import LoadError
from tests.comparison import test_qwen3_vl_embedding_comparison as embedding
from tests.comparison import test_qwen3_vl_reranker_comparison as reranker
from tests.support.items import Served
from tests.support.loras import LEAST_COSINE, save_lora
from tests.support.pages import (
    PageLibrary,
    SmolLibrary,
    as_engine_saves,
    save_colpali,
    save_colqwen2,
    save_colsmol,
    vectors_of,
)
from tests.support.pictures import pictures
from tests.support.qwen3_vl import save_qwen3_vl

FILES = pictures()
ITEMS = ["two dogs", {"image": FILES[0]}, "What does the invoice say?", {"image": FILES[1]}]
NAMES = ["", "one", "other", "one"]
VECTORS = {"dims": {"multivector": 32}, "tasks": ("encode", "score"), "score_modes": ("maxsim",)}
CONFIGS = {
    "one": {"target_modules": r".*language_model.*(q_proj|down_proj)|.*embedding_proj_layer"},
    "other": {"target_modules": r".*language_model.*(v_proj|embed_tokens)", "use_dora": True},
}
CONFIGS_OF_SMOL = {
    "one": {"target_modules": r".*model.text_model.*(q_proj|down_proj)|linear"},
    "other": {"target_modules": r".*model.text_model.*(v_proj|embed_tokens)", "use_dora": True},
}
KINDS = {
    "colpali": (save_colpali, PageLibrary, CONFIGS),
    "colqwen2": (save_colqwen2, PageLibrary, CONFIGS),
    "colsmol": (save_colsmol, SmolLibrary, CONFIGS_OF_SMOL),
}


def same(ours, theirs):
    theirs = np.asarray(theirs)
    return ours.shape == theirs.shape and (ours * theirs).sum(-1).min() >= LEAST_COSINE


@pytest.mark.parametrize("family", KINDS)
def test_vectors_of_pages(tmp_path, minilm_directory, family):
    """The output projection is adapted, too; images and texts with several adapters share a pass."""
    save, reference, configs = KINDS[family]
    (tmp_path / "model").mkdir()
    directory = save(tmp_path / "model", minilm_directory)
    ours, library = Served(family, directory, **VECTORS), reference(directory)

    def found():
        return [library.image(each["image"]) if isinstance(each, dict) else library.text(each) for each in ITEMS]

    base, expected = library.model, {"": found()}
    for name, config in configs.items():
        library.model = save_lora(tmp_path / name, base, spread=0.15, **config)
        expected[name] = found()
        ours.adapter.encoder.add_lora(name, tmp_path / name)
    with ours.adapter.encoder.adapted(NAMES):
        mixed = vectors_of(ours.encode(ITEMS))
    for i, name in enumerate(NAMES):
        assert same(mixed[i], expected[name][i])
        assert not any(same(mixed[i], expected[other][i]) for other in expected if other != name)
    if family == "colqwen2":
        check_as_engine_saves(tmp_path, directory, mixed)


def check_as_engine_saves(tmp_path, directory, expected):
    """Assert the same vectors from the engine's layout, in which the projection has another name."""
    (tmp_path / "engine").mkdir()
    ours = Served("colqwen2", as_engine_saves(directory, tmp_path / "engine"), **VECTORS)
    for name in CONFIGS:
        ours.adapter.encoder.add_lora(name, tmp_path / name)
    with ours.adapter.encoder.adapted(NAMES[1:2]):
        assert same(vectors_of(ours.encode(ITEMS[1:2]))[0], expected[1])
    ours.adapter.encoder.use("padded")
    with ours.adapter.encoder.adapted(NAMES[1:3]):
        assert all(map(same, vectors_of(ours.encode(ITEMS[1:3])), expected[1:3]))


@pytest.fixture(scope="module")
def qwen3_vl(tmp_path_factory, minilm_directory):
    return save_qwen3_vl(tmp_path_factory.mktemp("qwen3_vl"), minilm_directory)


def test_vectors_of_qwen3_vl(tmp_path, qwen3_vl):
    ours, library = Served("qwen3_vl_embedding", qwen3_vl, dims={"dense": 64}), embedding.Library(qwen3_vl)
    base = [library(item) for item in embedding.ITEMS]
    target = r".*language_model.*(o_proj|up_proj)"
    library.model = save_lora(tmp_path / "one", library.model, spread=0.15, target_modules=target)
    ours.adapter.encoder.add_lora("one", tmp_path / "one")
    with ours.adapter.encoder.adapted([("one", "")[i % 2] for i in range(len(base))]):
        mixed = ours.encode(embedding.ITEMS)["dense"]
    for i, (item, found) in enumerate(zip(embedding.ITEMS, mixed, strict=True)):
        expected = base[i] if i % 2 else library(item)
        assert found @ expected >= LEAST_COSINE
        assert i % 2 or base[i] @ expected < 0.99


def test_scores_of_qwen3_vl(tmp_path, qwen3_vl):
    """Only two rows of the vocabulary head are kept, for the base and for the adapter."""
    ours, library = Served("qwen3_vl_reranker", qwen3_vl, **reranker.OPTIONS), reranker.Library(qwen3_vl)
    query = {"text": "dogs?"}
    base = [library(query, item) for item in reranker.ITEMS]
    target = r".*language_model.*(o_proj|up_proj)|lm_head"
    library.model = save_lora(tmp_path / "one", library.model, spread=0.1, target_modules=target)
    ours.adapter.encoder.add_lora("one", tmp_path / "one")
    with ours.adapter.encoder.adapted(["", "one", "one", "one"]):
        (answer,) = ours.together("score", [({**reranker.QUERY, **encoded(reranker.ITEMS)}, {})])
    expected = [base[0], *(library(query, item) for item in reranker.ITEMS[1:])]
    np.testing.assert_allclose(answer["scores"], expected, atol=1e-4)
    assert np.abs(np.array(expected) - base)[1:].max() > 0.01


def test_an_adapter_for_vision_layers_is_refused(tmp_path, minilm_directory):
    """Vision layers have the same names as the language model's, but cannot be adapted."""
    directory = save_colpali(tmp_path / "model", minilm_directory)
    target = r".*vision_tower.*self_attn.q_proj"
    save_lora(tmp_path / "lora", PageLibrary(directory).model, target_modules=target)
    encoder = Served("colpali", directory, **VECTORS).adapter.encoder
    with pytest.raises(LoadError, match=r"has weights for 'vlm.*vision_tower.*', which this model does not have, or"):
        encoder.add_lora("one", tmp_path / "lora")
