"""Memory of one process. Standard library only."""

import ctypes
import gc
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from sie_triton.system.host.files import read_small

FIELD = re.compile(r"^(Pss_Dirty|Pss_Anon|Pss_Shmem|Private_Dirty): +(\d+) kB$", re.MULTILINE)


class Share(NamedTuple):
    """Memory of one process, in bytes.

    `total` is its anonymous memory; pages shared by forked processes count proportionally. `own` is the unshared part,
    which ending the process frees. Forking or ending other processes changes `total`, not `own`.
    """

    total: int = 0
    own: int = 0


def share_of(pid: int) -> Share:
    """Measure the process `pid`, which takes about 2 ms; zeros if there is no such process."""
    with suppress(OSError):
        found = {name: int(kib) * 1024 for name, kib in FIELD.findall(Path(f"/proc/{pid}/smaps_rollup").read_text())}
        anonymous = found.get("Pss_Anon", 0)
        # Pages of a file just written, such as downloaded weights, are private and dirty, but not anonymous memory.
        of_files = max(0, found.get("Pss_Dirty", 0) - anonymous - found.get("Pss_Shmem", 0))
        return Share(anonymous, max(0, found.get("Private_Dirty", 0) - of_files))
    return Share()


def private_bytes(pid: int | str = "self") -> int:
    """Estimate the bytes that the end of a process frees: pages that are neither a file's nor shared.

    0 if there is no such process. Takes microseconds.
    """
    try:
        resident, shared = map(int, read_small(f"/proc/{pid}/statm", 256).split()[1:3])
    except (OSError, ValueError):
        return 0
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


def return_freed() -> None:
    """Collect cycles, and return the free pages of glibc's heaps; other C libraries keep theirs."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def peak_growth(work: Callable[[], object]) -> int:
    """Return by how many bytes this process grows at most during `work`; more if the kernel keeps an earlier peak."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak is what is resident now
    before = _status("VmRSS")
    work()
    return max(0, _status("VmHWM") - before)


def _status(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0
