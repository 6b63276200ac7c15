"""Who may use the device next: interactive work goes before bulk work."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition


class Turn:
    """A lock with two kinds of holders. Bulk work waits while interactive work waits."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._taken = False
        self._interactive_waiting = 0

    @contextmanager
    def interactive(self) -> Iterator[None]:
        with self._changed:
            self._interactive_waiting += 1
            self._changed.wait_for(lambda: not self._taken)
            self._interactive_waiting -= 1
            self._taken = True
        yield from self._hold()

    @contextmanager
    def bulk(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._taken and not self._interactive_waiting)
            self._taken = True
        yield from self._hold()

    def _hold(self) -> Iterator[None]:
        try:
            yield
        finally:
            with self._changed:
                self._taken = False
                self._changed.notify_all()
