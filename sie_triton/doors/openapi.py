"""/openapi.json, generated from the contract and the served models; /docs, the same as a self-contained HTML page."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from importlib.metadata import version
from typing import Any

from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from sie_triton.contract.spec import ModelSpec
from sie_triton.doors.body_codec import JSON
from sie_triton.doors.endpoint import MAX_TIMEOUT_S, TIMEOUT_HEADER, Answer, Door, DoorEndpoint, DoorRequest, get
from sie_triton.doors.schemas import STRING, record

# Makes a route's operation from the specifications of the served models.
Document = Callable[[Sequence[ModelSpec]], Mapping[str, Any]]

# The page loads nothing, from this server or another.
POLICY = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}

STYLE = "body{font:15px sans-serif;max-width:60em;margin:2em auto;padding:0 1em}pre{background:#f4f4f4;padding:.8em;\
overflow:auto}h2{font:bold 16px monospace;border-top:1px solid #ccc;padding-top:1em}td{padding:.1em 1em .1em 0;\
vertical-align:top}"

FAILURE = record(detail=record(code=STRING, message=STRING))

STATUSES = {
    "400": "the request is invalid, or this model does not support it; the message names the field",
    "401": "the bearer token is missing or wrong",
    "403": "the Origin or the Host of the request is not allowed",
    "404": "the model is not served, or there is no such file or batch",
    "408": "the body arrived too slowly",
    "413": "the body is too large",
    "415": "the body has an unsupported Content-Type, or is compressed",
    "429": "the server is busy; retry after Retry-After seconds",
    "500": "internal error; the door's log has the details",
    "502": "the model cannot be loaded (see error_class and permanent), or its remote endpoint does not answer",
    "503": "the model is being loaded, or the server or its remote endpoint is busy; retry after Retry-After seconds",
    "504": "the timeout of the request passed; retry after Retry-After seconds",
}

TEXT = "text/plain"

TIMEOUT = {
    "name": TIMEOUT_HEADER,
    "in": "header",
    "schema": {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_TIMEOUT_S},
    "description": "timeout of the request, in seconds",
}


def routes(door: Door) -> list[Route]:
    return [
        get("/openapi.json", DoorEndpoint(door, openapi), "openapi"),
        get("/docs", DoorEndpoint(door, docs)),
    ]


async def openapi(request: DoorRequest) -> Answer:
    return request.answer(await _document(request.door))


async def docs(request: DoorRequest) -> Response:
    return HTMLResponse(page(await _document(request.door)), headers=POLICY)


async def _document(door: Door) -> dict[str, Any]:
    specs = await door.served.specs()
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "sie-triton", "version": version("sie-triton")},
        "servers": [{"url": "/"}],
        "paths": paths(door.routes, specs),
        "components": {"schemas": {"Failure": FAILURE}},
    }
    if door.settings.auth_mode != "none":
        document["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"bearer": []}]
    return document


def paths(routes: Iterable[BaseRoute], specs: Sequence[ModelSpec]) -> dict[str, Any]:
    """Return the operations of all routes whose endpoint has a document, by path and method."""
    found: dict[str, Any] = {}
    for route in routes:
        endpoint = getattr(route, "endpoint", None)
        if isinstance(route, Route) and isinstance(endpoint, DoorEndpoint) and endpoint.document is not None:
            operation = {"operationId": route.name, **endpoint.document(specs)}
            method = next(iter((route.methods or {"GET"}) - {"HEAD"})).lower()
            found.setdefault(route.path_format, {})[method] = operation
    return found


def operation(
    summary: str,
    *,
    answer: Any = None,
    parameters: Sequence[Any] = (),
    error: Mapping[str, Any] | None = None,
    types: Sequence[str] = (JSON,),
    more: Sequence[str] = (),
) -> Document:
    """Return the document of a route without a body; `answer` and `error` are JSON schemas, `types` the answer's.

    `more` are statuses besides those of all routes.
    """
    made = {"summary": summary, "parameters": list(parameters)}
    failed = failures("401", "403", "404", "500", "503", *more, schema=error)
    return lambda specs: made | {"responses": responses(answer, types) | failed}


def probe(summary: str) -> Document:
    """Return the document of a route that answers with plain text and needs no token."""
    answer = responses(STRING, [TEXT])["200"]
    away = {"description": "not available; the text gives the reason", "content": answer["content"]}
    return lambda specs: {"summary": summary, "security": [], "responses": {"200": answer, "503": away}}


def posted(
    summary: str,
    schema: Mapping[str, Any],
    example: Any,
    answer: Mapping[str, Any],
    *,
    parameters: Sequence[Any] = (),
    read: Sequence[str] = (JSON,),
    written: Sequence[str] = (JSON,),
    error: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the operation of a route with a body. `example` is None if no example would work."""
    content = {"schema": schema} | ({} if example is None else {"example": example})
    return {
        "summary": summary,
        "parameters": list(parameters),
        "requestBody": {"required": True, "content": dict.fromkeys(read, content)},
        "responses": responses(answer, written) | failures(*STATUSES, schema=error),
    }


def responses(answer: Any, types: Sequence[str]) -> dict[str, Any]:
    return {"200": {"description": "OK", "content": {kind: {"schema": answer or {}} for kind in types}}}


def failures(*statuses: str, schema: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the responses for these statuses, with the schema of SIE's failures, or `schema`."""
    content = {JSON: {"schema": schema or {"$ref": "#/components/schemas/Failure"}}}
    return {status: {"description": STATUSES[status], "content": content} for status in statuses}


def model_parameter(names: Sequence[str]) -> dict[str, Any]:
    schema = STRING | ({"enum": list(names)} if names else {})
    example = {"example": names[0]} if names else {}
    told = "org/name; the slash may be sent unescaped, or as %2F"
    return {"name": "model", "in": "path", "required": True, "schema": schema, "description": told, **example}


def page(document: Mapping[str, Any]) -> str:
    """Return the document as an HTML page."""
    parts = [
        _operation(method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    title = f"{document['info']['title']} {document['info']['version']}"
    head = f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title><style>{STYLE}</style>"
    return f"{head}<h1>{escape(title)}</h1><p><a href=openapi.json>openapi.json</a></p>{''.join(parts)}</html>"


def _operation(method: str, path: str, found: Mapping[str, Any]) -> str:
    parts = [f"<h2>{method.upper()} {escape(path)}</h2><p>{escape(found['summary'])}</p>"]
    content = found.get("requestBody", {}).get("content", {})
    for body in [*content.values()][:1]:  # all media types have the same fields
        parts.append(f"<p>As {' or '.join(content)}:</p><table>{''.join(_rows(body['schema'], ''))}</table>")
        if "example" in body:
            parts.append(f"<pre>{escape(_curl(path, found, body['example']))}</pre>")
    return "".join(parts)


def _rows(schema: Mapping[str, Any], prefix: str) -> list[str]:
    rows: list[str] = []
    for name, value in schema.get("properties", {}).items():
        text = value.get("description", "")
        rows.append(f"<tr><td><code>{escape(prefix + name)}</code><td>{escape(in_words(value))}<td>{escape(text)}")
        rows += _rows(_object_in(value), f"{prefix}{name}{'[]' if 'items' in value else ''}.")
    return rows


def _object_in(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the object that a schema allows, alone, in a list or as an alternative; {} if it has a title."""
    if "title" in schema or "properties" in schema:
        return {} if "title" in schema else schema
    inner = [*schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else [])]
    return next(filter(None, map(_object_in, inner)), {})


def in_words(schema: Mapping[str, Any]) -> str:
    """Describe the values that a schema allows, except null, by its title if it has one.

    >>> in_words({"anyOf": [{"type": "array", "items": {"enum": ["a", "b"]}}, {"type": ["string", "null"]}]})
    'list of a, b; or string'
    """
    if "title" in schema:
        return str(schema["title"])
    if "anyOf" in schema and "properties" not in schema:
        return "; or ".join(filter(None, map(in_words, schema["anyOf"])))
    if "const" in schema:
        return str(schema["const"])
    if "enum" in schema:
        return ", ".join(json.dumps(each).strip('"') for each in schema["enum"] if each is not None)
    if schema.get("type") == "array":
        return f"list of {in_words(schema['items'])}"
    kinds = schema.get("type", ())
    return " or ".join(kind for kind in ([kinds] if isinstance(kinds, str) else kinds) if kind != "null")


def _curl(path: str, found: Mapping[str, Any], example: Any) -> str:
    for parameter in found.get("parameters", ()):
        path = path.replace(f"{{{parameter['name']}}}", str(parameter.get("example", "MODEL")))
    body = json.dumps(example, ensure_ascii=False).replace("'", "'\\''")
    return f"curl -s HOST{path} -H 'Content-Type: application/json' -d '{body}'"
