"""Grant memory to loads that wait for it, and evict models for them, for pressure, or after idle time."""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from signal import SIGKILL
from time import monotonic_ns
from types import MappingProxyType

from sie_triton.controller.choice import Resident, place, place_copy, victims
from sie_triton.controller.device_books import DeviceBooks
from sie_triton.controller.limits import ControllerLimits
from sie_triton.controller.memory import DeviceMemory
from sie_triton.controller.model_states import ModelState, Stages, inference_records, most_bytes, taken_bytes
from sie_triton.controller.swaps import Swaps
from sie_triton.records.grants import EVICTED, answer_path, grant_of, refusal
from sie_triton.records.revisions import model_of
from sie_triton.records.status import LOADING, RESIDENT, Record, process_of, worker_of
from sie_triton.settings import Settings
from sie_triton.system.host.files import write_atomically
from sie_triton.system.host.footprint import STAGE_BYTES, gib
from sie_triton.system.host.process_memory import private_bytes
from sie_triton.system.processes.pids import ProcessId

log = logging.getLogger(__name__)

# Under pressure, workers that take more than this many times what they may are ended first: those that load, what was
# granted; loaded ones, what was measured as they loaded.
OVERDRAWN = 2


class MemoryGrants:
    """The grants and evictions of one round, whose thread calls every method.

    Reads the `models`, their `stages` and the memory of each device, in the order of the server's devices. On a lost
    device nothing is granted or evicted. Answers go to the stages as files; one that cannot be written is logged.
    Evictions go to `swaps`; no method waits for them.
    `ended_bytes`: memory of the workers and stages that the round has ended; None while none was sought.
    """

    def __init__(
        self,
        settings: Settings,
        swaps: Swaps,
        models: Mapping[str, ModelState],
        memories: Mapping[str, DeviceMemory],
        stages: Stages = MappingProxyType({}),
        limits: ControllerLimits = ControllerLimits(),
    ) -> None:
        self._settings, self._limits = settings, limits
        self._directory = settings.status_dir
        self._min_residency_ns = int(settings.min_residency_s * 1e9)
        self._swaps = swaps
        self._models = models
        self._stages = stages
        threshold, is_evicting = settings.memory_pressure_threshold_percent, swaps.is_evicting
        self._books = [
            DeviceBooks(device, number, memory, threshold, models, is_evicting, self._directory)
            for number, (device, memory) in enumerate(memories.items())
            if not memory.is_lost
        ]
        self._is_short = False
        self.ended_bytes: int | None = None

    def grant(self) -> None:
        """Grant memory to each load that fits beside those in progress; evict models for the others.

        On each device that is done for one load at a time. Loads that fit may overtake it for `overtaking_s`.
        """
        for model, record in self._waiting() if self._books else ():
            books = self._chosen(model, record)
            short = record["wanted_bytes"] - books.free
            if not books.is_open:
                continue
            if short <= 0:
                answer_load(self._directory, record, grant_of(books.device))
                books.free -= record["wanted_bytes"]
            elif not books.awaited:
                books.awaited = short
                short -= self._end_overdrawn()
                has_room = self._make_room_for(books, model, record, short)
                books.is_open = not (has_room and _waited_s(record) > self._limits.overtaking_s)

    def grant_copies(self) -> None:
        """Grant memory to copies where there is room, once no load waits for any."""
        waiting = self._unanswered()
        if not all(record["copy"] for _, record in waiting):
            return
        for model, record in waiting:
            if record["pid"] != model.record["pid"]:  # of a process that only finishes its requests
                continue
            able = [books for books in self._books if not books.holds(model)]
            devices = [books.as_device(model.name) for books in able]
            device = place_copy(devices, record["wanted_bytes"])
            if device is not None and not self._swaps.is_evicting(model.name):
                answer_load(self._directory, record, grant_of(device.name))
                able[devices.index(device)].free -= record["wanted_bytes"]

    def relieve(self) -> None:
        for books in self._books:
            if books.over > 0:
                self._is_short = True
                self._relieve(books)

    def _relieve(self, books: DeviceBooks) -> None:
        over = books.over - self._end_overdrawn()
        for _, record in inference_records(self._models):
            granted, taken = record["granted_bytes"], books.taken(record)
            if granted and taken > OVERDRAWN * granted:
                answer_load(self._directory, record, refusal("out of memory", _overdrawn(granted, taken)))
                over -= taken
        self._evict(books, over, "", reason="pressure")

    def evict_idle(self) -> None:
        limit_ns = self._settings.idle_evict_s * 1e9
        if not limit_ns:
            return
        for resident in (each for books in self._books for each in books.residents("") if not each.is_copy):
            if not resident.is_busy and monotonic_ns() - resident.last_used_ns > limit_ns:
                self._swaps.evict(resident.name, "idle")

    def recycle(self) -> None:
        """Free tokenizers of cold or failed models that are unused for a while; at once if memory is short."""
        now, patience_s = monotonic_ns(), 0.0 if self._is_short else self._limits.recycle_after_s
        for model in self._models.values():
            before = model.preprocess
            if not before or not model.is_out_of_use or before["state"] != RESIDENT:
                continue
            used_ns = max(before["last_used_ns"], before["resident_since_ns"], model.record["last_used_ns"])
            if not before["num_open"] and now - used_ns > patience_s * 1e9:
                self._swaps.swap(model.name, "preprocess", "recycle")

    def _waiting(self) -> list[tuple[ModelState, Record]]:
        """Return the loads that wait for memory, longest wait first."""
        waiting = [
            (model, record)
            for model, record in self._unanswered()
            if not record["copy"] and not model.must_wait(record)
        ]
        return sorted(waiting, key=lambda each: each[1]["wanted_since_ns"])

    def _unanswered(self) -> list[tuple[ModelState, Record]]:
        """Return the loads and the copies that have asked for memory, and have no answer."""
        asking = [each for each in inference_records(self._models) if each[1]["wanted_bytes"]]
        return [each for each in asking if not _answer_to(self._directory, each[1]).exists()]

    def _chosen(self, model: ModelState, record: Record) -> DeviceBooks:
        """Return the device that a load gets its memory from."""
        able = [books for books in self._books if not books.has_copy(model)] or self._books
        if len(able) == 1:
            return able[0]
        devices = [books.as_device(model.name) for books in able]
        best = place(devices, record["wanted_bytes"], now_ns=monotonic_ns(), min_residency_ns=self._min_residency_ns)
        return able[devices.index(best)]

    def _make_room_for(self, books: DeviceBooks, model: ModelState, record: Record, short: int) -> bool:
        """Evict models for a load that lacks `short` bytes.

        Return False if evictions are not enough; the load is refused after a while, or at once if it can never fit.
        """
        loading = sum(books.granted(r) for _, r in inference_records(self._models))
        movable = books.movable(model.name)
        wanted, waited_s = record["wanted_bytes"], _waited_s(record)
        if wanted > books.most:
            answer_load(self._directory, record, refusal("too large", books.too_large(wanted)))
        elif short > movable + loading or waited_s > self._limits.max_grant_wait_s:
            self._is_short = True
            if waited_s > self._limits.min_grant_wait_s:
                missing = short - movable
                message = books.no_room(wanted, missing) if missing > 0 else not_freed(wanted, waited_s)
                answer_load(self._directory, record, refusal("out of memory", message))
        else:
            self._evict(books, short, model.name, reason="room for another")
            return short <= movable
        return False

    def _evict(self, books: DeviceBooks, num_bytes: int, beneficiary: str, *, reason: str) -> None:
        """Evict models until `num_bytes` become free, including evictions in progress."""
        residents = {each.name: each for each in books.residents(beneficiary)}
        chosen = victims(
            [*residents.values()],
            num_bytes - books.leaving(),
            now_ns=monotonic_ns(),
            min_residency_ns=self._min_residency_ns,
            critical=books.is_critical,
        )
        for name in chosen:
            self._leave(books, residents[name], reason)

    def _leave(self, books: DeviceBooks, resident: Resident, reason: str) -> None:
        if not resident.is_copy:
            self._swaps.evict(resident.name, reason)
        elif copy := books.copy_of(self._models[resident.name]):
            log.info("%s: its copy on %s leaves: %s", resident.name, books.device, reason)
            answer_load(self._directory, copy, EVICTED)

    def _end_overdrawn(self) -> int:
        """End the workers and stages that take more than they may; return their bytes. Healing replaces them.

        No other model pays for them. A second call in a round ends nothing more.
        """
        if self.ended_bytes is None:
            self.ended_bytes = 0
            for process, what, taken, most in self._overdrawn():
                log.warning("%s", _ended(what, taken, most))
                process.send(SIGKILL)
                self.ended_bytes += taken
        return self.ended_bytes

    def _overdrawn(self) -> Iterator[tuple[ProcessId, str, int, int]]:
        """Yield loaded workers and stages that take more than they may, with their name, and both in bytes."""
        for model, record in inference_records(self._models):
            most = OVERDRAWN * most_bytes(record)
            if most and (taken := taken_bytes(record)) > most:
                yield worker_of(record), f"the worker of {model.name}", taken, most
        most = STAGE_BYTES + self._settings.max_decoded_bytes
        for stage, by_steps in self._stages.items():
            for steps, processes in by_steps.items():
                for record in processes.living:
                    if (taken := private_bytes(record["pid"])) > most:
                        yield process_of(record), f"the {stage} process of {model_of(steps)}", taken, most


def withdraw(directory: Path, record: Record) -> None:
    """Stop a process that loads or waits for memory; clients are told to retry its requests."""
    if record["state"] == LOADING:
        answer_load(directory, record, EVICTED)


def answer_load(directory: Path, record: Record, text: str) -> None:
    """Answer a process that loads or waits for memory. On a full disk a grant is tried again by the rounds to come."""
    try:
        write_atomically(_answer_to(directory, record), text)
    except OSError as exc:
        log.warning("the load of process %d cannot be answered now: %s", record["pid"], exc)


def not_freed(wanted: int, waited_s: float) -> str:
    """Return the message for a load for which other models leave, but have not left."""
    return f"weights: need about {gib(wanted)}, which other models have not freed within {waited_s:.0f} s; retry"


def _answer_to(directory: Path, record: Record) -> Path:
    return answer_path(directory, record["pid"], record["copy"])


def _waited_s(record: Record) -> float:
    return (monotonic_ns() - record["wanted_since_ns"]) / 1e9


def _overdrawn(granted: int, taken: int) -> str:
    return f"weights: loading took {gib(taken)} and was ended; {gib(granted)} were expected, and memory is short"


def _ended(what: str, taken: int, most: int) -> str:
    return f"{what} took {gib(taken)} of memory and was ended: {gib(most)} are allowed, and other models need memory"
