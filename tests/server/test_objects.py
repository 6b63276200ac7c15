"""Objects in images through a server, by the client and on the command line."""

import json

import pytest

from tests.conftest import OWL
from tests.support.detectors import Finder, same
from tests.support.pictures import of_all_kinds, pictures

FILES = [*pictures([(97, 61), (40, 90), (33, 33)]), of_all_kinds()["turned"]]
LABELS = ["cat", "two dogs", "a red Bus", "tree"]


@pytest.fixture(scope="module")
def finder(server):
    return Finder("owlv2", server.settings.models_dir.parent / "owl")


def test_objects_in_images(client, finder):
    items = [{"image": file, "id": number} for number, file in enumerate(FILES)]
    found = client.extract(OWL, items, labels=LABELS)
    assert [each["id"] for each in found] == [0, 1, 2, 3]
    for each, expected in zip(found, finder(FILES, LABELS, threshold=0.3), strict=True):
        assert same(each["objects"], expected, 1e-5, 1e-2)
        assert expected
        assert (each["entities"], each["token_count"]) == ([], 37)
    least = {"tree": 0.9}
    (expected,) = finder(FILES[:1], LABELS, threshold=0.6, label_thresholds=json.dumps(least))
    one = client.extract(OWL, items[0], LABELS, threshold=least, options={"threshold": 0.6})
    assert same(one["objects"], expected, 1e-5, 1e-2)
