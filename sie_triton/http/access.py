"""Access control of HTTP APIs: bearer tokens, and refusal of foreign web pages."""

import hmac
import ipaddress
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from sie_triton.settings import Settings, words
from sie_triton.settings.secrets import tokens

WRONG_TOKEN = """\
the bearer token is missing or wrong; set SIE_ADMIN_TOKEN to the server's value; if the server has none, run the \
command as the server's user with its --data-dir, where the token is stored
"""  # noqa: S105

Handler = Callable[[Request], Awaitable[Response]]


def is_one_of(token: bytes, allowed: Sequence[str]) -> bool:
    """Compare with every token in constant time, so that timing reveals none of them."""
    return bool(sum([hmac.compare_digest(token, each.encode()) for each in allowed]))


class Guard(NamedTuple):
    """Tokens of an API, as settings name them. Without tokens nobody may change anything, and everybody may read."""

    changes: str
    reads: str

    @classmethod
    def of(cls, settings: Settings, admin_token: str) -> "Guard":
        """Return a guard whose changes need `admin_token`; with auth_mode, reads need it or one of auth_tokens."""
        return cls(admin_token, f"{admin_token},{settings.auth_tokens}" if settings.asks_for_token else "")

    def change(self, handler: Handler) -> Handler:
        return _protected(handler, self.changes)

    def read(self, handler: Handler) -> Handler:
        return _protected(handler, self.reads) if self.reads else handler


def _protected(handler: Handler, allowed: str) -> Handler:
    """Return a handler that answers 401 to a request without an allowed token before it reads anything else."""

    async def protected(request: Request) -> Response:
        scheme, _, token = _header(request.headers, "Authorization").partition(b" ")
        if scheme.lower() != b"bearer" or not is_one_of(token, tokens(allowed)):
            raise HTTPException(401, WRONG_TOKEN, {"WWW-Authenticate": "Bearer"})
        return await handler(request)

    return protected


class WebPageGuard:
    """Middleware of a port that listens on `host`; it answers 403 to foreign web pages."""

    def __init__(self, app: ASGIApp, settings: Settings, host: str) -> None:
        self._app, self._web_pages = app, WebPages(settings, host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            if refusal := self._web_pages.refusal(_header(headers, "Host"), _header(headers, "Origin")):
                await PlainTextResponse(f"{refusal}\n", 403)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _header(headers: Headers, name: str) -> bytes:
    return headers.get(name, "").encode("latin-1")


class WebPages:
    """Tells requests of allowed web pages from those of others, for a port that listens on `host`."""

    def __init__(self, settings: Settings, host: str) -> None:
        self._origins = set(words(settings.door_cors_origins))
        self._hosts = {name.lower() for name in words(settings.door_allowed_hosts)}
        self._is_private = ipaddress.ip_address(host).is_loopback and not settings.asks_for_token

    def refusal(self, host: bytes, origin: bytes) -> str:
        """Return why a request with these headers is refused: a foreign origin, or a foreign name of this machine.

        Empty if the request is accepted. Browsers send Origin with every POST, PUT, DELETE and WebSocket. Pages can
        change neither Origin nor Host.
        """
        host_name, origin_name = host.decode("latin-1").lower(), origin.decode("latin-1").lower()
        if not self._may_be_called(name_of(host_name)):
            return f"Host: {host_name[:80]} is not a name of this server; add it to SIE_DOOR_ALLOWED_HOSTS"
        is_own = origin_name.partition("://")[2] == host_name
        if origin and not is_own and not {"*", origin_name} & self._origins:
            return f"Origin: pages from {origin_name[:80]} may not call this server; add it to SIE_DOOR_CORS_ORIGINS"
        return ""

    def _may_be_called(self, name: str) -> bool:
        if name in ("", "localhost") or is_address(name):  # probes use these; no web page can choose them
            return True
        return name in self._hosts if self._hosts else not self._is_private


def name_of(host: str) -> str:
    """Return a Host header without its port.

    >>> name_of("localhost:8080"), name_of("[::1]:8080"), name_of("door")
    ('localhost', '[::1]', 'door')
    """
    return host[: host.rfind("]") + 1] if host.startswith("[") else host.partition(":")[0]


@lru_cache(256)
def is_address(name: str) -> bool:
    """
    >>> is_address("127.0.0.1"), is_address("[::1]"), is_address("evil.example")
    (True, True, False)
    """
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
