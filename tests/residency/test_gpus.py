"""A server of two GPUs with room for two models each: the GPUs are pretended, the processes are real."""

import os
import re
import signal
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.preprocess import DIM, saved
from sie_triton import SIEClient
from sie_triton.controller.commands import ask
from sie_triton.records.status import RESIDENT, records_of
from tests.residency.conftest import TEXT, Crowd, serving, wait_for

MODELS = [f"test/on-gpu-{i}" for i in range(5)]

# Each model takes 3 GB, and 1 GB more while it loads; a model that is not measured yet is expected to take 1.5 GB.
ONE_MODEL, ROOM = 3_000_000_000, 7_200_000_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crowd]:
    """Server of five models whose passes take 0.1 s."""
    root = tmp_path_factory.mktemp("gpus")
    models, limit = dict.fromkeys(MODELS, saved(root / "static")), ROOM * 100 // 85 + 1
    given = {"device": "cuda:0,cuda:1", "memory_limit_bytes": limit, "min_residency_s": 0, "max_batch_requests": 2}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRETENDED_LOST", str(root / "lost"))
        patch.setenv("PRETENDED_PASS_S", "0.1")
        patch.setenv("PYTHONPATH", str(Path(__file__).parent / "pretended_gpus"), prepend=os.pathsep)
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        with serving(root, models, DIM, family="static_embedding", **given) as server:
            yield server


@pytest.fixture
def lost(server: Crowd) -> Iterator[Path]:
    """File that names the GPUs that NVML has lost; none at the end."""
    file = Path(os.environ["PRETENDED_LOST"])
    yield file
    file.unlink(missing_ok=True)


@pytest.fixture
def crowd(server: Crowd) -> Crowd:
    """The server without a model in memory, and with both GPUs."""
    for model in MODELS:
        if server.state(model) != "cold":
            server.act(model, "evict")
    wait_for(lambda: {server.state(model) for model in MODELS} == {"cold"})
    wait_for(lambda: memory_of_gpus(server) == {"cuda:0": 0, "cuda:1": 0} and not is_lost(server))
    return server


def test_models_are_spread_over_the_gpus_and_each_gpu_is_counted_alone(crowd, lost):
    before = len(crowd.evictions())
    with SIEClient(crowd.grpc) as client:

        def vector(model: str) -> np.ndarray:
            return client.encode(model, TEXT)["dense"]

        first = vector(MODELS[0])
        for model in MODELS[1:4]:
            assert np.array_equal(vector(model), first)
        wait_for(lambda: places(crowd) == {MODELS[0]: 0, MODELS[1]: 1, MODELS[2]: 0, MODELS[3]: 1})
        check_memory(crowd, {"cuda:0": 2, "cuda:1": 2})
        on_other = {model: crowd.models()[model]["worker_pid"] for model in (MODELS[1], MODELS[3])}

        # The least recently used model leaves; those of the other GPU stay.
        vector(MODELS[4])
        wait_for(lambda: places(crowd) == {MODELS[4]: 0, MODELS[1]: 1, MODELS[2]: 0, MODELS[3]: 1})
        assert {model: crowd.models()[model]["worker_pid"] for model in on_other} == on_other
        evictions = crowd.evictions()[before:]
        assert [(model, reason) for _, model, reason in evictions] == [(MODELS[0], "room for another")]

        # A worker that is killed comes back where there is more room now.
        for model in (MODELS[2], MODELS[4]):
            crowd.act(model, "evict")
        wait_for(lambda: places(crowd) == {MODELS[1]: 1, MODELS[3]: 1})
        check_memory(crowd, {"cuda:0": 0, "cuda:1": 2})  # evicted workers have ended, too
        os.kill(on_other[MODELS[1]], signal.SIGKILL)
        wait_for(lambda: places(crowd) == {MODELS[1]: 0, MODELS[3]: 1})
        assert np.array_equal(vector(MODELS[1]), first)
        check_memory(crowd, {"cuda:0": 1, "cuda:1": 1})

        # One GPU is lost: its models come back on the other, and rounds go on.
        lost.write_text("1")
        wait_for(lambda: is_lost(crowd))
        os.kill(on_other[MODELS[3]], signal.SIGKILL)
        wait_for(lambda: places(crowd) == {MODELS[1]: 0, MODELS[3]: 0})
        assert np.array_equal(vector(MODELS[3]), first)


@pytest.mark.timeout(400)
def test_a_busy_model_gets_a_copy_which_heals_stands_in_and_leaves_first(crowd):
    """No request fails meanwhile, and each answer is right."""
    busy, before = MODELS[0], len(crowd.evictions())
    with SIEClient(crowd.grpc) as client:
        right = client.encode(busy, TEXT)["dense"]
        with many_clients(crowd, busy, right):
            own = worker(crowd)
            wait_for(lambda: crowd.models()[busy]["copies"] == ["cuda:1"])
            assert crowd.models()[busy]["memory_bytes"] == 2 * ONE_MODEL + 1

            # The copy stands in for a worker that is killed, and gets a copy in turn.
            copy = worker(crowd, is_copy=True)
            os.kill(own, signal.SIGKILL)
            wait_for(lambda: worker(crowd) == copy)
            wait_for(lambda: crowd.models()[busy]["copies"] == ["cuda:0"])
            assert crowd.models()[busy]["device"] == "cuda:1"

            # A copy that is killed is made again, after a while.
            copy = worker(crowd, is_copy=True)
            os.kill(copy, signal.SIGKILL)
            wait_for(lambda: worker(crowd, is_copy=True) not in (0, copy), 120)

            # Each GPU has room for one model beside it; for the third, the copy leaves, and no model does.
            for model in MODELS[1:4]:
                assert np.array_equal(client.encode(model, TEXT)["dense"], right)
            wait_for(lambda: crowd.models()[busy]["copies"] == [])
            assert crowd.models()[busy]["device"] == "cuda:1"
        assert crowd.evictions()[before:] == []
        assert sorted(places(crowd).values()) == [0, 0, 1, 1]


@contextmanager
def many_clients(crowd: Crowd, model: str, right: np.ndarray) -> Iterator[None]:
    """Clients that ask for one text after another; at the end none may have failed, or got another vector."""
    stopped = threading.Event()

    def ask_on(_: int) -> int:
        with SIEClient(crowd.grpc) as client:
            for count in range(10**9):
                if stopped.is_set():
                    return count
                assert np.array_equal(client.encode(model, TEXT)["dense"], right)
        raise AssertionError

    with ThreadPoolExecutor(16) as pool:
        clients = [pool.submit(ask_on, number) for number in range(16)]
        try:
            yield
        finally:
            stopped.set()
        assert all(client.result() for client in clients)


def worker(crowd: Crowd, is_copy: bool = False) -> int:
    """Return the pid of the worker of the busy model, or of its copy; 0 if there is none."""
    found = records_of(crowd.settings.status_dir, MODELS[0].replace("/", "__"), "inference")
    workers = [each["worker_pid"] for each in found if bool(each["copy"]) == is_copy and each["state"] == RESIDENT]
    return workers[0] if workers else 0


def places(crowd: Crowd) -> dict[str, int]:
    """Return the number of the GPU that each model in memory is on, as the controller and the worker itself say."""
    models = crowd.models().items()  # a worker that has just died takes no memory
    resident = {name: model for name, model in models if model["state"] == "resident" and model["memory_bytes"]}
    found = {name: int(model["device"].removeprefix("cuda:")) for name, model in resident.items()}
    for name, model in resident.items():
        assert model["memory_bytes"] == ONE_MODEL + found[name]
    return found


def check_memory(crowd: Crowd, num_models: dict[str, int]) -> None:
    """Check that each GPU holds so many models, by the status and by the metrics."""
    expected = {device: count * (ONE_MODEL + int(device.removeprefix("cuda:"))) for device, count in num_models.items()}
    wait_for(lambda: memory_of_gpus(crowd) == expected)
    with urllib.request.urlopen(f"{crowd.url}/metrics") as response:
        page = response.read().decode()
    found = dict(re.findall(r'^sie_memory_used_bytes\{device="(\S+?)",source="\S+"\} (\S+)$', page, re.MULTILINE))
    assert {device: float(used) for device, used in found.items()} == expected


def devices(crowd: Crowd) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ask(crowd.settings, "/v1/models")["memory"]["devices"]
    return found


def memory_of_gpus(crowd: Crowd) -> dict[str, int]:
    """Return the bytes of models on each GPU, by its name."""
    return {each["device"]: each["used_bytes"] for each in devices(crowd)}


def is_lost(crowd: Crowd) -> bool:
    """Return True if the second GPU is lost."""
    return bool(devices(crowd)[1]["source"].endswith("lost"))
