"""Limits of a connection of our HTTP servers."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits of each client's connection."""

    head_bytes: int = 32 * 1024  # headers, or trailers; what arrives with a request's first bytes does not count
    num_pipelined: int = 16  # requests that a client may send before the first of them is answered
    head_timeout_s: float = 10.0  # headers, from the first byte of a request, or the start of the connection
    rest_timeout_s: float = 2.0  # rest of a body whose request is answered; then the connection stays open
    read_bytes: int = 256 * 1024  # a client must read as much of a response ...
    read_s: float = 10.0  # ... in so much time
    keep_alive_s: int = 75  # longer than clients keep idle connections, so that the client always closes first
    message_bytes: int = 64 * 1024  # of a message that a client sends on a WebSocket
    date_s: float = 1.0  # between two updates of the date in responses
    accepts_per_turn: int = 32  # connections that asyncio accepts before any of them is counted
