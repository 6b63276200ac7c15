"""Access control of HTTP APIs: bearer tokens, and refusal of foreign web pages."""

import hmac
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from sie_triton.http.web_pages import WebPages
from sie_triton.settings import Settings
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
