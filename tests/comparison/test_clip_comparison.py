"""Vectors of images and texts equal those of transformers and sentence-transformers on the same weights and files."""

import numpy as np
import pytest

from sie_triton.models.catalog.recognise import family_in
from tests.support.items import Served
from tests.support.pictures import of_all_kinds, picture, pictures, saved
from tests.support.towers import TowersLibrary, save_clip

TEXTS = ["a photo of a cat", "two dogs", "", "naïve 😀 " * 60]
KINDS = of_all_kinds()
Library = TowersLibrary


@pytest.fixture(scope="module")
def directory(tmp_path_factory, minilm_directory):
    directory = tmp_path_factory.mktemp("clip")
    save_clip(directory, minilm_directory)
    return directory


@pytest.fixture(scope="module")
def ours(directory):
    assert family_in(directory)[0] == "clip"
    return Served("clip", directory, dims={"dense": 32})


def test_texts(ours, library):
    assert ours.adapter.encoder.path == "packed"
    found = ours.encode(TEXTS)["dense"]
    assert np.allclose(found, library.texts(TEXTS), atol=1e-5)
    assert (found @ found.T)[0, 1] < 0.99


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_of_each_kind(ours, library, kind):
    found = ours.encode([{"image": KINDS[kind]}])["dense"]
    assert np.allclose(found, library.images([KINDS[kind]]), atol=1e-5)
    other = ours.encode([{"image": saved(picture(seed=9))}])["dense"]
    assert float((found @ other.T).item()) < 0.99


def test_texts_and_images_in_one_request(ours, library):
    files = pictures()
    items = [{"text": TEXTS[0]}, {"image": files[0]}, TEXTS[1], {"image": files[1]}]
    expected = [library.texts(TEXTS[:2])[0], *library.images(files[:1]), library.texts(TEXTS[:2])[1]]
    together = ours.encode(items)["dense"]
    assert np.allclose(together[:3], expected, atol=1e-5)
    assert np.allclose(together[3], library.images(files[1:2])[0], atol=1e-5)
    alone = np.concatenate([ours.encode([item])["dense"] for item in items])
    assert np.allclose(together, alone, atol=1e-5)
