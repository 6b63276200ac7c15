"""The controller's round: heal, grant room, relieve pressure, evict what is idle."""

import fcntl
import logging
import os
import signal
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from time import monotonic, monotonic_ns, sleep
from typing import IO

from tritonclient.utils import InferenceServerException

from sie_triton.controller.choice import victims
from sie_triton.controller.memory import Memory, orphaned_regions, sample
from sie_triton.controller.models import Living, Model, models_of, read_living
from sie_triton.controller.triton import ModelControl
from sie_triton.errors import LoadError, ServerError
from sie_triton.settings import Settings
from sie_triton.stages.room import CONTROLLER_LOCK, GRANTED, answer_path
from sie_triton.stages.status import RESIDENT, is_alive, is_stopped, parent_of
from sie_triton.worker.nursery import nursery_pid

log = logging.getLogger(__name__)

PERIOD_S = 0.2

# A tokenizer nobody needs, with its model out of memory for so long, is given back too.
RECYCLE_AFTER_S = 30.0

# Shared memory that was nobody's at two looks is removed.
ORPHANS_EVERY_S = 3.0

MAX_SWAPS = 4
MAX_LOADS = 16

# Beyond this share of the limit nobody's minimum residency counts.
CRITICAL_PERCENT = 97


class Controller:
    """One for a tritonserver. `tick` is called every PERIOD_S by one thread; the other methods by any."""

    def __init__(self, settings: Settings, control: ModelControl) -> None:
        self._settings = settings
        self._control = control
        self._directory = settings.status_dir
        self._device = settings.runtime.device
        self._pool = ThreadPoolExecutor(MAX_SWAPS, "swap")
        self._loads = ThreadPoolExecutor(MAX_LOADS, "load")
        self._swaps: dict[tuple[str, bool], Future[None]] = {}
        self._stopped: set[int] = set()
        self.models: Mapping[str, Model] = {}
        self.memory = Memory(0, 1, "nothing measured yet")
        self.counts: dict[tuple[str, str], int] = {}
        self.num_loads: dict[str, int] = {}
        self._resident_since: dict[str, int] = {}
        self._started_ns = monotonic_ns()
        self._orphans: set[Path] = set()
        self._drained: set[int] = set()
        self._orphans_sought = monotonic()

    def tick(self) -> None:
        living = read_living(self._directory)
        self.models = models_of(living)
        self._swaps = {which: swap for which, swap in self._swaps.items() if not swap.done()}
        self._heal(living)
        pids = [model.record["pid"] for model in self.models.values()]
        triton = next((pid for pid in map(parent_of, pids) if pid), 0)
        records = [record for model in self.models.values() for record in (model.record, *model.draining)]
        workers = [record["worker_pid"] for record in records if record["worker_pid"]]
        self.memory = sample(
            self._device,
            triton,
            [*workers, *nursery_pid(self._directory)],
            self._settings.memory_limit_bytes,
        )
        self._grant()
        self._relieve()
        self._evict_idle()
        self._end_drained()
        self._recycle()
        self._remove_orphans(triton)
        self._count_loads()

    def swap(self, model: str, stage: str, reason: str, *, resident: bool = False) -> Future[None]:
        """Give a stage of `model` a new process, unless that is being done."""
        name = f"{model}-{stage}"
        which = (name, resident)
        if which not in self._swaps or self._swaps[which].done():
            self.counts[model, reason] = self.counts.get((model, reason), 0) + 1
            log.info("%s: %s", name, reason)
            self._swaps[which] = self._pool.submit(self._swap, name, resident)
        return self._swaps[which]

    def evict(self, model: str, reason: str) -> Future[None]:
        return self.swap(model, "inference", f"evict: {reason}")

    def load(self, model: str) -> Future[None]:
        """Done when its weights are in memory; LoadError if they cannot be loaded."""
        return self._loads.submit(self._load, model)

    def unload(self, model: str) -> Future[None]:
        """Take `model` out of service."""
        return self._pool.submit(self._control.unload, model)

    def close(self) -> None:
        self._loads.shutdown(wait=False, cancel_futures=True)
        self._pool.shutdown(cancel_futures=True)

    def _load(self, model: str) -> None:
        if self.models[model].state == "resident":
            return
        if self.models[model].failure and (before := self.models[model].preprocess) and before["load_failure"]:
            self.swap(model, "preprocess", "load").result()
        self.swap(model, "inference", "load", resident=True).result()
        generation = 0
        while latest := models_of(read_living(self._directory)).get(model):
            generation = generation or latest.record["generation"]
            if latest.state == "resident" or latest.record["generation"] != generation:
                return
            if latest.failure:
                raise LoadError("could not be loaded; Triton's log has the details", latest.failure)
            sleep(PERIOD_S)

    def _swap(self, name: str, resident: bool) -> None:
        try:
            self._control.swap(name, resident=resident)
        except InferenceServerException as exc:
            log.error("%s: Triton refused to load it: %s", name, exc.message())
            raise

    def _heal(self, living: Living) -> None:
        """A new process for each stage that has none alive; a stopped one is ended, the next round replaces it."""
        for stage, by_model in living.items():
            for model, records in by_model.items():
                for record in records:
                    self._end_if_stopped(record["pid"])
                if not records:
                    self.swap(model, stage, "heal").add_done_callback(self._forget(model, stage))

    def _end_if_stopped(self, pid: int) -> None:
        if not is_stopped(pid):
            self._stopped.discard(pid)
        elif pid in self._stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        else:
            self._stopped.add(pid)

    def _forget(self, model: str, stage: str) -> Callable[[Future[None]], None]:
        """Remove the records of dead processes once another is there, or the model is gone from Triton."""

        def forget(_: Future[None]) -> None:
            for path in self._directory.glob(f"{model}-{stage}.*.status"):
                if not is_alive(int(path.name.split(".")[-2])):
                    path.unlink(missing_ok=True)

        return forget

    def _grant(self) -> None:
        """Room for the one that has waited longest; one load at a time."""
        waiting = sorted((m for m in self.models.values() if m.wants), key=lambda m: m.record["wanted_since_ns"])
        waiting = [m for m in waiting if not answer_path(self._directory, m.record["pid"]).exists()]
        if not waiting or any(model.is_loading for model in self.models.values()):
            return
        model = waiting[0]
        threshold = self._settings.memory_pressure_threshold_percent
        over = self.memory.over(threshold) + model.wants
        if over <= 0:
            self._answer(model, GRANTED)
            return
        movable = sum(m.num_bytes for m in self.models.values() if m is not model)
        if over > movable:
            room = self.memory.limit * threshold // 100 - (self.memory.used - movable)
            self._answer(model, _never_fits(model.wants, room, self.memory, threshold))
            return
        self._make_room(over, model.name, reason="room for another")

    def _relieve(self) -> None:
        over = self.memory.over(self._settings.memory_pressure_threshold_percent)
        if over > 0 and not any(model.wants or model.is_loading for model in self.models.values()):
            self._make_room(over, "", reason="pressure")

    def _make_room(self, num_bytes: int, beneficiary: str, *, reason: str) -> None:
        """Evict, counting what is on its way out already."""
        residents = []
        for model in self.models.values():
            num_bytes -= model.leaving_bytes
            if (f"{model.name}-inference", False) in self._swaps:
                num_bytes -= model.num_bytes - model.leaving_bytes
            elif model.state == "resident" and model.name != beneficiary:
                residents.append(model.as_resident())
        chosen = victims(
            residents,
            num_bytes,
            now_ns=monotonic_ns(),
            min_residency_ns=int(self._settings.min_residency_s * 1e9),
            critical=self.memory.over(CRITICAL_PERCENT) > 0,
        )
        for name in chosen:
            self.evict(name, reason)

    def _evict_idle(self) -> None:
        limit_ns = self._settings.idle_evict_s * 1e9
        if not limit_ns:
            return
        for resident in (m.as_resident() for m in self.models.values() if m.state == "resident"):
            if not resident.is_busy and monotonic_ns() - resident.last_used_ns > limit_ns:
                self.evict(resident.name, "idle")

    def _end_drained(self) -> None:
        """Triton takes a second to end a process that has nothing to do any more; its worker need not wait for it."""
        drained = {
            record["worker_pid"]
            for model in self.models.values()
            for record in model.draining
            if record["worker_pid"] and not record["num_open"] and (f"{model.name}-inference", False) not in self._swaps
        }
        for pid in drained & self._drained:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        self._drained = drained

    def _recycle(self) -> None:
        """The tokenizer of a model that has been out of memory for a while."""
        now = monotonic_ns()
        for model in self.models.values():
            before = model.preprocess
            if model.state != "cold" or model.pending or not before or before["state"] != RESIDENT:
                continue
            used_ns = max(before["last_used_ns"], before["resident_since_ns"], model.record["last_used_ns"])
            if not before["num_open"] and now - used_ns > RECYCLE_AFTER_S * 1e9:
                self.swap(model.name, "preprocess", "recycle")

    def _remove_orphans(self, triton: int) -> None:
        """Triton leaks the shared memory of a process that died with requests in it."""
        if monotonic() - self._orphans_sought > ORPHANS_EVERY_S:
            self._orphans_sought = monotonic()
            orphans = orphaned_regions(triton)
            for region in orphans & self._orphans:
                log.info("removing %s, whose process is gone", region)
                region.unlink(missing_ok=True)
            self._orphans = orphans

    def _count_loads(self) -> None:
        """Seen as a new `resident_since_ns`; those of before this controller was there are not counted."""
        for model in self.models.values():
            since = model.record["resident_since_ns"]
            if since > self._started_ns and since != self._resident_since.get(model.name):
                self._resident_since[model.name] = since
                self.num_loads[model.name] = self.num_loads.get(model.name, 0) + 1

    def _answer(self, model: Model, text: str) -> None:
        with tempfile.NamedTemporaryFile("w", dir=self._directory, delete=False) as file:
            file.write(text)
        Path(file.name).replace(answer_path(self._directory, model.record["pid"]))


def lock(directory: Path) -> IO[str]:
    """Held for as long as this controller lives; ServerError if another one does."""
    directory.mkdir(parents=True, exist_ok=True)
    handle = (directory / CONTROLLER_LOCK).open("w")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        raise ServerError(f"another controller looks after {directory}") from exc
    return handle


def _never_fits(wanted: int, room: float, memory: Memory, threshold: float) -> str:
    return (
        f"weights: need about {_gib(wanted)}, but with every other model evicted only {_gib(max(0, room))} are free: "
        f"{threshold:g} % of {_gib(memory.limit)} ({memory.source}) less what the server itself uses; "
        "raise the limit, or choose a smaller model or precision"
    )


def _gib(num_bytes: float) -> str:
    """
    >>> _gib(1610612736)
    '1.50 GiB'
    """
    return f"{num_bytes / 2**30:.2f} GiB"
