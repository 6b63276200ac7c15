"""Relations equal those of glirel on the same weights and words."""

import json
import shutil

import numpy as np
import pytest

from sie_triton.contract import Relation
from sie_triton.contract.limits import RequestLimits
from sie_triton.errors import InputError, LoadError
from sie_triton.models.catalog.recognise import family_in
from sie_triton.models.families import family
from sie_triton.models.families.gliner import heads
from sie_triton.models.families.glirel import RELATION_SCORES, RELATIONS, relations
from sie_triton.models.weights.locate import loadable
from tests.support.copies import copy
from tests.support.extraction import Extractor
from tests.support.gliners import TEXTS
from tests.support.glirels import LABELS, asked, entities_of, save_glirel
from tests.support.stages import spec

MODELS = [
    ("bert", {}, "packed"),
    (
        "deberta",
        {"hidden_size": 128, "refine_prompt": True, "refine_relation": True, "label_embed_strategy": "label"},
        "",
    ),
    ("modernbert", {"label_embed_strategy": "ent_token", "max_entity_pair_distance": 7}, "packed"),
]
ADA = "Ada Lovelace was born in London in 1815, and wrote for Charles Babbage."
KNOWN = [{"start": 0, "end": 12}, {"start": 25, "end": 31}, {"start": 55, "end": 70}]


@pytest.fixture(scope="module")
def saved(tmp_path_factory, minilm_directory):
    root = tmp_path_factory.mktemp("glirel")
    return save_glirel(root, minilm_directory), root


@pytest.fixture(scope="module")
def ours(saved):
    return Extractor("glirel", saved[1] / "model")


def by_library(library, text, entities, labels=LABELS, **options):
    words, ner = asked(text, entities)
    if len(ner) < 2:
        return []
    return library.predict_relations(words, list(labels), **options, ner=ner)


def assert_same(ours, theirs, text, entities):
    """Assert equal relations; `theirs` locate entities by word, `ours` by character in `text`."""
    places = {
        (first, last + 1): each for (first, last, _), each in zip(asked(text, entities)[1], entities, strict=True)
    }
    expected = []
    for each in theirs:
        head, tail = (places[tuple(each[key])] for key in ("head_pos", "tail_pos"))
        expected.append((head["start"], head["end"], tail["start"], tail["end"], each["label"]))
    keys = ("head_start", "head_end", "tail_start", "tail_end", "relation")
    found = [tuple(each[key] for key in keys) for each in ours["relations"]]
    scores, their_scores = ([each["score"] for each in told] for told in (ours["relations"], theirs))
    assert scores == pytest.approx(their_scores, abs=1e-4)
    if scores != sorted(scores, reverse=True):
        assert found == expected
    # Ties may be sorted differently.
    assert dict(zip(found, scores, strict=True)) == pytest.approx(
        dict(zip(expected, their_scores, strict=True)), abs=1e-4
    )
    assert all(each["head"] == text[each["head_start"] : each["head_end"]] for each in ours["relations"])


@pytest.mark.parametrize(("architecture", "config", "path"), MODELS)
def test_relations_are_those_of_the_library(tmp_path, minilm_directory, architecture, config, path):
    library = save_glirel(tmp_path, minilm_directory, architecture, **config)
    assert family_in(tmp_path / "model")[0] == "glirel"
    ours = Extractor("glirel", tmp_path / "model")
    assert ours.adapter.encoder.path == (path or "packed")
    known = [entities_of(text, every=3 + i % 2) for i, text in enumerate(TEXTS)]
    num_found = 0
    for options in [{"threshold": 0.5}, {"threshold": 0.3, "top_k": 1}, {"threshold": 0.4, "top_k": 2}]:
        together = ours(TEXTS, LABELS, entities=known, **options)
        for text, entities, found in zip(TEXTS, known, together, strict=True):
            expected = by_library(library, text, entities, **options)
            assert_same(found, expected, text, entities)
            assert_same(ours([text], LABELS, entities=[entities], **options)[0], expected, text, entities)
            num_found += len(expected)
    assert num_found > 200


def test_requests_with_different_labels_share_a_pass(saved, ours):
    requests = [
        ([ADA, TEXTS[3]], LABELS[:2], {"threshold": 0.3, "entities": [KNOWN, entities_of(TEXTS[3])]}),
        ([ADA], LABELS[2:], {"threshold": 0.4, "top_k": 1, "entities": [KNOWN]}),
    ]
    for (texts, labels, options), found in zip(requests, ours.extract(requests), strict=True):
        others = {name: value for name, value in options.items() if name != "entities"}
        for text, entities, each in zip(texts, options["entities"], found, strict=True):
            assert_same(each, by_library(saved[0], text, entities, labels, **others), text, entities)


def test_thresholds_and_descriptions_of_labels(ours):
    given = {"entities": [KNOWN], "threshold": 1.0, "label_thresholds": '{"author": 0.0}'}
    found = ours([ADA], LABELS, **given)[0]["relations"]
    assert [each["relation"] for each in found] == ["author"] * 6
    named = ours([ADA], ["x"], entities=[KNOWN], threshold=0, label_descriptions='{"x": "author"}')[0]["relations"]
    plain = ours([ADA], ["author"], entities=[KNOWN], threshold=0)[0]["relations"]
    assert [each["score"] for each in named] == [each["score"] for each in plain]


def test_entities_are_the_words_that_they_cover(saved, ours):
    partial = [{"start": 2, "end": 7}, {"start": 24, "end": 32}, {"start": 60, "end": len(ADA)}]
    (found,) = ours([ADA], LABELS, entities=[partial], threshold=0.3)
    assert_same(found, by_library(saved[0], ADA, partial, threshold=0.3), ADA, partial)
    assert found["relations"][0]["head"] == "a Lov"


def test_entities_at_the_edges(ours):
    assert (
        ours(["", ADA, ADA], LABELS, entities=[[], [], KNOWN[:1]], threshold=0)
        == [ours([""], LABELS, entities=[[]])[0]] * 3
    )
    whole = [{"start": 0, "end": len(ADA)}, {"start": 0, "end": 1}]
    assert len(ours([ADA], ["author", "author"], entities=[whole], threshold=0)[0]["relations"]) == 2
    twice = ours([ADA], LABELS, entities=[[*KNOWN, *KNOWN]], threshold=0.3)
    assert twice == ours([ADA], LABELS, entities=[KNOWN], threshold=0.3)
    strange = "\x00 \u200b one \x01 two"
    found = ours([strange], ["author"], entities=[[{"start": 0, "end": 1}, {"start": 4, "end": 7}]], threshold=0)
    assert found[0]["relations"] == []


@pytest.mark.parametrize(
    ("texts", "labels", "entities", "said"),
    [
        ([ADA], [], [KNOWN], "labels: is empty"),
        ([ADA], ["x"], None, "entities: has 0 elements"),
        ([ADA], ["x"], [KNOWN, KNOWN], "entities: has 2 elements"),
        ([ADA], ["x"], [[{"start": 60, "end": len(ADA) + 1}]], r"entities\[0\]: entity 0: needs start and end"),
        ([ADA], ["x"], [[{"start": 3, "end": 4}]], r"entities\[0\]: entity 0: contains only spaces"),
        ([ADA, ADA], ["x"], [KNOWN, KNOWN * 86], r"entities\[1\]: has 258 entities; this model reads at most 256 in"),
        ([ADA], [f"label {i}" for i in range(1000)], [KNOWN], "labels: take 3556 tokens; this model reads at most"),
    ],
)
def test_invalid_requests_are_refused(ours, texts, labels, entities, said):
    with pytest.raises(InputError, match=said):
        ours(texts, labels, entities=entities)


def test_only_the_best_of_very_many_findings_are_reported(ours, monkeypatch):
    text = " ".join("x" * 256)
    known = [entities_of(text, every=1, width=1)]
    assert len(known[0]) == 256
    everything = ours([text], LABELS[:1], entities=known, threshold=0)[0]["relations"]
    assert len(everything) == 20_000
    monkeypatch.setattr(heads, "LIMITS", RequestLimits(max_candidates=100))
    best = ours([text], LABELS[:1], entities=known, threshold=0)[0]["relations"]
    assert sorted(each["score"] for each in best) == sorted(each["score"] for each in everything)[-100:]
    assert best == [each for each in everything if each in best]


def test_a_long_text_is_read_in_windows(saved, tmp_path):
    library, root = saved
    ours = Extractor("glirel", copy(root / "model", tmp_path, "glirel_config.json", max_len=20))
    text = " ".join(f"w{i} x" for i in range(30))
    words = text.split()
    known = entities_of(text, every=2, width=1)
    found = ours([text], LABELS[:1], entities=[known], threshold=0)[0]["relations"]
    distances = {abs(words.index(each["head"]) - words.index(each["tail"])) for each in found}
    assert max(distances) == 18
    near = {(a, b) for a in words[::2] for b in words[::2] if a != b and abs(words.index(a) - words.index(b)) <= 10}
    told = [(each["head"], each["tail"]) for each in found]
    assert near <= set(told)
    assert len(told) == len(set(told))
    assert told == sorted(told, key=lambda pair: [words.index(each) for each in pair])
    first = by_library(library, " ".join(words[:20]), known[:10], LABELS[:1], threshold=0.0)
    score = next(each["score"] for each in found if (each["head"], each["tail"]) == ("w0", "w2"))
    assert score == pytest.approx(
        next(each["score"] for each in first if each["head_pos"] == [0, 1] and each["tail_pos"] == [4, 5]), abs=1e-4
    )


@pytest.mark.parametrize("scores", [(0.25, 0.75), (0.75, 0.25)])
def test_a_relation_found_in_two_windows_is_reported_once(scores):
    def row(found, score):
        return {RELATIONS.name: np.array(found, np.int32), RELATION_SCORES.name: np.array(score, np.float32)}

    both, other = [1, 0, 5, 6, 0, 3, 2], [0, 1, 0, 3, 5, 6, 2]
    found = relations([row([both], scores[:1]), row([both, other], [scores[1], 0.5])], {}).relations
    assert found == [Relation(0, 3, 5, 6, 2, 0.5), Relation(5, 6, 0, 3, 2, 0.75)]


def test_a_checkpoint_saved_by_glirel_is_converted_and_read(saved, ours, tmp_path):
    asked_for = spec(weights=str(saved[1] / "pickled"), family="glirel", allow_pickle="tensors")
    directory = loadable(asked_for, family("glirel").files, cache=tmp_path)
    converted = Extractor("glirel", directory)([ADA], LABELS, entities=[KNOWN], threshold=0.3)
    assert converted == ours([ADA], LABELS, entities=[KNOWN], threshold=0.3)


@pytest.mark.parametrize("key", ["scorer", "span_marker_mode", "subtoken_pooling", "rel_mode", "label_embed_strategy"])
def test_unsupported_checkpoints_are_refused(tmp_path, key):
    (tmp_path / "glirel_config.json").write_text(json.dumps({"hidden_size": 8, key: "other"}))
    with pytest.raises(LoadError, match=f"glirel_config.json: {key} 'other' is unknown; supported are"):
        family_in(tmp_path)


def test_calibration_samples_can_be_computed(ours):
    ours.check_sample([2, 1, 5])


def test_files_missing_from_the_checkpoint_come_from_its_encoders_repository(saved, tmp_path):
    shutil.copytree(saved[1] / "model", tmp_path / "model")
    assert family("glirel").other_repositories(tmp_path / "model") == {}
    shutil.rmtree(tmp_path / "model/encoder")
    assert family("glirel").other_repositories(tmp_path / "model") == {"encoder": str(saved[1] / "base")}
    with pytest.raises(LoadError, match=r"the files of its encoder are missing; those of .*base are fetched if"):
        family_in(tmp_path / "model")
