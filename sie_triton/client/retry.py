"""Deadline of a call, and retries: only on UNAVAILABLE, with backoff and jitter, within the caller's timeout.

No verb changes the state of the server. A request can therefore be sent again if the server refused it, or ended before
it responded. A request that a stage died of is sent again a few times only, because it may be why.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from time import monotonic
from typing import Any

from tenacity import RetryCallState, before_sleep_log, retry_if_exception_type, wait_random_exponential

from sie_triton.client.failures import StageDied
from sie_triton.client.limits import ClientLimits
from sie_triton.errors import BusyError, DeadlinePassed, InputError, OutOfMemory, Unreachable

_log = logging.getLogger(__name__)

# Timeout of one request without a timeout of the caller's, in seconds; the request may have to load a large model.
NETWORK_TIMEOUT_S = 600.0

MAX_TIMEOUT_S = 86_400.0


def checked_timeout(timeout: float | None) -> float | None:
    is_number = isinstance(timeout, Real) and not isinstance(timeout, bool)
    if timeout is not None and not (is_number and 0 < timeout <= MAX_TIMEOUT_S):
        raise InputError.at(
            "timeout",
            f"must be above 0 and at most {MAX_TIMEOUT_S:.0f} seconds, or None for the defaults; got {timeout!r}",
        )
    return timeout


@dataclass(frozen=True, slots=True)
class Deadline:
    """Deadline of a call; `at` is in seconds of the monotonic clock, None for no limit."""

    at: float | None

    @classmethod
    def after(cls, timeout: float | None) -> "Deadline":
        seconds = checked_timeout(timeout)
        return cls(None if seconds is None else monotonic() + seconds)

    @property
    def left_s(self) -> float:
        return NETWORK_TIMEOUT_S if self.at is None else max(0.0, self.at - monotonic())

    def wait_s(self, transport: str) -> float:
        """Return the timeout of the transport, in seconds."""
        grace_s = ClientLimits.grpc_grace_s if transport == "grpc" else ClientLimits.http_grace_s
        return self.left_s + (0 if self.at is None else grace_s)

    def parameters(self) -> dict[str, int]:
        """Return keyword arguments for tritonclient's `infer`: the timeout of the server, in microseconds.

        DeadlinePassed if it has passed.
        """
        if self.at is None:
            return {}
        if not self.left_s:
            raise DeadlinePassed("timeout: passed before the request was sent")
        return {"timeout": max(1, int(self.left_s * 1e6))}

    def retrying(self, is_met: Callable[[], bool], limits: ClientLimits = ClientLimits()) -> dict[str, Any]:
        """Return keyword arguments for tenacity's Retrying and AsyncRetrying.

        `is_met` returns True if the server has responded to this client before.
        """
        patience = limits.retry_s if self.at is None else self.left_s
        backoff, num_deaths = wait_random_exponential(multiplier=0.1, max=2), 0

        def wait(state: RetryCallState) -> float:
            nonlocal num_deaths
            if not isinstance(_error(state), StageDied):
                return float(backoff(state))
            num_deaths += 1
            return limits.death_waits_s[min(num_deaths, len(limits.death_waits_s)) - 1]

        def is_over(state: RetryCallState) -> bool:
            error = _error(state)
            if num_deaths >= limits.num_deaths and isinstance(error, StageDied):
                return True
            may_be_wrong = self.at is None and isinstance(error, Unreachable) and not is_met()
            elapsed = (state.seconds_since_start or 0) + state.upcoming_sleep
            return elapsed >= (limits.first_retry_s if may_be_wrong else patience)

        return {
            "retry": retry_if_exception_type((BusyError, OutOfMemory)),
            "wait": wait,
            "stop": is_over,
            "before_sleep": before_sleep_log(_log, logging.DEBUG),
            "reraise": True,
        }


def _error(state: RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome else None
