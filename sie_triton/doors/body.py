"""Read the body of a request within limits: its size, the memory of all bodies together, and its duration."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from starlette.types import Receive

from sie_triton.doors.failures import Failure, invalid
from sie_triton.doors.memory import Held, out_of_memory

# Timeout of a body, in seconds; every BYTES_A_SECOND bytes received extend it by one second.
BODY_S, BYTES_A_SECOND = 10.0, 256 * 1024

# Response header that closes the connection without waiting for the rest of the body.
CLOSE = {"Connection": "close"}


async def read_body(receive: Receive, headers: Mapping[bytes, bytes], max_bytes: int, held: Held) -> bytearray:
    """Return the whole body, charged to `held`.

    Failure 413 as soon as the body is too large, 408 if it arrives too slowly, 415 if it is compressed, and 503 if the
    bodies in progress hold too much memory. A slow upload is ended when other requests need its memory.
    """
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise Failure("media_type", "Content-Encoding: compressed bodies are not supported; send it uncompressed")
    with suppress(ValueError):  # the HTTP parser has already refused an invalid number
        if int(headers.get(b"content-length", b"0")) > max_bytes:
            raise _too_large(max_bytes)
    try:
        async with asyncio.timeout(BODY_S) as limit:
            held.end_upload = lambda: limit.reschedule(0) if not limit.expired() else None
            return await _read(receive, max_bytes, limit, held)
    except TimeoutError as exc:
        raise out_of_memory() if held.is_cut else _too_slow() from exc
    finally:
        held.end_upload = None


async def _read(receive: Receive, max_bytes: int, limit: asyncio.Timeout, held: Held) -> bytearray:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise invalid("body", "the connection ended before the body was complete")
        chunk = message.get("body", b"")
        if len(body) + len(chunk) > max_bytes:
            raise _too_large(max_bytes)
        held.take(len(chunk))
        body += chunk
        if not message.get("more_body", False):
            return body
        when = limit.when()
        if when is not None:
            limit.reschedule(when + len(chunk) / BYTES_A_SECOND)


def _too_large(max_bytes: int) -> Failure:
    message = f"body: has more than {max_bytes} bytes, the limit of SIE_DOOR_MAX_BODY_BYTES; send fewer items"
    return Failure("too_large", message, headers=CLOSE)


def _too_slow() -> Failure:
    message = (
        f"body: did not arrive within {BODY_S:.0f} s plus one second for each {BYTES_A_SECOND} bytes; send it faster"
    )
    return Failure("too_slow", message, headers=CLOSE)
