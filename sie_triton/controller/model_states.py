"""The state of each model, by its status records."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sie_triton.controller.memory import worker_bytes
from sie_triton.errors import REASONS
from sie_triton.records.revisions import model_of, revision_of
from sie_triton.records.status import (
    FAILED,
    LOADING,
    RESIDENT,
    Record,
    all_records,
    is_remote,
    process_of,
    worker_of,
)
from sie_triton.system.host.footprint import GROWTH_BYTES
from sie_triton.system.processes.pids import ENDED, STOPPED, ProcessId

STATES = {LOADING: "loading", RESIDENT: "resident", FAILED: "failed"}


@dataclass(frozen=True, slots=True)
class Processes:
    """The records of one stage of a model as one round read them, by whether the process lives; newest last.

    `stopped` are those of the living that a signal has stopped. `copies` are the records of copies that living
    processes have; those of dead ones are among the dead.
    """

    living: Sequence[Record]
    dead: Sequence[Record]
    stopped: Sequence[ProcessId] = ()
    copies: Sequence[Record] = ()

    def workers_of(self, record: Record) -> Iterator[ProcessId]:
        """Yield the worker of a process, and those of its copies."""
        copies = (copy for copy in self.copies if copy["pid"] == record["pid"])
        return (worker_of(each) for each in (record, *copies) if each["worker_pid"])


# Stage → steps (the prefix of the names of a model's steps) → their processes.
Stages = Mapping[str, Mapping[str, Processes]]


@dataclass(frozen=True, slots=True)
class ModelState:
    """The inference of one model in one round: immutable, so any thread may read it.

    `record` is that of the process that takes the requests; `draining` are those of earlier processes that finish their
    requests, and `earlier` those of earlier revisions, oldest first. `all_copies` are the records of the copies that
    any of these has. If all processes have died, `record` is that of the last one. `dead_stages` have no living
    process. `steps` is the prefix of the names of its steps in Triton. A model that `is_removed` gets no requests.
    """

    name: str
    record: Record
    draining: Sequence[Record]
    preprocess: Record | None = None
    dead_stages: Sequence[str] = ()
    steps: str = ""
    earlier: Sequence[Sequence[Record]] = ()
    is_removed: bool = False
    all_copies: Sequence[Record] = ()

    @property
    def state(self) -> str:
        if self.dead_stages:
            return "dead"
        return "failed" if self.failure else STATES.get(self.record["state"], "cold")

    @property
    def is_out_of_use(self) -> bool:
        """True if the model is cold or failed, and no request is in progress."""
        return self.state in ("cold", "failed") and not self.is_removed and not self.record["num_open"]

    @property
    def is_unsettled(self) -> bool:
        """True while a process loads, has requests or is dead: the next round may have something to do."""
        is_busy = any(each["state"] == LOADING or each["wanted_bytes"] or each["num_open"] for each in self.living)
        return is_busy or bool(self.going or self.dead_stages)

    @property
    def is_resident(self) -> bool:
        return self.record["state"] == RESIDENT and "inference" not in self.dead_stages and not self.is_removed

    @property
    def failure(self) -> str:
        """Reason of the last failed load, one of REASONS; empty if nothing failed."""
        return list(REASONS)[self.failed[1]["load_failure"] - 1] if self.failed else ""

    @property
    def failed(self) -> tuple[str, Record] | None:
        """Stage whose last load failed, with its record; None if none failed."""
        stages = ("inference", self.record), ("preprocess", self.preprocess)
        return next(((stage, record) for stage, record in stages if record and record["load_failure"]), None)

    @property
    def living(self) -> Sequence[Record]:
        """Records of all living inference processes, oldest first."""
        last = () if "inference" in self.dead_stages else (self.record,)
        return (*self.going, *last)

    @property
    def going(self) -> Sequence[Record]:
        """Records of processes that only finish their requests."""
        return [*(record for records in self.earlier for record in records), *self.draining]

    @property
    def leaving(self) -> Sequence[Record]:
        """Records of processes that are about to end, and of their copies."""
        processes = [*self.going, *((self.record,) if self.is_removed else ())]
        return [*processes, *(copy for each in processes for copy in self.copies_of(each))]

    @property
    def copies(self) -> Sequence[Record]:
        """Records of the copies of the process that takes the requests, wished for or in memory."""
        return [] if self.is_removed else self.copies_of(self.record)

    def copies_of(self, record: Record) -> Sequence[Record]:
        return [copy for copy in self.all_copies if copy["pid"] == record["pid"]]

    @property
    def num_bytes(self) -> int:
        """Memory of its worker and the copies of it, and of workers that are about to end."""
        own = () if self.is_removed else (self.record, *self.copies)
        return self.going_bytes + sum(map(taken_bytes, own))

    @property
    def going_bytes(self) -> int:
        return sum(map(taken_bytes, self.leaving))

    def must_wait(self, record: Record) -> bool:
        """True while a revision before that of `record` has weights, or loads them: there are never two copies."""
        for records in self.earlier:
            if record in records:
                return False
            if any(each["worker_pid"] or each["state"] == LOADING for each in records):
                return True
        return False

    @property
    def is_busy(self) -> bool:
        """True while a request is in progress, also one of which preprocess still draws a PDF."""
        before = self.preprocess["num_open"] if self.preprocess else 0
        return bool(before or self.record["num_open"] or self.record["busy_since_ns"])


def read_stages(directory: Path) -> Stages:
    return {
        stage: {model: _processes(records) for model, records in by_model.items()}
        for stage, by_model in all_records(directory).items()
    }


def living(stages: Stages) -> Mapping[ProcessId, tuple[str, str]]:
    """Map the living processes of all stages to the prefix of their steps' names, and their stage."""
    return {
        process_of(record): (steps, stage)
        for stage, by_steps in stages.items()
        for steps, processes in by_steps.items()
        for record in processes.living
    }


def models_of(stages: Stages, serving: Mapping[str, str] | None = None) -> dict[str, ModelState]:
    """Return each model that has had an inference process, by Triton's name of it.

    `serving` maps it to the steps of its requests, "" for a removed model; the default is its latest revision.
    """
    revisions: dict[str, list[str]] = {}
    for steps in sorted(stages["inference"], key=revision_of):
        revisions.setdefault(model_of(steps), []).append(steps)
    return {name: _model(name, stages, each, (serving or {}).get(name)) for name, each in revisions.items()}


def num_open(stages: Stages, steps: str) -> int:
    """Count the requests in all stages of a revision."""
    found = (by_steps[steps] for by_steps in stages.values() if steps in by_steps)
    return sum(record["num_open"] for processes in found for record in processes.living)


def inference_records(models: Mapping[str, ModelState]) -> Iterator[tuple[ModelState, Record]]:
    """Yield the record of each living inference process and of each copy, with its model."""
    return ((model, record) for model in models.values() for record in (*model.living, *model.all_copies))


def most_bytes(record: Record) -> int:
    """Return the main memory that a loaded worker may take; 0 if that is not known."""
    if record["state"] != RESIDENT or not record["pass_bytes"]:
        return 0
    return record["weights_bytes"] + record["beside_bytes"] + record["pass_bytes"] + GROWTH_BYTES


def taken_bytes(record: Record) -> int:
    """Return the memory of its worker: the GPU memory that it reports, else main memory; a remote model takes none."""
    if is_remote(record):
        return 0
    if record["device_bytes"]:
        return record["device_bytes"] if worker_of(record).is_alive else 0
    return worker_bytes(record["worker_pid"]) if record["worker_pid"] else 0


def _model(name: str, stages: Stages, revisions: Sequence[str], serving: str | None) -> ModelState:
    steps = serving if serving and serving in revisions else revisions[-1]
    inference, preprocess = stages["inference"][steps], stages["preprocess"].get(steps)
    last = (inference.living or inference.dead)[-1]
    earlier = revisions[: revisions.index(steps)]
    return ModelState(
        name,
        last,
        inference.living[:-1],
        preprocess.living[-1] if preprocess and preprocess.living else None,
        [stage for stage, by_steps in stages.items() if steps in by_steps and not by_steps[steps].living],
        steps,
        [stages["inference"][each].living for each in earlier],
        serving == "",
        [copy for each in revisions for copy in stages["inference"][each].copies],
    )


def _processes(records: Sequence[Record]) -> Processes:
    # Copies come before their process: the last one stands for the model.
    by_age = sorted(records, key=lambda record: (record["generation"], not record["copy"]))
    states = [(record, process_of(record).state) for record in by_age]
    living = [record for record, state in states if state != ENDED]
    return Processes(
        [record for record in living if not record["copy"]],
        [record for record, state in states if state == ENDED],
        [process_of(record) for record, state in states if state == STOPPED and not record["copy"]],
        [record for record in living if record["copy"]],
    )
