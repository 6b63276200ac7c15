"""An action repeated on a separate thread."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

# The end of the context waits as long for a call in progress, in seconds; a call that hangs is left behind.
LAST_S = 1.0


@contextmanager
def repeated(action: Callable[[], None], every_s: float, name: str) -> Iterator[None]:
    """Call `action` every `every_s` seconds, inside the context. An exception of `action` ends the calls."""
    ended = Event()

    def run() -> None:
        while not ended.wait(every_s):
            action()

    thread = Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(LAST_S)
