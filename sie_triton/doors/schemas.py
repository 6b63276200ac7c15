"""JSON schemas of requests and responses: basic schemas, and the parameters that models take."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from sie_triton.client.arguments import JSON_LISTS, JSON_PARAMETERS
from sie_triton.contract import VERBS
from sie_triton.contract.model import Model
from sie_triton.contract.parameters import Parameter
from sie_triton.contract.spec import ModelSpec
from sie_triton.errors import SIEError
from sie_triton.models.families import model_of

Schema = dict[str, Any]

TYPES: Mapping[type, str] = {bool: "boolean", int: "integer", float: "number", str: "string"}

STRING: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
NUMBERS: Schema = {"type": "array", "items": NUMBER}


def fields(properties: Mapping[str, Any], *required: str) -> Schema:
    """Return the schema of an object that may have additional fields."""
    return {"type": "object", "required": list(required), "properties": dict(properties)}


def record(**properties: Any) -> Schema:
    """Return the schema of an object that has all of these fields, and maybe others."""
    return fields(properties, *properties)


def closed(properties: Mapping[str, Any], *required: str) -> Schema:
    """Return the schema of an object without additional fields."""
    return {**fields(properties, *required), "additionalProperties": False}


def several(items: Mapping[str, Any], **limits: int) -> Schema:
    return {"type": "array", "items": dict(items), **limits}


def any_of(*schemas: Mapping[str, Any], **more: Any) -> Schema:
    return {"anyOf": [dict(each) for each in schemas], **more}


def optional(schema: Mapping[str, Any]) -> Schema:
    """Return the schema of a nullable field; null means absent."""
    if "anyOf" in schema:
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    found = dict(schema)
    if "enum" in schema:
        found["enum"] = [*schema["enum"], None]
    if "type" in schema:
        found["type"] = [*([schema["type"]] if isinstance(schema["type"], str) else schema["type"]), "null"]
    return found


def models_of(specs: Iterable[ModelSpec]) -> list[Model]:
    """Return the models whose family is installed in this environment."""
    return [model for spec in specs if (model := _model(spec)) is not None]


def _model(spec: ModelSpec) -> Model | None:
    with suppress(SIEError, ImportError, AttributeError, KeyError):
        return model_of(spec)
    return None


def parameters(models: Iterable[Model], verb: str) -> dict[str, Schema]:
    """Return the union of the models' parameters for `verb`, by name. A single model may take only some of them."""
    found: dict[str, list[Parameter]] = {}
    for model in models:
        for parameter in VERBS[verb].all_parameters(model).values():
            found.setdefault(parameter.name, []).append(parameter)
    return {name: _merged(same) for name, same in found.items()}


def _merged(same: Sequence[Parameter]) -> Schema:
    first, choices = same[0], [*dict.fromkeys(choice for each in same for choice in each.choices)]
    schema: Schema = {"type": TYPES[first.type], "description": first.doc}
    if first.is_list:
        return _list_of(choices, first.doc)
    if choices:
        schema["enum"] = choices
    if first.name in JSON_PARAMETERS:
        schema["type"] = ["string", "object", *(["array"] if first.name in JSON_LISTS else [])]
    limits = {
        "minimum": _widest(min, [each.minimum for each in same]),
        "maximum": _widest(max, [each.maximum for each in same]),
        "maxLength": _widest(max, [each.max_characters for each in same]),
    }
    return optional(schema | {name: limit for name, limit in limits.items() if limit is not None})


def _widest(widest: Any, limits: Sequence[int | None]) -> int | None:
    return None if None in limits else widest(limits)


def _list_of(choices: Sequence[str], doc: str) -> Schema:
    """Return the schema of a list of names, or of one string of names separated by commas."""
    one = "|".join(choices)
    text = {"type": "string", "pattern": f"^({one})(,({one}))*$"}
    return optional(any_of(several({"enum": list(choices)}, minItems=1), text, description=doc))
