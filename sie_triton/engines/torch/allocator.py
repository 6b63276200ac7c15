"""The C library's allocator, told to keep the pages that a forward pass frees.

By default glibc gives large blocks back to the kernel and gets them again, zeroed, for the next sub-batch:
3 % of the processor time of a small model on CPU (measured in ARCHITECTURE.md). What is kept is at most
what one forward pass per lane needs, and goes back with the process.
"""

import ctypes
from functools import cache

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
NEVER = 1 << 30


@cache
def keep_freed_pages() -> None:
    """Set once for the whole process; nothing happens where the C library is not glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, NEVER)
        mallopt(M_TRIM_THRESHOLD, NEVER)
