"""Protection against foreign web pages in a browser that can reach a port."""

import ipaddress
from functools import lru_cache

from sie_triton.settings import Settings, words


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
