"""Control of the OpenMP threads that PyTorch uses on a CPU.

Each thread that runs a forward pass has its own team. GNU's OpenMP counts the threads of all teams, idle ones included.
If there are more threads than processors, they stop spinning while they wait: each operator has to wake them, which
makes a short pass three times as long.
"""

import ctypes
import os
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

LIBRARY = re.compile(r"\S*/lib[gi]?omp[^/\s]*$", re.MULTILINE)


def wait_briefly() -> None:
    """Limit how long OpenMP threads spin, unless the environment says it. Call this before PyTorch is imported."""
    # 0.1 ms, about the time between two operators. With the default, threads would occupy a core for 3 ms after a
    # pass, which the steps around it need.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def release_team() -> None:
    """End the calling thread's team; its next forward pass creates another one, in about 0.1 ms."""
    for library in _libraries():
        library.omp_pause_resource_all(1)  # soft: keep all settings


@cache
def _libraries() -> Sequence[Any]:
    """Return the OpenMP libraries of this process that can end a team; packages may bring their own."""
    found = []
    for path in sorted(set(LIBRARY.findall(Path("/proc/self/maps").read_text()))):
        library = ctypes.CDLL(path)
        if hasattr(library, "omp_pause_resource_all"):
            found.append(library)
    return found
