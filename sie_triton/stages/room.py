"""Asking the controller for room before weights are loaded.

The stage says in its status record what it needs; the controller evicts others and puts its answer into a
file. Without a controller, or with one that does not answer, the stage loads: an answer late is worse than
memory short.
"""

import fcntl
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from time import monotonic, monotonic_ns

from sie_triton.errors import LoadError
from sie_triton.stages.status import StatusWriter

log = logging.getLogger(__name__)

GRANTED = "granted"
CONTROLLER_LOCK = "controller.lock"

POLL_S = 0.02
PATIENCE_S = 120.0


@contextmanager
def room(status: StatusWriter, num_bytes: int, closing: Event) -> Iterator[None]:
    """Inside, `num_bytes` of memory may be used.

    LoadError if the controller says that it can never be had, or once `closing` is set.
    """
    answer = answer_path(status.directory, int(status.record["pid"]))
    answer.unlink(missing_ok=True)
    status.record["wanted_since_ns"] = monotonic_ns()
    status.record["wanted_bytes"] = num_bytes
    try:
        verdict = _wait(answer, lambda: controller_runs(status.directory), closing)
        if verdict not in (None, GRANTED):
            raise LoadError(verdict, "too large")
        status.record["granted_bytes"] = num_bytes
        status.record["wanted_bytes"] = 0
        yield
    finally:
        status.record["wanted_bytes"] = status.record["granted_bytes"] = 0
        answer.unlink(missing_ok=True)


def answer_path(directory: Path, pid: int) -> Path:
    """Where the controller answers the stage of that pid."""
    return directory / f"{pid}.room"


def controller_runs(directory: Path) -> bool:
    """A controller holds its lock for as long as it lives."""
    with suppress(OSError), (directory / CONTROLLER_LOCK).open() as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _wait(answer: Path, controller_runs: Callable[[], bool], closing: Event) -> str | None:
    """The controller's answer; None if there is nobody to give one."""
    ended = monotonic() + PATIENCE_S
    while monotonic() < ended:
        with suppress(OSError):
            return answer.read_text()
        if not controller_runs():
            return None
        if closing.wait(POLL_S):
            raise LoadError("this process is about to end")
    log.warning("the controller has not answered for %.0f s: loading without its leave", PATIENCE_S)
    return None
