"""Routes of SIE's clients that lease pools: /v1/pools."""

import time
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from sie_triton.cluster.gateway.leases import Leases
from sie_triton.cluster.gateway.queue import Queue
from sie_triton.cluster.limits import GatewayLimits
from sie_triton.cluster.messages import Lease
from sie_triton.cluster.subjects import NAME
from sie_triton.contract.parameters import shown
from sie_triton.doors.body_codec import JSON
from sie_triton.doors.endpoint import Answer, Door, DoorEndpoint, DoorRequest
from sie_triton.doors.failures import invalid
from sie_triton.settings import Settings


class PoolRoutes:
    """Handlers. Changes need the admin token, where there are tokens."""

    def __init__(self, queue: Queue, settings: Settings) -> None:
        self._queue, self._settings = queue, settings

    @property
    def _leases(self) -> Leases:
        return self._queue.leases

    def all(self, door: Door) -> list[BaseRoute]:
        def route(path: str, method: str, handler: Any, *types: str, is_admins: bool = False) -> Route:
            endpoint = DoorEndpoint(door, handler, types=types, is_admins=is_admins)
            return Route(path, endpoint, methods=[method], name=f"pools-{handler.__name__}")

        one = "/v1/pools/{name}"
        return [
            route("/v1/pools", "GET", self.listed),
            route("/v1/pools", "POST", self.put, JSON, is_admins=True),
            route(one, "GET", self.found),
            route(one, "DELETE", self.ended, is_admins=True),
            route(f"{one}/renew", "POST", self.renewed, is_admins=True),
        ]

    async def listed(self, request: DoorRequest) -> Answer:
        return request.answer({"pools": [*map(self._leases.described, self._leases.all())]})

    async def found(self, request: DoorRequest) -> Answer:
        return request.answer(self._leases.described(self._leases.find(request.path["name"].lower())))

    async def put(self, request: DoorRequest) -> Response:
        lease = lease_in(request.parsed(), self._settings, self._queue.limits)
        answer = await request.answer(self._leases.described(await self._leases.put(lease))).response()
        answer.status_code = 201
        return answer

    async def renewed(self, request: DoorRequest) -> Answer:
        return request.answer(self._leases.described(await self._leases.renew(request.path["name"].lower())))

    async def ended(self, request: DoorRequest) -> Answer:
        name = request.path["name"].lower()
        await self._leases.end(name)
        return request.answer({"name": name, "status": {"state": "deleted"}})


# What a request for a lease says.
FIELDS = ("name", "queue_pool", "gpus", "gpu_caps", "bundle", "minimum_worker_count")


def lease_in(given: Mapping[str, Any], settings: Settings, limits: GatewayLimits = GatewayLimits()) -> Lease:
    """Return the lease of a request; Failure 400 names the field that is wrong."""
    for field in given:
        if field not in FIELDS:
            raise invalid(shown(field), f"is not read here; the fields of a pool are {', '.join(FIELDS)}")
    now, name = time.time(), _name(given, "name", "").lower()
    gpus, caps = _numbers(given, "gpus", limits), _numbers(given, "gpu_caps", limits)
    if not gpus and not caps:
        raise invalid("gpus", 'is missing; send the number of workers by kind of machine, such as {"l4": 2}')
    bundle = given.get("bundle", settings.bundle)
    if bundle != settings.bundle:
        raise invalid("bundle", f"{shown(bundle)} is not that of this gateway, {settings.bundle!r} (SIE_BUNDLE)")
    minimum = given.get("minimum_worker_count", 0)
    if not _is_number(minimum, 0, limits.max_lease_workers):
        raise invalid("minimum_worker_count", f"must be a whole number from 0 to {limits.max_lease_workers}")
    return Lease(name, _name(given, "queue_pool", settings.pool), gpus, caps, minimum, now, now)


def _name(given: Mapping[str, Any], field: str, default: str) -> str:
    name = given.get(field, default)
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise invalid(field, "must be 1 to 64 letters, digits, _ or -")
    return name


def _numbers(given: Mapping[str, Any], field: str, limits: GatewayLimits) -> dict[str, int]:
    found, max_kinds, most = given.get(field) or {}, limits.max_lease_kinds, limits.max_lease_workers
    is_valid = isinstance(found, dict) and len(found) <= max_kinds
    if not is_valid or not all(
        isinstance(name, str) and NAME.fullmatch(name) and _is_number(number, 1, most) for name, number in found.items()
    ):
        raise invalid(field, f"must map up to {max_kinds} kinds of machines to a number from 1 to {most}")
    return dict(found)


def _is_number(value: Any, minimum: int, maximum: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum
