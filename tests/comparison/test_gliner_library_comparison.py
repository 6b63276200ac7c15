"""Checkpoints whose head we do not implement run through the library itself."""

import json

import pytest

from sie_triton.errors import LoadError
from sie_triton.models.families import family
from sie_triton.models.families.gliner_library.adapter import load_adapter
from tests.support.extraction import Extractor
from tests.support.gliners import LABELS, TEXTS, assert_same, save_gliner
from tests.support.stages import spec


@pytest.fixture(scope="module")
def library(tmp_path_factory, minilm_directory):
    root = tmp_path_factory.mktemp("gliner-library")
    return save_gliner(root, minilm_directory, num_rnn_layers=0, fuse_layers=True), root / "model"


@pytest.fixture(scope="module")
def ours(library):
    return Extractor("gliner_library", library[1])


@pytest.mark.parametrize(
    "options", [{"threshold": 0.5}, {"threshold": 0.5, "flat_ner": False}, {"threshold": 0.3, "multi_label": True}]
)
def test_entities_are_those_of_the_library(ours, library, options):
    """Texts run one at a time, because the library's results depend on the other texts of a batch."""
    found, num_found = ours(TEXTS, LABELS, **options), 0
    for text, each in zip(TEXTS, found, strict=True):
        usual = {"flat_ner": True, "multi_label": False}
        (expected,) = library[0].inference([text], list(LABELS), **{**usual, **options})
        assert_same(each, expected)
        num_found += len(expected)
    assert num_found > 5


def test_requests_keep_their_labels_and_thresholds(ours):
    requests = [
        ([TEXTS[0]], ["person"], {}),
        (TEXTS[:2], list(LABELS), {"label_thresholds": '{"person": 1, "日": 0.3}', "threshold": 0.55}),
        (["", " "], ["x"], {}),
    ]
    together = ours.together(requests)
    assert together == [ours.together([request])[0] for request in requests]
    told = [each for found in together[1] for each in found["entities"]]
    assert {each["label"] for each in told} - {"person"}
    assert all(each["score"] >= 0.55 for each in told if each["label"] not in ("person", "日"))
    assert [found["entities"] for found in together[2]] == [[], []]


def test_a_label_has_a_threshold_and_a_description_of_its_own(ours, library):
    """The library runs with the lowest threshold; its results are then filtered by each label's own."""
    usual = {"flat_ner": False, "multi_label": False}
    (all_of,) = library[0].inference([TEXTS[0]], list(LABELS), threshold=0.3, **usual)
    low = next(each for each in all_of if each["score"] < 0.5)
    expected = [each for each in all_of if each["score"] >= (0.3 if each["label"] == low["label"] else 0.9)]
    own = json.dumps({low["label"]: 0.3})
    assert_same(ours(TEXTS[:1], LABELS, threshold=0.9, label_thresholds=own, flat_ner=False)[0], expected)
    described = ours(TEXTS[:1], ["x"], label_descriptions=json.dumps({"x": LABELS[0]}), threshold=0.3)[0]
    (found,) = library[0].inference([TEXTS[0]], [LABELS[0]], threshold=0.3)
    assert_same(described, [{**each, "label": "x"} for each in found])


def test_our_family_refuses_and_names_gliner_library(library):
    with pytest.raises(LoadError, match=r"fuse_layers: models with .* cannot be served; adapter_path: gliner_library"):
        Extractor("gliner", library[1])
    assert family("gliner_library").environment == "gliner"


def test_without_the_library_its_environment_is_named(library, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "gliner", None)
    with pytest.raises(LoadError, match="run sie-triton env add gliner gliner torch") as told:
        load_adapter(spec(), library[1], None)
    assert told.value.reason == "dependency"


def test_a_load_failure_of_the_library_is_one_line(tmp_path):
    (tmp_path / "gliner_config.json").write_text("{}")
    with pytest.raises(LoadError, match="gliner cannot load it"):
        load_adapter(spec(), tmp_path, None)
