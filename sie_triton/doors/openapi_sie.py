"""Documents of SIE's own routes in /openapi.json, generated from the contract: parameters, inputs, outputs."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sie_triton.contract import ENCODE_OUTPUTS, VERBS
from sie_triton.contract.extract import MAX_LABEL, MAX_LABELS
from sie_triton.contract.model import Model
from sie_triton.contract.outputs import OUTPUT_DTYPES
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import IMAGE, ITEMS, LABELS, QUERY, TEXT
from sie_triton.doors.body_codec import JSON, MEDIA_TYPES, MSGPACK
from sie_triton.doors.items import MEDIA
from sie_triton.doors.openapi import TIMEOUT, model_parameter, posted
from sie_triton.doors.places import ENCODE, EXTRACT, ID, IMAGES, METADATA, OVERFLOW, POLICIES, SCORE
from sie_triton.doors.response_bodies import KINDS
from sie_triton.doors.schemas import (
    BOOLEAN,
    INTEGER,
    NUMBER,
    NUMBERS,
    STRING,
    Schema,
    any_of,
    closed,
    fields,
    models_of,
    optional,
    parameters,
    record,
    several,
)

BASE64 = STRING | {"contentEncoding": "base64", "description": "in msgpack: bytes"}
FORMS = 'base64, or {"data": base64}; in msgpack bytes'
HINT = {"description": "ignored: the content decides"}
FILE = {
    kind: any_of(closed(dict.fromkeys(keys, HINT) | {"data": BASE64}, "data"), BASE64, title="file", description=FORMS)
    for kind, keys in MEDIA.items()
}
NOTES = {METADATA: {"description": "its list `entities` is read by models of relations; all else is ignored"}}
IDENTITY = any_of(STRING, INTEGER | {"minimum": -(2**63), "maximum": 2**64 - 1}, description="returned with the result")
CUT = BOOLEAN | {"const": True, "description": "present if the model read only the beginning"}
# Follows Python, which counts more characters as whitespace than ECMAScript does.
NOT_BLANK = r"[^\s\x1c-\x1f\x85]"


def encode(max_items: int, specs: Sequence[ModelSpec]) -> Schema:
    vectors = {name: _vector(name) for name in ENCODE_OUTPUTS}
    answer = {"items": several(fields({"id": IDENTITY, **vectors, "truncated": CUT}))}
    models = _able(specs, "encode")
    body = {"items": _items(models, max_items), "params": optional(_params(models, "encode"))}
    return _operation("encode", "Vectors of items.", models, closed(body, "items"), answer)


def score(max_items: int, specs: Sequence[ModelSpec]) -> Schema:
    entry = {"item_id": STRING, "score": NUMBER, "rank": INTEGER}
    answer = {"scores": several(fields(entry | {"truncated": CUT}, *entry)), "query_id": IDENTITY}
    models = _able(specs, "score")
    named, options = _split(models, "score")
    body = {QUERY.name: _item(models), "items": _items(models, max_items), **named, "options": optional(options)}
    summary = "Relevance of each item to a query, the most relevant first."
    return _operation("score", summary, models, closed(body, QUERY.name, "items"), answer)


def extract(max_items: int, specs: Sequence[ModelSpec]) -> Schema:
    found = {"id": IDENTITY, **dict.fromkeys(KINDS, several({"type": "object"})), "data": {}}
    models = _able(specs, "extract")
    params = _params(models, "extract")
    params["properties"][LABELS.name], is_required = _labels(models)
    if is_required:
        params["required"] = [LABELS.name]
    body = {"items": _items(models, max_items), "params": params if is_required else optional(params)}
    schema = closed(body, "items", *(["params"] if is_required else []))
    error = record(code=STRING, message=STRING)
    answer = {"items": several(fields(found | {"truncated": CUT, "error": error}, *found))}
    return _operation("extract", "Findings in items.", models, schema, answer)


def _able(specs: Iterable[ModelSpec], verb: str) -> list[Model]:
    return models_of(spec for spec in specs if verb in spec.tasks)


def _operation(verb: str, summary: str, models: Sequence[Model], body: Schema, answer: Mapping[str, Any]) -> Schema:
    """Return the operation; its example works with the first model in the enum of the path parameter."""
    tried = next((model for model in models if TEXT.name in model.spec.inputs and not model.extraction.entities), None)
    example = None if tried is None else _example(verb, tried)
    first = sorted(models, key=lambda model: model is not tried)
    times = ("total_ms", "queue_ms", "batch_wait_ms", "tokenization_ms", "inference_ms", "postprocessing_ms")
    own = {"usage": record(input_tokens=INTEGER), "timing": record(**dict.fromkeys(times, NUMBER))}
    answered = fields({"model": STRING, **answer, **own}, "model", *list(answer)[:1], *own)
    path = model_parameter([model.spec.model for model in first])
    read, written = tuple(MEDIA_TYPES), (JSON, MSGPACK)  # requests may use several names of msgpack
    return posted(summary, body, example, answered, parameters=[path, TIMEOUT], read=read, written=written)


def _split(models: Sequence[Model], verb: str) -> tuple[dict[str, Schema], Schema]:
    """Return the parameters that have their own fields, and the schema of the options."""
    found = parameters(models, verb)
    named = {name: found.pop(name) for each in (ENCODE, SCORE, EXTRACT) for name in each.named if name in found}
    found[OVERFLOW] = optional({"enum": list(POLICIES)}) | {"description": "error: a text that is too long is refused"}
    return named, closed(found)


def _params(models: Sequence[Model], verb: str) -> Schema:
    named, options = _split(models, verb)
    return closed({**named, "options": optional(options)})


def _labels(models: Sequence[Model]) -> tuple[Schema, bool]:
    """Return the schema of the labels, and True if every model requires labels."""
    needs = {model.extraction.labels for model in models}
    label = STRING | {"minLength": 1, "maxLength": MAX_LABEL, "pattern": NOT_BLANK}
    if needs == {"required"}:
        return several(label, minItems=1, maxItems=MAX_LABELS) | {"description": LABELS.doc}, True
    most = 0 if needs == {""} else MAX_LABELS
    return optional(several(label, maxItems=most) | {"description": LABELS.doc}), False


def _items(models: Sequence[Model], max_items: int) -> Schema:
    return several(_item(models), minItems=1, maxItems=max_items)


def _item(models: Sequence[Model]) -> Schema:
    """Return the schema of an item with every input kind that any of the models reads."""
    kinds = [kind for kind in ITEMS if any(kind in model.spec.inputs for model in models)] or [TEXT.name]
    given = {kind: STRING if kind == TEXT.name else FILE[kind] for kind in kinds}
    if IMAGE.name in given:
        given[IMAGES] = several(FILE[IMAGE.name], minItems=1, maxItems=1)
    others = {ID: optional(IDENTITY), **NOTES}
    if len(given) == 1:
        item = closed(others | given, *given)
    else:
        item = closed(others | {name: optional(schema) for name, schema in given.items()})
        item["anyOf"] = [record(**{name: schema}) for name, schema in given.items()]
    return any_of(STRING, item) if TEXT.name in kinds else item


def _example(verb: str, model: Model) -> Schema:
    """Return the contract's example as the body of a request to SIE's routes."""
    given = VERBS[verb].example(model)
    body: Schema = {"items": [{"text": text} for text in given[TEXT.name]]}
    if QUERY.name in given:
        return {QUERY.name: {"text": given[QUERY.name][0]}, **body}
    return body | ({"params": {LABELS.name: given[LABELS.name]}} if LABELS.name in given else {})


def _vector(name: str) -> Schema:
    kinds = ["float32"] if ENCODE_OUTPUTS[name].quantized is None else list(OUTPUT_DTYPES)
    values = several(NUMBERS) if name == "multivector" else NUMBERS
    sizes = ("token_dims", "num_tokens") if name == "multivector" else ("dims",)
    indices = {"indices": several(INTEGER)} if name == "sparse" else {}
    return record(**dict.fromkeys(sizes, INTEGER), dtype={"enum": kinds}, **indices, values=values)
