"""Objects equal those of transformers' OWLv2 and OWL-ViT on the same weights and files."""

import json

import pytest

from sie_triton.errors import InputError, LoadError
from sie_triton.models.catalog.recognise import family_in
from sie_triton.models.families.owlv2 import OwlFiles
from sie_triton.models.inputs.request_parts import blame, features_of
from tests.support.copies import update
from tests.support.detectors import Finder, Owl, check_upright, refused, same, save_owl
from tests.support.pictures import pictures

LABELS = ["cat", "two dogs", "a red Bus", "tree"]
OTHERS = ["zebra", "cat", "a very small bird"]
FILES = pictures([(97, 61), (40, 90), (33, 33), (300, 31)])


@pytest.fixture(scope="module", params=["owlv2", "owlvit"])
def version(request):
    return request.param


@pytest.fixture(scope="module")
def directory(tmp_path_factory, minilm_directory, version):
    return save_owl(tmp_path_factory.mktemp(version), minilm_directory, version)


@pytest.fixture(scope="module")
def ours(directory):
    assert family_in(directory)[0] == "owlv2"
    return Finder("owlv2", directory)


@pytest.fixture(scope="module")
def library(directory, version):
    return Owl(directory, version)


@pytest.mark.parametrize("file", FILES)
def test_objects_are_those_of_the_library(ours, library, file):
    expected = library(file, LABELS)
    assert same(ours([file], LABELS)[0], expected)
    assert len(expected) > 5
    surer = library(file, LABELS, threshold=0.6)
    assert same(ours([file], LABELS, threshold=0.6)[0], surer)
    assert len(surer) < len(expected)


def test_different_labels_and_sizes_in_one_batch(ours, library):
    requests = [
        (FILES[:2], LABELS, {}),
        (FILES[1:], OTHERS, {"threshold": 0.3}),
        (FILES[:1], ["tree"], {"label_template": "{}, of all"}),
    ]
    together = ours.extract(requests)
    for (files, labels, given), found in zip(requests, together, strict=True):
        template, threshold = given.get("label_template", "a photo of {}"), given.get("threshold", 0.1)
        for file, objects in zip(files, found, strict=True):
            assert same(objects, library(file, labels, threshold, template))
            assert same(objects, ours([file], labels, **given)[0], 1e-5, 1e-2)
    assert not same(together[2][0], ours(FILES[:1], ["tree"])[0], 0.01)


def test_boxes_are_in_the_upright_image(ours, library):
    check_upright(ours, library, LABELS)


def test_thresholds_apply_in_order_of_precedence(ours, library):
    file, least = FILES[0], {"tree": 0.9, "cat": 0.0}
    expected = [each for each in library(file, LABELS, 0.0) if each["score"] > least.get(each["label"], 0.4)]
    given = {"label_thresholds": json.dumps(least), "score_threshold": 0.4}
    assert same(ours([file], LABELS, **given)[0], expected)
    assert same(ours([file], LABELS, threshold=0.5, score_threshold=0.2)[0], library(file, LABELS, 0.5))
    assert ours([file], LABELS, threshold=1.0) == [[]]


def test_a_labels_description_is_read_instead_of_its_name(ours, library):
    described = ours(FILES[:1], ["cat", "x"], label_descriptions='{"x": "a red bus"}')[0]
    expected = [{**each, "label": "x" if each["label"] != "cat" else "cat"} for each in library(FILES[0], LABELS[::2])]
    assert same(described, expected)


def test_many_labels(ours, library):
    """The maximum number of labels, some of which begin with the same words."""
    many = [f"{OTHERS[i % 3]} {i}" for i in range(600)]
    assert same(ours(FILES[:1], many)[0], library(FILES[0], many))
    (found,) = ours(FILES[:1], [f"thing {i}" for i in range(4096)], threshold=0.0)
    assert len(found) == 36


def test_refusals_name_the_labels(ours):
    assert "labels: is empty" in refused(ours, [])
    too_long = refused(ours, ["cat", "one two three four five six seven eight nine ten eleven twelve"])
    assert too_long.startswith("labels: 'one two three")
    assert "has 17 tokens" in too_long
    assert "at most 16" in too_long
    assert "label_template: must contain {}" in refused(ours, ["cat"], label_template="a photo")


def test_only_the_request_with_invalid_labels_is_refused(ours):
    good = ours.asked("extract", {"image": FILES[:1], "labels": [b"cat"]}, {})
    bad = ours.asked("extract", {"image": FILES[:1], "labels": [b"cat " * 20]}, {})
    with pytest.raises(InputError, match="labels: 'cat cat"):
        features_of(ours.processor, [good, bad])
    blame(ours.processor, good)
    with pytest.raises(InputError, match="labels: 'cat cat"):
        blame(ours.processor, bad)


def test_a_label_is_read_once(ours, monkeypatch):
    read = []
    encoded = ours.adapter._encoded
    monkeypatch.setattr(ours.adapter, "_encoded", lambda labels: read.extend(labels) or encoded(labels))
    ours(FILES, ["new", "newer"])
    ours(FILES[:1], ["newer", "newest"])
    assert len(read) == 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"size": {"height": 64, "width": 96}}, "images are resized to 64 × 96, but config.json needs 96 × 96"),
        ({"size": [96, 96]}, ""),
        ({"do_pad": False}, "do_pad false cannot be served"),
        ({"resample": 0}, "resample 0 cannot be served"),
        ({"image_processor_type": "OwlViTImageProcessor"}, "unknown for this model; supported are Owlv2ImageProcessor"),
    ],
)
def test_unsupported_preprocessor_settings_are_refused(tmp_path, minilm_directory, change, said):
    save_owl(tmp_path, minilm_directory)
    update(tmp_path / "preprocessor_config.json", **change)
    if said:
        with pytest.raises(LoadError, match=said):
            OwlFiles.read(tmp_path)
    else:
        assert OwlFiles.read(tmp_path).plan.shape == (96, 96)
