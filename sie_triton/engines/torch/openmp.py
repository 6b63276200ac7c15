"""OpenMP's threads, which PyTorch computes with on a CPU.

Each thread that runs a forward pass has a team of its own. GNU's OpenMP counts the threads of all teams, also of those
that are idle, and where they are more than the processors none waits actively any more: at each of a pass's operators
one has to be woken, which makes a short pass three times as long.
"""

import ctypes
import os
from functools import cache
from typing import Any

# Turns of a waiting thread, 0.3 ms: about what lies between two operators. As many as it has by itself take a core
# from the steps around a pass for 3 ms after it.
SPIN = "GOMP_SPINCOUNT", "10000"

SOFT = 1  # omp_pause_soft: what was set stays


def wait_briefly() -> None:
    """Threads of this process wait actively for so long, where nobody has said how long; before PyTorch is imported."""
    os.environ.setdefault(*SPIN)


def release_team() -> None:
    """End the calling thread's team; its next forward pass begins another, in about 0.1 ms."""
    library = _library()
    if library is not None:
        library.omp_pause_resource_all(SOFT)


@cache
def _library() -> Any:
    """The one that this process has loaded; None where it is too old to end a team, or there is none."""
    with open("/proc/self/maps") as maps:
        paths = {line.split()[-1] for line in maps if "omp" in line.rpartition("/")[2]}
    for path in sorted(paths):
        try:
            library = ctypes.CDLL(path)
            library.omp_pause_resource_all.argtypes = [ctypes.c_int]
        except (AttributeError, OSError):
            continue
        return library
    return None
