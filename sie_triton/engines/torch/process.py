"""Settings of a worker's process for PyTorch and its libraries: imports, memory that they keep, threads that wait.

This module imports PyTorch only in `import_all`, since most settings must come before it.
"""

import ctypes
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

VISIBLE = "CUDA_VISIBLE_DEVICES"

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
NEVER = 1 << 30

# Entries of oneDNN's cache of compiled code, two for each shape of a product, and of the cache before it, which each
# thread has. Each entry takes 258 KB. What is not found is compiled again, in 0.3 ms, or looked up in the other cache,
# in 0.01 ms. `rows.py` lets passes have few shapes. docs/decisions/residency.md, "A worker's memory has a bound", has
# figures.
CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128", "LRU_CACHE_CAPACITY": "8"}

# For how long OpenMP's threads spin: 0.1 ms, about the time between two operators. With the default, threads would
# occupy a core for 3 ms after a pass, which the steps around it need.
SPINNING = {"GOMP_SPINCOUNT": "10000"}

OPENMP = re.compile(r"\S*/lib[gi]?omp[^/\s]*$", re.MULTILINE)


def import_all() -> None:
    """Import what every worker needs: seconds of work that the fork server does once for all."""
    configure_libraries()
    with without_parts_of_gpus():
        from transformers import AutoConfig, AutoModel, AutoModelForTextEncoding, PreTrainedModel  # noqa: F401
        from transformers.models.bert import modeling_bert  # noqa: F401

        import sie_triton.engines.torch.engine  # noqa: F401


def configure_libraries() -> None:
    """Limit caches and spinning, unless the environment says it; use one heap. Call this before PyTorch is imported.

    A heap for each thread would keep the free pages of a pass several times.
    """
    for name, value in {**CACHES, **SPINNING}.items():
        os.environ.setdefault(name, value)
    _configure_allocator(M_ARENA_MAX, 1)


@contextmanager
def without_parts_of_gpus() -> Iterator[None]:
    """Within the context, show a whole GPU instead of MIG parts, which PyTorch counts by CUDA instead of by NVML."""
    given = os.environ.get(VISIBLE, "")
    if given.startswith("MIG-"):
        os.environ[VISIBLE] = "0"
    try:
        yield
    finally:
        if given:
            os.environ[VISIBLE] = given


@cache
def keep_freed_pages() -> None:
    """Keep the pages that a forward pass frees, until system/processes/freed_memory.py returns them.

    By default glibc returns blocks to the kernel and gets them back, zeroed, for the next sub-batch: 3 % of the CPU
    time of a small model (docs/decisions/kernels.md).
    """
    _configure_allocator(M_MMAP_THRESHOLD, NEVER)
    _configure_allocator(M_TRIM_THRESHOLD, NEVER)


def _configure_allocator(parameter: int, value: int) -> None:
    """Configure the allocator; do nothing if the C library is not glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(parameter, value)


def release_team() -> None:
    """End the calling thread's team of OpenMP threads; its next forward pass creates another one, in about 0.1 ms.

    GNU's OpenMP counts the threads of all teams, idle ones included. If there are more threads than processors, they
    stop spinning while they wait: each operator has to wake them, which makes a short pass three times as long.
    """
    for library in _openmp_libraries():
        library.omp_pause_resource_all(1)  # soft: keep all settings


@cache
def _openmp_libraries() -> Sequence[Any]:
    """Return the OpenMP libraries of this process that can end a team; packages may bring their own."""
    paths = sorted(set(OPENMP.findall(Path("/proc/self/maps").read_text())))
    return [library for library in map(ctypes.CDLL, paths) if hasattr(library, "omp_pause_resource_all")]
