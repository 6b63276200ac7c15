"""Grant memory to loads that wait for it, and evict models for them, for pressure, or after idle time."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from signal import SIGKILL
from time import monotonic_ns
from types import MappingProxyType

from sie_triton.controller.choice import Resident, victims
from sie_triton.controller.limits import ControllerLimits
from sie_triton.controller.memory import LIMIT_SETTING, DeviceMemory, private_bytes
from sie_triton.controller.model_states import ModelState, Stages, inference_records, most_bytes, taken_bytes
from sie_triton.controller.swaps import Swaps
from sie_triton.records.grants import EVICTED, GRANTED, answer_path, refusal
from sie_triton.records.revisions import model_of
from sie_triton.records.status import LOADING, RESIDENT, Record, process_of, worker_of
from sie_triton.settings import Settings
from sie_triton.system.host.files import write_atomically
from sie_triton.system.host.footprint import STAGE_BYTES, limit_for
from sie_triton.system.processes.pids import ProcessId

log = logging.getLogger(__name__)

# Beyond this share of the limit, minimum residency does not protect a model.
CRITICAL_PERCENT = 97

# Under pressure, workers that take more than this many times what they may are ended first: those that load, what was
# granted; loaded ones, what was measured as they loaded.
OVERDRAWN = 2


class MemoryGrants:
    """The grants and evictions of one round, whose thread calls every method.

    Reads the `models`, their `stages` and the `memory` of the device. Answers go to the stages as files; one that
    cannot be written is logged. Evictions go to `swaps`; no method waits for them. `ended_bytes`: memory of the workers
    and stages that the round has ended; None while none was sought.
    """

    def __init__(
        self,
        settings: Settings,
        swaps: Swaps,
        models: Mapping[str, ModelState],
        memory: DeviceMemory,
        stages: Stages = MappingProxyType({}),
        limits: ControllerLimits = ControllerLimits(),
    ) -> None:
        self._settings, self._limits = settings, limits
        self._directory = settings.status_dir
        self._threshold = settings.memory_pressure_threshold_percent
        self._swaps = swaps
        self._models = models
        self._memory = memory
        self._stages = stages
        self._is_short = False
        self.ended_bytes: int | None = None

    def grant(self) -> None:
        """Grant memory to each load that fits beside those in progress; evict models for the first that does not fit.

        Loads that fit may overtake it for `overtaking_s`.
        """
        free = -self._memory.over(self._threshold) - self._reserved()
        is_first = True
        for model, record in self._waiting():
            short = record["wanted_bytes"] - free
            if short <= 0:
                answer_load(self._directory, record, GRANTED)
                free -= record["wanted_bytes"]
            elif is_first:
                is_first = False
                short -= self._end_overdrawn()
                if self._make_room_for(model, record, short) and _waited_s(record) > self._limits.overtaking_s:
                    return

    def relieve(self) -> None:
        over = self._memory.over(self._threshold)
        if over <= 0:
            return
        self._is_short = True
        over -= self._end_overdrawn()
        for _, record in inference_records(self._models):
            granted, taken = record["granted_bytes"], self._taken(record)
            if granted and taken > OVERDRAWN * granted:
                answer_load(self._directory, record, refusal("out of memory", _overdrawn(granted, taken)))
                over -= taken
        self._evict(over, "", reason="pressure")

    def evict_idle(self) -> None:
        limit_ns = self._settings.idle_evict_s * 1e9
        if not limit_ns:
            return
        for resident in self._residents(""):
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
            for model, record in inference_records(self._models)
            if record["wanted_bytes"]
            and not model.must_wait(record)
            and not answer_path(self._directory, record["pid"]).exists()
        ]
        return sorted(waiting, key=lambda each: each[1]["wanted_since_ns"])

    def _reserved(self) -> int:
        """Return the bytes that loads in progress may take in addition to what they have taken."""
        return sum(
            max(0, granted - self._taken(record))
            for _, record in inference_records(self._models)
            if (granted := self._granted(record))
        )

    def _granted(self, record: Record) -> int:
        """Return the bytes granted to a load, even if its stage has not read the grant yet."""
        if record["wanted_bytes"] and _was_granted(self._directory, record):
            return record["granted_bytes"] or record["wanted_bytes"]
        return record["granted_bytes"]

    def _taken(self, record: Record) -> int:
        """Return the bytes that a load has taken. GPU memory is unknown, hence 0, until it has loaded."""
        return taken_bytes(record) if self._settings.runtime.device == "cpu" else 0

    def _make_room_for(self, model: ModelState, record: Record, short: int) -> bool:
        """Evict models for a load that lacks `short` bytes.

        Return False if evictions are not enough; the load is refused after a while, or at once if it can never fit.
        """
        loading = sum(self._granted(r) for _, r in inference_records(self._models))
        leaving = sum(m.going_bytes for m in self._models.values())
        movable = leaving + sum(
            taken_bytes(m.record) for m in self._models.values() if m.is_resident and m is not model
        )
        wanted, waited_s = record["wanted_bytes"], _waited_s(record)
        share = self._memory.limit * self._threshold // 100
        if wanted > share - self._memory.least_server:
            answer_load(self._directory, record, refusal("too large", self._too_large(wanted)))
        elif short > movable + loading or waited_s > self._limits.max_grant_wait_s:
            self._is_short = True
            if waited_s > self._limits.min_grant_wait_s:
                answer_load(self._directory, record, refusal("out of memory", self._no_room(wanted, short - movable)))
        else:
            self._evict(short, model.name, reason="room for another")
            return short <= movable
        return False

    def _evict(self, num_bytes: int, beneficiary: str, *, reason: str) -> None:
        """Evict models until `num_bytes` become free, including evictions in progress."""
        for model in self._models.values():
            num_bytes -= model.going_bytes
            if self._swaps.is_evicting(model.name):
                num_bytes -= model.num_bytes - model.going_bytes
        chosen = victims(
            self._residents(beneficiary),
            num_bytes,
            now_ns=monotonic_ns(),
            min_residency_ns=int(self._settings.min_residency_s * 1e9),
            critical=self._memory.over(CRITICAL_PERCENT) > 0,
        )
        for name in chosen:
            self._swaps.evict(name, reason)

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
            most, taken = OVERDRAWN * most_bytes(record), self._taken(record)
            if most and taken > most:
                yield worker_of(record), f"the worker of {model.name}", taken, most
        most = STAGE_BYTES + self._settings.max_decoded_bytes
        for stage, by_steps in self._stages.items():
            for steps, processes in by_steps.items():
                for record in processes.living:
                    if (taken := private_bytes(record["pid"])) > most:
                        yield process_of(record), f"the {stage} process of {model_of(steps)}", taken, most

    def _residents(self, beneficiary: str) -> Sequence[Resident]:
        """Return the models that can be evicted."""
        return [
            model.as_resident()
            for model in self._models.values()
            if model.is_resident and model.name != beneficiary and not self._swaps.is_evicting(model.name)
        ]

    def _too_large(self, wanted: int) -> str:
        server = self._memory.server
        free = self._memory.limit * self._threshold / 100 - server
        return (
            f"weights: need about {_gib(wanted)}, but with every other model evicted only {_gib(max(0, free))} are "
            f"free: {self._share()} less {_gib(server)} for the server itself; "
            f"{self._raised(server + wanted)}, or choose a smaller model or precision"
        )

    def _no_room(self, wanted: int, missing: int) -> str:
        """Return the message for a load that lacks `missing` bytes, which no eviction can free now."""
        share = self._memory.limit * self._threshold / 100
        others = share - self._memory.server - (wanted - missing)
        return (
            f"weights: need about {_gib(wanted)}, but now only {_gib(max(0, wanted - missing))} can be freed: "
            f"{self._share()} less {_gib(self._memory.server)} for the server itself and {_gib(max(0, others))} for "
            f"models that cannot be evicted yet and other programs; retry, or {self._raised(share + missing)}"
        )

    def _share(self) -> str:
        return f"{self._threshold:g} % of {_gib(self._memory.limit)} ({self._memory.source})"

    def _raised(self, used: float) -> str:
        """Return the advice to raise the limit so that `used` bytes are allowed."""
        needed = limit_for(used, self._threshold)
        if self._memory.source == LIMIT_SETTING:
            return f"raise {LIMIT_SETTING} to at least {needed}"
        return f"give the {self._memory.source} at least {_gib(needed)}"


def withdraw(directory: Path, record: Record) -> None:
    """Stop a process that loads or waits for memory; clients are told to retry its requests."""
    if record["state"] == LOADING:
        answer_load(directory, record, EVICTED)


def answer_load(directory: Path, record: Record, text: str) -> None:
    """Answer a process that loads or waits for memory. On a full disk a grant is tried again by the rounds to come."""
    try:
        write_atomically(answer_path(directory, record["pid"]), text)
    except OSError as exc:
        log.warning("the load of process %d cannot be answered now: %s", record["pid"], exc)


def _was_granted(directory: Path, record: Record) -> bool:
    try:
        return answer_path(directory, record["pid"]).read_text() == GRANTED
    except (OSError, ValueError):
        return False


def _waited_s(record: Record) -> float:
    return (monotonic_ns() - record["wanted_since_ns"]) / 1e9


def _overdrawn(granted: int, taken: int) -> str:
    return f"weights: loading took {_gib(taken)} and was ended; {_gib(granted)} were expected, and memory is short"


def _ended(what: str, taken: int, most: int) -> str:
    return f"{what} took {_gib(taken)} of memory and was ended: {_gib(most)} are allowed, and other models need memory"


def _gib(num_bytes: float) -> str:
    """
    >>> _gib(1610612736)
    '1.50 GiB'
    """
    return f"{num_bytes / 2**30:.2f} GiB"
