"""Files of image and sound processors: which one holds, which classes a model may have, and why others are refused."""

import json

import pytest

from sie_triton.checkpoints.image_processor import FILE, IMAGES, NESTED, SOUNDS, ImagePlan, image_fields
from sie_triton.checkpoints.mel import MelPlan
from sie_triton.checkpoints.processor_classes import OF_ONE_SIZE
from sie_triton.errors import LoadError


def written(directory, files):
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content))
    return directory


@pytest.mark.parametrize(
    ("files", "patch"),
    [
        ({FILE: {"patch_size": 1}}, 1),
        ({FILE: {"patch_size": 1}, NESTED: {"image_processor": {"patch_size": 2}}}, 2),
        ({FILE: {"patch_size": 1}, NESTED: {"image_processor": {}}}, 14),
        ({FILE: {"patch_size": 1}, NESTED: {"image_processor": None}}, 1),
        ({FILE: {"patch_size": 1}, NESTED: {"patch_size": 3}}, 1),
    ],
)
def test_the_part_of_the_whole_processor_holds(tmp_path, files, patch):
    assert image_fields(written(tmp_path, files), "Qwen2VLImageProcessor").integer("patch_size") == patch


@pytest.mark.parametrize(
    ("nested", "rate"),
    [
        ({"feature_extractor": {"sampling_rate": 2000}, "audio_processor": {"sampling_rate": 3000}}, 2000),
        ({"audio_processor": {"sampling_rate": 3000}}, 3000),
        ({"feature_extractor": None, "audio_processor": {"sampling_rate": 3000}}, 1000),
    ],
)
def test_the_part_of_sounds_has_two_names(tmp_path, nested, rate):
    assert MelPlan.read(written(tmp_path, {FILE: {"sampling_rate": 1000}, NESTED: nested})).rate == rate


@pytest.mark.parametrize(
    ("settings", "config", "kind"),
    [
        ({}, {}, "CLIPImageProcessor"),
        ({}, {IMAGES: "ViTImageProcessor"}, "ViTImageProcessor"),
        ({IMAGES: "BlipImageProcessor"}, {IMAGES: "ViTImageProcessor"}, "BlipImageProcessor"),
        ({IMAGES: "ViTImageProcessorFast"}, {}, "ViTImageProcessor"),
        ({IMAGES: "ViTImageProcessorPil"}, {}, "ViTImageProcessor"),
        ({SOUNDS: "ViTFeatureExtractor"}, {}, "ViTImageProcessor"),
        ({SOUNDS: "ViTFeatureExtractor", "auto_map": {"AutoImageProcessor": "a.B"}}, {}, "CLIPImageProcessor"),
    ],
)
def test_the_class_is_named_in_several_ways(tmp_path, settings, config, kind):
    written(tmp_path, {FILE: settings, "config.json": config})
    assert image_fields(tmp_path, "CLIPImageProcessor").text(IMAGES) == kind


@pytest.mark.parametrize(
    "name", ["custom.CLIPImageProcessor", "MyImageProcessor", "Siglip2ImageProcessor", "x" * 10_000]
)
def test_a_class_that_is_not_known_is_refused_by_name(tmp_path, name):
    with pytest.raises(LoadError) as caught:
        ImagePlan.read(written(tmp_path, {FILE: {IMAGES: name}}), "CLIPImageProcessor")
    assert (caught.value.reason, name[:80] in str(caught.value)) == ("unsupported", True)
    assert all(known in str(caught.value) for known in OF_ONE_SIZE)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("settings", "reason", "said"),
    [
        ({"size": {"longest_edge": 64}}, "unsupported", "size: must have height and width or shortest_edge or"),
        ({"size": {"min_pixels": 9, "max_pixels": 99}}, "unsupported", "size: must have height and width or"),
        ({"size": {"height": 64}}, "corrupt", "size: must have height and width or"),
        ({"size": None}, "corrupt", "size: must be an object"),
        ({"size": {"max_height": 64, "max_width": 64}, "do_center_crop": False}, "unsupported", "different sizes"),
        ({"do_resize": False, "do_center_crop": None}, "unsupported", "different sizes"),
        ({"crop_size": {"shortest_edge": 64}}, "unsupported", "crop_size: must have height and width"),
        ({"do_pad": True, "pad_size": 300}, "unsupported", "pad_size cannot be served: images are 224 × 224"),
        ({"image_std": [1, 1, 0]}, "corrupt", "image_std: must not be 0"),
        ({"image_mean": None}, "corrupt", "image_mean: must be three numbers"),
        ({"rescale_factor": 10**400}, "corrupt", "rescale_factor: must be a number"),
        ({"image_mean": float("nan")}, "corrupt", "image_mean: must be three numbers"),
        ({"resample": 6}, "corrupt", "resample: must be a whole number from 0 to 5"),
        ({"do_resize": 1}, "corrupt", "do_resize: must be true or false"),
        ({IMAGES: 5}, "corrupt", "image_processor_type: must be a string"),
        ({IMAGES: "ConvNextImageProcessor", "size": 224, "crop_pct": 1e-9}, "corrupt", "crop_pct: must make edges"),
        ({IMAGES: "ConvNextImageProcessor", "size": 224, "do_center_crop": True}, "corrupt", "crop_size: must be an"),
    ],
)
def test_what_cannot_be_served_is_refused_with_its_reason(tmp_path, settings, reason, said):
    with pytest.raises(LoadError, match=said) as caught:
        ImagePlan.read(written(tmp_path, {FILE: settings}), "CLIPImageProcessor")
    assert caught.value.reason == reason


@pytest.mark.parametrize("kind", [IMAGES, SOUNDS])
def test_missing_files_are_named(tmp_path, kind):
    written(tmp_path, {NESTED: {"processor_class": "CLIPProcessor"}})
    with pytest.raises(LoadError, match=f"{FILE} is missing.*in {NESTED}") as caught:
        ImagePlan.read(tmp_path, "CLIPImageProcessor") if kind == IMAGES else MelPlan.read(tmp_path)
    assert caught.value.reason == "not found"
