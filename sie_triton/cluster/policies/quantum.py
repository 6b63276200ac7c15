"""Limit what a sidecar fetches, and its wait for more, so that the wait before a forward pass stays at the target."""

from collections import deque
from statistics import median

# Requests that Triton may have at a time, at first.
FIRST_OPEN = 64

# Waits that are looked at together.
WINDOW = 32


class Quantum:
    """Limit of the requests at one Triton: up by an eighth while the median wait is below the target, else down.

    `gather_ms` is the time that a request waits for others to be joined with, from `least_ms` to `most_ms`: an eighth
    of that longer while the median is below the target, else half as long.

    >>> quantum = Quantum(target_ms=50)
    >>> for _ in range(WINDOW): quantum.add(wait_ms=10, was_full=True)
    >>> quantum.limit
    72
    >>> for _ in range(WINDOW): quantum.add(wait_ms=90, was_full=True)
    >>> quantum.limit
    54
    >>> quantum = Quantum(target_ms=50, least_ms=2, most_ms=18)
    >>> for _ in range(3 * WINDOW): quantum.add(wait_ms=10, was_full=False)
    >>> quantum.gather_ms
    8.0
    >>> for _ in range(WINDOW): quantum.add(wait_ms=90, was_full=False)
    >>> quantum.gather_ms
    4.0
    """

    def __init__(self, target_ms: float, least_ms: float = 0.0, most_ms: float = 0.0) -> None:
        self.target_ms = target_ms
        self._least_ms, self._most_ms = least_ms, max(least_ms, most_ms)
        self.gather_ms = least_ms
        self._waits: deque[float] = deque(maxlen=WINDOW)
        self._was_full = False
        self.limit = FIRST_OPEN

    def begin_anew(self) -> None:
        """Forget a large limit, and the waits that led to it: from now on the waits are others."""
        self._waits.clear()
        self._was_full = False
        self.limit = min(self.limit, FIRST_OPEN)

    def add(self, wait_ms: float, was_full: bool) -> None:
        """Take the wait of a request in Triton's queues and before its call, in ms.

        `was_full`: as many as allowed were open meanwhile.
        """
        self._waits.append(wait_ms)
        self._was_full = self._was_full or was_full
        if len(self._waits) < WINDOW:
            return
        if median(self._waits) > self.target_ms:
            self.limit = max(4, self.limit - max(1, self.limit // 4))
            self.gather_ms = max(self._least_ms, self.gather_ms / 2)
        else:
            step_ms = (self._most_ms - self._least_ms) / 8
            self.gather_ms = min(self._most_ms, self.gather_ms + step_ms)
            if self._was_full:
                self.limit = min(512, self.limit + max(1, self.limit // 8))
        self._waits.clear()
        self._was_full = False
