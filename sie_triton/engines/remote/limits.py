"""Times and sizes of calls to an endpoint."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RemoteLimits:
    first_s: float = 30.0  # until an endpoint's first response: a wrong address is found early
    connect_s: float = 5.0
    timeout_share: float = 0.95  # of SIE_FORWARD_TIMEOUT_S: a request ends before the stage ends this process
    retry_s: int = 1
    log_again_ns: int = 10 * 10**9  # until the same line is logged again: requests may fail hundreds of times a second
    max_retry_s: int = 3600
    max_message_characters: int = 300
    max_event_bytes: int = 1024**2  # of a forwarded event that is held until it is complete
    max_forwarded_bytes: int = 64 * 1024**2  # of a forwarded answer that is no stream
    bytes_a_number: int = 64  # of a response: about 20 characters, and much room for spaces
    frame_bytes: int = 100_000  # of a response, besides its numbers


LIMITS = RemoteLimits()
