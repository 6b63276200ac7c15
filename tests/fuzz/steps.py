"""Work of Python code, counted in calls: a number that no load of the machine changes."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def bounded_work(max_calls: int) -> Iterator[None]:
    """Raise AssertionError if the code within the context makes more calls on this thread."""
    left = max_calls

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal left
        left -= event in ("call", "c_call")
        if left < 0:  # the reader may take this for a fault of the file
            sys.setprofile(None)
            raise AssertionError

    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(None)
        if left < 0:
            raise AssertionError(f"more than {max_calls} calls")
