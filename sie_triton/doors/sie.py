"""SIE's own routes: encode, score and extract, in JSON or msgpack."""

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response
from starlette.routing import Route

from sie_triton.doors import documents
from sie_triton.doors.answers import encoded, extracted, needs_dims, scored, timing_headers
from sie_triton.doors.endpoint import Door, Endpoint, Request
from sie_triton.doors.failures import invalid
from sie_triton.doors.items import item_in, items_in


def routes(door: Door) -> list[Route]:
    handlers = {encode: documents.encode, score: documents.score, extract: documents.extract}
    return [
        Route(
            f"/v1/{handler.__name__}/{{model:path}}",
            Endpoint(door, handler, document=document),
            methods=["POST"],
            name=handler.__name__,
        )
        for handler, document in handlers.items()
    ]


async def encode(request: Request) -> Response:
    found, model = request.parsed(), request.path["model"]
    items = items_in(found, request.door.settings.door_max_items)
    parameters = parameters_in(found, "output_types", "output_dtype", "instruction")
    results = await request.door.backend.encode(model, items, request.seconds, parameters)
    dtype = parameters.get("output_dtype") or "float32"
    dims = dict(await request.door.served.dims(model)) if needs_dims(results[0], dtype) else {}
    if isinstance(parameters.get("dimensions"), int):
        dims["dense"] = parameters["dimensions"]
    return _answer(request, encoded(model, results, dtype, dims))


async def score(request: Request) -> Response:
    found, model = request.parsed(), request.path["model"]
    if found.get("query") is None:
        raise invalid('query: is missing; send an item as {"text": …}')
    query, items = item_in(found["query"], "query"), items_in(found, request.door.settings.door_max_items)
    parameters = _options(found, "options") | {"instruction": found.get("instruction")}
    return _answer(request, scored(await request.door.backend.score(model, query, items, request.seconds, parameters)))


async def extract(request: Request) -> Response:
    found, model = request.parsed(), request.path["model"]
    items = items_in(found, request.door.settings.door_max_items)
    parameters = parameters_in(found, "labels", "output_schema", "instruction")
    labels = parameters.pop("labels", None) or ()
    results = await request.door.backend.extract(model, items, labels, request.seconds, parameters)
    return _answer(request, extracted(model, results))


def parameters_in(found: Mapping[str, Any], *named: str) -> dict[str, Any]:
    """Request parameters: those of `params.options`, and over them the named ones of `params`."""
    params = found.get("params")
    if params is None:
        return {}
    if not isinstance(params, dict):
        raise invalid(f"params: must be an object, it is {type(params).__name__}")
    return _options(params, "params.options") | {name: params[name] for name in named if params.get(name) is not None}


def _options(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    options = found.get("options")
    if options is None:
        return {}
    if not isinstance(options, dict) or not all(isinstance(key, str) for key in options):
        raise invalid(f"{name}: must be an object, it is {type(options).__name__}")
    return options


def _answer(request: Request, answer: dict[str, Any]) -> Response:
    return request.answer(answer, timing_headers(answer["timing"]))
