"""Results of two windows are merged; prompts keep their case with a case-sensitive tokenizer."""

import json

import numpy as np
import pytest

from sie_triton.contract.tensors import INPUT_IDS
from sie_triton.models.families.gliner2.findings import findings
from sie_triton.models.families.gliner2.tensors import CHOICE, CHOICE_TOKENS, CLASS_SCORES, PLACE_SCORES, PLACES
from tests.support.copies import copy
from tests.support.extraction import Extractor
from tests.support.gliner2s import save_gliner2

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "kind": {"enum": ["a", "b"]},
        "jobs": {"type": "array", "items": {"type": "object", "properties": {"firm": {"type": "string"}}}},
    },
}
CLASSES = {"mood": ["good", "bad"], "topics": {"labels": ["x", "y", "z"], "multi_label": True, "threshold": 0.5}}


def piece(places, classes=(0.5, 0.5, 0, 0, 0)):
    """Return the results of a window; `places` are task, instance, field, start, end and score."""
    rows = np.array([each[:5] for each in places], np.int32).reshape(-1, 5)
    scores = np.array([each[5] for each in places], np.float32)
    return {PLACES.name: rows, PLACE_SCORES.name: scores, CLASS_SCORES.name: np.array(classes, np.float32)}


def test_the_most_confident_window_wins():
    options = {"output_schema": json.dumps(SCHEMA), "classes": json.dumps(CLASSES), "relation_labels": "knows"}
    first = piece(
        [
            *((1, 0, 0, 0, 3, 0.6), (1, 0, 1, 0, CHOICE, 0.8)),  # name, kind
            *((2, 0, 0, 5, 9, 0.7), (2, 2, 0, 10, 12, 0.7)),  # jobs
            *((3, 0, 0, 5, 9, 0.9), (3, 0, 1, 10, 12, 0.6)),  # knows
            *((0, 0, 1, 5, 9, 0.6), (0, 0, 0, 5, 9, 0.9)),
        ],
        (0.6, 0.4, 0.1, 0.7, 0.2),
    )
    second = piece(
        [
            *((1, 1, 0, 20, 22, 0.9), (1, 1, 1, 1, CHOICE, 0.7)),
            *((2, 1, 0, 10, 12, 0.8), (2, 3, 0, 20, 20, 0.8)),  # the last is the appended full stop
            *((3, 1, 0, 5, 9, 0.9), (3, 1, 1, 10, 12, 0.8)),
            *((3, 2, 0, 5, 9, 0.9), (3, 2, 1, 20, 20, 0.9)),
            *((0, 0, 1, 4, 9, 0.8),),
        ],
        (0.1, 0.9, 0.6, 0.5, 0.3),
    )
    found = findings([first, second], options).to_response("0123456789" * 3, ["l", "m"])
    told = [(each["label"], each["start"], each["end"]) for each in found["entities"]]
    assert told == [("m", 4, 9), ("l", 5, 9)]
    assert [(each["head_start"], each["tail_start"]) for each in found["relations"]] == [(5, 10)]
    assert found["relations"][0]["score"] == pytest.approx(0.8)
    classes = [(each["label"], each["score"]) for each in found["classifications"]]
    assert classes == [("bad", pytest.approx(0.9)), ("x", pytest.approx(0.6)), ("y", pytest.approx(0.7))]
    assert found["data"] == {
        "name": "01",
        "kind": "a",
        "jobs": [{"firm": "5678"}, {"firm": "01"}],
        "mood": "bad",
        "topics": ["x", "y"],
    }


def test_a_task_without_a_threshold_uses_the_requests_threshold():
    options = {"classes": '{"t": {"labels": ["x", "y"], "multi_label": true}}', "threshold": 0.2}
    assert findings([piece([], (0.3, 0.1))], options).data == {"t": ["x"]}
    assert findings([piece([], (0.3, 0.1))], {**options, "threshold": 0.9}).data == {"t": ["x"]}
    assert findings([piece([], (0.3, 0.25))], options).data == {"t": ["x", "y"]}


def test_nothing_found_is_null_or_an_empty_list():
    found = findings([piece([], ())], {"output_schema": json.dumps(SCHEMA)})
    assert found.data == {"name": None, "kind": None, "jobs": []}
    assert findings([piece([], ())], {}).to_response("text", ["l"])["data"] == {}


def test_tokens_are_those_of_the_library(tmp_path, minilm_directory):
    """The text is lowercased, the prompt is not. Choices equal except for case share the first one's token."""
    cased = copy(minilm_directory, tmp_path / "cased", "tokenizer.json", normalizer__lowercase=False)
    library = save_gliner2(tmp_path, cased)
    fields = {"mood": ["good", "Bad"], "other": ["Good", "bad", "so"]}
    schema = library.create_schema().structure("object")
    for name, choices in fields.items():
        schema = schema.field(name, dtype="str", choices=choices)
    schema = schema.entities({"Person": "A human", "place": {}})
    text = "Ada LOVELACE, born in London"
    expected = library.processor.collate_fn_inference([(text, schema.build())])
    ours = Extractor("gliner2", tmp_path / "model")
    properties = {name: {"enum": choices} for name, choices in fields.items()}
    options = {
        "output_schema": json.dumps({"type": "object", "properties": properties}),
        "label_descriptions": '{"Person": "A human"}',
    }
    features = ours.features([text], ["Person", "place"], **options)
    assert features[INPUT_IDS.name].values.tolist() == expected.input_ids[0].tolist()
    prefix, places = expected.text_tokens[0], expected.text_word_indices[0].tolist()
    first = {word: places[library._find_choice_idx(word, prefix)] for choices in fields.values() for word in choices}
    assert first["Good"] == first["good"]
    told = features[CHOICE_TOKENS.name].values.tolist()
    assert told == [first[word] for choices in fields.values() for word in choices]
