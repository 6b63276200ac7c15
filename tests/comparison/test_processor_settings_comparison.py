"""Settings of image and sound processors as published: what a model reads is the library's, or it is refused."""

from pathlib import Path

import numpy as np
import pytest
import yaml

from sie_triton.checkpoints.image_processor import FILE
from sie_triton.checkpoints.mel import CLASS as SOUNDS
from sie_triton.errors import LoadError
from tests.support.pictures import picture
from tests.support.processors import by_the_library, ours, written
from tests.support.sounds import sound


def same(found, values):
    # Of a short sound, the library repeats one spectrogram for fusion.
    assert found.shape[1:] == values.shape[1:]
    assert np.abs(found - values[: len(found)]).max() <= 1e-4 * max(1.0, np.abs(values).max())


# Sizes of pictures: wide, high, square, small, and shapes whose resized sides are rounded.
PICTURES = [(97, 61), (40, 90), (33, 33), (300, 31), (64, 64), (7, 5), (5, 200), (640, 480), (129, 96)]
SMALL = {"size": {"shortest_edge": 64}, "crop_size": {"height": 64, "width": 64}}
SETTINGS = {
    "CLIPImageProcessor": [
        SMALL,
        {**SMALL, "do_center_crop": False, "size": {"height": 64, "width": 64}},
        {**SMALL, "size": {"shortest_edge": 80}, "resample": 2},
        {**SMALL, "size": {"shortest_edge": 30}},
        {"size": 64, "crop_size": 64},
        {"size": 64, "crop_size": 64, "default_to_square": True},
        {**SMALL, "size": {"shortest_edge": 64, "longest_edge": 80}},
        {**SMALL, "size": {"max_height": 64, "max_width": 80}},
        {**SMALL, "do_resize": False},
        {**SMALL, "do_normalize": False},
        {**SMALL, "image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.4, 0.3], "rescale_factor": 1 / 127},
    ],
    "DonutImageProcessor": [
        {"size": {"height": 64, "width": 48}},
        {"size": {"height": 40, "width": 64}, "do_align_long_axis": True},
        {"size": {"height": 64, "width": 48}, "do_align_long_axis": True, "resample": 3},
        {"size": [48, 64], "do_normalize": False},
    ],
    "GroundingDinoImageProcessor": [
        {"size": {"shortest_edge": 96, "longest_edge": 128}},
        {"size": {"height": 64, "width": 80}},
        {"size": {"max_height": 64, "max_width": 80}},
    ],
    "Owlv2ImageProcessor": [{"size": {"height": 96, "width": 64}, "do_normalize": False}],
    "Siglip2ImageProcessor": [{"patch_size": 8, "max_num_patches": 24}],
}


@pytest.mark.parametrize(("usual", "settings"), [(name, each) for name in SETTINGS for each in SETTINGS[name]], ids=str)
def test_pixels_are_those_of_the_processor(tmp_path, usual, settings):
    directory = written(tmp_path, usual, {FILE: {"image_processor_type": usual, **settings}})
    read, library = ours(directory, usual), by_the_library(directory, usual)
    for seed, size in enumerate(PICTURES):
        image = picture(*size, seed=seed)
        same(read(image), library(image))


PUBLISHED = yaml.safe_load((Path(__file__).parents[1] / "support" / "published_processors.yaml").read_text())


@pytest.mark.parametrize("model", [name for name, each in PUBLISHED.items() if "refused" not in each])
def test_settings_as_published(tmp_path, model):
    usual = PUBLISHED[model]["class"]
    directory = written(tmp_path, usual, PUBLISHED[model]["files"])
    item = sound(2.0, 48_000, seed=1)[:, 0] if usual == SOUNDS else picture(250, 150, seed=5)
    same(ours(directory, usual)(item), by_the_library(directory, usual)(item))


@pytest.mark.parametrize("model", [name for name, each in PUBLISHED.items() if "refused" in each])
def test_published_settings_of_an_unknown_class_are_refused(tmp_path, model):
    usual = PUBLISHED[model]["class"]
    directory = written(tmp_path, usual, PUBLISHED[model]["files"])
    with pytest.raises(LoadError, match=rf"image_processor_type '{PUBLISHED[model]['refused']}'"):
        ours(directory, usual)
