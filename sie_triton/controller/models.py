"""What the status records say, model by model."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sie_triton.controller.choice import Resident
from sie_triton.controller.memory import worker_bytes
from sie_triton.errors import REASONS
from sie_triton.records.status import FAILED, LOADING, RESIDENT, Record, all_records, process_of, worker_of

STATES = {LOADING: "loading", RESIDENT: "resident", FAILED: "failed"}


@dataclass(frozen=True, slots=True)
class Processes:
    """The records of one stage of a model as one round read them, by whether the process lives; newest last."""

    living: Sequence[Record]
    dead: Sequence[Record]


# Stage → Triton's name of the model → its processes.
Stages = Mapping[str, Mapping[str, Processes]]


@dataclass(frozen=True, slots=True)
class Model:
    """One model's inference as one round saw it, which nobody changes; any thread may read it.

    `record` is that of the process that takes the requests, `draining` of those before it that still finish theirs.
    Where all have died, `record` is what the last one left. `dead_stages` have no living process.
    """

    name: str
    record: Record
    draining: Sequence[Record]
    preprocess: Record | None = None
    dead_stages: Sequence[str] = ()

    @property
    def state(self) -> str:
        if self.dead_stages:
            return "dead"
        return "failed" if self.failure else STATES.get(self.record["state"], "cold")

    @property
    def is_resident(self) -> bool:
        return self.record["state"] == RESIDENT and "inference" not in self.dead_stages

    @property
    def failure(self) -> str:
        """One of REASONS; empty where nothing failed."""
        before = self.preprocess["load_failure"] if self.preprocess else 0
        which = self.record["load_failure"] or before
        return list(REASONS)[which - 1] if which else ""

    @property
    def living(self) -> Sequence[Record]:
        """Of its inference."""
        return self.draining if "inference" in self.dead_stages else (*self.draining, self.record)

    @property
    def num_bytes(self) -> int:
        """Memory of its worker, and of those that are about to go."""
        return taken_bytes(self.record) + self.leaving_bytes

    @property
    def leaving_bytes(self) -> int:
        return sum(map(taken_bytes, self.draining))

    @property
    def pending(self) -> int:
        return self.record["num_open"]

    @property
    def wants(self) -> int:
        """Bytes it waits for."""
        return self.record["wanted_bytes"]

    def as_resident(self) -> Resident:
        record = self.record
        is_busy = bool(record["num_open"] or record["busy_since_ns"])
        return Resident(self.name, taken_bytes(record), record["last_used_ns"], record["resident_since_ns"], is_busy)


def read_stages(directory: Path) -> Stages:
    return {
        stage: {model: _processes(records) for model, records in by_model.items()}
        for stage, by_model in all_records(directory).items()
    }


def models_of(stages: Stages) -> dict[str, Model]:
    """Every model that has had an inference process, by Triton's name of it."""
    return {name: _model(name, stages) for name in stages["inference"]}


def inference_records(models: Mapping[str, Model]) -> Iterator[tuple[Model, Record]]:
    """Of all living inference processes."""
    return ((model, record) for model in models.values() for record in model.living)


def taken_bytes(record: Record) -> int:
    """By its worker: on its GPU as the worker measured it, else of the machine's memory."""
    if record["device_bytes"]:
        return record["device_bytes"] if worker_of(record).is_alive else 0
    return worker_bytes(record["worker_pid"]) if record["worker_pid"] else 0


def _model(name: str, stages: Stages) -> Model:
    inference, preprocess = stages["inference"][name], stages["preprocess"].get(name)
    last = (inference.living or inference.dead)[-1]
    dead = [stage for stage, by_model in stages.items() if name in by_model and not by_model[name].living]
    tokenizer = preprocess.living[-1] if preprocess and preprocess.living else None
    return Model(name, last, inference.living[:-1], tokenizer, dead)


def _processes(records: Sequence[Record]) -> Processes:
    by_age = sorted(records, key=lambda r: r["generation"])
    living = [record for record in by_age if process_of(record).is_alive]
    return Processes(living, [record for record in by_age if record not in living])
