"""Durations that do not depend on what else the machine computes."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import perf_counter

# Kernel's times of the thread that reads it, in nanoseconds: on a core, and ready to run without one.
SCHEDSTAT = Path("/proc/thread-self/schedstat")


def seconds_on_core(work: Callable[[], object]) -> float:
    """Return the seconds of `work`, without those in which other threads had the core that this one was ready to use.

    Seconds in which it slept count, and so do those in which a helper thread of `work` waited for a core.
    """
    started, waited = perf_counter(), waited_s()
    work()
    return waited - waited_s() + perf_counter() - started


def waited_s() -> float:
    """Return the seconds that this thread has waited for a core; 0 where the kernel does not count them."""
    with suppress(OSError, ValueError, IndexError):
        return int(SCHEDSTAT.read_text().split()[1]) / 1e9
    return 0.0
