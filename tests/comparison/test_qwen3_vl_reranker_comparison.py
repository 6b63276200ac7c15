"""Scores of texts, images and both equal what transformers' Qwen3VLForConditionalGeneration makes of yes and no."""

import numpy as np
import pytest
import torch
import transformers

from sie_triton.client.items import encoded
from sie_triton.contract import Batch
from sie_triton.errors import InputError, LoadError
from sie_triton.models.families.shared.pages.chat_reader import PICTURE
from tests.support.copies import reword
from tests.support.items import Served
from tests.support.pictures import pictures
from tests.support.qwen3_vl import Qwen3Library, save_qwen3_vl

USUAL = "Given a search query, retrieve relevant candidates that answer the query."
JUDGE = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the "
    'answer can only be "yes" or "no".'
)
FILES = pictures()
ITEMS = [{"text": "two dogs"}, {"image": FILES[0]}, {"image": FILES[1], "text": "größe"}, {"text": ""}]
QUERY = {"query": [b"dogs?"]}
OPTIONS = {"tasks": ("score",), "score_modes": ()}


@pytest.fixture(scope="module")
def directory(tmp_path_factory, minilm_directory):
    return save_qwen3_vl(tmp_path_factory.mktemp("qwen3_vl_reranker"), minilm_directory)


@pytest.fixture(scope="module")
def ours(directory):
    served = Served("qwen3_vl_reranker", directory, **OPTIONS)
    assert served.adapter.encoder.path == "packed"
    return served


class Library(Qwen3Library):
    """What the authors' processor and model do with one pair."""

    def __init__(self, directory):
        super().__init__(directory, transformers.Qwen3VLForConditionalGeneration.from_pretrained(directory))
        self.no, self.yes = self.tokenizer.convert_tokens_to_ids(["no", "yes"])

    @torch.inference_mode()
    def __call__(self, query, item, told=USUAL):
        images, seen = self.pictures([each["image"] for each in (query, item) if "image" in each])
        tokens = iter(seen)
        shown = [
            (PICTURE.replace("<|image_pad|>", next(tokens)) if "image" in each else "") + each.get("text", "") or "NULL"
            for each in (query, item)
        ]
        user = f"<Instruct>: {told}<Query>:{shown[0]}\n<Document>:{shown[1]}"
        text = f"<|im_start|>system\n{JUDGE}<|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n"
        logits = self.model(**self.inputs(self.tokenizer(text)["input_ids"]), **images).logits[0, -1]
        return float(torch.sigmoid(logits[self.yes] - logits[self.no]))


def test_every_kind_of_item_against_every_kind_of_query(ours, library):
    image, both = {"query_image": [FILES[2]]}, {**QUERY, "query_image": [FILES[3]]}
    queries = [{"text": "dogs?"}, {"image": FILES[2]}, {"image": FILES[3], "text": "dogs?"}]
    together = ours.together("score", [({**asked, **encoded(ITEMS)}, {}) for asked in (QUERY, image, both)])
    expected = np.array([[library(query, item) for item in ITEMS] for query in queries])
    assert np.allclose([each["scores"] for each in together], expected, atol=1e-4)
    assert np.ptp(expected, axis=1).min() > 1e-2
    alone = [ours.together("score", [({**both, **encoded([item])}, {})])[0]["scores"][0] for item in ITEMS]
    assert np.allclose(together[2]["scores"], alone, atol=1e-5)


def test_instructions(directory, library):
    """Instructions of the model file and of a request are used; the default one fails the same comparison."""
    served = Served("qwen3_vl_reranker", directory, **OPTIONS, options={"default_instruction": "Find it"})
    sent = {**QUERY, **encoded(ITEMS[:1])}
    found = [
        answer["scores"][0] for answer in served.together("score", [(sent, {}), (sent, {"instruction": "Which?"})])
    ]
    expected = [library({"text": "dogs?"}, ITEMS[0], *told) for told in (["Find it"], ["Which?"], [])]
    assert found == pytest.approx(expected[:2], abs=1e-4)
    assert found[0] != pytest.approx(expected[2], abs=1e-4)


@pytest.mark.parametrize(
    ("sent", "given", "where"),
    [
        ({"query": [b"<|image_pad|>"], "text": [b"a"]}, {}, "query:"),
        ({**QUERY, "text": [b"a", b"<|image_pad|>"]}, {}, "items: a text"),
        ({**QUERY, "text": [b"a"]}, {"instruction": "<|image_pad|>"}, "parameter instruction:"),
    ],
)
def test_the_token_of_images_in_a_text_is_refused(ours, sent, given, where):
    with pytest.raises(InputError, match=rf"{where} contains <\|image_pad\|>, which stands for an image"):
        ours.together("score", [(sent, given)])


def test_a_tokenizer_without_the_answers_is_refused(tmp_path, directory):
    reword(directory, tmp_path, "tokenizer.json", '"yes":', '"yess":')
    with pytest.raises(LoadError, match="must have the tokens no and yes"):
        Served("qwen3_vl_reranker", tmp_path, **OPTIONS)


def test_pixels_of_another_size_are_refused(ours):
    features = dict(ours.adapter.sample([1]))
    sizes = features["pair_sizes"].values.copy()
    sizes[:, :2] = 32
    features["pair_sizes"] = features["pair_sizes"]._replace(values=sizes)
    with pytest.raises(ValueError, match="a pixel must have 3 bytes"):
        ours.adapter.forward(Batch(features, np.zeros(1, np.bool_)))
