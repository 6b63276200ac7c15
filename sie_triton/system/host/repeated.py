"""An action repeated on a separate thread."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread


@contextmanager
def repeated(action: Callable[[], None], every_s: float, name: str, last_s: float = 1.0) -> Iterator[None]:
    """Call `action` every `every_s` seconds, inside the context. An exception of `action` ends the calls.

    The end of the context waits `last_s` for a call in progress; one that hangs is left behind.
    """
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
        thread.join(last_s)
