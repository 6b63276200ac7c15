"""Classes equal those of transformers' zero-shot-classification pipeline on the same weights."""

import pytest
import transformers

from benchmarks.texts import texts
from sie_triton.checkpoints.classifier import ClassifierFiles
from sie_triton.errors import InputError, LoadError
from sie_triton.models.catalog.recognise import family_in
from sie_triton.models.families.nli_classification import judgement
from tests.support.classifiers import TEXTS, pairs, save_classifier
from tests.support.extraction import Extractor

LABELS = ["phones", "plants", "größe", "日", "a much longer label, of several words", "numbers"]
TEMPLATE = "This text is about {}."
THREE, REVERSED = ("contradiction", "neutral", "entailment"), ("entailment", "neutral", "contradiction")

MODELS = [
    ("bert", THREE, 10),
    ("bart", THREE, 10),
    ("deberta", ("entailment", "not_entailment"), 10),
    ("distilbert", ("CONTRADICTION", "ENTAILMENT"), 10),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory, minilm_directory):
    return save_classifier(tmp_path_factory.mktemp("nli"), minilm_directory, labels=REVERSED)


@pytest.fixture(scope="module")
def ours(directory):
    return Extractor("nli_classification", directory)


def assert_same(found, theirs):
    """`theirs`: a label and a score each, in order."""
    theirs = list(theirs)
    assert [label for label, _ in pairs(found)] == [label for label, _ in theirs]
    assert [score for _, score in pairs(found)] == pytest.approx([score for _, score in theirs], abs=1e-4)


def in_pipeline(library, text, labels, **options):
    """The pipeline refuses an empty text, of which a space makes the same tokens."""
    (found,) = library([text or " "], candidate_labels=labels, **options)
    return zip(found["labels"], found["scores"], strict=True)


@pytest.mark.parametrize(("architecture", "labels", "spread"), MODELS)
def test_classes_are_those_of_the_library(tmp_path, minilm_directory, architecture, labels, spread):
    directory = save_classifier(tmp_path, minilm_directory, architecture, labels=labels, spread=spread)
    assert family_in(directory)[0] == "nli_classification"
    ours = Extractor("nli_classification", directory)
    assert ours.adapter.encoder.path == ("padded" if architecture == "bart" else "packed")
    library = transformers.pipeline("zero-shot-classification", model=str(directory), device="cpu")
    everything, differences = [*TEXTS, *texts(1, seed=3)], []
    for asked, options in [
        (LABELS, {"multi_label": False, "hypothesis_template": TEMPLATE}),
        (LABELS, {"multi_label": True}),
        (LABELS[:1], {"multi_label": False}),
    ]:
        together = ours(everything, asked, **options)
        for text, found in zip(everything, together, strict=True):
            theirs = list(in_pipeline(library, text, asked, **options))
            assert_same(found, theirs)
            differences.append(theirs[0][1] - theirs[-1][1])
        assert_same(ours([text], asked, **options)[0], theirs)
    assert 0.05 < max(differences) < 0.99


def test_requests_of_different_labels_share_a_forward_pass(ours):
    requests = [
        (TEXTS[:2], LABELS[:3], {}),
        (TEXTS[2:], LABELS[2:], {"multi_label": True, "threshold": 0.3}),
        (TEXTS[:1], LABELS[:1], {"hypothesis_template": TEMPLATE}),
    ]
    for found, (some, labels, options) in zip(ours.extract(requests), requests, strict=True):
        for each, text in zip(found, some, strict=True):
            assert_same(each, pairs(ours([text], labels, **options)[0]))


def test_label_names_take_precedence_over_their_order(tmp_path, minilm_directory):
    """The pipeline would take neutral for contradiction here."""
    files = ClassifierFiles.read(
        save_classifier(tmp_path, minilm_directory, labels=("neutral", "entailment", "contradiction"))
    )
    assert judgement(files) == (2, 1)


def test_a_long_text_is_read_in_windows(ours, directory):
    """Independent classes get the maximum over windows, a distribution gets the mean."""
    long = " ".join(texts(24, seed=4))
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    ids = tokenizer(long, add_special_tokens=False)["input_ids"]
    longest = max(
        len(tokenizer(TEMPLATE.replace("{}", each), add_special_tokens=False)["input_ids"]) for each in LABELS
    )
    room = 512 - 3 - longest
    cuts = [ids[start : start + room] for start in range(0, max(1, len(ids) - 64), room - 64)]
    assert len(cuts) > 2
    spans = [tokenizer.decode(cut) for cut in cuts]
    for multi in (False, True):
        options = {"multi_label": multi, "hypothesis_template": TEMPLATE}
        whole = dict(pairs(ours([long], LABELS, **options)[0]))
        parts = [dict(pairs(each)) for each in ours(spans, LABELS, **options)]
        merge = max if multi else lambda scores: sum(scores) / len(scores)
        assert whole == pytest.approx({label: merge([part[label] for part in parts]) for label in LABELS}, abs=2e-3)


def test_requests_without_valid_labels_are_refused(ours):
    with pytest.raises(InputError, match=r"labels: is empty; send the labels that .* must look for"):
        ours(["x"], [])
    with pytest.raises(InputError, match=r"hypothesis_template: must contain \{\} in place of the label \(given"):
        ours(["x"], ["a"], hypothesis_template="no")
    with pytest.raises(InputError, match=r"instruction: this model does not read one"):
        ours(["x"], ["a"], instruction="say")
    with pytest.raises(InputError, match=r"labels: the hypothesis of 'x x x .* has \d+ .* at most 254 with"):
        ours(["x"], ["a", "x " * 480])
    with pytest.raises(InputError, match=r"labels: 1000 labels with 101 texts make 101000 pairs; at most"):
        ours(["x"] * 101, [f"label {i}" for i in range(1000)])
    with pytest.raises(InputError, match=r"text: 40000 tokens, read with each of 1000 labels, make about "):
        ours(["word " * 40000], [f"label {i}" for i in range(1000)])


def test_braces_in_labels_are_characters(ours):
    found = ours(["x"], ["{}", "{0.__class__}", "{label}"], hypothesis_template="{{}} is {}")[0]
    assert {label for label, _ in pairs(found)} == {"{}", "{0.__class__}", "{label}"}


def test_a_classifier_that_infers_nothing_is_refused(tmp_path, minilm_directory):
    directory = save_classifier(tmp_path, minilm_directory, labels=("good", "bad"))
    with pytest.raises(LoadError, match=r"id2label: none of its labels begins with entail \(its labels are good,"):
        Extractor("nli_classification", directory)
