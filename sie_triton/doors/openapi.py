"""/openapi.json, made of the contract and of what is served; /docs, the same as a page that fetches nothing."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from importlib.metadata import version
from typing import Any

from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from sie_triton.doors.endpoint import Door, Endpoint, Request
from sie_triton.doors.wire import JSON, MSGPACK
from sie_triton.spec import ModelSpec

# What is served → a route's operation.
Document = Callable[[Sequence[ModelSpec]], Mapping[str, Any]]

# The page takes nothing from anywhere.
POLICY = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}

STYLE = "body{font:15px sans-serif;max-width:60em;margin:2em auto;padding:0 1em}pre{background:#f4f4f4;padding:.8em;\
overflow:auto}h2{font:bold 16px monospace;border-top:1px solid #ccc;padding-top:1em}td{padding:.1em 1em .1em 0;\
vertical-align:top}"

FAILURE = {
    "type": "object",
    "required": ["detail"],
    "properties": {
        "detail": {
            "type": "object",
            "required": ["code", "message"],
            "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
        }
    },
}

STATUSES = {
    "400": "the request is wrong; the message names what",
    "401": "the bearer token is missing or wrong",
    "404": "the model is not served",
    "413": "the body is too large",
    "502": "the model cannot be loaded: error_class, permanent",
    "503": "the model is being loaded, or the server is busy: Retry-After",
    "504": "the time passed: Retry-After",
}


def routes(door: Door) -> list[Route]:
    return [
        Route("/openapi.json", Endpoint(door, openapi), methods=["GET"], name="openapi"),
        Route("/docs", Endpoint(door, docs), methods=["GET"], name="docs"),
    ]


async def openapi(request: Request) -> Response:
    return request.answer(await _document(request.door))


async def docs(request: Request) -> Response:
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
    """Of every route whose endpoint has a document."""
    found: dict[str, Any] = {}
    for route in routes:
        endpoint = getattr(route, "endpoint", None)
        if isinstance(route, Route) and isinstance(endpoint, Endpoint) and endpoint.document is not None:
            operation = {"operationId": route.name, **endpoint.document(specs)}
            method = "post" if "POST" in (route.methods or ()) else "get"
            found.setdefault(route.path_format, {})[method] = operation
    return found


def operation(summary: str, *, answer: Any = None, parameters: Sequence[Any] = ()) -> Document:
    """Of a route without a body; `answer` is a JSON schema."""
    return lambda specs: {"summary": summary, "parameters": list(parameters), "responses": responses(answer, [JSON])}


def posted(
    summary: str,
    schema: Mapping[str, Any],
    example: Any,
    answer: Mapping[str, Any],
    *,
    parameters: Sequence[Any] = (),
    types: Sequence[str] = (JSON,),
) -> dict[str, Any]:
    """The operation of a route with a body; `example` None: there is none that works now."""
    content = {"schema": schema} | ({} if example is None else {"example": example})
    body = {"required": True, "content": dict.fromkeys(types, content)}
    return {
        "summary": summary,
        "parameters": list(parameters),
        "requestBody": body,
        "responses": responses(answer, types) | failures(),
    }


def responses(answer: Any, types: Sequence[str]) -> dict[str, Any]:
    return {"200": {"description": "OK", "content": {kind: {"schema": answer or {}} for kind in types}}}


def failures() -> dict[str, Any]:
    content = {JSON: {"schema": {"$ref": "#/components/schemas/Failure"}}}
    return {status: {"description": text, "content": content} for status, text in STATUSES.items()}


def model_parameter(specs: Sequence[ModelSpec]) -> dict[str, Any]:
    """The model in the path, which has slashes as they are."""
    names = [spec.model for spec in specs]
    schema = {"type": "string", **({"enum": names} if names else {})}
    example = {"example": names[0]} if names else {}
    return {"name": "model", "in": "path", "required": True, "schema": schema, "allowReserved": True, **example}


def page(document: Mapping[str, Any]) -> str:
    """The document, for people."""
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
    if JSON in content:
        body = content[JSON]
        parts.append(_table(body["schema"]))
        if "example" in body:
            parts.append(f"<pre>{escape(_curl(path, found, body['example']))}</pre>")
        if MSGPACK in content:
            parts.append(f"<p>Also as {MSGPACK}.</p>")
    return "".join(parts)


def _table(schema: Mapping[str, Any], prefix: str = "") -> str:
    rows = _rows(schema, prefix)
    return f"<table>{''.join(rows)}</table>" if rows else ""


def _rows(schema: Mapping[str, Any], prefix: str) -> list[str]:
    rows: list[str] = []
    for name, value in schema.get("properties", {}).items():
        text = value.get("description", "")
        kinds = ", ".join(map(str, value["enum"])) if "enum" in value else str(value.get("type", ""))
        rows.append(f"<tr><td><code>{escape(prefix + name)}</code><td>{escape(kinds)}<td>{escape(text)}")
        rows += _rows(value, f"{prefix}{name}.")
    return rows


def _curl(path: str, found: Mapping[str, Any], example: Any) -> str:
    for parameter in found["parameters"]:
        path = path.replace(f"{{{parameter['name']}}}", str(parameter.get("example", "MODEL")))
    body = json.dumps(example, ensure_ascii=False).replace("'", "'\\''")
    return f"curl -s HOST{path} -H 'Content-Type: application/json' -H 'Accept: application/json' -d '{body}'"
