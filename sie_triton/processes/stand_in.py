"""Processes that stand in for one which another process has forked (`server/native/standin.c`)."""

from contextlib import suppress
from pathlib import Path

# The descriptor by which a stand-in holds the other one, a pidfd. No other has so high a number there.
HANDLE = 500


def stood_for(pid: int) -> int | None:
    """Whom the process `pid` stands in for; None where it is no stand-in, or that one has ended."""
    with suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/fdinfo/{HANDLE}").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "Pid" and int(value) > 0:
                return int(value)
    return None
