"""Eight models share a server with room for about three, and two more have directories of their own to be spoilt."""

import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from json import JSONDecodeError
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from benchmarks.texts import texts
from sie_triton import SIEClient
from sie_triton.checkpoints.gliner import is_gliner
from sie_triton.contract.names import triton_name
from sie_triton.controller.commands import ask
from sie_triton.controller.memory import Meter
from sie_triton.errors import ServerError, SIEError
from sie_triton.pipeline.render.build import write_repository
from sie_triton.server.companions import controller, fork_servers
from sie_triton.server.launch import Server
from sie_triton.settings import Settings
from sie_triton.system.processes.fork_server import fork_server_ids, importing_ids
from sie_triton.system.processes.supervisor import Companion
from tests.conftest import fresh_settings, gliner_file, tiny_model_file
from tests.support import one_thread  # noqa: F401

MODELS = [f"test/model-{i}" for i in range(8)]
EXTRACTOR = MODELS[1]  # the others encode
OWN_DIRECTORIES = CORRUPT, MISSING = "test/corrupt", "test/missing"
TEXT = texts(1)[0]
ADMIN_TOKEN = "for-tests"
# What a worker with the weights takes, and what the server grows by for its model, measured.
ONE_MODEL = 215_000_000
ROOM_FOR = 3.5
MIN_RESIDENCY_S = 2.0

# Pause of a client between two calls, in seconds: some of the processors is left for what it waits for.
PAUSE_S = 0.05

# Each sitecustomize.py is for children; a system's own may be imported under that name already.
collect_ignore = ["pretended_gpus"]

LONG = pytest.mark.slow, pytest.mark.timeout(1200)


@dataclass
class Crowd:
    settings: Settings
    server: Server
    companion: Companion
    entities: list[Any] = field(default_factory=list)  # what EXTRACTOR finds in TEXT

    @property
    def grpc(self) -> str:
        return f"127.0.0.1:{self.settings.grpc_port}"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.settings.controller_port}"

    def models(self) -> dict[str, dict[str, Any]]:
        return {model["model"]: model for model in ask(self.settings, "/v1/models")["models"]}

    def state(self, model: str) -> str:
        return self.models()[model]["state"]

    def act(self, model: str, action: str) -> None:
        ask(self.settings, f"/v1/models/{triton_name(model)}/{action}", "POST")

    def answers(self) -> bool:
        with suppress(ServerError, JSONDecodeError):
            return len(self.models()) > 0
        return False

    def evictions(self) -> list[tuple[float, str, str]]:
        """(seconds since the epoch, model, reason), as the controller logged them."""
        log = (self.settings.data_dir / "logs" / "controller.log").read_text()
        found = re.findall(r"^(\S+ \S+) INFO \S+: (\S+)-inference: evict: (.+)$", log, re.MULTILINE)
        return [(_seconds(when), name.replace("__", "/"), reason) for when, name, reason in found]


@contextmanager
def serving(
    root: Path,
    directories: dict[str, Path],
    dim: int,
    room_for: float = 0,
    family: str = "sentence_transformer",
    files: Mapping[str, str] = MappingProxyType({}),
    **given: object,
) -> Iterator[Crowd]:
    """A server with these models and its controller; memory is limited to so many of them, 0 for no limit.

    `files` are model files of more models, by name.
    """
    if room_for:  # a worker that has measured takes more memory than one that finds its measurements
        given["measurements_dir"] = root / "measurements"
    settings = fresh_settings(root, models_dir=root, admin_token=ADMIN_TOKEN, **given)
    files = dict(files)
    for model, directory in directories.items():
        is_entities = is_gliner(directory)
        files[model] = gliner_file(model, directory) if is_entities else tiny_model_file(model, directory, dim, family)
    for model, file in files.items():
        (root / f"{triton_name(model)}.yaml").write_text(file)
    write_repository(root / "model_repository", settings, list(files), runtime=settings.runtime)
    with fork_servers(settings, ()), Server(settings, root / "model_repository") as server:
        server.wait_ready()
        wait_for(lambda: fork_server_ids(settings.status_dir))
        if room_for:
            wait_for(lambda: not importing_ids(settings.status_dir))
            importers = {
                each.pid for each in (*fork_server_ids(settings.status_dir), *fork_server_ids(settings.stub_dir))
            }
            used = Meter("cpu", 1).measure(server.pid, fork_servers=importers).used
            limit = (used + room_for * ONE_MODEL) / settings.memory_pressure_threshold_percent * 100
            settings = settings.model_copy(update={"memory_limit_bytes": int(limit)})
        with controller(settings, server.control_token) as companion:
            crowd = Crowd(settings, server, companion)
            wait_for(lambda: crowd.answers() and len(crowd.models()) == len(files))
            yield crowd
    # fork servers say which of their processes ended by a fault; SIGKILL is the tests' own
    assert not re.findall("ended by (?:SIGSEGV|SIGABRT|SIGBUS)", (settings.data_dir / "logs" / "stubs.log").read_text())


@pytest.fixture(scope="package")
def wide_directory(tmp_path_factory: pytest.TempPathFactory, minilm_directory: Path) -> Path:
    from tests.support.models import save_bert

    return save_bert(tmp_path_factory.mktemp("wide"), tokenizer=minilm_directory, architecture="wide")


@pytest.fixture(scope="package")
def wide_gliner(tmp_path_factory: pytest.TempPathFactory, minilm_directory: Path) -> Path:
    from tests.support.gliners import save_gliner

    root = tmp_path_factory.mktemp("wide-gliner")
    save_gliner(root, minilm_directory, "wide", num_rnn_layers=0)
    return root / "model"


@pytest.fixture(scope="package")
def crowd(tmp_path_factory: pytest.TempPathFactory, wide_directory: Path, wide_gliner: Path) -> Iterator[Crowd]:
    from tests.support.extraction import Extractor
    from tests.support.gliners import LABELS

    root = tmp_path_factory.mktemp("crowd")
    directories = {**dict.fromkeys(MODELS, wide_directory), EXTRACTOR: wide_gliner}
    for model in OWN_DIRECTORIES:
        directories[model] = shutil.copytree(wide_directory, root / triton_name(model))
    (expected,) = Extractor("gliner", wide_gliner)([TEXT], LABELS)
    with serving(root, directories, 1024, ROOM_FOR, min_residency_s=MIN_RESIDENCY_S) as crowd:
        crowd.entities = expected["entities"]
        yield crowd


def answer(client: SIEClient, model: str, timeout: float | None = None) -> Any:
    """Return the model's response to TEXT: a vector, or the entities."""
    if model == EXTRACTOR:
        from tests.support.gliners import LABELS

        return client.extract(model, TEXT, LABELS, timeout=timeout)["entities"]
    return client.encode(model, TEXT, timeout=timeout)["dense"]


def same_entities(found: list[Any], expected: list[Any]) -> bool:
    def told(entities: list[Any]) -> list[Any]:
        return [(each["start"], each["end"], each["label"]) for each in entities]

    scores = [(one["score"], other["score"]) for one, other in zip(found, expected, strict=False)]
    return bool(found) and told(found) == told(expected) and all(abs(a - b) < 1e-4 for a, b in scores)


@pytest.fixture(scope="package")
def vector(crowd: Crowd) -> np.ndarray:
    """Vector that every model of the crowd returns for TEXT: they have the same weights."""
    with SIEClient(crowd.grpc) as client:
        return client.encode(MODELS[0], TEXT)["dense"]


@dataclass(frozen=True)
class Call:
    """Record of a call; times in seconds since the epoch."""

    model: str
    started: float
    ended: float
    error: str = ""
    is_right: bool = True


@dataclass
class Log:
    """Calls and results that clients recorded."""

    calls: list[Call] = field(default_factory=list)
    entities: list[Any] = field(default_factory=list)

    def call(self, client: SIEClient, model: str, vector: np.ndarray, timeout: float | None = None) -> None:
        started, error, right = time.time(), "", True
        try:
            found = answer(client, model, timeout)
            is_entities = isinstance(found, list)
            right = same_entities(found, self.entities) if is_entities else float(found @ vector) > 0.9999
        except SIEError as exc:
            error = f"{type(exc).__name__}: {exc}"
        self.calls.append(Call(model, started, time.time(), error, right))

    def check(self) -> None:
        """Check that every request was answered correctly."""
        assert [call for call in self.calls if call.error or not call.is_right] == []
        assert self.calls


@contextmanager
def busy(crowd: Crowd, model: str, vector: np.ndarray, clients: int = 4, timeout: float | None = None) -> Iterator[Log]:
    log, stopped = Log(entities=crowd.entities), threading.Event()

    def run() -> None:
        with SIEClient(crowd.grpc) as client:
            while not stopped.wait(PAUSE_S):
                log.call(client, model, vector, timeout)

    with ThreadPoolExecutor(clients) as pool:
        for _ in range(clients):
            pool.submit(run)
        try:
            yield log
        finally:
            stopped.set()


@contextmanager
def watching(look: Callable[[], object], period_s: float = 0.1) -> Iterator[list[tuple[float, Any]]]:
    """Record the values of `look`, each with its time in seconds since the epoch."""
    seen: list[tuple[float, Any]] = []
    stopped = threading.Event()

    def run() -> None:
        while not stopped.wait(period_s):
            with suppress(ServerError):
                seen.append((time.time(), look()))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield seen
    finally:
        stopped.set()
        thread.join()


def wait_for(condition: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while True:
        with suppress(ServerError):
            if condition():
                return
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _seconds(logged: str) -> float:
    return datetime.strptime(logged, "%Y-%m-%d %H:%M:%S,%f").timestamp()
