"""A client of an application that is served as in its process."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from aiohttp import ClientSession
from starlette.types import ASGIApp

from sie_triton.http.server import serving


@asynccontextmanager
async def client_of(
    app: ASGIApp, port: int = 0, headers: Mapping[str, str] | None = None, max_connections: int = 64
) -> AsyncIterator[ClientSession]:
    """Serve `app` at `port`, 0 meaning any, and yield a client of it."""
    async with (
        serving(app, "127.0.0.1", port, max_connections) as served,
        ClientSession(f"http://127.0.0.1:{served}", headers=headers) as client,
    ):
        yield client
