"""Objects equal those of transformers' Grounding DINO on the same weights and files."""

import json

import numpy as np
import pytest

from sie_triton.contract import Label
from sie_triton.contract.spec import Runtime
from sie_triton.errors import InputError, LoadError
from sie_triton.models.catalog.recognise import family_in
from sie_triton.models.families.grounding_dino import DinoFiles, DinoProcessor
from sie_triton.models.families.grounding_dino.adapter import labels_of
from tests.support.copies import copy
from tests.support.detectors import Dino, Finder, check_upright, refused, same, save_dino
from tests.support.pictures import picture, pictures

LABELS = ["cat", "two dogs", "a red Bus", "tree house"]
OTHERS = ["zebra", "Cat!", "e-mail"]
Library = Dino
FILES = pictures([(97, 61), (40, 90), (33, 33), (300, 131), (97, 61)])


@pytest.fixture(scope="module")
def directory(tmp_path_factory, minilm_directory):
    return save_dino(tmp_path_factory.mktemp("dino"), minilm_directory)


@pytest.fixture(scope="module")
def ours(directory):
    assert family_in(directory)[0] == "grounding_dino"
    return Finder("grounding_dino", directory)


@pytest.mark.parametrize("file", FILES[:4])
def test_objects_are_those_of_the_library(ours, library, file):
    expected = library(file, LABELS)
    assert same(ours([file], LABELS)[0], expected)
    assert len(expected) > 5
    given = {"threshold": 0.8, "text_threshold": 0.7}
    surer = library(file, LABELS, **given)
    assert same(ours([file], LABELS, **given)[0], surer)
    assert len(surer) < len(expected)


def test_different_labels_and_sizes_in_one_batch(ours, library, monkeypatch):
    passes = []
    record_source = ours.adapter._logits_and_boxes
    monkeypatch.setattr(
        ours.adapter, "_logits_and_boxes", lambda images, *of: passes.append(len(images)) or record_source(images, *of)
    )
    requests = [
        (FILES, LABELS, {}),
        (FILES[1:3], OTHERS, {"threshold": 0.6}),
        (FILES[:1], LABELS, {"text_threshold": 0.9, "label_thresholds": '{"cat": 0.999}'}),
    ]
    together = ours.extract(requests)
    # The first request's first and last image and the third request's have the same size and labels.
    assert passes == [3, 1, 1, 1, 1, 1]
    for (files, labels, given), found in zip(requests, together, strict=True):
        for file, objects in zip(files, found, strict=True):
            assert same(objects, ours([file], labels, **given)[0], 1e-5, 1e-2)
    for (files, labels, given), found in zip(requests[:2], together, strict=False):
        for file, objects in zip(files, found, strict=True):
            assert same(objects, library(file, labels, given.get("threshold", 0.25)))


def test_boxes_are_in_the_upright_image(ours, library):
    check_upright(ours, library, LABELS)


def test_label_thresholds_and_threshold_override_box_threshold(ours, library):
    file, least = FILES[0], {"cat": 0.999, "a red Bus": 0.0}
    expected = [each for each in library(file, LABELS, 0.0) if each["score"] > least.get(each["label"], 0.9)]
    given = {"label_thresholds": json.dumps(least), "box_threshold": 0.9}
    found = ours([file], LABELS, **given)[0]
    assert same([each for each in found if each["label"] in least], [e for e in expected if e["label"] in least])
    assert same(ours([file], LABELS, threshold=0.9, box_threshold=0.2)[0], library(file, LABELS, 0.9))
    assert ours([file], LABELS, threshold=1.0) == [[]]


def test_a_labels_description_is_read_instead_of_its_name(ours, library):
    found = ours(FILES[:1], ["x", "cat"], label_descriptions='{"x": "Two dogs "}')[0]
    names = {"cat": "cat", "two dogs": "x", None: None}
    assert same(found, [{**each, "label": names[each["label"]]} for each in library(FILES[0], ["two dogs", "cat"])])


def test_a_phrase_belongs_to_the_label_with_the_best_score():
    """Tokens: [CLS] red bus . red hand bag . [SEP]"""
    ids, labels = np.array([101, 1, 2, 9, 1, 3, 4, 9, 102]), np.array([0, 1, 1, 0, 2, 2, 2, 0, 0])

    def label(*above, best=1):
        scores = np.full((1, len(ids)), 0.1, np.float32)
        scores[0, best], scores[0, list(above)] = 0.2, 0.9
        return int(labels_of(scores, ids, labels, 0.5)[0])

    assert label(1, 2) == 0
    assert label(4, 5, 6) == 1
    assert label(1, 5) == 1  # 2 of 3 words against 1 of 2
    assert label(1) == 0  # 1 of 2 words against 1 of 3
    assert label(2, 5, 6) == 1
    assert label(1, 2, 4, 5, 6) == 1  # all words of both; the second label has more
    assert label(0, best=6) == 1  # no word is above the threshold: the best word decides
    assert label(3, 8, best=2) == 0


def test_refusals_name_the_fault_of_the_labels(ours):
    assert "labels: is empty" in refused(ours, [])
    many = refused(ours, [f"thing {i}" for i in range(4096)])
    assert many.startswith("labels: have ")
    assert "at most 256 for all labels" in many
    assert refused(ours, ["cat", "!?"]).startswith("labels: '!?' contains no word")


def test_labels_may_fill_the_models_whole_text(ours, library):
    labels = [str(number) for number in range(1, 128)]
    assert len(ours.processor.prompt(tuple(map(Label, labels)), "{}").ids) == 256
    assert same(ours(FILES[:1], labels, threshold=0.9)[0], library(FILES[0], labels, 0.9))


def test_an_image_too_narrow_for_its_places(tmp_path, directory):
    copy(directory, tmp_path, "config.json", num_queries=100)
    reading = DinoProcessor(DinoFiles.read(tmp_path), Runtime())
    with pytest.raises(InputError, match=r"image\[3\]: has 300 × 10 pixels, resized to 128 × 4, .* 100 places"):
        reading.pixels(picture(300, 10), "image[3]")
    assert reading.pixels(picture(97, 61), "image[3]").shape == (80, 128, 3)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("preprocessor_config.json", {"do_resize": False}, "do_resize false cannot be served"),
        ("preprocessor_config.json", {"pad_size": {"height": 9, "width": 9}}, "pad_size cannot be served"),
        ("preprocessor_config.json", {"size": {"longest_edge": 9}}, "size: must have shortest_edge and longest_edge"),
        ("config.json", {"two_stage": False}, "two_stage false cannot be served"),
        ("config.json", {"backbone_config": {"model_type": "resnet"}}, "resnet.* unknown; supported are swin"),
    ],
)
def test_files_that_cannot_be_served(tmp_path, directory, name, change, said):
    with pytest.raises(LoadError, match=said):
        DinoFiles.read(copy(directory, tmp_path, name, **change))
