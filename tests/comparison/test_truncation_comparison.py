"""Long texts are cut on the side that the model's files, or the request, name, as sentence-transformers cuts them."""

from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import CrossEncoder, SentenceTransformer, SparseEncoder

from tests.support.copies import update
from tests.support.items import Served
from tests.support.models import save_bert, save_cross_encoder, save_splade

LONG = " ".join(f"word{i} lorem ipsum" for i in range(400))
TEXTS = ("short", LONG, f"Who? {LONG} the end")
SIDES = ("left", "right")


def with_side(directory: Path, side: str) -> Path:
    update(directory / "tokenizer_config.json", truncation_side=side)
    return directory


@pytest.mark.parametrize("asked", [None, *SIDES])
def test_vectors(asked, tmp_path, minilm_directory):
    directory = with_side(save_bert(tmp_path, minilm_directory), "left")
    reference = SentenceTransformer(str(directory), device="cpu")
    reference.tokenizer.truncation_side = asked or "left"
    given = {"truncation_side": asked} if asked else {}
    ours = Served("sentence_transformer", directory, inputs=("text",), dims={"dense": 64})
    found, expected = ours.encode(TEXTS, normalize=True, **given)["dense"], reference.encode(list(TEXTS))
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    alone = [ours.encode([text], normalize=True, **given)["dense"][0] for text in TEXTS]
    np.testing.assert_allclose(alone, expected, atol=1e-5)


@pytest.mark.parametrize("asked", [None, *SIDES])
def test_scores(asked, tmp_path, minilm_directory):
    directory = with_side(save_cross_encoder(tmp_path, minilm_directory), "left")
    reference = CrossEncoder(str(directory), device="cpu")
    reference.tokenizer.truncation_side = asked or "left"
    ours = Served("cross_encoder", directory, inputs=("text",), dims={}, tasks=("score",))
    for query in ("who?", LONG[:2000]):
        sent = {"query": [query.encode()], "text": [text.encode() for text in TEXTS]}
        found = ours.together("score", [(sent, {"truncation_side": asked} if asked else {})])[0]["scores"]
        np.testing.assert_allclose(found, reference.predict([(query, text) for text in TEXTS]), atol=1e-5)


@pytest.mark.parametrize("asked", [None, *SIDES])
def test_sparse_vectors(asked, tmp_path, minilm_directory):
    directory = with_side(save_splade(tmp_path, minilm_directory), "left")
    reference = SparseEncoder(str(directory), device="cpu")
    reference.tokenizer.truncation_side = asked or "left"
    ours = Served("splade", directory, inputs=("text",), dims={"sparse": 30522})
    found = ours.encode(TEXTS, **({"truncation_side": asked} if asked else {}))
    counts = reference.encode(list(TEXTS)).to_dense().count_nonzero(dim=1)
    np.testing.assert_array_equal(found["sparse_lengths"], counts)


def test_requests_with_other_sides_share_a_batch(tmp_path, minilm_directory):
    ours = Served("sentence_transformer", save_bert(tmp_path, minilm_directory), inputs=("text",), dims={"dense": 64})
    sent = {"text": [text.encode() for text in TEXTS]}
    both = ours.together("encode", [(sent, {"truncation_side": side}) for side in SIDES])
    for side, found in zip(SIDES, both, strict=True):
        np.testing.assert_allclose(found["dense"], ours.encode(TEXTS, truncation_side=side)["dense"], atol=1e-5)
    assert not np.allclose(both[0]["dense"], both[1]["dense"], atol=1e-2)
