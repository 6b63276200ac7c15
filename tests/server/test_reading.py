"""Reading of images through a server: responses equal the family's results in process."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conftest import FLORENCE2, PADDLE_OCR, SHORT
from tests.support.pictures import pictures
from tests.support.readers import Reader

FILES = pictures()
ASKED = [
    {},
    {"task": "<OD>"},
    {"task": "<CAPTION>", "num_beams": 2},
    {"instruction": "What is the total?", "max_new_tokens": 5},
    {"task": "<CAPTION_TO_PHRASE_GROUNDING>", "labels": ["a cat", "two dogs"]},
]


@pytest.fixture(scope="module")
def expected(server):
    reader = Reader("florence2", server.settings.models_dir.parent / "florence2")
    return [reader(FILES, **{**SHORT, **asked}) for asked in ASKED]


def extract(client, items, **asked):
    named = {name: asked.pop(name) for name in ("instruction", "labels") if name in asked}
    return client.extract(FLORENCE2, items, options=asked, **named)


def without_times(found):
    return [{key: each[key] for key in ("entities", "objects", "data")} for each in found]


def test_concurrent_requests_with_different_tasks_get_their_results(client, expected):
    items = [{"image": file} for file in FILES]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda asked: extract(client, items, **asked), ASKED * 2))
    for each, wanted in zip(found, expected * 2, strict=True):
        assert without_times(each) == without_times(wanted)
    assert any(box for each in expected for found in each for box in found["objects"])


def test_pages_of_many_sizes_are_read_together(client, server):
    reader = Reader("paddleocr_vl", server.settings.models_dir.parent / "paddle")
    asked = [{}, {"task": "seal"}, {"instruction": "What is the total?"}]
    wanted = [reader(FILES, **{**SHORT, **each}) for each in asked]
    with ThreadPoolExecutor(len(asked)) as pool:
        found = list(pool.map(lambda each: read(client, **each), asked))
    for answer, expected in zip(found, wanted, strict=True):
        assert without_times(answer) == without_times(expected)
    assert {line["label"] for page in found[1] for line in page["entities"]} == {"seal"}


def read(client, instruction=None, **options):
    return client.extract(PADDLE_OCR, [{"image": file} for file in FILES], instruction=instruction, options=options)
