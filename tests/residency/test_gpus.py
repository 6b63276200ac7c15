"""A server of two GPUs with room for two models each: the GPUs are pretended, the processes are real."""

import os
import re
import signal
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from benchmarks.preprocess import DIM, saved
from sie_triton import SIEClient
from sie_triton.contract.names import triton_name
from sie_triton.controller.commands import ask
from sie_triton.models import known_loras
from sie_triton.records.status import RESIDENT, records_of
from tests.conftest import tiny_model_file
from tests.residency.conftest import TEXT, Crowd, serving, wait_for
from tests.support.loras import LEAST_COSINE, least_cosine, save_lora

MODELS = [f"test/on-gpu-{i}" for i in range(5)]
ADAPTED = "test/adapted"

# Each model takes 3 GB, and 1 GB more while it loads; a model that is not measured yet is expected to take 1.5 GB.
ONE_MODEL, ROOM = 3_000_000_000, 7_200_000_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, tiny_directory: Path) -> Iterator[Crowd]:
    """Server of five static models and a BERT, whose passes take 0.1 s."""
    root = tmp_path_factory.mktemp("gpus")
    models, limit = dict.fromkeys(MODELS, saved(root / "static")), ROOM * 100 // 85 + 1
    given = {"device": "cuda:0,cuda:1", "memory_limit_bytes": limit, "min_residency_s": 0, "max_batch_requests": 2}
    given |= {"engine": "torch", "default_compute_precision": "float32", "max_loras_per_model": 2}
    given["files"] = {ADAPTED: tiny_model_file(ADAPTED, tiny_directory)}
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
    for model in (*MODELS, ADAPTED):
        if server.state(model) != "cold":
            server.act(model, "evict")
    wait_for(lambda: {server.state(model) for model in (*MODELS, ADAPTED)} == {"cold"})
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
        with many_clients(crowd, busy, {"": right}):
            own = worker(crowd, busy)
            wait_for(lambda: crowd.models()[busy]["copies"] == ["cuda:1"])
            assert crowd.models()[busy]["memory_bytes"] == 2 * ONE_MODEL + 1

            # The copy stands in for a worker that is killed, and gets a copy in turn.
            copy = worker(crowd, busy, is_copy=True)
            os.kill(own, signal.SIGKILL)
            wait_for(lambda: worker(crowd, busy) == copy)
            wait_for(lambda: crowd.models()[busy]["copies"] == ["cuda:0"])
            assert crowd.models()[busy]["device"] == "cuda:1"

            # A copy that is killed is made again, after a while.
            copy = worker(crowd, busy, is_copy=True)
            os.kill(copy, signal.SIGKILL)
            wait_for(lambda: worker(crowd, busy, is_copy=True) not in (0, copy), 120)

            # Each GPU has room for one model beside it; for the third, the copy leaves, and no model does.
            for model in MODELS[1:4]:
                assert np.array_equal(client.encode(model, TEXT)["dense"], right)
            wait_for(lambda: crowd.models()[busy]["copies"] == [])
            assert crowd.models()[busy]["device"] == "cuda:1"
        assert crowd.evictions()[before:] == []
        assert sorted(places(crowd).values()) == [0, 0, 1, 1]


@pytest.mark.timeout(400)
def test_a_copy_computes_with_each_adapter_too(crowd, tiny_directory, tmp_path):
    """The copy stands in for a worker that is killed, an eviction takes both, and no answer is wrong."""
    library = SentenceTransformer(str(tiny_directory), device="cpu")
    base, expected = library[0].model, {"": library.encode(TEXT)}
    for seed, name in enumerate(("first", "second")):
        library[0].model = save_lora(tmp_path / name, base, seed, 0.3, target_modules="all-linear")
        expected[name] = library.encode(TEXT)
        known_loras.add(
            known_loras.added_path(Path(crowd.settings.runtime.loras_dir), ADAPTED), name, str(tmp_path / name)
        )
    with SIEClient(crowd.grpc) as client:
        right = {name: client.encode(ADAPTED, TEXT, lora=name)["dense"] for name in expected}
    for name, vector in right.items():
        assert least_cosine(vector[None], expected[name][None]) >= LEAST_COSINE
    with many_clients(crowd, ADAPTED, right):
        own = worker(crowd, ADAPTED)
        wait_for(lambda: crowd.models()[ADAPTED]["copies"] == ["cuda:1"])
        copy = worker(crowd, ADAPTED, is_copy=True)
        os.kill(own, signal.SIGKILL)
        wait_for(lambda: worker(crowd, ADAPTED) == copy)
        wait_for(lambda: crowd.models()[ADAPTED]["copies"] == ["cuda:0"])
        crowd.act(ADAPTED, "evict")
        wait_for(lambda: worker(crowd, ADAPTED) not in (0, copy))


@contextmanager
def many_clients(crowd: Crowd, model: str, right: Mapping[str, np.ndarray]) -> Iterator[None]:
    """Clients that ask for one text with one LoRA adapter after another; none may fail, or get another vector."""
    stopped = threading.Event()

    def ask_on(_: int) -> int:
        with SIEClient(crowd.grpc) as client:
            for count, (lora, vector) in enumerate(cycle(right.items())):
                if stopped.is_set():
                    return count
                found = client.encode(model, TEXT, lora=lora or None)["dense"]
                assert np.allclose(found, vector, rtol=0, atol=1e-6)
        raise AssertionError

    with ThreadPoolExecutor(16) as pool:
        clients = [pool.submit(ask_on, number) for number in range(16)]
        try:
            yield
        finally:
            stopped.set()
        assert all(client.result() for client in clients)


def worker(crowd: Crowd, model: str, is_copy: bool = False) -> int:
    """Return the pid of the worker of a model, or of its copy; 0 if there is none."""
    found = records_of(crowd.settings.status_dir, triton_name(model), "inference")
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
