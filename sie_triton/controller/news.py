"""Events that end the controller's rest between two rounds: its bell, the end of a process, a change of a record."""

import os
import select
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from sie_triton.records.status import BELL, LAYOUT, map_record, status_path
from sie_triton.system.processes.pids import Process, ProcessId


class News:
    """News of processes and their status records in `directory`. One thread calls the methods.

    Raise OSError if the directory takes no FIFO.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.mkfifo(directory / BELL, 0o600)
        self._directory, self._bell = directory, os.open(directory / BELL, os.O_RDWR | os.O_NONBLOCK)
        weakref.finalize(self, os.close, self._bell)
        self._poll = select.epoll()
        self._poll.register(self._bell, select.EPOLLIN)
        self._followed: dict[ProcessId, tuple[Process, np.void]] = {}
        self._misses_one = False
        self._records: Sequence[bytes] = []

    def follow(self, processes: Mapping[ProcessId, tuple[str, str]]) -> None:
        """Report the ends of these processes and changes of their records from now on, and of no others.

        They are mapped to the prefix of their steps' names, and their stage.
        """
        self._followed = {process: each for process, each in self._followed.items() if process in processes}
        for process in processes.keys() - self._followed.keys():
            with suppress(OSError, ValueError):
                held = Process(process.pid)
                self._followed[process] = held, map_record(status_path(self._directory, *processes[process], held.pid))
                self._poll.register(held, select.EPOLLIN)
        self._misses_one = len(self._followed) < len(processes)

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for the bell or the end of a process; True if one came."""
        came = self._poll.poll(seconds)
        with suppress(BlockingIOError):
            os.read(self._bell, 64 * 1024)
        return bool(came)

    def has_changed(self) -> bool:
        """True if a record differs from that at the last call, or if a process cannot be followed."""
        before = self._records
        self._records = [record.tobytes()[: LAYOUT.size] for _, record in self._followed.values()]
        return self._records != before or self._misses_one
