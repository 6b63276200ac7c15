"""The body of a request, read within limits: of its size while it comes, and of how slowly it may."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from starlette.types import Receive

from sie_triton.doors.failures import Failure, invalid

# A body may take so long, and a second more for each so many bytes that are there.
BODY_S, BYTES_A_SECOND = 10.0, 256 * 1024

# What is left of the body is not waited for.
CLOSE = {"Connection": "close"}


async def read_body(receive: Receive, headers: Mapping[bytes, bytes], max_bytes: int) -> bytes:
    """All of it; Failure 413 as soon as it is too large, 408 where it trickles, 415 where it is compressed."""
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise Failure(415, "INVALID_INPUT", "Content-Encoding: bodies are read as they are; send it uncompressed")
    with suppress(ValueError):  # HTTP's own parser has refused what is no number
        if int(headers.get(b"content-length", b"0")) > max_bytes:
            raise _too_large(max_bytes)
    try:
        async with asyncio.timeout(BODY_S) as limit:
            return await _read(receive, max_bytes, limit)
    except TimeoutError as exc:
        message = f"body: did not come within {BODY_S:.0f} s, and a second more for each {BYTES_A_SECOND} bytes"
        raise Failure(408, "REQUEST_TIMEOUT", message, headers=CLOSE) from exc


async def _read(receive: Receive, max_bytes: int, limit: asyncio.Timeout) -> bytes:
    chunks: list[bytes] = []
    num_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise invalid("body: ended before it was whole")
        chunk = message.get("body", b"")
        num_bytes += len(chunk)
        if num_bytes > max_bytes:
            raise _too_large(max_bytes)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)
        when = limit.when()
        if when is not None:
            limit.reschedule(when + len(chunk) / BYTES_A_SECOND)


def _too_large(max_bytes: int) -> Failure:
    message = f"body: has more than {max_bytes} bytes, the most that SIE_DOOR_MAX_BODY_BYTES allows; send fewer items"
    return Failure(413, "PAYLOAD_TOO_LARGE", message, headers=CLOSE)
