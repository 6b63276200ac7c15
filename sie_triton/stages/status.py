"""The status record: one small mapped file per stage process, one writer, any number of readers.

It is the truth about which process holds which model, what it does and when it was last used.
Fields are aligned 8-byte integers, so a reader never sees half a number.
"""

import os
from contextlib import suppress
from pathlib import Path
from threading import Lock
from time import monotonic_ns

import numpy as np
import numpy.typing as npt

COLD, LOADING, RESIDENT, FAILED = range(4)
VERSION = 1

RECORD = np.dtype(
    [
        ("version", "<i8"),
        ("pid", "<i8"),
        ("generation", "<i8"),
        ("state", "<i8"),
        ("busy_since_ns", "<i8"),  # monotonic; 0 when idle
        ("last_used_ns", "<i8"),  # monotonic; 0 when never
        ("weights_bytes", "<i8"),
        ("num_requests", "<i8"),
        ("num_items", "<i8"),
        ("num_sub_batches", "<i8"),
        ("num_deferred", "<i8"),
        ("total_cost", "<i8"),
        ("max_sub_batch_cost", "<i8"),  # largest executed sub-batch of more than one item
    ]
)


class StatusWriter:
    """Fields are attributes of `record`: `status.record["state"] = LOADING`."""

    def __init__(self, directory: Path, model: str, generation: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / f"{model}.{os.getpid()}.status"
        self.record = np.memmap(self._path, RECORD, "w+", shape=(1,))[0]
        self.record["version"] = VERSION
        self.record["pid"] = os.getpid()
        self.record["generation"] = generation
        self._lock = Lock()
        self._running: list[int] = []

    def add(self, **counts: int) -> None:
        with self._lock:
            for name, count in counts.items():
                self.record[name] += count

    def raise_to(self, **values: int) -> None:
        """Keep the larger of the recorded and the given value."""
        with self._lock:
            for name, value in values.items():
                self.record[name] = max(int(self.record[name]), value)

    def work_started(self) -> int:
        """The time now; `busy_since_ns` is that of the oldest work still running."""
        now = monotonic_ns()
        with self._lock:
            self._running.append(now)
            self.record["busy_since_ns"] = min(self._running)
        return now

    def work_ended(self, started_ns: int) -> int:
        now = monotonic_ns()
        with self._lock:
            self._running.remove(started_ns)
            self.record["busy_since_ns"] = min(self._running, default=0)
            self.record["last_used_ns"] = now
        return now

    def others(self) -> list[dict[str, int]]:
        """The records of all other living processes; those that cannot be read are left out."""
        found = []
        for path in self._path.parent.glob("*.status"):
            with suppress(OSError, ValueError):
                found.append(read_status(path))
        return [r for r in found if r["pid"] != os.getpid() and Path(f"/proc/{r['pid']}").exists()]

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)


def read_status(path: Path) -> dict[str, int]:
    """One record as plain integers."""
    record: npt.NDArray[np.void] = np.fromfile(path, RECORD)
    if len(record) != 1 or record[0]["version"] != VERSION:
        raise ValueError(f"{path}: not a status record of version {VERSION}")
    return {name: int(record[0][name]) for name in RECORD.names or ()}


def records_of(directory: Path, model: str) -> list[dict[str, int]]:
    """The records of all processes of a Triton model."""
    return [read_status(path) for path in sorted(directory.glob(f"{model}.*.status"))]
