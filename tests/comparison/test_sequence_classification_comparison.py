"""Classes equal those of transformers' text-classification pipeline on the same weights."""

import pytest
import transformers

from benchmarks.texts import texts
from sie_triton.contract.spec import Profile
from sie_triton.errors import InputError, LoadError
from sie_triton.models.catalog.recognise import family_in
from tests.support.classifiers import DECODERS, TEXTS, pairs, save_classifier
from tests.support.copies import update
from tests.support.extraction import Extractor

LABELS = ("joy", "größe", "anger", "日", "calm")
SINGLE, MULTI, REGRESSION = "single_label_classification", "multi_label_classification", "regression"
MODELS = [
    ("bert", {}, 10),
    ("bert", {"problem_type": MULTI}, 10),
    ("roberta", {"problem_type": MULTI}, 10),
    ("modernbert", {"problem_type": SINGLE, "classifier_pooling": "mean"}, 0.1),
    ("deberta", {}, 10),
]


def assert_same(found, theirs):
    assert [label for label, _ in pairs(found)] == [each["label"] for each in theirs]
    assert [score for _, score in pairs(found)] == pytest.approx([each["score"] for each in theirs], abs=1e-4)


@pytest.fixture(scope="module")
def directory(tmp_path_factory, minilm_directory):
    return save_classifier(tmp_path_factory.mktemp("own"), minilm_directory, labels=LABELS)


@pytest.fixture(scope="module")
def ours(directory):
    return Extractor("sequence_classification", directory)


@pytest.fixture(scope="module")
def library(directory):
    return transformers.pipeline("text-classification", model=str(directory), device="cpu", top_k=None)


@pytest.mark.parametrize(("architecture", "config", "spread"), MODELS)
def test_classes_are_those_of_the_library(tmp_path, minilm_directory, architecture, config, spread):
    directory = save_classifier(tmp_path, minilm_directory, architecture, labels=LABELS, spread=spread, **config)
    assert family_in(directory)[0] == "sequence_classification"
    ours = Extractor("sequence_classification", directory)
    assert ours.adapter.encoder.path == "packed"
    library = transformers.pipeline("text-classification", model=str(directory), device="cpu", top_k=None)
    everything = [*TEXTS, *texts(1, seed=3)]
    for text, found, theirs in zip(everything, ours(everything), library(everything), strict=True):
        assert_same(found, theirs)
        assert_same(ours([text])[0], theirs)


def test_request_and_model_file_can_select_multi_label(directory, ours, library):
    by_themselves = library(TEXTS, function_to_apply="sigmoid")
    requests = [(TEXTS, (), options) for options in ({"multi_label": True}, {"classification_type": "multi-label"}, {})]
    *multi, single = ours.extract(requests)
    for found in (*multi, Extractor("sequence_classification", directory, MULTI_LABEL)(TEXTS)):
        for each, theirs in zip(found, by_themselves, strict=True):
            assert_same(each, theirs)
    with pytest.raises(AssertionError):
        assert_same(single[0], by_themselves[0])
    assert single == ours(TEXTS, classification_type="multi-label", multi_label=False)


MULTI_LABEL = Profile(parameters={"classification_type": "multi-label"})


@pytest.mark.parametrize("architecture", DECODERS)
@pytest.mark.parametrize(
    ("labels", "problem"), [(LABELS, {}), (LABELS[:2], {"problem_type": MULTI}), (("reward",), {})], ids=["5", "2", "1"]
)
def test_a_decoder_reads_its_last_token(tmp_path, minilm_directory, architecture, labels, problem):
    """One label is recognised as a cross-encoder, and a model file names the family."""
    directory = save_classifier(tmp_path, minilm_directory, architecture, labels=labels, **problem)
    family = "cross_encoder" if len(labels) == 1 else "sequence_classification"
    assert family_in(directory)[0] == family
    ours = Extractor("sequence_classification", directory)
    library = transformers.pipeline("text-classification", model=str(directory), device="cpu", top_k=None)
    everything = [*TEXTS, "ends in [PAD] [PAD]", *texts(1, seed=3)]
    for options, theirs in (({}, {}), ({"raw_scores": True}, {"function_to_apply": "none"})):
        together, expected = ours(everything, **options), library(everything, **theirs)
        for text, found, each in zip(everything, together, expected, strict=True):
            assert_same(found, each)
            assert_same(ours([text], **options)[0], each)
    rewards = [pairs(found)[-1][1] for found in ours(everything, raw_scores=True)]
    assert min(rewards) < 0  # which no threshold cuts


def test_numbers_of_a_regression_are_the_models_own(tmp_path, minilm_directory):
    directory = save_classifier(tmp_path, minilm_directory, "qwen3", labels=LABELS, problem_type=REGRESSION)
    assert family_in(directory)[0] == "sequence_classification"
    ours = Extractor("sequence_classification", directory)
    library = transformers.pipeline("text-classification", model=str(directory), device="cpu", top_k=None)
    for options, theirs in (({}, {}), ({"raw_scores": False}, {"function_to_apply": "softmax"})):
        for found, each in zip(ours(TEXTS, **options), library(TEXTS, **theirs), strict=True):
            assert_same(found, each)
    everything = ours(TEXTS[:1], ranked=False, threshold=0.99)[0]["classifications"]
    assert [each["label"] for each in everything] == [*LABELS]
    least = ours(TEXTS[:1], threshold=0.25)[0]["classifications"]
    assert least == [each for each in ours(TEXTS[:1])[0]["classifications"] if each["score"] >= 0.25]
    assert 0 < len(least) < len(LABELS)


def test_labels_and_unknown_parameters_are_refused(ours):
    with pytest.raises(InputError, match="labels: this model has labels of its own; leave it out"):
        ours(["x"], ["a"])
    assert len(pairs(ours(["x"], threshold=1.0)[0])) == 0


def test_unranked_classes_are_in_the_order_of_the_labels(ours, library):
    for found, theirs in zip(ours(TEXTS, ranked=False), library(TEXTS), strict=True):
        assert [label for label, _ in pairs(found)] == [*LABELS]
        by_label = {each["label"]: each["score"] for each in theirs}
        assert [score for _, score in pairs(found)] == pytest.approx([by_label[label] for label in LABELS], abs=1e-4)


def test_another_problem_is_refused(tmp_path, minilm_directory):
    directory = save_classifier(tmp_path, minilm_directory, labels=LABELS)
    update(directory / "config.json", problem_type="ranking")
    with pytest.raises(LoadError, match="problem_type ranking cannot be served; supported are single_label"):
        family_in(directory)
