"""Comparison of LightOnOCR, GLM-OCR and PaddleOCR-VL with transformers, on the same weights and files."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from sie_triton.errors import InputError
from sie_triton.models.catalog.recognise import family_in
from sie_triton.models.families.lighton_ocr import SYSTEM
from sie_triton.models.families.shared.ocr import findings
from sie_triton.models.families.shared.readers.processor import GENERATED
from tests.support import ocr
from tests.support.copies import copy
from tests.support.deadlines import given_up, tokens_in
from tests.support.ocr import Library, asked
from tests.support.pictures import picture, pictures, saved
from tests.support.readers import Reader, data

pytestmark = pytest.mark.usefixtures("conversations_written_here")

FILES = pictures()
ODD_SIZES = [(97, 61), (300, 31), (3, 40), (8, 8), (640, 480)]
USUAL = {"max_new_tokens": 24}


@dataclass(frozen=True)
class Case:
    """`usual` is the library's prompt by default, `told` its prompt if a client sets one."""

    name: str
    model: Any
    usual: Any

    def told(self, instruction):
        return asked(instruction, system=SYSTEM if self.name == "lighton_ocr" else "")


CASES = (
    Case("lighton_ocr", transformers.LightOnOcrForConditionalGeneration, asked(system=SYSTEM)),
    Case("glm_ocr", transformers.GlmOcrForConditionalGeneration, asked("Text Recognition:")),
    Case("paddleocr_vl", transformers.PaddleOCRVLForConditionalGeneration, asked("OCR:")),
)


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def case(request):
    return request.param


@pytest.fixture(scope="module")
def directory(case, tmp_path_factory, minilm_directory):
    directory = tmp_path_factory.mktemp(case.name)
    ocr.SAVE[case.name](directory, minilm_directory)
    return directory


@pytest.fixture(scope="module")
def ours(case, directory):
    assert family_in(directory)[0] == case.name
    return Reader(case.name, directory)


@pytest.fixture(scope="module")
def library(case, directory):
    return Library(directory, case.model, ocr.PROCESSORS[case.name])


@pytest.mark.parametrize("num_beams", [1, 3])
def test_tokens_are_those_of_the_library(case, ours, library, num_beams, monkeypatch):
    found = []
    monkeypatch.setattr(ours.adapter, "text", lambda tokens, *_: found.append(tokens) or '["", ""]')
    options = {**USUAL, "num_beams": num_beams}
    for file in FILES:
        ours([file], **options)
    assert found == [library.tokens(file, case.usual, **options) for file in FILES]
    assert max(len(set(tokens)) for tokens in found) > 8, "it says more than one thing"


def test_pages_of_all_sizes_together_are_read_as_the_library_reads_each(case, ours, library):
    found = ours(FILES, **USUAL)
    assert data(found) == [library.read(file, case.usual, **USUAL) for file in FILES]
    assert len({*data(found)}) == len(FILES)
    assert [each["entities"] for each in found] == [
        [{"text": text, "label": "markdown", "score": 1.0, "bbox": None}] for text in data(found)
    ]


def test_threads_side_by_side_do_not_disturb_each_other(ours):
    """Models keep state of the last images."""
    alone = [ours([file], **USUAL) for file in FILES]
    with ThreadPoolExecutor(4, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        assert list(pool.map(lambda file: ours([file], **USUAL), FILES)) == alone


def test_mixed_prompts_and_lengths_in_a_batch_match_single_requests(case, ours, library):
    requests = [
        (FILES[:2], {"max_new_tokens": 12}),
        (FILES[1:3], {"instruction": "What is the total of this page?", "max_new_tokens": 12}),
        (FILES[:1], {"max_new_tokens": 5, "num_beams": 2}),
    ]
    together = ours.answers(requests)
    assert together == [ours(files, **given) for files, given in requests]
    messages = case.told("What is the total of this page?")
    assert data(together[1]) == [library.read(file, messages, max_new_tokens=12) for file in FILES[1:3]]
    assert data(together[0])[1] != data(together[1])[0]


@pytest.mark.parametrize("size", ODD_SIZES)
def test_pixels_and_tokens_equal_the_processors(case, ours, library, size):
    """Resized pixels are equal to the bit, and scaled pixels up to rounding."""
    file = saved(picture(*size))
    features, expected = ours.batch([([file], {})]).features, library.inputs(file, case.usual)
    assert features["input_ids"].values.tolist() == expected["input_ids"][0].tolist()
    writer = ours.adapter.encoder
    (image,) = ours.adapter.elements(features)
    shown = writer.image_inputs([writer._scaled(image)], expected["input_ids"])
    assert shown.keys() == set(expected) - {"input_ids", "attention_mask"}
    for name, value in shown.items():
        assert value.shape == expected[name].shape
        torch.testing.assert_close(value, expected[name].to(value.dtype), rtol=0, atol=1e-6)


def test_a_calibration_sample_has_images_of_its_cost_and_few_new_tokens(ours):
    few, many = (len(ours.adapter.forward(ours.sample(total))[GENERATED.lengths]) for total in (256, 2048))
    assert few == 1
    assert many in (3, 4)


def test_output_length_is_limited_by_the_request_and_the_context(case, ours, library, monkeypatch):
    batch = ours.batch([(FILES[:1], {"max_new_tokens": 8192})])
    prompt, room, read = (batch.features[name].of_items[0] for name in ("input_ids", "new_tokens", "read"))
    assert prompt + room == 512 + 1, "the last token is never read"
    assert 512 < read < 512 + 256, "patches of a 64 × 64 image, two for a token"
    found = []
    monkeypatch.setattr(ours.adapter, "text", lambda tokens, *_: found.append(tokens) or '["", ""]')
    ours(FILES[:1], max_new_tokens=5)
    assert found == [library.tokens(FILES[0], case.usual, max_new_tokens=5)]


def test_generation_ends_when_the_client_is_gone(ours, monkeypatch):
    requests = [(FILES[:2], USUAL), (FILES[2:3], {"max_new_tokens": 9})]
    assert not findings(given_up(ours, requests, monkeypatch)[:1], {}).count


def test_generation_ends_between_two_tokens(ours, monkeypatch):
    assert tokens_in(2, ours, (FILES[2:3], USUAL), monkeypatch) == [2]


def test_wrong_requests_get_the_reason(case, ours):
    with pytest.raises(InputError, match=r"image\[1\]: is not an image that can be read"):
        ours([FILES[0], b"no image"])
    image = ours.processor._tokenizer.id_to_token(ours.adapter.encoder.image_token)
    with pytest.raises(InputError, match=r"parameter instruction: contains .*, which stands for an image; leave it"):
        ours(FILES[:1], instruction=f"Read {image}")
    with pytest.raises(InputError, match="parameter instruction: has 16385 characters; at most 16384 are allowed"):
        ours(FILES[:1], instruction="x" * 16385)
    with pytest.raises(InputError, match="parameter instruction: leaves the model no room"):
        ours(FILES[:1], instruction="why " * 520)
    with pytest.raises(InputError, match=r"image\[0\]: takes \d+ of the 512 tokens that the model reads, which leaves"):
        ours(FILES[:1], instruction="why " * 450)
    if case.name == "lighton_ocr":
        assert "task" not in {parameter.name for parameter in ours.model.parameters}
    else:
        with pytest.raises(InputError, match="parameter task: 'x' is not a task of this model; give one of ocr, "):
            ours(FILES[:1], task="x")


def test_features_that_do_not_agree_are_refused(ours):
    batch = ours.batch([(FILES[:1], USUAL)])
    ids = batch.features["input_ids"].values
    ids[ids == ours.adapter.encoder.image_token] = 0
    with pytest.raises(ValueError, match="as many tokens as states"):
        ours.adapter.forward(batch)
    batch = ours.batch([(FILES[:1], USUAL)])
    batch.features["image_sizes"].values[:] //= 2
    with pytest.raises(ValueError, match="an item must have an image"):
        ours.adapter.forward(batch)


def test_padding_does_not_affect_the_repetition_penalty(case, tmp_path, directory, ours, library):
    punishing = Reader(case.name, copy(directory, tmp_path, "generation_config.json", repetition_penalty=1.3))
    assert (ours.adapter.encoder.pads, punishing.adapter.encoder.pads) == (True, False)
    found = punishing(FILES, **USUAL)
    assert data(found) == [library.read(file, case.usual, repetition_penalty=1.3) for file in FILES]
    assert data(found) != [library.read(file, case.usual) for file in FILES]


def test_the_choice_of_padding_token_does_not_change_results(ours):
    """The padding token has no influence."""
    before = ours(FILES, **USUAL)
    writer = ours.adapter.encoder
    pad, writer._pad = writer._pad, 1234
    try:
        assert np.array_equal(data(ours(FILES, **USUAL)), data(before))
    finally:
        writer._pad = pad
