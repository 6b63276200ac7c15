"""Vectors of pages and questions equal those of transformers' ColPaliForRetrieval on the same weights and files."""

import numpy as np
import pytest
import torch

from sie_triton.contract import Batch
from sie_triton.contract.tensors import INPUT_IDS
from sie_triton.errors import InputError, LoadError
from sie_triton.models.catalog.recognise import family_in
from tests.support import pdfs
from tests.support.items import Served
from tests.support.pages import PageLibrary, same, save_colpali, vectors_of
from tests.support.pictures import pictures, saved

TEXTS = ["What does the invoice say?", "two dogs", "", "naïve 😀 größe"]
FILES = pictures()
PDF = pdfs.pdf_of(pdfs.pages())
OPTIONS = {"dims": {"multivector": 32}, "tasks": ("encode", "score"), "score_modes": ("maxsim",)}


@pytest.fixture(scope="module")
def directory(tmp_path_factory, minilm_directory):
    return save_colpali(tmp_path_factory.mktemp("colpali"), minilm_directory)


@pytest.fixture(scope="module")
def ours(directory):
    name, found = family_in(directory)
    assert (name, dict(found.dims), found.scores, found.max_sequence_length) == (
        "colpali",
        {"multivector": 32},
        True,
        256,
    )
    served = Served("colpali", directory, **OPTIONS)
    assert served.adapter.encoder.path == "packed"
    return served


@pytest.fixture(scope="module")
def library(directory):
    return PageLibrary(directory)


def test_texts_and_images_in_one_request(ours, library):
    items = [TEXTS[0], {"image": FILES[0]}, TEXTS[1], {"image": FILES[1]}, *TEXTS[2:]]
    found = vectors_of(ours.encode(items))
    of_texts = [library.text(text) for text in TEXTS]
    of_images = [library.image(file) for file in FILES[:2]]
    expected = [of_texts[0], of_images[0], of_texts[1], of_images[1], *of_texts[2:]]
    assert all(map(same, found, expected))
    assert not same(found[1], of_images[1])
    for item, together in zip(items, found, strict=True):
        assert np.allclose(vectors_of(ours.encode([item]))[0], together, atol=1e-5)


def test_a_truncated_text_keeps_its_suffix(ours, library):
    text = "page " * 400
    (found,) = vectors_of(ours.encode([text]))
    ids = library.processor(text=[text], return_tensors="pt")["input_ids"]
    kept = torch.cat([ids[:, :246], ids[:, -10:]], 1)
    assert same(found, library(input_ids=kept, token_type_ids=torch.zeros_like(kept)))


def test_scores_are_those_of_the_processor(ours, library):
    sent = {"query": [TEXTS[0].encode()], "image": FILES}
    (answer,) = ours.together("score", [(sent, {})])
    expected = library.processor.score_retrieval([library.text(TEXTS[0])], [library.image(file) for file in FILES])
    assert np.allclose(answer["scores"], expected[0], rtol=1e-4)
    assert len(set(answer["scores"].round(3).tolist())) == len(FILES)


def test_pages_of_a_pdf_are_scored_each(ours):
    pages = [saved(page) for page in pdfs.drawn(PDF)]
    (apart,) = ours.together("score", [({"query": [b"vines"], "image": [FILES[0], *pages]}, {})])
    (whole,) = ours.together("score", [({"query": [b"vines"], "image": [FILES[0], PDF]}, {})])
    assert np.allclose(whole["scores"], apart["scores"], rtol=1e-4)
    (last,) = ours.together("score", [({"query": [b"vines"], "image": [PDF]}, {"pages": "2-"})])
    assert np.allclose(last["scores"], apart["scores"][2:], rtol=1e-4)
    with pytest.raises(InputError, match=r"query_image\[0\]: is a PDF, which is only allowed for items"):
        ours.together("score", [({"query_image": [PDF], "image": [FILES[0]]}, {})])


def test_the_padded_path_gives_the_same_vectors(ours, library):
    ours.adapter.encoder.use("padded")
    try:
        found = vectors_of(ours.encode([TEXTS[0], {"image": FILES[0]}]))
    finally:
        ours.adapter.encoder.use("packed")
    assert all(map(same, found, [library.text(TEXTS[0]), library.image(FILES[0])]))


def test_tokens_without_their_image_are_refused(ours):
    features = dict(ours.adapter.sample([1]))
    ids, lengths = features[INPUT_IDS.name]
    features[INPUT_IDS.name] = features[INPUT_IDS.name]._replace(values=ids[1:], lengths=lengths - 1)
    with pytest.raises(ValueError, match="as many tokens as states"):
        ours.adapter.forward(Batch(features, np.zeros(1, np.bool_)))


@pytest.mark.parametrize(
    ("file", "said", "instead", "complaint"),
    [
        ("config.json", '"paligemma"', '"llava"', r"vlm_config: model_type 'llava' cannot be served; .* are paligemma"),
        ("config.json", '"image_size": 56', '"image_size": 70', r"images are resized to 56 × 56, but config\.json"),
        ("tokenizer_config.json", '"pad_token"', '"no_token"', "pad_token is missing"),
        ("config.json", '"max_position_embeddings": 256', '"max_position_embeddings": 13', "leave no room for a text"),
    ],
)
def test_unsupported_checkpoints_are_refused_with_the_reason(tmp_path, directory, file, said, instead, complaint):
    changed(tmp_path, directory, file, said, instead)
    with pytest.raises(LoadError, match=complaint):
        Served("colpali", tmp_path, **OPTIONS)


def changed(target, directory, file, said, instead):
    """A copy of a model's directory in which one file says something else."""
    for path in directory.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    content = (directory / file).read_text()
    assert said in content
    (target / file).write_text(content.replace(said, instead))
