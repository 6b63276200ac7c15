"""Small bodies, as those of model files, on a real connection."""

import asyncio
import logging

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from sie_triton.http.server import small_body
from tests.support.http_clients import client_of

HEAD = b"PUT / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"


async def size(request: Request) -> Response:
    return PlainTextResponse(str(len(await small_body(request, 10, timeout_s=0.5))))


async def sent(*parts: bytes, ends: bool = False) -> bytes:
    """Return the response to bytes on one connection, whose client `ends` after them, or waits."""
    async with client_of(Starlette(routes=[Route("/", size, methods=["PUT"])])) as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", client._base_url.port)
        for part in parts:
            writer.write(part)
            await writer.drain()
        if ends:
            writer.close()
            return b""
        return await reader.read()


@pytest.mark.parametrize(
    ("parts", "status"),
    [
        ([b"Content-Length: 10\r\n\r\n", b"a" * 10], b"200"),
        ([b"Content-Length: 0\r\n\r\n"], b"200"),
        ([b"Content-Length: 11\r\n\r\n", b"a" * 11], b"413"),
        ([b"Transfer-Encoding: chunked\r\n\r\n", b"6\r\naaaaaa\r\n" * 2], b"413"),
        ([b"Content-Length: 10\r\n\r\n", b"a"], b"408"),
    ],
)
def test_the_body_is_read_within_limits(parts, status):
    assert asyncio.run(sent(HEAD, *parts)).startswith(b"HTTP/1.1 " + status)


def test_a_client_that_disconnects_leaves_nothing_in_the_log(caplog):
    caplog.set_level(logging.ERROR)
    asyncio.run(sent(HEAD, b"Content-Length: 10\r\n\r\n", b"a", ends=True))
    assert caplog.messages == []
