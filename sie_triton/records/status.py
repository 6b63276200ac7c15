"""The status record: a small mapped file per process that loads something, with one writer and any number of readers.

It is the authority on which process holds which model, what the process does, and when it was last used. Numbers are
aligned 8-byte integers, so a reader never sees a partly written one.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from struct import Struct
from threading import Lock
from time import monotonic_ns

import numpy as np

from sie_triton.contract.spec import ONNX, REMOTE, TORCH
from sie_triton.errors import REASONS
from sie_triton.records.revisions import model_of, revision_of
from sie_triton.records.traffic import ARRAYS, COUNTERS, TrafficWriter
from sie_triton.system.host.files import read_small, reserve
from sie_triton.system.processes.pids import ProcessId

COLD, LOADING, RESIDENT, FAILED = range(4)
STAGES = ("preprocess", "inference", "postprocess")
VERSION = 13

# Phases of loading. The record has the duration of each, in a field with the suffix `_ns`.
LOAD_PHASES = ("imports", "predecessor", "weights", "calibration")

# Names of engines; the first stands for the engines of third-party families.
ENGINES = ("own", TORCH, ONNX, REMOTE)

Record = Mapping[str, int]

RECORD = np.dtype(
    [
        # Integers, which `Record` has.
        ("version", "<i8"),
        ("pid", "<i8"),
        ("started", "<i8"),  # see system/processes/pids.py
        ("triton_pid", "<i8"),  # tritonserver, which started the process
        ("worker_pid", "<i8"),  # process that holds the weights; 0 if there is none
        ("worker_started", "<i8"),
        ("generation", "<i8"),
        ("state", "<i8"),
        ("busy_since_ns", "<i8"),  # monotonic; 0 when idle
        ("last_used_ns", "<i8"),  # monotonic; 0 if never used
        ("device", "<i8"),  # place of the worker's device among the server's
        ("copy", "<i8"),  # number of the copy that this record is of (see CopyRecord); 0: the process itself
        ("weights_bytes", "<i8"),
        ("engine", "<i8"),  # index in ENGINES
        ("graph_tokens", "<i8"),  # largest pass in the engine's faster form; 0: there is none
        ("beside_bytes", "<i8"),  # memory of the worker at rest beside weights_bytes, measured at load; 0 on a GPU
        ("pass_bytes", "<i8"),  # memory that the passes of all lanes take at most; 0 on a GPU
        ("device_bytes", "<i8"),  # memory that the worker takes on a GPU; 0 on a CPU
        ("fetching_ns", "<i8"),  # monotonic, last progress in fetching or converting weights; 0 when done
        ("load_failure", "<i8"),  # 1 + index in REASONS of the last failed load; 0: none
        ("imports_ns", "<i8"),  # durations of the phases of loading
        ("predecessor_ns", "<i8"),
        ("weights_ns", "<i8"),
        ("calibration_ns", "<i8"),
        ("resident_since_ns", "<i8"),  # monotonic
        ("wanted_bytes", "<i8"),  # requested from the controller (see grants.py)
        ("wanted_since_ns", "<i8"),  # monotonic
        ("granted_bytes", "<i8"),  # granted for the weights being loaded; written by the stage
        ("num_open", "<i8"),  # requests received from Triton and not yet answered
        ("highest_ticket", "<i8"),  # preprocess: issued; inference: received (see request_limit.py)
        ("max_sub_batch_cost", "<i8"),  # of the executed sub-batches of more than one item
        *((name, "<i8") for name in COUNTERS),
        ("failure", "S1000"),  # message of the last failed load, UTF-8; it has room on a full disk, too
        *ARRAYS,
    ]
)
FIELDS = (RECORD.names or ())[: (RECORD.names or ()).index("failure")]
PLACES = {name: place for place, name in enumerate(FIELDS)}
TICKET, LAST_USED, BUSY_SINCE = map(FIELDS.index, ("highest_ticket", "last_used_ns", "busy_since_ns"))
LAYOUT = Struct(f"<{len(FIELDS)}q")


# The controller's bell: a FIFO among the records.
BELL = "controller.bell"


def ring(directory: Path) -> None:
    """Wake the controller of the records in `directory`, if it rests: something happens that it must not miss."""
    with suppress(OSError):
        descriptor = os.open(directory / BELL, os.O_WRONLY | os.O_NONBLOCK)
        with suppress(BlockingIOError):  # full, so the controller has been rung
            os.write(descriptor, b".")
        os.close(descriptor)


def is_remote(record: Record) -> bool:
    """True if a remote server holds the weights; the worker then takes almost no memory."""
    return record["engine"] == ENGINES.index(REMOTE)


class WorkerWriter:
    """Writer of a record about a worker."""

    record: np.void

    def has_worker(self, worker: ProcessId | None) -> None:
        """Record the worker process as soon as it exists, and None once it is gone."""
        self.record["worker_started"] = worker.started if worker else 0
        self.record["worker_pid"] = worker.pid if worker else 0


class StatusWriter(WorkerWriter):
    """The status record of this process. Fields are set as `status.record["state"] = LOADING`.

    Owns the mapped file, which no other process writes. All threads of the process use it: methods that add or compare
    take a lock, and a field that is assigned directly has one thread that does so. The constructor raises OSError if
    the directory is not writable; `load_failed` raises ValueError for a reason that is not in REASONS.
    """

    def __init__(self, directory: Path, model: str, stage: str, generation: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory, self.model, self.stage = directory, model, stage
        self._path = status_path(directory, model, stage, os.getpid())
        # Tickets continue where those of the previous processes ended.
        before = [r for each in ("preprocess", "inference") for r in records_of(directory, model, each)]
        last_used_ns = max((r["last_used_ns"] for _, r in records_of_revisions(directory, model, stage)), default=0)
        reserve(self._path, RECORD.itemsize)
        mapped = np.memmap(self._path, RECORD, "r+", shape=(1,))
        # The record, and the same as a row of integers, which are counted faster.
        self.record, self._numbers = mapped[0], memoryview(mapped.data).cast("B").cast("q")
        self.record["pid"], self.record["started"] = ProcessId.of(os.getpid())
        self.record["triton_pid"] = os.getppid()
        self.record["generation"] = generation
        self.record["highest_ticket"] = max((r["highest_ticket"] for r in before), default=0)
        self.record["last_used_ns"] = last_used_ns
        self.record["version"] = VERSION
        ring(directory)
        self._lock = Lock()
        self._running: list[int] = []
        self.traffic = TrafficWriter(mapped)

    def add(self, **counts: int) -> None:
        with self._lock:
            for name, count in counts.items():
                self._numbers[PLACES[name]] += count

    def raise_to(self, **values: int) -> None:
        """Keep the larger of the recorded and the given value."""
        with self._lock:
            for name, value in values.items():
                self._numbers[PLACES[name]] = max(self._numbers[PLACES[name]], value)

    def next_ticket(self) -> int:
        with self._lock:
            self._numbers[TICKET] += 1
            return self._numbers[TICKET]

    def work_started(self) -> int:
        """Record that work starts, and return the time. `busy_since_ns` is the start of the oldest work in progress."""
        now = monotonic_ns()
        with self._lock:
            self._running.append(now)
            self._numbers[LAST_USED], self._numbers[BUSY_SINCE] = now, min(self._running)
        return now

    def work_ended(self, started_ns: int) -> int:
        now = monotonic_ns()
        with self._lock:
            self._running.remove(started_ns)
            self._numbers[LAST_USED], self._numbers[BUSY_SINCE] = now, min(self._running, default=0)
        return now

    def computed_by(self, engine: str) -> None:
        self.record["engine"] = ENGINES.index(engine) if engine in ENGINES else 0

    def loaded(self) -> None:
        self.record["load_failure"] = 0
        self.record["resident_since_ns"] = self.record["last_used_ns"] = monotonic_ns()
        self.record["state"] = RESIDENT
        self.add(num_loads=1)

    def load_failed(self, reason: str, message: str = "") -> None:
        """Record a failed load; `reason` is one of REASONS, `message` is for the operator."""
        self.record["failure"] = " ".join(message.split()).encode()
        self.record["load_failure"] = 1 + list(REASONS).index(reason)
        self.record["state"] = FAILED

    def has_successor(self) -> bool:
        """True once Triton's traffic goes to another process, or is about to.

        A later revision gets the traffic once one of its processes is no longer cold.
        """
        return any(not is_revision or record["state"] != COLD for is_revision, record in self._later(self.stage))

    def is_awaited(self) -> bool:
        """True while the inference process that replaces this process, or one of a later revision, loads weights."""
        return any(record["state"] == LOADING for _, record in self._later("inference"))

    def _later(self, stage: str) -> Iterator[tuple[bool, Record]]:
        """Yield the living processes of a stage that replace this one, and True for those of later revisions."""
        own = revision_of(self.model)
        for revision, record in records_of_revisions(self.directory, self.model, stage):
            replaces = stage == self.stage and record["generation"] > self.record["generation"]
            if (revision > own or (revision == own and replaces)) and process_of(record).is_alive:
                yield revision > own, record

    def of_other_models(self) -> list[Record]:
        """Return the records of all other living inference processes whose models are computed on this machine."""
        records = [r for r in read_records(self.directory, "*-inference") if not is_remote(r)]
        return [r for r in records if r["pid"] != os.getpid() and process_of(r).is_alive]

    @property
    def loras_path(self) -> Path:
        """Path of this process's record of LoRA adapters; see records/lora_states.py."""
        return loras_path(self._path)

    def remove(self) -> None:
        for path in (self._path, self.loras_path):
            path.unlink(missing_ok=True)


class CopyRecord(WorkerWriter):
    """The record of a copy: a second worker of the inference process that writes `status`, on another device.

    It has the fields that are the worker's; those of requests are 0. One thread at a time writes.
    """

    def __init__(self, status: StatusWriter, number: int) -> None:
        """Create the record; raise OSError if the directory is not writable."""
        self.pid, self.number = int(status.record["pid"]), number
        self._path = status_path(status.directory, status.model, status.stage, self.pid, number)
        reserve(self._path, RECORD.itemsize)
        self.record = np.memmap(self._path, RECORD, "r+", shape=(1,))[0]
        for field in ("pid", "started", "triton_pid", "generation", "engine"):
            self.record[field] = status.record[field]
        self.record["copy"] = number
        self.record["version"] = VERSION

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)


def status_path(directory: Path, model: str, stage: str, pid: int, copy: int = 0) -> Path:
    return directory / f"{model}-{stage}.{process_name(pid, copy)}.status"


def process_name(pid: int, copy: int) -> str:
    """Return the part of a file's name that tells the records of a process and of its copies apart.

    >>> process_name(7, 0), process_name(7, 2)
    ('7', '7-2')
    """
    return f"{pid}-{copy}" if copy else str(pid)


def loras_path(status: Path) -> Path:
    """Return the path of the record of LoRA adapters beside a status record; see records/lora_states.py."""
    return status.with_suffix(".loras")


def read_failure(directory: Path, model: str, stage: str, pid: int) -> str:
    """Return the message of the last failed load of a process, one line; empty if it wrote none."""
    with suppress(OSError, ValueError):
        message: bytes = map_record(status_path(directory, model, stage, pid))["failure"]
        return message.decode(errors="ignore")
    return ""


def map_record(path: Path) -> np.void:
    """Map the record of another process, which stays readable after its file is gone.

    Raise OSError or ValueError if there is none of this version.
    """
    record: np.void = np.memmap(path, RECORD, "r", shape=(1,))[0]
    if record["version"] != VERSION:
        raise ValueError(f"{path}: not a status record of version {VERSION}")
    return record


class StatusReader:
    """Mapped records of the living processes of one stage of a model: reading a field takes no system call.

    Belongs to one thread, in preprocess the one in `execute`. Nothing raises: unreadable files are left out, and while
    the directory cannot be listed, the last listing stays.
    """

    def __init__(self, directory: Path, model: str, stage: str) -> None:
        self._directory, self._name = directory, f"{model}-{stage}"
        self._records: list[np.void] = []
        self._listed_ns = 0

    def records(self, max_age_ns: int) -> list[np.void]:
        """Return one record per process, from a listing that is at most `max_age_ns` old."""
        now = monotonic_ns()
        if now - self._listed_ns >= max_age_ns:
            with suppress(OSError):
                self._records = list(self._map())
            self._listed_ns = now
        return self._records

    def _map(self) -> Iterator[np.void]:
        for path in sorted(self._directory.glob(f"{self._name}.*.status")):
            with suppress(OSError, ValueError):
                if process_of(record := map_record(path)).is_alive:
                    yield record


def read_records(directory: Path, pattern: str) -> list[Record]:
    """Return the records whose file names match `pattern`, as plain integers; unreadable ones are left out."""
    found = []
    for path in sorted(directory.glob(f"{pattern}.*.status")):
        with suppress(OSError, ValueError):
            found.append(read_record(path))
    return found


def records_of(directory: Path, model: str, stage: str) -> list[Record]:
    """Return the records of all processes of one stage; `model` is Triton's name of the model."""
    return read_records(directory, f"{model}-{stage}")


def records_of_revisions(directory: Path, steps: str, stage: str) -> list[tuple[int, Record]]:
    """Return the records of one stage of all revisions of the model with these `steps`, with the number of each."""
    model, found = model_of(steps), []
    for path in sorted(directory.glob(f"{model}*-{stage}.*.status")):
        name = path.name.rsplit(".", 2)[0].removesuffix(f"-{stage}")
        if model_of(name) == model:
            with suppress(OSError, ValueError):
                found.append((revision_of(name), read_record(path)))
    return found


def all_records(directory: Path) -> dict[str, dict[str, list[Record]]]:
    """Return the records of all processes, by stage and by the prefix of the steps' names."""
    found: dict[str, dict[str, list[Record]]] = {stage: {} for stage in STAGES}
    for name in sorted(os.listdir(directory)):
        model, _, stage = name.rsplit(".", 2)[0].rpartition("-")
        if name.endswith(".status") and stage in found:
            with suppress(OSError, ValueError):
                record = read_record(f"{directory}/{name}")
                found[stage].setdefault(model, []).append(record)
    return found


def process_of(record: Record | np.void) -> ProcessId:
    """Return the process that wrote the record."""
    return ProcessId(int(record["pid"]), int(record["started"]))


def worker_of(record: Record | np.void) -> ProcessId:
    """Return the process that holds the weights."""
    return ProcessId(int(record["worker_pid"]), int(record["worker_started"]))


def read_record(path: Path | str) -> Record:
    data, size = read_small(str(path), RECORD.itemsize + 1), RECORD.itemsize
    record = dict(zip(FIELDS, LAYOUT.unpack_from(data), strict=True)) if len(data) == size else {"version": 0}
    if record["version"] != VERSION:
        raise ValueError(f"{path}: not a status record of version {VERSION}")
    return record
