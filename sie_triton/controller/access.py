"""Protection of the HTTP APIs beside the door: bearer tokens, and refusal of foreign web pages."""

import hmac
from collections.abc import Callable, Sequence

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from sie_triton.settings import Settings, words
from sie_triton.settings.web_pages import WebPages

WRONG_TOKEN = """\
the bearer token is missing or wrong; set SIE_ADMIN_TOKEN to the server's value; if the server has none, run the \
command as the server's user with its --data-dir, where the token is stored
"""  # noqa: S105

# Paths of probes; they need no token.
OPEN = ("/healthz", "/readyz")


def guard(settings: Settings, admin_token: str, is_for_all: Callable[[web.Request], bool]) -> Middleware:
    """Return middleware that answers 401 to a request without the required token before it reads anything else.

    Requests for which `is_for_all` holds need `admin_token` or one of auth_tokens; without auth_mode they need none.
    """
    readers = words(settings.auth_tokens) if settings.asks_for_token else ()
    admin, all_tokens = [admin_token.encode()], [each.encode() for each in (admin_token, *readers)]

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        may_all = is_for_all(request)
        is_open = may_all and (not readers or request.path in OPEN)
        if not is_open and not _has_token(request, all_tokens if may_all else admin):
            raise web.HTTPUnauthorized(text=WRONG_TOKEN, headers={"WWW-Authenticate": "Bearer"})
        return await handler(request)

    return guarded


def web_page_guard(settings: Settings, host: str) -> Middleware:
    """Return middleware of a port that listens on `host`; it answers 403 to foreign web pages."""
    web_pages = WebPages(settings, host)

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        if refusal := web_pages.refusal(_header(request, "Host"), _header(request, "Origin")):
            raise web.HTTPForbidden(text=f"{refusal}\n")
        return await handler(request)

    return guarded


def _header(request: web.Request, name: str) -> bytes:
    return request.headers.get(name, "").encode("utf-8", "surrogateescape")


def _has_token(request: web.Request, tokens: Sequence[bytes]) -> bool:
    """Compare with every token in constant time, so that timing reveals none of them."""
    scheme, _, token = _header(request, "Authorization").partition(b" ")
    return scheme.lower() == b"bearer" and bool(sum([hmac.compare_digest(token, each) for each in tokens]))
