"""Entities equal those of gliner on the same weights."""

import pytest

from sie_triton.models.catalog.recognise import family_in
from tests.support.extraction import Extractor
from tests.support.gliners import num_compared, save_gliner

MODELS = [
    ("bert", "span", {}, "packed"),
    ("deberta", "span", {"hidden_size": 48}, "packed"),
    ("bert", "span", {"span_mode": "marker"}, "packed"),
    ("modernbert", "span", {"max_width": 12, "subtoken_pooling": "last", "embed_ent_token": False}, "packed"),
    ("bert", "token", {"num_rnn_layers": 0}, "packed"),
    ("deberta", "token", {"hidden_size": 48}, "packed"),
]


@pytest.mark.parametrize(("architecture", "kind", "config", "path"), MODELS)
def test_entities_are_those_of_the_library(tmp_path, minilm_directory, architecture, kind, config, path):
    library = save_gliner(tmp_path, minilm_directory, architecture, kind, **config)
    assert family_in(tmp_path / "model")[0] == "gliner"
    ours = Extractor("gliner", tmp_path / "model")
    assert ours.adapter.encoder.path == path
    several = [
        {"threshold": 0.5},
        {"threshold": 0.3, "flat_ner": False},
        {"threshold": 0.6, "multi_label": True},
        {"threshold": 0.45, "flat_ner": False, "multi_label": True},
    ]
    assert num_compared(ours, library, several) > 50
