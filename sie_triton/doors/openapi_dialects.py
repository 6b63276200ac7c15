"""Documents of the routes of other HTTP dialects in /openapi.json, made from the models of their bodies."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from pydantic.json_schema import GenerateJsonSchema

from sie_triton.contract.spec import ModelSpec
from sie_triton.doors.body_codec import JSON
from sie_triton.doors.endpoint import Door, DoorEndpoint, Handler
from sie_triton.doors.failures import Dialect
from sie_triton.doors.fields import MAX_ITEMS, Body
from sie_triton.doors.model_choice import CLASSES, DENSE_VECTORS, MULTIVECTORS, SCORES, SPARSE_VECTORS, able
from sie_triton.doors.openapi import TIMEOUT, posted
from sie_triton.doors.schemas import INTEGER, Schema, closed, models_of, parameters, record

QUERY, TEXTS = "What climbs?", ["Roses climb.", "Ships sail."]
USAGE = record(prompt_tokens=INTEGER, total_tokens=INTEGER)

VERBS = {
    DENSE_VECTORS: "encode",
    SPARSE_VECTORS: "encode",
    MULTIVECTORS: "encode",
    SCORES: "score",
    CLASSES: "extract",
}

# Fields of bodies that are request parameters under another name.
RENAMED = {"output_dimension": "dimensions"}


class Operation(NamedTuple):
    """Operation of a route whose models return `what`; `answer` and `error` are schemas, `example` names no model."""

    body: type[Body]
    summary: str
    example: Schema
    answer: Schema
    error: Schema
    what: str = DENSE_VECTORS

    def endpoint(self, door: Door, handler: Handler, dialect: Dialect) -> DoorEndpoint:
        """Return the endpoint of a route whose requests name a model."""
        document = partial(self.document, door.settings.door_max_items)
        return DoorEndpoint(door, handler, dialect=dialect, types=[JSON], document=document)

    def document(self, max_items: int, specs: Sequence[ModelSpec]) -> Schema:
        """Return the document of a route whose requests name a model."""
        models = able(specs, self.what)
        names = [name for spec in models for name in (spec.model, *(f"{spec.model}:{p.name}" for p in spec.profiles))]
        schema = self._schema(max_items, models, "profile")
        schema["properties"]["model"] |= {"enum": names} if names else {}
        return self._posted(schema, {"model": names[0], **self.example} if names else None)

    def document_of_one(self, max_items: int, named: Sequence[str], specs: Sequence[ModelSpec]) -> Schema:
        """Return the document of a route that serves the first able model of `named`; without names, the only one."""
        by_name = {spec.model: spec for spec in able(specs, self.what)}
        models = [by_name[name] for name in named if name in by_name][:1] if named else list(by_name.values())
        schema = self._schema(max_items, models, "is_query")
        return self._posted(schema, self.example if len(models) == 1 else None)

    def _posted(self, schema: Schema, example: Schema | None) -> Schema:
        return posted(self.summary, schema, example, self.answer, parameters=[TIMEOUT], error=self.error)

    def _schema(self, max_items: int, models: Sequence[ModelSpec], other: str) -> Schema:
        """Return the body's schema with the models' request parameters, without those that it hides and `other`."""
        given, required = fields_of(self.body, max_items)
        if self.body.model_config.get("extra") == "forbid":
            return closed(given, *required)
        taken = parameters(models_of(models), VERBS[self.what])
        renamed = {name: taken[same] for name, same in RENAMED.items() if name in given and same in taken}
        taken = {name: schema for name, schema in taken.items() if name not in {*self.body.hidden(), other}}
        return closed(given | taken | given | renamed, *required)


def fields_of(body: type[Body], max_items: int) -> tuple[Schema, Sequence[str]]:
    """Return the schemas of a body's declared fields, those that it must have first, and the names of those."""
    made = body.model_json_schema(schema_generator=Plain)
    properties = _complete(made["properties"], made.get("$defs", {}), max_items)
    required: Sequence[str] = made["required"]
    return {name: properties[name] for name in required} | properties, required


def _complete(schema: Any, parts: Schema, max_items: int) -> Any:
    """Return a schema with its `parts` in place of references, and with `max_items` in place of MAX_ITEMS."""
    if isinstance(schema, list):
        return [_complete(each, parts, max_items) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        part = parts[schema["$ref"].removeprefix("#/$defs/")]
        schema = {name: value for name, value in part.items() if name != "title"}
    limit = {"maxItems": max_items} if schema.get("maxItems") == MAX_ITEMS else {}
    return {name: _complete(value, parts, max_items) for name, value in schema.items()} | limit


class Plain(GenerateJsonSchema):
    """Schemas without the titles and defaults that pydantic adds."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def default_schema(self, schema: Any) -> Schema:
        return self.generate_inner(schema["schema"])
