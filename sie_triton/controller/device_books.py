"""The memory of one device in one round: what is free, what loads were granted, and what evictions will free."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from sie_triton.controller.choice import Device, Resident
from sie_triton.controller.memory import LIMIT_SETTING, DeviceMemory
from sie_triton.controller.model_states import ModelState, inference_records, taken_bytes
from sie_triton.records.grants import granted_device, is_withdrawn
from sie_triton.records.status import LOADING, RESIDENT, Record
from sie_triton.system.host.footprint import gib, limit_for

# Beyond this share of the limit, minimum residency does not protect a model.
CRITICAL_PERCENT = 97


class DeviceBooks:
    """The books of `device`, number `number` of the server's, in bytes; the round's thread calls every method.

    Reads the `models`: their processes on other devices do not count. `is_evicting` says which models are being
    evicted, and `directory` has the answers to loads. `free` can be granted now. `awaited` is missing to a load for
    which models are evicted; the device `is_open` for others until that one has waited too long.
    """

    def __init__(
        self,
        device: str,
        number: int,
        memory: DeviceMemory,
        threshold_percent: float,
        models: Mapping[str, ModelState],
        is_evicting: Callable[[str], bool],
        directory: Path,
    ) -> None:
        self.device, self.memory, self.models = device, memory, models
        self._number, self._threshold, self._is_evicting = number, threshold_percent, is_evicting
        self._directory = directory
        self.over = memory.over(threshold_percent)
        self.share = memory.limit * threshold_percent // 100
        self.free = -self.over - self._reserved()
        self.awaited = 0
        self.is_open = True

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
            for model in self.models.values()
            if model.is_resident and model.name != beneficiary and not self._is_evicting(model.name)
        ]
        models = [model.as_resident() for model in others if self._has(model.record)]
        copies = [self._as_resident(model, copy) for model in others if (copy := self.copy_of(model))]
        return [*models, *copies]

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

    def going(self) -> int:
        """Return the memory of processes that only finish their requests."""
        return sum(self._taken_of(model.leaving) for model in self.models.values())

    def leaving(self) -> int:
        """Return the memory that evictions in progress free."""
        evicted = [model for model in self.models.values() if self._is_evicting(model.name) and not model.is_removed]
        copies = [
            copy
            for model in self.models.values()
            for copy in model.copies
            if self._has(copy) and (self._is_evicting(model.name) or self._is_withdrawn(copy))
        ]
        return self.going() + self._taken_of(model.record for model in evicted) + sum(map(self._bytes_of, copies))

    def movable(self, beneficiary: str) -> int:
        """Return the memory that could be freed for a load of the model `beneficiary`."""
        others = [model for model in self.models.values() if model.is_resident and model.name != beneficiary]
        copies = [copy for model in others for copy in model.copies if copy["state"] == RESIDENT]
        return self.going() + self._taken_of((*(model.record for model in others), *copies))

    def granted(self, record: Record) -> int:
        """Return the bytes granted to a load here, even if its stage has not read the grant yet."""
        if record["granted_bytes"]:
            return record["granted_bytes"] if self._has(record) else 0
        if not record["wanted_bytes"]:
            return 0
        device = granted_device(self._directory, record["pid"], record["copy"])
        return record["wanted_bytes"] if device == self.device else 0

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

    def _as_resident(self, model: ModelState, copy: Record) -> Resident:
        used, since = copy["last_used_ns"], copy["resident_since_ns"]
        return Resident(model.name, self._bytes_of(copy), used, since, bool(copy["busy_since_ns"]), is_copy=True)

    def _bytes_of(self, copy: Record) -> int:
        """Return the bytes that the end of a copy frees: those it was granted while it loads."""
        return self.granted(copy) or taken_bytes(copy)

    def _is_withdrawn(self, copy: Record) -> bool:
        return is_withdrawn(self._directory, copy["pid"], copy["copy"])

    def _taken_of(self, records: Iterable[Record]) -> int:
        return sum(taken_bytes(record) for record in records if self._has(record))

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
