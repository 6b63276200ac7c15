"""Checkpoints whose head we do not implement run through the library itself."""

import json

import pytest

from sie_triton.errors import InputError, LoadError
from sie_triton.models.families import family
from sie_triton.models.families.gliner_library.adapter import load_adapter
from sie_triton.models.families.gliner_library.candidates import bound_candidates
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
    together = ours.extract(requests)
    assert together == [ours.extract([request])[0] for request in requests]
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


# --- relations

RELATIONS = ("lives in", "born on", "größer als")

# Texts of at most 60 spans, so that all of them may be candidates.
SHORT = [" ".join(text.split()[:12]) for text in TEXTS]


@pytest.fixture(
    scope="module", params=[("span", "none"), ("span", "dot"), ("token", "none"), ("token", "dot")], ids="-".join
)
def relating(request, tmp_path_factory, minilm_directory):
    """The library's model of relations, and its directory."""
    kind, layer = request.param
    root = tmp_path_factory.mktemp("relations")
    return save_gliner(root, minilm_directory, kind=kind, num_rnn_layers=0, relations_layer=layer), root / "model"


def related(found):
    """Return the score of each relation; the library may give one twice, for the same words as a candidate twice."""
    scores = {}
    for each in found:
        if isinstance(each["head"], str):
            place = (each["head_start"], each["head_end"], each["tail_start"], each["tail_end"])
        else:
            place = tuple(each[side][end] for side in ("head", "tail") for end in ("start", "end"))
        key = (*place, each["relation"])
        scores[key] = max(scores.get(key, 0), each["score"])
    return scores


def assert_same_relations(ours, theirs):
    assert related(ours) == pytest.approx(related(theirs), abs=1e-4)


@pytest.mark.parametrize(
    "options", [{"threshold": 0.45, "relation_threshold": 0.8}, {"threshold": 0.5, "flat_ner": False}]
)
def test_relations_are_those_of_the_library(relating, options):
    library, directory = relating
    ours, num_found = Extractor("gliner_library", directory), 0
    usual = {"flat_ner": True, "multi_label": False}
    for text, found in zip(SHORT, ours(SHORT, LABELS, relation_labels=",".join(RELATIONS), **options), strict=True):
        (entities,), (relations,) = library.inference([text], list(LABELS), list(RELATIONS), **{**usual, **options})
        assert_same(found, entities)
        assert_same_relations(found["relations"], relations)
        num_found += len(relations)
    assert num_found > 5


def test_a_model_of_relations_finds_entities_alone(relating):
    library, directory = relating
    for text, found in zip(SHORT, Extractor("gliner_library", directory)(SHORT, LABELS, threshold=0.45), strict=True):
        assert_same(found, library.inference([text], list(LABELS), threshold=0.45, return_relations=False)[0])
        assert found["relations"] == []


def test_a_relation_has_a_threshold_and_a_description_of_its_own(relating):
    library, directory = relating
    asked = {"x": {"description": RELATIONS[0], "threshold": 0.9}, RELATIONS[1]: "", "z": {"threshold": 1}}
    thresholds = {"x": 0.9, RELATIONS[1]: 0.45, "z": 1}
    found = Extractor("gliner_library", directory)(SHORT, LABELS, relation_labels=json.dumps(asked), threshold=0.45)
    for text, each in zip(SHORT, found, strict=True):
        read = [RELATIONS[0], RELATIONS[1], "z"]
        _, (relations,) = library.inference([text], list(LABELS), read, threshold=0.45)
        named = [{**one, "relation": dict(zip(read, asked, strict=True))[one["relation"]]} for one in relations]
        assert related(each["relations"]) == related(
            [one for one in named if one["score"] >= thresholds[one["relation"]]]
        )


def test_relations_of_entities_below_their_labels_threshold_are_left_out(relating):
    ours = Extractor("gliner_library", relating[1])
    options = {"relation_labels": RELATIONS[0], "threshold": 0.45, "label_thresholds": json.dumps({"person": 1})}
    for found in ours(SHORT, LABELS, **options):
        places = {(each["start"], each["end"]) for each in found["entities"]}
        for each in found["relations"]:
            assert {(each["head_start"], each["head_end"]), (each["tail_start"], each["tail_end"])} <= places


def test_relations_are_looked_for_between_the_best_entities(relating):
    ours = Extractor("gliner_library", relating[1])
    options = {"relation_labels": RELATIONS[0], "threshold": 0.3, "flat_ner": False}
    whole = ours(TEXTS[3:], LABELS, **options)
    bound_candidates(ours.adapter._model.model, 4)
    for found, before in zip(ours(TEXTS[3:], LABELS, **options), whole, strict=True):
        assert found["entities"] == before["entities"]
        assert len({(each["head_start"], each["head_end"]) for each in found["relations"]}) <= 4
        assert related(found["relations"]).keys() <= related(before["relations"]).keys()
    assert max(len(each["relations"]) for each in whole) > 4 * 3


def test_relations_are_refused_by_a_model_that_finds_none(ours):
    with pytest.raises(InputError) as caught:
        ours(TEXTS[:1], LABELS, relation_labels="lives in")
    assert caught.value.field == "relation_labels"


def test_models_that_score_triples_are_refused(tmp_path, minilm_directory):
    save_gliner(tmp_path, minilm_directory, num_rnn_layers=0, relations_layer="none", triples_layer="DistMult")
    with pytest.raises(LoadError, match="triples_layer") as caught:
        load_adapter(spec(), tmp_path / "model", None)
    assert caught.value.reason == "unsupported"
