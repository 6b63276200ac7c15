"""Until when a call may take, and what is tried again: only UNAVAILABLE, with jitter, within the caller's time.

No verb changes anything on the server, so a request that it did not take, or that it took and did not
answer because it ended, can be sent again.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from time import monotonic
from typing import Any

from tenacity import RetryCallState, before_sleep_log, retry_if_exception_type, wait_random_exponential

from sie_triton.errors import BusyError, InputError, Unreachable

_log = logging.getLogger(__name__)

# Without a time of the caller's, a server that is busy or away is asked again for so long,
PATIENCE_S = 30.0
# and one that never answered this client, so that its address may be wrong, for so long.
FIRST_PATIENCE_S = 2.0

# The server answers at the deadline itself; the transport gives up a little later. A gRPC client that hangs up in the
# moment of the answer can end Triton 24.10, so that there it is much later.
GRACE_S = {"http": 0.25, "grpc": 1.0}

# Without a time of the caller's, one request; a large model may have to be loaded for it.
NETWORK_TIMEOUT_S = 600.0

MAX_TIMEOUT_S = 86_400.0


def checked_timeout(timeout: float | None) -> float | None:
    is_number = isinstance(timeout, Real) and not isinstance(timeout, bool)
    if timeout is not None and not (is_number and 0 < timeout <= MAX_TIMEOUT_S):
        raise InputError(
            f"timeout: must be seconds above 0, {MAX_TIMEOUT_S:.0f} at most, or None for no limit; it is {timeout!r}"
        )
    return timeout


@dataclass(frozen=True, slots=True)
class Deadline:
    """`at` is monotonic seconds, None for no limit."""

    at: float | None

    @classmethod
    def after(cls, timeout: float | None) -> "Deadline":
        seconds = checked_timeout(timeout)
        return cls(None if seconds is None else monotonic() + seconds)

    @property
    def left_s(self) -> float:
        return NETWORK_TIMEOUT_S if self.at is None else max(0.0, self.at - monotonic())

    def wait_s(self, transport: str) -> float:
        """When the transport gives up."""
        return self.left_s + (0 if self.at is None else GRACE_S[transport])

    def parameters(self) -> dict[str, int]:
        """Keyword arguments for tritonclient's `infer`: what the server is told, in microseconds."""
        if self.at is None:
            return {}
        if not self.left_s:
            raise BusyError("timeout: passed before the request was sent")
        return {"timeout": max(1, int(self.left_s * 1e6))}

    def retrying(self, is_met: Callable[[], bool]) -> dict[str, Any]:
        """Keyword arguments for tenacity's Retrying and AsyncRetrying. `is_met`: has the server ever answered?"""
        patience = PATIENCE_S if self.at is None else self.left_s

        def is_over(state: RetryCallState) -> bool:
            error = state.outcome.exception() if state.outcome else None
            may_be_wrong = self.at is None and isinstance(error, Unreachable) and not is_met()
            elapsed = (state.seconds_since_start or 0) + state.upcoming_sleep
            return elapsed >= (FIRST_PATIENCE_S if may_be_wrong else patience)

        return {
            "retry": retry_if_exception_type(BusyError),
            "wait": wait_random_exponential(multiplier=0.1, max=2),
            "stop": is_over,
            "before_sleep": before_sleep_log(_log, logging.DEBUG),
            "reraise": True,
        }
