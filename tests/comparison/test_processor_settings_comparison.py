"""Settings of image and sound processors as published: what a model reads is the library's, or it is refused."""

from pathlib import Path

import numpy as np
import pytest
import yaml

from sie_triton.checkpoints.mel import CLASS as SOUNDS
from sie_triton.errors import LoadError
from tests.support.pictures import picture
from tests.support.processors import by_the_library, ours, written
from tests.support.sounds import sound


def same(found, values):
    # Of a short sound, the library repeats one spectrogram for fusion.
    assert found.shape[1:] == values.shape[1:]
    assert np.abs(found - values[: len(found)]).max() <= 1e-4 * max(1.0, np.abs(values).max())


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
