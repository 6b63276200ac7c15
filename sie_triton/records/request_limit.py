"""Limits on requests in progress, of the server and of a model: in preprocess, in Triton's queue, and in inference.

Triton's own queue limit makes its batcher stall, so the stages do the counting. Preprocess gives each request that it
passes on an ascending ticket; inference records the highest ticket that it has received. Triton's queue is first in,
first out, so the difference is the number of queued requests, and a request that was lost on the way is forgotten as
soon as a later one arrives.

Other models are counted from their records, too: a process that dies takes its count with it, and nothing is written
for each request.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic_ns

import numpy as np

from sie_triton.errors import BusyError
from sie_triton.records.limits import RecordLimits
from sie_triton.records.status import StatusReader, StatusWriter, map_record, process_of

# Reading takes at most 1 / SHARE of this process's time.
SHARE = 50

STAGES = ("preprocess", "inference")


class RequestLimit:
    """The limits on requests as the preprocess of a model sees them, from the status records.

    `of_server` limits all models together, `of_model` this one; 0: no limit of its own. Holds the highest ticket that
    inference has received, and since when. The thread in `execute` calls the public methods, which raise nothing.
    """

    def __init__(
        self,
        of_server: int,
        of_model: int,
        preprocess: StatusWriter,
        inference: StatusReader,
        others: "OtherModels",
        limits: RecordLimits = RecordLimits(),
    ) -> None:
        self._limits = limits
        self._of_server, self._of_model = of_server, of_model or of_server
        self._own = preprocess.record
        self._inference = inference
        self._others = others
        self._is_of_model = False  # the limit that was reached
        self._taken = self._queued = 0
        self._taken_ns = monotonic_ns()

    def places_left(self) -> int:
        """Return how many more requests may enter now."""
        left = self._places_left(self._limits.listing_ns)
        if left <= 0:
            left = self._places_left(self._limits.fresh_listing_ns)
        if left <= 0 and monotonic_ns() - self._taken_ns > self._limits.stuck_ns and self._queued:
            self._taken_ns = monotonic_ns()
            return 1
        return left

    def refusal(self) -> BusyError:
        """Return the error of the requests beyond `places_left`: it names the limit that they exceed."""
        return (
            too_many(self._of_model)
            if self._is_of_model
            else too_many(self._of_server, "are in progress on this server", "SIE_MAX_CONCURRENT_REQUESTS")
        )

    def _places_left(self, max_age_ns: int) -> int:
        own = self._in_progress(max_age_ns)
        left_of_model, left_of_server = self._of_model - own, self._of_server - own - self._others.in_progress()
        self._is_of_model = left_of_model < left_of_server
        return min(left_of_model, left_of_server)

    def _in_progress(self, max_age_ns: int) -> int:
        records = self._inference.records(max_age_ns)
        taken = max([int(record["highest_ticket"]) for record in records], default=0)
        if taken != self._taken:
            self._taken, self._taken_ns = taken, monotonic_ns()
        self._queued = max(0, int(self._own["highest_ticket"]) - taken)
        return int(self._own["num_open"]) + self._queued + sum([int(record["num_open"]) for record in records])


class OtherModels:
    """Counts the requests in progress of all models except `model`, the prefix of the names of its steps.

    Belongs to one thread, in preprocess the one in `execute`. A count is at most `count_age_ns` old; with hundreds of
    other models it may be older, so that counting takes a bounded share of the time. Nothing raises: while the
    directory cannot be listed, the records of the last listing count.
    """

    def __init__(self, directory: Path, model: str, limits: RecordLimits = RecordLimits()) -> None:
        self._directory, self._model, self._limits = directory, model, limits
        self._mapped: dict[str, np.void] = {}
        self._records: dict[str, dict[str, list[np.void]]] = {}
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
        self._mapped = {name: record for name, record in self._mapped.items() if name in names}
        self._records = {}
        for name in names:
            model, _, stage = name.rsplit(".", 2)[0].rpartition("-")
            if model != self._model and stage in STAGES:
                with suppress(OSError, ValueError):
                    record = self._mapped.get(name)
                    record = self._mapped[name] = map_record(self._directory / name) if record is None else record
                    if not record["num_open"] or process_of(record).is_alive:
                        self._records.setdefault(model, {}).setdefault(stage, []).append(record)

    def _of_model(self, model: str, records: Mapping[str, Sequence[np.void]], now: int) -> int:
        num_open = sum(int(record["num_open"]) for each in records.values() for record in each)
        if len(records) < len(STAGES):
            return num_open
        issued, taken = (max(int(record["highest_ticket"]) for record in records[stage]) for stage in STAGES)
        return num_open + self._queued(model, max(0, issued - taken), taken, now)

    def _queued(self, model: str, queued: int, taken: int, now: int) -> int:
        """Return `queued`, the requests between the stages of a model; 0 if inference has long taken none."""
        known, since_ns = self._moved.get(model, (-1, 0))
        if not queued or taken != known:
            self._moved[model] = taken, now
            return queued
        return queued if now - since_ns < self._limits.forget_queue_ns else 0


def too_many(
    limit: int, where: str = "of this model are in progress", setting: str = "SIE_MAX_REQUESTS_PER_MODEL"
) -> BusyError:
    return BusyError(f"{limit} requests {where}, the most that {setting} allows; retry in a second", retry_after_s=1)
