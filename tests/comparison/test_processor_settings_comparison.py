"""Settings of image and sound processors: what a model reads is the library's, or the directory is refused.

Random directories: a seed gives a class, the files that hold the settings, and the settings. More seeds by hand:
`python -m tests.comparison.test_processor_settings_comparison 0 2000` prints each directory and its outcome.
"""

import json
import random
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import yaml

from sie_triton.checkpoints.image_processor import FILE, NESTED
from sie_triton.checkpoints.mel import CLASS as SOUNDS
from sie_triton.checkpoints.processor_classes import OF_ONE_SIZE
from sie_triton.errors import LoadError
from tests.support.pictures import picture
from tests.support.processors import MODEL_TYPES, SIZES, by_the_library, ours, written
from tests.support.sounds import sound

SIDES = (16, 24, 32)
IMAGES = [picture(37, 21), picture(20, 45, seed=1), picture(3, 2, seed=2), picture(24, 24, seed=3)]
COLOURS = [picture(31, 30, seed=4).convert(mode) for mode in ("L", "LA", "RGBA", "P", "CMYK")]

# Outcomes. The library may refuse what is served.
EQUAL, REFUSED, BY_THE_LIBRARY = "equal", "refused", "refused by the library"


def directory_of(rng):
    """Return the class that a model has by default, and the files of a random directory."""
    # A model of one size is the likeliest.
    usual = rng.choice([*MODEL_TYPES, *["CLIPImageProcessor", "SiglipImageProcessor"] * 3, *[SOUNDS] * 2])
    given, others = chosen(rng, usual), chosen(rng, usual)
    part = rng.choice(["feature_extractor", "audio_processor"]) if usual == SOUNDS else "image_processor"
    layouts = (
        {FILE: given},
        {NESTED: {part: given}},
        {NESTED: {part: given}, FILE: others},
        {NESTED: {part: None}, FILE: given},
        {NESTED: {"processor_class": "x"}, FILE: given},
    )
    return usual, rng.choice(layouts)


def chosen(rng, usual):
    kinds = {SOUNDS: of_sounds, "Siglip2ImageProcessor": of_naflex, "PixtralImageProcessor": of_pixtral}
    make = of_pixels if usual in SIZES else kinds.get(usual, of_images)
    settings = {key: value for key, value in make(rng).items() if rng.random() < 0.6}
    # The defaults of these would make large images and long sounds.
    needed = ("size", "crop_size", "max_length_s", "sampling_rate", "hop_length")
    settings |= {key: value for key, value in make(rng).items() if key in needed}
    nulls = {key: None for key in settings if rng.random() < 0.03}
    return {**settings, **nulls, **named(rng, usual)}


def named(rng, usual):
    """Return the key that names the class, in one of the ways in which files do."""
    if usual == SOUNDS:
        return rng.choice([{}, {"feature_extractor_type": SOUNDS}])
    name = rng.choice(OF_ONE_SIZE) if usual in OF_ONE_SIZE else usual
    ways = [
        {"image_processor_type": name},
        {"image_processor_type": f"{name}Fast"},
        {"feature_extractor_type": name.replace("ImageProcessor", "FeatureExtractor")},
        {"image_processor_type": name, "feature_extractor_type": "ViTFeatureExtractor"},
    ]
    return rng.choice([*ways, {}] if MODEL_TYPES[usual] else ways)


def size(rng):
    side = rng.choice(SIDES)
    forms = (
        side,
        {"shortest_edge": side},
        {"height": side, "width": rng.choice(SIDES)},
        {"shortest_edge": side, "longest_edge": rng.choice((24, 40))},
        {"max_height": side, "max_width": rng.choice(SIDES)},
        {"longest_edge": side},
        [side, rng.choice(SIDES)],
        {"height": side},
    )
    return rng.choice(forms)


def of_images(rng):
    own = ("do_center_crop", "default_to_square", "do_thumbnail", "do_align_long_axis")
    return {
        "size": size(rng),
        "crop_size": rng.choice([24, {"height": 24, "width": 24}, [24, 32], {"height": 24, "width": 32}]),
        "pad_size": rng.choice([24, {"height": 24, "width": 24}, 40]),
        "crop_pct": rng.choice([0.5, 0.875, 1]),
        "max_size": 48,
        "do_pad": rng.random() < 0.3,
        **{step: rng.random() < 0.7 for step in own},
        **scales(rng),
    }


def of_naflex(rng):
    return {**of_images(rng), "patch_size": rng.choice([4, 8]), "max_num_patches": rng.choice([9, 24])}


def of_pixtral(rng):
    return {**of_images(rng), "patch_size": rng.choice([4, {"height": 8, "width": 4}, [4, 4]])}


def of_pixels(rng):
    pixels = {"shortest_edge": rng.choice([256, 1024]), "longest_edge": rng.choice([1024, 2048])}
    return {
        **of_images(rng),
        "size": pixels,
        "min_pixels": rng.choice([64, 256]),
        "max_pixels": rng.choice([576, 2048]),
        "patch_size": rng.choice([4, 8]),
        "merge_size": rng.choice([1, 2]),
        "temporal_patch_size": rng.choice([1, 2]),
    }


def scales(rng):
    return {
        **{step: rng.random() < 0.8 for step in ("do_resize", "do_rescale", "do_normalize", "do_convert_rgb")},
        "rescale_factor": rng.choice([1 / 255, 1 / 127.5, 0.5]),
        "resample": rng.randrange(6),
        "image_mean": rng.choice([[0.5, 0.4, 0.3], 0.25]),
        "image_std": rng.choice([[0.5, 0.4, 0.3], 0.25]),
    }


def of_sounds(rng):
    return {
        "feature_size": rng.choice([64, 64, 16]),
        "sampling_rate": rng.choice([4000, 4001, 8000]),
        "hop_length": rng.choice([40, 80, 81, 160]),
        "max_length_s": 1,
        "fft_window_size": rng.choice([64, 100, 101, 400]),
        "frequency_min": rng.choice([0, 50, 1200]),
        "frequency_max": rng.choice([1000, 1900, 3000, 14_000]),
        "top_db": rng.choice([None, 80]),
        "padding_value": rng.choice([0.0, 1.0]),
        "padding": rng.choice(["repeatpad", "repeat", "pad"]),
        "truncation": rng.choice(["rand_trunc", "fusion"]),
    }


def outcome(directory, usual):
    """Compare what the model reads of several items; AssertionError if something differs."""
    try:
        read = ours(directory, usual)
    except LoadError as exc:
        return f"{REFUSED}: {exc.args[0].partition('json: ')[2]}"
    try:
        library = by_the_library(directory, usual)
        samples = [sound(seconds, 4000, seed=1)[:, 0] for seconds in (0.01, 0.3, 0.5)]
        expected = [(item, library(item)) for item in (samples if usual == SOUNDS else IMAGES + COLOURS)]
    except (ValueError, TypeError, NotImplementedError) as exc:
        return f"{BY_THE_LIBRARY}: {str(exc).splitlines()[0][:80]}"
    for item, values in expected:
        same(read(item), values)
    return EQUAL


def same(found, values):
    # Of a short sound, the library repeats one spectrogram for fusion.
    assert found.shape[1:] == values.shape[1:]
    assert np.abs(found - values[: len(found)]).max() <= 1e-4 * max(1.0, np.abs(values).max())


# Seeds whose directories are served; those of the others are refused.
SERVED = (2, 5, 6, 9, 12, 13, 14, 16, 23, 24)


@pytest.mark.parametrize("seed", range(30))
def test_random_settings_are_obeyed_or_refused(tmp_path, seed):
    usual, files = directory_of(random.Random(seed))
    found = outcome(written(tmp_path, usual, files), usual)
    assert found == EQUAL if seed in SERVED else found.startswith(REFUSED)


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


def main(first, end):
    """Print each directory with its outcome, and the number of each outcome."""
    counts = {}
    for seed in range(first, end):
        usual, files = directory_of(random.Random(seed))
        with tempfile.TemporaryDirectory() as directory:
            try:
                found = outcome(written(Path(directory), usual, files), usual)
            except AssertionError as exc:
                found = f"DIFFERENT: {exc}".replace("\n", " ")
        kind = found.partition(":")[0]
        counts[kind] = counts.get(kind, 0) + 1
        print(seed, usual, found, json.dumps(files))
    print(counts)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
