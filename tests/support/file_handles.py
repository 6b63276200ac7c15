"""A process that can open no file."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_file_handle_left() -> Iterator[None]:
    """Let this process open no file within the context, as a process at its limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
