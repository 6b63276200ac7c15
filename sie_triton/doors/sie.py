"""Routes of SIE's own HTTP API: encode, score and extract, in JSON or msgpack."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from starlette.routing import Route

from sie_triton.client.calls import in_call, names_item
from sie_triton.client.retry import Deadline
from sie_triton.client.types import ExtractResult
from sie_triton.contract.extract import MAX_LABELS
from sie_triton.contract.names import split_profile
from sie_triton.contract.parameters import shown
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import DENSE, IMAGE, MUVERA, TEXT
from sie_triton.doors import openapi_sie
from sie_triton.doors.backend import Items, spread
from sie_triton.doors.endpoint import Answer, Door, DoorEndpoint, DoorRequest, post
from sie_triton.doors.failures import failure_of, invalid
from sie_triton.doors.fields import check_lengths, check_query, checked_model, checked_options, whole
from sie_triton.doors.items import entities_in, item_in, items_in
from sie_triton.doors.model_choice import Explaining
from sie_triton.doors.places import ENCODE, EXTRACT, OVERFLOW, POLICIES, SCORE, Places
from sie_triton.doors.response_bodies import encoded, extracted, failed, needs_dims, scored, timing_headers
from sie_triton.errors import InputError
from sie_triton.models.families import model_of

SHORTEN = f"shorten it, or send {OVERFLOW} truncate_text"


def routes(door: Door) -> list[Route]:
    handlers = {
        "encode": (encode, openapi_sie.encode),
        "score": (score, openapi_sie.score),
        "extract": (extract, openapi_sie.extract),
    }
    most = door.settings.door_max_items
    return [
        post(f"/v1/{name}/{{model:path}}", DoorEndpoint(door, handler, document=partial(document, most)), name)
        for name, (handler, document) in handlers.items()
    ]


async def encode(request: DoorRequest) -> Answer:
    door, found, model = request.door, _body(request, ENCODE), checked_model(request.path["model"])
    items = items_in(found, door.settings.door_max_items)
    parameters = parameters_in(found)
    _check_names(parameters.get("output_types"), "params.output_types")
    asked = parameters.get("output_types")
    refuses_long = _refuses_long(parameters, "params.options")
    spec = await door.served.recent(model, request.seconds / 2)
    named = _named(spec, model, asked.split(",") if isinstance(asked, str) else asked)
    if named:
        parameters["output_types"] = list(named)
    async with Explaining(door, model, "encode", items):
        results = await door.backend.encode(model, items, request.seconds, parameters)
    if refuses_long:
        check_lengths(results, "items", SHORTEN)
    dtype = parameters.get("output_dtype") or "float32"
    dims = dict((await door.served.spec(model)).dims) if needs_dims(results[0], dtype) else {}
    if (size := whole(parameters.get("dimensions"))) is not None:
        dims[DENSE.name] = size
    return _answer(request, encoded(model, results, dtype, dims, named), spec)


def _named(spec: ModelSpec | None, model: str, asked: list[str] | None) -> Mapping[str, str]:
    """Return the outputs that SIE's server would answer, with their names there; empty if the profile's are meant.

    SIE answers dense unless the request or the profile names other outputs. MUVERA's vector is the dense output of a
    model without another.
    """
    if spec is None:
        return {name: name for name in asked or ()}
    dense = DENSE.name if DENSE.name in spec.dims or MUVERA.name not in spec.dims else MUVERA.name
    if asked is None:
        profile = split_profile(model)[1] or "default"
        default = [each.parameters.get("output_types") for each in spec.profiles if each.name == profile]
        names = str(default[0]).split(",") if default and default[0] else []
        asked = [DENSE.name if name == dense else name for name in names]
        if DENSE.name in asked and {*names} == {*spec.dims}:
            asked = [DENSE.name]
    if dense in asked and DENSE.name in asked and dense != DENSE.name:
        raise invalid("params.output_types", f"names one vector twice: {dense} is the model's {DENSE.name} output")
    return {dense if name == DENSE.name else name: name for name in asked}


async def score(request: DoorRequest) -> Answer:
    door, found, model = request.door, _body(request, SCORE), checked_model(request.path["model"])
    if found.get("query") is None:
        raise invalid("query", 'is missing; send an item such as {"text": …}')
    query, items = item_in(found["query"], "query", SCORE), items_in(found, door.settings.door_max_items, SCORE)
    for kind in (TEXT.name, IMAGE.name):
        if isinstance(query.get(kind), (str, bytes)):
            check_query(query[kind], items, f"query.{kind}", door.settings.door_max_body_bytes)
    parameters = checked_options(_options(found, "options") | {"instruction": found.get("instruction")})
    refuses_long = _refuses_long(parameters, "options")
    spec = await door.served.recent(model, request.seconds / 2)
    async with Explaining(door, model, "score", [query, *items]):
        result = await door.backend.score(model, query, items, request.seconds, parameters)
    if refuses_long:
        cut = {entry["item_id"] for entry in result["scores"] if entry.get("truncated")}
        names = (str(item.get("id", f"item-{i}")) for i, item in enumerate(items))
        check_lengths([{"truncated": name in cut} for name in names], "items", SHORTEN)
    return _answer(request, scored(result), spec)


async def extract(request: DoorRequest) -> Answer:
    door, found, model = request.door, _body(request, EXTRACT), checked_model(request.path["model"])
    items = items_in(found, door.settings.door_max_items, EXTRACT)
    parameters = parameters_in(found, EXTRACT)
    labels = _labels(parameters.pop("labels", None))
    check_query("".join(labels), items, "params.labels", door.settings.door_max_body_bytes)
    refuses_long = _refuses_long(parameters, "params.options")
    known, spec = None, await door.served.recent(model, request.seconds / 2)
    if spec is not None and model_of(spec).extraction.entities:
        known = [entities_in(item, f"items[{i}]") for i, item in enumerate(found["items"])]

    async def extract_part(part: slice, seconds: float) -> list[ExtractResult]:
        entities = None if known is None else known[part]
        return await door.backend.extract(model, items[part], labels, entities, seconds, parameters)

    async with Explaining(door, model, "extract", items):
        results = await _extracted_apart(items, extract_part, Deadline.after(request.seconds))
    if refuses_long:
        check_lengths(results, "items", SHORTEN)
    return _answer(request, extracted(model, results), spec)


async def _extracted_apart(
    items: Items, extract: Callable[[slice, float], Awaitable[list[ExtractResult]]], deadline: Deadline
) -> list[ExtractResult]:
    """Return a result for each item, which has an `error` if the item is at fault.

    `extract` takes a part of the items and the seconds that are left. It refuses a part with such an item as a whole:
    then each item is sent again on its own.
    """

    async def alone(i: int, left_s: float) -> ExtractResult:
        try:
            (result,) = await extract(slice(i, i + 1), left_s)
        except InputError as exc:
            return _at_fault(items[i], in_call(exc, i))
        return result

    try:
        return await extract(slice(None), deadline.some_left_s())
    except InputError as exc:
        if len(items) == 1:
            return [_at_fault(items[0], exc)]
        if not names_item(exc):
            raise
    return await spread([partial(alone, i) for i in range(len(items))], deadline)


def _at_fault(item: Mapping[str, Any], error: InputError) -> ExtractResult:
    """Return the result of an item that is at fault; raise an error that is not the item's."""
    if not names_item(error):
        raise error
    failure = failure_of(error)
    return failed(item, failure.row.code, failure.message)


def _refuses_long(parameters: dict[str, Any], where: str) -> bool:
    """Take SIE's `overflow_policy` from the parameters, and return True if a text that is too long is an error."""
    policy = parameters.pop(OVERFLOW, None)
    if policy not in (None, *POLICIES):
        raise invalid(f"{where}.{OVERFLOW}", f"must be one of {', '.join(POLICIES)}; got {shown(policy)}")
    return bool(policy == "error")


def _body(request: DoorRequest, places: Places) -> dict[str, Any]:
    body = request.parsed()
    places.check_body(body, request.query_string)
    return body


def parameters_in(found: Mapping[str, Any], places: Places = ENCODE) -> dict[str, Any]:
    """Return the request parameters: those in `params.options`, overridden by the named fields of `params`."""
    params = found.get("params")
    if params is None:
        return {}
    if not isinstance(params, dict):
        raise invalid("params", f"must be an object, not {type(params).__name__}")
    places.check(params, places.holder, (*places.named, "options"))
    named = {name: params[name] for name in places.named if params.get(name) is not None}
    return checked_options(_options(params, places.options) | named)


def _options(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    options = found.get("options")
    if options is None:
        return {}
    if not isinstance(options, dict) or not all(isinstance(key, str) for key in options):
        raise invalid(name, f"must be an object, not {type(options).__name__}")
    return options


def _labels(given: Any) -> list[str]:
    if given is None:
        return []
    _check_names(given, "params.labels", allow_text=False)
    if len(given) > MAX_LABELS:
        raise invalid("params.labels", f"has {len(given)} labels; send at most {MAX_LABELS}")
    found: list[str] = given
    return found


def _check_names(given: Any, name: str, *, allow_text: bool = True) -> None:
    """Raise Failure unless `given` is None, a list of strings or, if allowed, one string."""
    if given is None or (allow_text and isinstance(given, str)):
        return
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise invalid(name, f"must be a list of strings, not {type(given).__name__}")


def _answer(request: DoorRequest, answer: dict[str, Any], spec: ModelSpec | None) -> Answer:
    timing = request.timed(answer["timing"])
    headers = {"X-SIE-Units-Input-Tokens": str(answer["usage"]["input_tokens"]), **timing_headers(timing)}
    if spec is not None and spec.revision:
        headers["X-SIE-Model-Revision"] = spec.revision
    return request.answer(answer | {"timing": timing}, headers)
