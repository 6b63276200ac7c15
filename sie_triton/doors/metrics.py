"""Serve the metrics of the door, the controller and Triton at one address.

Prometheus → /metrics → this process, the controller, tritonserver
"""

import asyncio
import urllib.request
from http.client import HTTPException

from starlette.responses import Response
from starlette.routing import Route

from sie_triton.doors.counts import exposition
from sie_triton.doors.endpoint import Door, DoorEndpoint, DoorRequest
from sie_triton.doors.openapi import TEXT, operation
from sie_triton.doors.schemas import STRING

# Timeout of a question to the controller or Triton, in seconds, and maximum size of its answer, in bytes.
PART_S, MAX_PART_BYTES = 5.0, 64 * 1024**2

EXPOSITION = f"{TEXT}; version=0.0.4"

UP = b"# HELP sie_up 1 if a part of the server answers\n# TYPE sie_up gauge\n"


def routes(door: Door) -> list[Route]:
    document = operation("Metrics of the whole server, in Prometheus' text format.", answer=STRING, types=[TEXT])
    return [Route("/metrics", DoorEndpoint(door, metrics, document=document), methods=["GET"], name="metrics")]


async def metrics(request: DoorRequest) -> Response:
    """Answer with all metrics that can be had now; the gauge `sie_up` says of which part there are none."""
    parts = request.door.backend.metric_parts
    texts = await asyncio.gather(*(asyncio.to_thread(read_part, each) for each in parts.values()))
    up = "".join(f'sie_up{{part="{name}"}} {int(bool(text))}\n' for name, text in zip(parts, texts, strict=True))
    own = await asyncio.to_thread(exposition)
    return Response(b"".join([UP, up.encode(), own, *texts]), media_type=EXPOSITION)


def read_part(request: urllib.request.Request) -> bytes:
    """Return the metrics of a part; empty if it does not answer, or answers too much."""
    try:
        with urllib.request.urlopen(request, timeout=PART_S) as answer:
            text: bytes = answer.read(MAX_PART_BYTES + 1)
    except (OSError, HTTPException):
        return b""
    return text if len(text) <= MAX_PART_BYTES else b""
