"""Vectors of texts, images and both equal those of transformers' Qwen3VLModel on the same weights and files."""

import numpy as np
import pytest
import torch

from sie_triton.errors import InputError, LoadError
from sie_triton.models.catalog.recognise import family_in
from tests.support.items import Served
from tests.support.pictures import pictures
from tests.support.qwen3_vl import Qwen3Library, save_qwen3_vl

USUAL = "Represent the user's input."
FILES = pictures()
ITEMS = ["two dogs", {"image": FILES[0]}, {"image": FILES[1], "text": "naïve 😀 größe"}, "", {"image": FILES[3]}]
OPTIONS = {"dims": {"dense": 64}}


@pytest.fixture(scope="module")
def directory(tmp_path_factory, minilm_directory):
    return save_qwen3_vl(tmp_path_factory.mktemp("qwen3_vl"), minilm_directory)


@pytest.fixture(scope="module")
def ours(directory):
    with pytest.raises(LoadError, match=r"may embed .* decide in a model file"):
        family_in(directory)
    name, found = family_in(directory, "qwen3_vl_embedding")
    assert (name, dict(found.dims), found.normalize) == ("qwen3_vl_embedding", {"dense": 64}, True)
    served = Served("qwen3_vl_embedding", directory, **OPTIONS)
    assert served.adapter.encoder.path == "packed"
    return served


class Library(Qwen3Library):
    """What the authors' processor and model do with one item."""

    @torch.inference_mode()
    def __call__(self, item, told=USUAL, keep=None):
        """`keep`: number of tokens of the text to keep."""
        item = {"text": item} if isinstance(item, str) else item
        images, _ = self.shown(item)
        hidden = self.model(**self.inputs(self.ids(item, told, keep)), **images).last_hidden_state[0, -1]
        return (hidden / hidden.norm()).numpy()

    def ids(self, item, told=USUAL, keep=None):
        seen = "".join(f"<|vision_start|>{tokens}<|vision_end|>" for tokens in self.shown(item)[1])
        before = f"<|im_start|>system\n{told}<|im_end|>\n<|im_start|>user\n{seen}"
        return [
            *self.tokenizer(before, add_special_tokens=False)["input_ids"],
            *self.tokenizer(item.get("text", ""), add_special_tokens=False)["input_ids"][:keep],
            *self.tokenizer("<|im_end|>\n<|im_start|>assistant\n")["input_ids"],
        ]

    def shown(self, item):
        return self.pictures([item["image"]] if "image" in item else [])


def test_texts_images_and_both_in_one_request(ours, library):
    found = ours.encode(ITEMS)["dense"]
    expected = [library(item) for item in ITEMS]
    assert cosines(found, expected).min() >= 0.9999
    assert (found @ found.T - np.eye(len(ITEMS))).max() < 0.99
    alone = np.concatenate([ours.encode([item])["dense"] for item in ITEMS])
    assert np.allclose(found, alone, atol=1e-5)


def test_items_one_by_one_where_a_model_cannot_be_packed(ours, library):
    with ours.padded():
        found = ours.encode(ITEMS[:3])["dense"]
    assert cosines(found, [library(item) for item in ITEMS[:3]]).min() >= 0.9999


@pytest.mark.parametrize(("given", "told"), [("Find pages", "Find pages."), (" Which? ", "Which?"), (" ", USUAL)])
def test_an_instruction_is_a_sentence(ours, library, given, told):
    found = ours.encode(ITEMS[:2], instruction=given)["dense"]
    assert cosines(found, [library(item, told) for item in ITEMS[:2]]).min() >= 0.9999


def test_a_truncated_text_keeps_its_prompt(ours, library):
    """256 tokens are read in all; an image is read whole."""
    text = "page " * 400
    cut = ours.processor.encode([(USUAL, {"text": each}) for each in (text, ITEMS[0])])["truncated"]
    assert cut.values.tolist() == [True, False]
    found = ours.encode([text, {"image": FILES[0], "text": text}, ITEMS[0]])["dense"]
    kept = [256 - len(library.ids({"text": ""})), 256 - len(library.ids({"image": FILES[0]}))]
    expected = [library(text, keep=kept[0]), library({"image": FILES[0], "text": text}, keep=kept[1])]
    expected.append(library(ITEMS[0]))
    assert cosines(found, expected).min() >= 0.9999


def test_the_token_of_images_in_a_text(ours):
    """The token is ordinary without an image, and refused beside an image, whose place it would take."""
    alone = ours.encode(["an <|image_pad|>"])["dense"]
    assert np.allclose(ours.encode([ITEMS[1], "an <|image_pad|>"])["dense"][1:], alone, atol=1e-5)
    with pytest.raises(InputError, match=r"image\[1\]: the text beside it contains <\|image_pad\|>"):
        ours.encode(["one", {"image": FILES[0], "text": "an <|image_pad|>"}])
    with pytest.raises(InputError, match=r"parameter instruction: contains <\|image_pad\|>"):
        ours.encode([{"image": FILES[0]}], instruction="find <|image_pad|>")


def test_a_patch_costs_half_a_token(ours):
    page = ours.adapter.sample([2])
    num_patches = int(page["image_sizes"].values.prod()) // 16**2
    assert page["read"].values.tolist() == [int(page["input_ids"].of_items[0]) + num_patches // 2]


def cosines(found, expected):
    return (found * np.array(expected)).sum(1)
