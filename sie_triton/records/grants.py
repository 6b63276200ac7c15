"""Requests to the controller for memory, before weights are loaded.

The stage writes the bytes that it needs into its status record. The controller evicts other models and writes its
answer into the file PID.grant: a grant, which names the device, EVICTED, or a refusal. It may change the answer while
the weights are being loaded. Without a controller, or if it does not answer in time, the stage loads anyway: a shortage
of memory is better than a late response. A controller that starts or restarts gets some seconds, because the models
that are loaded at start-up ask before it runs.

A copy of a model asks in a record of its own, and waits until there is room: nothing is evicted for it. EVICTED ends it
even when it has loaded.
"""

import fcntl
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from time import monotonic, monotonic_ns

from sie_triton.errors import REASONS, LoadError, ModelLoading
from sie_triton.records.limits import RecordLimits
from sie_triton.records.status import Record, StatusWriter, process_name, ring
from sie_triton.system.host.files import write_atomically
from sie_triton.system.processes.pids import is_stopped

log = logging.getLogger(__name__)

GRANTED = "granted"
EVICTED = "evicted"
CONTROLLER_LOCK = "controller.lock"


@dataclass(frozen=True)
class Granted:
    """Permission to load on `device`. `check` must be called from time to time: the controller may change its answer.

    It then raises ModelLoading if the model is evicted, and LoadError otherwise.
    """

    device: str
    check: Callable[[], object] = bool


@contextmanager
def granted_memory(
    status: StatusWriter,
    num_bytes: int,
    closing: Event,
    devices: Sequence[str] = ("cpu",),
    limits: RecordLimits = RecordLimits(),
) -> Iterator[Granted]:
    """Reserve `num_bytes` of memory, on the one of `devices` that the controller chooses, within the context.

    Without a controller that is the first. Raise ModelLoading if the model is evicted, and LoadError if there is not
    enough memory or once `closing` is set.
    """
    answer = answer_path(status.directory, int(status.record["pid"]))
    answer.unlink(missing_ok=True)
    status.record["wanted_since_ns"] = monotonic_ns()
    status.record["wanted_bytes"] = num_bytes
    ring(status.directory)
    try:
        chosen = _wait(answer, status.directory, closing, limits)
        device = chosen if chosen in devices else devices[0]
        status.record["device"] = devices.index(device)
        status.record["granted_bytes"] = num_bytes
        status.record["wanted_bytes"] = 0
        yield Granted(device, lambda: answer_in(answer))
    finally:
        status.record["wanted_bytes"] = status.record["granted_bytes"] = 0
        answer.unlink(missing_ok=True)


def answer_path(directory: Path, pid: int, copy: int = 0) -> Path:
    """Return the path of the controller's answer to the stage process `pid`, or to its copy of that number."""
    return directory / f"{process_name(pid, copy)}.grant"


def answer_load(directory: Path, record: Record, text: str) -> None:
    """Answer a process that loads or waits for memory. On a full disk a grant is tried again by the rounds to come."""
    try:
        write_atomically(answer_path(directory, record["pid"], record["copy"]), text)
    except OSError as exc:
        log.warning("the load of process %d cannot be answered now: %s", record["pid"], exc)


def grant_of(device: str) -> str:
    """Format the answer that a model may be loaded on `device`."""
    return f"{GRANTED}\n{device}"


def refusal(reason: str, message: str) -> str:
    """Format an answer that the stage raises as a LoadError."""
    return f"{reason}\n{message}"


def expect_controller(directory: Path) -> None:
    """Announce that a controller will start: stages then wait some seconds for it."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / CONTROLLER_LOCK).touch()


def controller_runs(directory: Path) -> bool:
    """True if a controller runs and is not suspended."""
    holder = _holder(directory)
    return bool(holder) and not is_stopped(holder or 0)


def _holder(directory: Path) -> int | None:
    """Return the process that holds the controller's lock, 0 if none does; None if no controller was ever expected."""
    try:
        with (directory / CONTROLLER_LOCK).open() as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(handle.read() or 0)
            return 0
    except (OSError, ValueError):
        return None


def _wait(answer: Path, directory: Path, closing: Event, limits: RecordLimits) -> str:
    """Return the device on which the controller has granted memory; empty once no controller runs or starts."""
    ended, last_seen = monotonic() + limits.grant_patience_s, monotonic()
    while monotonic() < ended:
        if (device := answer_in(answer)) is not None:
            return device
        if controller_runs(directory):
            last_seen = monotonic()
        elif _holder(directory) != 0 or monotonic() - last_seen > limits.controller_start_s:
            return ""
        if closing.wait(limits.grant_look_s):
            raise LoadError("this process is about to end")
    patience_s = limits.grant_patience_s
    log.warning("the controller has not answered for %.0f s: loading without its permission", patience_s)
    return ""


def answer_in(path: Path) -> str | None:
    """Return the device on which the controller has granted memory; None if it has not answered. Raise its refusal."""
    verdict, rest = read_answer(path)
    if not verdict:
        return None
    if verdict == EVICTED:
        raise ModelLoading("the model was evicted while it was loading; retry")
    if verdict != GRANTED:
        raise LoadError(rest, verdict if verdict in REASONS else "failed")
    return rest


def read_answer(path: Path) -> tuple[str, str]:
    """Return the verdict of an answer and what follows it; two empty texts if there is no answer."""
    try:
        verdict, _, rest = path.read_text().partition("\n")
    except (OSError, ValueError):
        return "", ""
    return verdict, rest
