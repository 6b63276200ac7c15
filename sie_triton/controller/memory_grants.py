"""Grant memory to loads that wait for it, and evict models for them, for pressure, or after idle time."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from signal import SIGKILL
from time import monotonic_ns
from types import MappingProxyType

from sie_triton.controller.choice import Device, Resident, place, place_copy, victims
from sie_triton.controller.limits import ControllerLimits
from sie_triton.controller.memory import LIMIT_SETTING, DeviceMemory
from sie_triton.controller.model_states import ModelState, Stages, inference_records, most_bytes, taken_bytes
from sie_triton.controller.swaps import Swaps
from sie_triton.records.grants import EVICTED, GRANTED, answer_load, answer_path, grant_of, read_answer, refusal
from sie_triton.records.revisions import model_of
from sie_triton.records.status import LOADING, RESIDENT, Record, process_of, worker_of
from sie_triton.settings import Settings
from sie_triton.system.host.footprint import STAGE_BYTES, gib, limit_for
from sie_triton.system.host.process_memory import private_bytes
from sie_triton.system.processes.pids import ProcessId

log = logging.getLogger(__name__)

# Under pressure, workers that take more than this many times what they may are ended first: those that load, what was
# granted; loaded ones, what was measured as they loaded.
OVERDRAWN = 2

# Beyond this share of the limit, minimum residency does not protect a model.
CRITICAL_PERCENT = 97


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
        self._swaps, self._models, self._stages = swaps, models, stages
        self._books = [
            DeviceBooks(settings, device, number, memory, models, swaps)
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
        """Evict models of devices under pressure; end first what takes more than it may, also loads."""
        for books in (each for each in self._books if each.over > 0):
            self._is_short = True
            over = books.over - self._end_overdrawn()
            for _, record in inference_records(self._models):
                granted, taken = record["granted_bytes"], books.taken(record)
                if granted and taken > OVERDRAWN * granted:
                    sizes = f"took {gib(taken)} and was ended; {gib(granted)} were expected, and memory is short"
                    answer_load(self._directory, record, refusal("out of memory", f"weights: loading {sizes}"))
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
            is_idle = not before["num_open"] and now - used_ns > patience_s * 1e9
            if is_idle and self._swaps.may_try(model.name, "preprocess"):
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
        asking = (each for each in inference_records(self._models) if each[1]["wanted_bytes"])
        return [each for each in asking if not answer_path(self._directory, each[1]["pid"], each[1]["copy"]).exists()]

    def _chosen(self, model: ModelState, record: Record) -> "DeviceBooks":
        """Return the device that a load gets its memory from."""
        able = [books for books in self._books if not books.has_copy(model)] or self._books
        if len(able) == 1:
            return able[0]
        devices = [books.as_device(model.name) for books in able]
        best = place(devices, record["wanted_bytes"], now_ns=monotonic_ns(), min_residency_ns=self._min_residency_ns)
        return able[devices.index(best)]

    def _make_room_for(self, books: "DeviceBooks", model: ModelState, record: Record, short: int) -> bool:
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
                late = f"need about {gib(wanted)}, which other models have not freed within {waited_s:.0f} s; retry"
                message = books.no_room(wanted, missing) if missing > 0 else f"weights: {late}"
                answer_load(self._directory, record, refusal("out of memory", message))
        else:
            self._evict(books, short, model.name, reason="room for another")
            return short <= movable
        return False

    def _evict(self, books: "DeviceBooks", num_bytes: int, beneficiary: str, *, reason: str) -> None:
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

    def _leave(self, books: "DeviceBooks", resident: Resident, reason: str) -> None:
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
                need = "are allowed, and other models need memory"
                log.warning("%s took %s of memory and was ended: %s %s", what, gib(taken), gib(most), need)
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


def _waited_s(record: Record) -> float:
    return (monotonic_ns() - record["wanted_since_ns"]) / 1e9


class DeviceBooks:
    """The memory of one device in one round, in bytes: what is free, what loads were granted, what evictions will free.

    The device is number `number` of the server's; processes of the `models` on other devices do not count. `free` can
    be granted now. `awaited` is missing to a load for which models are evicted; the device `is_open` for others until
    that one has waited too long.
    """

    def __init__(
        self,
        settings: Settings,
        device: str,
        number: int,
        memory: DeviceMemory,
        models: Mapping[str, ModelState],
        swaps: Swaps,
    ) -> None:
        self.device, self.memory, self.models = device, memory, models
        self._number, self._swaps, self._directory = number, swaps, settings.status_dir
        self._threshold = settings.memory_pressure_threshold_percent
        self.over = memory.over(self._threshold)
        self.share = memory.limit * self._threshold // 100
        self.free = -self.over - self._reserved()
        self.awaited, self.is_open = 0, True

    @property
    def most(self) -> int:
        """Memory that is free without any model."""
        return int(self.share - self.memory.least_server)

    @property
    def is_critical(self) -> bool:
        return self.memory.over(CRITICAL_PERCENT) > 0

    def as_device(self, beneficiary: str) -> Device:
        """Return the device as a load of the model `beneficiary` sees it, which never evicts that model."""
        busy = [
            model
            for model in self.models.values()
            if self._computes(model) or any(map(self.granted, (model.record, *model.copies)))
        ]
        return Device(
            self.device,
            self.free,
            self.most,
            self.residents(beneficiary),
            coming=self.leaving() - self.awaited,
            num_busy=len(busy),
            is_critical=self.is_critical,
        )

    def residents(self, beneficiary: str) -> Sequence[Resident]:
        """Return the models, and copies of models, that can be evicted."""
        others = [
            model
            for name, model in self.models.items()
            if model.is_resident and name != beneficiary and self._swaps.may_evict(name)
        ]
        found = ((model, record) for model in others for record in (model.record, self.copy_of(model)))
        return [self._as_resident(model, record) for model, record in found if record and self._has(record)]

    def copy_of(self, model: ModelState) -> Record | None:
        """Return the record of the model's copy that is or loads here, unless it is leaving."""
        here = (each for each in model.copies if self._has(each) and each["state"] in (LOADING, RESIDENT))
        return next((each for each in here if not self._is_withdrawn(each)), None)

    def holds(self, model: ModelState) -> bool:
        """True if a worker of the model is here, is leaving, or is loaded to here."""
        processes = (*model.living, *model.leaving)
        return self.has_copy(model) or any(self._has(each) and each["worker_pid"] for each in processes)

    def has_copy(self, model: ModelState) -> bool:
        """True if a copy of the model is here, or is granted memory here."""
        return any(self.granted(copy) or (copy["worker_pid"] and self._has(copy)) for copy in model.copies)

    def leaving(self) -> int:
        """Return the memory of processes that only finish their requests, and of evictions in progress."""
        return sum(
            self._bytes_of(record)
            for model, record in self._here()
            if record in model.leaving
            or self._swaps.is_evicting(model.name)
            or (record["copy"] and self._is_withdrawn(record))
        )

    def movable(self, beneficiary: str) -> int:
        """Return the memory that could be freed for a load of the model `beneficiary`."""
        return sum(
            taken_bytes(record)
            for model, record in self._here()
            if record in model.leaving
            or (record["state"] == RESIDENT and model.is_resident and model.name != beneficiary)
        )

    def granted(self, record: Record) -> int:
        """Return the bytes granted to a load here, even if its stage has not read the grant yet."""
        if record["granted_bytes"]:
            return record["granted_bytes"] if self._has(record) else 0
        if not record["wanted_bytes"]:
            return 0
        return record["wanted_bytes"] if self._answer_to(record) == (GRANTED, self.device) else 0

    def taken(self, record: Record) -> int:
        """Return the bytes that a load has taken. GPU memory is unknown, hence 0, until it has loaded."""
        return taken_bytes(record) if self.device == "cpu" else 0

    def too_large(self, wanted: int) -> str:
        """Return the message for a load that does not fit even if every other model is evicted."""
        server = self.memory.server
        free = self.memory.limit * self._threshold / 100 - server
        return (
            f"weights: need about {gib(wanted)}, but with every other model evicted only {gib(max(0, free))} are "
            f"free: {self._share_text()} less {gib(server)} for the server itself; "
            f"{self._raised(server + wanted)}, or choose a smaller model or precision"
        )

    def no_room(self, wanted: int, missing: int) -> str:
        """Return the message for a load that lacks `missing` bytes, which no eviction can free now."""
        share = self.memory.limit * self._threshold / 100
        others = share - self.memory.server - (wanted - missing)
        return (
            f"weights: need about {gib(wanted)}, but now only {gib(max(0, wanted - missing))} can be freed: "
            f"{self._share_text()} less {gib(self.memory.server)} for the server itself and {gib(max(0, others))} for "
            f"models that cannot be evicted yet and other programs; retry, or {self._raised(share + missing)}"
        )

    def _computes(self, model: ModelState) -> bool:
        computing = [copy for copy in model.copies if copy["busy_since_ns"]]
        if model.is_busy:
            computing.append(model.record)
        return model.is_resident and any(map(self._has, computing))

    def _has(self, record: Record) -> bool:
        return record["device"] == self._number

    def _as_resident(self, model: ModelState, record: Record) -> Resident:
        is_copy, used, since = bool(record["copy"]), record["last_used_ns"], record["resident_since_ns"]
        is_busy = bool(record["busy_since_ns"]) if is_copy else model.is_busy
        return Resident(model.name, self._bytes_of(record), used, since, is_busy, is_copy)

    def _bytes_of(self, record: Record) -> int:
        """Return the bytes that the end of a process or copy frees: those it was granted while it loads."""
        return self.granted(record) or taken_bytes(record)

    def _is_withdrawn(self, copy: Record) -> bool:
        return self._answer_to(copy)[0] == EVICTED

    def _answer_to(self, record: Record) -> tuple[str, str]:
        return read_answer(answer_path(self._directory, record["pid"], record["copy"]))

    def _here(self) -> Iterator[tuple[ModelState, Record]]:
        """Yield the processes and copies on this device, with their models."""
        return ((model, record) for model, record in inference_records(self.models) if self._has(record))

    def _reserved(self) -> int:
        """Return the bytes that loads in progress may take in addition to what they have taken."""
        return sum(
            max(0, granted - self.taken(record))
            for _, record in inference_records(self.models)
            if (granted := self.granted(record))
        )

    def _share_text(self) -> str:
        return f"{self._threshold:g} % of {gib(self.memory.limit)} ({self.memory.source})"

    def _raised(self, used: float) -> str:
        """Return the advice to raise the limit so that `used` bytes are allowed."""
        needed = limit_for(used, self._threshold)
        if self.memory.source == LIMIT_SETTING:
            return f"raise {LIMIT_SETTING} to at least {needed}"
        return f"give the {self.memory.source} at least {gib(needed)}"
