"""Passes requests on to endpoints, and gives their answers a piece at a time; nothing is computed here."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from io import BytesIO
from typing import NamedTuple

import aiohttp

from sie_triton.contract.spec import Endpoint, ModelSpec
from sie_triton.engines.remote.connection import endpoint_errors, open_session
from sie_triton.engines.remote.engine import headers
from sie_triton.engines.remote.limits import LIMITS
from sie_triton.errors import BusyError, DeadlinePassed, ModelError

EVENT_STREAM = "text/event-stream"


class Patience(NamedTuple):
    """`wait_s` limits the wait for each part of an answer, `until` on the event loop's clock the whole answer."""

    wait_s: float
    until: float

    @asynccontextmanager
    async def limit(self, where: str) -> AsyncIterator[None]:
        """Raise DeadlinePassed if the context is not left in time."""
        until = min(self.until, asyncio.get_running_loop().time() + self.wait_s)
        try:
            async with asyncio.timeout_at(until):
                yield
        except TimeoutError as exc:
            raise DeadlinePassed(f"timeout: passed while {where} was silent") from exc


class EndpointAnswer:
    """Answer of an endpoint, whose body is read on demand. `close` ends the request there if it still runs.

    Its methods raise ModelError if the answer is cut off, EndpointAway if the endpoint goes, and DeadlinePassed.
    """

    def __init__(
        self, where: str, response: aiohttp.ClientResponse, patience: Patience, when_closed: Callable[[], object]
    ) -> None:
        self.where, self.status, self.headers = where, response.status, response.headers
        self.media_type = response.content_type
        self._response, self._patience, self._when_closed = response, patience, when_closed

    @property
    def is_stream(self) -> bool:
        is_plain = self.headers.get("Content-Encoding", "identity") == "identity"
        return self.status == 200 and self.media_type == EVENT_STREAM and is_plain

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives. The endpoint waits while the caller does not ask for more."""
        while piece := await self._next():
            yield piece

    async def events(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives, in whole events as far as these are not larger than `max_event_bytes`.

        If the body breaks, the caller can still send an event of its own.
        """
        rest = b""
        async for piece in self.pieces():
            rest += piece
            end = event_end(rest) or (len(rest) if len(rest) > LIMITS.max_event_bytes else 0)
            if end:
                yield rest[:end]
                rest = rest[end:]
        if rest:
            yield rest

    async def body(self, take: Callable[[int], object]) -> bytes:
        """Return the whole body, whose size is charged to `take`."""
        body = bytearray()
        async for piece in self.pieces():
            take(len(piece))
            body += piece
            if len(body) > LIMITS.max_forwarded_bytes:
                raise ModelError(f"{self.where}: the response exceeds {LIMITS.max_forwarded_bytes} bytes")
        return bytes(body)

    def close(self) -> None:
        self._response.close()
        self._when_closed()

    async def _next(self) -> bytes:
        with endpoint_errors(self.where):
            async with self._patience.limit(self.where):
                return await self._response.content.readany()


def event_end(part: bytes) -> int:
    """Return the length of the whole events at the start of a part of an event stream.

    >>> event_end(b"data: 1\\n\\ndata"), event_end(b"data: 1\\r\\n\\r\\ndata"), event_end(b"data: 1\\ndata")
    (9, 11, 0)
    """
    return max(part.rfind(end) + len(end) if end in part else 0 for end in (b"\n\n", b"\n\r\n"))


class Forwarder:
    """Client of the endpoints of all forwarded models. Belongs to one event loop.

    Each request opens a new connection, so that closing it cancels the request in every server. It follows no
    redirects, stores no cookies, and reads neither proxies nor keys from a client or, but for `api_key_env`, from the
    environment. At most `max_requests` of a model are in progress; `too_many` makes the error of others.
    """

    def __init__(self, max_requests: int, too_many: Callable[[int], BusyError]) -> None:
        self._max_requests, self._too_many = max_requests, too_many
        self._session = open_session(keeps_alive=False)
        self._num_open: Counter[str] = Counter()
        self._own_headers: dict[Endpoint, Mapping[str, str]] = {}

    async def post(
        self, spec: ModelSpec, path: str, body: bytes, identity: Mapping[str, str], patience: Patience
    ) -> EndpointAnswer:
        """Send JSON; return the answer, which the caller closes.

        Raise BusyError beyond the limit of requests, LoadError without the key, EndpointAway if the endpoint is
        unreachable, ModelError if it does not speak HTTP, and DeadlinePassed.
        """
        assert spec.endpoint is not None
        if self._num_open[spec.model] >= self._max_requests:
            raise self._too_many(self._max_requests)
        where, sent = spec.endpoint.url + path, {**self._headers(spec.endpoint), **identity}
        self._num_open[spec.model] += 1
        try:
            with endpoint_errors(where):
                async with patience.limit(where):
                    response = await self._session.post(where, data=BytesIO(body), headers=sent, allow_redirects=False)
        except BaseException:
            self._leave(spec.model)
            raise
        return EndpointAnswer(where, response, patience, lambda: self._leave(spec.model))

    async def close(self) -> None:
        await self._session.close()

    def _leave(self, model: str) -> None:
        self._num_open[model] -= 1

    def _headers(self, endpoint: Endpoint) -> Mapping[str, str]:
        """Return the headers of all requests to an endpoint, with its key."""
        if endpoint not in self._own_headers:
            own = {"Accept": f"application/json, {EVENT_STREAM}", "Accept-Encoding": "identity"}
            self._own_headers[endpoint] = {**headers(endpoint), "Content-Type": "application/json", **own}
        return self._own_headers[endpoint]
