"""Models with worker environments, and CONTRIBUTING's example family."""

import os
import signal

import numpy as np
import psutil
import pytest

from sie_triton import LoadError
from sie_triton.errors import InputError
from sie_triton.models.environments.venv import Venv
from sie_triton.system.processes.fork_server import fork_server_directory, fork_server_ids
from sie_triton.system.processes.pids import is_alive, parent_of
from tests.conftest import TINY
from tests.server.families.conftest import ARRAYS_MODEL, EXAMPLE, LOST, NOWHERE, RECOGNISED, TORCH, Served
from tests.support.controller import wait_for
from tests.support.environments import ARRAYS, SITE_PACKAGES, linked, mapped

SCALE = POWER = 2.0  # of the example's model file
TEXTS = ["a", "Hello, World 42", *(f"{i} Häuser " * 20 for i in range(64))]  # more than goes through a socket


def check(served: Served, model: str = ARRAYS_MODEL) -> None:
    matrix = np.load(served.arrays / "matrix.npy").astype(float)
    with served.client() as client:
        for text, result in zip(TEXTS, client.encode(model, TEXTS), strict=True):
            states = np.array([[ord(each) / 128, each.isupper()] for each in text]) @ matrix
            dense = states.mean(0)
            np.testing.assert_allclose(result["dense"], dense / np.linalg.norm(dense), atol=1e-5)
            np.testing.assert_allclose(result["multivector"], states, atol=1e-4)
            assert result["numpy_version"][0] == 2


def test_the_worker_uses_the_numpy_of_its_environment(served, environments):
    check(served)
    record = served.record(ARRAYS_MODEL)
    assert np.__version__.startswith("1.")
    assert "/numpy/core/" in mapped(record["pid"])
    assert f"{environments / ARRAYS}/lib" in mapped(record["worker_pid"])
    assert str(SITE_PACKAGES) not in mapped(record["worker_pid"])


def test_a_model_in_an_environment_answers_again_after_an_eviction_and_a_death(served):
    check(served)
    evicted = served.record(ARRAYS_MODEL)["worker_pid"]
    served.act(ARRAYS_MODEL, "evict")
    wait_for(lambda: served.state(ARRAYS_MODEL) == "cold" and not is_alive(evicted))
    check(served)
    killed = served.record(ARRAYS_MODEL)["worker_pid"]
    os.kill(killed, signal.SIGKILL)
    check(served)
    assert served.record(ARRAYS_MODEL)["worker_pid"] not in (0, evicted, killed)


def test_the_documented_example_family_is_served(served):
    matrix = np.load(served.letters.parent / "frames" / "matrix.npy")

    def wanted(text: str, power: float) -> np.ndarray:
        states = np.array([[ord(letter) / 128, letter.isupper()] for letter in text]) @ matrix * SCALE
        dense = (abs(states) ** power).mean(0)
        return dense / np.linalg.norm(dense)

    with served.client() as client:
        for text, result in zip(["Hello", "x"], client.encode(EXAMPLE, ["Hello", "x"]), strict=True):
            np.testing.assert_allclose(result["dense"], wanted(text, POWER), atol=1e-5)
        result = client.encode(EXAMPLE, "Hello", options={"power": 3})
        np.testing.assert_allclose(result["dense"], wanted("Hello", 3), atol=1e-5)
        with pytest.raises(InputError, match="parameter power: 9 is not allowed"):
            client.encode(EXAMPLE, "Hello", options={"power": 9})
        with pytest.raises(InputError, match="parameter instruction: this model does not read one"):
            client.encode(EXAMPLE, "Hello", instruction="find")


def test_a_request_cannot_name_an_environment(served):
    with served.client() as client, pytest.raises(InputError, match="parameter environment: unknown here"):
        client.encode(ARRAYS_MODEL, "a", options={"environment": TORCH})


def test_a_missing_environment_fails_only_its_model_until_it_is_made(served, environments):
    with served.client() as client:
        with pytest.raises(LoadError, match=f"environment {NOWHERE}: .* sie-triton env add {NOWHERE} ") as caught:
            client.encode(LOST, "a")
        assert caught.value.reason == "dependency"
        assert client.encode(RECOGNISED, "a")["dense"].shape == (8,)
        arrays = Venv.read(environments / ARRAYS)
        linked(environments, NOWHERE, arrays.site_packages, python=str(arrays.interpreter))
        served.act(LOST, "load")
        check(served, LOST)


@pytest.mark.slow  # imports torch in a venv of its own
def test_a_worker_is_forked_by_the_fork_server_of_its_environment(served, environments):
    (fork_server,) = fork_server_ids(fork_server_directory(served.settings.status_dir, TORCH))
    assert "numpy" not in mapped(fork_server.pid)  # nobody has asked it yet
    with served.client() as client:
        before = client.encode(TINY, "hello")["dense"]
        worker = served.record(TINY)["worker_pid"]
        assert parent_of(worker) == fork_server.pid
        assert psutil.Process(fork_server.pid).cmdline()[0] == str(environments / TORCH / "bin" / "python")
        os.kill(worker, signal.SIGKILL)
        np.testing.assert_allclose(client.encode(TINY, "hello")["dense"], before, atol=1e-6)
        assert parent_of(served.record(TINY)["worker_pid"]) == fork_server.pid
