"""Memory of one process. Standard library only."""

from contextlib import suppress
from pathlib import Path


def anonymous_bytes(pid: int) -> int:
    """Memory that is no file's, what forked processes have in common in equal parts; 0 if there is no such process."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss_Anon:"):
                return int(line.split()[1]) * 1024
    return 0
