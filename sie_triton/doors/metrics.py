"""Serve the metrics of the door, the controller and Triton at one address.

Prometheus → /metrics → this process, the controller, tritonserver
"""

import asyncio

from starlette.responses import Response
from starlette.routing import Route

from sie_triton.doors.counts import exposition
from sie_triton.doors.endpoint import Door, DoorEndpoint, DoorRequest, get
from sie_triton.doors.openapi import TEXT, operation
from sie_triton.doors.schemas import STRING
from sie_triton.doors.server_metrics import EXPOSITION, read_parts


def routes(door: Door) -> list[Route]:
    document = operation("Metrics of the whole server, in Prometheus' text format.", answer=STRING, types=[TEXT])
    return [get("/metrics", DoorEndpoint(door, metrics, document=document))]


async def metrics(request: DoorRequest) -> Response:
    """Answer with the metrics of all parts that respond; the gauge `sie_up` is 0 for a part that does not."""
    own = await asyncio.to_thread(exposition)
    return Response(own + await read_parts(request.door.backend.metric_parts()), media_type=EXPOSITION)
