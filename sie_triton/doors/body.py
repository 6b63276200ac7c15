"""Read the body of a request within limits: its size, the memory of all bodies together, and its duration."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from starlette.types import Receive

from sie_triton.doors.failures import Failure, invalid
from sie_triton.doors.limits import DoorLimits
from sie_triton.doors.memory import Held, out_of_memory

# Response header that closes the connection without waiting for the rest of the body.
CLOSE = {"Connection": "close"}


async def read_body(
    receive: Receive, headers: Mapping[bytes, bytes], max_bytes: int, held: Held, limits: DoorLimits
) -> bytearray:
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
        async with asyncio.timeout(limits.body_timeout_s) as timeout:
            held.end_upload = lambda: timeout.reschedule(0) if not timeout.expired() else None
            return await _read(receive, max_bytes, timeout, held, limits.body_bytes_per_s)
    except TimeoutError as exc:
        raise out_of_memory() if held.is_cut else _too_slow(limits) from exc
    finally:
        held.end_upload = None


async def _read(receive: Receive, max_bytes: int, timeout: asyncio.Timeout, held: Held, bytes_per_s: int) -> bytearray:
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
        when = timeout.when()
        if when is not None:
            timeout.reschedule(when + len(chunk) / bytes_per_s)


def _too_large(max_bytes: int) -> Failure:
    message = f"body: has more than {max_bytes} bytes, the limit of SIE_DOOR_MAX_BODY_BYTES; send fewer items"
    return Failure("too_large", message, headers=CLOSE)


def _too_slow(limits: DoorLimits) -> Failure:
    allowed = f"{limits.body_timeout_s:.0f} s plus one second for each {limits.body_bytes_per_s} bytes"
    message = f"body: did not arrive within {allowed}; send it faster"
    return Failure("too_slow", message, headers=CLOSE)
