"""Prompts of queries, documents and texts without a role, against sentence-transformers' three methods."""

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from tests.support.copies import update
from tests.support.items import Served
from tests.support.models import save_bert
from tests.support.parity import assert_parity, varied_texts

TEXTS = [text[:400] for text in varied_texts(40)][:8]
NAMED = {"STS": "alike: "}


def model_with(directory, prompts, default):
    """Add prompts to the files of a model as authors write them, without the library's own empty ones."""
    settings = directory / "config_sentence_transformers.json"
    update(settings, prompts=NAMED | prompts, default_prompt_name=default)
    served = Served("sentence_transformer", directory, inputs=("text",), dims={"dense": 64}, max_sequence_length=128)
    return served, SentenceTransformer(str(directory), device="cpu")


@pytest.mark.parametrize(
    ("prompts", "default"),
    [
        ({"query": "search for: ", "document": "a document: "}, "STS"),
        ({"document": "a document: "}, None),
        ({"query": "search for: ", "passage": "a passage: "}, "STS"),
        ({"query": "", "document": "", "corpus": "a text: "}, "STS"),
        ({}, None),
    ],
)
def test_each_role_has_the_librarys_prompt(tmp_path, minilm_directory, prompts, default):
    """Texts without a role are documents; the default prompt applies where the model has none for documents."""
    ours, library = model_with(save_bert(tmp_path, tokenizer=minilm_directory), prompts, default)

    def vectors(**given):
        return ours.encode([{"text": text} for text in TEXTS], **given)["dense"]

    assert_parity(vectors(is_query=True), library.encode_query(TEXTS))
    assert_parity(vectors(is_query=False), library.encode_document(TEXTS))
    without_role = library.encode_document if prompts.get("document") else library.encode
    assert_parity(vectors(), without_role(TEXTS))
    assert_parity(vectors(prompt_name="STS"), library.encode(TEXTS, prompt_name="STS"))
    if prompts.get("query"):
        assert not np.allclose(vectors(is_query=True), vectors(is_query=False), atol=1e-3)
