"""Client of an endpoint over keep-alive connections: sends JSON, returns JSON bytes or raises one of our errors."""

import asyncio
import logging
import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Thread
from time import monotonic_ns

import aiohttp

from sie_triton.engines.remote.limits import LIMITS
from sie_triton.engines.remote.refusals import failure
from sie_triton.errors import DeadlinePassed, EndpointAway, ModelError, SIEError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EndpointRequest:
    """A request."""

    path: str
    body: bytes  # JSON
    most_bytes: int  # of the response
    deadline_ns: int | None = None  # monotonic
    is_first_try: bool = False  # the caller tries another path if this one is not found


class EndpointConnection:
    """Client of the endpoint at `url`; all requests carry `headers`. Thread-safe; requests run concurrently.

    It reuses connections, follows no redirects, stores no cookies, and reads neither proxies nor keys from the
    environment. At a deadline it closes the connection, which every HTTP server understands as a cancellation.
    """

    def __init__(self, url: str, headers: Mapping[str, str], timeout_s: float) -> None:
        self._url, self._headers = url, {**headers, "Content-Type": "application/json", "Accept-Encoding": "identity"}
        self._timeout_s = LIMITS.timeout_share * timeout_s
        self._has_answered = False
        self._logged = ("", 0)
        self._loop = asyncio.new_event_loop()
        Thread(target=self._loop.run_forever, name="endpoint", daemon=True).start()
        self._session = asyncio.run_coroutine_threadsafe(self._open(), self._loop).result()

    def ask(self, question: EndpointRequest) -> bytes:
        """Return the body of a successful response.

        Raise BusyError, InputError or LoadError according to the endpoint's status; ModelError for other failures.
        """
        try:
            body = asyncio.run_coroutine_threadsafe(self._in_time(question), self._loop).result()
        except SIEError as exc:
            if not question.is_first_try:
                self._log_once(str(exc))
            raise
        self._has_answered = True
        return body

    def _log_once(self, line: str) -> None:
        """Log a line, but not the same one within `log_again_ns`."""
        before, logged_ns = self._logged
        if line != before or monotonic_ns() - logged_ns > LIMITS.log_again_ns:
            self._logged = line, monotonic_ns()
            log.warning("%s", line)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._session.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)

    async def _open(self) -> aiohttp.ClientSession:
        return open_session(keeps_alive=True)

    async def _in_time(self, question: EndpointRequest) -> bytes:
        patience_s = self._timeout_s if self._has_answered else min(LIMITS.first_s, self._timeout_s)
        left_s = patience_s
        if question.deadline_ns is not None:
            left_s = min(patience_s, (question.deadline_ns - monotonic_ns()) / 1e9)
        try:
            async with asyncio.timeout(left_s):
                with endpoint_errors(self._url):
                    return await self._repeated(question)
        except TimeoutError as exc:
            if left_s < patience_s:
                raise DeadlinePassed(f"timeout: passed before {self._url} had answered") from exc
            raise ModelError(f"{self._url}: did not answer within {left_s:.3g} s") from exc

    async def _repeated(self, question: EndpointRequest) -> bytes:
        """Send the request, and once more if a reused connection was just closed: requests are idempotent."""
        try:
            return await self._post(question)
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            return await self._post(question)

    async def _post(self, question: EndpointRequest) -> bytes:
        asked = self._session.post(
            self._url + question.path, data=question.body, headers=self._headers, allow_redirects=False
        )
        async with asked as answer:
            body = bytearray()
            async for piece in answer.content.iter_any():
                body += piece
                if len(body) > question.most_bytes:
                    answer.close()
                    raise ModelError(f"{self._url}{question.path}: the response exceeds {question.most_bytes} bytes")
            if answer.status != 200:
                where = f"{self._url}{question.path}"
                raise failure(where, answer.status, answer.headers.get("Retry-After", ""), bytes(body))
            return bytes(body)


def open_session(*, keeps_alive: bool) -> aiohttp.ClientSession:
    """Return a session for endpoints; without `keeps_alive` each request opens a new connection."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=not keeps_alive),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=LIMITS.connect_s),
        auto_decompress=False,
        trust_env=False,
    )


@contextmanager
def endpoint_errors(url: str) -> Iterator[None]:
    """Raise aiohttp's errors as ours: EndpointAway if the endpoint at `url` is unreachable, else ModelError."""
    try:
        yield
    except (ssl.SSLError, aiohttp.ClientSSLError) as exc:
        raise ModelError(f"{url}: the TLS connection failed: {exc}") from exc
    except aiohttp.ClientConnectorError as exc:
        raise _unreachable(url, reason(exc.os_error)) from exc
    except aiohttp.ConnectionTimeoutError as exc:
        raise _unreachable(url, f"no connection within {LIMITS.connect_s:g} s") from exc
    except aiohttp.ClientPayloadError as exc:
        raise ModelError(f"{url}: the response was cut off") from exc
    except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as exc:
        raise _unreachable(url, exc) from exc
    except (aiohttp.ClientError, ValueError) as exc:
        raise ModelError(f"{url}: the server there does not speak HTTP ({type(exc).__name__})") from exc


def _unreachable(url: str, why: object) -> EndpointAway:
    message = f"{url}: the endpoint does not answer ({why}); retry in {LIMITS.retry_s} s"
    return EndpointAway(message, retry_after_s=LIMITS.retry_s)


def reason(error: OSError) -> str:
    """Return the system's message for a connection error.

    >>> reason(ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 9)")), reason(OSError(-2, "no such name"))
    ('Connection refused', 'no such name')
    """
    number = error.errno or 0
    return os.strerror(number) if number > 0 else error.strerror or type(error).__name__
