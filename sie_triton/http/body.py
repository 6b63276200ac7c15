"""Bodies of small requests, read within limits."""

import asyncio

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request


async def small_body(request: Request, max_bytes: int, timeout_s: float = 30.0) -> bytes:
    """Return the whole body. HTTPException 413 if it is larger than `max_bytes`, 408 if it arrives too slowly."""
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            async for chunk in request.stream():
                body += chunk
                if len(body) > max_bytes:
                    raise HTTPException(413, f"body: has more than {max_bytes} bytes\n", {"Connection": "close"})
    except TimeoutError as exc:
        raise HTTPException(408, f"body: did not arrive within {timeout_s:g} s\n", {"Connection": "close"}) from exc
    except ClientDisconnect as exc:
        raise HTTPException(400, "body: the connection ended before it was complete\n") from exc
    return bytes(body)
