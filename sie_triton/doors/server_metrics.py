"""Read the metrics of one server's parts, for its door, or for its sidecar.

Prometheus → /metrics of a door or sidecar → the controller, tritonserver
"""

import asyncio
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException

from sie_triton.doors.limits import DoorLimits

EXPOSITION = "text/plain; version=0.0.4"

UP = b"# HELP sie_up 1 if a part of the server answers\n# TYPE sie_up gauge\n"


async def read_parts(
    parts: Mapping[str, urllib.request.Request], max_bytes: int = DoorLimits.part_metrics_bytes
) -> bytes:
    """Return the metrics of the parts that answer now, within `max_bytes`, and the gauge `sie_up` of each part."""
    texts = await asyncio.gather(*(asyncio.to_thread(_read, each, max_bytes) for each in parts.values()))
    up = "".join(f'sie_up{{part="{name}"}} {int(bool(text))}\n' for name, text in zip(parts, texts, strict=True))
    return b"".join([UP, up.encode(), *texts])


def _read(request: urllib.request.Request, max_bytes: int) -> bytes:
    """Return the metrics of a part; empty if it does not answer, or answers too much."""
    try:
        with urllib.request.urlopen(request, timeout=5.0) as answer:
            text: bytes = answer.read(max_bytes + 1)
    except (OSError, HTTPException):
        return b""
    return text if len(text) <= max_bytes else b""
