"""Stand-ins for processes that another process has forked (`server/stub_forking/native/standin.c`)."""

from contextlib import suppress

from sie_triton.system.host.files import read_small

# Number of the descriptor in a stand-in that is a pidfd of the other process; all others are lower.
HANDLE = 500


def represented_pid(pid: int) -> int | None:
    """Return the pid of the process for which `pid` stands in; None if it is not a stand-in, or if that has ended."""
    with suppress(OSError, ValueError):
        for line in read_small(f"/proc/{pid}/fdinfo/{HANDLE}", 1024).splitlines():
            name, _, value = line.partition(b":")
            if name == b"Pid" and int(value) > 0:
                return int(value)
    return None
