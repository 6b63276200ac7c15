"""Access control: bearer tokens, and protection against foreign web pages in a browser that can reach the door."""

import hmac
import ipaddress
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import sha256

from sie_triton.doors.failures import Failure
from sie_triton.settings import Settings, words

ONE_OF_TOKENS = "one of SIE_AUTH_TOKENS"


class Trust:
    """Checks callers against the settings, which hold at least one token if authentication is on."""

    def __init__(self, settings: Settings) -> None:
        self._tokens = [token.encode() for token in words(settings.auth_tokens)]
        self._admins = [settings.admin_token.encode()] if settings.admin_token else self._tokens
        self._wanted_of_admins = "SIE_ADMIN_TOKEN" if settings.admin_token else ONE_OF_TOKENS
        self._is_needed = settings.auth_mode != "none"
        self._origins = set(words(settings.door_cors_origins))
        self._hosts = {name.lower() for name in words(settings.door_allowed_hosts)}
        self._is_private = ipaddress.ip_address(settings.host).is_loopback and not self._is_needed

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise Failure 401 if a required token is missing, 403 for a web page that is not allowed."""
        self.check_browser(headers)
        self.check_token(headers.get(b"authorization"))

    def check_browser(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise Failure 403 for a page of a foreign origin, and for a foreign host name that resolves to this machine.

        Browsers send Origin with every POST and every WebSocket. Pages can change neither Origin nor Host.
        """
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if not self._may_be_called(name_of(host)):
            message = f"Host: {host[:80]} is not a name of this server; add it to SIE_DOOR_ALLOWED_HOSTS"
            raise Failure("forbidden", message)
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        is_own = origin.partition("://")[2] == host
        if origin and not is_own and not {"*", origin} & self._origins:
            message = f"Origin: pages from {origin[:80]} may not call this server; add it to SIE_DOOR_CORS_ORIGINS"
            raise Failure("forbidden", message)

    def _may_be_called(self, name: str) -> bool:
        if name in ("", "localhost") or is_address(name):  # probes use these; no web page can choose them
            return True
        return name in self._hosts if self._hosts else not self._is_private

    def check_token(self, authorization: bytes | None) -> None:
        """Raise Failure 401 unless the header holds a token, after Bearer, or alone, as SIE's clients may send it."""
        self._check(authorization, self._tokens, ONE_OF_TOKENS)

    def _check(self, authorization: bytes | None, tokens: Sequence[bytes], wanted: str) -> None:
        """Compare every token in constant time, so that timing reveals none of them."""
        if not self._is_needed:
            return
        given = _token_in(authorization)
        if not sum([hmac.compare_digest(given, known) for known in tokens]):
            message = f"the bearer token is missing or wrong; send Authorization: Bearer with {wanted}"
            raise Failure("unauthorized", message, headers={"WWW-Authenticate": "Bearer"})

    def check_admin(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise Failure as `check` does; the token must be the admin token, if there is one."""
        self.check_browser(headers)
        self._check(headers.get(b"authorization"), self._admins, self._wanted_of_admins)

    def tenant(self, authorization: bytes | None) -> str:
        """Return the name of a client by its token, which does not reveal it; empty if no token is needed."""
        return sha256(_token_in(authorization)).hexdigest()[:16] if self._is_needed else ""


def _token_in(authorization: bytes | None) -> bytes:
    given = (authorization or b"").strip()
    scheme, _, token = given.partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else given


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
