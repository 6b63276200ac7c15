"""Read the metrics of one server's parts, for its door, or for its sidecar.

Prometheus → /metrics of a door or sidecar → the controller, tritonserver
"""

import asyncio
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException

# Timeout of a part, in seconds, and maximum size of its metrics, in bytes; 2,000 models with traffic have about that.
PART_S, MAX_PART_BYTES = 5.0, 16 * 1024**2

EXPOSITION = "text/plain; version=0.0.4"

UP = b"# HELP sie_up 1 if a part of the server answers\n# TYPE sie_up gauge\n"


async def read_parts(parts: Mapping[str, urllib.request.Request]) -> bytes:
    """Return the metrics of the parts that answer now, and the gauge `sie_up` of each part."""
    texts = await asyncio.gather(*(asyncio.to_thread(_read, each) for each in parts.values()))
    up = "".join(f'sie_up{{part="{name}"}} {int(bool(text))}\n' for name, text in zip(parts, texts, strict=True))
    return b"".join([UP, up.encode(), *texts])


def _read(request: urllib.request.Request) -> bytes:
    """Return the metrics of a part; empty if it does not answer, or answers too much."""
    try:
        with urllib.request.urlopen(request, timeout=PART_S) as answer:
            text: bytes = answer.read(MAX_PART_BYTES + 1)
    except (OSError, HTTPException):
        return b""
    return text if len(text) <= MAX_PART_BYTES else b""
