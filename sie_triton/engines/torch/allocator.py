"""Configuration of the C library's allocator to keep the pages that a forward pass frees.

By default glibc returns large blocks to the kernel and gets them back, zeroed, for the next sub-batch: 3 % of the
CPU time of a small model (docs/decisions/kernels.md). The memory kept is at most that of one forward pass per lane, and
is freed with the process.
"""

import ctypes
from functools import cache

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
NEVER = 1 << 30


@cache
def keep_freed_pages() -> None:
    """Configure the allocator, once per process; do nothing if the C library is not glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, NEVER)
        mallopt(M_TRIM_THRESHOLD, NEVER)
