"""The memory of one device in one round: what is free, what loads were granted, and what evictions will free."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from sie_triton.controller.choice import Device, Resident
from sie_triton.controller.memory import LIMIT_SETTING, DeviceMemory
from sie_triton.controller.model_states import ModelState, inference_records, taken_bytes
from sie_triton.records.grants import granted_device
from sie_triton.records.status import Record
from sie_triton.system.host.footprint import limit_for

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
        busy = [model for model in self.models.values() if self.granted(model.record) or self._computes(model)]
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
        """Return the models that can be evicted."""
        return [
            model.as_resident()
            for model in self.models.values()
            if model.is_resident
            and self._has(model.record)
            and model.name != beneficiary
            and not self._is_evicting(model.name)
        ]

    def going(self) -> int:
        """Return the memory of processes that only finish their requests."""
        return sum(self._taken_of(model.leaving) for model in self.models.values())

    def leaving(self) -> int:
        """Return the memory that evictions in progress free."""
        evicted = [model for model in self.models.values() if self._is_evicting(model.name) and not model.is_removed]
        return self.going() + self._taken_of(model.record for model in evicted)

    def movable(self, beneficiary: str) -> int:
        """Return the memory that could be freed for a load of the model `beneficiary`."""
        others = [model for model in self.models.values() if model.is_resident and model.name != beneficiary]
        return self.going() + self._taken_of(model.record for model in others)

    def granted(self, record: Record) -> int:
        """Return the bytes granted to a load here, even if its stage has not read the grant yet."""
        if record["granted_bytes"]:
            return record["granted_bytes"] if self._has(record) else 0
        is_here = record["wanted_bytes"] and granted_device(self._directory, record["pid"]) == self.device
        return record["wanted_bytes"] if is_here else 0

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
        return model.is_resident and self._has(model.record) and model.is_busy

    def _has(self, record: Record) -> bool:
        return record["device"] == self._number

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


def gib(num_bytes: float) -> str:
    """
    >>> gib(1610612736)
    '1.50 GiB'
    """
    return f"{num_bytes / 2**30:.2f} GiB"
