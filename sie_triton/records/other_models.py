"""Requests of all other models in progress, for the limit on the whole server.

Read from the status records of preprocess and inference, so a process that dies takes its count with it, and nothing is
written for each request.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic_ns

import numpy as np
import numpy.typing as npt

from sie_triton.records.limits import RecordLimits
from sie_triton.records.status import FIELDS, VERSION
from sie_triton.system.processes.pids import ProcessId

# Reading takes at most 1 / SHARE of this process's time.
SHARE = 50

VERSION_FIELD, PID, STARTED, OPEN, TICKET = map(
    FIELDS.index, ("version", "pid", "started", "num_open", "highest_ticket")
)
STAGES = ("preprocess", "inference")

Numbers = npt.NDArray[np.int64]


class OtherModels:
    """Counts the requests in progress of all models except `model`, the prefix of the names of its steps.

    Belongs to one thread, in preprocess the one in `execute`. A count is at most `count_age_ns` old; with hundreds of
    other models it may be older, so that counting takes a bounded share of the time. Nothing raises: while the
    directory cannot be listed, the records of the last listing count.
    """

    def __init__(self, directory: Path, model: str, limits: RecordLimits = RecordLimits()) -> None:
        self._directory, self._model, self._limits = directory, model, limits
        self._mapped: dict[str, Numbers] = {}
        self._records: dict[str, dict[str, list[Numbers]]] = {}
        self._moved: dict[str, tuple[int, int]] = {}
        self._list_again_ns = self._read_again_ns = 0
        self._count = 0

    def in_progress(self) -> int:
        now = monotonic_ns()
        if now >= self._read_again_ns:
            if now >= self._list_again_ns:
                with suppress(OSError):
                    self._list()
                self._list_again_ns = now + self._limits.listing_ns
            self._count = sum(self._of_model(model, by_stage, now) for model, by_stage in self._records.items())
            self._read_again_ns = now + max(self._limits.count_age_ns, SHARE * (monotonic_ns() - now))
        return self._count

    def _list(self) -> None:
        """Map the records of new processes, and forget those of processes that have ended."""
        names = {name for name in os.listdir(self._directory) if name.endswith(".status")}
        self._mapped = {name: numbers for name, numbers in self._mapped.items() if name in names}
        self._records = {}
        for name in names:
            model, _, stage = name.rsplit(".", 2)[0].rpartition("-")
            if model != self._model and stage in STAGES:
                with suppress(OSError, ValueError):
                    numbers = self._mapped.get(name)
                    numbers = self._mapped[name] = self._map(name) if numbers is None else numbers
                    if not numbers[OPEN] or ProcessId(int(numbers[PID]), int(numbers[STARTED])).is_alive:
                        self._records.setdefault(model, {}).setdefault(stage, []).append(numbers)

    def _map(self, name: str) -> Numbers:
        numbers = np.asarray(np.memmap(self._directory / name, "<i8", "r", shape=(len(FIELDS),)))
        if numbers[VERSION_FIELD] != VERSION:
            raise ValueError(f"{name}: not a status record of version {VERSION}")
        return numbers

    def _of_model(self, model: str, records: Mapping[str, Sequence[Numbers]], now: int) -> int:
        num_open = sum(int(numbers[OPEN]) for each in records.values() for numbers in each)
        if len(records) < len(STAGES):
            return num_open
        issued, taken = (max(int(numbers[TICKET]) for numbers in records[stage]) for stage in STAGES)
        return num_open + self._queued(model, max(0, issued - taken), taken, now)

    def _queued(self, model: str, queued: int, taken: int, now: int) -> int:
        """Return `queued`, the requests between the stages of a model; 0 if inference has long taken none."""
        known, since_ns = self._moved.get(model, (-1, 0))
        if not queued or taken != known:
            self._moved[model] = taken, now
            return queued
        return queued if now - since_ns < self._limits.forget_queue_ns else 0
