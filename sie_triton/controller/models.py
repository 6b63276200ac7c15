"""What the status records say, model by model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sie_triton.controller.choice import Resident
from sie_triton.controller.memory import worker_bytes
from sie_triton.errors import REASONS
from sie_triton.stages.status import FAILED, LOADING, RESIDENT, Record, all_records, is_alive

STATES = {LOADING: "loading", RESIDENT: "resident", FAILED: "failed"}


@dataclass(frozen=True, slots=True)
class Model:
    """One model's inference: the process that takes its requests, and those before it that still finish theirs."""

    name: str
    record: Record
    draining: Sequence[Record]
    preprocess: Record | None = None

    @property
    def state(self) -> str:
        return "failed" if self.failure else STATES.get(self.record["state"], "cold")

    @property
    def failure(self) -> str:
        """One of REASONS; empty where nothing failed."""
        before = self.preprocess["load_failure"] if self.preprocess else 0
        which = self.record["load_failure"] or before
        return list(REASONS)[which - 1] if which else ""

    @property
    def num_bytes(self) -> int:
        """Memory of its worker, and of those that are about to go."""
        return _worker_bytes(self.record) + self.leaving_bytes

    @property
    def leaving_bytes(self) -> int:
        return sum(map(_worker_bytes, self.draining))

    @property
    def pending(self) -> int:
        return self.record["num_open"]

    @property
    def wants(self) -> int:
        """Bytes it waits for."""
        return self.record["wanted_bytes"]

    @property
    def is_loading(self) -> bool:
        return bool(self.record["granted_bytes"])

    def as_resident(self) -> Resident:
        record = self.record
        is_busy = bool(record["num_open"] or record["busy_since_ns"])
        return Resident(self.name, _worker_bytes(record), record["last_used_ns"], record["resident_since_ns"], is_busy)


# Stage → Triton's name of the model → the records of its living processes, newest last; none where all have died.
Living = Mapping[str, Mapping[str, Sequence[Record]]]


def read_living(directory: Path) -> Living:
    return {
        stage: {model: _living(records) for model, records in by_model.items()}
        for stage, by_model in all_records(directory).items()
    }


def models_of(living: Living) -> dict[str, Model]:
    """Every model with a living inference process, by Triton's name of it."""
    found = {}
    for name, records in living["inference"].items():
        if records:
            preprocess = living["preprocess"].get(name, [])
            found[name] = Model(name, records[-1], records[:-1], preprocess[-1] if preprocess else None)
    return found


def _living(records: Sequence[Record]) -> list[Record]:
    return sorted((r for r in records if is_alive(r["pid"])), key=lambda r: r["generation"])


def _worker_bytes(record: Mapping[str, int]) -> int:
    """On its GPU as the worker measured it, else of the machine's memory."""
    pid = record["worker_pid"]
    if record["device_bytes"]:
        return record["device_bytes"] if is_alive(pid) else 0
    return worker_bytes(pid) if pid else 0
