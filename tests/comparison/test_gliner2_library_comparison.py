"""Findings of GLiNER2.5's architecture `boundary` equal those of gliner2, which computes them."""

import json

import pytest

from sie_triton.errors import InputError, LoadError
from sie_triton.models.families import family
from sie_triton.models.families.gliner2_library.adapter import load_adapter
from tests.comparison.test_gliner2_comparison import LABELS, TEXTS, asked, assert_same, librarys
from tests.support.extraction import Extractor
from tests.support.gliner2s import save_boundary
from tests.support.stages import spec

NOTHING = {"person": [], "jobs": [], "home": []}
SPANS = {"include_confidence": True, "include_spans": True}


@pytest.fixture(scope="module", params=["bert", "deberta"])
def models(request, tmp_path_factory, minilm_directory):
    root = tmp_path_factory.mktemp("boundary")
    return save_boundary(root, minilm_directory, request.param), Extractor(
        "gliner2_library", root / "model", max_sequence_length=512
    )


@pytest.mark.parametrize(("policy", "threshold"), [("", 0.5), ("flat", 0.4), ("allow", 0.7)])
def test_findings_equal_the_librarys(models, policy, threshold):
    library, ours = models
    counts = []
    options = asked(threshold=threshold, **({"overlap_policy": policy} if policy else {}))
    for text, found in zip(TEXTS, ours(TEXTS, [*LABELS], **options), strict=True):
        expected = library.extract(text, librarys(library), threshold, overlap_policy=policy or None, **SPANS)
        counts.append(assert_same(text, found, {**NOTHING, **expected}))
    assert sum(count for count, *_ in counts) > 20


def test_requests_keep_their_tasks(models):
    requests = [
        (TEXTS[:3], ["person"], {}),
        (TEXTS[2:4], [], {"relation_labels": '{"knows": "is a friend of", "sees": {"threshold": 0.1}}'}),
        (["", " "], ["person"], {"classes": '{"mood": ["good", "bad"]}'}),
    ]
    assert models[1].extract(requests) == [models[1].extract([request])[0] for request in requests]


def test_a_long_text_is_cut_at_a_word(models):
    """The library's results for the words that fit are ours for the whole text."""
    library, ours = models
    long = "Ada of London met größe; " * 1000
    features = ours.features([long], ["person"])
    text, _ = json.loads(features["asked"].values.tobytes())
    assert 0 < features["read"].values[0] <= ours.spec.max_sequence_length
    assert long.startswith(text)
    assert len(text) < len(long)
    found, schema = ours([long], ["person"], threshold=0.3)[0], library.create_schema().entities(["person"])
    expected = library.extract(text, schema, 0.3, **SPANS)["entities"]["person"]
    assert len(found["entities"]) == len(expected) > 1


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"classes": '{"entities": ["a"]}'}, "classes"),
        (
            {
                "output_schema": json.dumps(
                    {"type": "object", "properties": {"a": {"type": "string"}}, "title": "entities"}
                )
            },
            "output_schema",
        ),
        ({}, "labels"),
    ],
)
def test_results_of_one_name_are_refused(models, options, field):
    with pytest.raises(InputError) as caught:
        models[1](["x"], [], **options)
    assert caught.value.field == field


def test_without_the_library_its_environment_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "gliner2", None)
    with pytest.raises(LoadError, match="run sie-triton env add gliner2 gliner2") as told:
        load_adapter(spec(), tmp_path, None)
    assert (told.value.reason, family("gliner2_library").environment) == ("dependency", "gliner2")
