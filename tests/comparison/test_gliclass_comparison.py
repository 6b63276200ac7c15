"""Classes equal those of gliclass on the same weights."""

import json

import pytest
from gliclass import GLiClassModel, ZeroShotClassificationPipeline
from transformers import AutoTokenizer

from benchmarks.texts import texts
from sie_triton.contract import Label, Part
from sie_triton.contract.spec import Profile
from sie_triton.errors import InputError, LoadError
from sie_triton.models.catalog.recognise import family_in
from tests.support.classifiers import TEXTS, pairs
from tests.support.copies import copy
from tests.support.extraction import Extractor
from tests.support.gliclasses import save_gliclass

LABELS = ["travel", "dreams of a long journey", "größe", "日", "science"]
EVERYTHING = [*TEXTS, *texts(1, seed=3)]

MODELS = {
    "as v1": ("deberta", {}),
    "as v3": ("deberta", {"scorer_type": "mlp", "class_token_pooling": "average", "pooling_strategy": "avg"}),
    "as modern": ("modernbert", {"scorer_type": "mlp", "normalize_features": True, "embed_class_token": False}),
    "text first": ("bert", {"prompt_first": False, "scorer_type": "weighted-dot", "pooling_strategy": "max"}),
    "text alone": (
        "deberta",
        {
            "extract_text_features": True,
            "pooling_strategy": "avg",
            "class_token_pooling": "average",
            "embed_class_token": False,
        },
    ),
    "hopfield": ("bert", {"scorer_type": "hopfield", "pooling_strategy": "last", "layer_wise": True}),
    "rms": ("bert", {"pooling_strategy": "rms", "normalize_features": True}),
    "abs": ("bert", {"pooling_strategy": "abs_avg"}),
}


def assert_same(found, theirs):
    """Assert equal scores; `theirs` maps label → score, for all labels or those above a threshold."""
    ordered = sorted(theirs.items(), key=lambda each: each[1], reverse=True)
    assert [label for label, _ in pairs(found)] == [label for label, _ in ordered]
    assert [score for _, score in pairs(found)] == pytest.approx([score for _, score in ordered], abs=1e-4)


class Library:
    """gliclass, run on one text at a time because it pools over padding."""

    def __init__(self, directory):
        tokenizer, model = AutoTokenizer.from_pretrained(directory), GLiClassModel.from_pretrained(directory)
        self.pipeline = ZeroShotClassificationPipeline(
            model, tokenizer, device="cpu", progress_bar=False, max_length=512
        )

    def __call__(self, text, labels, kind="multi-label", **options):
        (found,) = self.pipeline([text], labels, classification_type=kind, return_hierarchical=True, **options)
        return found

    def chosen(self, text, labels, kind, threshold):
        (found,) = self.pipeline([text], labels, classification_type=kind, threshold=threshold)
        return {each["label"]: each["score"] for each in found}


@pytest.fixture(scope="module")
def directory(tmp_path_factory, minilm_directory):
    return save_gliclass(tmp_path_factory.mktemp("gliclass"), minilm_directory)


@pytest.fixture(scope="module")
def ours(directory):
    return Extractor("gliclass", directory)


@pytest.mark.parametrize("name", MODELS)
def test_classes_are_those_of_the_library(tmp_path, minilm_directory, name):
    architecture, config = MODELS[name]
    directory = save_gliclass(tmp_path, minilm_directory, architecture, **config)
    assert family_in(directory)[0] == "gliclass"
    ours, library, spread = Extractor("gliclass", directory), Library(directory), []
    assert ours.adapter.encoder.path == "packed"
    for kind in ("single-label", "multi-label"):
        together = ours(EVERYTHING, LABELS, classification_type=kind)
        for text, found in zip(EVERYTHING, together, strict=True):
            theirs = library(text, LABELS, kind)
            assert_same(found, theirs)
            spread.append(max(theirs.values()) - min(theirs.values()))
        assert_same(ours([text], LABELS, classification_type=kind)[0], theirs)
    assert max(spread) > 0.01


def test_an_instruction_is_the_librarys_prompt(tmp_path, minilm_directory, ours, library):
    last = save_gliclass(tmp_path, minilm_directory, prompt_first=False)
    for mine, theirs in ((ours, library), (Extractor("gliclass", last), Library(last))):
        for text in TEXTS[:3]:
            found = mine([text], LABELS, instruction="What is it about? ")[0]
            assert_same(found, theirs(text, LABELS, prompt="What is it about? "))


def test_thresholds(ours, library):
    found = pairs(ours(TEXTS[:1], LABELS)[0])
    least = (found[1][1] + found[2][1]) / 2
    assert_same(ours(TEXTS[:1], LABELS, threshold=least)[0], library.chosen(TEXTS[0], LABELS, "multi-label", least))
    best = ours(TEXTS[:1], LABELS, multi_label=False)[0]["classifications"][0]
    assert library.chosen(TEXTS[0], LABELS, "single-label", 0) == pytest.approx(
        {best["label"]: best["score"]}, abs=1e-4
    )
    kept = ours(TEXTS[:1], LABELS, threshold=1.0, label_thresholds=json.dumps({found[3][0]: 0.0}))[0]
    assert_same(kept, dict(found[3:4]))


def test_requests_of_different_labels_share_a_forward_pass(ours, library):
    requests = [
        (TEXTS[:2], LABELS[:3], {}),
        (TEXTS[2:], LABELS[2:], {"multi_label": False}),
        (TEXTS[:1], LABELS[:1], {"instruction": "Say it. "}),
    ]
    for found, (some, labels, options) in zip(ours.extract(requests), requests, strict=True):
        kind = "multi-label" if options.get("multi_label", True) else "single-label"
        for each, text in zip(found, some, strict=True):
            assert_same(each, library(text, labels, kind, prompt=options.get("instruction")))


EXAMPLE_TEXTS = [{"text": "I slept.", "labels": ["science"]}, {"text": "größe 日 <<SEP>>", "labels": ["日", "travel"]}]


@pytest.mark.parametrize("prompt_first", [True, False])
def test_examples_are_those_of_the_library(tmp_path, minilm_directory, prompt_first):
    directory = save_gliclass(tmp_path, minilm_directory, prompt_first=prompt_first, pooling_strategy="avg")
    ours, library = Extractor("gliclass", directory), Library(directory)
    shown = [*EXAMPLE_TEXTS[:1], {**EXAMPLE_TEXTS[1], "text": "größe 日"}]
    for text in TEXTS[:4]:
        found = ours([text], LABELS, examples=json.dumps(shown), instruction="Say it. ")[0]
        theirs = library(text, LABELS, examples=shown, prompt="Say it. ")
        assert_same(found, theirs)
        assert max(abs(theirs[label] - score) for label, score in pairs(ours([text], LABELS)[0])) > 1e-3


GROUPS = {"mood": ["good", "bad", "größe"], "topic": ["travel", "science"]}


def test_label_groups_are_the_librarys_labels_of_several_levels(ours, library):
    """Those of the library share one softmax; here the classes of a group exclude each other only."""
    several = ours(TEXTS[:3], label_groups=json.dumps(GROUPS), threshold=0.5)
    single = ours(TEXTS[:3], label_groups=json.dumps(GROUPS), classification_type="single-label")
    for text, of_several, of_single in zip(TEXTS, several, single, strict=False):
        theirs = library(text, GROUPS)
        flat = {f"{group}.{label}": score for group, labels in theirs.items() for label, score in labels.items()}
        assert_same(of_several, {label: score for label, score in flat.items() if score >= 0.5})
        for group, labels in library(text, GROUPS, "single-label").items():
            whole = sum(labels.values())
            found = {label.partition(".")[2]: score for label, score in pairs(of_single) if label.startswith(group)}
            assert found == pytest.approx({label: score / whole for label, score in labels.items()}, abs=1e-4)
            assert of_single["data"][group] == max(labels, key=labels.get)
            kept = {label for label, score in theirs[group].items() if score >= 0.5}
            assert set(of_several["data"][group]) == kept


@pytest.mark.parametrize(
    ("labels", "given", "field"),
    [
        (["a"], {"label_groups": GROUPS}, "label_groups"),
        ([], {"label_groups": ["a"]}, "label_groups"),
        ([], {"label_groups": {"a": []}}, "label_groups"),
        ([], {"label_groups": {"a": {"b": {"threshold": 0.5}}}}, "label_groups"),
        ([], {"label_groups": {str(i): [str(j) for j in range(300)] for i in range(4)}}, "label_groups"),
        (["a"], {"examples": {"text": "x"}}, "examples"),
        (["a"], {"examples": [{"text": "x", "labels": "a"}]}, "examples"),
        (["a"], {"examples": [{"text": "x", "labels": ["a"], "other": 1}]}, "examples"),
        (["a"], {"examples": [{"text": "x " * 600, "labels": ["a"]}]}, "labels"),
    ],
)
def test_groups_and_examples_that_are_not_as_they_must_be_are_refused(ours, labels, given, field):
    with pytest.raises(InputError) as caught:
        ours(["x"], labels, **{name: json.dumps(value) for name, value in given.items()})
    assert caught.value.field == field


def test_examples_are_refused_by_a_model_without_their_token(tmp_path, directory):
    for path in directory.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes().replace(b"<<EXAMPLE>>", b"<<OTHER>>"))
    with pytest.raises(InputError) as caught:
        Extractor("gliclass", tmp_path)(["x"], ["a"], examples=json.dumps(EXAMPLE_TEXTS))
    assert caught.value.field == "examples"


def test_a_model_file_says_whether_classes_exclude_each_other(directory, ours, library):
    single = Extractor("gliclass", directory, Profile(parameters={"classification_type": "single-label"}))
    assert_same(single(TEXTS[:1], LABELS)[0], library(TEXTS[0], LABELS, "single-label"))
    with pytest.raises(AssertionError):
        assert_same(ours(TEXTS[:1], LABELS)[0], library(TEXTS[0], LABELS, "single-label"))
    assert_same(single(TEXTS[:1], LABELS, multi_label=True)[0], library(TEXTS[0], LABELS))


def test_a_long_text_is_read_in_windows(directory, library):
    """No window exceeds the length at which the library truncates; the first equals the truncated text."""
    ours = Extractor("gliclass", directory, max_sequence_length=512)
    long = " ".join(texts(24, seed=4))
    features = ours.processor.encode([ours.processor.frame(part(LABELS)).around(long)])
    ids, lengths = features["input_ids"]
    assert len(lengths) > 2
    assert lengths.max() == 512
    first = library.pipeline.pipe.prepare_inputs([long], LABELS, same_labels=True)["input_ids"][0].tolist()
    assert ids[:512].tolist() == first
    assert_same(ours([long], LABELS[:1], multi_label=False)[0], {LABELS[0]: 1.0})
    assert len(pairs(ours([long], LABELS)[0])) == len(LABELS)


def part(labels):
    return Part("text", [], labels=tuple(map(Label, labels)))


def test_requests_without_valid_labels_are_refused(ours):
    with pytest.raises(InputError, match="labels: label_groups and labels are empty"):
        ours(["x"], [])
    with pytest.raises(InputError, match=r"labels: labels, instruction and examples have \d+ tokens"):
        ours(["x"], [f"label {i}" for i in range(1000)])


def test_markers_in_labels_and_texts_are_characters_of_them(ours):
    found = ours(["a <<LABEL>>b<<SEP>>c"], ["x<<LABEL>>y", "<<SEP>>", "z"])[0]
    assert {label for label, _ in pairs(found)} == {"x<<LABEL>>y", "<<SEP>>", "z"}
    assert pairs(ours(["x"], ["a", "b", "a"])[0]) == pairs(ours(["x"], ["a", "b"])[0])


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"pooling_strategy": "pass"}, "pooling_strategy 'pass' is unknown; supported are first, last, avg"),
        ({"scorer_type": "cross-attn"}, "scorer_type 'cross-attn' is unknown; supported are simple, weighted-dot"),
        ({"architecture_type": "bi-encoder"}, "architecture_type bi-encoder cannot be served"),
        ({"squeeze_layers": True}, "squeeze_layers: models with an average of all layers cannot be served"),
        ({"use_lstm": True}, "use_lstm: models with an LSTM"),
        ({"encoder_layer_id": 3}, "encoder_layer_id: only -1, the last layer, can be served"),
        ({"class_token_index": 5}, "class_token_index is not the id of the token <<LABEL>>"),
    ],
)
def test_unsupported_settings_are_named(tmp_path, directory, config, said):
    with pytest.raises(LoadError, match=said):
        Extractor("gliclass", copy(directory, tmp_path, "config.json", **config))
