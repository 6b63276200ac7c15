"""Deadline of a call, and retries: only on UNAVAILABLE, with backoff and jitter, within the caller's timeout.

No verb changes the state of the server. A request can therefore be sent again if the server refused it, or ended before
it responded. A request that a stage died of is sent again a few times only, because it may be why.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from numbers import Real
from random import uniform
from time import monotonic
from typing import TypeVar

from sie_triton.client.failures import StageDied
from sie_triton.client.limits import ClientLimits
from sie_triton.errors import BusyError, DeadlinePassed, InputError, OutOfMemory, Unreachable

T = TypeVar("T")

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

    def some_left_s(self) -> float:
        """Return the seconds that are left; DeadlinePassed if there are none."""
        if not (left_s := self.left_s):
            raise DeadlinePassed("timeout: passed before the request was sent")
        return left_s

    def wait_s(self, transport: str) -> float:
        """Return the timeout of the transport, in seconds."""
        grace_s = ClientLimits.grpc_grace_s if transport == "grpc" else ClientLimits.http_grace_s
        return self.left_s + (0 if self.at is None else grace_s)

    def parameters(self) -> dict[str, int]:
        """Return keyword arguments for tritonclient's `infer`: the timeout of the server, in microseconds.

        DeadlinePassed if it has passed.
        """
        return {} if self.at is None else {"timeout": max(1, int(self.some_left_s() * 1e6))}


async def repeated(
    call: Callable[[], Awaitable[T]],
    deadline: Deadline,
    is_met: Callable[[], bool],
    sleep: Callable[[float], Awaitable[None]],
    limits: ClientLimits = ClientLimits(),
) -> T:
    """Return the result of `call`, which is called again while the server is busy and time is left; else its error.

    `is_met` returns True if the server has responded to this client before.
    """
    began, patience_s = monotonic(), limits.retry_s if deadline.at is None else deadline.left_s
    num_tries = num_deaths = 0
    while True:
        try:
            return await call()
        except (BusyError, OutOfMemory) as exc:
            num_tries, num_deaths = num_tries + 1, num_deaths + isinstance(exc, StageDied)
            deaths = limits.death_waits_s[: num_deaths if isinstance(exc, StageDied) else 0]
            pause_s = deaths[-1] if deaths else uniform(0, min(2.0, 0.05 * 2 ** min(num_tries, 10)))
            may_be_wrong = deadline.at is None and isinstance(exc, Unreachable) and not is_met()
            is_over = monotonic() - began + pause_s >= (limits.first_retry_s if may_be_wrong else patience_s)
            if is_over or num_deaths >= limits.num_deaths:
                raise
            _log.debug("%s; the next try is in %.2f s", exc, pause_s)
            await sleep(pause_s)
            if not deadline.left_s:
                raise
