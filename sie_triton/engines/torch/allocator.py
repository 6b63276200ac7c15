"""Memory that the C library and PyTorch's libraries keep for the next forward pass.

By default glibc returns blocks to the kernel and gets them back, zeroed, for the next sub-batch: 3 % of the CPU time of
a small model (docs/decisions/kernels.md). oneDNN caches the code that it compiles for each number of rows; `rows.py`
lets passes have few. docs/decisions/residency.md, "A worker's memory has a bound", has figures.
"""

import ctypes
import os
from functools import cache

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
NEVER = 1 << 30

# Entries of oneDNN's cache, two for each shape of a product, and of the cache before it, which each thread has. Each
# entry takes 258 KB. What is not found is compiled again, in 0.3 ms, or looked up in the other cache, in 0.01 ms.
CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128", "LRU_CACHE_CAPACITY": "8"}


def limit_kept_memory() -> None:
    """Limit the caches, unless the environment says it, and use one heap. Call this before PyTorch is imported.

    A heap for each thread would keep the free pages of a pass several times.
    """
    for name, value in CACHES.items():
        os.environ.setdefault(name, value)
    _configure(M_ARENA_MAX, 1)


@cache
def keep_freed_pages() -> None:
    """Keep the pages that a forward pass frees, until system/processes/freed_memory.py returns them."""
    _configure(M_MMAP_THRESHOLD, NEVER)
    _configure(M_TRIM_THRESHOLD, NEVER)


def _configure(parameter: int, value: int) -> None:
    """Configure the allocator; do nothing if the C library is not glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(parameter, value)
