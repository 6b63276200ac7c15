"""Entities equal those of gliner's bi-encoders on the same weights; each label is encoded once."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from sie_triton.contract.limits import RequestLimits
from sie_triton.errors import InputError, LoadError
from sie_triton.models.catalog.recognise import family_in
from sie_triton.models.families import family, gliner_bi
from sie_triton.models.families.gliner import heads
from sie_triton.models.families.gliner_bi import adapter as bi
from sie_triton.models.families.shared.labels import cache
from tests.support.extraction import Extractor
from tests.support.gliners import LABELS, TEXTS, assert_same, num_compared, save_gliner_bi

MODELS = [
    ("bert", "bert", "span", {}),
    ("deberta", "roberta", "token", {"hidden_size": 48}),
    ("modernbert", "deberta", "span", {"hidden_size": 48, "max_width": 12, "subtoken_pooling": "last"}),
]
MANY = [f"{LABELS[i % 6]} of kind {i}" for i in range(1000)]


@pytest.fixture(scope="module")
def saved(tmp_path_factory, minilm_directory):
    root = tmp_path_factory.mktemp("gliner-bi")
    return save_gliner_bi(root, minilm_directory), root / "model"


@pytest.fixture(scope="module")
def ours(saved):
    return Extractor("gliner_bi", saved[1])


@pytest.fixture
def encoded(ours, monkeypatch):
    """Number of labels in each pass of the label encoder; the cache starts empty."""
    counts = []
    encode = bi.GlinerBiAdapter._encoded

    def counted(self, labels):
        counts.append(len(labels))
        return encode(self, labels)

    monkeypatch.setattr(bi.GlinerBiAdapter, "_encoded", counted)
    monkeypatch.setattr(ours.adapter, "kept", bi.LabelStates())
    return counts


@pytest.mark.parametrize(("architecture", "labels", "kind", "config"), MODELS)
def test_entities_are_those_of_the_library(tmp_path, minilm_directory, architecture, labels, kind, config):
    library = save_gliner_bi(tmp_path, minilm_directory, architecture, labels, kind, **config)
    assert family_in(tmp_path / "model")[0] == "gliner_bi"
    ours = Extractor("gliner_bi", tmp_path / "model")
    assert ours.adapter.encoder.path == "packed"
    several = [
        {"threshold": 0.5},
        {"threshold": 0.2, "flat_ner": False},
        {"threshold": 0.1, "flat_ner": False, "multi_label": True},
    ]
    assert num_compared(ours, library, several) > 20


def test_requests_with_different_labels_share_a_pass(saved, ours):
    requests = [
        (TEXTS[:3], LABELS[:2], {"threshold": 0.4}),
        (TEXTS[3:4], LABELS[3:], {"threshold": 0.3, "flat_ner": False}),
        (TEXTS[:1], [*LABELS[2:], "another"], {"threshold": 0.5, "label_thresholds": '{"another": 0.0}'}),
    ]
    together = ours.extract(requests)
    for (texts, labels, options), found in zip(requests, together, strict=True):
        assert found == [ours([text], labels, **options)[0] for text in texts]
    for (texts, labels, options), found in zip(requests[:2], together, strict=False):
        expected = saved[0].inference(texts, list(labels), **{"flat_ner": True, **options})
        for each, theirs in zip(found, expected, strict=True):
            assert_same(each, theirs)
    assert "another" in {each["label"] for each in together[2][0]["entities"]}


def test_a_label_is_read_once(ours, encoded):
    ours(TEXTS, LABELS)
    ours(TEXTS, [*LABELS[::-1], "new", "new"])
    ours.extract([(TEXTS[:2], ["newer", "new"], {}), (TEXTS[:2], ["newer"], {})])
    assert encoded == [6, 1, 1]


def test_the_label_cache_is_bounded_and_drops_the_oldest(ours, encoded, monkeypatch):
    width = next(iter(ours.adapter._states({np.array([101, 102], np.int32).tobytes(): None}).values())).nbytes
    monkeypatch.setattr(ours.adapter, "kept", bi.LabelStates(3 * width))
    for labels in (["a", "b"], ["c"], ["a"], ["d"], ["d"], ["a", "c", "d"], ["b"]):
        ours(TEXTS[:1], labels)
    assert encoded[1:] == [2, 1, 1, 1]  # a, c and d are cached; b, the oldest, was evicted
    found = ours(TEXTS[:1], LABELS, threshold=0.3)  # more labels than the cache holds
    monkeypatch.setattr(ours.adapter, "kept", bi.LabelStates())
    assert found == ours(TEXTS[:1], LABELS, threshold=0.3)


def test_several_threads_share_what_is_kept(ours, monkeypatch):
    wanted = [LABELS[i % 3 : i % 3 + 3] for i in range(12)]
    expected = [ours(TEXTS[:2], labels, threshold=0.3) for labels in wanted]
    monkeypatch.setattr(ours.adapter, "kept", bi.LabelStates(1000))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda labels: ours(TEXTS[:2], labels, threshold=0.3), wanted))
    for mine, alone in zip(found, expected, strict=True):
        for each, theirs in zip(mine, alone, strict=True):
            assert_same(each, theirs["entities"])


def test_a_thousand_labels(saved, ours, encoded, monkeypatch):
    monkeypatch.setattr("sie_triton.models.families.shared.labels.cache.TOKENS_AT_ONCE", 2000)
    options = {"threshold": 0.9, "flat_ner": True}
    (found,) = ours(TEXTS[:1], MANY, **options)
    assert_same(found, saved[0].inference(TEXTS[:1], MANY, **options)[0])
    assert sum(encoded) == 1000
    assert len(encoded) > 2
    assert found["entities"]


def test_of_very_many_spans_the_best_are_looked_at(ours, monkeypatch):
    options = {"flat_ner": False, "multi_label": True}
    expected = ours(TEXTS[3:5], MANY[:60], threshold=0.99, **options)
    monkeypatch.setattr(heads, "LIMITS", RequestLimits(max_candidates=5))
    few = ours(TEXTS[3:5], MANY[:60], threshold=0, **options)
    for found, best in zip(few, expected, strict=True):
        assert 0 < len(found["entities"]) <= 5 * 5
        assert max(e["score"] for e in found["entities"]) == max(e["score"] for e in best["entities"])


def test_of_very_many_runs_the_best_are_kept(monkeypatch):
    scores, none = np.random.default_rng(0).random((30, 20, 3), np.float32), np.zeros(20, np.float32)
    everything = heads._runs(scores, none)
    monkeypatch.setattr(heads, "LIMITS", RequestLimits(max_candidates=50))
    best = heads._runs(scores, none)
    assert (len(everything.score), len(best.score)) == (30 * 31 // 2 * 20, 50)
    assert sorted(best.score)[-20:] == sorted(everything.score)[-20:]
    known = set(zip(*(each.tolist() for each in everything), strict=True))
    assert set(zip(*(each.tolist() for each in best), strict=True)) <= known


def test_labels_that_are_too_much_for_so_many_texts(ours, monkeypatch):
    monkeypatch.setattr(gliner_bi, "MAX_LABEL_TOKENS", 20)
    ours(TEXTS[:1], ["person", "date"])
    with pytest.raises(InputError, match="labels: have 6 tokens for each of 4 texts, 24 together; at most 20"):
        ours.blame(TEXTS[:4], ["person", "date"])


def test_texts_and_labels_at_the_edges(ours):
    empty, blank, text = ours(["", " \n", TEXTS[0]], LABELS, threshold=0)
    assert (empty["entities"], blank["entities"]) == ([], [])
    assert text["entities"]
    assert ours(TEXTS[:1], ["date", "date", "person"]) == ours(TEXTS[:1], ["date", "person"])
    cut, longer = (
        ours(TEXTS[:1], ["x"], threshold=0, label_descriptions=json.dumps({"x": "very " * count}))[0]["entities"]
        for count in (600, 1200)
    )
    assert [e["score"] for e in cut] == [e["score"] for e in longer]


def test_a_labels_description_is_read_instead_of_its_name(ours):
    named = ours(TEXTS[:1], ["x"], threshold=0, label_descriptions='{"x": "person"}')[0]["entities"]
    plain = ours(TEXTS[:1], ["person"], threshold=0)[0]["entities"]
    assert [(e["start"], e["end"], e["score"]) for e in named] == [(e["start"], e["end"], e["score"]) for e in plain]


def test_labels_that_do_not_match_their_tokens_are_refused(ours):
    with pytest.raises(ValueError, match="label_sizes: must sum to the tokens in label_ids, 3"):
        cache._apart(np.array([1, 2, 3], np.int32), np.array([1, 1], np.int32))


def test_without_the_configuration_of_the_labels_encoder(saved, tmp_path):
    config = (saved[1] / "gliner_config.json").read_text()
    (tmp_path / "gliner_config.json").write_text(config.replace('"labels_encoder_config"', '"other"'))
    with pytest.raises(LoadError, match="labels_encoder_config is missing"):
        family_in(tmp_path)


def test_calibration_samples_can_be_computed(ours):
    ours.check_sample([2, 1, 5])


def test_files_missing_from_the_checkpoint_come_from_its_encoders_repositories(saved, tmp_path):
    assert family("gliner_bi").other_repositories(saved[1]) == {}
    shutil.copy(saved[1] / "gliner_config.json", tmp_path)
    labels, words = (
        {name: str(saved[1].parent / of)} for name, of in (("labels_tokenizer", "labels"), ("encoder", "tokenizer"))
    )
    assert family("gliner_bi").other_repositories(tmp_path) == {**labels, **words}
    shutil.copy(saved[1] / "tokenizer.json", tmp_path)
    assert family("gliner_bi").other_repositories(tmp_path) == labels
