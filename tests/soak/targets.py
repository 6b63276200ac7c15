"""What is soaked: one server, or a cluster of two workers on this machine, with three times more models than memory."""

import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import psutil

from sie_triton.bench.ports import free_ports, ports_of_a_server
from sie_triton.names import triton_name
from sie_triton.records.status import Record, all_records
from tests.conftest import gliner_file, model_file, tiny_model_file
from tests.server.test_serve import heed_signals
from tests.soak.clients import Models
from tests.support import killing
from tests.support.gliners import save_gliner
from tests.support.models import save_bert, save_cross_encoder
from tests.support.towers import save_clap, save_clip

NUM_ENCODERS = 12
MODELS = Models([f"t/m{i}" for i in range(NUM_ENCODERS)], "t/reranker", "t/extractor", "t/images", "t/sounds")

# Words in the command line of each part.
PARTS = {**killing.PARTS, "door": "sie_triton.doors"}

# A directory of Python's whose workers leak.
LEAKY = Path(__file__).with_name("leaky")

# Time that a server or a cluster has to start, in seconds.
READY_S = 300.0


def save_models(root: Path, tokenizer: Path) -> Path:
    """Write the models, whose weights come from fixed seeds, and their files; return the directory of the files."""
    directory = root / "models"
    directory.mkdir(parents=True)
    poolings = [save_bert(root / pooling, tokenizer, pooling=pooling) for pooling in ("mean", "cls")]
    reranker = save_cross_encoder(root / "reranker", tokenizer)
    save_gliner(root / "gliner", tokenizer, num_rnn_layers=0)
    save_clip(root / "clip", tokenizer)
    save_clap(root / "clap", tokenizer)
    dense = {"encode": {"dense": {"dim": 32}}}
    files = {
        # Neighbours have other weights, so that an answer of another model is seen.
        **{name: tiny_model_file(name, poolings[i % 2]) for i, name in enumerate(MODELS.encoders)},
        MODELS.reranker: model_file(MODELS.reranker, reranker, "cross_encoder", {"score": {}}),
        MODELS.extractor: gliner_file(MODELS.extractor, root / "gliner" / "model"),
        MODELS.images: model_file(MODELS.images, root / "clip", "clip", dense, inputs=("text", "image")),
        MODELS.sounds: model_file(MODELS.sounds, root / "clap", "clap", dense, inputs=("text", "audio")),
    }
    for name, text in files.items():
        (directory / f"{triton_name(name)}.yaml").write_text(text)
    return directory


class Target(ABC):
    """A running service. Use as a context manager. `parts`: names of what faults may end, with `of`."""

    parts: Sequence[str]

    def __init__(self, root: Path, models_dir: Path, memory_bytes: int, is_leaky: bool = False) -> None:
        self.root = root
        self._variables = {"SIE_ENGINE": "torch", **({"PYTHONPATH": str(LEAKY)} if is_leaky else {})}
        self._models_dir, self._memory_bytes = models_dir, memory_bytes
        self.http, self.grpc = "", ""

    def __enter__(self) -> "Target":
        self._errors = (self.root / "errors.log").open("w")
        self._process = subprocess.Popen(
            [str(Path(sys.executable).with_name("sie-triton")), *self._command()],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, **self._variables},
            preexec_fn=heed_signals,
        )
        assert self._process.stdout is not None
        out: IO[str] = self._process.stdout
        if not any(line.startswith("SIE") and line.endswith("ready\n") for line in out):
            raise RuntimeError(f"it did not start: {(self.root / 'errors.log').read_text()[-2000:]}")
        self.process = psutil.Process(self._process.pid)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate()
        self._errors.close()

    @abstractmethod
    def _command(self) -> list[str]: ...

    @abstractmethod
    def hurt_by(self, part: str) -> frozenset[str]:
        """Return the clients whose own process a part is."""

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

    def names(self) -> dict[int, str]:
        """Return what the stages and workers are, by pid."""
        found = {}
        for name, record in self._records():
            found |= {int(record["pid"]): f"stage {name}", int(record["worker_pid"]): f"worker of {name}"}
        return found

    def _records(self) -> Iterator[tuple[str, Record]]:
        """Yield the status records of all servers with the names of their stages."""
        for directory in self.root.glob("**/status"):
            for stage, models in all_records(directory).items():
                for model, records in models.items():
                    yield from ((f"{model}-{stage}", record) for record in records)


HTTP_CLIENTS = frozenset({"SIE's HTTP", "openai", "cohere", "extract", "images", "sounds"})


class OneServer(Target):
    """`sie-triton serve` with its door."""

    parts = ("stage", "worker", "controller", "door", "triton")

    def _command(self) -> list[str]:
        ports = ports_of_a_server()
        (door,) = free_ports(1)
        self.http, self.grpc = f"http://127.0.0.1:{door}", f"127.0.0.1:{ports['grpc_port']}"
        flags = [f"--{name.replace('_', '-')}={port}" for name, port in ports.items()]
        flags += [f"--door-port={door}", f"--memory-limit-bytes={self._memory_bytes}"]
        return ["serve", *_names(), f"--models-dir={self._models_dir}", f"--data-dir={self.root / 'data'}", *flags]

    def hurt_by(self, part: str) -> frozenset[str]:
        # A client of Triton itself is connected to tritonserver; the door asks again for its own clients.
        return {"triton": frozenset({"tritonclient"}), "door": HTTP_CLIENTS}.get(part, frozenset())


class Cluster(Target):
    """`sie-triton cluster up` with two workers."""

    parts = ("stage", "worker", "controller", "triton", "launcher", "sidecar", "gateway", "config", "nats")

    def _command(self) -> list[str]:
        http, grpc, config = free_ports(3)
        self.http, self.grpc = f"http://127.0.0.1:{http}", f"127.0.0.1:{grpc}"
        flags = [f"--door-port={http}", f"--grpc-port={grpc}", f"--config-port={config}", "--workers=2"]
        flags += [f"--memory-limit-bytes={2 * self._memory_bytes}"]
        names, data = _names(), f"--data-dir={self.root / 'data'}"
        return ["cluster", "up", *names, f"--models-dir={self._models_dir}", data, *flags]

    def hurt_by(self, part: str) -> frozenset[str]:
        return HTTP_CLIENTS | {"tritonclient"} if part == "gateway" else frozenset()


def _names() -> list[str]:
    return [*MODELS.encoders, MODELS.reranker, MODELS.extractor, MODELS.images, MODELS.sounds]


TARGETS: dict[str, type[Target]] = {"server": OneServer, "cluster": Cluster}
