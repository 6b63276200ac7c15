"""Modules of sentence-transformers: what is shown of them in errors."""

import json

import pytest

from sie_triton.checkpoints.library_keys import class_of
from sie_triton.checkpoints.modules import DenseLayer, check_widths, modules_of
from sie_triton.errors import LoadError

FOREIGN = ["\n", "a.b.", "", "x\u202e", "Pooling\x1b[2J", "x" * 5000 + " ", "Pooling", "custom_st.Pooling"]
FOREIGN += [
    "sentence_transformers.models.other.Pooling",
    "sentence_transformers.Pooling",
    "own.sentence_transformers.models.Pooling",
]


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_type_that_is_not_the_librarys_is_refused_in_one_line(tmp_path, kind):
    write(tmp_path, [{"type": kind, "path": ""}])
    with pytest.raises(LoadError, match=r"modules.json: module 0: ") as told:
        modules_of(tmp_path)
    assert told.value.reason == "unsupported"
    assert str(told.value).isprintable()
    assert len(str(told.value)) < 300 + len(str(tmp_path))


@pytest.mark.parametrize(
    ("types", "name"),
    [
        ("sentence_transformers.models.Pooling", "Pooling"),
        ("sentence_transformers.models.Pooling.Pooling", "Pooling"),
        ("sentence_transformers.sentence_transformer.modules.pooling.Pooling", "Pooling"),
        ("sentence_transformers.sparse_encoder.models.MLMTransformer.MLMTransformer", "MLMTransformer"),
        ("sentence_transformers.models.Asym", "Router"),
        ("pylate.models.Dense.Dense", "Dense"),
    ],
)
def test_a_class_is_known_by_each_of_its_dotted_names(types, name):
    assert class_of(types) == name


def write(directory, modules):
    (directory / "modules.json").write_text(json.dumps(modules))


def routed(directory, parameters, structure):
    write(directory, [{"type": "sentence_transformers.models.Router", "path": ""}])
    types = {each: f"sentence_transformers.models.{each}" for each in ("Pooling", "Dense", "Normalize")}
    router = {"types": types, "structure": structure, "parameters": parameters}
    (directory / "router_config.json").write_text(json.dumps(router))
    return [[kind for kind, _ in modules_of(directory, task)] for task in ("query", "document", None)]


BOTH = {"query": ["Pooling"], "document": ["Dense"]}


@pytest.mark.parametrize(
    ("parameters", "structure", "kinds"),
    [
        ({"default_route": "document"}, BOTH, ["Pooling", "Dense", "Dense"]),
        ({"default_route": "query"}, BOTH, ["Pooling", "Dense", "Pooling"]),
        ({}, BOTH, ["Pooling", "Dense", "Pooling"]),
        ({"allow_empty_key": False}, BOTH, ["Pooling", "Dense", None]),
        ({}, {"text": ["Normalize"], "image": ["Dense"]}, ["Normalize", "Normalize", "Normalize"]),
        (
            {"route_mappings": {"('query', 'text')": "b", "(None, None)": "a", "[]": "b", "([],)": "b", "(" * 90: "b"}},
            {"a": ["Dense"], "b": ["Pooling"]},
            ["Pooling", "Dense", "Dense"],
        ),
    ],
)
def test_a_router_sends_texts_where_the_library_does(tmp_path, parameters, structure, kinds):
    assert routed(tmp_path, parameters, structure) == [[kind] if kind else [] for kind in kinds]


def test_more_modules_than_any_model_has_are_refused_in_a_short_line(tmp_path):
    write(tmp_path, [{"type": "sentence_transformers.models.Pooling", "path": ""}] * 21)
    with pytest.raises(LoadError, match=r"modules.json: must be a list of 1 to 20 modules"):
        modules_of(tmp_path)
    with pytest.raises(LoadError, match=r"router_config.json: structure: 'document': .*more than 20"):
        routed(tmp_path, {}, {"document": ["Pooling"] * 21})


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
