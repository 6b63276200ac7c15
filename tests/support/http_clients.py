"""A client of an application that is served as in its process."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from aiohttp import ClientSession
from starlette.types import ASGIApp

from sie_triton.http.connections import Connections
from sie_triton.http.server import listening, serving


@asynccontextmanager
async def client_of(
    app: ASGIApp, port: int = 0, headers: Mapping[str, str] | None = None, max_connections: int = 64
) -> AsyncIterator[ClientSession]:
    """Serve `app` at `port`, 0 meaning any, and yield a client of it."""
    with listening("127.0.0.1", port, reuse_port=False) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with (
            serving(app, listener, Connections(max_connections), drain_s=1),
            ClientSession(url, headers=headers) as client,
        ):
            yield client
