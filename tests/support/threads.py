"""A process that can start no thread."""


def no_thread(*_: object) -> None:
    """Stand-in for `threading._start_new_thread` of a process at its limit."""
    raise RuntimeError("can't start new thread")
