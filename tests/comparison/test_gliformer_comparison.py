"""Entities, relations, classes and vectors equal those of gliformer on the same weights."""

import json

import numpy as np
import pytest
import torch

from sie_triton.contract import Batch, Part
from sie_triton.contract.spec import Profile
from sie_triton.errors import InputError, LoadError
from sie_triton.models.catalog.recognise import family_in
from sie_triton.models.families import family
from sie_triton.models.families.gliformer import spans
from sie_triton.models.families.gliformer.adapter import MAX_ENTITIES, load_adapter
from tests.support.classifiers import pairs
from tests.support.extraction import Extractor
from tests.support.gliformers import as_released, librarys_spans, save_gliformer
from tests.support.gliners import LABELS, TEXTS, assert_same
from tests.support.stages import spec

RELATIONS = ("lives in", "born on", "größer als")
GROUPS = {"mood": ["good", "bad"], "topic": ["travel", "größe", "science"]}


@pytest.fixture(scope="module")
def library(tmp_path_factory, minilm_directory):
    root = tmp_path_factory.mktemp("gliformer")
    return save_gliformer(root, minilm_directory), root / "model"


@pytest.fixture(scope="module")
def ours(library):
    return Extractor("gliformer", library[1], dims={"dense": 64}, tasks=("encode", "extract"))


def related(found):
    """Return the score of each relation by its places and label."""
    scores = {}
    for each in found:
        if isinstance(each["head"], str):
            place = (each["head_start"], each["head_end"], each["tail_start"], each["tail_end"])
        else:
            place = tuple(each[side][end] for side in ("head", "tail") for end in ("start", "end"))
        scores[(*place, each["relation"])] = max(scores.get((*place, each["relation"]), 0), each["score"])
    return scores


@pytest.mark.parametrize(
    "options", [{"threshold": 0.4}, {"threshold": 0.45, "flat_ner": False}, {"threshold": 0.3, "multi_label": True}]
)
def test_entities_are_those_of_the_library(ours, library, options):
    num_found = 0
    for text, found in zip(TEXTS, ours(TEXTS, LABELS, **options), strict=True):
        with as_released():
            expected = library[0].predict_entities(text, list(LABELS), **options)
        assert_same(found, expected)
        num_found += len(expected)
    assert num_found > 5


def test_relations_are_those_of_the_library(ours, library):
    num_found = 0
    asked = {"": {"entities": list(LABELS), "relations": list(RELATIONS)}}
    options = {"threshold": 0.4, "relation_labels": json.dumps(RELATIONS)}
    for text, found in zip(TEXTS, ours(TEXTS, LABELS, **options), strict=True):
        with as_released():
            expected = library[0].inference([text], joint_relations=asked, threshold=0.4)
        assert_same(found, expected["ner"][0])
        assert related(found["relations"]) == pytest.approx(related(expected["joint_relex"][0]), abs=1e-4)
        num_found += len(found["relations"])
    assert num_found > 5


@pytest.mark.parametrize("multi", [False, True])
def test_classes_are_those_of_the_library(ours, library, multi):
    options = {"threshold": 0.3, "multi_label": multi}
    for text, found in zip(TEXTS, ours(TEXTS, label_groups=json.dumps(GROUPS), **options), strict=True):
        of_groups = library[0].classify(text, GROUPS, **options)
        expected = {
            f"{group}.{each['class_name']}": each["score"]
            for group, of_group in zip(GROUPS, of_groups, strict=True)
            for each in of_group
        }
        assert dict(pairs(found)) == pytest.approx(expected, abs=1e-4)
        assert found["entities"] == []


def test_vectors_are_those_of_the_library(ours, library):
    part = Part("text", TEXTS, Profile())
    features = ours.processor.encode([ours.processor.frame(part).around(text) for text in TEXTS])
    number = len(TEXTS)
    batch = Batch(features, np.zeros(number, np.bool_), frozenset({"dense"}), [{}] * number)
    expected = library[0].embed_text(list(TEXTS), batch_size=1).numpy()
    assert ours.adapter.forward(batch)["dense"] == pytest.approx(expected, abs=1e-5)


def test_tasks_of_requests_do_not_mix(ours):
    requests = [
        (TEXTS[:2], LABELS, {"label_groups": json.dumps(GROUPS), "threshold": 0.4}),
        (TEXTS[:1], LABELS[:2], {"relation_labels": "lives in", "threshold": 0.4}),
        (TEXTS[2:4], [], {"label_groups": json.dumps(GROUPS), "multi_label": True}),
        (["", " "], LABELS, {}),
    ]
    together = ours.extract(requests)
    assert together == [ours.extract([request])[0] for request in requests]
    assert [each["entities"] for each in together[3]] == [[], []]


def asked_for_spans(seed, threshold):
    """Return the arguments of the library's function that finds spans, for random scores."""
    torch.manual_seed(seed)
    inside, start, end = torch.rand(3, 24, 3).pow(0.4)
    places = [[each.tolist() for each in torch.where(scores > threshold)] for scores in (start, end)]
    return (None, *places, inside, start, end, {0: "a", 2: "c"}, threshold)


@pytest.mark.parametrize("threshold", [0.2, 0.6, 1.0])
@pytest.mark.parametrize("max_width", [None, 3])
def test_spans_are_those_of_the_library(threshold, max_width):
    for seed in range(3):
        asked = asked_for_spans(seed, threshold)
        assert spans.best_spans(*asked, max_width) == librarys_spans(*asked, max_width)


def test_many_spans_are_the_best_ones(monkeypatch):
    asked = asked_for_spans(0, 0.2)
    scores = sorted((each.score for each in librarys_spans(*asked)), reverse=True)
    monkeypatch.setattr(spans, "MAX_SPANS", 4)
    assert sorted((each.score for each in spans.best_spans(*asked)), reverse=True) == scores[:4]
    assert len(scores) > 4 * 4


def test_relations_are_looked_for_between_the_best_entities(ours):
    assert ours.adapter._model.model.heads["joint_relex"].max_relation_entities == MAX_ENTITIES


@pytest.mark.parametrize(
    ("labels", "options", "field"),
    [
        ([], {"relation_labels": "lives in"}, "labels"),
        (["a"], {"relation_labels": json.dumps([f"r{i}" for i in range(40)])}, "relation_labels"),
        ([f"label {i}" for i in range(100)], {}, "labels"),
        ([], {"label_groups": json.dumps({"g": [f"label {i}" for i in range(100)]})}, "label_groups"),
    ],
)
def test_requests_that_cannot_be_read_are_refused(ours, labels, options, field):
    with pytest.raises(InputError) as caught:
        ours(["x"], labels, **options)
    assert caught.value.field == field


def test_a_request_without_labels_is_refused(ours):
    with pytest.raises(InputError, match="labels"):
        ours(["x"])


def test_what_a_checkpoint_has_no_head_for_is_refused(tmp_path, minilm_directory):
    save_gliformer(tmp_path, minilm_directory, heads=("ner",))
    lesser = Extractor("gliformer", tmp_path / "model")
    for name, value in (("relation_labels", "lives in"), ("label_groups", json.dumps(GROUPS))):
        with pytest.raises(InputError) as caught:
            lesser(["x"], ["a"], **{name: value})
        assert caught.value.field == name


def test_a_directory_is_recognised(library):
    name, found = family_in(library[1])
    assert (name, found.dims, found.max_sequence_length) == ("gliformer", {"dense": 64}, 128)
    assert family(name).environment == "gliformer"


def test_without_the_library_its_environment_is_named(library, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "gliformer", None)
    with pytest.raises(LoadError, match="run sie-triton env add gliformer gliformer") as told:
        load_adapter(spec(), library[1], None)
    assert told.value.reason == "dependency"


def test_a_load_failure_of_the_library_is_one_line(tmp_path):
    (tmp_path / "gliner_config.json").write_text("{}")
    with pytest.raises(LoadError, match="gliformer cannot load it"):
        load_adapter(spec(), tmp_path, None)
