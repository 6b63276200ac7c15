"""Labels' descriptions and known entities: JSON can contain lone surrogates, which no tokenizer reads."""

from types import SimpleNamespace

import pytest

from sie_triton.contract.extract import read_entities, read_labels
from sie_triton.errors import InputError

MODEL = SimpleNamespace(extraction=SimpleNamespace(labels="required"))


def test_a_description_with_a_lone_surrogate_is_refused():
    with pytest.raises(InputError, match=r"label_descriptions: 'person': contains a lone surrogate \(\\ud800\)"):
        read_labels(["person"], {"label_descriptions": r'{"person": "a \ud800"}'}, MODEL)


def test_an_entitys_label_with_a_lone_surrogate_is_refused():
    with pytest.raises(InputError, match=r"entities\[0\]: entity 0: label: contains a lone surrogate \(\\udfff\)"):
        read_entities(["Ada"], [r'[{"start": 0, "end": 3, "label": "\udfff"}]'])


def test_pairs_of_surrogates_are_characters():
    (label,) = read_labels(["person"], {"label_descriptions": r'{"person": "\ud83d\ude00"}'}, MODEL)
    assert label.description == "😀"
