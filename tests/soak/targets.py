"""What is soaked: one server, or a cluster of two workers on this machine, with three times more models than memory."""

import os
import shutil
import struct
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError

import psutil
from sentence_transformers import SentenceTransformer

from benchmarks.ports import free_ports, ports_of_a_server
from sie_triton.contract.names import triton_name
from sie_triton.controller.commands import ADMIN, Where, fetch
from sie_triton.controller.model_states import most_bytes
from sie_triton.errors import ServerError
from sie_triton.records.status import Record, all_records
from tests.conftest import gliner_file, model_file, tiny_model_file
from tests.soak.clients import LARGE, OF_HUB, SPOILED, Models
from tests.support import hub, killing, object_store
from tests.support.gliners import save_gliner
from tests.support.loras import save_lora
from tests.support.models import save_bert, save_cross_encoder
from tests.support.towers import save_clap, save_clip

MAX_ENCODERS = 12
MODELS = Models(
    encoders=[f"t/m{i}" for i in range(MAX_ENCODERS)],
    reranker="t/reranker",
    extractor="t/extractor",
    images="t/images",
    sounds="t/sounds",
    spoiled="t/spoiled",
    of_hub="org/tiny",
    minilm="t/minilm",
)
CHANGING, LORA = "t/changing", "vines"

# Words in the command line of each part.
PARTS = {**killing.PARTS, "door": "sie_triton.doors"}

# What all processes import as they start: faults from within.
IN_PROCESSES = Path(__file__).with_name("in_processes")

# Time after which a forward pass is ended, in seconds: one of the faults is an endless one. Without faults, passes may
# be slow beside others.
FORWARD_TIMEOUT_S, CALM_FORWARD_TIMEOUT_S = 5, 60

# JetStream reserves the space of a queue, and the disk of a soak is small.
QUEUE_BYTES = 256 * 1024**2

ADMIN_TOKEN = "of-the-soak"

# Timeout of a change of the models, in seconds.
CHANGE_S = 30.0

# Time that a server or a cluster has to start, in seconds.
READY_S = 300.0


@dataclass(frozen=True)
class Variant:
    """A content of the file of the model that is changed; empty if it is not served. `lora`: its adapter."""

    name: str
    file: str
    lora: str = ""


@dataclass(frozen=True)
class Saved:
    """Models on disk: the directory of their files, and what one of them is changed to.

    `models`: names of those that are served; `weights`: file of weights to be spoiled; `other_weights`: one of another
    architecture; `of_hub`: a model that a hub has.
    """

    models: Models
    models_dir: Path
    variants: Sequence[Variant]
    weights: Path
    other_weights: Path
    of_hub: Path


def save_models(root: Path, tokenizer: Path, num_encoders: int = MAX_ENCODERS) -> Saved:
    """Write the models, whose weights come from fixed seeds, and their files."""
    models = replace(MODELS, encoders=MODELS.encoders[:num_encoders])
    directory = root / "models"
    directory.mkdir(parents=True)
    poolings = [save_bert(root / pooling, tokenizer, pooling=pooling) for pooling in ("mean", "cls")]
    spoiled = Path(shutil.copytree(poolings[1], root / "spoiled"))
    save_lora(root / LORA, SentenceTransformer(str(poolings[0]), device="cpu")[0].model)
    reranker = save_cross_encoder(root / "reranker", tokenizer)
    save_gliner(root / "gliner", tokenizer, num_rnn_layers=0)
    save_clip(root / "clip", tokenizer)
    save_clap(root / "clap", tokenizer)
    dense = {"encode": {"dense": {"dim": 32}}}
    files = {
        # Neighbours have other weights, so that an answer of another model is seen.
        **{name: tiny_model_file(name, poolings[i % 2]) for i, name in enumerate(models.encoders)},
        MODELS.reranker: model_file(MODELS.reranker, reranker, "cross_encoder", {"score": {}}),
        MODELS.extractor: gliner_file(MODELS.extractor, root / "gliner" / "model"),
        MODELS.images: model_file(MODELS.images, root / "clip", "clip", dense, inputs=("text", "image")),
        MODELS.sounds: model_file(MODELS.sounds, root / "clap", "clap", dense, inputs=("text", "audio")),
        MODELS.spoiled: tiny_model_file(MODELS.spoiled, spoiled),
        MODELS.minilm: model_file(
            MODELS.minilm, tokenizer, "sentence_transformer", {"encode": {"dense": {"dim": 384}}}
        ),
    }
    for name, text in files.items():
        (directory / f"{triton_name(name)}.yaml").write_text(text)
    mean, cls = (tiny_model_file(CHANGING, pooling) for pooling in poolings)
    adapted = Variant("adapted", f"{mean}loras: {{{LORA}: {root / LORA}}}\n", LORA)
    variants = [Variant("mean", mean), Variant("cls", cls), adapted, Variant("removed", "")]
    weights, other = (path / "model.safetensors" for path in (spoiled, root / "clip"))
    return Saved(models, directory, variants, weights, other, poolings[0])


class Target(ABC):
    """A running service. Use as a context manager. `parts`: names of what faults may end, with `of`.

    `absent_clients`: those that have nothing to ask here. `habits`: what its workers do beside their work, of
    `in_processes`.
    """

    parts: Sequence[str]
    absent_clients: frozenset[str]

    def __init__(
        self, root: Path, saved: Saved, memory_bytes: int, habits: Sequence[str] = (), *, has_faults: bool = True
    ) -> None:
        self.root, self.saved = root, saved
        self._clock = root / "clock"
        self.set_clock(0.0)
        self._memory_bytes = memory_bytes
        self.measurements = root / "measurements"
        self._variables = {
            "SIE_ENGINE": "torch",
            "SIE_MEASUREMENTS_DIR": str(self.measurements),
            "SIE_ADMIN_TOKEN": ADMIN_TOKEN,
            "SIE_FORWARD_TIMEOUT_S": str(FORWARD_TIMEOUT_S if has_faults else CALM_FORWARD_TIMEOUT_S),
            "PYTHONPATH": str(IN_PROCESSES),
            "SOAK_HABITS": " ".join(habits),
            "SOAK_CLOCK": str(self._clock),
            "SIE_QUEUE_MAX_BYTES": str(QUEUE_BYTES),
        }
        self.http, self.grpc, self._admin = "", "", ""

    def __enter__(self) -> "Target":
        with ExitStack() as stack:
            self._start(stack.enter_context(self._others()))
            self._stack = stack.pop_all()
        return self

    def _start(self, variables: dict[str, str]) -> None:
        self._errors = (self.root / "errors.log").open("w")
        self._process = subprocess.Popen(
            [str(Path(sys.executable).with_name("sie-triton")), *self._command()],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, **self._variables, **variables},
        )
        assert self._process.stdout is not None
        out: IO[str] = self._process.stdout
        if not any(line.startswith("SIE") and line.endswith("ready\n") for line in out):
            raise RuntimeError(f"it did not start: {(self.root / 'errors.log').read_text()[-2000:]}")
        self.process = psutil.Process(self._process.pid)

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate()
        self._errors.close()
        self._stack.close()

    @abstractmethod
    def _others(self) -> AbstractContextManager[dict[str, str]]:
        """Run the servers of others that the service needs; give the variables that name them."""

    @abstractmethod
    def _command(self) -> list[str]: ...

    def _directories(self) -> list[str]:
        return [f"--models-dir={self.saved.models_dir}", f"--data-dir={self.root / 'data'}"]

    @abstractmethod
    def hurt_by(self, part: str) -> frozenset[str]:
        """Return the clients whose own process a part is."""

    def is_cold_after(self, part: str) -> bool:
        """Return True if a part holds all models of a server."""
        return False

    @abstractmethod
    def put(self, model_file: str) -> None:
        """Serve a model; raise ServerError."""

    @abstractmethod
    def delete(self, model: str) -> None:
        """Serve a model no longer; raise ServerError if it still may be."""

    def set_clock(self, ahead_s: float) -> None:
        """Set the clock of all Python processes to so many seconds ahead of the system's."""
        with self._clock.open("r+b" if self._clock.exists() else "wb") as file:
            file.write(struct.pack("d", ahead_s))

    def has_changed(self) -> bool:
        """Return True if all servers have the latest change."""
        return True

    def ask_admin(self, method: str, path: str, body: str = "") -> Any:
        """Send a request with the admin token to what changes models; raise ServerError."""
        where = Where("server", "nothing", ADMIN)
        return fetch(f"{self._admin}{path}", where, ADMIN_TOKEN, CHANGE_S, method, body.encode() or None)

    def metrics_urls(self) -> Sequence[str]:
        """Return where the service shows its counters."""
        return [f"{self.http}/metrics", f"{self._admin}/metrics"]

    def of(self, part: str) -> list[psutil.Process]:
        """Return the living processes of a part."""
        if part in ("stage", "worker"):
            return self._of_records("pid" if part == "stage" else "worker_pid")
        found = []
        for process in self.process.children(recursive=True):
            try:
                command = " ".join(process.cmdline())
                if PARTS[part] in command and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def _of_records(self, name: str) -> list[psutil.Process]:
        pids = (int(record[name]) for _, record in self._records())
        return [psutil.Process(pid) for pid in sorted({*pids} - {0}) if psutil.pid_exists(pid)]

    def servers(self) -> list[Path]:
        """Return the data directories of all servers."""
        return [self.root / "data"]

    def names(self) -> dict[int, str]:
        """Return what the stages and workers are, by pid."""
        found = {}
        for name, record in self._records():
            found |= {int(record["pid"]): f"stage {name}", int(record["worker_pid"]): f"worker of {name}"}
        return found

    def worker_records(self) -> dict[int, Record]:
        """Return the records of models in memory, by the pid of the worker."""
        records = (record for _, record in self._records())
        return {int(record["worker_pid"]): record for record in records if most_bytes(record)}

    def _records(self) -> Iterator[tuple[str, Record]]:
        """Yield the status records of all servers with the names of their stages."""
        for directory in self.servers():
            for stage, models in all_records(directory / "status").items():
                for model, records in models.items():
                    yield from ((f"{model}-{stage}", record) for record in records)


HTTP_CLIENTS = frozenset({"SIE's HTTP", "openai", "cohere", "extract", "images", "sounds", LARGE, SPOILED, OF_HUB})


class OneServer(Target):
    """`sie-triton serve` with its door, and a hub for one of its models."""

    parts = ("stage", "worker", "controller", "door", "triton")
    absent_clients = frozenset({LARGE})

    @contextmanager
    def _others(self) -> Iterator[dict[str, str]]:
        with hub.running() as self.hub:
            self.hub.put(MODELS.of_hub, self.saved.of_hub)
            self.hub_cache = self.root / "hf"
            yield {"HF_ENDPOINT": self.hub.url, "HF_HOME": str(self.hub_cache), "HF_HUB_OFFLINE": "0"}

    def _command(self) -> list[str]:
        ports = ports_of_a_server()
        (door,) = free_ports(1)
        self.http, self.grpc = f"http://127.0.0.1:{door}", f"127.0.0.1:{ports['grpc_port']}"
        self._admin = f"http://127.0.0.1:{ports['controller_port']}"
        flags = [f"--{name.replace('_', '-')}={port}" for name, port in ports.items()]
        flags += [f"--door-port={door}", f"--memory-limit-bytes={self._memory_bytes}"]
        return ["serve", *_names(self.saved.models), MODELS.of_hub, *self._directories(), *flags]

    def hurt_by(self, part: str) -> frozenset[str]:
        # A client of Triton itself is connected to tritonserver, and gets Triton's own error if a stage dies or stands
        # still. The door tells its clients when to retry.
        of_triton = frozenset({"tritonclient"})
        return {"triton": of_triton, "stage": of_triton, "door": HTTP_CLIENTS}.get(part, frozenset())

    def is_cold_after(self, part: str) -> bool:
        return part == "triton"

    def put(self, model_file: str) -> None:
        self.ask_admin("PUT", "/v1/models", model_file)

    def delete(self, model: str) -> None:
        with _if_not_served():
            self.ask_admin("DELETE", f"/v1/models/{triton_name(model)}")

    def act(self, model: str, action: str) -> None:
        """Load or evict a model; raise ServerError."""
        self.ask_admin("POST", f"/v1/models/{triton_name(model)}/{action}")


NUM_WORKERS = 2


class Cluster(Target):
    """`sie-triton cluster up` with NUM_WORKERS workers, and a payload store (S3)."""

    parts = ("stage", "worker", "controller", "triton", "launcher", "sidecar", "gateway", "config", "nats")
    absent_clients = frozenset({OF_HUB})

    @contextmanager
    def _others(self) -> Iterator[dict[str, str]]:
        with object_store.running() as self.store:
            yield {**self.store.environment, "SIE_PAYLOAD_STORE_URL": f"s3://{object_store.BUCKET}/payloads"}

    def _command(self) -> list[str]:
        http, grpc, config = free_ports(3)
        self.http, self.grpc = f"http://127.0.0.1:{http}", f"127.0.0.1:{grpc}"
        self._admin = f"http://127.0.0.1:{config}"
        flags = [f"--door-port={http}", f"--grpc-port={grpc}", f"--config-port={config}", f"--workers={NUM_WORKERS}"]
        flags += [f"--memory-limit-bytes={NUM_WORKERS * self._memory_bytes}"]
        return ["cluster", "up", *_names(self.saved.models), *self._directories(), *flags]

    def servers(self) -> list[Path]:
        return list((self.root / "data" / "cluster").glob("worker-*"))

    def hurt_by(self, part: str) -> frozenset[str]:
        return HTTP_CLIENTS | {"tritonclient"} if part == "gateway" else frozenset()

    def is_cold_after(self, part: str) -> bool:
        # The models of a worker, which the other one has to load.
        return part in ("triton", "launcher")

    def put(self, model_file: str) -> None:
        self.ask_admin("POST", "/v1/configs/models", model_file)

    def delete(self, model: str) -> None:
        with _if_not_served():
            self.ask_admin("DELETE", f"/v1/configs/models/{model}")

    def has_changed(self) -> bool:
        try:
            told = self.ask_admin("GET", "/v1/configs/epoch")
        except ServerError:
            return False
        # A worker that has lost its controller may be missing, and still answer requests.
        epochs = [worker["epoch"] for worker in told["workers"]]
        return len(epochs) == NUM_WORKERS and min(epochs) >= told["epoch"]


@contextmanager
def _if_not_served() -> Iterator[None]:
    """Ignore that the model is not served: the request before may have removed it."""
    try:
        yield
    except ServerError as exc:
        if not isinstance(exc.__cause__, HTTPError) or exc.__cause__.code != 404:
            raise


def _names(models: Models) -> list[str]:
    others = models.reranker, models.extractor, models.images, models.sounds, models.spoiled, models.minilm
    return [*models.encoders, *others]


TARGETS: dict[str, type[Target]] = {"server": OneServer, "cluster": Cluster}
