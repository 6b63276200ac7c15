"""uvicorn's server with this package's connections, which the program around it ends, and bodies of small requests."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from typing import Any

import uvicorn
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp

from sie_triton.http.connection import Connection, Connections
from sie_triton.http.limits import ConnectionLimits

# Connections that wait to be accepted.
BACKLOG = 2048


class HttpServer(uvicorn.Server):
    """Server of `app` whose open connections `connections` bounds. `drain_s`: see timeout_graceful_shutdown."""

    def __init__(
        self,
        app: ASGIApp,
        connections: Connections,
        drain_s: int,
        ws: Any = "none",
        limits: ConnectionLimits = ConnectionLimits(),
    ) -> None:
        # uvicorn logs a warning for each invalid request, with which any client could fill the disk.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        self._connections, self._limits = connections, limits
        super().__init__(
            uvicorn.Config(
                app,
                http=Connection,
                ws=ws,
                ws_max_size=limits.message_bytes,
                ws_per_message_deflate=False,
                loop="asyncio",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=drain_s,
                timeout_keep_alive=limits.keep_alive_s,
                backlog=limits.accepts_per_turn,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.lifespan.state |= {"connections": self._connections, "limits": self._limits}
        await super().startup(sockets)
        for each in sockets or []:
            each.listen(BACKLOG)


class _Guest(HttpServer):
    """Server in a program that handles signals itself, and calls `end`."""

    def __init__(self, app: ASGIApp, connections: Connections, limits: ConnectionLimits) -> None:
        super().__init__(app, connections, drain_s=1, limits=limits)
        self._ending = asyncio.Event()

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()

    def end(self) -> None:
        self.should_exit = True
        self._ending.set()

    async def main_loop(self) -> None:
        """Update the date of responses, until `end`; uvicorn's own loop wakes ten times a second."""
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), self._limits.date_s)


@asynccontextmanager
async def serving(
    app: ASGIApp,
    host: str,
    port: int,
    max_connections: int,
    *,
    reuse_port: bool = False,
    limits: ConnectionLimits = ConnectionLimits(),
) -> AsyncIterator[int]:
    """Serve `app` on the running event loop until the block ends; yield the port, which 0 leaves to the system."""
    with listening(host, port, reuse_port=reuse_port) as listener:
        server = _Guest(app, Connections(max_connections), limits)
        task = asyncio.create_task(server.serve([listener]))
        try:
            while not server.started and not task.done():
                await asyncio.sleep(0.005)
            yield listener.getsockname()[1]
        finally:
            server.end()
            await task


def listening(host: str, port: int, *, reuse_port: bool) -> socket.socket:
    """Return a listening socket. With `reuse_port`, the system divides connections among the processes that listen."""
    # asyncio disables Nagle's algorithm only if a socket names its protocol. With the algorithm, the second write of a
    # response waits for an acknowledgement.
    listener = socket.socket(proto=socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if reuse_port:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((host, port))
    except OSError as exc:
        listener.close()
        raise OSError(exc.errno, f"{exc.strerror}: {host}:{port}") from None
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener


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
