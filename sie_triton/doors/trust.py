"""Who may call: bearer tokens."""

import hmac

from sie_triton.doors.failures import Failure
from sie_triton.settings import Settings, words


class Trust:
    """By the settings, which hold at least one token where one is needed."""

    def __init__(self, settings: Settings) -> None:
        self._tokens = [token.encode() for token in words(settings.auth_tokens)]
        self._is_needed = settings.auth_mode != "none"

    def check(self, authorization: bytes | None) -> None:
        """Failure 401 unless that is one of the tokens: as Bearer, or bare as SIE's clients may send it.

        Every token is compared, in constant time, so that time tells nothing about any.
        """
        if not self._is_needed:
            return
        given = (authorization or b"").strip()
        scheme, _, token = given.partition(b" ")
        if scheme.lower() == b"bearer":
            given = token.strip()
        if not sum([hmac.compare_digest(given, known) for known in self._tokens]):
            message = "the bearer token is missing or wrong; send Authorization: Bearer and one of SIE_AUTH_TOKENS"
            raise Failure(401, "UNAUTHORIZED", message, headers={"WWW-Authenticate": "Bearer"})
