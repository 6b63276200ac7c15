"""The copies of a busy model: more workers of its inference process, each on another device.

The process asks for a copy in a record of its own (`records/status.py`), the controller grants it where there is room,
and takes it back first when memory is short. An item is computed the same by each worker.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Condition
from time import monotonic_ns

import numpy as np

from sie_triton.errors import BusyError, ModelLoading, SIEError
from sie_triton.pipeline.limits import CopyLimits
from sie_triton.pipeline.scheduling.copying import is_idle, wants_copy
from sie_triton.pipeline.scheduling.job import J
from sie_triton.pipeline.scheduling.scheduler import Scheduler
from sie_triton.pipeline.scheduling.threads import Sweep
from sie_triton.pipeline.stages.loader import Loader
from sie_triton.pipeline.stages.lora_cache import LoraCache
from sie_triton.pipeline.worker.handle import WorkerDied, WorkerHandle
from sie_triton.records.grants import EVICTED, answer_in, answer_path, read_answer
from sie_triton.records.status import LOADING, RESIDENT, CopyRecord, StatusWriter, ring, worker_of
from sie_triton.system.host.footprint import ACTIVATION_BYTES

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Copy:
    """A copy, wished for or loaded. `fields` record its memory: those of the process once it is promoted."""

    record: CopyRecord
    answer: Path
    fields: np.void
    worker: WorkerHandle | None = None

    def measured(self, device_bytes: int) -> None:
        self.fields["device_bytes"] = device_bytes

    def close(self) -> None:
        """End its worker, and remove its record and its answer. No thread may be in `forward` of a living worker."""
        if self.worker is not None:
            self.worker.close()
        self.forget()

    def forget(self) -> None:
        self.record.remove()
        self.answer.unlink(missing_ok=True)


class Copies:
    """The workers of one inference process beside its own, at most `most`, on others of its `devices`.

    A thread of this object, which runs after `start`, calls `look`: it asks, loads and lets go. Lanes call
    `least_busy`, the thread that replaces a worker `drop` and `promote`. A copy that cannot be loaded, or that ends,
    fails no request.
    """

    def __init__(
        self,
        status: StatusWriter,
        devices: Sequence[str],
        most: int,
        scheduler: Scheduler[J],
        loader: Loader,
        loras: LoraCache,
        limits: CopyLimits = CopyLimits(),
        clock: Callable[[], int] = monotonic_ns,
    ) -> None:
        self._status, self._devices, self.most = status, devices, most
        self._scheduler, self._loader, self._loras = scheduler, loader, loras
        self._limits, self._clock = limits, clock
        self._changed = Condition()
        self._passes = Counter[WorkerHandle]()
        self._held: dict[WorkerHandle, Copy] = {}
        self._asking: Copy | None = None
        self._joined_ns = self._left_ns = 0
        self._sweep = Sweep("copies", limits.look_s, self.look)

    def start(self) -> None:
        """Look after copies from now on, if there may be any."""
        if self.most:
            with suppress(BusyError):  # the next load starts it
                self._sweep.start()

    def stop(self) -> None:
        """Start no copy any more. A load that runs ends once the process is about to."""
        self._sweep.close()

    def close(self) -> None:
        """End all copies. No thread may be in `least_busy`."""
        for copy in (*self._held.values(), *([self._asking] if self._asking else ())):
            copy.close()

    @contextmanager
    def least_busy(self, own: WorkerHandle) -> Iterator[WorkerHandle]:
        """Give the living worker with the fewest passes for one pass; `own` first, which is that of the process."""
        with self._changed:
            living = [worker for worker in (own, *self._held) if worker.is_alive] or [own]
            worker = min(living, key=self._passes.__getitem__)
            self._count(worker, 1)
        try:
            yield worker
        finally:
            with self._changed:
                self._count(worker, -1)
                self._changed.notify_all()

    def drop(self, dead: WorkerHandle) -> bool:
        """Do without a worker that has ended. Return False if it is not that of a copy."""
        copy = self._take_out(dead)
        if copy is None:
            return False
        log.error("the copy on %s ended", self._device_of(copy))
        self._loras.leave(dead)
        if self._clock() - copy.fields["resident_since_ns"] < self._limits.again_s * 1e9:
            self._left_ns = self._clock()
        copy.close()
        return True

    def promote(self) -> WorkerHandle | None:
        """Make a living copy the worker of the process, in place of one that has ended; None if there is none."""
        living = (worker for worker in [*self._held] if worker.is_alive)
        if (worker := next(living, None)) is None or (copy := self._take_out(worker)) is None:
            return None
        own, fields = self._status.record, copy.fields
        for field in ("device", "weights_bytes", "device_bytes"):
            own[field] = fields[field]
        own["graph_tokens"] = 0
        self._status.has_worker(worker_of(fields))
        copy.fields = own
        self._loras.restore(worker)
        copy.forget()
        return worker

    def look(self) -> None:
        """Ask for a copy, load one that is granted, or let copies go."""
        self._let_go()
        if self._asking is not None:
            self._follow_up(self._asking)
        elif self._wants_one():
            self._asking = self._ask()

    def _count(self, worker: WorkerHandle, change: int) -> None:
        self._passes[worker] += change
        if not self._passes[worker]:
            del self._passes[worker]
        if copy := self._held.get(worker):
            now = self._clock()
            copy.fields["last_used_ns"] = now
            copy.fields["busy_since_ns"] = now if self._passes[worker] else 0

    def _wants_one(self) -> bool:
        since, own = self._scheduler.crowded_since_ns, self._status.record
        times = {"crowded_since_ns": since, "joined_ns": self._joined_ns, "left_ns": self._left_ns}
        return (
            wants_copy(self._clock(), **times, limits=self._limits)
            and len(self._held) < self.most
            and bool(own["state"] == RESIDENT and own["device_bytes"])
            and not self._status.has_successor()
        )

    def _ask(self) -> Copy:
        numbers = {copy.record.number for copy in self._held.values()}
        number = next(number for number in range(1, self.most + 1) if number not in numbers)
        record = CopyRecord(self._status, number)
        copy = Copy(record, answer_path(self._status.directory, record.pid, number), record.record)
        copy.answer.unlink(missing_ok=True)
        copy.fields["wanted_since_ns"] = monotonic_ns()
        copy.fields["wanted_bytes"] = self._status.record["device_bytes"] + ACTIVATION_BYTES
        ring(self._status.directory)
        return copy

    def _follow_up(self, copy: Copy) -> None:
        """Load a copy once it is granted. Ask no longer once it is refused, or no longer needed."""
        try:
            device = answer_in(copy.answer)
        except SIEError:
            device = ""
        if device is None and self._scheduler.crowded_since_ns:
            return
        if device and device in self._devices:
            self._load(copy, device)
        else:
            copy.close()
        self._asking = None

    def _load(self, copy: Copy, device: str) -> None:
        fields = copy.fields
        fields["device"] = self._devices.index(device)
        fields["state"] = LOADING
        fields["granted_bytes"] = fields["wanted_bytes"]
        fields["wanted_bytes"] = 0
        try:
            copy.worker = self._loader.start_copy(copy.record, device, lambda: self._check(copy), copy.measured)
            self._loras.equip(copy.worker, lambda: self._join(copy))
        except Exception as exc:
            log.warning("a copy on %s could not be loaded: %s", device, exc)
            self._left_ns = self._clock()
            if copy.worker is not None:
                self._loras.leave(copy.worker)
            copy.close()
        else:
            log.info("a copy on %s computes, too", device)

    def _check(self, copy: Copy) -> None:
        """Raise ModelLoading if the controller takes back the memory for `copy`; look after the others meanwhile."""
        if self._is_taken(copy):
            raise ModelLoading("its memory is needed")
        self._let_go()

    def _join(self, copy: Copy) -> None:
        """Give passes to a copy from now on. Raise WorkerDied; BusyError if there are no threads for its lanes."""
        worker = copy.worker
        assert worker is not None
        with self._changed:
            if not worker.is_alive:
                raise WorkerDied("the worker process ended")
            self._scheduler.use_workers(2 + len(self._held))
            self._held[worker] = copy
            self._joined_ns = self._clock()
            copy.fields["weights_bytes"] = worker.loaded.weights_bytes
            copy.fields["device_bytes"] = worker.loaded.device_bytes
            copy.fields["resident_since_ns"] = copy.fields["last_used_ns"] = self._joined_ns
            copy.fields["state"] = RESIDENT
        copy.fields["granted_bytes"] = 0
        copy.answer.unlink(missing_ok=True)

    def _let_go(self) -> None:
        """Let the copies go that the controller takes, and those that are idle."""
        for worker, copy in [*self._held.items()]:
            is_taken, now = self._is_taken(copy), self._clock()
            last_ns, num_passes = int(copy.fields["last_used_ns"]), self._passes[worker]
            if is_taken or is_idle(now, last_pass_ns=last_ns, num_passes=num_passes, limits=self._limits):
                self._left_ns = now if is_taken else self._left_ns
                self._dismiss(worker)

    def _dismiss(self, worker: WorkerHandle) -> None:
        """End a copy once its passes have ended; the other workers get the next ones."""
        with self._changed:
            copy = self._held.pop(worker, None)
            if copy is None:  # it has ended
                return
            # Its lanes stay until then: the other workers need theirs.
            self._changed.wait_for(lambda: not self._passes[worker])
            self._scheduler.use_workers(1 + len(self._held))
        self._loras.leave(worker)
        copy.close()
        log.info("the copy on %s has gone", self._device_of(copy))

    def _take_out(self, worker: WorkerHandle) -> Copy | None:
        """Give no more passes to a copy. Return None if another thread has taken it out."""
        with self._changed:
            copy = self._held.pop(worker, None)
            if copy is not None:
                self._scheduler.use_workers(1 + len(self._held))
        return copy

    def _is_taken(self, copy: Copy) -> bool:
        return read_answer(copy.answer)[0] == EVICTED

    def _device_of(self, copy: Copy) -> str:
        return self._devices[int(copy.fields["device"])]
