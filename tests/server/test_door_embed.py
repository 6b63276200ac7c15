"""The `cohere` package's embed at the door, before a real server."""

import base64

import cohere
import numpy as np
import pytest
from sentence_transformers.util import quantize_embeddings

from tests.conftest import CLIP, MINILM
from tests.support.pdfs import pages, pdf_of
from tests.support.pictures import pictures

TEXTS = ["Roses climb.", "A ship sails.", ""]


@pytest.fixture(scope="module")
def client(door):
    return cohere.ClientV2("none", base_url=door)


def test_the_second_version(client, ours):
    expected = ours.encode(MINILM, TEXTS)
    types = ["float", "int8", "ubinary", "binary"]
    found = client.embed(model=MINILM, texts=TEXTS, input_type="search_document", embedding_types=types)
    np.testing.assert_allclose(found.embeddings.float_, [each["dense"] for each in expected], atol=1e-5)
    for name, given in (("int8", found.embeddings.int8), ("ubinary", found.embeddings.ubinary)):
        vectors = [each["dense"] for each in ours.encode(MINILM, TEXTS, output_dtype=name)]
        assert given == [vector.tolist() for vector in vectors]
    signed = quantize_embeddings(np.array([each["dense"] for each in expected]), precision="binary")
    assert found.embeddings.binary == signed.tolist()
    assert found.texts == TEXTS
    assert found.meta.billed_units.input_tokens == sum(each["token_count"] for each in expected)
    short = client.embed(model=MINILM, texts=TEXTS, input_type="search_query", output_dimension=8)
    assert np.shape(short.embeddings.float_) == (3, 8)


def test_the_first_version(door, ours):
    found = cohere.Client("none", base_url=door).embed(model=MINILM, texts=TEXTS, input_type="search_document")
    np.testing.assert_allclose(found.embeddings, [each["dense"] for each in ours.encode(MINILM, TEXTS)], atol=1e-5)


def test_images(client, ours):
    image = pictures()[0]
    url = "data:image/png;base64," + base64.b64encode(image).decode()
    found = client.embed(model=CLIP, images=[url], input_type="image", embedding_types=["float"])
    np.testing.assert_allclose(found.embeddings.float_[0], ours.encode(CLIP, {"image": image})["dense"], atol=1e-5)


def test_a_pdf_is_refused_by_name(client):
    pdf = "data:application/pdf;base64," + base64.b64encode(pdf_of(pages())).decode()
    with pytest.raises(cohere.errors.BadRequestError, match=r"images\[0\]: is a PDF"):
        client.embed(model=CLIP, images=[pdf], input_type="image", embedding_types=["float"])
