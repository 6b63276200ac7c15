"""Until when a call may take, and what is tried again: only UNAVAILABLE, with jitter, within the caller's time.

Encoding changes nothing on the server, so a request that it did not take can be sent again.
"""

import logging
from dataclasses import dataclass
from time import monotonic
from typing import Any

from tenacity import before_sleep_log, retry_if_exception_type, stop_before_delay, wait_random_exponential

from sie_triton.errors import BusyError

_log = logging.getLogger(__name__)

# Without a time of the caller's, a busy server is asked again for so long.
PATIENCE_S = 30.0

# The server answers at the deadline itself; the transport gives up a little later.
GRACE_S = 1.0


@dataclass(frozen=True, slots=True)
class Deadline:
    """`at` is monotonic seconds, None for no limit."""

    at: float | None

    @classmethod
    def after(cls, timeout: float | None) -> "Deadline":
        return cls(None if timeout is None else monotonic() + timeout)

    def arguments(self, transport: str) -> dict[str, Any]:
        """Keyword arguments for tritonclient's `infer`: microseconds for the server, seconds for gRPC."""
        if self.at is None:
            return {}
        left = max(1e-6, self.at - monotonic())
        return {"timeout": int(left * 1e6)} | ({"client_timeout": left + GRACE_S} if transport == "grpc" else {})

    def retrying(self) -> dict[str, Any]:
        """Keyword arguments for tenacity's Retrying and AsyncRetrying."""
        patience = PATIENCE_S if self.at is None else max(0.0, self.at - monotonic())
        return {
            "retry": retry_if_exception_type(BusyError),
            "wait": wait_random_exponential(multiplier=0.1, max=2),
            "stop": stop_before_delay(patience),
            "before_sleep": before_sleep_log(_log, logging.DEBUG),
            "reraise": True,
        }
