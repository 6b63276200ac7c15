"""A server of two GPUs with room for two models each: the GPUs are pretended, the processes are real."""

import os
import re
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.preprocess import DIM, saved
from sie_triton import SIEClient
from sie_triton.controller.commands import ask
from tests.residency.conftest import TEXT, Crowd, serving, wait_for

MODELS = [f"test/on-gpu-{i}" for i in range(5)]

# Each model takes 3 GB, and 1 GB more while it loads; a model that is not measured yet is expected to take 1.5 GB.
ONE_MODEL, ROOM = 3_000_000_000, 7_200_000_000


@pytest.fixture
def crowd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Crowd]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "pretended_gpus"), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    models, limit = dict.fromkeys(MODELS, saved(tmp_path / "static")), ROOM * 100 // 85 + 1
    given = {"device": "cuda:0,cuda:1", "memory_limit_bytes": limit, "min_residency_s": 0}
    with serving(tmp_path, models, DIM, family="static_embedding", **given) as crowd:
        yield crowd


def test_models_are_spread_over_the_gpus_and_each_gpu_is_counted_alone(crowd):
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
        assert [(model, reason) for _, model, reason in crowd.evictions()] == [(MODELS[0], "room for another")]

        # A worker that is killed comes back where there is more room now.
        for model in (MODELS[2], MODELS[4]):
            crowd.act(model, "evict")
        wait_for(lambda: places(crowd) == {MODELS[1]: 1, MODELS[3]: 1})
        check_memory(crowd, {"cuda:0": 0, "cuda:1": 2})  # what was evicted has left
        os.kill(on_other[MODELS[1]], signal.SIGKILL)
        wait_for(lambda: places(crowd) == {MODELS[1]: 0, MODELS[3]: 1})
        assert np.array_equal(vector(MODELS[1]), first)
        check_memory(crowd, {"cuda:0": 1, "cuda:1": 1})


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

    def told() -> dict[str, int]:
        return {each["device"]: each["used_bytes"] for each in ask(crowd.settings, "/v1/models")["memory"]["devices"]}

    wait_for(lambda: told() == expected)
    with urllib.request.urlopen(f"{crowd.url}/metrics") as response:
        page = response.read().decode()
    found = dict(re.findall(r'^sie_memory_used_bytes\{device="(\S+?)",source="\S+"\} (\S+)$', page, re.MULTILINE))
    assert {device: float(used) for device, used in found.items()} == expected
