"""Modules of sentence-transformers: what is shown of them in errors."""

import json

import pytest

from sie_triton.checkpoints.modules import DenseLayer, check_widths, modules_of
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


def test_more_modules_than_any_model_has_are_refused_in_a_short_line(tmp_path):
    (tmp_path / "modules.json").write_text(json.dumps([{"type": "Pooling", "path": ""}] * 21))
    with pytest.raises(LoadError, match=r"modules.json: must be a list of 1 to 20 modules"):
        modules_of(tmp_path)
    (tmp_path / "modules.json").write_text(json.dumps([{"type": "Router", "path": ""}]))
    router = {"types": {"": "Pooling"}, "structure": {"document": [""] * 21}}
    (tmp_path / "router_config.json").write_text(json.dumps(router))
    with pytest.raises(LoadError, match=r"router_config.json: structure: document: .*more than 20"):
        modules_of(tmp_path)


def test_layers_must_fit_each_other_and_the_states_before_them(tmp_path):
    first, second = (
        DenseLayer(tmp_path / name, *sizes, True, "") for name, sizes in {"a": (8, 4), "b": (4, 2)}.items()
    )
    check_widths([first, second], 8)
    check_widths([], 8)
    with pytest.raises(LoadError, match="a: in_features is 8, but the modules before it give 16"):
        check_widths([first, second], 16)
    with pytest.raises(LoadError, match="b: in_features is 4, but the modules before it give 8"):
        check_widths([second, first], 8)
