"""Routes that list the served models, in a format that serves both SIE's and OpenAI's clients: they share the route."""

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.routing import Route

from sie_triton.contract.spec import ModelSpec
from sie_triton.doors import openai
from sie_triton.doors.endpoint import Answer, Door, DoorEndpoint, DoorRequest, detail, get
from sie_triton.doors.failures import Dialect, Failure
from sie_triton.doors.fields import checked_model
from sie_triton.doors.openapi import model_parameter, operation


def routes(door: Door) -> list[Route]:
    def one(specs: Sequence[ModelSpec]) -> Mapping[str, Any]:
        path = model_parameter([spec.model for spec in specs])
        return operation("One served model and its state.", answer={"type": "object"}, parameters=[path])(specs)

    listed = operation("Served models and their states.", answer={"type": "object"})
    return [
        get("/v1/models", DoorEndpoint(door, models, dialect=BOTH, document=listed), "models"),
        get("/v1/models/{model:path}", DoorEndpoint(door, model, dialect=BOTH, document=one), "model"),
    ]


async def models(request: DoorRequest) -> Answer:
    found = [_as_both(each) for each in await request.door.served.models()]
    listed = [openai.described(each["name"]) for each in found]
    return request.answer({"models": found, "object": "list", "data": listed})


async def model(request: DoorRequest) -> Answer:
    return request.answer(_as_both(await request.door.served.model(checked_model(request.path["model"]))))


def _as_both(found: Mapping[str, Any]) -> dict[str, Any]:
    return {**found, **openai.described(found["name"])}


def both(failure: Failure) -> dict[str, Any]:
    return {**detail(failure), **openai.error(failure)}


BOTH = Dialect(lambda row: row.sie, both)
