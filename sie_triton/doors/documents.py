"""What /openapi.json says of SIE's own routes, made of the contract: parameters, inputs, outputs."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from sie_triton.contract import ENCODE_OUTPUTS, VERBS
from sie_triton.contract.model import Model
from sie_triton.contract.outputs import OUTPUT_DTYPES
from sie_triton.contract.parameters import Parameter
from sie_triton.contract.tensors import LABELS, QUERY, TEXT
from sie_triton.doors.openapi import model_parameter, posted
from sie_triton.doors.wire import JSON, MSGPACK
from sie_triton.errors import SIEError
from sie_triton.families import model_of
from sie_triton.spec import ModelSpec

TYPES: Mapping[type, str] = {bool: "boolean", int: "integer", float: "number", str: "string"}

# Those of `params` or of the body itself; all others are options.
NAMED = ("output_types", "output_dtype", "instruction", "output_schema")

NUMBERS = {"type": "array", "items": {"type": "number"}}
FILE = {
    "type": "object",
    "properties": {"data": {"type": "string", "contentEncoding": "base64"}, "format": {"type": "string"}},
}
ITEM = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "comes back with the result"},
        "text": {"type": "string"},
        "images": {"type": "array", "items": FILE, "maxItems": 1},
        "audio": FILE,
        "document": FILE,
    },
}
TIMING = {
    "type": "object",
    "properties": {
        name: {"type": "number"}
        for name in ("total_ms", "queue_ms", "tokenization_ms", "inference_ms", "postprocessing_ms")
    },
}
TIMEOUT = {
    "name": "X-Request-Timeout",
    "in": "header",
    "schema": {"type": "number"},
    "description": "seconds within which the request is answered",
}


def encode(specs: Sequence[ModelSpec]) -> dict[str, Any]:
    vectors = {name: _vector(name) for name in ENCODE_OUTPUTS}
    item = {"type": "object", "properties": {"id": {"type": "string"}, **vectors}}
    return _verb("encode", "Vectors of items", specs, {"items": {"type": "array", "items": item}})


def score(specs: Sequence[ModelSpec]) -> dict[str, Any]:
    entry = {"item_id": {"type": "string"}, "score": {"type": "number"}, "rank": {"type": "integer"}}
    scores = {"type": "array", "items": {"type": "object", "properties": entry}}
    return _verb("score", "How relevant each item is to a query, the most relevant first", specs, {"scores": scores})


def extract(specs: Sequence[ModelSpec]) -> dict[str, Any]:
    kinds = ("entities", "relations", "classifications", "objects")
    found = {kind: {"type": "array", "items": {"type": "object"}} for kind in kinds}
    item = {"type": "object", "properties": {"id": {"type": "string"}, **found, "data": {"type": "object"}}}
    return _verb("extract", "What is in items", specs, {"items": {"type": "array", "items": item}})


def _verb(verb: str, summary: str, specs: Sequence[ModelSpec], answer: Mapping[str, Any]) -> dict[str, Any]:
    models = [model for spec in specs if verb in spec.tasks and (model := _model(spec))]
    parameters = _merged(p for model in models for p in VERBS[verb].all_parameters(model).values())
    schema = {"type": "object", "required": ["items"], "properties": _body(verb, parameters)}
    tried = next((model for model in models if TEXT.name in model.spec.inputs and not model.extraction.entities), None)
    answered = {"type": "object", "properties": {"model": {"type": "string"}, **answer, "timing": TIMING}}
    example = None if tried is None else _example(verb, tried)
    first = [*([tried] if tried else []), *(model for model in models if model is not tried)]
    path = model_parameter([model.spec for model in first])
    return posted(summary, schema, example, answered, parameters=[path, TIMEOUT], types=[JSON, MSGPACK])


def _model(spec: ModelSpec) -> Model | None:
    """None: of a family that is not in this environment."""
    with suppress(SIEError, ImportError, AttributeError, KeyError):
        return model_of(spec)
    return None


def _merged(parameters: Iterable[Parameter]) -> dict[str, dict[str, Any]]:
    """Schema by name; what models allow differently is told by none of them."""
    found: dict[str, dict[str, Any]] = {}
    for parameter in parameters:
        schema = _schema(parameter)
        known = found.setdefault(parameter.name, schema)
        if "enum" in known:
            known["enum"] = [*dict.fromkeys([*known["enum"], *schema.get("enum", ())])]
        if known != schema:
            known.pop("maximum", None)
    return found


def _schema(parameter: Parameter) -> dict[str, Any]:
    kind = TYPES[parameter.type]
    choices = {"enum": list(parameter.choices)} if parameter.choices else {}
    if parameter.is_list:
        return {"type": "array", "items": {"type": kind, **choices}, "description": parameter.doc}
    limits = {"minimum": parameter.minimum, "maximum": parameter.maximum}
    given = {name: value for name, value in limits.items() if value is not None}
    return {"type": kind, **choices, **given, "description": parameter.doc}


def _body(verb: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """SIE has the options of a score in the body itself."""
    options = {"type": "object", "properties": {k: v for k, v in parameters.items() if k not in NAMED}}
    named = {name: parameters[name] for name in NAMED if name in parameters} | {"options": options}
    items = {"type": "array", "minItems": 1, "items": ITEM}
    if verb == "score":
        return {QUERY.name: ITEM, "items": items, **named}
    if verb == "extract":
        named[LABELS.name] = {"type": "array", "items": {"type": "string"}, "description": LABELS.doc}
    return {"items": items, "params": {"type": "object", "properties": named}}


def _example(verb: str, model: Model) -> dict[str, Any]:
    """That of the contract, as SIE's requests have it."""
    given = VERBS[verb].example(model)
    body: dict[str, Any] = {"items": [{"text": text} for text in given[TEXT.name]]}
    if QUERY.name in given:
        return {QUERY.name: {"text": given[QUERY.name][0]}, **body}
    return body | ({"params": {LABELS.name: given[LABELS.name]}} if LABELS.name in given else {})


def _vector(name: str) -> dict[str, Any]:
    kinds = ["float32"] if ENCODE_OUTPUTS[name].quantized is None else list(OUTPUT_DTYPES)
    values = {"type": "array", "items": NUMBERS} if name == "multivector" else NUMBERS
    sizes = ("token_dims", "num_tokens") if name == "multivector" else ("dims",)
    told = {size: {"type": "integer"} for size in sizes} | {"dtype": {"enum": kinds}}
    indices = {"indices": {"type": "array", "items": {"type": "integer"}}} if name == "sparse" else {}
    return {"type": "object", "properties": {**told, **indices, "values": values}}
