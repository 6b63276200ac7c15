"""Read the body of a request within limits: its size, the memory of all bodies together, and its duration."""

import asyncio
from collections.abc import AsyncIterator, Mapping
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
    problem = f"body: has more than {max_bytes} bytes, the limit of SIE_DOOR_MAX_BODY_BYTES; send fewer items"
    too_large = Failure("too_large", problem, headers=CLOSE)
    check_head(headers, max_bytes, too_large)
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_timeout_s) as timeout:
            held.end_upload = lambda: timeout.reschedule(0) if not timeout.expired() else None
            async for part in parts(receive, max_bytes, too_large, timeout, limits.body_bytes_per_s):
                held.take(len(part))
                body += part
            return body
    except TimeoutError as exc:
        raise out_of_memory() if held.is_cut else too_slow(limits) from exc
    finally:
        held.end_upload = None


def check_head(headers: Mapping[bytes, bytes], max_bytes: int, too_large: Failure) -> None:
    """Raise Failure for a body that is compressed, or says that it has more than `max_bytes`."""
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise Failure("media_type", "Content-Encoding: compressed bodies are not supported; send it uncompressed")
    with suppress(ValueError):  # the HTTP parser has already refused an invalid number
        if int(headers.get(b"content-length", b"0")) > max_bytes:
            raise too_large


async def parts(
    receive: Receive, max_bytes: int, too_large: Failure, timeout: asyncio.Timeout, bytes_per_s: int
) -> AsyncIterator[bytes]:
    """Yield the parts of a body as they arrive, each of which postpones the timeout."""
    num_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise invalid("body", "the connection ended before the body was complete")
        chunk = message.get("body", b"")
        num_bytes += len(chunk)
        if num_bytes > max_bytes:
            raise too_large
        yield chunk
        if not message.get("more_body", False):
            return
        when = timeout.when()
        if when is not None:
            timeout.reschedule(when + len(chunk) / bytes_per_s)


def too_slow(limits: DoorLimits) -> Failure:
    allowed = f"{limits.body_timeout_s:.0f} s plus one second for each {limits.body_bytes_per_s} bytes"
    message = f"body: did not arrive within {allowed}; send it faster"
    return Failure("too_slow", message, headers=CLOSE)
