"""A stage at its own seam, a controller at its own, a real fork server."""

import asyncio
import json
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import constants

from benchmarks.ports import free_ports
from sie_triton.controller import memory_grants
from sie_triton.controller.api import application
from sie_triton.controller.limits import ControllerLimits
from sie_triton.controller.loop import Controller
from sie_triton.controller.memory import DeviceMemory
from sie_triton.controller.token import admin_token
from sie_triton.models.environments.venv import Venv, find
from sie_triton.models.inputs.chat_template import TemplateProcess
from sie_triton.models.inputs.chat_template_process import written
from sie_triton.models.weights import download
from sie_triton.models.weights.limits import WeightLimits
from sie_triton.pipeline.stages import loader, preprocess
from sie_triton.pipeline.stages.inference import Inference
from sie_triton.pipeline.worker.handle import WorkerHandle
from sie_triton.records.status import StatusWriter
from sie_triton.settings import Settings, read_settings
from sie_triton.system.processes.log import Log
from sie_triton.system.processes.supervisor import Companion
from tests.support.controller import FakeControl, wait_for
from tests.support.environments import ARRAYS, linked
from tests.support.http_clients import client_of
from tests.support.hub import Hub, running
from tests.support.loading import with_tokenizers
from tests.support.object_store import Store
from tests.support.object_store import running as running_store
from tests.support.stages import EchoWorker, spec


@pytest.fixture
def inference(tmp_path, request) -> Iterator[Inference]:
    """Inference stage with an EchoWorker; indirect parameters are changes of its spec."""
    stage = Inference(spec(**getattr(request, "param", {})), "cpu", StatusWriter(tmp_path, "m", "inference", 0))
    stage.directory = tmp_path
    stage.worker = EchoWorker()
    stage.load = lambda: stage.worker
    yield stage
    stage.close()


@pytest.fixture
def tokenizers_made_here(monkeypatch) -> None:
    """Let stages make tokenizers in this process: another one would import transformers for each."""
    for stage in (preprocess, loader):
        monkeypatch.setattr(stage, "with_tokenizers", lambda spec, directory, *_: with_tokenizers(spec, directory))


@pytest.fixture
def conversations_written_here(monkeypatch) -> None:
    """Let chat templates run in this process: each model starts another one for them."""
    monkeypatch.setattr(TemplateProcess, "ask", lambda self, order: json.dumps(written(**json.loads(order))))


@pytest.fixture
def control() -> FakeControl:
    return FakeControl()


@pytest.fixture
def controller(tmp_path, control, monkeypatch, request) -> Iterator[Controller]:
    """Controller of 1,000 bytes, of which 850 may be used; indirect parameters are its limits."""
    settings = read_settings(data_dir=tmp_path, memory_limit_bytes=1000, min_residency_s=0, device="cpu")
    controller = Controller(settings, control, ControllerLimits(**getattr(request, "param", {})))
    controller.measured = DeviceMemory(0, 1000, "test")
    monkeypatch.setattr(
        controller._meters["cpu"], "measure", lambda *_: replace(controller.measured, server=100, least_server=100)
    )
    # Most records are of the process of the tests, which may be larger than a stage: it would be killed.
    monkeypatch.setattr(memory_grants, "private_bytes", lambda pid: 0)
    yield controller
    controller.close()


@pytest.fixture
def door(controller, tmp_path, request) -> Iterator[Settings]:
    """Serve a door with a generated token; yields the settings of a client that finds it. Parameter: other allowed
    callers.
    """
    (port,) = free_ports(1)
    settings = read_settings(data_dir=tmp_path, controller_port=port)
    controller._directory.mkdir(parents=True, exist_ok=True)
    tokens = getattr(request, "param", ())
    server = settings.model_copy(update={"auth_mode": "token", "auth_tokens": ",".join(tokens)} if tokens else {})
    app = application(controller, server, admin_token(tmp_path, ""))
    events, served = asyncio.new_event_loop(), client_of(app, port)
    events.run_until_complete(served.__aenter__())
    thread = threading.Thread(target=events.run_forever)
    thread.start()
    yield settings
    asyncio.run_coroutine_threadsafe(served.__aexit__(None, None, None), events).result()
    events.call_soon_threadsafe(events.stop)
    thread.join()
    events.close()


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def pids() -> Iterator[list[int]]:
    """Process ids of four processes that do nothing."""
    processes = [subprocess.Popen(["sleep", "60"]) for _ in range(4)]
    yield [process.pid for process in processes]
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture
def deaths() -> list[WorkerHandle]:
    return []


@pytest.fixture(scope="session")
def fork_server_directory(tmp_path_factory) -> Iterator[Path]:
    """Directory of a running fork server; its path is longer than a socket's address may be."""
    directory = tmp_path_factory.mktemp("n" * 100)
    command = ["sie_triton.system.processes.fork_server", "sie_triton.pipeline.worker.__main__", str(directory)]
    with Companion("the fork server", command, Log(directory / "log"), {}):
        wait_for((directory / "fork_server.pid").exists)
        yield directory


@pytest.fixture
def arrays(environments) -> Venv:
    return find(environments, ARRAYS)


@pytest.fixture
def empty(tmp_path) -> Venv:
    """Environment without any package, even numpy."""
    return linked(tmp_path / "environments", "empty")


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Iterator[Hub]:
    """Stand-in of the model hub that this process uses as the real one, with a cache of its own."""
    with running() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        quick = WeightLimits(retry_pause_s=0.01, progress_s=0.05, max_unsized_bytes=1 << 20)
        monkeypatch.setattr(download, "LIMITS", quick)
        for name in ("HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT"):
            monkeypatch.setattr(constants, name, 0.3)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield hub


@pytest.fixture
def s3(monkeypatch) -> Iterator[Store]:
    """An empty bucket on a real S3 server, which this process and its children find by their environment."""
    with running_store() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        yield store
