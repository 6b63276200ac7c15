"""Bearer tokens at the HTTP APIs that have an admin token."""

import hmac
from collections.abc import Callable, Sequence

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

WRONG_TOKEN = """\
the bearer token is missing or wrong; set SIE_ADMIN_TOKEN to the server's value; if the server has none, run the \
command as the server's user with its --data-dir, where the token is stored
"""  # noqa: S105

# Paths of probes; they need no token.
OPEN = ("/healthz", "/readyz")


def guard(admin_token: str, readers: Sequence[str], is_for_all: Callable[[web.Request], bool]) -> Middleware:
    """Return middleware that answers 401 to a request without the required token before it reads anything else.

    Requests for which `is_for_all` holds need `admin_token` or one of `readers`; without `readers` they need none.
    """
    admin, all_tokens = [admin_token.encode()], [each.encode() for each in (admin_token, *readers)]

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        may_all = is_for_all(request)
        is_open = may_all and (not readers or request.path in OPEN)
        if not is_open and not _has_token(request, all_tokens if may_all else admin):
            raise web.HTTPUnauthorized(text=WRONG_TOKEN, headers={"WWW-Authenticate": "Bearer"})
        return await handler(request)

    return guarded


def _has_token(request: web.Request, tokens: Sequence[bytes]) -> bool:
    """Compare with every token in constant time, so that timing reveals none of them."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    given = token.encode("utf-8", "surrogateescape")
    return scheme.lower() == "bearer" and bool(sum([hmac.compare_digest(given, each) for each in tokens]))
