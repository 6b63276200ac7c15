"""Vectors of pages and questions equal those of colpali-engine's ColIdefics3 over transformers' Idefics3."""

import numpy as np
import pytest
import transformers

from sie_triton.checkpoints.files import Fields
from sie_triton.checkpoints.tile_plan import TilePlan
from sie_triton.contract import Batch
from sie_triton.contract.tensors import PIXELS
from sie_triton.errors import LoadError
from sie_triton.models.catalog.recognise import family_in
from sie_triton.models.inputs.tiles import tiled
from tests.support.items import Served
from tests.support.pages import SmolLibrary, same, save_colsmol, vectors_of
from tests.support.pictures import picture, pictures

TEXTS = ["What does the invoice say?", "two dogs", "", "naïve 😀 größe"]
FILES = pictures(((97, 61), (40, 90), (33, 33), (300, 31), (700, 500)))
OPTIONS = {"dims": {"multivector": 32}, "tasks": ("encode", "score"), "score_modes": ("maxsim",)}


@pytest.fixture(scope="module")
def directory(tmp_path_factory, minilm_directory):
    return save_colsmol(tmp_path_factory.mktemp("colsmol"), minilm_directory)


@pytest.fixture(scope="module")
def ours(directory):
    name, found = family_in(directory)
    assert (name, dict(found.dims), found.scores) == ("colsmol", {"multivector": 32}, True)
    served = Served("colsmol", directory, **OPTIONS)
    assert (served.adapter.encoder.path, served.adapter.encoder.paths) == ("packed", ("packed",))
    return served


@pytest.fixture(scope="module")
def library(directory):
    return SmolLibrary(directory)


def test_texts_and_images_in_one_request(ours, library):
    items = [TEXTS[0], *({"image": file} for file in FILES), *TEXTS[1:]]
    found = vectors_of(ours.encode(items))
    expected = [library.text(TEXTS[0]), *map(library.image, FILES), *map(library.text, TEXTS[1:])]
    print(f"largest difference {max(abs(a - np.asarray(b)).max() for a, b in zip(found, expected, strict=True)):.1e}")
    assert all(map(same, found, expected))
    assert len({len(each) for each in found[1:6]}) > 2
    for item, together in zip(items, found, strict=True):
        assert np.allclose(vectors_of(ours.encode([item]))[0], together, atol=1e-5)


def test_a_text_that_holds_the_token_of_images(ours):
    """The states of an image in the same batch do not replace those of the text."""
    text = "an <image>"
    alone, together = ours.encode([text]), ours.encode([{"image": FILES[0]}, text])
    assert np.allclose(vectors_of(alone)[0], vectors_of(together)[1], atol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"size": {"longest_edge": 97}, "max_image_size": {"longest_edge": 32}},
        {"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 64}, "resample": 2},
        {"size": {"longest_edge": 200}, "max_image_size": {"longest_edge": 64}, "image_mean": [0.1, 0.2, 0.3]},
    ],
)
def test_tiles_are_those_of_the_processor(tmp_path, settings):
    processor = transformers.Idefics3ImageProcessorPil(**settings)
    processor.save_pretrained(tmp_path)
    side = processor.max_image_size["longest_edge"]
    plan = TilePlan.read(tmp_path, Fields("", {"image_size": side}))
    mean, std = np.array(plan.tile.mean), np.array(plan.tile.std)
    for seed, size in enumerate([(97, 61), (40, 90), (33, 33), (300, 31), (7, 5), (640, 11), (1, 199), (64, 64)]):
        image = picture(*size, seed=seed)
        tiles = tiled(image, plan)
        expected = processor([[image]], return_tensors="np", return_row_col_info=True)
        assert expected["rows"] == [[tiles.rows]]
        pixels = (tiles.pixels * plan.tile.scale - mean) / std
        assert len(pixels) <= plan.most_tiles
        assert np.abs(pixels.transpose(0, 3, 1, 2) - expected["pixel_values"][0]).max() < 1e-5


def test_the_calibration_sample_is_a_page_of_two_tiles(ours):
    page = ours.adapter.sample([2])
    assert page[PIXELS.name].of_items.tolist() == [3 * 32 * 32 * 3]


def test_a_part_of_a_tile_is_refused(ours):
    features = dict(ours.adapter.sample([1]))
    pixels, lengths = features[PIXELS.name]
    features[PIXELS.name] = features[PIXELS.name]._replace(values=pixels[:-3], lengths=lengths - 3)
    with pytest.raises(ValueError, match="must have 3072 bytes"):
        ours.adapter.forward(Batch(features, np.zeros(1, np.bool_)))


@pytest.mark.parametrize(
    ("file", "said", "instead", "complaint"),
    [
        ("config.json", '"image_size": 32', '"image_size": 64', "max_image_size: must be 64"),
        ("config.json", '"scale_factor": 2', '"scale_factor": 3', "multiple of patch_size · scale_factor"),
        ("config.json", '"image_token_id": ', '"image_token_id": 1', "<image> must be the token"),
        ("preprocessor_config.json", '"do_image_splitting": true', '"do_image_splitting": false', "do_image_splitting"),
        ("preprocessor_config.json", '"longest_edge": 96', '"shortest_edge": 96', "must have longest_edge"),
        ("preprocessor_config.json", '"longest_edge": 96', '"longest_edge": 4000', "max_image_size: must be 32"),
    ],
)
def test_unsupported_checkpoints_are_refused_with_the_reason(tmp_path, directory, file, said, instead, complaint):
    for path in directory.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    text = (tmp_path / file).read_text()
    assert said in text
    (tmp_path / file).write_text(text.replace(said, instead))
    with pytest.raises(LoadError, match=complaint):
        Served("colsmol", tmp_path, **OPTIONS)
