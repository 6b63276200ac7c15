"""Entities equal those of gliner on the same weights."""

import pytest

from sie_triton.catalog.recognise import family_in
from tests.extraction import Extractor
from tests.gliners import LABELS, TEXTS, assert_same, save_gliner

MODELS = [
    ("bert", "span", {}, "packed"),
    ("bert", "span", {"num_rnn_layers": 0, "embed_ent_token": False}, "packed"),
    ("deberta", "span", {"hidden_size": 48}, "packed"),
    ("modernbert", "span", {"max_width": 12, "subtoken_pooling": "last"}, "packed"),
    ("bert", "token", {"num_rnn_layers": 0}, "packed"),
    ("deberta", "token", {"hidden_size": 48}, "packed"),
]


@pytest.mark.parametrize(("architecture", "kind", "config", "path"), MODELS)
def test_entities_are_those_of_the_library(tmp_path, minilm_directory, architecture, kind, config, path):
    library = save_gliner(tmp_path, minilm_directory, architecture, kind, **config)
    assert family_in(tmp_path / "model")[0] == "gliner"
    ours = Extractor("gliner", tmp_path / "model")
    assert ours.adapter.encoder.path == path
    num_found = 0
    for options in [
        {"threshold": 0.5},
        {"threshold": 0.3, "flat_ner": False},
        {"threshold": 0.6, "multi_label": True},
        {"threshold": 0.45, "flat_ner": False, "multi_label": True},
    ]:
        expected = library.inference(TEXTS, list(LABELS), **{"flat_ner": True, "multi_label": False, **options})
        together = ours(TEXTS, LABELS, **options)
        for text, found, theirs in zip(TEXTS, together, expected, strict=True):
            assert_same(found, theirs)
            assert_same(ours([text], LABELS, **options)[0], theirs)
            num_found += len(theirs)
    assert num_found > 50
