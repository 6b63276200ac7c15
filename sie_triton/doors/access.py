"""Access control: bearer tokens, and protection against foreign web pages in a browser that can reach the door."""

from collections.abc import Mapping
from hashlib import sha256

from sie_triton.doors.failures import Failure
from sie_triton.http.access import WebPages, is_one_of
from sie_triton.settings import Settings
from sie_triton.settings.secrets import tokens

ONE_OF_TOKENS = "one of SIE_AUTH_TOKENS"


class Access:
    """Checks callers against the settings, which hold at least one token if authentication is on."""

    def __init__(self, settings: Settings) -> None:
        self._tokens, self._admin_token = settings.auth_tokens, settings.admin_token
        self._wanted_of_admins = "SIE_ADMIN_TOKEN" if settings.admin_token else ONE_OF_TOKENS
        self._is_needed = settings.asks_for_token
        self._web_pages = WebPages(settings, settings.host)

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise Failure 401 if a required token is missing, 403 for a web page that is not allowed."""
        self.check_browser(headers)
        self.check_token(headers.get(b"authorization"))

    def check_browser(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise Failure 403 for a page of a foreign origin, or a foreign host name that resolves to this machine."""
        if refusal := self._web_pages.refusal(headers.get(b"host", b""), headers.get(b"origin", b"")):
            raise Failure("forbidden", refusal)

    def check_token(self, authorization: bytes | None) -> None:
        """Raise Failure 401 unless the header holds a token, after Bearer, or alone, as SIE's clients may send it."""
        self._check(authorization, self._tokens, ONE_OF_TOKENS)

    def _check(self, authorization: bytes | None, allowed: str, wanted: str) -> None:
        if self._is_needed and not is_one_of(_token_in(authorization), tokens(allowed)):
            message = f"the bearer token is missing or wrong; send Authorization: Bearer with {wanted}"
            raise Failure("unauthorized", message, headers={"WWW-Authenticate": "Bearer"})

    def check_admin(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise Failure as `check` does; the token must be the admin token, if there is one."""
        self.check_browser(headers)
        self._check(headers.get(b"authorization"), self._admin_token or self._tokens, self._wanted_of_admins)

    def tenant(self, authorization: bytes | None) -> str:
        """Return the name of a client by its token, which does not reveal it; empty if no token is needed."""
        return _name(_token_in(authorization)) if self._is_needed else ""

    def tenants(self) -> set[str]:
        """Return the names of all clients that are allowed now; the empty one if no token is needed."""
        return {_name(token.encode()) for token in tokens(self._tokens)} if self._is_needed else {""}


def _name(token: bytes) -> str:
    return sha256(token).hexdigest()[:16]


def _token_in(authorization: bytes | None) -> bytes:
    given = (authorization or b"").strip()
    scheme, _, token = given.partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else given
