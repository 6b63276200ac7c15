"""A client's JSON Schema → structures that the model extracts, and the layout of `data`.

A structure is flat: a name and fields. The model counts the instances of a structure in a text. The value of a field is
words of the text, or one of several choices. So each object becomes a structure, and so does each object inside it.
Objects in a list cannot contain other objects, since the model does not say which belongs to which.

    string                   words of the text
    number, integer          words, converted to a number if they are one, else left as they are
    boolean, enum, const     one of these values
    array of one of those    all that are found, best first
    object                   the first that is found; array of objects: all of them

Every property is in `data`: null, or an empty list, if nothing was found. References to definitions in the same schema
are followed. Of a union with null, the other schema is used. A keyword that the model cannot honour (pattern, minimum,
minItems …) is refused.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from sie_triton.contract.parameters import parsed_json
from sie_triton.errors import InputError
from sie_triton.models.families.gliner2.checked import LIMITS, description_of, name_of

PARAMETER = "output_schema"
WHERE = f"parameter {PARAMETER}"


# Keywords that do not restrict the words. `default` and `required` have no effect: what is not found is null.
ANNOTATIONS = frozenset(
    (
        *("type", "title", "description", "default", "examples", "format", "deprecated", "readOnly", "writeOnly"),
        *("required", "additionalProperties", "$schema", "$id", "$comment", "$defs", "definitions"),
    )
)
NUMBERS: Mapping[str, Literal["number", "integer"]] = {"number": "number", "integer": "integer"}
TYPES = ("object", "array", "string", "boolean", *NUMBERS)
REFERENCES = ("#/$defs/", "#/definitions/")


class Field(NamedTuple):
    name: str
    description: str = ""
    choices: tuple[str, ...] = ()


class Structure(NamedTuple):
    name: str
    fields: tuple[Field, ...]


class Leaf(NamedTuple):
    """A property that is a field of a structure."""

    structure: int
    field: int
    is_list: bool = False
    kind: Literal["", "number", "integer"] = ""  # to which its words are converted
    values: tuple[Any, ...] = ()  # JSON values of its choices


class Record(NamedTuple):
    """An object or, with `is_list`, all instances of a structure."""

    structure: int
    properties: "tuple[tuple[str, Leaf | Record], ...]"
    is_list: bool = False


class Schema(NamedTuple):
    structures: tuple[Structure, ...]
    record: Record


def read_schema(text: str) -> Schema:
    """Read a schema; raise InputError naming the property that is not supported, and what is."""
    reader = _Reader(parsed_json(text, WHERE))
    return Schema(*reader.read())


class _Place(NamedTuple):
    """A position in the schema: path, depth, the references followed, and whether it is inside a list."""

    path: str = ""
    depth: int = 0
    references: tuple[str, ...] = ()
    in_list: bool = False

    def below(self, name: str) -> "_Place":
        return self._replace(path=f"{self.path}.{name[:80]}" if self.path else name[:80], depth=self.depth + 1)

    def wrong(self, what: str) -> InputError:
        return InputError.at(WHERE, f"{self.path + ': ' if self.path else ''}{what}")


class _Reader:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._structures: list[Structure | None] = []
        self._num_fields = self._num_choices = 0

    def read(self) -> tuple[tuple[Structure, ...], Record]:
        schema, place = self._resolved(self._root, _Place())
        if _type_of(schema, place) != "object":
            raise place.wrong('must be a JSON Schema of an object: {"type": "object", "properties": {…}}')
        name = name_of(schema.get("title", "object"), f"{WHERE}: title")
        record = self._record(schema, name, place)
        return tuple(each for each in self._structures if each is not None), record

    def _record(self, schema: Mapping[str, Any], name: str, place: _Place) -> Record:
        _check_keys(schema, {"properties"}, place)
        properties = schema.get("properties")
        if not isinstance(properties, dict) or not properties:
            raise place.wrong("an object needs properties; name what to extract")
        if len(properties) > LIMITS.max_fields:
            raise place.wrong(f"has {len(properties)} properties; at most {LIMITS.max_fields} fields are allowed")
        number = len(self._structures)
        self._structures.append(None)
        fields: list[Field] = []
        found = [
            (name_of(key, f"{WHERE}: {place.below(key).path}"), self._property(value, key, number, fields, place))
            for key, value in properties.items()
        ]
        self._structures[number] = Structure(name, tuple(fields))
        return Record(number, tuple(found), place.in_list)

    def _property(self, schema: Any, name: str, structure: int, fields: list[Field], place: _Place) -> Leaf | Record:
        place = place.below(name)
        if place.depth > LIMITS.max_depth:
            raise place.wrong(f"is nested too deeply; at most {LIMITS.max_depth} levels are allowed")
        given, (schema, inner) = schema, self._resolved(schema, place)
        kind, is_list = _type_of(schema, inner), False
        description = description_of(_first("description", given, schema), f"{WHERE}: {place.path}")
        if kind == "array":
            _check_keys(schema, {"items"}, inner)
            inner = inner._replace(path=f"{inner.path}[]", depth=inner.depth + 1)
            schema, inner = self._resolved(schema.get("items"), inner)
            kind, is_list = _type_of(schema, inner), True
            if kind == "array":
                raise inner.wrong("lists of lists are not supported; a list holds strings, numbers, choices or objects")
        if kind == "object":
            if place.in_list:
                raise inner.wrong(
                    "an object inside a list of objects is not supported; move its properties to the outer object"
                )
            return self._record(schema, name, inner._replace(in_list=is_list))
        _check_keys(schema, {"enum", "const"}, inner)
        values = self._values(schema, kind, inner)
        fields.append(Field(name, description, tuple(map(_written, values))))
        self._count(len(values), inner)
        return Leaf(structure, len(fields) - 1, is_list, NUMBERS.get(kind, ""), values)

    def _values(self, schema: Mapping[str, Any], kind: str, place: _Place) -> tuple[Any, ...]:
        """Return the values that a field may have; empty allows any words."""
        if "const" not in schema and "enum" not in schema:
            return (True, False) if kind == "boolean" else ()
        given = [schema["const"]] if "const" in schema else schema["enum"]
        if not isinstance(given, list) or not given:
            raise place.wrong("enum must be a list of at least one value")
        for value in given:
            if not isinstance(value, str | int | float | None) or (
                isinstance(value, float) and not math.isfinite(value)
            ):
                raise place.wrong("enum may hold strings, numbers, true, false and null")
        values = {_written(value): value for value in given if value is not None}
        for written in values:
            name_of(written, f"{WHERE}: {place.path}: enum")
        return tuple(values.values())

    def _count(self, num_choices: int, place: _Place) -> None:
        self._num_fields += 1
        self._num_choices += num_choices
        if self._num_fields > LIMITS.max_fields:
            raise place.wrong(f"is one field too many; at most {LIMITS.max_fields} are allowed")
        if self._num_choices > LIMITS.max_choices:
            raise place.wrong(
                f"has one choice too many; the fields of a request may have at most {LIMITS.max_choices} together"
            )

    def _resolved(self, schema: Any, place: _Place) -> tuple[Mapping[str, Any], _Place]:
        """Follow references and unions with null; return the schema and its position."""
        for _ in range(LIMITS.max_depth):
            if not isinstance(schema, dict):
                raise place.wrong("must be a JSON Schema, which is an object")
            union = next((key for key in ("anyOf", "oneOf") if key in schema), None)
            if "$ref" in schema:
                schema, place = self._referred(schema["$ref"], place)
            elif union:
                schema = _one_of(schema[union], union, place)
            else:
                return schema, place
        raise place.wrong("has too many references in a row; write out the schema")

    def _referred(self, reference: Any, place: _Place) -> tuple[Any, _Place]:
        start = next((each for each in REFERENCES if isinstance(reference, str) and reference.startswith(each)), None)
        if start is None:
            raise place.wrong(f"$ref must be {' or '.join(each + 'NAME' for each in REFERENCES)} in the same schema")
        if reference in place.references:
            raise place.wrong(f"{reference[:80]} contains itself; recursive schemas are not supported")
        held = self._root.get(start[2:-1])
        name = reference.removeprefix(start)
        if not isinstance(held, dict) or name not in held:
            raise place.wrong(f"{reference[:80]} does not exist")
        return held[name], place._replace(references=(*place.references, reference))


def _one_of(given: Any, key: str, place: _Place) -> Any:
    real = [each for each in given if each != {"type": "null"}] if isinstance(given, list) else []
    if len(real) != 1:
        raise place.wrong(f"{key} must hold exactly one schema other than null (given {len(real)})")
    return real[0]


def _type_of(schema: Mapping[str, Any], place: _Place) -> str:
    """Return the type that is not null; string if the schema has only enum or const."""
    given = schema.get("type", "string" if "enum" in schema or "const" in schema else None)
    real = [each for each in given if each != "null"] if isinstance(given, list) else [given]
    if len(real) != 1 or real[0] not in TYPES:
        raise place.wrong(f"type must be one of {', '.join(TYPES)}, or a list of one of them and null")
    return str(real[0])


def _check_keys(schema: Mapping[str, Any], own: set[str], place: _Place) -> None:
    for key in schema:
        if key not in ANNOTATIONS and key not in own:
            allowed = ", ".join(sorted(own | {"type", "description"}))
            raise place.wrong(f"{key[:80]!r} is not supported by this model; allowed are {allowed}")


def _first(key: str, *schemas: Any) -> Any:
    return next((schema[key] for schema in schemas if key in schema), None)


def _written(value: Any) -> str:
    """Return the value as the model reads it."""
    return value if isinstance(value, str) else json.dumps(value)
