"""OpenMP's threads, which PyTorch computes with on a CPU.

Each thread that runs a forward pass has a team of its own. GNU's OpenMP counts the threads of all teams, also of those
that are idle, and where they are more than the processors none waits actively any more: at each of a pass's operators
one has to be woken, which makes a short pass three times as long.
"""

import ctypes
import os
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

# Turns of a waiting thread, 0.1 ms: about what lies between two operators. As many as it has by itself take a core
# from the steps around a pass for 3 ms after it.
SPIN = "GOMP_SPINCOUNT", "10000"

SOFT = 1  # omp_pause_soft: what was set stays

LIBRARY = re.compile(r"\S*/lib[gi]?omp[^/\s]*$", re.MULTILINE)


def wait_briefly() -> None:
    """Threads of this process wait actively for so long, where nobody has said how long; before PyTorch is imported."""
    os.environ.setdefault(*SPIN)


def release_team() -> None:
    """End the calling thread's team; its next forward pass begins another, in about 0.1 ms."""
    for library in _libraries():
        library.omp_pause_resource_all(SOFT)


@cache
def _libraries() -> Sequence[Any]:
    """Those that this process has loaded: packages may bring one each. None that is too old to end a team."""
    found = []
    for path in sorted(set(LIBRARY.findall(Path("/proc/self/maps").read_text()))):
        library = ctypes.CDLL(path)
        if hasattr(library, "omp_pause_resource_all"):
            found.append(library)
    return found
