"""Limits of the cgroups in which this process runs: a container's, and those of systemd's units and Slurm's jobs."""

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def container_memory() -> tuple[int, int] | None:
    """Return the working set and the limit, in bytes, of the cgroup with the least limit.

    None if there is no limit below the machine's memory.
    """
    least, limit = None, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for directory in _cgroups("memory"):
        # memory.high is no hard limit, but the kernel slows processes down that exceed it.
        for name in ("memory.max", "memory.high", "memory.limit_in_bytes"):
            with suppress(OSError, ValueError):
                if (found := int((directory / name).read_text())) < limit:
                    least, limit = (_working_set(directory), found), found
    return least


def num_processors() -> int:
    """Return how many processors this process may use: those of its affinity, or the least quota, rounded up."""
    return min([len(os.sched_getaffinity(0)), *map(math.ceil, _quotas())])


def _quotas() -> Iterator[float]:
    """Yield the limits of processor time per time."""
    for directory in _cgroups("cpu"):
        for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
            with suppress(OSError, ValueError):
                quota, period = (int(each) for name in names for each in (directory / name).read_text().split())
                if quota > 0:
                    yield quota / period


def _cgroups(controller: str) -> Iterator[Path]:
    """Yield the directories of this process's cgroup and of those around it, from the outermost.

    In a container the root may be the container's cgroup, while the path is that of the machine: then the longest end
    of the path that exists is the cgroup.
    """
    lines = ["0::/", f"1:{controller}:/"]  # without /proc
    with suppress(OSError):
        lines = os.fsdecode(OWN.read_bytes()).splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        root = CGROUPS  # the second version of cgroups names no controllers
        if controllers:
            # Directories of several controllers may name them in another order.
            mounts = [each for each in CGROUPS.glob("*") if controller in each.name.split(",")]
            if controller not in controllers.split(",") or not mounts:
                continue
            root = mounts[0]
        parts = [part for part in path.split("/") if part]
        ends = [parts[start:] for start in range(len(parts) + 1)] if ".." not in parts else [[]]
        own = next((end for end in ends if root.joinpath(*end).is_dir()), [])
        yield from (root.joinpath(*own[:depth]) for depth in range(len(own) + 1))


def _working_set(directory: Path) -> int:
    """Return the used bytes of a cgroup, without file pages that the kernel can drop."""
    name = "memory.current" if (directory / "memory.current").exists() else "memory.usage_in_bytes"
    fields = (line.split() for line in (directory / "memory.stat").read_text().splitlines())
    values = {field[0]: field[1] for field in fields if len(field) == 2}
    droppable = int(values.get("total_inactive_file", values.get("inactive_file", 0)))
    return int((directory / name).read_text()) - droppable
