"""Timeout for the requests of a process once its successor, which has the same model, has begun to load."""

from collections.abc import Callable
from time import monotonic

from sie_triton.errors import BusyError

# Timeout in seconds. Requests that are not done by then end with an error.
DRAIN_S = 60.0


class DrainTimeout:
    """Measures how long `is_awaited()` has been true without a break. One thread calls it."""

    def __init__(self, is_awaited: Callable[[], bool], clock: Callable[[], float] = monotonic) -> None:
        self._is_awaited, self._clock = is_awaited, clock
        self._since: float | None = None

    def overdue(self) -> BusyError | None:
        """Return the error for the remaining requests, or None before the timeout."""
        if not self._is_awaited():
            self._since = None
            return None
        self._since = self._clock() if self._since is None else self._since
        if self._clock() - self._since < DRAIN_S:
            return None
        return BusyError(f"the model was changed or evicted, and this request was not done within {DRAIN_S:g} s; retry")
