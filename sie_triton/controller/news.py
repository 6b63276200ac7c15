"""What ends the controller's rest between two rounds: its bell, the end of a process, or a change of a record."""

import select
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from sie_triton.records.bell import Bell
from sie_triton.records.status import read_bytes
from sie_triton.system.processes.pids import Process, ProcessId


class News:
    """News of the processes whose status records are in `directory`. One thread calls the methods."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._bell = Bell(directory)
        self._poll = select.epoll()
        self._poll.register(self._bell, select.EPOLLIN)
        self._held: dict[ProcessId, Process] = {}
        self._misses_one = False
        self._records: Mapping[str, bytes] = {}

    def follow(self, processes: Iterable[ProcessId]) -> None:
        """Report the ends of these processes from now on, and of no others."""
        wanted = {*processes}
        self._held = {process: held for process, held in self._held.items() if process in wanted}
        for process in wanted - self._held.keys():
            with suppress(OSError):  # it has ended, or no file handle is left
                held = Process(process.pid)
                self._poll.register(held, select.EPOLLIN)
                self._held[process] = held
        self._misses_one = len(self._held) < len(wanted)

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for the bell or the end of a process; True if one came."""
        came = self._poll.poll(seconds)
        self._bell.silence()
        return bool(came)

    def has_changed(self) -> bool:
        """True if a record differs from that at the last call, or if a process cannot be followed."""
        before, self._records = self._records, read_bytes(self._directory)
        return self._records != before or self._misses_one
