"""Decisions equal those of gliner2's classification on the same weights."""

import json

import pytest
from gliner2.classification import ClassificationSchema, Classifier

from benchmarks.texts import texts
from sie_triton.errors import InputError
from tests.support.classifiers import pairs
from tests.support.extraction import Extractor
from tests.support.gliner2s import save_gliner2

TEXTS = ["I was charged twice, please help!", "naïve 😀 日本語 — größe e-mail", "one", *texts(3, seed=3)]
LABELS = ["billing", "größe", "bug report", "日"]
GROUPS = {"urgency": ["low", "high"], "intent": {"refund": "wants money back", "question": "", "praise": ""}}


@pytest.fixture(scope="module", params=["bert", "deberta"])
def models(request, tmp_path_factory, minilm_directory):
    root = tmp_path_factory.mktemp("decide")
    library = save_gliner2(root, minilm_directory, request.param, scale=4.0)
    return Classifier(library), Extractor("gliner2_decide", root / "model")


def librarys(library, text, multi, **questions):
    """Return the probability of each answer, by question; the library reads a text with a full stop at its end."""
    schema = ClassificationSchema()
    for name, labels in questions.items():
        described = {label: told or None for label, told in labels.items()} if isinstance(labels, dict) else labels
        schema = (schema.multi if multi else schema.single)(name, described)
    scores = library.score(text if text.endswith((".", "!", "?")) else f"{text}.", schema)
    return {name: {label: scores.probability(name, label) for label in labels} for name, labels in questions.items()}


@pytest.mark.parametrize("multi", [False, True])
def test_labels_answer_one_question(models, multi):
    library, ours = models
    kind = "multi-label" if multi else "single-label"
    asked = {"classification_type": kind, "classification_task": "topic"}
    for text, together in zip(TEXTS, ours(TEXTS, LABELS, **asked), strict=True):
        theirs = librarys(library, text, multi, topic=LABELS)["topic"]
        for found in (together, ours([text], LABELS, **asked)[0]):
            assert dict(pairs(found)) == pytest.approx(theirs, abs=1e-4)
        scores = [score for _, score in pairs(found)]
        assert scores == sorted(scores, reverse=True)
    assert max(theirs.values()) - min(theirs.values()) > 0.01


@pytest.mark.parametrize("multi", [False, True])
def test_groups_are_questions_in_one_pass(models, multi):
    library, ours = models
    for text in TEXTS:
        (found,) = ours([text], label_groups=json.dumps(GROUPS), multi_label=multi, threshold=0.4)
        theirs = librarys(library, text, multi, **GROUPS)
        flat = {f"{group}.{label}": each for group, labels in theirs.items() for label, each in labels.items()}
        assert dict(pairs(found)) == pytest.approx(
            {name: score for name, score in flat.items() if score >= 0.4}, abs=1e-4
        )
        for group, labels in theirs.items():
            kept = [label for label, score in labels.items() if score >= 0.4]
            best = max(labels, key=labels.get)
            assert found["data"][group] == (sorted(kept, key=lambda each: -labels[each]) if multi else best)


def test_questions_of_requests_share_a_pass(models):
    _, ours = models
    requests = [
        (TEXTS[:2], LABELS, {}),
        (TEXTS[2:], [], {"label_groups": json.dumps(GROUPS)}),
        (TEXTS[:1], LABELS[:1], {"multi_label": True}),
    ]
    alone = [ours.extract([request])[0] for request in requests]
    for together, each in zip(ours.extract(requests), alone, strict=True):
        for found, expected in zip(together, each, strict=True):
            assert dict(pairs(found)) == pytest.approx(dict(pairs(expected)), abs=1e-5)


def test_a_request_without_a_question_is_refused(models):
    for labels, options, field in (([], {}, "labels"), (["a"], {"label_groups": '{"a": ["b"]}'}, "label_groups")):
        with pytest.raises(InputError) as caught:
            models[1](["x"], labels, **options)
        assert caught.value.field == field
