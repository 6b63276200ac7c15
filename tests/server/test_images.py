"""Images and texts through a server: mixed in requests, from many clients, beside files that cannot be read."""

import time

import numpy as np
import pytest

from sie_triton import InputError, Item, SIEClient
from tests.conftest import CLIP, FLORENCE2, SHORT
from tests.support import pdfs
from tests.support.flood import flooding
from tests.support.items import Served
from tests.support.pictures import picture, pictures
from tests.support.unreadable import unreadable

FILES = pictures([(97, 61), (40, 90), (33, 33), (300, 31), (640, 480), (64, 64)])
ITEMS = [
    "a photo of a cat",
    {"image": FILES[0], "id": "first"},
    {"text": "", "image": FILES[1]},
    {"text": "two dogs, and a bird"},
    {"image": FILES[2]},
    {"image": FILES[3]},
    "",
    {"image": FILES[4]},
    {"image": FILES[5]},
]

PDF = pdfs.pdf_of(pdfs.pages())


@pytest.fixture(scope="module")
def expected(server):
    """Vectors of each item alone, computed without a server; float32 [n, 32]."""
    served = Served("clip", server.settings.models_dir.parent / "clip", dims={"dense": 32})
    return np.concatenate([served.encode([item])["dense"] for item in ITEMS])


def test_items_of_both_kinds_in_one_request(client, expected):
    found = client.encode(CLIP, ITEMS)
    assert np.allclose([each["dense"] for each in found], expected, atol=1e-5)
    assert found[1]["id"] == "first"
    assert [each["token_count"] for each in found[:3]] == [7, 17, 17]
    alone = client.encode(CLIP, {"image": FILES[0]})
    assert np.allclose(alone["dense"], expected[1], atol=1e-5)
    only_texts = client.encode(CLIP, [ITEMS[0], ITEMS[6]], output_dtype="float16")
    assert np.allclose([each["dense"] for each in only_texts], expected[[0, 6]], atol=1e-2)


def test_the_client_takes_an_image_in_any_form(client, expected, tmp_path):
    (tmp_path / "a.png").write_bytes(FILES[0])
    image = picture(97, 61)
    ways = [
        {"image": str(tmp_path / "a.png")},
        {"image": tmp_path / "a.png"},
        {"image": image},
        {"image": np.asarray(image)},
        {"image": memoryview(FILES[0])},
        {"image": {"data": FILES[0], "format": "png"}},
        {"images": [FILES[0]]},
        Item(image=image),
    ]
    for found in client.encode(CLIP, ways):
        assert np.allclose(found["dense"], expected[1], atol=1e-5)


def test_an_unreadable_image_spoils_only_its_own_request(server, expected):
    """tests/pure/models/inputs/test_images.py has all kinds."""

    def ask_beside(client):
        found = client.encode(CLIP, ITEMS[:4])
        assert np.allclose([each["dense"] for each in found], expected[:4], atol=1e-4)
        time.sleep(0.05)  # some of the processors is left for the other requests

    some = [*list(unreadable().items())[::8], ("a PDF", pdfs.refused()["a header alone"])]
    with SIEClient(server.grpc) as client, flooding([ask_beside], server) as flood:
        for name, (content, said) in some:
            if not content:
                continue
            with pytest.raises(InputError, match=r"image\[2\](, page 1)?: ") as told:
                client.encode(CLIP, ["a", {"image": FILES[0]}, {"image": content}, {"image": FILES[1]}])
            assert said in str(told.value), name
    assert flood.errors == []
    assert flood.count


def test_a_pdf_has_a_result_for_each_page(client):
    drawn = pdfs.drawn(PDF)
    expected = [each["dense"] for each in client.encode(CLIP, [{"image": page} for page in drawn])]
    first, of_pdf, last = client.encode(CLIP, ["a cat", {"image": PDF, "id": "report"}, {"image": drawn[0]}])
    assert (of_pdf["id"], [page["page"] for page in of_pdf["pages"]]) == ("report", [1, 2, 3])
    assert np.allclose([page["dense"] for page in of_pdf["pages"]], expected, atol=1e-5)
    assert np.allclose(last["dense"], expected[0], atol=1e-5)
    assert first["dense"].shape == (32,)
    (second,) = client.encode(CLIP, {"image": PDF}, pages="2")["pages"]
    assert (second["page"], np.allclose(second["dense"], expected[1], atol=1e-5)) == (2, True)
    with pytest.raises(InputError, match=r"parameter pages: image\[0\] has 3 pages, but no page 4"):
        client.encode(CLIP, {"image": PDF}, pages="1,4")
    with pytest.raises(InputError, match="parameter pages: 'two' is not allowed"):
        client.encode(CLIP, {"image": PDF}, pages="two")


def test_each_page_of_a_pdf_is_read_as_an_image(client):
    alone = client.extract(FLORENCE2, [{"image": page} for page in pdfs.drawn(PDF)], options=SHORT)
    found = client.extract(FLORENCE2, {"image": PDF}, options=SHORT)
    assert [page["data"] for page in found["pages"]] == [each["data"] for each in alone]
    assert found["token_count"] == sum(each["token_count"] for each in alone)
