"""Keeps tritonserver running: one that dies is started again, the nursery and the controller stay."""

import re
import signal
import time
from collections.abc import Callable, Iterator

from sie_triton.errors import ServerError
from sie_triton.server.launch import Server

# One that lived so long is started again at once.
STEADY_S = 5.0

# Between a start and the next, when it dies again and again.
PAUSES_S = (1.0, 2.0, 4.0)

# So often it may die without having been ready.
MAX_STARTS = 5

STACK = re.compile(r"^ *\d+# 0x[0-9A-F]+ in (?:.*/)?(\S+)$", re.MULTILINE)


def supervise(server: Server, say: Callable[[str], None]) -> None:
    """Return when tritonserver ends with status 0; ServerError where it cannot be brought back."""
    deaths, ready_since = 0, time.monotonic()
    while status := server.wait():
        lived_s = time.monotonic() - ready_since
        deaths = 1 if lived_s >= STEADY_S else deaths + 1
        died = time.monotonic()
        say(f"tritonserver ended {how_it_ended(status, server.log())}, {lived_s:.0f} s after it was ready; restarting")
        _bring_back(server, pauses(deaths - 1), say)
        ready_since = time.monotonic()
        say(f"SIE is back after {ready_since - died:.1f} s; the log says more: {server.log_path.resolve()}")


def _bring_back(server: Server, waits: Iterator[float], say: Callable[[str], None]) -> None:
    for start in range(1, MAX_STARTS + 1):
        time.sleep(next(waits))
        server.start_again()
        try:
            server.wait_ready()
        except ServerError as exc:
            failure = exc
            say(f"start {start} of {MAX_STARTS} failed")
        else:
            return
    raise ServerError(f"tritonserver was started {MAX_STARTS} times and never ready; the last time:\n{failure}")


def pauses(num_deaths: int) -> Iterator[float]:
    """Seconds before each start of one that has died so often at once.

    >>> [s for s, _ in zip(pauses(0), range(5))]
    [0.0, 1.0, 2.0, 4.0, 4.0]
    >>> next(pauses(7))
    4.0
    """
    waits = (0.0, *PAUSES_S)
    while True:
        yield waits[min(num_deaths, len(waits) - 1)]
        num_deaths += 1


def how_it_ended(status: int, log: str) -> str:
    """
    >>> how_it_ended(-9, "")
    'by SIGKILL, as the system does when memory is short'
    >>> stack = "0# 0x1 in tritonserver\\n1# 0x2 in /libc.so.6\\n2# 0x3 in /x/y.so\\n"
    >>> how_it_ended(-11, "Signal (11) received.\\n" + stack)
    'by SIGSEGV in y.so'
    >>> how_it_ended(1, "")
    'with status 1'
    """
    if status >= 0:
        return f"with status {status}"
    name = signal.Signals(-status).name
    if -status == signal.SIGKILL:
        return f"by {name}, as the system does when memory is short"
    # The first is the handler that prints the stack, called from the C library.
    frames = [where for where in STACK.findall(log.rpartition("Signal (")[2])[1:] if not where.startswith("libc.")]
    return f"by {name} in {frames[0]}" if frames else f"by {name}"
