"""JSON Schemas are translated to the model's tasks or refused; other parameters in JSON."""

import json
from datetime import date
from enum import Enum
from itertools import pairwise
from typing import Literal

import pytest
from pydantic import BaseModel, Field

from sie_triton.contract import check_parameters
from sie_triton.contract.findings import number_in
from sie_triton.errors import InputError
from sie_triton.models.families.gliner2.output_schema import Field as Asked
from sie_triton.models.families.gliner2.output_schema import Leaf, Record, Structure, read_schema
from sie_triton.models.families.gliner2.request import PARAMETERS, request_of

STRING = {"type": "string"}


def of(**properties):
    return {"type": "object", "properties": properties}


def read(schema):
    return read_schema(json.dumps(schema))


def test_properties_become_fields():
    found = read(
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "order",
            **of(
                buyer={"type": "string", "description": "who pays", "format": "name"},
                total={"type": ["number", "null"]},
                parts={"type": "array", "items": {"type": "integer"}},
                state={"enum": ["open", "Open", 3, None, True, "open"]},
                paid={"type": "boolean"},
                kinds={"type": "array", "items": {"const": "a"}},
            ),
            "required": ["buyer"],
            "additionalProperties": False,
        }
    )
    fields = (
        Asked("buyer", "who pays"),
        Asked("total"),
        Asked("parts"),
        Asked("state", "", ("open", "Open", "3", "true")),
        Asked("paid", "", ("true", "false")),
        Asked("kinds", "", ("a",)),
    )
    assert found.structures == (Structure("order", fields),)
    assert found.record == Record(
        0,
        (
            ("buyer", Leaf(0, 0)),
            ("total", Leaf(0, 1, False, "number")),
            ("parts", Leaf(0, 2, True, "integer")),
            ("state", Leaf(0, 3, False, "", ("open", "Open", 3, True))),
            ("paid", Leaf(0, 4, False, "", (True, False))),
            ("kinds", Leaf(0, 5, True, "", ("a",))),
        ),
    )


def test_objects_become_structures_of_their_own():
    """The form that pydantic generates is supported, too."""
    defs = {
        "Person": of(name=STRING, home={"anyOf": [{"$ref": "#/$defs/Home"}, {"type": "null"}]}),
        "Home": of(city=STRING),
    }
    items = {"$ref": "#/$defs/Home", "description": "where"}
    found = read({**of(owner={"$ref": "#/$defs/Person"}, homes={"type": "array", "items": items}), "$defs": defs})
    city = (Asked("city"),)
    assert found.structures == (
        Structure("object", ()),
        Structure("owner", (Asked("name"),)),
        Structure("home", city),
        Structure("homes", city),
    )
    home = Record(2, (("city", Leaf(2, 0)),))
    homes = Record(3, (("city", Leaf(3, 0)),), True)
    assert found.record == Record(0, (("owner", Record(1, (("name", Leaf(1, 0)), ("home", home)))), ("homes", homes)))


class Wing(Enum):
    NORTH = "north"
    SOUTH = "south"


class Room(BaseModel):
    wing: Wing | None = None
    beds: int | None = Field(None, description="how many")


class Stay(BaseModel):
    """Hotel stay of a guest."""

    guest: str = ""
    arrival: date
    kind: Literal["work", "leisure"]
    first: Room
    rooms: list[Room] = []
    notes: list[str] | None = None


def test_schemas_written_by_pydantic_are_read():
    found = read(Stay.model_json_schema())
    wing, beds = Asked("wing", "", ("north", "south")), Asked("beds", "how many")
    assert found.structures == (
        Structure("Stay", (Asked("guest"), Asked("arrival"), Asked("kind", "", ("work", "leisure")), Asked("notes"))),
        Structure("first", (wing, beds)),
        Structure("rooms", (wing, beds)),
    )


LISTS = {"type": "array", "items": {"type": "array", "items": STRING}}
DEEP = STRING
for _ in range(9):
    DEEP = of(a=DEEP)
REFUSED = [
    ([], "must be a JSON Schema, which is an object"),
    (STRING, "must be a JSON Schema of an object"),
    ({"type": "object"}, "an object needs properties"),
    (of(), "an object needs properties"),
    (of(a=1), "a: must be a JSON Schema, which is an object"),
    (of(a={}), "a: type must be one of object, array, string"),
    (of(a={"type": "date"}), "a: type must be one of"),
    (of(a={"type": ["string", "number"]}), "a: type must be one of"),
    (of(a={"type": {"x": 1}}), "a: type must be one of"),
    (of(a={"type": "string", "pattern": "^a+$"}), "a: 'pattern' is not supported by this model; allowed are const, "),
    (of(a=LISTS), r"a\[\]: lists of lists are not"),
    (of(a={"type": "array"}), r"a\[\]: must be a JSON Schema"),
    (of(a={"type": "array", "items": STRING, "minItems": 2}), "a: 'minItems' is not"),
    (of(a={"type": "array", "items": of(b=of(c=STRING))}), r"a\[\].b: an object inside a list of objects"),
    (of(a={"enum": []}), "a: enum must be a list"),
    (of(a={"enum": "abc"}), "a: enum must be a list"),
    (of(a={"enum": [["b"]]}), "a: enum may hold strings"),
    (of(a={"enum": [float("nan")]}), "a: enum may hold strings"),
    (of(a={"enum": [""]}), "a: enum: must be a string of at most 1000 characters"),
    (of(**{" ": STRING}), "must be a string of at most 1000 characters"),
    (of(__place__=STRING), "__place__ is a reserved name"),
    (of(**{"\ud800": STRING}), "contains a lone surrogate"),
    (of(a={"type": "string", "description": 1}), "a: description must be a string"),
    (of(a={"anyOf": [STRING, {"type": "number"}]}), "a: anyOf must hold exactly one schema other than null .given 2"),
    (of(a={"oneOf": 3}), "a: oneOf must hold exactly one schema"),
    (of(a={"$ref": "https://x.org/schema"}), r"a: \$ref must be #/\$defs/NAME or"),
    (of(a={"$ref": ["#/$defs/a"]}), r"a: \$ref must be"),
    (of(a={"$ref": "#/$defs/none"}), r"a: #/\$defs/none does not exist"),
    ({**of(a={"$ref": "#/$defs/b"}), "$defs": {"b": of(c={"$ref": "#/$defs/b"})}}, r"a\.c: .*b contains itself"),
    ({**of(a={"$ref": "#/$defs/b"}), "$defs": [1]}, "does not exist"),
    (DEEP, r"a\.a\.a.*is nested too deeply; at most 8"),
    (of(**{f"p{i}": STRING for i in range(300)}), "has 300 properties; at most 256 fields"),
    (of(a={"enum": list(range(2000))}), "a: has one choice too many"),
]


@pytest.mark.parametrize(("schema", "said"), REFUSED, ids=range(len(REFUSED)))
def test_unsupported_schema_parts_are_refused_with_their_path(schema, said):
    with pytest.raises(InputError, match=rf"^parameter output_schema: (?s:.*){said}") as exc:
        read(schema)
    assert len(str(exc.value)) < 400


@pytest.mark.timeout(60)
def test_schemas_that_grow_are_refused_before_they_have():
    """Each definition references the next one twenty times."""
    names = [f"d{i}" for i in range(7)]
    inner = {name: of(**{f"p{i}": {"$ref": f"#/$defs/{after}"} for i in range(20)}) for name, after in pairwise(names)}
    schema = {**of(a={"$ref": "#/$defs/d0"}), "$defs": {**inner, "d6": STRING}}
    with pytest.raises(InputError, match="at most 256"):
        read(schema)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text",
    ["{", '{"a":' * 5000, "[" * 60_000, '{"anyOf":[' * 1000 + "1" + "]}" * 1000, "1" * 10_000, "nul", '"\\ud800"'],
)
def test_an_invalid_schema_is_refused_quickly(text):
    with pytest.raises(InputError, match=r"^parameter output_schema:"):
        read_schema(text)


def test_too_much_json_is_refused_unread():
    for name in ("output_schema", "classes", "relation_labels"):
        with pytest.raises(InputError, match=f"parameter {name}: .*give a string of at most 65536 characters"):
            check_parameters({name: "x" * 1_000_000}, {parameter.name: parameter for parameter in PARAMETERS})


def test_relations_and_classes():
    request = request_of(
        {
            "relation_labels": ' works for,born in , ,works "x"',
            "classes": '{"mood": ["good", "bad", "good"], "t": {"labels": {"a": "A", "b": null}, "multi_label": true}}',
        }
    )
    assert [label.name for label in request.relations] == ["works for", "born in", 'works "x"']
    mood, topics = request.tasks
    assert ([label.name for label in mood.labels], mood.multi_label, mood.threshold) == (["good", "bad"], False, None)
    assert ([label.description for label in topics.labels], topics.multi_label) == (["A", ""], True)
    described = request_of({"relation_labels": '{"a": "b", "c": {"threshold": 0.25}}'}).relations
    assert [(label.name, label.description, label.threshold) for label in described] == [
        ("a", "b", None),
        ("c", "", 0.25),
    ]
    assert request_of({"relation_labels": '["a, b"]'}).relations[0].name == "a, b"


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("relation_labels", "[1]", r"\[0\]: must be a string"),
        ("relation_labels", ",", "must be a list of at least one name"),
        ("relation_labels", "[", "is not valid JSON"),
        ("relation_labels", '{"a": {"threshold": 2}}', "a: threshold must be a number from 0 to 1"),
        ("relation_labels", '{"a": {"treshold": 1}}', "a: 'treshold' is unknown here; allowed are description,"),
        ("relation_labels", json.dumps([str(i) for i in range(300)]), "has 300 entries; at most 256"),
        ("classes", "good, bad", "is not valid JSON"),
        ("classes", '["a"]', "must be a JSON object: task → list of labels"),
        ("classes", "{}", "must be a JSON object"),
        ("classes", '{"a": []}', "a: labels: must be a list of at least one name"),
        ("classes", '{"a": "b"}', "a: must be a JSON object with labels, multi_label, threshold"),
        ("classes", '{"a": {"labels": ["b"], "multi_label": 1}}', "a: multi_label must be true or false"),
        ("classes", '{"a": {"labels": ["b"], "threshold": true}}', "a: threshold must be a number from 0 to 1"),
        ("classes", '{"a": {"labels": {"b": {"threshold": 0.5}}}}', "'threshold' is unknown here"),
        ("classes", json.dumps({str(i): [str(j) for j in range(300)] for i in range(4)}), "has 1200 labels"),
    ],
)
def test_an_invalid_parameter_is_named(name, given, said):
    with pytest.raises(InputError, match=rf"^parameter {name}: .*{said}|^parameter {name}{said}"):
        request_of({name: given})


def test_a_name_stands_once_in_data():
    with pytest.raises(InputError, match="parameter classes: 'mood' is also a property of output_schema"):
        request_of({"output_schema": json.dumps(of(mood=STRING)), "classes": '{"mood": ["good", "bad"]}'})


@pytest.mark.parametrize(
    ("words", "kind", "found"),
    [
        ("1815", "integer", 1815),
        ("-3", "number", -3),
        ("1,234,567", "integer", 1234567),
        ("0.50", "number", 0.5),
        ("4.0", "integer", 4),
        ("4.0", "number", 4.0),
        ("4.5", "integer", "4.5"),
        ("12,34", "number", "12,34"),
        ("1815.", "number", "1815."),
        ("$5", "number", "$5"),
        ("1e400", "number", "1e400"),
        ("9" * 5000, "integer", "9" * 5000),
        ("١٢", "integer", "١٢"),
        ("", "number", ""),
        ("nan", "number", "nan"),
    ],
)
def test_numeric_words_become_numbers(words, kind, found):
    told = number_in(words, kind)
    assert (told, type(told)) == (found, type(found))
