"""Modules of sentence-transformers: what is shown of them in errors."""

import json

import pytest

from sie_triton.checkpoints.modules import modules_of
from sie_triton.errors import LoadError


@pytest.mark.parametrize("kind", ["\n", "a.b.", "", "x\u202e", "Pooling\x1b[2J", "x" * 5000 + " "])
def test_a_type_that_is_no_class_is_refused_in_one_line(tmp_path, kind):
    (tmp_path / "modules.json").write_text(json.dumps([{"type": kind, "path": ""}]))
    with pytest.raises(LoadError, match=r"modules.json: module 0: .*(is not the name of a class|must be)") as told:
        modules_of(tmp_path)
    assert str(told.value).isprintable()
    assert len(str(told.value)) < 300 + len(str(tmp_path))


def test_a_class_is_known_by_its_last_name(tmp_path):
    (tmp_path / "modules.json").write_text(json.dumps([{"type": "own.code.Größe", "path": ""}]))
    assert modules_of(tmp_path) == [("Größe", tmp_path)]
