"""A stage at its own seam, a controller at its own, a real nursery."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from sie_triton.controller import loop
from sie_triton.controller.loop import Controller
from sie_triton.controller.memory import Memory
from sie_triton.environments.venv import Venv, find
from sie_triton.processes.supervisor import Companion
from sie_triton.records.status import StatusWriter
from sie_triton.settings import read_settings
from sie_triton.stages.inference import Inference
from sie_triton.weights import download
from sie_triton.worker.process import Worker
from tests.controller import FakeControl, wait_for
from tests.environments import ARRAYS, linked
from tests.hub import Hub, running
from tests.stages import EchoWorker, spec


@pytest.fixture
def inference(tmp_path, request) -> Iterator[Inference]:
    """With an EchoWorker; parametrise it indirectly with changes of its spec."""
    stage = Inference(spec(**getattr(request, "param", {})), "cpu", StatusWriter(tmp_path, "m", "inference", 0))
    stage.directory = tmp_path
    stage.worker = EchoWorker()
    stage.load = lambda: stage.worker
    yield stage
    stage.close()


@pytest.fixture
def control() -> FakeControl:
    return FakeControl()


@pytest.fixture
def controller(tmp_path, control, monkeypatch) -> Iterator[Controller]:
    """Of 1,000 bytes, of which 850 may be used."""
    settings = read_settings(data_dir=tmp_path, memory_limit_bytes=1000, min_residency_s=0, device="cpu")
    controller = Controller(settings, control)
    controller.measured = Memory(0, 1000, "test")
    monkeypatch.setattr(loop, "sample", lambda *_: controller.measured)
    monkeypatch.setattr(loop, "server_bytes", lambda *_: 100)
    yield controller
    controller.close()


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def pids() -> Iterator[list[int]]:
    """Of processes that do nothing."""
    processes = [subprocess.Popen(["sleep", "60"]) for _ in range(4)]
    yield [process.pid for process in processes]
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture
def deaths() -> list[Worker]:
    return []


@pytest.fixture(scope="package")
def nursery_directory(tmp_path_factory) -> Iterator[Path]:
    """Where a nursery waits; the path is longer than a socket's address may be."""
    directory = tmp_path_factory.mktemp("n" * 100)
    command = ["sie_triton.processes.nursery", "sie_triton.worker.__main__", str(directory)]
    with Companion("the nursery", command, directory / "log", {}):
        wait_for((directory / "nursery.pid").exists)
        yield directory


@pytest.fixture
def arrays(environments) -> Venv:
    return find(environments, ARRAYS)


@pytest.fixture
def empty(tmp_path) -> Venv:
    """Not even numpy is there."""
    return linked(tmp_path / "environments", "empty")


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Iterator[Hub]:
    """Which this process takes for the one there is, with a cache of its own."""
    with running() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(download, "PAUSE_S", 0.01)
        for name in ("HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT"):
            monkeypatch.setattr(constants, name, 0.3)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield hub
