"""The time that a process has to finish its requests once another process waits for its memory."""

from collections.abc import Callable
from time import monotonic

from sie_triton.errors import BusyError

# In seconds. What is not done by then ends with an error.
LEAVING_S = 60.0


class Leaving:
    """Counts the seconds for which `is_awaited()` has been true without a break. One thread calls it."""

    def __init__(self, is_awaited: Callable[[], bool], clock: Callable[[], float] = monotonic) -> None:
        self._is_awaited, self._clock = is_awaited, clock
        self._since: float | None = None

    def overdue(self) -> BusyError | None:
        """Return the answer to the requests that remain, or None while there is time."""
        if not self._is_awaited():
            self._since = None
            return None
        self._since = self._clock() if self._since is None else self._since
        if self._clock() - self._since < LEAVING_S:
            return None
        return BusyError(
            f"the model was changed or evicted, and this request was not done {LEAVING_S:g} s after that; retry"
        )
