"""Asking the controller for room before weights are loaded.

The stage says in its status record what it needs; the controller evicts others and puts its answer into a
file: GRANTED, EVICTED, or a refusal. It may change its answer for as long as the weights are being loaded.
Without a controller, or with one that does not answer, the stage loads: an answer late is worse than memory short.
"""

import fcntl
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from time import monotonic, monotonic_ns

from sie_triton.errors import BusyError, LoadError
from sie_triton.processes.pids import is_stopped
from sie_triton.records.status import StatusWriter

log = logging.getLogger(__name__)

GRANTED = "granted"
EVICTED = "evicted"
CONTROLLER_LOCK = "controller.lock"

POLL_S = 0.02
PATIENCE_S = 120.0


@contextmanager
def room(status: StatusWriter, num_bytes: int, closing: Event) -> Iterator[Callable[[], bool]]:
    """Inside, `num_bytes` of memory may be used, until the function it gives raises the controller's change of mind.

    BusyError if the model is evicted; LoadError if there is no such room, or once `closing` is set.
    """
    answer = answer_path(status.directory, int(status.record["pid"]))
    answer.unlink(missing_ok=True)
    status.record["wanted_since_ns"] = monotonic_ns()
    status.record["wanted_bytes"] = num_bytes
    try:
        _wait(answer, lambda: controller_runs(status.directory), closing)
        status.record["granted_bytes"] = num_bytes
        status.record["wanted_bytes"] = 0
        yield lambda: _check(answer)
    finally:
        status.record["wanted_bytes"] = status.record["granted_bytes"] = 0
        answer.unlink(missing_ok=True)


def answer_path(directory: Path, pid: int) -> Path:
    """Where the controller answers the stage of that pid."""
    return directory / f"{pid}.room"


def refusal(reason: str, message: str) -> str:
    """An answer that becomes a LoadError."""
    return f"{reason}\n{message}"


def controller_runs(directory: Path) -> bool:
    """A controller holds its lock, with its pid in it, for as long as it lives; a stopped one is none."""
    with suppress(OSError, ValueError), (directory / CONTROLLER_LOCK).open() as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return not is_stopped(int(handle.read() or 0))
    return False


def _wait(answer: Path, controller_runs: Callable[[], bool], closing: Event) -> None:
    """Until the controller has answered, or there is nobody to answer."""
    ended = monotonic() + PATIENCE_S
    while monotonic() < ended:
        if _check(answer) or not controller_runs():
            return
        if closing.wait(POLL_S):
            raise LoadError("this process is about to end")
    log.warning("the controller has not answered for %.0f s: loading without its leave", PATIENCE_S)


def _check(answer: Path) -> bool:
    """True if the controller has granted it; False if it has not answered."""
    try:
        verdict = answer.read_text()
    except OSError:
        return False
    if verdict == EVICTED:
        raise BusyError("the model was evicted while it was loading; retry")
    if verdict != GRANTED:
        reason, _, message = verdict.partition("\n")
        raise LoadError(message, reason)
    return True
