"""Memory of the container in which this process runs, from its cgroup."""

import os
from contextlib import suppress
from pathlib import Path

CGROUP_V2 = Path("/sys/fs/cgroup")
CGROUP_V1 = Path("/sys/fs/cgroup/memory")


def container_memory() -> tuple[int, int] | None:
    """Return the working set and the limit, in bytes; None if there is no limit below the machine's memory."""
    for directory, current, maximum in (
        (CGROUP_V2, "memory.current", "memory.max"),
        (CGROUP_V1, "memory.usage_in_bytes", "memory.limit_in_bytes"),
    ):
        with suppress(OSError, ValueError):
            limit = int((directory / maximum).read_text())
            if limit < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
                used = int((directory / current).read_text()) - _inactive_file((directory / "memory.stat").read_text())
                return used, limit
    return None


def _inactive_file(stat: str) -> int:
    fields = (line.split() for line in stat.splitlines())
    values = {field[0]: field[1] for field in fields if len(field) == 2}
    return int(values.get("total_inactive_file", values.get("inactive_file", 0)))
